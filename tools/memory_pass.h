/* Passes over memory that all threads of a pool make together, each over one contiguous part, and what copying takes. */
#ifndef BL_TOOLS_MEMORY_PASS_H
#define BL_TOOLS_MEMORY_PASS_H

#include "formats/pool.h"

/* What a thread does with its part; what it computes goes to sink, so that it is not optimised away. */
typedef void memory_part(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink);

typedef struct memory_pass {
    bl_pool *pool;
    uint8_t *dst, *src; /* bytes each, page-aligned */
    size_t bytes;
    memory_part *part;
    uint64_t sink[64];
} memory_pass;

/* One of several parts that do the same. */
typedef struct memory_way {
    const char *name;
    memory_part *part;
} memory_way;

/* memcpy and loops of streaming stores; *count of them. */
const memory_way *memory_copies(int *count);

void memory_pass_run(memory_pass *m);
/* Makes the fastest of n ways m's: the best of so many tries of each, behind one that does not count. *seconds: its best; may be NULL.
 * Returns it. */
const memory_way *memory_pass_fastest(memory_pass *m, const memory_way *ways, int n, int tries, double *seconds);

/* Bytes a second that as many threads as there are CPUs, at most jobs of them (0: no limit) and 8, copy together in 8 MiB each the fastest
 * way, every byte counted once. *used: how many threads. 0 where that cannot be had. */
double memory_copy_rate(int jobs, int *used);

#endif
