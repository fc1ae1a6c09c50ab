/* Gives tests/py/bench_peers.py the kernels as a program would run them, on a pool of threads: a shared library for ctypes. */
#include "formats/pool.h"
#include "kernels/cast.h"
#include "kernels/cpu.h"
#include "kernels/linear.h"

#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { STRIPE = 32 };

static struct {
    bl_pool *pool;
    bl_cast_kernels cast;
    bl_linear_kernels linear;
    void *packed;
    void **scratch; /* one for each thread */
    size_t packed_bytes, scratch_bytes;
} state;

EXPORT int peers_open(int threads);
EXPORT const char *peers_level(void);
EXPORT void peers_copy(void *dst, const void *src, int64_t bytes);
EXPORT void peers_cast(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t rows, int64_t cols, int scale_rows,
                       int fp4);
EXPORT int peers_linear(float *y, const uint16_t *x, int64_t tokens, const void *codes, const uint8_t *scale, int64_t rows,
                        int64_t cols, int kind);

int peers_open(int threads)
{
    bl_pool_destroy(&state.pool);
    if (bl_pool_create(&state.pool, threads, NULL) != BL_OK) return -1;
    bl_cast_init(&state.cast, bl_cpu_detect());
    bl_linear_init(&state.linear, bl_cpu_detect());
    state.scratch = calloc((size_t)bl_pool_threads(state.pool), sizeof *state.scratch);
    state.packed_bytes = state.scratch_bytes = 0;
    return state.scratch ? 0 : -1;
}

const char *peers_level(void)
{
    return bl_cpu_name(bl_cpu_detect());
}

typedef struct copy_job {
    char *dst;
    const char *src;
    int64_t bytes;
    int parts;
} copy_job;

static void copy_part(void *arg, int64_t item, int worker)
{
    const copy_job *j = arg;
    int64_t begin = j->bytes / j->parts * item, end = item == j->parts - 1 ? j->bytes : j->bytes / j->parts * (item + 1);
    memcpy(j->dst + begin, j->src + begin, (size_t)(end - begin));
}

void peers_copy(void *dst, const void *src, int64_t bytes)
{
    copy_job j = {dst, src, bytes, bl_pool_threads(state.pool)};
    bl_pool_run(state.pool, j.parts, copy_part, &j);
}

typedef struct cast_job {
    uint16_t *out;
    const uint8_t *codes, *scale;
    int64_t rows, cols;
    int scale_rows, fp4;
} cast_job;

static void cast_stripe(void *arg, int64_t item, int worker)
{
    const cast_job *j = arg;
    int64_t end = (item + 1) * STRIPE < j->rows ? (item + 1) * STRIPE : j->rows, blocks = (j->cols + 31) / 32;
    for (int64_t r = item * STRIPE; r < end; r++) {
        const uint8_t *scale = j->scale + r / j->scale_rows * blocks;
        uint16_t *out = j->out + r * j->cols;
        if (j->fp4) state.cast.fp4_row_stream(out, j->codes + r * (j->cols / 2), scale, j->cols);
        else state.cast.fp8_row_stream(out, j->codes + r * j->cols, scale, j->cols);
    }
    state.cast.stream_fence();
}

void peers_cast(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t rows, int64_t cols, int scale_rows, int fp4)
{
    cast_job j = {out, codes, scale, rows, cols, scale_rows, fp4};
    bl_pool_run(state.pool, (rows + STRIPE - 1) / STRIPE, cast_stripe, &j);
}

typedef struct linear_job {
    float *y;
    int64_t tokens;
    bl_matrix w;
} linear_job;

static void linear_stripe(void *arg, int64_t item, int worker)
{
    const linear_job *j = arg;
    int64_t begin = item * STRIPE, end = begin + STRIPE < j->w.rows ? begin + STRIPE : j->w.rows;
    state.linear.rows(j->y + begin, j->w.rows, state.packed, j->tokens, &j->w, begin, end, state.scratch[worker]);
}

static int grow(void **p, size_t bytes)
{
    free(*p);
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    return *p ? 0 : -1;
}

static int make_room(int64_t tokens, int64_t cols)
{
    size_t packed = state.linear.packed_bytes(tokens, cols), scratch = state.linear.scratch_bytes(tokens, cols);
    if (packed > state.packed_bytes) {
        if (grow(&state.packed, packed)) return -1;
        state.packed_bytes = packed;
    }
    if (scratch > state.scratch_bytes || !state.scratch_bytes) {
        for (int i = 0; i < bl_pool_threads(state.pool); i++)
            if (grow(&state.scratch[i], scratch)) return -1;
        state.scratch_bytes = scratch;
    }
    return 0;
}

int peers_linear(float *y, const uint16_t *x, int64_t tokens, const void *codes, const uint8_t *scale, int64_t rows, int64_t cols,
                 int kind)
{
    if (make_room(tokens, cols)) return -1;
    linear_job j = {y, tokens, {(bl_weight_kind)kind, rows, cols, codes, scale}};
    state.linear.pack(state.packed, x, cols, tokens, cols);
    bl_pool_run(state.pool, (rows + STRIPE - 1) / STRIPE, linear_stripe, &j);
    return 0;
}
