/* A small fixed thread pool. Results never depend on scheduling: a task is a range of independent items, and which
 * thread runs which item must not matter to the caller. */
#ifndef BL_FORMATS_POOL_H
#define BL_FORMATS_POOL_H

#include "formats/status.h"

typedef struct bl_pool bl_pool;

#define BL_POOL_MAX_THREADS 4096

/* CPUs this process may keep busy: its affinity mask, cut to the cgroup's CPU quota; at least 1. */
int bl_cpus_available(void);

/* A pool with threads workers, the caller of bl_pool_run included; threads <= 0 means the CPUs this process may use
 * (affinity and cgroup quota respected). */
bl_status bl_pool_create(bl_pool **out, int threads, bl_error *err);
void bl_pool_destroy(bl_pool **p);
int bl_pool_threads(const bl_pool *p);

/* Run fn(arg, i, worker) for every i in [0, items), each exactly once, in any order, on at most all workers (0 <= worker <
 * bl_pool_threads); returns when all are done. Items are dealt dynamically in ascending order. Not reentrant: one run at a
 * time per pool. p == NULL runs serially as worker 0. What the items wrote is visible to the caller afterwards. Meant for
 * short operations in close succession: idle workers spin for 100 microseconds before they sleep (not at all when there are
 * more threads than CPUs). */
void bl_pool_run(bl_pool *p, int64_t items, void (*fn)(void *arg, int64_t item, int worker), void *arg);

#endif
