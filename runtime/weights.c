#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a tensor is stored and what that makes it. */
typedef enum form {
    DENSE = 1, /* fp8 with 32x32 scales, or bf16 */
    EXPERT,    /* fp4 with 1x32 scales, or what DENSE takes */
    BF16,
    F32,
    BF16_VECTOR,
    F32_VECTOR
} form;

typedef enum when { ALWAYS = 0, KV_SOURCE, POOLED, INDEX_SOURCE, ENGRAM } when;

typedef enum dim {
    ONE = 0,
    HIDDEN,
    STREAMS,
    STREAMS_HIDDEN,
    MIX_ROWS,
    MIX_SCALES,
    Q_LORA,
    HEADS,
    QUERY,
    HEAD_DIM,
    GROUP_IN,
    GROUPS_OUT,
    INDEX_HEADS,
    INDEX_DIM,
    INDEX_QUERY,
    EXPERTS,
    INTER,
    ENGRAM_IN,
    ENGRAM_OUT,
    DIMS
} dim;

typedef struct field {
    const char *name; /* below the layer, without ".weight" where suffix says so */
    size_t at;        /* of the view in bl_layer */
    form form;
    dim rows, cols;
    when when;
} field;

#define AT(member) offsetof(bl_layer, member)

static const field fields[] = {
    {"hc_attn_fn", AT(mix_attn.fn), F32, MIX_ROWS, STREAMS_HIDDEN, ALWAYS},
    {"hc_attn_base", AT(mix_attn.base), F32_VECTOR, ONE, MIX_ROWS, ALWAYS},
    {"hc_attn_scale", AT(mix_attn.scale), F32_VECTOR, ONE, MIX_SCALES, ALWAYS},
    {"hc_ffn_fn", AT(mix_ffn.fn), F32, MIX_ROWS, STREAMS_HIDDEN, ALWAYS},
    {"hc_ffn_base", AT(mix_ffn.base), F32_VECTOR, ONE, MIX_ROWS, ALWAYS},
    {"hc_ffn_scale", AT(mix_ffn.scale), F32_VECTOR, ONE, MIX_SCALES, ALWAYS},
    {"attn_norm.weight", AT(attn_norm), BF16_VECTOR, ONE, HIDDEN, ALWAYS},
    {"ffn_norm.weight", AT(ffn_norm), BF16_VECTOR, ONE, HIDDEN, ALWAYS},
    {"attn.wq_a.weight", AT(wq_a), DENSE, Q_LORA, HIDDEN, ALWAYS},
    {"attn.q_norm.weight", AT(q_norm), BF16_VECTOR, ONE, Q_LORA, ALWAYS},
    {"attn.wq_b.weight", AT(wq_b), DENSE, QUERY, Q_LORA, ALWAYS},
    {"attn.wkv.weight", AT(wkv), DENSE, HEAD_DIM, HIDDEN, ALWAYS},
    {"attn.kv_norm.weight", AT(kv_norm), BF16_VECTOR, ONE, HEAD_DIM, ALWAYS},
    {"attn.attn_sink", AT(sink), F32_VECTOR, ONE, HEADS, ALWAYS},
    {"attn.wo_a.weight", AT(wo_a), DENSE, GROUPS_OUT, GROUP_IN, ALWAYS},
    {"attn.wo_b.weight", AT(wo_b), DENSE, HIDDEN, GROUPS_OUT, ALWAYS},
    {"attn.compressor.wkv.weight", AT(compressor.wkv), BF16, HEAD_DIM, HIDDEN, KV_SOURCE},
    {"attn.compressor.wgate.weight", AT(compressor.wgate), BF16, HEAD_DIM, HIDDEN, POOLED},
    {"attn.compressor.norm.weight", AT(compressor.norm), BF16_VECTOR, ONE, HEAD_DIM, KV_SOURCE},
    {"attn.indexer.wk.weight", AT(compressor.wk), BF16, INDEX_DIM, HEAD_DIM, KV_SOURCE},
    {"attn.indexer.k_norm.weight", AT(compressor.k_norm), BF16_VECTOR, ONE, INDEX_DIM, KV_SOURCE},
    {"attn.indexer.wq_b.weight", AT(indexer.wq_b), DENSE, INDEX_QUERY, Q_LORA, INDEX_SOURCE},
    {"attn.indexer.weights_proj.weight", AT(indexer.weights_proj), BF16, INDEX_HEADS, HIDDEN, INDEX_SOURCE},
    {"ffn.gate.weight", AT(gate), BF16, EXPERTS, HIDDEN, ALWAYS},
    {"ffn.gate.bias", AT(gate_bias), F32_VECTOR, ONE, EXPERTS, ALWAYS},
    {"ffn.shared_experts.w1.weight", AT(shared.w1), DENSE, INTER, HIDDEN, ALWAYS},
    {"ffn.shared_experts.w3.weight", AT(shared.w3), DENSE, INTER, HIDDEN, ALWAYS},
    {"ffn.shared_experts.w2.weight", AT(shared.w2), DENSE, HIDDEN, INTER, ALWAYS},
    {"engram.wkv.weight", AT(engram.wkv), DENSE, ENGRAM_OUT, ENGRAM_IN, ENGRAM},
    {"engram.q_weight", AT(engram.q_weight), BF16, STREAMS, HIDDEN, ENGRAM},
    {"engram.k_weight", AT(engram.k_weight), BF16, STREAMS, HIDDEN, ENGRAM},
};

