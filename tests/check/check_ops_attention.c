/* Attention, the indexer's scores and the selections. */
#include "tests/check/check_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention */

typedef struct shape {
    int64_t heads, d, window, selected;
    int keep; /* of 100 slots */
    ops_values values;
} shape;

/* Packed rows, pointed at in list order; a row lies at the end of its own buffer only when it is the last. */
static const uint8_t **make_rows(check *c, const bl_op_kernels *r, const shape *s)
{
    int64_t n = s->window + s->selected;
    size_t row = bl_window_row_bytes(s->d), latent = bl_latent_row_bytes(s->d);
    const uint8_t **list = check_buffer(c, sizeof(uint8_t *) * (size_t)n, sizeof(uint8_t *));
    uint8_t *windows = check_buffer(c, row * (size_t)s->window, 1), *latents = check_buffer(c, latent * (size_t)s->selected, 1);
    uint16_t *x = ops_bf16(c, s->d * n, s->values);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *to = i < s->window ? windows + row * (size_t)i : latents + latent * (size_t)(i - s->window);
        if (i < s->window) r->pack_window(to, x + i * s->d, s->d);
        else r->pack_latent(to, x + i * s->d, s->d);
        list[i] = check_below(c, 100) < s->keep ? to : NULL;
    }
    return list;
}

static void attention_case(check *c, const bl_op_kernels *t, const bl_op_kernels *r, const shape *s)
{
    check_case(c, "attention heads=%lld d=%lld slots=%lld+%lld keep=%d values=%d", (long long)s->heads, (long long)s->d,
               (long long)s->window, (long long)s->selected, s->keep, s->values);
    const uint8_t **list = make_rows(c, r, s);
    bl_attn_slots slots = {list, list + s->window, s->window, s->selected};
    int64_t n = s->heads * s->d;
    uint16_t *q = ops_bf16(c, n, OPS_NORMAL), *o = check_buffer(c, 2 * (size_t)n, 2), *o_c = check_buffer(c, 2 * (size_t)n, 2);
    float *sink = ops_f32(c, s->heads, 2), scale = 1.0f / sqrtf((float)s->d);
    void *scratch = check_buffer(c, t->attention_scratch(s->heads, s->d), 64);
    void *scratch_c = check_buffer(c, r->attention_scratch(s->heads, s->d), 64);
    t->attention(o, q, &slots, sink, s->heads, s->d, scale, scratch);
    r->attention(o_c, q, &slots, sink, s->heads, s->d, scale, scratch_c);
    check_bf16(c, "o", o, o_c, s->heads, s->d);
    t->attention(q, q, &slots, sink, s->heads, s->d, scale, scratch);
    check_bf16(c, "in place", q, o_c, s->heads, s->d);
}

void check_attention(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    static const int64_t heads[] = {1, 2, 3, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64};
    static const int64_t dims[] = {32, 64, 96, 128, 512};
    static const int keep[] = {100, 90, 50, 5, 0};
    for (int k = 0; k < 120; k++) {
        shape s = {heads[k % 14], dims[k % 5], check_below(c, 140), check_below(c, 200), keep[k / 3 % 5],
                   k % 4 ? OPS_NORMAL : OPS_SPREAD};
        if (s.d == 512 && s.heads > 9) s.selected %= 30;
        if (k % 6 == 0) s.window = 1 + k / 6; /* every number of slots left over by tiles and blocks */
        if (k % 6 == 0) s.selected = 0;
        attention_case(c, t, r, &s);
    }
    attention_case(c, t, r, &(shape){64, 512, 128, 512, 97, OPS_NORMAL});
    attention_case(c, t, r, &(shape){4, 64, 0, 0, 100, OPS_NORMAL});
}

/* ---- compressor and indexer */

static void index_case(check *c, const bl_op_kernels *t, const bl_op_kernels *r, int64_t heads, int64_t d, int64_t n, ops_values kind)
{
    check_case(c, "index heads=%lld d=%lld n=%lld values=%d", (long long)heads, (long long)d, (long long)n, kind);
    size_t row = bl_index_row_bytes(d);
    uint8_t *q = check_buffer(c, row * (size_t)heads, 1), *keys = check_buffer(c, row * (size_t)n, 1);
    uint16_t *x = ops_bf16(c, d * (heads + n), kind);
    for (int64_t i = 0; i < heads; i++) r->pack_index(q + row * (size_t)i, x + i * d, d);
    for (int64_t i = 0; i < n; i++) r->pack_index(keys + row * (size_t)i, x + (heads + i) * d, d);
    float *w = ops_f32(c, heads, 1);
    float *got = check_buffer(c, 4 * (size_t)n, 4), *want = check_buffer(c, 4 * (size_t)n, 4);
    t->index_scores(got, q, w, heads, d, keys, n);
    r->index_scores(want, q, w, heads, d, keys, n);
    check_f32(c, "scores", got, want, 1, n);
}

