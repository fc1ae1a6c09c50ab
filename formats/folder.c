/* Where an output folder may be made, and the room there is. */
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

char *bl_folder_plain(const char *path)
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
    char *base = bl_folder_plain(path);
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

bl_status bl_free_space(const char *path, uint64_t *bytes, bl_error *err)
{
    struct statvfs fs;
    char *p = bl_folder_plain(path);
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
