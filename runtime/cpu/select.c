/* Indexer: scores of the compressed entries, candidate blocks, the best of them. */
#include "runtime/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

enum {
    TOKENS = 16,
    RANGE = 1024,           /* entries scored by one item */
    SCORE_FLOATS = 16 << 20 /* of the score buffer, unless a single query needs more */
};

typedef struct select_job {
    bl_cpu *c;
    const bl_pass *p;
    const bl_layer *l;
    int32_t *selected, *candidates;
    int64_t first;  /* query of the group's first score row */
    int64_t ranges; /* items of a query */
} select_job;

/* ---- buffers that depend on the length of sequences */

/* Worker memory of choose_item: scratch for the selection, block maxima twice, marks. */
static size_t choose_bytes(int64_t entries)
{
    return (size_t)entries * (3 * sizeof(float) + 1) + 4 * sizeof(float) + CPU_ALIGN;
}

bl_status bl_cpu_reserve_scores(bl_cpu *c, int64_t entries, bl_error *err)
{
    if (entries <= c->longest) return BL_OK;
    int64_t longest = 4 * RANGE;
    while (longest < entries) longest *= 2;
    int64_t rows = SCORE_FLOATS / longest;
    rows = rows < 1 ? 1 : rows > c->max_tokens ? c->max_tokens : rows;
    float *scores = malloc((size_t)(rows * longest) * sizeof(float));
    uint8_t *choose = malloc((size_t)c->threads * choose_bytes(longest));
    if (!scores || !choose) {
        free(scores);
        free(choose);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the index scores of %lld entries", (long long)entries);
    }
    free(c->scores);
    free(c->choose);
    c->scores = scores;
    c->choose = choose;
    c->score_rows = rows;
    c->longest = longest;
    return BL_OK;
}

/* ---- queries: rotated and rounded, and the heads' weights */

static void query_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const select_job *j = arg;
    const bl_config *f = &c->config;
    const int64_t heads = f->index_n_heads, d = f->index_head_dim, R = f->qk_rope_head_dim;
    const size_t bytes = bl_index_row_bytes(d);
    const float scale = (float)(pow((double)d, -0.5) * pow((double)heads, -0.5));
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        uint16_t *q = c->index_q + t * heads * d, *w = c->index_dots + t * heads;
        c->ops.rope(q, heads, d, R, c->rotation[j->l->ratio > 0] + t * R, 0);
        for (int64_t h = 0; h < heads; h++) {
            c->ops.pack_index(c->index_rows + (size_t)(t * heads + h) * bytes, q + h * d, d);
            c->index_w[t * heads + h] = bl_bf16_to_f32(bl_f32_to_bf16(bl_bf16_to_f32(w[h]) * scale));
        }
    }
}

static void project(bl_cpu *c, const select_job *j, const uint16_t *x, const uint16_t *qr)
{
    const int64_t T = j->p->tokens, D = c->config.hidden_size, low = c->config.q_lora_rank;
    const bl_matrix *w = &j->l->indexer.wq_b;
    const bool round = cpu_quantised(w);
    if (round) { /* the two activations lie in different buffers: one dispatch */
        const cpu_packed q = bl_cpu_pack(c, qr, low, T, low, true), h = bl_cpu_pack(c, x, D, T, D, false);
        cpu_product both[2] = {cpu_whole(w, &q, c->index_q, NULL), cpu_whole(&j->l->indexer.weights_proj, &h, c->index_dots, NULL)};
        bl_cpu_products(c, both, 2);
    } else {
        const cpu_packed q = bl_cpu_pack(c, qr, low, T, low, false);
        cpu_product queries = cpu_whole(w, &q, c->index_q, NULL);
        bl_cpu_products(c, &queries, 1);
        const cpu_packed h = bl_cpu_pack(c, x, D, T, D, false);
        cpu_product weights = cpu_whole(&j->l->indexer.weights_proj, &h, c->index_dots, NULL);
        bl_cpu_products(c, &weights, 1);
    }
    bl_cpu_tokens(c, T, TOKENS, query_tokens, (void *)j);
}

/* ---- scores */

static int64_t visible(const select_job *j, int64_t t)
{
    return (j->p->position[t] + 1) / j->l->ratio;
}

/* Entries [from, to) of the query's sequence, page by page. */
static void score_entries(bl_cpu *c, const select_job *j, int64_t t, int64_t from, int64_t to, float *out)
{
    const bl_pass_span *s = &j->p->spans[j->p->span_of[t]];
    const int64_t heads = c->config.index_n_heads, d = c->config.index_head_dim;
    const uint8_t *q = c->index_rows + (size_t)(t * heads) * bl_index_row_bytes(d);
    while (from < to) {
        int64_t end = (from / BL_PAGE_ENTRIES + 1) * BL_PAGE_ENTRIES;
        if (end > to) end = to;
        c->ops.index_scores(out, q, c->index_w + t * heads, heads, d, bl_cache_key(s->cache, j->l->kv_slot, from), end - from);
        out += end - from;
        from = end;
    }
}

