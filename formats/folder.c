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

bl_status bl_folder_begin(const char *path, char **tmp, bl_error *err)
{
    struct stat st;
    *tmp = NULL;
    if (lstat(path, &st) == 0) {
        if (!S_ISDIR(st.st_mode)) {
            return bl_fail(err, BL_E_USAGE, path, NULL, -1, "already exists and is not a folder");
        }
        if (!is_empty_folder(path)) {
            return bl_fail(err, BL_E_USAGE, path, NULL, -1, "already exists and is not an empty folder");
        }
    } else if (errno != ENOENT) {
        return bl_fail_errno(err, errno, 0, path, "cannot create the folder");
    }
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
