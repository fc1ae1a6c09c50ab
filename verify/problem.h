/* Problems while binding: reported one by one, or the first one as the result. */
#ifndef BL_VERIFY_PROBLEM_H
#define BL_VERIFY_PROBLEM_H

#include "formats/safetensors.h"

/* Called for every problem; the problem is borrowed. */
typedef void (*bl_problem_fn)(void *arg, const bl_error *problem);

/* A problem (BL_E_INPUT) of path and name, described as with bl_fail: handed to on_problem (BL_OK), or the result when that is
 * NULL. */
bl_status bl_problem(bl_problem_fn on_problem, void *arg, bl_error *err, const char *path, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* "[2, 3]" into buf; returns buf. */
const char *bl_shape_text(char *buf, size_t cap, const uint64_t *shape, uint32_t ndim);

#endif
