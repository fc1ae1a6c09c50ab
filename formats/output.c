#include "formats/output.h"

#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_PIECE ((uint64_t)1 << 30)
#define NAME_ROOM 180 /* bytes of the file's own name kept in the temporary one: NAME_MAX is 255 */

struct bl_output {
    int fd;
    char *path, *tmp;
};

/* The folder part of path, malloc'd: "." when there is none. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

static void free_output(bl_output *o)
{
    free(o->path);
    free(o->tmp);
    free(o);
}

/* Reserve size bytes, so that a full disk shows now. File systems that cannot reserve are asked for their
 * free space. */
static bl_status reserve(bl_output *o, uint64_t size, bl_error *err)
{
    int rc;
    if (size > INT64_MAX) {
        return bl_fail(err, BL_E_IO, o->path, NULL, -1, "no file can have %llu bytes",
                       (unsigned long long)size);
    }
    do {
        rc = fallocate(o->fd, 0, 0, (off_t)size);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0) {
        return BL_OK;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
        char doing[80];
        snprintf(doing, sizeof doing, "cannot reserve %llu bytes", (unsigned long long)size);
        return bl_fail_errno(err, errno, 0, o->path, doing);
    }
    uint64_t room;
    BL_TRY(bl_free_space(o->path, &room, err));
    if (room < size) {
        return bl_fail(err, BL_E_IO, o->path, NULL, -1, "needs %llu bytes, %llu are free",
                       (unsigned long long)size, (unsigned long long)room);
    }
    if (ftruncate(o->fd, (off_t)size) != 0) {
        return bl_fail_errno(err, errno, 0, o->path, "cannot set the size");
    }
    return BL_OK;
}

/* ".<name>.<pid>-<n>.tmp" beside the target: rename must not cross file systems, and the name must not look
 * finished. */
static bl_status open_temporary(bl_output *o, bl_error *err)
{
    static atomic_uint serial;
    char *folder = folder_of(o->path);
    if (!folder) {
        return bl_fail(err, BL_E_NOMEM, o->path, NULL, -1, "out of memory");
    }
    const char *slash = strrchr(o->path, '/'), *name = slash ? slash + 1 : o->path;
    bl_status s = BL_OK;
    for (int tries = 0; tries < 100; tries++) {
        free(o->tmp);
        if (asprintf(&o->tmp, "%s/.%.*s.%ld-%u.tmp", folder, NAME_ROOM, name, (long)getpid(),
                     atomic_fetch_add(&serial, 1)) < 0) {
            o->tmp = NULL;
            s = bl_fail(err, BL_E_NOMEM, o->path, NULL, -1, "out of memory");
            break;
        }
        o->fd = open(o->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (o->fd >= 0 || errno != EEXIST) {
            break;
        }
    }
    if (s == BL_OK && o->fd < 0) {
        s = bl_fail_errno(err, errno, 0, o->path, "cannot create");
    }
    free(folder);
    return s;
}

/* The file takes the place of what is there: that may be a file, and a link to one, but no device or the like. A link to what this process
 * has open, such as /dev/stdout, belongs to the system. */
static bl_status check_target(const char *path, bl_error *err)
{
    static const char proc[] = "/proc/";
    char link[sizeof proc];
    struct stat st;
    if (stat(path, &st) != 0) {
        return BL_OK;
    }
    if (!S_ISREG(st.st_mode)) {
        return bl_fail(err, BL_E_IO, path, NULL, -1, "is %s, not a regular file", bl_file_type_name(st.st_mode));
    }
    const ssize_t n = readlink(path, link, sizeof proc - 1);
    const bool system = n == sizeof proc - 1 && memcmp(link, proc, (size_t)n) == 0;
    return system ? bl_fail(err, BL_E_IO, path, NULL, -1, "is a link of the system: name the file itself") : BL_OK;
}

bl_status bl_output_open(bl_output **out, const char *path, uint64_t size, bl_error *err)
{
    *out = NULL;
    BL_TRY(check_target(path, err));
    bl_output *o = calloc(1, sizeof *o);
    if (!o || !(o->path = strdup(path))) {
        free(o);
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    o->fd = -1;
    bl_status s = open_temporary(o, err);
    if (s == BL_OK && size > 0) {
        s = reserve(o, size, err);
    }
    if (s != BL_OK) {
        bl_output_abort(&o);
        return s;
    }
    *out = o;
    return BL_OK;
}

bl_status bl_output_write(bl_output *o, const void *data, uint64_t n, uint64_t offset, bl_error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t put = pwrite(o->fd, p, (size_t)(n < WRITE_PIECE ? n : WRITE_PIECE), (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            bl_status s = bl_fail_errno(err, put < 0 ? errno : EIO, 0, o->path, "write error");
            if (err && err->offset < 0) {
                err->offset = (int64_t)offset;
            }
            return s;
        }
        p += put;
        offset += (uint64_t)put;
        n -= (uint64_t)put;
    }
    return BL_OK;
}

bl_status bl_output_read(const bl_output *o, void *data, uint64_t n, uint64_t offset, bl_error *err)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(o->fd, (char *)data + done, (size_t)(n - done < WRITE_PIECE ? n - done : WRITE_PIECE), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bl_fail_errno(err, got < 0 ? errno : EIO, 0, o->path, "cannot read back");
        }
        done += (uint64_t)got;
    }
    return BL_OK;
}

int bl_output_fd(const bl_output *o)
{
    return o->fd;
}

/* Make a rename in folder durable. Some file systems refuse to sync folders: there is nothing better to do
 * there. */
static bl_status sync_folder(const char *folder, bl_error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return bl_fail_errno(err, errno, 0, folder, "cannot open the folder");
    }
    int rc = fsync(fd), e = errno;
    close(fd);
    return rc == 0 || e == EINVAL || e == ENOTSUP
               ? BL_OK
               : bl_fail_errno(err, e, 0, folder, "cannot sync the folder");
}

static bl_status sync_parent(const char *path, bl_error *err)
{
    char *folder = folder_of(path);
    bl_status s =
        folder ? sync_folder(folder, err) : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    free(folder);
    return s;
}

bl_status bl_output_commit(bl_output **op, bl_error *err)
{
    bl_output *o = *op;
    int fd = o->fd;
    if (fsync(fd) != 0) {
        bl_status s = bl_fail_errno(err, errno, 0, o->path, "cannot sync");
        bl_output_abort(op);
        return s;
    }
    o->fd = -1;
    if (close(fd) != 0 || rename(o->tmp, o->path) != 0) {
        bl_status s = bl_fail_errno(err, errno, 0, o->path, "cannot complete");
        bl_output_abort(op);
        return s;
    }
    bl_status s = sync_parent(o->path, err);
    free_output(o);
    *op = NULL;
    return s;
}

void bl_output_abort(bl_output **op)
{
    bl_output *o = *op;
    *op = NULL;
    if (!o) {
        return;
    }
    if (o->fd >= 0) {
        close(o->fd);
    }
    if (o->tmp) {
        unlink(o->tmp);
    }
    free_output(o);
}

bl_status bl_output_file(const char *path, const void *data, uint64_t n, bl_error *err)
{
    bl_output *o = NULL;
    BL_TRY(bl_output_open(&o, path, 0, err));
    bl_status s = bl_output_write(o, data, n, 0, err);
    if (s != BL_OK) {
        bl_output_abort(&o);
        return s;
    }
    return bl_output_commit(&o, err);
}