typedef struct resolver {
    bl_weights *w;
    const bl_config *config;
    const bl_checkpoint *c; /* NULL: views of the released forms, without tensors */
    const bl_shard *shard;
    int64_t dims[DIMS];
    bl_error *err;
} resolver;

static bl_status bad(const resolver *r, const char *name, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, r->c->path, name, -1, "%s", what);
}

static bl_status out_of_memory(const resolver *r)
{
    return bl_fail(r->err, BL_E_NOMEM, r->c ? r->c->path : NULL, NULL, -1, "out of memory for the table of weights");
}

static void measure(resolver *r)
{
    const bl_config *c = r->config;
    const bl_shard *s = r->shard;
    const int64_t hidden = c->hidden_size;
    const int64_t columns = bl_config_engram_columns(c);
    const int64_t dims[DIMS] = {
        [ONE] = 1,
        [HIDDEN] = hidden,
        [STREAMS] = BL_HC_MULT,
        [STREAMS_HIDDEN] = BL_HC_MULT * hidden,
        [MIX_ROWS] = BL_HC_MULT * (2 + BL_HC_MULT),
        [MIX_SCALES] = 3,
        [Q_LORA] = c->q_lora_rank,
        [HEADS] = s->heads.count,
        [QUERY] = (int64_t)s->heads.count * c->head_dim,
        [HEAD_DIM] = c->head_dim,
        [GROUP_IN] = (int64_t)s->heads.count * c->head_dim / s->groups.count,
        [GROUPS_OUT] = (int64_t)s->groups.count * c->o_lora_rank,
        [INDEX_HEADS] = c->index_n_heads,
        [INDEX_DIM] = c->index_head_dim,
        [INDEX_QUERY] = (int64_t)c->index_n_heads * c->index_head_dim,
        [EXPERTS] = c->n_routed_experts,
        [INTER] = c->moe_intermediate_size,
        [ENGRAM_IN] = columns * c->engram_head_dim,
        [ENGRAM_OUT] = (BL_HC_MULT + 1) * hidden,
    };
    memcpy(r->dims, dims, sizeof dims);
}

static bl_status add_handle(resolver *r, bl_handle h)
{
    bl_weights *w = r->w;
    bl_handle *grown = bl_grow(w->handles, &w->handle_capacity, w->handle_count, sizeof *grown);
    if (!grown) return out_of_memory(r);
    w->handles = grown;
    w->handles[w->handle_count++] = h;
    return BL_OK;
}

/* "[3, 4]" */
static const char *shape_text(char *buf, size_t cap, const uint64_t *shape, uint32_t ndim)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (uint32_t i = 0; i < ndim && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}

