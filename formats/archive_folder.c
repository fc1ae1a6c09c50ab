/* The temporary folder that small files of an archive are unpacked into. */
#include "formats/archive_parts.h"

#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKED ((uint64_t)1 << 20) /* smaller files are written without a look at the free space */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Open and lock a folder: -1 when another process has it, or it is gone. *locked is false where the file system has no locks. */
static int lock_folder(const char *path, bool *locked)
{
    struct stat mine, there;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    bool busy = fd >= 0 && !*locked && errno == EWOULDBLOCK;
    if (fd >= 0 && (busy || fstat(fd, &mine) != 0 || lstat(path, &there) != 0 || mine.st_ino != there.st_ino ||
                    mine.st_dev != there.st_dev)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Remove what processes left that were killed: folders of this archive that nobody has locked. */
static void remove_left_over(const char *in, const char *prefix)
{
    DIR *d = opendir(in);
    size_t n = strlen(prefix);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        int len = snprintf(path, sizeof path, "%s/%s", in, e->d_name);
        if (strncmp(e->d_name, prefix, n) != 0 || strlen(e->d_name) != n + 6 || len < 0 || (size_t)len >= sizeof path) {
            continue;
        }
        bool locked;
        int fd = lock_folder(path, &locked);
        if (fd >= 0 && locked) {
            remove_tree(path);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (d) {
        closedir(d);
    }
}

bl_status bl_archive_folder_make(bl_archive_folder *f, const char *in, const char *archive, bl_error *err)
{
    const char *slash = strrchr(archive, '/');
    char prefix[160];
    snprintf(prefix, sizeof prefix, ".%.100s.unpacked-", slash ? slash + 1 : archive);
    *f = (bl_archive_folder){.in = in, .lock = -1};
    remove_left_over(in, prefix);
    for (int tries = 0; tries < 100 && f->lock < 0; tries++) { /* another process may take it for left over before it is locked */
        free(f->path);
        if (asprintf(&f->path, "%s/%sXXXXXX", in, prefix) < 0) {
            f->path = NULL;
            return bl_fail(err, BL_E_NOMEM, in, NULL, -1, "out of memory");
        }
        if (!mkdtemp(f->path)) {
            break;
        }
        bool locked;
        f->lock = lock_folder(f->path, &locked);
    }
    if (f->lock >= 0) {
        return BL_OK;
    }
    bl_status s = bl_fail_errno(err, errno, 0, in, "cannot make a folder to unpack into in");
    free(f->path);
    f->path = NULL;
    return s;
}

void bl_archive_folder_remove(bl_archive_folder *f)
{
    if (f->path) {
        remove_tree(f->path);
        close(f->lock);
        free(f->path);
        f->path = NULL;
    }
}

bl_status bl_archive_folder_create(const bl_archive_folder *f, const char *name, uint64_t size, int *fd, bool *twice, bl_error *err)
{
    char *path;
    uint64_t room = size;
    *fd = -1;
    *twice = false;
    if (size > CHECKED) {
        BL_TRY(bl_free_space(f->path, &room, err));
    }
    if (room < size) {
        return bl_fail(err, BL_E_IO, f->in, name, -1, "needs %llu bytes there, %llu are free", (unsigned long long)size,
                       (unsigned long long)room);
    }
    if (asprintf(&path, "%s/%s", f->path, name) < 0) {
        return bl_fail(err, BL_E_NOMEM, f->path, NULL, -1, "out of memory");
    }
    for (char *p = path + strlen(f->path) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(path, 0777);
        *p = '/';
    }
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int e = errno;
    free(path);
    *twice = *fd < 0 && (e == EEXIST || e == ENOTDIR || e == EISDIR);
    return *fd >= 0 || *twice ? BL_OK : bl_fail_errno(err, e, 0, f->in, "cannot unpack there");
}
