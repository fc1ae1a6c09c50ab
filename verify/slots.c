#include "verify/slots.h"

#include "formats/json.h"
#include "formats/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EXPERTS 200000 /* of all layers together: bounds the list; the released model has 15,744 */

typedef struct builder {
    const bl_config *c;
    bl_arena *arena;
    bl_slots *out;
    size_t cap, expected;
    bl_slot base;  /* group and layer of what is being listed */
    char pre[64];  /* name prefix, with its dot */
    bool nomem;
} builder;

static void grow(builder *b)
{
    size_t cap = b->cap ? 2 * b->cap : b->expected;
    bl_slot *slots = bl_arena_array(b->arena, cap, sizeof *slots);
    if (!slots) {
        b->nomem = true;
        return;
    }
    if (b->out->count) {
        memcpy(slots, b->out->slots, b->out->count * sizeof *slots);
    }
    b->out->slots = slots;
    b->cap = cap;
}

static bl_cut cut_of(bl_slot_kind kind, const char *name)
{
    static const struct {
        const char *name;
        bl_cut cut;
    } cuts[] = {{"attn.attn_sink", BL_CUT_HEADS},
                {"attn.wq_b.weight", BL_CUT_HEADS},
                {"attn.wo_a.weight", BL_CUT_GROUPS},
                {"attn.wo_b.weight", BL_CUT_GROUP_COLS},
                {"ffn.shared_experts.w1.weight", BL_CUT_INNER},
                {"ffn.shared_experts.w2.weight", BL_CUT_INNER_COLS},
                {"ffn.shared_experts.w3.weight", BL_CUT_INNER},
                {"embed.weight", BL_CUT_VOCAB},
                {"head.weight", BL_CUT_VOCAB}};
    if (kind == BL_SLOT_EXPERT || kind == BL_SLOT_TABLE) {
        return kind == BL_SLOT_EXPERT ? BL_CUT_EXPERTS : BL_CUT_TABLE;
    }
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        if (!strcmp(name, cuts[i].name)) {
            return cuts[i].cut;
        }
    }
    return BL_CUT_NONE;
}

static bl_slot *put(builder *b, bl_slot_kind kind, const char *name, uint32_t ndim, int64_t rows, int64_t cols)
{
    static bl_slot scratch;
    if (b->out->count == b->cap && !b->nomem) {
        grow(b);
    }
    char full[160];
    int n = snprintf(full, sizeof full, "%s%s", b->pre, name);
    char *copy = b->nomem ? NULL : bl_arena_strndup(b->arena, full, (size_t)n);
    if (!copy) {
        b->nomem = true;
        return &scratch;
    }
    bl_slot *s = &b->out->slots[b->out->count];
    *s = b->base;
    s->name = copy;
    s->kind = kind;
    s->cut = cut_of(kind, name);
    s->order = (uint32_t)b->out->count++;
    s->ndim = ndim;
    s->shape[0] = (uint64_t)rows;
    s->shape[1] = (uint64_t)cols;
    return s;
}

static void vector(builder *b, bl_slot_kind kind, const char *name, int64_t n)
{
    put(b, kind, name, 1, n, 1);
}

static void matrix(builder *b, bl_slot_kind kind, const char *name, int64_t rows, int64_t cols)
{
    put(b, kind, name, 2, rows, cols);
}

