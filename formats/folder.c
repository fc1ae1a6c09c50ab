/* Output folders: complete under their final name, or absent. */
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static char *without_slashes(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    return strndup(path, n);
}

static bool is_empty_folder(const char *path)
{
    DIR *d = opendir(path);
    if (!d) {
        return false;
    }
    int entries = 0;
    for (struct dirent *e; entries == 0 && (e = readdir(d));) {
        entries += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return entries == 0;
}

/* Does another file system, or a part of one, begin at this folder? */
static bool is_mount_point(const char *path)
{
    struct statx x;
    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &x) == 0 &&
        (x.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)) {
        return (x.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    }
    struct stat st, above; /* an older kernel: bind mounts escape this */
    char *parent = NULL;
    bool mounted = asprintf(&parent, "%s/..", path) > 0 && stat(path, &st) == 0 &&
                   stat(parent, &above) == 0 && st.st_dev != above.st_dev;
    free(parent);
    return mounted;
}

/* Is the last component "." or ".."? Such a folder cannot be renamed over. */
static bool ends_in_dots(const char *base)
{
    const char *slash = strrchr(base, '/'), *name = slash ? slash + 1 : base;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bl_status check_existing(const char *base, const struct stat *st, bl_error *err)
{
    const char *what = NULL;
    if (S_ISLNK(st->st_mode)) {
        what = "is a symbolic link: name the folder to make, not a link";
    } else if (!S_ISDIR(st->st_mode)) {
        what = "already exists and is not a folder";
    } else if (!is_empty_folder(base)) {
        what = "already exists and is not an empty folder";
    } else if (ends_in_dots(base)) {
        what = "cannot be replaced under its own name: name a folder in it";
    } else if (is_mount_point(base)) {
        what = "is a mount point, which cannot be replaced: name a folder in it";
    }
    return what ? bl_fail(err, BL_E_USAGE, base, NULL, -1, "%s", what) : BL_OK;
}

bl_status bl_folder_check(const char *path, bl_error *err)
{
    struct stat st;
    char *base = without_slashes(path);
    bl_status s = BL_OK;
    if (!base) {
        s = bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    } else if (lstat(base, &st) == 0) {
        s = check_existing(base, &st, err);
    } else if (errno != ENOENT) {
        s = bl_fail_errno(err, errno, 0, path, "cannot create the folder");
    } else {
        char *slash = strrchr(base, '/');
        if (slash) {
            slash[slash == base] = 0;
        }
        if (access(slash ? base : ".", W_OK | X_OK) != 0) {
            s = bl_fail_errno(err, errno, 0, path,
                              errno == ENOENT ? "there is no folder to create it in"
                                              : "cannot create the folder");
        }
    }
    free(base);
    return s;
}

bl_status bl_folder_begin(const char *path, char **tmp, bl_error *err)
{
    *tmp = NULL;
    BL_TRY(bl_folder_check(path, err));
    char *base = without_slashes(path), *name = NULL;
    int rc = -1, e = ENOMEM;
    for (int tries = 0; base && tries < 100; tries++) {
        free(name);
        name = NULL;
        int n = tries ? asprintf(&name, "%s.partial-%ld.%d", base, (long)getpid(), tries)
                      : asprintf(&name, "%s.partial-%ld", base, (long)getpid());
        if (n < 0) {
            name = NULL;
            break;
        }
        rc = mkdir(name, 0777);
        e = errno;
        if (rc == 0 || e != EEXIST) {
            break;
        }
    }
    free(base);
    if (rc != 0) {
        free(name);
        return bl_fail_errno(err, e, 0, path, "cannot create the folder");
    }
    *tmp = name;
    return BL_OK;
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

bl_status bl_folder_commit(char **tmp, const char *path, bl_error *err)
{
    char *target = without_slashes(path);
    if (!target) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    /* rename replaces an empty folder and refuses any other. */
    if (sync_path(*tmp) != 0 || rename(*tmp, target) != 0) {
        bl_status s = bl_fail_errno(err, errno, 0, path, "cannot complete the folder");
        free(target);
        return s;
    }
    free(*tmp);
    *tmp = NULL;
    char *slash = strrchr(target, '/');
    if (slash) {
        slash[slash == target] = 0;
    }
    bl_status s = sync_path(slash ? target : ".") == 0
                      ? BL_OK
                      : bl_fail_errno(err, errno, 0, path, "cannot sync its parent");
    free(target);
    return s;
}

/* Remove what is in the folder fd (consumed), folders in it down to levels more. Links are removed, never
 * followed. */
static void empty_folder(int fd, int levels)
{
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        if (unlinkat(fd, e->d_name, 0) != 0 && levels > 0) {
            empty_folder(openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), levels - 1);
            unlinkat(fd, e->d_name, AT_REMOVEDIR);
        }
    }
    closedir(d);
}

void bl_folder_abort(char **tmp)
{
    if (*tmp) {
        empty_folder(open(*tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), 1);
        rmdir(*tmp);
        free(*tmp);
        *tmp = NULL;
    }
}

bl_status bl_free_space(const char *path, uint64_t *bytes, bl_error *err)
{
    struct statvfs fs;
    char *p = without_slashes(path);
    int rc = -1, e = ENOMEM;
    while (p) {
        rc = statvfs(*p ? p : ".", &fs);
        e = errno;
        if (rc == 0 || (e != ENOENT && e != ENOTDIR) || strcmp(p, ".") == 0 || strcmp(p, "/") == 0 || !*p) {
            break;
        }
        char *slash = strrchr(p, '/');
        if (!slash) {
            *p = 0;
        } else {
            slash[slash == p] = 0;
        }
    }
    free(p);
    if (rc != 0) {
        return bl_fail_errno(err, e, 0, path, "cannot find out the free space");
    }
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return BL_OK;
}
