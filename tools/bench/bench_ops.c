/* The model's operations besides the product, at the released model's shapes: attention and index scores beside the
 * multiply-add peak, the residual streams and selections beside the rate of the memory they pass over. */
#include "tools/bench.h"

#include "kernels/ops.h"

#include <stdio.h>

enum {
    HEADS = 64, DIM = 512, WINDOW = 128, SELECTED = 512,  /* attention */
    INDEX_HEADS = 32, INDEX_DIM = 128, KEYS = 16384,      /* index scores */
    HIDDEN = 5120, INTER = 2304, TOKENS = 1024,           /* elementwise */
    SCORES = 1 << 20, TOP = 512, CANDIDATES = 2048, SIZE = 8, /* selections */
    PER_WORKER = 2                                        /* items for each thread in a run */
};

typedef struct data {
    int workers;
    uint16_t *q, *o;                       /* [heads, d]; o for each worker */
    uint8_t *rows[WINDOW + SELECTED];
    uint8_t *scratch;                      /* attention, for each worker */
    size_t scratch_bytes;
    float *sink;
    uint8_t *index_q, *keys, *keep;        /* keep for each worker */
    float *scores, *work, *squares;        /* scores: shared; work: 2 * SCORES for each worker */
    int32_t *top;                          /* for each worker */
    uint16_t *H, *x, *y, *w;               /* [TOKENS, 4, HIDDEN], [TOKENS, HIDDEN], as H, [HIDDEN] */
} data;

typedef struct op_run op_run;
struct op_run {
    bench *b;
    bl_op_kernels k;
    const data *m;
    void (*item)(const op_run *r, int64_t item, int worker);
    int64_t items, heads, window, selected;
};

/* ---- one item of each */

static void attention(const op_run *r, int64_t item, int worker)
{
    const data *m = r->m;
    const uint8_t *const *rows = (const uint8_t *const *)m->rows;
    bl_attn_slots slots = {rows, rows + WINDOW, r->window, r->selected};
    r->k.attention(m->o + (int64_t)worker * HEADS * DIM, m->q, &slots, m->sink, r->heads, DIM, 0.0442f,
                   m->scratch + (size_t)worker * m->scratch_bytes);
}

static void index_scores(const op_run *r, int64_t item, int worker)
{
    r->k.index_scores(r->m->work + 2 * (int64_t)worker * SCORES, r->m->index_q, r->m->sink, INDEX_HEADS, INDEX_DIM, r->m->keys, KEYS);
}

static const float mixes[16] = {0.4f, 0.3f, 0.2f, 0.1f, 0.3f, 0.2f, 0.1f, 0.4f, 0.2f, 0.1f, 0.4f, 0.3f, 0.1f, 0.4f, 0.3f, 0.2f};

static void sum_squares(const op_run *r, int64_t t, int worker)
{
    r->m->squares[t] = r->k.sum_squares(r->m->H + t * 4 * HIDDEN, 4 * HIDDEN);
}

static void collapse(const op_run *r, int64_t t, int worker)
{
    r->k.collapse(r->m->y + t * HIDDEN, r->m->H + t * 4 * HIDDEN, mixes, HIDDEN);
}

static void expand(const op_run *r, int64_t t, int worker)
{
    r->k.expand(r->m->y + t * 4 * HIDDEN, r->m->x + t * HIDDEN, r->m->H + t * 4 * HIDDEN, mixes, mixes, HIDDEN);
}

static void rmsnorm(const op_run *r, int64_t t, int worker)
{
    r->k.rmsnorm(r->m->y + t * HIDDEN, r->m->x + t * HIDDEN, r->m->w, 1, HIDDEN, 1e-20f);
}

static void round_fp8(const op_run *r, int64_t t, int worker)
{
    r->k.round_fp8(r->m->y + t * HIDDEN, r->m->x + t * HIDDEN, HIDDEN);
}

static void swiglu(const op_run *r, int64_t t, int worker)
{
    r->k.swiglu(r->m->y + t * INTER, r->m->x + t * INTER, r->m->H + t * INTER, 0.2f, 10.0f, INTER);
}

static void select_top(const op_run *r, int64_t item, int worker)
{
    bl_select_top(r->m->top + (int64_t)worker * TOP, r->m->scores, SCORES, TOP, r->m->work + 2 * (int64_t)worker * SCORES);
}

static void select_candidates(const op_run *r, int64_t item, int worker)
{
    bl_select_candidates(r->m->keep + (int64_t)worker * SCORES, r->m->scores, SCORES, SCORES, CANDIDATES, SIZE,
                         r->m->work + 2 * (int64_t)worker * SCORES);
}

/* ---- sets */

