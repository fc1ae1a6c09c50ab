/* Attention: projections, the window's rows, the sparse product, the grouped output projection. */
#include "runtime/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 16 };

typedef struct attention_job {
    bl_cpu *c;
    const bl_pass *p;
    const bl_layer *l;
    uint16_t *qr, *q, *o;
    uint8_t *kv;
    const int32_t *selected;
    int64_t parts; /* head ranges of a token */
} attention_job;

static const float *rotation(const bl_cpu *c, const bl_layer *l, int64_t t)
{
    return c->rotation[l->ratio > 0] + t * c->config.qk_rope_head_dim;
}

/* ---- into queries and window rows */

static void norm_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const attention_job *j = arg;
    const bl_config *f = &c->config;
    const int64_t d = f->head_dim, low = f->q_lora_rank;
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        uint16_t *kv = c->kv + t * d;
        c->ops.rmsnorm(j->qr + t * low, c->down + t * low, j->l->q_norm.codes, 1, low, f->rms_norm_eps);
        c->ops.rmsnorm(kv, kv, j->l->kv_norm.codes, 1, d, f->rms_norm_eps);
        c->ops.rope(kv, 1, d, f->qk_rope_head_dim, rotation(c, j->l, t), 0);
        c->ops.pack_window(j->kv + (size_t)t * bl_window_row_bytes(d), kv, d);
    }
}

static void rotate_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const attention_job *j = arg;
    const int64_t heads = c->shard.heads.count, d = c->config.head_dim;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        c->ops.rope(j->q + t * heads * d, heads, d, c->config.qk_rope_head_dim, rotation(c, j->l, t), 0);
}

void bl_cpu_project_in(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, uint16_t *qr, uint16_t *q, uint8_t *kv)
{
    bl_cpu *c = cpu_of(b);
    const int64_t T = p->tokens, D = c->config.hidden_size, low = c->config.q_lora_rank;
    attention_job j = {.p = p, .l = l, .qr = qr, .q = q, .kv = kv};
    const bool round_q = cpu_quantised(&l->wq_a), round_kv = cpu_quantised(&l->wkv);
    const cpu_packed first = bl_cpu_pack(c, x, D, T, D, round_q);
    const cpu_packed second = round_kv == round_q ? first : bl_cpu_pack(c, x, D, T, D, round_kv);
    cpu_product down[2] = {cpu_whole(&l->wq_a, &first, c->down, NULL), cpu_whole(&l->wkv, &second, c->kv, NULL)};
    bl_cpu_products(c, down, 2);
    bl_cpu_tokens(c, T, TOKENS, norm_tokens, &j);
    const cpu_packed packed = bl_cpu_pack(c, qr, low, T, low, cpu_quantised(&l->wq_b));
    cpu_product up = cpu_whole(&l->wq_b, &packed, q, NULL);
    bl_cpu_products(c, &up, 1);
    bl_cpu_tokens(c, T, TOKENS, rotate_tokens, &j);
}

/* ---- the sparse product */

/* Worker memory: pointers to the rows of a query's slots, then the kernel's scratch. */
static size_t pointer_bytes(const bl_cpu *c)
{
    const size_t slots = (size_t)c->config.sliding_window + (size_t)c->config.index_topk;
    return (slots * sizeof(uint8_t *) + CPU_ALIGN - 1) & ~(size_t)(CPU_ALIGN - 1);
}

size_t bl_cpu_attend_bytes(const bl_cpu *c)
{
    return pointer_bytes(c) + c->ops.attention_scratch(c->shard.heads.count, c->config.head_dim);
}

/* Rows of the window of token t: those of this pass from kv, older ones from the ring; holes behind them. */
static void window_rows(const bl_cpu *c, const attention_job *j, int64_t t, const uint8_t **rows)
{
    const bl_pass_span *s = &j->p->spans[j->p->span_of[t]];
    const int64_t position = j->p->position[t], window = c->config.sliding_window;
    const size_t bytes = bl_window_row_bytes(c->config.head_dim);
    int64_t n = 0;
    for (int64_t at = position >= window ? position - window + 1 : 0; at <= position; at++)
        rows[n++] = at >= s->start ? j->kv + (size_t)(s->first + at - s->start) * bytes
                                   : bl_cache_window(s->cache, j->l->index - c->shard.layers.first, at);
    while (n < window) rows[n++] = NULL;
}

static void selected_rows(const bl_cpu *c, const attention_job *j, int64_t t, const uint8_t **rows)
{
    const bl_pass_span *s = &j->p->spans[j->p->span_of[t]];
    const int32_t *entry = j->selected + t * c->config.index_topk;
    for (int64_t i = 0; i < c->config.index_topk; i++)
        rows[i] = entry[i] < 0 ? NULL : bl_cache_latent(s->cache, j->l->kv_slot, entry[i]);
}