static void attention(builder *b, int layer)
{
    const bl_config *c = b->c;
    int64_t hidden = c->hidden_size, heads = c->num_attention_heads, dim = c->head_dim;
    vector(b, BL_SLOT_F32, "attn.attn_sink", heads);
    matrix(b, BL_SLOT_DENSE, "attn.wq_a.weight", c->q_lora_rank, hidden);
    vector(b, BL_SLOT_BF16, "attn.q_norm.weight", c->q_lora_rank);
    matrix(b, BL_SLOT_DENSE, "attn.wq_b.weight", heads * dim, c->q_lora_rank);
    matrix(b, BL_SLOT_DENSE, "attn.wkv.weight", dim, hidden);
    vector(b, BL_SLOT_BF16, "attn.kv_norm.weight", dim);
    matrix(b, BL_SLOT_DENSE, "attn.wo_a.weight", (int64_t)c->o_groups * c->o_lora_rank, heads * dim / c->o_groups);
    matrix(b, BL_SLOT_DENSE, "attn.wo_b.weight", hidden, (int64_t)c->o_groups * c->o_lora_rank);
    bool backbone = layer < c->num_hidden_layers;
    if (backbone && bl_config_is_kv_source(c, layer)) {
        matrix(b, BL_SLOT_BF16, "attn.compressor.wkv.weight", dim, hidden);
        if (c->compress_ratios[layer] > 1) {
            matrix(b, BL_SLOT_BF16, "attn.compressor.wgate.weight", dim, hidden);
        }
        vector(b, BL_SLOT_BF16, "attn.compressor.norm.weight", dim);
        matrix(b, BL_SLOT_BF16, "attn.indexer.wk.weight", c->index_head_dim, dim);
        vector(b, BL_SLOT_BF16, "attn.indexer.k_norm.weight", c->index_head_dim);
    }
    if (backbone && bl_config_is_index_source(c, layer)) {
        matrix(b, BL_SLOT_DENSE, "attn.indexer.wq_b.weight", (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
        matrix(b, BL_SLOT_BF16, "attn.indexer.weights_proj.weight", c->index_n_heads, hidden);
    }
    vector(b, BL_SLOT_BF16, "attn_norm.weight", hidden);
    vector(b, BL_SLOT_BF16, "ffn_norm.weight", hidden);
}

static void mixing(builder *b)
{
    static const char *const sublayers[] = {"hc_attn", "hc_ffn"};
    int64_t s = BL_HC_MULT, mixes = s * (s + 2);
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_fn", sublayers[i]);
        matrix(b, BL_SLOT_F32, name, mixes, s * b->c->hidden_size);
        snprintf(name, sizeof name, "%s_base", sublayers[i]);
        vector(b, BL_SLOT_F32, name, mixes);
        snprintf(name, sizeof name, "%s_scale", sublayers[i]);
        vector(b, BL_SLOT_F32, name, 3);
    }
}

static void expert_matrix(builder *b, bl_slot_kind kind, int expert, int part)
{
    int64_t hidden = b->c->hidden_size, inter = b->c->moe_intermediate_size;
    char name[64];
    if (kind == BL_SLOT_EXPERT) {
        snprintf(name, sizeof name, "ffn.experts.%d.w%d.weight", expert, part);
    } else {
        snprintf(name, sizeof name, "ffn.shared_experts.w%d.weight", part);
    }
    bl_slot *s = put(b, kind, name, 2, part == 2 ? hidden : inter, part == 2 ? inter : hidden);
    if (kind == BL_SLOT_EXPERT) {
        s->expert = expert;
        s->part = part;
    }
}

static void feed_forward(builder *b, int experts)
{
    matrix(b, BL_SLOT_BF16, "ffn.gate.weight", experts, b->c->hidden_size);
    vector(b, BL_SLOT_F32, "ffn.gate.bias", experts);
    vector(b, BL_SLOT_F32, "ffn.gate.bias_vl", experts);
    for (int e = 0; e < experts; e++) {
        for (int part = 1; part <= 3; part++) {
            expert_matrix(b, BL_SLOT_EXPERT, e, part);
        }
    }
    for (int part = 1; part <= 3; part++) {
        expert_matrix(b, BL_SLOT_DENSE, -1, part);
    }
}

static void engram(builder *b, int index)
{
    const bl_config *c = b->c;
    int64_t hidden = c->hidden_size;
    int64_t gathered = bl_config_engram_columns(c) * c->engram_head_dim;
    matrix(b, BL_SLOT_TABLE, "engram.embed.weight", c->engram_num_embeddings[index], c->engram_head_dim);
    matrix(b, BL_SLOT_DENSE, "engram.wkv.weight", hidden * (BL_HC_MULT + 1), gathered);
    matrix(b, BL_SLOT_BF16, "engram.q_weight", BL_HC_MULT, hidden);
    matrix(b, BL_SLOT_BF16, "engram.k_weight", BL_HC_MULT, hidden);
}

static void enter(builder *b, bl_slot_group group, int layer, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void enter(builder *b, bl_slot_group group, int layer, const char *fmt, ...)
{
    b->base = (bl_slot){.group = group, .layer = layer, .expert = -1};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->pre, sizeof b->pre, fmt, ap);
    va_end(ap);
}

static void backbone(builder *b)
{
    const bl_config *c = b->c;
    enter(b, BL_GROUP_MODEL, -1, "%s", "");
    matrix(b, BL_SLOT_BF16, "embed.weight", c->vocab_size, c->hidden_size);
    for (int layer = 0; layer < c->num_hidden_layers; layer++) {
        if (b->out->present && !b->out->present[layer]) {
            continue;
        }
        enter(b, BL_GROUP_MODEL, layer, "layers.%d.", layer);
        attention(b, layer);
        mixing(b);
        feed_forward(b, c->n_routed_experts);
        int e = bl_config_engram_index(c, layer);
        if (e >= 0) {
            engram(b, e);
        }
    }
    enter(b, BL_GROUP_MODEL, -1, "%s", "");
    vector(b, BL_SLOT_BF16, "norm.weight", c->hidden_size);
    matrix(b, BL_SLOT_BF16, "head.weight", c->vocab_size, c->hidden_size);
}

static void draft(builder *b)
{
    const bl_config *c = b->c;
    int64_t hidden = c->hidden_size, rank = c->dspark_markov_rank;
    for (int k = 0; k < c->num_nextn_predict_layers; k++) {
        enter(b, BL_GROUP_DSPARK, c->num_hidden_layers + k, "mtp.%d.", k);
        if (k == 0) {
            matrix(b, BL_SLOT_DENSE, "main_proj.weight", hidden, hidden * c->dspark_target_count);
            vector(b, BL_SLOT_BF16, "main_norm.weight", hidden);
        }
        attention(b, c->num_hidden_layers + k);
        mixing(b);
        feed_forward(b, c->dspark_n_routed_experts);
        if (k == c->num_nextn_predict_layers - 1) {
            vector(b, BL_SLOT_BF16, "norm.weight", hidden);
            matrix(b, BL_SLOT_BF16, "markov_head.embed.weight", c->vocab_size, rank);
            matrix(b, BL_SLOT_BF16, "markov_head.head.weight", c->vocab_size, rank);
            matrix(b, BL_SLOT_BF16, "confidence_head.proj.weight", 1, hidden + rank);
        }
    }
}

typedef struct vision_dims {
    uint64_t layers, hidden, inter, patch, downsample;
} vision_dims;

static bl_status vision_read(const bl_config *c, const char *path, vision_dims *v, bl_error *err)
{
    const struct {
        const char *key;
        uint64_t *value, most;
    } keys[] = {{"num_hidden_layers", &v->layers, BL_MAX_LAYERS},
                {"hidden_size", &v->hidden, 1 << 20},
                {"intermediate_size", &v->inter, 1 << 20},
                {"patch_size", &v->patch, 1 << 10},
                {"downsample_ratio", &v->downsample, 1 << 10}};
    bl_json root;
    BL_TRY(bl_json_parse(c->text, c->text_bytes, NULL, path, &root, err));
    bl_json vision = bl_json_get(root, "vision_config");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        bl_json value = bl_json_get(vision, keys[i].key);
        if (!bl_json_u64(value, keys[i].value) || *keys[i].value == 0 || *keys[i].value > keys[i].most) {
            char name[64];
            snprintf(name, sizeof name, "vision_config.%s", keys[i].key);
            return bl_fail(err, BL_E_INPUT, path, name, -1, "must be an integer from 1 to %llu",
                           (unsigned long long)keys[i].most);
        }
    }
    return BL_OK;
}

