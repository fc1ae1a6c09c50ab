/* Products on stored weights: few tokens are bound by reading them, many by the tensor cores. */
#include "kernels/cuda/cuda.h"
#include "kernels/sampling_math.h"
#include "tools/bench/cuda/device.h"

#include <stdlib.h>

enum {
    HIDDEN = 5120, GROUPS = 8192 /* columns of the grouped output's projection */, VOCABULARY = 129280, INNER = 2304, EXPERTS = 384, CHOICES = 6,
    MANY = 8192, COPIES = 8 /* of a weight, so that it comes from memory each time */, TIMES = 24 /* launches in a run */
};

static bl_status no_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory");
}

/* Few tokens beside the copy rate, many beside a product: subjects 0 and 1 of the set. */
static bench_subject subject(const char *name, bl_status (*run)(void *arg, bl_error *err), void *arg, double bytes, double flop)
{
    bench_subject s = {.name = name, .run = run, .arg = arg, .work = 1e-9 * (flop > 0 ? flop : bytes), .unit = flop > 0 ? "GFLOP" : "GB",
                       .ceilings = 1};
    s.ceiling[0].subject = flop > 0;
    s.ceiling[0].work = s.work;
    return s;
}

/* ---- dense */

typedef struct dense_run {
    bl_cuda_product p[COPIES];
} dense_run;

static bl_status run_dense(void *arg, bl_error *err)
{
    const dense_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_multiply(0, &r->p[i % COPIES]);
    return device_finish(err);
}

static bl_status add_dense(bench *b, bench_subject *s, const char *name, const bl_matrix w[COPIES], int64_t tokens, bl_error *err)
{
    enum { WIDE = 64 << 20 };
    dense_run *r = bench_record(b, sizeof *r);
    const bl_cuda_product p = {.w = w[0], .rows = w->rows, .x = device_bytes((size_t)(tokens * w->cols) * 2, 1), .ldx = w->cols,
                               .tokens = tokens, .y16 = device_bytes((size_t)(tokens * w->rows) * 2, 0), .ld = w->rows,
                               .wide = tokens < MANY ? NULL : device_bytes((size_t)WIDE * 2, 0), .wide_elements = tokens < MANY ? 0 : WIDE,
                               .early = true};
    if (!r || !p.x || !p.y16 || (tokens >= MANY && !p.wide)) return no_memory(err);
    for (int i = 0; i < COPIES; i++) {
        r->p[i] = p;
        r->p[i].w = w[i];
    }
    const double bytes = (double)(bl_matrix_code_bytes(w) + bl_matrix_scale_bytes(w));
    *s = subject(name, run_dense, r, TIMES * bytes, tokens < MANY ? 0 : 2.0 * TIMES * (double)tokens * (double)w->rows * (double)w->cols);
    return BL_OK;
}

/* Distinct ones where they are small. */
static bl_status make_weights(bl_matrix w[COPIES], bl_weight_kind kind, int64_t rows, int64_t cols, int distinct, bl_error *err)
{
    for (int i = 0; i < COPIES; i++) {
        w[i] = (bl_matrix){.kind = kind, .rows = rows, .cols = cols};
        if (i >= distinct) {
            w[i] = w[i % distinct];
            continue;
        }
        w[i].codes = device_bytes(bl_matrix_code_bytes(&w[i]), 1);
        w[i].scale = bl_matrix_scale_bytes(&w[i]) ? device_scales(bl_matrix_scale_bytes(&w[i])) : NULL;
        if (!w[i].codes || (bl_matrix_scale_bytes(&w[i]) && !w[i].scale)) return no_memory(err);
    }
    return BL_OK;
}

/* ---- experts: the first product, w1 and w3 */

typedef struct expert_run {
    bl_cuda_groups groups;
    bl_cuda_expert_product p[COPIES]; /* each with other experts */
} expert_run;

static bl_status run_experts(void *arg, bl_error *err)
{
    const expert_run *r = arg;
    for (int i = 0; i < TIMES; i++) bl_cuda_multiply_experts(0, &r->p[i % COPIES]);
    return device_finish(err);
}

/* Every token's choices are distinct; how many experts are chosen at all. */
static int choose(int32_t *ids, int64_t tokens)
{
    bool chosen[EXPERTS] = {false};
    int count = 0;
    for (int64_t t = 0; t < tokens; t++)
        for (int j = 0, seed = 0; j < CHOICES; seed++) {
            const int32_t id = (int32_t)(bl_splitmix64((uint64_t)(t * 64 + seed)) % EXPERTS);
            bool again = false;
            for (int i = 0; i < j; i++) again |= ids[t * CHOICES + i] == id;
            if (again) continue;
            ids[t * CHOICES + j++] = id;
            count += !chosen[id];
            chosen[id] = true;
        }
    return count;
}

