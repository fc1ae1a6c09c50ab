/* Kernels whose time is that of moving memory: the streams' mixing, rows of Engram tables, drawing. */
#include "kernels/cuda/cuda.h"
#include "kernels/sampling_math.h"
#include "tools/bench/cuda/device.h"

#include <math.h>
#include <stdlib.h>

enum {
    TOKENS = 8192, FEW = 64, HIDDEN = 5120, STREAMS = 4, MIX = STREAMS * (2 + STREAMS), SINKHORN = 20, TIMES = 20 /* launches in a run */,
    TABLE_ROWS = 16 << 20, ROW = 256, COLUMNS = 24 /* rows of a token */, DRAWS = 24, VOCABULARY = 129280
};

static bl_status no_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory");
}

/* ---- mixing */

typedef struct mix_run {
    bl_cuda_mixing mixing;
    bl_cuda_advance advance;
    bool mix, step;
} mix_run;

static bl_status run_mixing(void *arg, bl_error *err)
{
    const mix_run *r = arg;
    for (int i = 0; i < TIMES; i++) {
        if (r->step) bl_cuda_advance_streams(0, &r->advance);
        if (r->mix) (void)bl_cuda_mix_many(0, &r->mixing);
    }
    return device_finish(err);
}

/* bytes: of one launch, each read or written once. */
static bench_subject subject(const char *name, bl_status (*run)(void *arg, bl_error *err), void *arg, double bytes)
{
    const double gb = 1e-9 * TIMES * bytes;
    return (bench_subject){.name = name, .run = run, .arg = arg, .work = gb, .unit = "GB", .ceiling = {{0, gb}}, .ceilings = 1};
}

static bl_status add_mixing(bench *b, bench_subject s[3], bl_error *err)
{
    const size_t n = (size_t)STREAMS * HIDDEN, streams = TOKENS * n * 2, row = (size_t)TOKENS * HIDDEN * 2, fn = MIX * n * 4;
    const size_t coefficients = (size_t)TOKENS * MIX * 4;
    mix_run *runs = bench_record(b, 3 * sizeof *runs);
    uint16_t *const H = device_bytes(streams, 1), *const x = device_bytes(2 * row, 0);
    float *const pre = device_bytes(coefficients, 1), *const partial = device_bytes(2 * row, 1);
    float *const out = device_bytes(coefficients, 0); /* what is made is not used: streams would grow from launch to launch */
    float *const parts = device_bytes((n + BL_DOT_SEGMENT - 1) / BL_DOT_SEGMENT * coefficients, 0);
    if (!runs || !H || !x || !pre || !partial || !out || !parts) return no_memory(err);
    const mix_run both = {
        .mixing = {.fn = device_bytes(fn, 1), .scale3 = device_bytes(16, 1), .base24 = device_bytes(MIX * 4, 1), .H = H,
                   .pre = out, .post = out + TOKENS * STREAMS, .comb = out + 2 * TOKENS * STREAMS,
                   .parts = parts, .T = TOKENS, .D = HIDDEN, .eps_rms = 1e-20f, .eps = 1e-6f, .iters = SINKHORN},
        .advance = {.H = H, .partial = partial, .pre = pre, .post = pre + TOKENS * STREAMS, .comb = pre + 2 * TOKENS * STREAMS,
                    .norm = device_bytes(HIDDEN * 2, 1), .x = x, .rounded = x + row / 2, .T = TOKENS, .D = HIDDEN, .eps = 1e-20f},
        .mix = true, .step = true,
    };
    if (!both.mixing.fn || !both.mixing.base24 || !both.advance.norm) return no_memory(err);
    for (int i = 0; i < 3; i++) runs[i] = both;
    runs[0].step = runs[1].mix = false;
    const double step = (double)(2 * streams + 2 * row + 2 * row); /* float32 in, two of bf16 out */
    s[0] = subject("mixing: coefficients", run_mixing, &runs[0], (double)(streams + fn + coefficients));
    s[1] = subject("mixing: expand, collapse, norm", run_mixing, &runs[1], step + (double)coefficients);
    s[2] = subject("mixing, both, streams moved once", run_mixing, &runs[2], step + (double)(fn + 2 * coefficients));
    return BL_OK;
}