static bl_status vision(builder *b, const char *path, bl_error *err)
{
    vision_dims v;
    BL_TRY(vision_read(b->c, path, &v, err));
    int64_t h = (int64_t)v.hidden, wide = b->c->hidden_size;
    enter(b, BL_GROUP_VISION, -1, "vision.");
    matrix(b, BL_SLOT_BF16, "patch_embed.proj.weight", h, (int64_t)(3 * v.patch * v.patch));
    vector(b, BL_SLOT_BF16, "patch_embed.proj.bias", h);
    for (uint64_t i = 0; i < v.layers; i++) {
        enter(b, BL_GROUP_VISION, -1, "vision.blocks.%llu.", (unsigned long long)i);
        matrix(b, BL_SLOT_BF16, "attn.wqkv.weight", 3 * h, h);
        vector(b, BL_SLOT_BF16, "attn.wqkv.bias", 3 * h);
        matrix(b, BL_SLOT_BF16, "attn.wo.weight", h, h);
        vector(b, BL_SLOT_BF16, "attn.wo.bias", h);
        matrix(b, BL_SLOT_BF16, "mlp.w1.weight", (int64_t)(2 * v.inter), h);
        matrix(b, BL_SLOT_BF16, "mlp.w2.weight", h, (int64_t)v.inter);
        vector(b, BL_SLOT_BF16, "norm1.weight", h);
        vector(b, BL_SLOT_BF16, "norm2.weight", h);
    }
    enter(b, BL_GROUP_VISION, -1, "%s", "");
    vector(b, BL_SLOT_BF16, "vision.norm.weight", h);
    matrix(b, BL_SLOT_BF16, "aligner.w1.weight", wide, h * (int64_t)(v.downsample * v.downsample));
    vector(b, BL_SLOT_BF16, "aligner.w1.bias", wide);
    matrix(b, BL_SLOT_BF16, "aligner.w2.weight", wide, wide);
    vector(b, BL_SLOT_BF16, "aligner.w2.bias", wide);
    vector(b, BL_SLOT_BF16, "image_start", wide);
    vector(b, BL_SLOT_BF16, "image_end", wide);
    vector(b, BL_SLOT_BF16, "image_newline", wide);
    return BL_OK;
}

