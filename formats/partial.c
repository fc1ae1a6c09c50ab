/* Output folders: complete under their final name, or absent; what a dead process left can be taken over. */
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct bl_folder {
    char *path;    /* without slashes at its end */
    char *partial; /* path.partial */
    char *files, *journal;
    int fd; /* of the journal, locked */
    bool left_over, committed;
};

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Does path hold nothing but what a partial folder has? */
static bool is_partial(const char *path)
{
    struct stat st;
    DIR *d = lstat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    bool ours = d != NULL;
    for (struct dirent *e; ours && (e = readdir(d));) {
        ours = is_dots(e->d_name) || strcmp(e->d_name, "files") == 0 || strcmp(e->d_name, "journal") == 0;
    }
    if (d) {
        closedir(d);
    }
    return ours;
}

static bool named(const char *const *names, size_t count, const char *sub, const char *name)
{
    size_t n = strlen(sub);
    for (size_t i = 0; i < count; i++) {
        const char *p = names[i];
        if (n ? strncmp(p, sub, n) == 0 && p[n] == '/' && strcmp(p + n + 1, name) == 0 : strcmp(p, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Remove what is in the folder fd (consumed), down to one folder deep, but the files named and folders; those too when names is
 * NULL. Links are removed, never followed. */
static void empty_folder(int fd, const char *sub, const char *const *names, size_t count)
{
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (is_dots(e->d_name) || named(names, count, sub, e->d_name)) {
            continue;
        }
        if (unlinkat(fd, e->d_name, 0) != 0 && !*sub) {
            empty_folder(openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), e->d_name, names, count);
            if (!names) {
                unlinkat(fd, e->d_name, AT_REMOVEDIR);
            }
        }
    }
    closedir(d);
}

static void empty_path(const char *path, const char *const *names, size_t count)
{
    empty_folder(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), "", names, count);
}

static void destroy(bl_folder **fp)
{
    bl_folder *f = *fp;
    *fp = NULL;
    if (f->fd >= 0) {
        close(f->fd); /* and unlock */
    }
    free(f->path);
    free(f->partial);
    free(f->files);
    free(f->journal);
    free(f);
}

static bl_folder *new_folder(const char *path)
{
    bl_folder *f = calloc(1, sizeof *f);
    if (!f) {
        return NULL;
    }
    f->fd = -1;
    f->path = bl_folder_plain(path);
    if (!f->path || asprintf(&f->partial, "%s.partial", f->path) < 0) {
        f->partial = NULL;
    }
    if (!f->partial || asprintf(&f->files, "%s/files", f->partial) < 0) {
        f->files = NULL;
    }
    if (!f->files || asprintf(&f->journal, "%s/journal", f->partial) < 0) {
        f->journal = NULL;
        destroy(&f);
    }
    return f;
}

/* Make the partial folder or enter the one that is there, and lock its journal. *again: another process removed it meanwhile. */
static bl_status enter(bl_folder *f, bool *again, bl_error *err)
{
    struct stat mine, there;
    *again = false;
    if (mkdir(f->partial, 0777) != 0) {
        if (errno != EEXIST) {
            return bl_fail_errno(err, errno, 0, f->path, "cannot create the folder");
        }
        if (!is_partial(f->partial)) {
            return bl_fail(err, BL_E_USAGE, f->partial, NULL, -1, "is in the way, and not left by an earlier run: move it elsewhere");
        }
    }
    f->fd = open(f->journal, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (f->fd < 0) {
        *again = errno == ENOENT;
        bl_status s = *again ? BL_OK : bl_fail_errno(err, errno, 0, f->journal, "cannot create");
        rmdir(f->partial); /* if it was made just now */
        return s;
    }
    /* A file system without locks leaves writers to their users' care. */
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return bl_fail(err, BL_E_USAGE, f->path, NULL, -1, "is being written by another process now");
    }
    *again = fstat(f->fd, &mine) != 0 || stat(f->journal, &there) != 0 || mine.st_ino != there.st_ino || mine.st_dev != there.st_dev;
    if (*again) {
        close(f->fd);
        f->fd = -1;
    }
    return BL_OK;
}

/* Is there a journal and nothing else? The rename was the last thing that was done. */
static bool only_journal(const bl_folder *f)
{
    struct stat st;
    return lstat(f->journal, &st) == 0 && st.st_size > 0 && lstat(f->files, &st) != 0 && is_partial(f->partial);
}

static bl_status take_over(bl_folder *f, bool resume, bl_error *err)
{
    struct stat st;
    bool files = lstat(f->files, &st) == 0;
    if (f->committed) {
        return BL_OK;
    }
    f->left_over = files || (fstat(f->fd, &st) == 0 && st.st_size > 0);
    if (!resume && f->left_over) {
        empty_path(f->files, NULL, 0);
        if (ftruncate(f->fd, 0) != 0) {
            return bl_fail_errno(err, errno, 0, f->journal, "cannot empty");
        }
    }
    if (mkdir(f->files, 0777) != 0 && (errno != EEXIST || lstat(f->files, &st) != 0 || !S_ISDIR(st.st_mode))) {
        return bl_fail_errno(err, errno, 0, f->files, "cannot create the folder");
    }
    return BL_OK;
}

bl_status bl_folder_begin(bl_folder **out, const char *path, bool resume, bl_error *err)
{
    *out = NULL;
    bl_error e;
    bl_error_clear(&e);
    bl_folder *f = new_folder(path);
    if (!f) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    bl_status s = bl_folder_check(path, &e);
    if (s == BL_E_USAGE && resume && only_journal(f)) {
        f->committed = true;
        s = BL_OK;
    } else if (s != BL_OK && err && err->code == BL_OK) {
        *err = e;
    }
    bool again = true;
    for (int tries = 0; s == BL_OK && again; tries++) {
        s = tries < 100 ? enter(f, &again, err) : bl_fail(err, BL_E_USAGE, path, NULL, -1, "is being written by other processes now");
    }
    if (s == BL_OK && (s = take_over(f, resume, err)) != BL_OK) {
        bl_folder_abort(&f, resume);
    }
    if (s != BL_OK && f) {
        destroy(&f); /* nothing of it is ours */
    }
    *out = f;
    return s;
}

const char *bl_folder_files(const bl_folder *f)
{
    return f->files;
}

const char *bl_folder_partial(const bl_folder *f)
{
    return f->partial;
}

int bl_folder_journal(const bl_folder *f)
{
    return f->fd;
}

bool bl_folder_committed(const bl_folder *f)
{
    return f->committed;
}

bool bl_folder_left_over(const bl_folder *f)
{
    return f->left_over;
}

void bl_folder_keep(const bl_folder *f, const char *const *names, size_t count)
{
    empty_path(f->files, names, count);
}

static int sync_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    int rc = fsync(fd), e = errno;
    close(fd);
    errno = e;
    return rc != 0 && (e == EINVAL || e == ENOTSUP) ? 0 : rc;
}

