/* Residual streams, embedding, head and Engram. */
#include "runtime/cpu/cpu.h"

#include <string.h>

enum { S = BL_HC_MULT, MIX_ROWS = S * (2 + S), TOKENS = 16 };

/* ---- embedding */

typedef struct stream_job {
    const bl_pass *p;
    uint16_t *H, *x;
    const uint16_t *y, *norm;
    float *pre, *post, *comb;
    const float *partial;
    const bl_mixing *mixing;
    const int64_t *tokens;
    const bl_layer *l;
} stream_job;

static void embed_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const size_t bytes = (size_t)c->config.hidden_size * sizeof(uint16_t);
    const uint8_t *table = j->p->weights->embed.codes;
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        const int64_t row = j->p->ids[t] - c->shard.vocab.first;
        uint8_t *out = (uint8_t *)j->x + (size_t)t * bytes;
        if (row < 0 || row >= c->shard.vocab.count) memset(out, 0, bytes);
        else memcpy(out, table + (size_t)row * bytes, bytes);
    }
}

void bl_cpu_embed(bl_backend *b, const bl_pass *p, uint16_t *x)
{
    stream_job j = {.p = p, .x = x};
    bl_cpu_tokens(cpu_of(b), p->tokens, TOKENS, embed_tokens, &j);
}

static void fan_out_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t D = c->config.hidden_size;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        for (int s = 0; s < S; s++) {
            memcpy(j->H + (t * S + s) * D, j->x + t * D, (size_t)D * sizeof(uint16_t));
            j->pre[t * S + s] = s == 0;
        }
}

void bl_cpu_fan_out(bl_backend *b, const bl_pass *p, uint16_t *H, float *pre, const uint16_t *x)
{
    stream_job j = {.H = H, .pre = pre, .x = (uint16_t *)x};
    bl_cpu_tokens(cpu_of(b), p->tokens, TOKENS, fan_out_tokens, &j);
}

/* ---- mixing */

static void squares_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t n = (int64_t)S * c->config.hidden_size;
    (void)worker;
    for (int64_t t = from; t < to; t++) c->squares[t] = c->ops.sum_squares(j->H + t * n, n);
}

static void mix_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const bl_config *f = &c->config;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        c->ops.mix(j->pre + t * S, j->post + t * S, j->comb + t * S * S, c->mix_dots + t * MIX_ROWS, c->squares[t],
                   (int64_t)S * f->hidden_size, j->mixing->scale.codes, j->mixing->base.codes, f->rms_norm_eps, f->hc_eps,
                   f->hc_sinkhorn_iters);
}

void bl_cpu_mix(bl_backend *b, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb)
{
    bl_cpu *c = cpu_of(b);
    const int64_t n = (int64_t)S * c->config.hidden_size;
    stream_job j = {.H = (uint16_t *)H, .pre = pre, .post = post, .comb = comb, .mixing = m};
    const cpu_packed x = bl_cpu_pack(c, H, n, p->tokens, n, false);
    cpu_product dots = cpu_whole(&m->fn, &x, NULL, c->mix_dots);
    bl_cpu_products(c, &dots, 1);
    bl_cpu_tokens(c, p->tokens, TOKENS, squares_tokens, &j);
    bl_cpu_tokens(c, p->tokens, TOKENS, mix_tokens, &j);
}

static void collapse_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t D = c->config.hidden_size;
    (void)worker;
    for (int64_t i = from; i < to; i++) {
        const int64_t t = j->tokens ? j->tokens[i] : i;
        c->ops.collapse(j->x + i * D, j->H + t * S * D, j->pre + t * S, D);
        c->ops.rmsnorm(j->x + i * D, j->x + i * D, j->norm, 1, D, c->config.rms_norm_eps);
    }
}

void bl_cpu_collapse(bl_backend *b, const bl_pass *p, const bl_matrix *norm, uint16_t *x, const uint16_t *H, const float *pre)
{
    stream_job j = {.x = x, .H = (uint16_t *)H, .pre = (float *)pre, .norm = norm->codes};
    bl_cpu_tokens(cpu_of(b), p->tokens, TOKENS, collapse_tokens, &j);
}

