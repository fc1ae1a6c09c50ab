/* Single kernels of the CUDA backend at the released sizes, beside the copy rate of the device or the rate of its products. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"
#include "kernels/ops.h"
#include "kernels/sampling_math.h"
#include "tools/bench/cuda/device.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLS = 5120, CAST_ROWS = 65536, ROWS = 4, ENTRIES = 131072, INDEX_HEADS = 32, WIDTH = 128, PAGE = 64, TOPK = 512, WINDOW = 128,
    BATCH = 64, HEADS = 64, HEAD_DIM = 512, ROPE = 64, LATENTS = 8192, SIDE = 8192, TIMES = 20 /* launches of a short kernel in a run */, CASTS = 5
};

static bl_status failed(cudaError_t e, bl_error *err)
{
    return bl_cuda_check(e, "measuring kernels", err);
}

bl_status device_finish(bl_error *err)
{
    BL_TRY(failed(cudaGetLastError(), err));
    return failed(cudaStreamSynchronize(0), err);
}

void *device_bytes(size_t bytes, int random)
{
    enum { PATTERN = 1 << 20 };
    static uint32_t pattern[PATTERN / 4];
    uint8_t *p = NULL;
    if (cudaMalloc((void **)&p, bytes + PATTERN) != cudaSuccess) return NULL;
    for (size_t i = 0; i < PATTERN / 4; i++)
        pattern[i] = random ? (uint32_t)bl_splitmix64(i) & 0xbfbfbfbf : 0; /* no NaN among e4m3 codes, bf16 of moderate size */
    for (size_t at = 0; at < bytes; at += PATTERN) cudaMemcpy(p + at, pattern, PATTERN, cudaMemcpyHostToDevice);
    return p;
}

uint8_t *device_scales(size_t bytes)
{
    uint8_t *host = malloc(bytes), *p = NULL;
    for (size_t i = 0; host && i < bytes; i++) host[i] = (uint8_t)(120 + bl_splitmix64(i) % 4);
    p = host ? device_copy(host, bytes) : NULL;
    free(host);
    return p;
}

void *device_copy(const void *host, size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) == cudaSuccess) cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice);
    return p;
}

/* Packed rows as weights and activations make them: scales that differ little, from a byte on. */
static uint8_t *device_rows(int64_t rows, size_t codes, size_t scales, unsigned least)
{
    enum { PATTERN = 1 << 17 };
    const size_t bytes = codes + scales, all = (size_t)rows * bytes, part = rows < PATTERN ? all : PATTERN * bytes;
    uint8_t *pattern = malloc(part), *p = NULL;
    if (pattern && cudaMalloc((void **)&p, all) == cudaSuccess) {
        for (size_t i = 0; i < part; i++) {
            const unsigned r = (unsigned)bl_splitmix64(i);
            pattern[i] = (uint8_t)(i % bytes < codes ? r & 0xbf : least + r % 4);
        }
        for (size_t at = 0; at < all; at += part) cudaMemcpy(p + at, pattern, all - at < part ? all - at : part, cudaMemcpyHostToDevice);
    }
    free(pattern);
    return p;
}

/* bf16 of both signs from 1/8 to 2. */
static uint16_t *device_bf16(size_t n)
{
    uint16_t *host = malloc(2 * n), *p = NULL;
    for (size_t i = 0; host && i < n; i++) host[i] = (uint16_t)(0x3e00 | (bl_splitmix64(i) & 0x81ff));
    p = host ? device_copy(host, 2 * n) : NULL;
    free(host);
    return p;
}

/* ---- casts */

typedef struct cast_run {
    bl_matrix w;
    uint16_t *out;
} cast_run;

static bl_status run_cast(void *arg, bl_error *err)
{
    const cast_run *r = arg;
    for (int i = 0; i < CASTS; i++) bl_cuda_cast(0, r->out, &r->w, 0, r->w.rows);
    return device_finish(err);
}