/* The journal goes after the rename: until then it is what a later process would go on from. */
static void remove_rest(bl_folder *f)
{
    unlink(f->journal);
    rmdir(f->partial);
}

/* Make the rename to path durable. */
static bl_status sync_above(const bl_folder *f, bl_error *err)
{
    char *slash = strrchr(f->path, '/'), *parent = !slash ? strdup(".") : strndup(f->path, slash == f->path ? 1 : (size_t)(slash - f->path));
    bl_status s = parent ? BL_OK : bl_fail(err, BL_E_NOMEM, f->path, NULL, -1, "out of memory");
    if (parent && sync_path(parent) != 0) {
        s = bl_fail_errno(err, errno, 0, f->path, "is complete, but cannot sync its parent");
    }
    free(parent);
    return s;
}

bl_status bl_folder_commit(bl_folder **fp, bl_error *err)
{
    bl_folder *f = *fp;
    /* rename replaces an empty folder and refuses any other. */
    if (sync_path(f->files) != 0 || rename(f->files, f->path) != 0) {
        return bl_fail_errno(err, errno, 0, f->path, "cannot complete the folder");
    }
    bl_status s = sync_above(f, err);
    remove_rest(f);
    destroy(fp);
    return s;
}

bl_status bl_folder_commit_file(bl_folder **fp, const char *name, bl_error *err)
{
    bl_folder *f = *fp;
    char *from;
    if (asprintf(&from, "%s/%s", f->files, name) < 0) {
        return bl_fail(err, BL_E_NOMEM, f->path, NULL, -1, "out of memory");
    }
    int rc = renameat2(AT_FDCWD, from, AT_FDCWD, f->path, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) { /* not on this file system */
        rc = rename(from, f->path);
    }
    bl_status s = rc == 0 ? sync_above(f, err) : bl_fail_errno(err, errno, 0, f->path, "cannot complete the file");
    free(from);
    if (rc == 0) {
        bl_folder_abort(fp, false);
    }
    return s;
}

void bl_folder_abort(bl_folder **fp, bool keep)
{
    bl_folder *f = *fp;
    if (f && !keep) {
        empty_path(f->files, NULL, 0);
        rmdir(f->files);
        remove_rest(f);
    }
    if (f) {
        destroy(fp);
    }
}