static void expand_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t D = c->config.hidden_size;
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        uint16_t *H = j->H + t * S * D;
        c->ops.expand(H, j->y + t * D, H, j->post + t * S, j->comb + t * S * S, D);
    }
}

void bl_cpu_expand(bl_backend *b, const bl_pass *p, uint16_t *H, const uint16_t *y, const float *post, const float *comb)
{
    stream_job j = {.H = H, .y = y, .post = (float *)post, .comb = (float *)comb};
    bl_cpu_tokens(cpu_of(b), p->tokens, TOKENS, expand_tokens, &j);
}

static void round_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t D = c->config.hidden_size;
    (void)worker;
    c->ops.to_bf16(j->x + from * D, j->partial + from * D, (to - from) * D);
}

void bl_cpu_round(bl_backend *b, const bl_pass *p, uint16_t *y, const float *partial)
{
    stream_job j = {.x = y, .partial = partial};
    bl_cpu_tokens(cpu_of(b), p->tokens, TOKENS, round_tokens, &j);
}

void bl_cpu_head(bl_backend *b, const bl_pass *p, const uint16_t *H, const float *pre)
{
    bl_cpu *c = cpu_of(b);
    const int64_t D = c->config.hidden_size, count = p->wanted_count;
    stream_job j = {.x = c->head_x, .H = (uint16_t *)H, .pre = (float *)pre, .norm = p->weights->norm.codes, .tokens = p->wanted};
    bl_cpu_tokens(c, count, TOKENS, collapse_tokens, &j);
    const cpu_packed x = bl_cpu_pack(c, c->head_x, D, count, D, false);
    cpu_product product = cpu_whole(&p->weights->head, &x, NULL, p->logits + c->shard.vocab.first);
    product.ld = c->config.vocab_size;
    bl_cpu_products(c, &product, 1);
}

/* ---- Engram */

static void gather_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const bl_matrix *table = &j->l->engram.table;
    const int64_t columns = j->p->engram_columns, *rows = j->p->engram_rows + j->l->engram_slot * j->p->engram_stride;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        c->ops.engram_gather(j->x + t * columns * table->cols, table->codes, table->scale, rows + t * columns, columns, table->cols);
}

/* Rows of other ranks are zeros. */
static void gather_part(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const bl_matrix *table = &j->l->engram.table;
    const bl_rows held = bl_shard_engram_rows(&c->shard, c->config.engram_num_embeddings[j->l->engram_slot]);
    const int64_t columns = j->p->engram_columns, *rows = j->p->engram_rows + j->l->engram_slot * j->p->engram_stride;
    (void)worker;
    for (int64_t i = from * columns; i < to * columns; i++) {
        const int64_t row = rows[i] - held.first;
        uint16_t *out = j->x + i * table->cols;
        if (row < 0 || row >= held.count) memset(out, 0, (size_t)table->cols * sizeof *out);
        else c->ops.engram_gather(out, table->codes, table->scale, &row, 1, table->cols);
    }
}

void bl_cpu_engram_rows(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *e)
{
    stream_job j = {.p = p, .l = l, .x = e};
    bl_cpu_tokens(cpu_of(b), p->tokens, 1, cpu_of(b)->shard.engram_parts > 1 ? gather_part : gather_tokens, &j);
}

static void gate_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const stream_job *j = arg;
    const int64_t D = c->config.hidden_size;
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        const uint16_t *key = c->engram_kv + t * (S + 1) * D;
        c->ops.engram_gate(j->H + t * S * D, key, key + S * D, j->l->engram.qk, D, c->config.rms_norm_eps);
    }
}

void bl_cpu_engram(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *H, const uint16_t *e)
{
    bl_cpu *c = cpu_of(b);
    stream_job j = {.p = p, .l = l, .H = H};
    const bl_matrix *w = &l->engram.wkv;
    const cpu_packed x = bl_cpu_pack(c, e, w->cols, p->tokens, w->cols, cpu_quantised(w));
    cpu_product product = cpu_whole(w, &x, c->engram_kv, NULL);
    bl_cpu_products(c, &product, 1);
    bl_cpu_tokens(c, p->tokens, TOKENS, gate_tokens, &j);
}