void check_index(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    static const int64_t heads[] = {1, 3, 8, 16, 17, 32, 33, 64, 130};
    static const int64_t dims[] = {32, 64, 128, 160};
    for (int k = 0; k < 9 * 4; k++)
        for (int kind = 0; kind < OPS_VALUES; kind++)
            index_case(c, t, r, heads[k % 9], dims[k % 4], 1 + check_below(c, 40), kind == OPS_ANY ? OPS_SPREAD : (ops_values)kind);
    index_case(c, t, r, 2, 1024, 5, OPS_NORMAL);
    for (int64_t d = 32; d < 600; d += 96) {
        check_case(c, "pool d=%lld", (long long)d);
        float *kv0 = ops_f32(c, d, 1), *kv1 = ops_f32(c, d, 1), *z0 = ops_f32(c, d, 9), *z1 = ops_f32(c, d, 9);
        uint16_t *y = check_buffer(c, 2 * (size_t)d, 2), *y_c = check_buffer(c, 2 * (size_t)d, 2);
        t->pool_pair(y, kv0, z0, kv1, z1, d);
        r->pool_pair(y_c, kv0, z0, kv1, z1, d);
        check_bf16(c, "pool_pair", y, y_c, 1, d);
    }
}

/* ---- selection */

typedef struct ranked {
    float score;
    int32_t index;
} ranked;

static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static int by_index(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static int64_t sorted_top(check *c, int32_t *index, const float *scores, int64_t n, int64_t k)
{
    ranked *all = check_buffer(c, sizeof(ranked) * (size_t)n, 8);
    int64_t finite = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(scores[i])) all[finite++] = (ranked){scores[i], (int32_t)i};
    qsort(all, (size_t)finite, sizeof *all, by_score);
    k = k < 0 ? 0 : finite < k ? finite : k;
    for (int64_t i = 0; i < k; i++) index[i] = all[i].index;
    qsort(index, (size_t)k, sizeof *index, by_index);
    return k;
}

static float *random_scores(check *c, int64_t n, int trial)
{
    static const float odd[] = {-0.0f, 0.0f, NAN, INFINITY, -INFINITY, 1e-45f, -1e-45f, 3e38f};
    float *s = ops_f32(c, n, trial % 4 == 1 ? 1e-40f : 10);
    for (int64_t i = 0; i < n; i++) {
        if (trial % 4 == 2) s[i] = rintf(s[i] / 5);
        if (trial % 5 == 3 && check_below(c, 4) == 0) s[i] = odd[check_below(c, 8)];
        if (trial % 7 == 4 && check_below(c, 3)) s[i] = -INFINITY;
    }
    return s;
}

void check_select(check *c)
{
    for (int trial = 0; trial < 400; trial++) {
        /* the long ones are collected and cut back several times, most often when the best come last */
        int64_t n = check_below(c, trial % 2 ? 40 : trial % 8 ? 3000 : 50000), k = check_below(c, trial % 2 ? 20 : trial % 16 ? 600 : 3000);
        check_case(c, "select_top n=%lld k=%lld", (long long)n, (long long)k);
        float *s = random_scores(c, n, trial), *scratch = check_buffer(c, 4 * (size_t)n, 4);
        int32_t *got = check_buffer(c, 4 * (size_t)k, 4), *want = check_buffer(c, 4 * (size_t)k, 4);
        if (trial % 40 == 24 || trial % 80 == 0) qsort(s, (size_t)n, sizeof *s, by_value);
        int64_t taken = sorted_top(c, want, s, n, k);
        if (check_int(c, "taken", bl_select_top(got, s, n, k, scratch), taken)) check_i32(c, "index", got, want, 1, taken);
    }
    for (int trial = 0; trial < 400; trial++) {
        int64_t n = 1 + check_below(c, 500), size = 1 + check_below(c, 12), blocks = check_below(c, 30), count = (n + size - 1) / size;
        int64_t visible = check_below(c, n + 1), forced = visible ? (visible - 1) / size : -1;
        check_case(c, "candidates n=%lld visible=%lld size=%lld blocks=%lld", (long long)n, (long long)visible, (long long)size,
                   (long long)blocks);
        float *s = random_scores(c, n, trial), *scratch = check_buffer(c, 8 * (size_t)count, 4);
        float *best = check_buffer(c, 4 * (size_t)count, 4);
        for (int64_t i = visible; i < n; i++) s[i] = -INFINITY;
        for (int64_t b = 0; b < count; b++) best[b] = -INFINITY;
        for (int64_t i = 0; i < n; i++)
            if (isfinite(s[i]) && i / size != forced && s[i] > best[i / size]) best[i / size] = s[i];
        uint8_t *got = check_buffer(c, (size_t)n, 1), *want = check_buffer(c, (size_t)n, 1);
        int32_t *top = check_buffer(c, 4 * (size_t)count, 4);
        int64_t kept = sorted_top(c, top, best, count, blocks - (forced >= 0));
        for (int64_t i = 0; i < n; i++) {
            want[i] = i / size == forced;
            for (int64_t k = 0; k < kept; k++) want[i] |= top[k] == i / size;
        }
        bl_select_candidates(got, s, n, visible, blocks, size, scratch);
        check_u8(c, "keep", got, want, 1, n);
    }
}