static void run_item(void *arg, int64_t item, int worker)
{
    const op_run *r = arg;
    r->item(r, item, worker);
}

static bl_status run_op(void *arg, bl_error *err)
{
    op_run *r = arg;
    bl_pool_run(r->b->pool, r->items, run_item, r);
    return BL_OK;
}

/* each: work of one item, in unit; bound by subject ceiling. */
static bl_status subject(bench_subject *s, const char *name, const op_run *run, double each, const char *unit, int ceiling, bl_error *err)
{
    op_run *r = bench_record(run->b, sizeof *r);
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *r = *run;
    double work = each * (double)r->items;
    *s = (bench_subject){.name = name, .run = run_op, .arg = r, .work = work, .unit = unit, .ceiling = {{ceiling, work}}, .ceilings = 1};
    return BL_OK;
}

static bl_status products(bench *b, const data *m, const bl_op_kernels *k, bl_error *err)
{
    char title[80];
    bench_subject s[5];
    op_run r = {.b = b, .k = *k, .m = m, .item = attention, .items = (int64_t)PER_WORKER * m->workers};
    double slot = 4e-9 * DIM, key = 2e-9 * INDEX_HEADS * INDEX_DIM;
    BL_TRY(bench_fma_ceiling(b, &s[0], err));
    r.heads = HEADS, r.window = WINDOW, r.selected = SELECTED;
    BL_TRY(subject(&s[1], "attention 64 heads x 512, 640 slots", &r, slot * HEADS * (WINDOW + SELECTED), "GFLOP", 0, err));
    r.selected = 0;
    BL_TRY(subject(&s[2], "attention 64 heads x 512, 128 slots", &r, slot * HEADS * WINDOW, "GFLOP", 0, err));
    r.heads = 8, r.selected = SELECTED;
    BL_TRY(subject(&s[3], "attention 8 heads x 512, 640 slots", &r, slot * 8 * (WINDOW + SELECTED), "GFLOP", 0, err));
    r.item = index_scores;
    BL_TRY(subject(&s[4], "index scores 32 heads x 128, 16K keys", &r, key * KEYS, "GFLOP", 0, err));
    snprintf(title, sizeof title, "a token an item, kernels %s", k->name);
    return bench_run(b, title, s, 5, err);
}

static bl_status streams(bench *b, const data *m, const bl_op_kernels *k, bl_error *err)
{
    char title[80];
    bench_subject s[8];
    op_run r = {.b = b, .k = *k, .m = m, .items = TOKENS};
    double row = 2e-9 * HIDDEN;
    BL_TRY(bench_copy_ceiling(b, &s[0], err));
    BL_TRY(bench_read_ceiling(b, &s[1], err));
    r.item = sum_squares;
    BL_TRY(subject(&s[2], "sum of squares 4x5120", &r, 4 * row, "GB", 1, err));
    r.item = collapse;
    BL_TRY(subject(&s[3], "collapse 4x5120", &r, 5 * row, "GB", 0, err));
    r.item = expand;
    BL_TRY(subject(&s[4], "expand 4x5120", &r, 9 * row, "GB", 0, err));
    r.item = rmsnorm;
    BL_TRY(subject(&s[5], "rmsnorm 5120", &r, 2 * row, "GB", 0, err));
    r.item = round_fp8;
    BL_TRY(subject(&s[6], "fp8 rounding 5120", &r, 2 * row, "GB", 0, err));
    r.item = swiglu;
    BL_TRY(subject(&s[7], "swiglu 2304", &r, 3 * 2e-9 * INTER, "GB", 0, err));
    snprintf(title, sizeof title, "%d tokens, bytes read + written, kernels %s", TOKENS, k->name);
    return bench_run(b, title, s, 8, err);
}

static bl_status selections(bench *b, const data *m, const bl_op_kernels *k, bl_error *err)
{
    bench_subject s[3];
    op_run r = {.b = b, .k = *k, .m = m, .items = (int64_t)PER_WORKER * m->workers};
    BL_TRY(bench_read_ceiling(b, &s[0], err));
    r.item = select_top;
    BL_TRY(subject(&s[1], "512 best of 1M scores", &r, 4e-9 * SCORES, "GB", 0, err));
    r.item = select_candidates;
    BL_TRY(subject(&s[2], "2048 of 128K blocks of 8", &r, 4e-9 * SCORES, "GB", 0, err));
    return bench_run(b, "selections, bytes of scores", s, 3, err);
}

/* ---- memory */

static float next_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int64_t)(*state >> 40) * 0x1p-22f - 2.0f;
}

