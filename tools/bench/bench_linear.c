/* The linear product on weights of real shapes: few tokens beside the rate of reading them, many beside the multiply-add peak. */
#include "tools/bench.h"

#include "kernels/cpu.h"
#include "kernels/linear.h"
#include "kernels/sampling_math.h"

#include <stdio.h>
#include <string.h>

enum {
    TILE = 64,          /* rows of an item, as the forward pass deals them */
    FEW_MAX = 64,       /* tokens that --tokens may ask for */
    MANY_MAX = 1024,    /* tokens that --prefill may ask for */
    MANY_ROWS = 1024,   /* rows that a product with many tokens takes of each shape */
    COLS_MAX = 8192
};

typedef struct shape {
    const char *name;
    bl_weight_kind kind;
    int64_t rows, cols;
} shape;

/* An expert's w1 and w2; wq_b, wo_b and wo_a; an eighth of the head; the router. */
static const shape shapes[] = {
    {"fp4 2304x5120", BL_W_FP4, 2304, 5120},   {"fp4 5120x2304", BL_W_FP4, 5120, 2304},  {"fp8 32768x1280", BL_W_FP8, 32768, 1280},
    {"fp8 5120x8192", BL_W_FP8, 5120, 8192},   {"fp8 8192x4096", BL_W_FP8, 8192, 4096},  {"bf16 16160x5120", BL_W_BF16, 16160, 5120},
    {"fp32 384x5120", BL_W_F32, 384, 5120},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct memory {
    uint8_t *codes, *scale;
    size_t bytes;
    uint16_t *x;
    float *y;
    uint8_t *scratch; /* for each worker */
    size_t scratch_bytes;
} memory;

typedef struct product_run {
    bench *b;
    bl_linear_kernels k;
    const memory *m;
    shape w;
    int64_t tokens, copies; /* matrices one after another in m->codes */
    void *packed;
} product_run;

static size_t code_bytes(const shape *w)
{
    size_t n = (size_t)(w->rows * w->cols);
    return w->kind == BL_W_FP4 ? n / 2 : w->kind == BL_W_FP8 ? n : w->kind == BL_W_BF16 ? 2 * n : 4 * n;
}

static size_t scale_bytes(const shape *w)
{
    size_t blocks = (size_t)(w->rows * (w->cols / 32));
    return w->kind == BL_W_FP4 ? blocks : w->kind == BL_W_FP8 ? blocks / 32 : 0;
}

static void product_tile(void *arg, int64_t item, int worker)
{
    const product_run *p = arg;
    int64_t tiles = (p->w.rows + TILE - 1) / TILE, copy = item / tiles, row0 = item % tiles * TILE;
    int64_t row1 = row0 + TILE < p->w.rows ? row0 + TILE : p->w.rows;
    bl_matrix w = {p->w.kind, p->w.rows, p->w.cols, p->m->codes + (size_t)copy * code_bytes(&p->w),
                   p->m->scale + (size_t)copy * scale_bytes(&p->w)};
    p->k.rows(p->m->y + row0, p->w.rows, p->packed, p->tokens, &w, row0, row1,
              p->m->scratch + (size_t)worker * p->m->scratch_bytes);
}

static bl_status run_product(void *arg, bl_error *err)
{
    product_run *p = arg;
    bl_pool_run(p->b->pool, p->copies * ((p->w.rows + TILE - 1) / TILE), product_tile, p);
    return BL_OK;
}

/* The packed activation is made once: a layer uses it for several matrices. */
static bl_status product(bench *b, bench_subject *s, const char *name, const product_run *run, bl_error *err)
{
    product_run *p = bench_record(b, sizeof *p);
    if (!p) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *p = *run;
    BL_TRY(bench_memory(b, p->k.packed_bytes(p->tokens, p->w.cols), &p->packed, err));
    p->k.pack(p->packed, p->m->x, COLS_MAX, p->tokens, p->w.cols);
    *s = (bench_subject){.name = name, .run = run_product, .arg = p};
    return BL_OK;
}

static double gigabytes(const product_run *p)
{
    return 1e-9 * (double)p->copies * (double)(code_bytes(&p->w) + scale_bytes(&p->w));
}

static double gigaflops(const product_run *p)
{
    return 2e-9 * (double)p->copies * (double)p->w.rows * (double)p->w.cols * (double)p->tokens;
}

static void bound(bench_subject *s, int ceiling, double work)
{
    s->ceiling[s->ceilings].subject = ceiling;
    s->ceiling[s->ceilings++].work = work;
}

/* Enough matrices of a shape to leave no cache anything of use. */
static bl_status few_tokens(bench *b, const memory *m, const bl_linear_kernels *k, int64_t tokens, bl_error *err)
{
    char title[80];
    bench_subject s[2 + SHAPES];
    BL_TRY(bench_read_ceiling(b, &s[0], err));
    BL_TRY(bench_fma_ceiling(b, &s[1], err));
    for (int i = 0; i < SHAPES; i++) {
        product_run run = {.b = b, .k = *k, .m = m, .w = shapes[i], .tokens = tokens};
        run.copies = (int64_t)(m->bytes / code_bytes(&run.w));
        BL_TRY(product(b, &s[2 + i], shapes[i].name, &run, err));
        s[2 + i].work = gigabytes(&run);
        s[2 + i].unit = "GB";
        bound(&s[2 + i], 0, gigabytes(&run));
        bound(&s[2 + i], 1, gigaflops(&run));
    }
    snprintf(title, sizeof title, "%lld token%s, weights from memory, kernels %s", (long long)tokens, tokens == 1 ? "" : "s", k->name);
    return bench_run(b, title, s, 2 + SHAPES, err);
}

static bl_status many_tokens(bench *b, const memory *m, const bl_linear_kernels *k, int64_t tokens, bl_error *err)
{
    char title[80];
    bool dots = !strcmp(k->name, "avx512bf16");
    bench_subject s[2 + SHAPES];
    BL_TRY(bench_fma_ceiling(b, &s[0], err));
    BL_TRY(bench_dot_ceiling(b, &s[1], err));
    for (int i = 0; i < SHAPES; i++) {
        product_run run = {.b = b, .k = *k, .m = m, .w = shapes[i], .tokens = tokens, .copies = 1};
        if (run.w.rows > MANY_ROWS) run.w.rows = MANY_ROWS;
        BL_TRY(product(b, &s[2 + i], shapes[i].name, &run, err));
        s[2 + i].work = gigaflops(&run);
        s[2 + i].unit = "GFLOP";
        bound(&s[2 + i], dots && run.w.kind != BL_W_F32, gigaflops(&run));
    }
    snprintf(title, sizeof title, "%lld tokens, at most %d rows, kernels %s", (long long)tokens, MANY_ROWS, k->name);
    return bench_run(b, title, s, 2 + SHAPES, err);
}

static uint64_t next_random(uint64_t *state)
{
    return bl_splitmix64((*state)++) >> 16;
}

/* Bytes that are normal values of about 1 as codes of every kind, scales as a trained model has them, x of about
 * 1. Random fp8 bytes would hold more subnormal codes than weights ever do. */
static bl_status fill(bench *b, memory *m, int64_t tokens, int workers, const bl_linear_kernels *k, bl_error *err)
{
    uint64_t state = 1;
    size_t scales = m->bytes / 16; /* fp4 has one for 16 bytes */
    m->scratch_bytes = 0;
    for (int64_t t = 1; t <= tokens; t++) {
        size_t need = (k->scratch_bytes(t, COLS_MAX) + 63) / 64 * 64;
        if (need > m->scratch_bytes) m->scratch_bytes = need;
    }
    BL_TRY(bench_memory(b, m->bytes, (void **)&m->codes, err));
    BL_TRY(bench_memory(b, scales, (void **)&m->scale, err));
    BL_TRY(bench_memory(b, (size_t)tokens * COLS_MAX * 2, (void **)&m->x, err));
    BL_TRY(bench_memory(b, ((size_t)tokens * MANY_ROWS + (size_t)FEW_MAX * 32768) * 4, (void **)&m->y, err));
    BL_TRY(bench_memory(b, m->scratch_bytes * (size_t)workers, (void **)&m->scratch, err));
    for (size_t i = 0; i + 8 <= m->bytes; i += 8) {
        /* no NaN as e4m3, and neither NaN nor subnormal as bf16 or fp32: weights have none, and some CPUs take them slowly */
        uint64_t v = (next_random(&state) * 0x9e3779b97f4a7c15u & 0xbfbfbfbfbfbfbfbfu) | 0x3000300030003000u;
        memcpy(m->codes + i, &v, 8);
    }
    for (size_t i = 0; i < scales; i++) m->scale[i] = (uint8_t)(112 + next_random(&state) % 8);
    for (int64_t i = 0; i < tokens * COLS_MAX; i++) m->x[i] = (uint16_t)((next_random(&state) & 0x80ff) + 0x3f00);
    return BL_OK;
}

static bl_status body(bench *b, uint64_t size, int64_t few, int64_t many, bl_error *err)
{
    memory m = {.bytes = (size_t)size};
    bl_linear_kernels k;
    int counts[2], n = bench_thread_counts(b, counts);
    bl_linear_init(&k, b->cpu);
    BL_TRY(fill(b, &m, few > many ? few : many, counts[n - 1], &k, err));
    for (int i = 0; i < n; i++) {
        BL_TRY(bench_threads(b, counts[i], err));
        if (few) BL_TRY(few_tokens(b, &m, &k, few, err));
        if (many) BL_TRY(many_tokens(b, &m, &k, many, err));
    }
    return BL_OK;
}

int bench_linear(int argc, char **argv)
{
    bench b = {.rounds = 11};
    uint64_t size = 192 << 20;
    int64_t few = 1, many = 512;
    const char *args[8];
    int count;
    const cli_option own[] = {
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &size, "SIZE", "of the weights that few tokens pass through (default 192MiB)"},
        {"tokens", CLI_INT(0, FEW_MAX), &few, "N", "tokens of the first set, 1 to 64, 0 to leave it out (default 1)"},
        {"prefill", CLI_INT(0, MANY_MAX), &many, "N", "tokens of the second set, 1 to 1024, 0 to leave it out (default 512)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench linear", .usage = "[options]",
                     .summary = "Products of real shapes on weights in their stored codes, beside the floors of the same run.",
                     .details = "Few tokens are bound by reading the weights (codes and scales), many by multiply-adds: of bf16\n"
                                "pairs where the level has vdpbf16ps. '--cpu c' measures the C reference.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    if (size < (size_t)176 << 20) size = (size_t)176 << 20; /* the largest of the shapes */
    return bench_end(&b, body(&b, size, few, many, &err), &err);
}