/* One range of a query's entries; of a filtered layer the entries of as many candidate blocks, side by side. */
static void score_item(void *arg, int64_t item, int worker)
{
    const select_job *j = arg;
    bl_cpu *c = j->c;
    const int64_t row = item / j->ranges, range = item % j->ranges, t = j->first + row, n = visible(j, t);
    float *scores = c->scores + row * c->longest;
    (void)worker;
    if (!j->l->filtered) {
        const int64_t from = range * RANGE, to = from + RANGE < n ? from + RANGE : n;
        if (from < to) score_entries(c, j, t, from, to, scores + from);
        return;
    }
    const int64_t size = c->config.candidate_block_size, most = c->config.candidate_topk_blocks;
    const int64_t each = RANGE / size + 1, first = range * each, last = first + each < most ? first + each : most;
    const int32_t *blocks = j->candidates + t * most;
    for (int64_t i = first; i < last && blocks[i] >= 0; i++) {
        const int64_t from = blocks[i] * size, to = from + size < n ? from + size : n;
        score_entries(c, j, t, from, to, scores + i * size);
    }
}

/* ---- choice */

/* The candidates of a query, as a list of blocks ended by -1. */
static void publish(bl_cpu *c, int32_t *blocks, const float *scores, int64_t n, uint8_t *memory)
{
    const int64_t size = c->config.candidate_block_size, most = c->config.candidate_topk_blocks;
    const int64_t count = (n + size - 1) / size;
    uint8_t *keep = memory + (size_t)(2 * count) * sizeof(float);
    int64_t kept = 0;
    bl_select_candidates(keep, scores, n, n, most, size, (float *)(void *)memory);
    for (int64_t i = 0; i < count; i++)
        if (keep[i * size]) blocks[kept++] = (int32_t)i;
    while (kept < most) blocks[kept++] = -1;
}

static int64_t choose_filtered(bl_cpu *c, int32_t *chosen, const int32_t *blocks, const float *scores, int64_t n, float *scratch)
{
    const int64_t size = c->config.candidate_block_size, most = c->config.candidate_topk_blocks;
    int64_t count = 0;
    while (count < most && blocks[count] >= 0) count++;
    int64_t total = count * size;
    if (count && (blocks[count - 1] + 1) * size > n) total -= (blocks[count - 1] + 1) * size - n; /* only the last can be partial */
    const int64_t taken = bl_select_top(chosen, scores, total, c->config.index_topk, scratch);
    for (int64_t i = 0; i < taken; i++) chosen[i] = (int32_t)(blocks[chosen[i] / size] * size + chosen[i] % size);
    return taken;
}

static void choose_item(void *arg, int64_t item, int worker)
{
    const select_job *j = arg;
    bl_cpu *c = j->c;
    const int64_t t = j->first + item, n = visible(j, t), k = c->config.index_topk, most = c->config.candidate_topk_blocks;
    const float *scores = c->scores + item * c->longest;
    uint8_t *memory = c->choose + (size_t)worker * choose_bytes(c->longest);
    int32_t *chosen = j->selected + t * k;
    int64_t taken;
    if (j->l->candidates) publish(c, j->candidates + t * most, scores, n, memory);
    if (j->l->filtered) taken = choose_filtered(c, chosen, j->candidates + t * most, scores, n, (float *)(void *)memory);
    else taken = bl_select_top(chosen, scores, n, k, (float *)(void *)memory);
    while (taken < k) chosen[taken++] = -1;
}

void bl_cpu_select(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const uint16_t *qr, int32_t *selected,
                   int32_t *candidates)
{
    bl_cpu *c = cpu_of(b);
    select_job j = {.c = c, .p = p, .l = l, .selected = selected, .candidates = candidates};
    project(c, &j, x, qr);
    for (; j.first < p->tokens; j.first += c->score_rows) {
        const int64_t rows = p->tokens - j.first < c->score_rows ? p->tokens - j.first : c->score_rows;
        int64_t longest = 0;
        for (int64_t t = j.first; t < j.first + rows; t++)
            if (visible(&j, t) > longest) longest = visible(&j, t);
        j.ranges = (longest + RANGE - 1) / RANGE;
        if (l->filtered) {
            const int64_t size = c->config.candidate_block_size, each = RANGE / size + 1;
            int64_t blocks = (longest + size - 1) / size;
            if (blocks > c->config.candidate_topk_blocks) blocks = c->config.candidate_topk_blocks;
            j.ranges = (blocks + each - 1) / each;
        }
        if (j.ranges) bl_pool_run(c->pool, rows * j.ranges, score_item, &j);
        bl_pool_run(c->pool, rows, choose_item, &j);
    }
}