static bl_status make_bf16(bench *b, uint16_t **out, int64_t n, const bl_op_kernels *k, bl_error *err)
{
    uint64_t state = (uint64_t)n;
    float v[64];
    BL_TRY(bench_memory(b, 2 * (size_t)n, (void **)out, err));
    for (int64_t i = 0; i < n; i += 64) {
        for (int j = 0; j < 64; j++) v[j] = next_value(&state);
        k->to_bf16(*out + i, v, 64);
    }
    return BL_OK;
}

static bl_status make_rows(bench *b, data *m, const bl_op_kernels *k, bl_error *err)
{
    size_t stride = 576, index_row = bl_index_row_bytes(INDEX_DIM); /* a row of either kind, on cache lines */
    uint8_t *rows;
    BL_TRY(bench_memory(b, stride * (WINDOW + SELECTED), (void **)&rows, err));
    for (int i = 0; i < WINDOW + SELECTED; i++) {
        m->rows[i] = rows + stride * (size_t)i;
        (i < WINDOW ? k->pack_window : k->pack_latent)(m->rows[i], m->H + (int64_t)i * DIM, DIM);
    }
    BL_TRY(bench_memory(b, index_row * INDEX_HEADS, (void **)&m->index_q, err));
    BL_TRY(bench_memory(b, index_row * KEYS, (void **)&m->keys, err));
    for (int64_t i = 0; i < INDEX_HEADS; i++) k->pack_index(m->index_q + index_row * (size_t)i, m->x + i * INDEX_DIM, INDEX_DIM);
    for (int64_t i = 0; i < KEYS; i++) k->pack_index(m->keys + index_row * (size_t)i, m->H + i * INDEX_DIM, INDEX_DIM);
    return BL_OK;
}

static bl_status fill(bench *b, data *m, int workers, const bl_op_kernels *k, bl_error *err)
{
    uint64_t state = 1;
    size_t w = (size_t)workers;
    m->workers = workers;
    BL_TRY(make_bf16(b, &m->H, (int64_t)TOKENS * 4 * HIDDEN, k, err));
    BL_TRY(make_bf16(b, &m->x, (int64_t)TOKENS * HIDDEN, k, err));
    BL_TRY(make_bf16(b, &m->w, HIDDEN, k, err));
    BL_TRY(make_bf16(b, &m->q, HEADS * DIM, k, err));
    BL_TRY(make_rows(b, m, k, err));
    BL_TRY(bench_memory(b, 2 * (size_t)TOKENS * 4 * HIDDEN, (void **)&m->y, err));
    BL_TRY(bench_memory(b, sizeof(float) * HEADS, (void **)&m->sink, err));
    BL_TRY(bench_memory(b, sizeof(float) * TOKENS, (void **)&m->squares, err));
    BL_TRY(bench_memory(b, sizeof(float) * SCORES, (void **)&m->scores, err));
    BL_TRY(bench_memory(b, 2 * sizeof(float) * SCORES * w, (void **)&m->work, err));
    BL_TRY(bench_memory(b, SCORES * w, (void **)&m->keep, err));
    BL_TRY(bench_memory(b, sizeof(int32_t) * TOP * w, (void **)&m->top, err));
    BL_TRY(bench_memory(b, 2 * HEADS * DIM * w, (void **)&m->o, err));
    m->scratch_bytes = (k->attention_scratch(HEADS, DIM) + 4095) / 4096 * 4096;
    BL_TRY(bench_memory(b, m->scratch_bytes * w, (void **)&m->scratch, err));
    for (int i = 0; i < HEADS; i++) m->sink[i] = next_value(&state);
    for (int64_t i = 0; i < SCORES; i++) m->scores[i] = next_value(&state);
    return BL_OK;
}

static bl_status body(bench *b, bl_error *err)
{
    data m = {0};
    bl_op_kernels k;
    int counts[2], n = bench_thread_counts(b, counts);
    bl_op_init(&k, b->cpu);
    BL_TRY(fill(b, &m, counts[n - 1], &k, err));
    for (int i = 0; i < n; i++) {
        m.workers = counts[i];
        BL_TRY(bench_threads(b, counts[i], err));
        BL_TRY(products(b, &m, &k, err));
        BL_TRY(streams(b, &m, &k, err));
        BL_TRY(selections(b, &m, &k, err));
    }
    return BL_OK;
}

int bench_ops(int argc, char **argv)
{
    bench b = {0};
    const char *args[8];
    int count;
    cli_command c = {.program = "baleen bench ops", .usage = "[options]",
                     .summary = "Attention, index scores, residual streams and selections at the released model's shapes.",
                     .details = "Index scores are integer products; their share of the fp32 peak may exceed 100%.\n"
                                "'--cpu c' measures the C reference, which is slow: use --rounds 1.\n"};
    int done = bench_begin(&b, &c, NULL, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    return bench_end(&b, body(&b, &err), &err);
}