static bl_status sort_choices(expert_run *r, int64_t tokens, bool many, int *touched, bl_error *err)
{
    const size_t n = (size_t)tokens * CHOICES;
    int32_t *ids = malloc(n * sizeof *ids);
    if (!ids) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *touched = choose(ids, tokens);
    const int32_t *chosen = device_copy(ids, n * sizeof *ids);
    free(ids);
    const float *gates = device_bytes(n * 4, 1);
    bl_cuda_groups *g = &r->groups;
    *g = (bl_cuda_groups){.token = device_bytes(n * 4, 0), .gate = device_bytes(n * 4, 0), .slot_of = device_bytes(n * 4, 0),
                          .units = device_bytes(n * 12, 0), .count = device_bytes(4, 0), .classes = device_bytes(32, 0),
                          .counts = device_bytes((size_t)bl_cuda_sort_counts(tokens, CHOICES, EXPERTS) * 4, 0)};
    if (!chosen || !gates || !g->token || !g->gate || !g->slot_of || !g->units || !g->count || !g->classes || !g->counts) return no_memory(err);
    bl_cuda_sort(0, g, chosen, gates, tokens, CHOICES, 0, EXPERTS, many);
    return device_finish(err);
}

static bl_status add_experts(bench *b, bench_subject *s, const char *name, const bl_cuda_expert *table, int64_t tokens, bl_error *err)
{
    const bl_matrix w = {.kind = BL_W_FP4, .rows = INNER, .cols = HIDDEN};
    const size_t slots = (size_t)tokens * CHOICES;
    const bool many = bl_cuda_many_experts(tokens, BL_W_FP4, INNER, HIDDEN);
    int touched = 0;
    expert_run *r = bench_record(b, sizeof *r);
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(sort_choices(r, tokens, many, &touched, err));
    const bl_cuda_expert_product p = {.groups = &r->groups, .kind = BL_W_FP4, .rows = INNER, .cols = HIDDEN, .which = {0, 1},
                                    .count = 2, .x = device_bytes((size_t)tokens * HIDDEN * 2, 1), .by_token = true,
                                    .y = {device_bytes(slots * INNER * 2, 0), device_bytes(slots * INNER * 2, 0)}, .T = tokens,
                                    .k = CHOICES, .E = EXPERTS, .many = many, .grouped = many ? device_bytes(slots * HIDDEN * 2, 0) : NULL};
    if (!p.x || !p.y[0] || !p.y[1] || (many && !p.grouped)) return no_memory(err);
    for (int i = 0; i < COPIES; i++) {
        r->p[i] = p;
        r->p[i].experts = table + i * (EXPERTS / COPIES);
    }
    const double bytes = 2.0 * TIMES * touched * (double)(bl_matrix_code_bytes(&w) + bl_matrix_scale_bytes(&w));
    *s = subject(name, run_experts, r, bytes, tokens < MANY ? 0 : 4.0 * TIMES * (double)slots * INNER * HIDDEN);
    return BL_OK;
}

/* Twice in the table, so that it may be entered anywhere. */
static bl_status make_experts(const bl_cuda_expert **table, bl_error *err)
{
    const bl_matrix w = {.kind = BL_W_FP4, .rows = INNER, .cols = HIDDEN};
    const size_t codes = bl_matrix_code_bytes(&w), scales = bl_matrix_scale_bytes(&w);
    bl_cuda_expert list[2 * EXPERTS] = {{{NULL}, {NULL}}};
    const uint8_t *all = device_bytes(2 * EXPERTS * codes, 1), *scale = device_scales(2 * EXPERTS * scales);
    if (!all || !scale) return no_memory(err);
    for (size_t i = 0; i < 4 * EXPERTS; i++) {
        list[i / 2].codes[i % 2] = all + i % (2 * EXPERTS) * codes;
        list[i / 2].scale[i % 2] = scale + i % (2 * EXPERTS) * scales;
    }
    *table = device_copy(list, sizeof list);
    return *table ? BL_OK : no_memory(err);
}

bl_status bench_device_products(bench *b, bl_error *err)
{
    bench_subject s[10];
    bl_matrix dense[COPIES], head[COPIES];
    const bl_cuda_expert *table;
    BL_TRY(bench_device_copy_ceiling(b, &s[0], err));
    BL_TRY(bench_device_product_ceiling(b, &s[1], err));
    BL_TRY(make_weights(dense, BL_W_FP8, HIDDEN, GROUPS, COPIES, err));
    BL_TRY(make_weights(head, BL_W_BF16, VOCABULARY, HIDDEN, 1, err));
    BL_TRY(make_experts(&table, err));
    BL_TRY(add_dense(b, &s[2], "fp8 5120 x 8192, 1 token", dense, 1, err));
    BL_TRY(add_dense(b, &s[3], "fp8 5120 x 8192, 8 tokens", dense, 8, err));
    BL_TRY(add_dense(b, &s[4], "fp8 5120 x 8192, 64 tokens", dense, 64, err));
    BL_TRY(add_dense(b, &s[5], "fp8 5120 x 8192, 8,192 tokens", dense, MANY, err));
    BL_TRY(add_dense(b, &s[6], "bf16 head of 129,280, 1 token", head, 1, err));
    BL_TRY(add_experts(b, &s[7], "w1, w3 of 6 experts, 1 token", table, 1, err));
    BL_TRY(add_experts(b, &s[8], "w1, w3 of 6 experts, 64 tokens", table, 64, err));
    BL_TRY(add_experts(b, &s[9], "w1, w3 of 6 experts, 8,192 tokens", table, MANY, err));
    return bench_run(b, "products on the GPU, each weight read once", s, 10, err);
}