/* ---- rows of an Engram table */

typedef struct gather_run {
    bl_cuda_table table;
    const int64_t *rows; /* [TIMES][count] */
    uint16_t *e;
    int64_t count;
} gather_run;

static bl_status run_gather(void *arg, bl_error *err)
{
    const gather_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_engram_gather(0, r->e, &r->table, r->rows + i * r->count, r->count);
    return device_finish(err);
}

static bl_status add_gather(bench *b, bench_subject s[2], bl_error *err)
{
    const size_t most = (size_t)TOKENS * COLUMNS;
    gather_run *runs = bench_record(b, 2 * sizeof *runs);
    int64_t *rows = malloc(TIMES * most * sizeof *rows);
    for (size_t i = 0; rows && i < TIMES * most; i++) rows[i] = (int64_t)(bl_splitmix64(i) >> 1) % TABLE_ROWS;
    const gather_run large = {.table = {.codes = device_bytes((size_t)TABLE_ROWS * ROW, 1),
                                        .scale = device_bytes((size_t)TABLE_ROWS * ROW / 32, 1), .width = ROW}, .count = (int64_t)most,
                              .rows = rows ? device_copy(rows, TIMES * most * sizeof *rows) : NULL,
                              .e = device_bytes(most * ROW * 2, 0)};
    free(rows);
    if (!runs || !large.table.codes || !large.table.scale || !large.rows || !large.e) return no_memory(err);
    runs[0] = runs[1] = large;
    runs[1].count = (int64_t)FEW * COLUMNS;
    const double bytes = ROW + ROW / 32 + 8 + 2 * ROW;
    s[0] = subject("Engram rows of 8,192 tokens", run_gather, &runs[0], bytes * (double)runs[0].count);
    s[1] = subject("Engram rows of 64 tokens", run_gather, &runs[1], bytes * (double)runs[1].count);
    return BL_OK;
}

/* ---- drawing */

typedef struct draw_run {
    float *logits;
    bl_cuda_draw *draws;
    bl_cuda_drawn *drawn;
} draw_run;

static bl_status run_draw(void *arg, bl_error *err)
{
    const draw_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_sample(0, r->drawn, r->logits, r->draws, DRAWS, VOCABULARY);
    return device_finish(err);
}

static bl_status add_draw(bench *b, bench_subject *s, bl_error *err)
{
    const size_t n = (size_t)DRAWS * VOCABULARY;
    draw_run *r = bench_record(b, sizeof *r);
    bl_cuda_draw draws[DRAWS];
    float *logits = malloc(n * sizeof *logits);
    for (size_t i = 0; logits && i < n; i++) { /* sums of four are near enough to normal */
        const uint64_t bits = bl_splitmix64(i);
        const int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) + (int)(bits >> 48);
        logits[i] = 5.0f * ((float)sum * 0x1p-16f - 2);
    }
    for (int i = 0; i < DRAWS; i++)
        draws[i] = (bl_cuda_draw){.sampling = {.temperature = 1, .top_p = 0.95f, .seed = (uint64_t)i}, .position = 7, .draw = true};
    if (r && logits)
        *r = (draw_run){.logits = device_copy(logits, n * sizeof *logits), .draws = device_copy(draws, sizeof draws),
                        .drawn = device_bytes(DRAWS * sizeof(bl_cuda_drawn), 0)};
    free(logits);
    if (!r || !r->logits || !r->draws || !r->drawn) return no_memory(err);
    *s = subject("drawing by top-p from 24 rows", run_draw, r, (double)(n * sizeof *logits));
    s->work = TIMES;
    s->unit = "step";
    s->ceiling[0].work = 1e-9 * TIMES * (double)(n * sizeof *logits);
    return BL_OK;
}

bl_status bench_device_rows(bench *b, bl_error *err)
{
    bench_subject s[7];
    BL_TRY(bench_device_copy_ceiling(b, &s[0], err));
    BL_TRY(add_mixing(b, &s[1], err));
    BL_TRY(add_gather(b, &s[4], err));
    BL_TRY(add_draw(b, &s[6], err));
    return bench_run(b, "streams, rows and drawing on the GPU", s, 7, err);
}