static bl_status expect_shape(const resolver *r, const bl_tensor *t, const uint64_t *want, uint32_t ndim)
{
    if (t->ndim == ndim && !memcmp(t->shape, want, ndim * sizeof *want)) return BL_OK;
    char have[200], need[200];
    return bl_fail(r->err, BL_E_INPUT, r->c->path, t->name, -1, "has shape %s where config.json implies %s",
                   shape_text(have, sizeof have, t->shape, t->ndim), shape_text(need, sizeof need, want, ndim));
}

static bl_status find(const resolver *r, const char *name, const bl_tensor **t)
{
    *t = bl_checkpoint_find(r->c, name);
    return *t ? BL_OK : bad(r, name, "is missing");
}

/* Name of the scale of a weight: ".weight" becomes ".scale". */
static void scale_name(char *out, size_t cap, const char *weight)
{
    size_t n = strlen(weight) - strlen(".weight");
    snprintf(out, cap, "%.*s.scale", (int)n, weight);
}

static bl_status wrong_dtype(const resolver *r, const bl_tensor *t, const char *expected)
{
    return bl_fail(r->err, BL_E_INPUT, r->c->path, t->name, -1, "is %s, expected %s", bl_dtype_name(t->dtype), expected);
}

static bl_status kind_of(const resolver *r, const bl_tensor *t, form f, bl_weight_kind *kind)
{
    const bool bf16 = t->dtype == BL_DT_BF16, fp8 = t->dtype == BL_DT_F8_E4M3, fp4 = t->dtype == BL_DT_I8;
    *kind = bf16 ? BL_W_BF16 : fp8 ? BL_W_FP8 : fp4 ? BL_W_FP4 : BL_W_F32;
    switch (f) {
    case DENSE: return bf16 || fp8 ? BL_OK : wrong_dtype(r, t, "F8_E4M3 or BF16");
    case EXPERT: return bf16 || fp8 || fp4 ? BL_OK : wrong_dtype(r, t, "I8 (packed fp4), F8_E4M3 or BF16");
    case BF16:
    case BF16_VECTOR: return bf16 ? BL_OK : wrong_dtype(r, t, "BF16");
    case F32:
    case F32_VECTOR: break;
    }
    return t->dtype == BL_DT_F32 ? BL_OK : wrong_dtype(r, t, "F32");
}

static bool quantised(const bl_matrix *m)
{
    return m->kind == BL_W_FP8 || m->kind == BL_W_FP4;
}

/* The scale of a weight: must be there for quantised ones and absent for others. */
static bl_status resolve_scale(resolver *r, const bl_tensor *weight, const bl_matrix *m, bl_handle h)
{
    char name[512];
    scale_name(name, sizeof name, weight->name);
    const bl_tensor *t = bl_checkpoint_find(r->c, name);
    if (!quantised(m)) return t ? bad(r, name, "is a scale whose weight is not quantised") : BL_OK;
    if (!t) return bad(r, name, "is missing");
    if (t->dtype != BL_DT_F8_E8M0) return wrong_dtype(r, t, "F8_E8M0");
    const uint64_t rows = (uint64_t)m->rows, cols = (uint64_t)m->cols, blocks = (cols + 31) / 32;
    const uint64_t shape[3] = {(uint64_t)h.count, m->kind == BL_W_FP8 ? (rows + 31) / 32 : rows, blocks};
    const uint32_t ndim = weight->ndim; /* 3 when stacked */
    BL_TRY(expect_shape(r, t, shape + (3 - ndim), ndim));
    h.tensor = t;
    h.bytes = t->nbytes;
    h.scale = true;
    return add_handle(r, h);
}