bl_status bl_slots_selection(const bl_config *c, const char *path, bl_arena *arena, bl_slots *out, bl_error *err)
{
    bl_json root, key, value;
    BL_TRY(bl_json_parse(c->text, c->text_bytes, NULL, path, &root, err));
    bl_json list = bl_json_get(root, BL_LAYERS_KEY);
    if (list.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    bool *present = bl_arena_array(arena, (size_t)c->num_hidden_layers, sizeof *present);
    if (!present) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    int64_t last = -1;
    bl_json_iter it = bl_json_begin(list);
    while (bl_json_next(&it, &key, &value)) {
        uint64_t layer;
        if (key.kind != BL_JSON_NONE || !bl_json_u64(value, &layer) || (int64_t)layer <= last ||
            layer >= (uint64_t)c->num_hidden_layers) {
            last = -1;
            break;
        }
        last = (int64_t)layer;
        present[layer] = true;
    }
    if (last < 0) {
        return bl_fail(err, BL_E_INPUT, path, BL_LAYERS_KEY, -1, "must be a list of ascending layer numbers below %d",
                       c->num_hidden_layers);
    }
    out->present = present;
    return BL_OK;
}

bl_status bl_slots_build(const bl_config *c, const char *path, bl_arena *arena, bl_slots *out, bl_error *err)
{
    *out = (bl_slots){.layers = c->num_hidden_layers};
    uint64_t experts = (uint64_t)c->num_hidden_layers * (uint64_t)c->n_routed_experts +
                       (uint64_t)c->num_nextn_predict_layers * (uint64_t)c->dspark_n_routed_experts;
    if (experts > MAX_EXPERTS) {
        return bl_fail(err, BL_E_INPUT, path, "n_routed_experts", -1, "%llu experts in all layers, the most is %d",
                       (unsigned long long)experts, MAX_EXPERTS);
    }
    BL_TRY(bl_slots_selection(c, path, arena, out, err));
    size_t layers = (size_t)c->num_hidden_layers + (size_t)c->num_nextn_predict_layers;
    builder b = {.c = c, .arena = arena, .out = out, .expected = 3 * experts + 32 * layers + 512}; /* a grown list leaves the former */
    backbone(&b);
    draft(&b);
    if (c->has_vision) {
        BL_TRY(vision(&b, path, err));
    }
    if (b.nomem) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory for the list of tensors");
    }
    return BL_OK;
}

bool bl_scale_name(char *buf, size_t cap, const char *weight)
{
    size_t stem = bl_stem(weight, ".weight");
    if (!stem || strlen(weight) >= cap) {
        return false;
    }
    snprintf(buf, cap, "%.*s.scale", (int)stem, weight);
    return true;
}

void bl_stacked_name(char *buf, size_t cap, const bl_slots *slots, const bl_slot *s, bool scale)
{
    bool stage = s->layer >= slots->layers;
    snprintf(buf, cap, "%s.%d.ffn.experts.w%d.%s", stage ? "mtp" : "layers", stage ? s->layer - slots->layers : s->layer,
             s->part, scale ? "scale" : "weight");
}
