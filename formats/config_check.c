#include "formats/config_check.h"

typedef struct checker {
    const bl_config *c;
    const char *path;
    bl_error *err;
} checker;

static bl_status bad(const checker *k, const char *key, const char *what)
{
    return bl_fail(k->err, BL_E_INPUT, k->path, key, -1, "%s", what);
}

/* Activations that meet quantised weights are rounded in groups of 32 along the inner dimension. */
static bl_status multiple_of_32(const checker *k, const char *key, int64_t value)
{
    return value % 32 == 0 ? BL_OK
                           : bl_fail(k->err, BL_E_INPUT, k->path, key, -1,
                                     "gives an inner dimension of %lld, no multiple of 32", (long long)value);
}

static bl_status product_fits(const checker *k, const char *key, int64_t a, int64_t b)
{
    return a * b <= 1 << 30 ? BL_OK : bad(k, key, "makes a matrix dimension of more than 2^30");
}

static bl_status check_dims(const checker *k)
{
    const bl_config *c = k->c;
    BL_TRY(product_fits(k, "head_dim", c->num_attention_heads, c->head_dim));
    BL_TRY(product_fits(k, "o_lora_rank", c->o_groups, c->o_lora_rank));
    BL_TRY(product_fits(k, "index_head_dim", c->index_n_heads, c->index_head_dim));
    BL_TRY(multiple_of_32(k, "hidden_size", c->hidden_size));
    BL_TRY(multiple_of_32(k, "moe_intermediate_size", c->moe_intermediate_size));
    BL_TRY(multiple_of_32(k, "head_dim", c->head_dim));
    BL_TRY(multiple_of_32(k, "q_lora_rank", c->q_lora_rank));
    BL_TRY(multiple_of_32(k, "o_lora_rank", (int64_t)c->o_groups * c->o_lora_rank));
    BL_TRY(multiple_of_32(k, "index_head_dim", c->index_head_dim));
    if ((int64_t)c->num_attention_heads * c->head_dim % c->o_groups != 0) {
        return bad(k, "o_groups", "does not divide num_attention_heads * head_dim");
    }
    if (c->qk_rope_head_dim % 2 != 0) {
        return bad(k, "qk_rope_head_dim", "must be even");
    }
    if (c->qk_rope_head_dim > c->head_dim) {
        return bad(k, "qk_rope_head_dim", "is larger than head_dim");
    }
    if (c->index_source_count > 0 && c->qk_rope_head_dim > c->index_head_dim) {
        return bad(k, "index_head_dim", "is smaller than qk_rope_head_dim");
    }
    if (c->num_experts_per_tok > c->n_routed_experts) {
        return bad(k, "num_experts_per_tok", "is larger than n_routed_experts");
    }
    return BL_OK;
}

/* Every compressed layer reads the latents of one source and the selection of another: both must exist and
 * count alike. */
static bl_status check_layer(const checker *k, int layer)
{
    const bl_config *c = k->c;
    int ratio = c->compress_ratios[layer], kv = bl_config_kv_source(c, layer),
        index = bl_config_index_source(c, layer);
    if (ratio == 0) {
        return BL_OK;
    }
    if (kv < 0) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "kv_source_layer_ids", -1, "has no source for layer %d",
                       layer);
    }
    if (index < 0) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "index_source_layer_ids", -1,
                       "has no source for layer %d", layer);
    }
    if (c->compress_ratios[kv] != ratio) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "compress_ratios", -1,
                       "is %d for layer %d but %d for its source layer %d", ratio, layer,
                       c->compress_ratios[kv], kv);
    }
    if (c->compress_ratios[index] < ratio) { /* the selection would reach past the latents */
        return bl_fail(k->err, BL_E_INPUT, k->path, "compress_ratios", -1,
                       "is %d for layer %d but %d for its index source %d", ratio, layer,
                       c->compress_ratios[index], index);
    }
    return BL_OK;
}

/* Later index sources pick among the candidates of one: it must be an index source, and they must read the
 * same keys. */
static bl_status check_candidates(const checker *k)
{
    const bl_config *c = k->c;
    int source = c->candidate_source_layer_id;
    for (int i = 0; source >= 0 && i < c->index_source_count; i++) {
        int layer = c->index_source_layer_ids[i];
        if (layer <= source || !bl_config_is_index_source(c, layer)) {
            continue;
        }
        if (!bl_config_is_index_source(c, source)) {
            return bad(k, "candidate_source_layer_id", "is not among index_source_layer_ids");
        }
        if (bl_config_kv_source(c, layer) != bl_config_kv_source(c, source)) {
            return bl_fail(k->err, BL_E_INPUT, k->path, "candidate_source_layer_id", -1,
                           "the later index source %d reads the keys of another KV source", layer);
        }
    }
    return BL_OK;
}