/* A tensor that holds count views of rows x cols each, view_step bytes apart; stacked adds the leading dimension. */
static bl_status resolve(resolver *r, const char *name, form f, int64_t rows, int64_t cols, bl_matrix *view, size_t view_step,
                         int count, bool stacked)
{
    const bl_tensor *t = NULL;
    bl_weight_kind kind = f == EXPERT ? BL_W_FP4 : f == DENSE ? BL_W_FP8 : f == BF16 || f == BF16_VECTOR ? BL_W_BF16 : BL_W_F32;
    if (r->c) {
        BL_TRY(find(r, name, &t));
        BL_TRY(kind_of(r, t, f, &kind));
        const uint64_t stored = (uint64_t)(kind == BL_W_FP4 ? cols / 2 : cols);
        const uint64_t shape[3] = {(uint64_t)count, (uint64_t)rows, stored};
        const uint32_t ndim = f == BF16_VECTOR || f == F32_VECTOR ? 1 : stacked ? 3 : 2;
        BL_TRY(expect_shape(r, t, shape + (3 - ndim), ndim));
    }
    for (int i = 0; i < count; i++) {
        bl_matrix *m = (bl_matrix *)((char *)view + (size_t)i * view_step);
        *m = (bl_matrix){.kind = kind, .rows = rows, .cols = cols};
    }
    const bl_handle h = {.tensor = t, .bytes = t ? t->nbytes : 0, .view = view, .view_step = view_step, .count = count};
    BL_TRY(add_handle(r, h));
    return t && (f == DENSE || f == EXPERT) ? resolve_scale(r, t, view, h) : BL_OK;
}

/* Stacked as in a packed model, or one tensor for each expert as released. */
static bl_status resolve_experts(resolver *r, bl_layer *l, const char *which, size_t at, int64_t rows, int64_t cols)
{
    char name[512];
    const int count = r->shard->experts.count;
    bl_matrix *first = (bl_matrix *)((char *)l->experts + at);
    snprintf(name, sizeof name, "layers.%d.ffn.experts.%s.weight", l->index, which);
    if (!r->c || bl_checkpoint_find(r->c, name)) return resolve(r, name, EXPERT, rows, cols, first, sizeof(bl_expert), count, true);
    for (int e = 0; e < count; e++) {
        bl_matrix *m = (bl_matrix *)((char *)(l->experts + e) + at);
        snprintf(name, sizeof name, "layers.%d.ffn.experts.%d.%s.weight", l->index, r->shard->experts.first + e, which);
        BL_TRY(resolve(r, name, EXPERT, rows, cols, m, sizeof(bl_expert), 1, false));
    }
    return BL_OK;
}

/* The tensor has all rows, of which the shard's are used. */
static bl_status resolve_table(resolver *r, bl_layer *l)
{
    const bl_config *c = r->config;
    const uint64_t rows = (uint64_t)c->engram_num_embeddings[l->engram_slot], width = (uint64_t)c->engram_head_dim;
    char name[512];
    const bl_tensor *codes, *scale;
    const bl_rows held = bl_shard_engram_rows(r->shard, (int64_t)rows);
    l->engram.table = (bl_matrix){.kind = BL_W_FP8, .rows = held.count, .cols = (int64_t)width};
    if (!r->c) return add_handle(r, (bl_handle){.view = &l->engram.table, .count = 1, .host = true});
    snprintf(name, sizeof name, "layers.%d.engram.embed.weight", l->index);
    BL_TRY(find(r, name, &codes));
    if (codes->dtype != BL_DT_F8_E4M3) return wrong_dtype(r, codes, "F8_E4M3");
    BL_TRY(expect_shape(r, codes, (const uint64_t[]){rows, width}, 2));
    snprintf(name, sizeof name, "layers.%d.engram.embed.scale", l->index);
    BL_TRY(find(r, name, &scale));
    if (scale->dtype != BL_DT_F8_E8M0) return wrong_dtype(r, scale, "F8_E8M0");
    BL_TRY(expect_shape(r, scale, (const uint64_t[]){rows, width / 32}, 2));
    const uint64_t first = held.count ? (uint64_t)held.first : 0, count = held.count ? (uint64_t)held.count : 1; /* none: one that is not read */
    bl_handle h = {.tensor = codes, .first = first * width, .bytes = count * width, .view = &l->engram.table, .count = 1, .host = true};
    BL_TRY(add_handle(r, h));
    h.tensor = scale;
    h.first = first * (width / 32);
    h.bytes = count * (width / 32);
    h.scale = true;
    return add_handle(r, h);
}

static bool applies(when w, const bl_layer *l)
{
    switch (w) {
    case ALWAYS: break;
    case KV_SOURCE: return l->kv_source;
    case POOLED: return l->kv_source && l->ratio > 1;
    case INDEX_SOURCE: return l->index_source;
    case ENGRAM: return l->engram_slot >= 0;
    }
    return true;
}