static void attend_item(void *arg, int64_t item, int worker)
{
    bl_cpu *c = ((attention_job *)arg)->c;
    const attention_job *j = arg;
    const bl_config *f = &c->config;
    const int64_t t = item / j->parts, part = item % j->parts, heads = c->shard.heads.count, d = f->head_dim;
    const int64_t h0 = heads * part / j->parts, h1 = heads * (part + 1) / j->parts;
    const uint8_t **rows = cpu_worker(c, worker);
    void *scratch = (uint8_t *)cpu_worker(c, worker) + pointer_bytes(c);
    uint16_t *o = j->o + (t * heads + h0) * d;
    bl_attn_slots slots = {.window = rows, .selected = rows + f->sliding_window, .window_slots = f->sliding_window};
    window_rows(c, j, t, rows);
    if (j->l->ratio > 0) {
        slots.selected_slots = f->index_topk;
        selected_rows(c, j, t, rows + f->sliding_window);
    }
    c->ops.attention(o, j->q + (t * heads + h0) * d, &slots, (const float *)j->l->sink.codes + h0, h1 - h0, d,
                     (float)(1.0 / sqrt((double)d)), scratch);
    c->ops.rope(o, h1 - h0, d, f->qk_rope_head_dim, rotation(c, j->l, t), 1);
}

void bl_cpu_attend(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *q, const uint8_t *kv, const int32_t *selected,
                   uint16_t *o)
{
    bl_cpu *c = cpu_of(b);
    const int64_t heads = c->shard.heads.count;
    attention_job j = {.c = c, .p = p, .l = l, .q = (uint16_t *)q, .kv = (uint8_t *)kv, .selected = selected, .o = o};
    /* Splitting heads repeats the decoding of rows: only as far as the threads need it. */
    j.parts = p->tokens >= c->threads ? 1 : (2 * c->threads + p->tokens - 1) / p->tokens;
    if (c->threads == 1) j.parts = 1;
    if (j.parts > heads) j.parts = heads;
    bl_cpu_run(c, p->tokens * heads * c->config.head_dim * (c->config.sliding_window + (l->ratio ? c->config.index_topk : 0)),
               p->tokens * j.parts, attend_item, &j);
}

void bl_cpu_store_window(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint8_t *kv)
{
    bl_cpu *c = cpu_of(b);
    const size_t bytes = bl_window_row_bytes(c->config.head_dim);
    const int64_t rows = bl_ring_rows(&c->config);
    for (int64_t i = 0; i < p->span_count; i++) {
        const bl_pass_span *s = &p->spans[i];
        for (int64_t k = s->count > rows ? s->count - rows : 0; k < s->count; k++)
            memcpy(bl_cache_window(s->cache, l->index - c->shard.layers.first, s->start + k), kv + (size_t)(s->first + k) * bytes, bytes);
    }
}

/* ---- out */

/* Rows of the groups' inputs with zeros behind them, where kernels need K in multiples of 32. */
static void pad_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const attention_job *j = arg;
    const int64_t groups = c->shard.groups.count, padded = j->l->wo_a.cols, width = c->group_in;
    (void)worker;
    for (int64_t i = from * groups; i < to * groups; i++) {
        memcpy(c->padded + i * padded, j->o + i * width, (size_t)width * sizeof(uint16_t));
        memset(c->padded + i * padded + width, 0, (size_t)(padded - width) * sizeof(uint16_t));
    }
}

void bl_cpu_project_out(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *o, float *partial)
{
    bl_cpu *c = cpu_of(b);
    const int64_t T = p->tokens, groups = c->shard.groups.count, cols = l->wo_a.cols, rank = c->config.o_lora_rank;
    attention_job j = {.l = l, .o = (uint16_t *)o};
    if (cols != c->group_in) {
        bl_cpu_tokens(c, T, TOKENS, pad_tokens, &j);
        o = c->padded;
    }
    for (int64_t g = 0; g < groups; g++) {
        cpu_packed *x = &c->group_packed[g];
        *x = bl_cpu_blocks(c, c->plain_pack + (size_t)g * c->group_stride, T, cols);
        bl_cpu_pack_into(c, x, o + g * cols, groups * cols, false); /* wo_a takes bf16 activations, whatever its codes */
        c->products[g] = (cpu_product){.w = &l->wo_a, .row0 = g * rank, .rows = rank, .x = x, .y16 = c->group + g * rank,
                                       .ld = groups * rank};
    }
    bl_cpu_products(c, c->products, (int)groups);
    const cpu_packed x = bl_cpu_pack(c, c->group, groups * rank, T, groups * rank, cpu_quantised(&l->wo_b));
    cpu_product out = cpu_whole(&l->wo_b, &x, NULL, partial);
    bl_cpu_products(c, &out, 1);
}
