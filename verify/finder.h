/* Collecting findings from many threads. Private to verify/. */
#ifndef BL_VERIFY_FINDER_H
#define BL_VERIFY_FINDER_H

#include "verify/verify.h"

#include <pthread.h>

typedef struct bl_finder {
    const bl_verify_options *o;
    pthread_mutex_t lock;
    size_t count;
    void *seen; /* a tree (search.h) of digests of what bl_finder_problem reported about whole files */
    const bl_archive *archives[2]; /* that the checkpoints come from: findings name them, not what stands for them */
    int level; /* for problems that come as bl_error through bl_finder_problem */
} bl_finder;

/* Report one. tensor may be NULL. */
void bl_find(bl_finder *f, int level, const char *path, const char *tensor, int64_t begin, int64_t end, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));
/* A bl_problem_fn: arg is the finder. What is wrong with a whole file is reported once, however many run into it. */
void bl_finder_problem(void *arg, const bl_error *problem);
/* Report that a file which is listed somewhere (a file's name) is not there; when it is only out of reach, that its folder is; when all of
 * its folder is missing, that, once. */
void bl_find_absent(bl_finder *f, int level, const char *path, int errno_value, const char *listed_in);
void bl_finder_close(bl_finder *f);

#endif