static bl_status add_cast(bench *b, bench_subject *s, bl_weight_kind kind, uint16_t *out, bl_error *err)
{
    cast_run *r = bench_record(b, sizeof *r);
    const size_t n = (size_t)CAST_ROWS * COLS, codes = kind == BL_W_FP8 ? n : n / 2, scales = kind == BL_W_FP8 ? n / 1024 : n / 32;
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    r->w = (bl_matrix){.kind = kind, .rows = CAST_ROWS, .cols = COLS, .codes = device_bytes(codes, 1), .scale = device_bytes(scales, 1)};
    r->out = out;
    if (!r->w.codes || !r->w.scale) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory");
    const double gb = 1e-9 * CASTS * (double)(codes + scales + 2 * n);
    *s = (bench_subject){.name = kind == BL_W_FP8 ? "fp8 32x32 to bf16" : "fp4 1x32 to bf16", .run = run_cast, .arg = r, .work = gb,
                         .unit = "GB", .ceiling = {{0, gb}}, .ceilings = 1};
    return BL_OK;
}

/* ---- tables of sequences of one token each */

static bl_cuda_tables make_tables(int64_t n, int64_t position, int64_t entries, uint8_t *latents, uint8_t *keys, uint8_t *windows)
{
    const int64_t pages = entries / PAGE;
    int64_t *positions = calloc((size_t)n, 8), *zeros = calloc((size_t)n, 8);
    int32_t *span_of = calloc((size_t)n, 4);
    bl_cuda_span *spans = calloc((size_t)n, sizeof *spans);
    bl_cuda_page *table = calloc((size_t)(n * pages), sizeof *table);
    bl_cuda_tables t = {.tokens = n, .sources = 1};
    if (positions && zeros && span_of && spans && table) {
        for (int64_t i = 0; i < n; i++) {
            positions[i] = position;
            span_of[i] = (int32_t)i;
            spans[i] = (bl_cuda_span){.first = i, .start = position, .count = 1, .pages = i * pages,
                                      .windows = windows ? windows + (size_t)i * (WINDOW + 1) * bl_window_row_bytes(HEAD_DIM) : NULL};
        }
        for (int64_t k = 0; k < n * pages; k++) {
            if (latents) table[k].latents = latents + (size_t)(k * PAGE) * bl_latent_row_bytes(HEAD_DIM);
            if (keys) table[k].keys = keys + (size_t)(k * PAGE) * bl_index_row_bytes(WIDTH);
        }
        t.position = device_copy(positions, (size_t)n * 8);
        t.source_pages = device_copy(zeros, (size_t)n * 8);
        t.span_of = device_copy(span_of, (size_t)n * 4);
        t.spans = device_copy(spans, (size_t)n * sizeof *spans);
        t.pages = device_copy(table, (size_t)(n * pages) * sizeof *table);
    }
    free(positions);
    free(zeros);
    free(span_of);
    free(spans);
    free(table);
    return t;
}

/* ---- index scores and selection */

typedef struct select_run {
    bl_cuda_tables t;
    bl_cuda_selection a;
} select_run;

static bl_status run_select(void *arg, bl_error *err)
{
    const select_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_select(0, &r->a);
    return device_finish(err);
}

static bl_status add_select(bench *b, bench_subject *s, bl_error *err)
{
    select_run *r = bench_record(b, sizeof *r);
    const size_t row = bl_index_row_bytes(WIDTH), bytes = (size_t)ROWS * ENTRIES * row, codes = WIDTH / 2;
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    r->t = make_tables(ROWS, ENTRIES - 1, ENTRIES, NULL, device_rows(ROWS * ENTRIES, codes, row - codes, 125), NULL);
    float *weights = calloc(ROWS * INDEX_HEADS, sizeof *weights);
    for (int i = 0; weights && i < ROWS * INDEX_HEADS; i++) weights[i] = (float)(i % 7 - 3) / 4;
    r->a = (bl_cuda_selection){.t = &r->t, .queries = device_rows(ROWS * INDEX_HEADS, codes, row - codes, 125),
                               .weights = weights ? device_copy(weights, ROWS * INDEX_HEADS * sizeof *weights) : NULL, .rows = ROWS,
                               .heads = INDEX_HEADS, .width = WIDTH, .ratio = 1, .topk = TOPK, .longest = ENTRIES, .size = 8,
                               .scores = device_bytes((size_t)ROWS * ENTRIES * 4, 0), .selected = device_bytes(ROWS * TOPK * 4, 0)};
    free(weights);
    const double gb = 1e-9 * TIMES * (double)bytes;
    *s = (bench_subject){.name = "index scores and 512 of 131,072, 4 sequences", .run = run_select, .arg = r, .work = TIMES, .unit = "step",
                         .ceiling = {{0, gb}}, .ceilings = 1};
    return device_finish(err);
}

/* ---- sparse attention */