static void set_role(bl_layer *l, const bl_config *c, int index)
{
    const int source = bl_config_kv_source(c, index), candidates = c->candidate_source_layer_id;
    l->index = index;
    l->ratio = c->compress_ratios[index];
    l->kv_slot = -1;
    for (int i = 0; source >= 0 && i < c->kv_source_count; i++)
        if (c->kv_source_layer_ids[i] == source) l->kv_slot = i;
    l->kv_source = bl_config_is_kv_source(c, index);
    l->index_source = bl_config_is_index_source(c, index);
    l->candidates = l->index_source && index == candidates;
    l->filtered = l->index_source && candidates >= 0 && index > candidates;
    l->engram_slot = bl_config_engram_index(c, index);
}

/* Gate and up projection read one activation: both its rounded form or both the plain one. */
static bl_status check_alike(const resolver *r, const bl_layer *l)
{
    bool alike = quantised(&l->shared.w1) == quantised(&l->shared.w3);
    for (int e = 0; e < r->shard->experts.count; e++) alike = alike && quantised(&l->experts[e].w1) == quantised(&l->experts[e].w3);
    char name[64];
    snprintf(name, sizeof name, "layers.%d.ffn", l->index);
    return alike ? BL_OK : bad(r, name, "has an expert with w1 and w3 of which only one is quantised");
}

static bl_status resolve_layer(resolver *r, bl_layer *l)
{
    char name[512];
    l->experts = bl_arena_array(&r->w->arena, (size_t)r->shard->experts.count, sizeof *l->experts);
    if (!l->experts) return out_of_memory(r);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        if (!applies(f->when, l)) continue;
        snprintf(name, sizeof name, "layers.%d.%s", l->index, f->name);
        bl_matrix *view = (bl_matrix *)((char *)l + f->at);
        BL_TRY(resolve(r, name, f->form, r->dims[f->rows], r->dims[f->cols], view, 0, 1, false));
    }
    BL_TRY(resolve_experts(r, l, "w1", offsetof(bl_expert, w1), r->dims[INTER], r->dims[HIDDEN]));
    BL_TRY(resolve_experts(r, l, "w3", offsetof(bl_expert, w3), r->dims[INTER], r->dims[HIDDEN]));
    BL_TRY(resolve_experts(r, l, "w2", offsetof(bl_expert, w2), r->dims[HIDDEN], r->dims[INTER]));
    BL_TRY(check_alike(r, l));
    return l->engram_slot >= 0 ? resolve_table(r, l) : BL_OK;
}

static bl_status resolve_all(resolver *r)
{
    bl_weights *w = r->w;
    const bl_shard *shard = r->shard;
    measure(r);
    BL_TRY(resolve(r, "embed.weight", BF16, shard->vocab.count, r->dims[HIDDEN], &w->embed, 0, 1, false));
    BL_TRY(resolve(r, "norm.weight", BF16_VECTOR, 1, r->dims[HIDDEN], &w->norm, 0, 1, false));
    BL_TRY(resolve(r, "head.weight", BF16, shard->vocab.count, r->dims[HIDDEN], &w->head, 0, 1, false));
    w->layer_count = shard->layers.count;
    w->layers = bl_arena_array(&w->arena, (size_t)w->layer_count, sizeof *w->layers);
    if (!w->layers) return out_of_memory(r);
    for (int i = 0; i < w->layer_count; i++) {
        set_role(&w->layers[i], r->config, shard->layers.first + i);
        BL_TRY(resolve_layer(r, &w->layers[i]));
    }
    return BL_OK;
}

bl_status bl_weights_resolve(bl_weights *out, const bl_checkpoint *c, const bl_shard *shard, bl_error *err)
{
    resolver r = {.w = out, .config = &c->config, .c = c, .shard = shard, .err = err};
    return resolve_all(&r);
}

bl_status bl_weights_describe(bl_weights *out, const bl_config *c, const bl_shard *shard, bl_error *err)
{
    resolver r = {.w = out, .config = c, .shard = shard, .err = err};
    return resolve_all(&r);
}