static bl_status check_compression(const checker *k)
{
    const bl_config *c = k->c;
    for (int i = 0; i < c->num_hidden_layers; i++) {
        BL_TRY(check_layer(k, i));
    }
    for (int i = 0; i < c->num_nextn_predict_layers; i++) {
        if (c->compress_ratios[c->num_hidden_layers + i] != 0) {
            return bad(k, "compress_ratios", "must be 0 for the draft layers");
        }
    }
    return check_candidates(k);
}

static bl_status check_tokens(const checker *k)
{
    const bl_config *c = k->c;
    const struct {
        const char *key;
        int id;
    } tokens[] = {{"bos_token_id", c->bos_token_id},
                  {"eos_token_id", c->eos_token_id},
                  {"pad_token_id", c->pad_token_id},
                  {"image_token_id", c->image_token_id},
                  {"engram_pad_token_id", c->engram_count ? c->engram_pad_token_id : -1},
                  {"dspark_noise_token_id", c->num_nextn_predict_layers ? c->dspark_noise_token_id : -1}};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        if (tokens[i].id >= c->vocab_size) {
            return bl_fail(k->err, BL_E_INPUT, k->path, tokens[i].key, -1, "is %d, vocab_size is %d",
                           tokens[i].id, c->vocab_size);
        }
    }
    return BL_OK;
}

static bl_status check_engram(const checker *k)
{
    const bl_config *c = k->c;
    if (c->engram_count == 0) {
        return BL_OK;
    }
    BL_TRY(product_fits(k, "engram_head_dim", (int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads,
                        c->engram_head_dim));
    BL_TRY(multiple_of_32(k, "engram_head_dim", c->engram_head_dim));
    if (c->engram_compressed_vocab_size > c->vocab_size) {
        return bad(k, "engram_compressed_vocab_size", "is larger than vocab_size");
    }
    return BL_OK;
}

static bl_status check_drafts(const checker *k)
{
    const bl_config *c = k->c;
    if (c->num_nextn_predict_layers == 0) {
        return BL_OK;
    }
    if (c->dspark_target_count == 0) {
        return bad(k, "dspark_target_layer_ids", "is missing or empty");
    }
    if (c->dspark_num_experts_per_tok > c->dspark_n_routed_experts) {
        return bad(k, "dspark_num_experts_per_tok", "is larger than dspark_n_routed_experts");
    }
    return BL_OK;
}

bl_status bl_config_check(const bl_config *c, const char *path, bl_error *err)
{
    const checker k = {c, path, err};
    BL_TRY(check_dims(&k));
    BL_TRY(check_compression(&k));
    BL_TRY(check_tokens(&k));
    BL_TRY(check_engram(&k));
    return check_drafts(&k);
}

/* The last entry of an ascending list that is <= layer; -1 when there is none. */
static int latest(const int *list, int count, int layer)
{
    int found = -1;
    for (int i = 0; i < count && list[i] <= layer; i++) {
        found = list[i];
    }
    return found;
}

static bool compressed(const bl_config *c, int layer)
{
    return layer >= 0 && layer < c->num_hidden_layers && c->compress_ratios[layer] > 0;
}

int bl_config_kv_source(const bl_config *c, int layer)
{
    return compressed(c, layer) ? latest(c->kv_source_layer_ids, c->kv_source_count, layer) : -1;
}

int bl_config_index_source(const bl_config *c, int layer)
{
    return compressed(c, layer) ? latest(c->index_source_layer_ids, c->index_source_count, layer) : -1;
}

bool bl_config_is_kv_source(const bl_config *c, int layer)
{
    return bl_config_kv_source(c, layer) == layer && layer >= 0;
}

bool bl_config_is_index_source(const bl_config *c, int layer)
{
    return bl_config_index_source(c, layer) == layer && layer >= 0;
}

int bl_config_engram_index(const bl_config *c, int layer)
{
    for (int i = 0; i < c->engram_count; i++) {
        if (c->engram_layer_ids[i] == layer) {
            return i;
        }
    }
    return -1;
}