typedef struct attend_run {
    bl_cuda_tables t;
    bl_cuda_attention a;
} attend_run;

static bl_status run_attend(void *arg, bl_error *err)
{
    const attend_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_attend(0, &r->a);
    return device_finish(err);
}

static bl_status add_attend(bench *b, bench_subject *s, int product, bl_error *err)
{
    attend_run *r = bench_record(b, sizeof *r);
    const size_t wide = bl_window_row_bytes(HEAD_DIM), narrow = bl_latent_row_bytes(HEAD_DIM);
    int32_t *selected = malloc(BATCH * TOPK * sizeof *selected);
    if (!r || !selected) {
        free(selected);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    for (int i = 0; i < BATCH * TOPK; i++) selected[i] = i % TOPK * (LATENTS / TOPK) + i % 3;
    uint8_t *latents = device_rows(BATCH * LATENTS, HEAD_DIM / 2, narrow - HEAD_DIM / 2, 0x30);
    uint8_t *windows = device_rows(BATCH * (WINDOW + 1), HEAD_DIM, wide - HEAD_DIM, 125);
    r->t = make_tables(BATCH, LATENTS - 1, LATENTS, latents, NULL, windows);
    r->a = (bl_cuda_attention){.t = &r->t, .q = device_bf16((size_t)BATCH * HEADS * HEAD_DIM),
                               .kv = device_rows(BATCH, HEAD_DIM, wide - HEAD_DIM, 125),
                               .selected = device_copy(selected, BATCH * TOPK * sizeof *selected), .sink = device_bytes(HEADS * 4, 0),
                               .rotation = device_bytes(BATCH * ROPE * 4, 0), .o = device_bytes((size_t)BATCH * HEADS * HEAD_DIM * 2, 0),
                               .heads = HEADS, .d = HEAD_DIM, .R = ROPE, .window = WINDOW, .ring = WINDOW + 1, .topk = TOPK, .scale = 0.04f,
                               .scores = device_bytes(bl_cuda_attend_scores(BATCH, HEADS, WINDOW + TOPK), 0)};
    free(selected);
    const double gflop = 4e-9 * TIMES * BATCH * HEADS * (WINDOW + TOPK) * (double)HEAD_DIM;
    *s = (bench_subject){.name = "sparse attention of 64 tokens, 640 slots", .run = run_attend, .arg = r, .work = gflop, .unit = "GFLOP",
                         .ceiling = {{product, gflop}}, .ceilings = 1};
    return device_finish(err);
}

/* ---- products */

static bl_status run_product(void *arg, bl_error *err)
{
    bl_cuda_multiply(0, arg);
    return device_finish(err);
}

bl_status bench_device_product_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    bl_cuda_product *p = bench_record(b, sizeof *p);
    const size_t bytes = (size_t)SIDE * SIDE * 2;
    if (!p) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(bench_find_gpu(b, err));
    *p = (bl_cuda_product){.w = {.kind = BL_W_BF16, .rows = SIDE, .cols = SIDE, .codes = device_bytes(bytes, 1)}, .rows = SIDE,
                           .x = device_bytes(bytes, 1), .ldx = SIDE, .tokens = SIDE, .y16 = device_bytes(bytes, 0), .ld = SIDE};
    if (!p->w.codes || !p->x || !p->y16) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory");
    *s = (bench_subject){.name = "bf16 product, 8192 cubed", .run = run_product, .arg = p, .work = 2e-9 * SIDE * SIDE * (double)SIDE,
                         .unit = "GFLOP"};
    return device_finish(err);
}

bl_status bench_device_kernels(bench *b, bl_error *err)
{
    bench_subject s[6];
    BL_TRY(bench_find_gpu(b, err));
    uint16_t *out = device_bytes((size_t)CAST_ROWS * COLS * 2, 0);
    if (!out) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory");
    BL_TRY(bench_device_copy_ceiling(b, &s[0], err));
    BL_TRY(add_cast(b, &s[1], BL_W_FP4, out, err));
    BL_TRY(add_cast(b, &s[2], BL_W_FP8, out, err));
    BL_TRY(add_select(b, &s[3], err));
    BL_TRY(bench_device_product_ceiling(b, &s[4], err));
    BL_TRY(add_attend(b, &s[5], 4, err));
    BL_TRY(bench_run(b, "kernels on the GPU", s, 6, err));
    BL_TRY(bench_device_rows(b, err));
    return bench_device_products(b, err);
}
