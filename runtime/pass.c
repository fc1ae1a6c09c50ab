/* One pass through the layers: which operation follows which, what is carried from layer to layer, where ranks exchange. */
#include "runtime/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct run {
    bl_model *m;
    bl_backend *b;
    const bl_pass *p;
    const bl_hooks *hooks;
    float *pre, *next_pre; /* mixing coefficients consumed by the next sublayer, and those being computed */
    bl_status status;      /* of the hooks */
} run;

/* ---- hooks */

typedef struct seen {
    void *data; /* device */
    bl_dtype dtype;
    int64_t cols, streams; /* streams > 0: shape [T, streams, cols], else [T, cols] */
} seen;

/* Show an intermediate and take over what the hook made of it. */
static void visit(run *r, seen v, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void visit(run *r, seen v, const char *format, ...)
{
    if (!r->hooks || r->status != BL_OK) return;
    char name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const int64_t rows = r->p->tokens;
    const uint64_t bytes = (uint64_t)(rows * v.cols * (v.streams ? v.streams : 1)) * bl_dtype_bits(v.dtype) / 8;
    void *host = malloc(bytes ? bytes : 1);
    if (!host) {
        r->status = BL_E_NOMEM;
        return;
    }
    bl_hook_value value = {.name = name, .data = host, .dtype = v.dtype, .ndim = v.streams ? 3 : 2,
                           .shape = {rows, v.streams ? v.streams : v.cols, v.cols}};
    r->b->download(r->b, host, v.data, bytes);
    r->hooks->visit(r->hooks->arg, &value);
    r->b->upload(r->b, v.data, host, bytes);
    free(host);
}

static seen rows_of(void *data, bl_dtype dtype, int64_t cols)
{
    return (seen){.data = data, .dtype = dtype, .cols = cols};
}

static seen streams_of(run *r)
{
    return (seen){r->m->scratch.streams, BL_DT_BF16, r->m->config.hidden_size, BL_HC_MULT};
}

static seen hidden_of(run *r, void *data)
{
    return rows_of(data, BL_DT_BF16, r->m->config.hidden_size);
}

static void visit_rows(run *r, const bl_layer *l)
{
    if (!r->hooks) return;
    int64_t *rows = r->p->engram_rows + l->engram_slot * r->p->engram_stride;
    char name[64];
    snprintf(name, sizeof name, "layers.%d.engram.rows", l->index);
    const bl_hook_value v = {.name = name, .data = rows, .dtype = BL_DT_I64, .ndim = 2, .shape = {r->p->tokens, r->p->engram_columns}};
    r->hooks->visit(r->hooks->arg, &v);
}

/* ---- parts of a layer */

static void exchange_sum(run *r, bl_exchange at, void *buffer, int64_t cols, bl_dtype dtype)
{
    r->m->comm->all_reduce(r->m->comm, at, buffer, r->p->tokens, cols, dtype);
}

static void swap_pre(run *r)
{
    float *p = r->pre;
    r->pre = r->next_pre;
    r->next_pre = p;
}

static void engram(run *r, const bl_layer *l)
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    visit_rows(r, l);
    b->engram_rows(b, r->p, l, s->e);
    exchange_sum(r, BL_AT_ENGRAM_ROWS, s->e, r->p->engram_columns * r->m->config.engram_head_dim, BL_DT_BF16);
    b->engram(b, r->p, l, s->streams, s->e);
    visit(r, streams_of(r), "layers.%d.in", l->index);
}

/* y of the sublayer from x. */
static void attention(run *r, const bl_layer *l)
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    b->project_in(b, r->p, l, s->x, s->qr, s->q, s->kv);
    if (l->kv_source) b->compress(b, r->p, l, s->x);
    if (l->index_source) {
        b->select(b, r->p, l, s->x, s->qr, s->selected, s->candidates);
        visit(r, rows_of(s->selected, BL_DT_I32, r->m->config.index_topk), "layers.%d.selected", l->index);
    }
    b->attend(b, r->p, l, s->q, s->kv, s->selected, s->o);
    b->store_window(b, r->p, l, s->kv);
    b->project_out(b, r->p, l, s->o, s->partial);
    exchange_sum(r, BL_AT_ATTENTION, s->partial, r->m->config.hidden_size, BL_DT_F32);
    b->round(b, r->p, s->y, s->partial);
}

