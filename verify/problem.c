#include "verify/problem.h"

#include <stdarg.h>
#include <stdio.h>

bl_status bl_problem(bl_problem_fn on_problem, void *arg, bl_error *err, const char *path, const char *name, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!on_problem) {
        return bl_fail(err, BL_E_INPUT, path, name, -1, "%s", text);
    }
    bl_error e;
    bl_error_clear(&e);
    bl_fail(&e, BL_E_INPUT, path, name, -1, "%s", text);
    on_problem(arg, &e);
    return BL_OK;
}

const char *bl_shape_text(char *buf, size_t cap, const uint64_t *shape, uint32_t ndim)
{
    size_t at = (size_t)snprintf(buf, cap, "[");
    for (uint32_t i = 0; i < ndim && at < cap; i++) {
        at += (size_t)snprintf(buf + at, cap - at, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    }
    if (at < cap) {
        snprintf(buf + at, cap - at, "]");
    }
    return buf;
}
