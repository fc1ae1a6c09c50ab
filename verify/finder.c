#include "verify/finder.h"

#include <stdarg.h>
#include <stdio.h>

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

void bl_finder_problem(void *arg, const bl_error *problem)
{
    bl_finder *f = arg;
    int64_t end = problem->offset >= 0 ? problem->offset + 1 : -1;
    report(f, (bl_finding){f->level, problem->path, problem->tensor, problem->offset, end, problem->message});
}