static void experts(run *r, const bl_layer *l)
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    const int64_t k = r->m->config.num_experts_per_tok;
    b->route(b, r->p, l, s->x, s->experts, s->gates);
    visit(r, rows_of(s->experts, BL_DT_I32, k), "layers.%d.ffn.experts", l->index);
    visit(r, rows_of(s->gates, BL_DT_F32, k), "layers.%d.ffn.gates", l->index);
    b->experts(b, r->p, l, s->x, s->experts, s->gates, s->partial);
    exchange_sum(r, BL_AT_EXPERTS, s->partial, r->m->config.hidden_size, BL_DT_F32);
    b->round(b, r->p, s->y, s->partial);
}

/* Collapse with the predecessor's coefficients, compute, expand with one's own. */
static void sublayer(run *r, const bl_layer *l, const bl_mixing *mixing, const bl_matrix *norm, const char *name,
                     void (*compute)(run *, const bl_layer *))
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    b->mix(b, r->p, mixing, s->streams, r->next_pre, s->post, s->comb);
    b->collapse(b, r->p, norm, s->x, s->streams, r->pre);
    visit(r, hidden_of(r, s->x), "layers.%d.%s.in", l->index, name);
    compute(r, l);
    visit(r, hidden_of(r, s->y), "layers.%d.%s.out", l->index, name);
    b->expand(b, r->p, s->streams, s->y, s->post, s->comb);
    swap_pre(r);
}

static void layer(run *r, const bl_layer *l)
{
    if (l->engram_slot >= 0) engram(r, l);
    visit(r, rows_of(r->pre, BL_DT_F32, BL_HC_MULT), "layers.%d.pre_in", l->index);
    sublayer(r, l, &l->mix_attn, &l->attn_norm, "attn", attention);
    sublayer(r, l, &l->mix_ffn, &l->ffn_norm, "ffn", experts);
    visit(r, streams_of(r), "layers.%d.out", l->index);
    visit(r, rows_of(r->pre, BL_DT_F32, BL_HC_MULT), "layers.%d.pre_out", l->index);
}

static void enter(run *r)
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    bl_comm *comm = r->m->comm;
    const int64_t T = r->p->tokens, D = r->m->config.hidden_size;
    if (r->m->shard.layers.first > 0) {
        comm->receive(comm, BL_AT_STAGE, s->streams, T, BL_HC_MULT * D, BL_DT_BF16);
        comm->receive(comm, BL_AT_STAGE, r->pre, T, BL_HC_MULT, BL_DT_F32);
        return;
    }
    b->embed(b, r->p, s->x);
    exchange_sum(r, BL_AT_EMBEDDING, s->x, D, BL_DT_BF16);
    b->fan_out(b, r->p, s->streams, r->pre, s->x);
}

static void leave(run *r)
{
    bl_backend *b = r->b;
    bl_scratch *s = &r->m->scratch;
    bl_comm *comm = r->m->comm;
    const bl_config *c = &r->m->config;
    const bl_shard *shard = &r->m->shard;
    if (shard->layers.first + shard->layers.count < c->num_hidden_layers) {
        comm->send(comm, BL_AT_STAGE, s->streams, r->p->tokens, (int64_t)BL_HC_MULT * c->hidden_size, BL_DT_BF16);
        comm->send(comm, BL_AT_STAGE, r->pre, r->p->tokens, BL_HC_MULT, BL_DT_F32);
        return;
    }
    if (r->p->wanted_count == 0) return;
    b->head(b, r->p, s->streams, r->pre);
    if (r->p->draws && b->sample) b->sample(b, r->p);
    comm->all_gather(comm, BL_AT_HEAD, r->p->logits, r->p->wanted_count, c->vocab_size, shard->vocab.first, shard->vocab.count, BL_DT_F32);
}

bl_status bl_run_pass(bl_model *m, const bl_pass *p, const bl_hooks *hooks, bl_error *err)
{
    run r = {.m = m, .b = m->backend, .p = p, .hooks = hooks, .pre = m->scratch.pre[0], .next_pre = m->scratch.pre[1]};
    bool recorded;
    BL_TRY(m->backend->begin(m->backend, p, &recorded, err));
    if (!recorded) {
        enter(&r);
        for (int i = 0; i < m->weights.layer_count; i++) layer(&r, &m->weights.layers[i]);
        leave(&r);
    }
    BL_TRY(m->backend->end(m->backend, err));
    return r.status == BL_OK ? BL_OK : bl_fail(err, r.status, NULL, NULL, -1, "out of memory for a parity hook");
}
