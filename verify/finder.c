#include "verify/finder.h"

#include "verify/digest.h"

#include <errno.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(bl_finder *f, bl_finding finding)
{
    bl_error e;
    bl_error_clear(&e);
    snprintf(e.path, sizeof e.path, "%s", finding.path);
    bl_archive_show(f->archives[0], &e);
    bl_archive_show(f->archives[1], &e);
    finding.path = e.path;
    pthread_mutex_lock(&f->lock);
    f->count++;
    if (f->o->on_finding) {
        f->o->on_finding(f->o->arg, &finding);
    }
    pthread_mutex_unlock(&f->lock);
}

void bl_find(bl_finder *f, int level, const char *path, const char *tensor, int64_t begin, int64_t end, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bl_error e;
    bl_error_clear(&e);
    bl_fail(&e, BL_E_FINDING, path, tensor, -1, "%s", text);
    report(f, (bl_finding){level, e.path, e.tensor, begin, end, e.message});
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(bl_digest));
}

/* Was it reported before? Without memory it is not noted, and reported again. */
static bool is_repeated(bl_finder *f, const bl_error *problem)
{
    char text[sizeof problem->path + sizeof problem->message];
    int n = snprintf(text, sizeof text, "%s\n%s", problem->path, problem->message);
    bl_digest *d = malloc(sizeof *d);
    if (!d) {
        return false;
    }
    *d = bl_digest_bytes(text, (uint64_t)n);
    pthread_mutex_lock(&f->lock);
    bl_digest *const *node = tsearch(d, &f->seen, by_bytes);
    bool kept = node && *node == d;
    pthread_mutex_unlock(&f->lock);
    if (!kept) {
        free(d);
    }
    return node && !kept;
}

void bl_finder_close(bl_finder *f)
{
    tdestroy(f->seen, free);
    pthread_mutex_destroy(&f->lock);
}

void bl_find_absent(bl_finder *f, int level, const char *path, int errno_value, const char *listed_in)
{
    const char *slash = strrchr(path, '/');
    bl_error whole;
    if (errno_value == ENOENT && bl_file_folder_absent(path, &whole)) {
        f->level = level;
        bl_finder_problem(f, &whole);
        return;
    }
    if (errno_value != EACCES || !slash) {
        bl_find(f, level, path, NULL, -1, -1, "is listed in %s but is not there", listed_in);
        return;
    }
    bl_error e;
    char folder[sizeof e.path];
    bl_error_clear(&e);
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    bl_fail(&e, BL_E_INPUT, folder, NULL, -1, "cannot look into the folder: %s", strerror(errno_value));
    f->level = level;
    bl_finder_problem(f, &e);
}

void bl_finder_problem(void *arg, const bl_error *problem)
{
    bl_finder *f = arg;
    bl_error shown = *problem; /* in the words of the archive, as others may have it already */
    bl_archive_show(f->archives[0], &shown);
    bl_archive_show(f->archives[1], &shown);
    if (shown.offset < 0 && !shown.tensor[0] && is_repeated(f, &shown)) {
        return;
    }
    int64_t end = shown.offset >= 0 ? shown.offset + 1 : -1;
    report(f, (bl_finding){f->level, shown.path, shown.tensor, shown.offset, end, shown.message});
}
