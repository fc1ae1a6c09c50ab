/* Reading config.json: keys into fields, one by one (config_keys.h). Checks across fields are config_check.c. */
#include "formats/config.h"

#include "formats/config_check.h"
#include "formats/config_keys.h"

#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXT ((size_t)16 << 20)

#define FIELD(name, min, max)                                                                                \
    {                                                                                                        \
#name, offsetof(bl_config, name), min, max                                                           \
    }
#define MAX_WIDTH (1 << 20) /* of one dimension; products are checked apart */

static const bl_key_int required_ints[] = {
    FIELD(vocab_size, 1, 1 << 28),
    FIELD(hidden_size, 32, MAX_WIDTH),
    FIELD(moe_intermediate_size, 32, MAX_WIDTH),
    FIELD(num_hidden_layers, 1, BL_MAX_LAYERS),
    FIELD(num_attention_heads, 1, MAX_WIDTH),
    FIELD(head_dim, 32, MAX_WIDTH),
    FIELD(qk_rope_head_dim, 2, MAX_WIDTH),
    FIELD(q_lora_rank, 32, MAX_WIDTH),
    FIELD(o_lora_rank, 1, MAX_WIDTH),
    FIELD(o_groups, 1, MAX_WIDTH),
    FIELD(n_routed_experts, 1, 1 << 16),
    FIELD(n_shared_experts, 1, 1),
    FIELD(num_experts_per_tok, 1, 1 << 16),
    FIELD(sliding_window, 1, 1 << 24),
    FIELD(hc_mult, BL_HC_MULT, BL_HC_MULT),
    FIELD(hc_sinkhorn_iters, 1, 1000),
};
static const bl_key_int index_ints[] = {
    /* needed when any layer is compressed */
    FIELD(index_n_heads, 1, MAX_WIDTH),
    FIELD(index_head_dim, 32, MAX_WIDTH),
    FIELD(index_topk, 1, 1 << 24),
};
static const bl_key_int candidate_ints[] = {
    FIELD(candidate_topk_blocks, 1, 1 << 28),
    FIELD(candidate_block_size, 1, 1 << 24),
};
static const bl_key_int engram_ints[] = {
    FIELD(engram_max_ngram_size, 2, 16),
    FIELD(engram_n_heads, 1, 1 << 10),
    FIELD(engram_head_dim, 32, MAX_WIDTH),
    FIELD(engram_pad_token_id, 0, INT_MAX),
    FIELD(engram_compressed_vocab_size, 1, INT_MAX),
};
static const bl_key_int draft_ints[] = {
    FIELD(dspark_block_size, 1, 1 << 16),          FIELD(dspark_noise_token_id, 0, INT_MAX),
    FIELD(dspark_markov_rank, 1, MAX_WIDTH),       FIELD(dspark_n_routed_experts, 1, 1 << 16),
    FIELD(dspark_num_experts_per_tok, 1, 1 << 16),
};
static const bl_key_int token_ints[] = {
    /* -1 when absent */
    FIELD(bos_token_id, 0, INT_MAX),
    FIELD(eos_token_id, 0, INT_MAX),
    FIELD(pad_token_id, 0, INT_MAX),
    FIELD(image_token_id, 0, INT_MAX),
};
#define READ_INTS(k, c, table, required) bl_keys_ints(k, c, table, sizeof(table) / sizeof *(table), required)

static bl_status read_fixed(const bl_keys *k, bl_config *c)
{
    static const char *const strings[][2] = {
        {"hidden_act", "silu"}, {"scoring_func", "sqrtsoftplus"}, {"topk_method", "noaux_tc"}};
    static const char *const off[] = {"attention_bias", "tie_word_embeddings"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        BL_TRY(bl_keys_string(k, bl_keys_find(k, strings[i][0]), strings[i][0], strings[i][1]));
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        bool on;
        BL_TRY(bl_keys_bool(k, off[i], false, &on));
        if (on) {
            return bl_keys_bad(k, off[i], "is true, only false is supported");
        }
    }
    int64_t heads = 1;
    if (bl_keys_find(k, "num_key_value_heads").kind != BL_JSON_NONE) {
        BL_TRY(bl_keys_i64(k, "num_key_value_heads", 1, 1, &heads));
    }
    return BL_OK;
}

static bl_status read_numbers(const bl_keys *k, bl_config *c)
{
    BL_TRY(bl_keys_i64(k, "max_position_embeddings", 1, (int64_t)1 << 40, &c->max_position_embeddings));
    BL_TRY(bl_keys_float(k, "hc_eps", 0, 1, &c->hc_eps));
    BL_TRY(bl_keys_float(k, "rms_norm_eps", 0, 1, &c->rms_norm_eps));
    BL_TRY(bl_keys_float(k, "swiglu_limit", 0, 1e30, &c->swiglu_limit));
    BL_TRY(bl_keys_float(k, "routed_scaling_factor", 1e-30, 1e30, &c->routed_scaling_factor));
    return bl_keys_bool(k, "norm_topk_prob", true, &c->norm_topk_prob);
}

/* Positions beyond the trained length. y is the object of that key. */
static bl_status read_yarn(const bl_keys *k, bl_config *c, const char *key, bl_json y)
{
    static const char *const fields[] = {"rope_type", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings"};
    enum { TYPE, FACTOR, FAST, SLOW, ORIGINAL, FIELDS };
    char name[FIELDS][64];
    for (int i = 0; i < FIELDS; i++) {
        snprintf(name[i], sizeof name[i], "%s.%s", key, fields[i]);
    }
    if (y.kind != BL_JSON_OBJECT) {
        return bl_keys_bad(k, key, "must be an object");
    }
    bl_json type = bl_json_get(y, "rope_type");
    if (type.kind == BL_JSON_NONE) {
        type = bl_json_get(y, "type");
    }
    if (bl_json_equals(type, "default")) {
        return BL_OK;
    }
    if (type.kind != BL_JSON_STRING) {
        return bl_keys_bad(k, name[TYPE], "must be a string");
    }
    BL_TRY(bl_keys_string(k, type, name[TYPE], "yarn"));
    c->yarn = true;
    BL_TRY(bl_keys_to_double(k, name[FACTOR], bl_json_get(y, fields[FACTOR]), 1e-3, 1e6, &c->rope_factor));
    BL_TRY(bl_keys_to_double(k, name[FAST], bl_json_get(y, fields[FAST]), 1e-6, 1e9, &c->rope_beta_fast));
    BL_TRY(bl_keys_to_double(k, name[SLOW], bl_json_get(y, fields[SLOW]), 1e-6, 1e9, &c->rope_beta_slow));
    return bl_keys_to_int(k, name[ORIGINAL], bl_json_get(y, fields[ORIGINAL]), 0, (int64_t)1 << 40,
                  &c->rope_original_max_position_embeddings);
}

/* rope_theta and rope_scaling as released; a config that transformers 5 has saved has both in rope_parameters instead. */
static bl_status read_rotation(const bl_keys *k, bl_config *c)
{
    bl_json scaling = bl_keys_find(k, "rope_scaling"), both = bl_keys_find(k, "rope_parameters");
    if (both.kind == BL_JSON_NONE) {
        BL_TRY(bl_keys_double(k, "rope_theta", 1, 1e30, &c->rope_theta));
        return scaling.kind == BL_JSON_NONE ? BL_OK : read_yarn(k, c, "rope_scaling", scaling);
    }
    if (scaling.kind != BL_JSON_NONE || bl_keys_find(k, "rope_theta").kind != BL_JSON_NONE) {
        return bl_keys_bad(k, "rope_parameters", "stands beside rope_theta or rope_scaling, which say the same in another form: keep one");
    }
    BL_TRY(read_yarn(k, c, "rope_parameters", both));
    return bl_keys_to_double(k, "rope_parameters.rope_theta", bl_json_get(both, "rope_theta"), 1, 1e30, &c->rope_theta);
}

static bl_status read_compression(const bl_keys *k, bl_config *c)
{
    int ratios, compressed = 0;
    if (bl_keys_find(k, "compress_ratios").kind == BL_JSON_NONE) {
        return bl_keys_bad(k, "compress_ratios", "is missing");
    }
    BL_TRY(bl_keys_int_list(k, "compress_ratios", 0, 2, &c->compress_ratios, &ratios));
    if (ratios != c->num_hidden_layers + c->num_nextn_predict_layers) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "compress_ratios", -1,
                       "has %d entr%s, num_hidden_layers + num_nextn_predict_layers is %d", ratios, ratios == 1 ? "y" : "ies",
                       c->num_hidden_layers + c->num_nextn_predict_layers);
    }
    BL_TRY(bl_keys_layers(k, "kv_source_layer_ids", c->num_hidden_layers, &c->kv_source_layer_ids, &c->kv_source_count));
    BL_TRY(bl_keys_layers(k, "index_source_layer_ids", c->num_hidden_layers, &c->index_source_layer_ids, &c->index_source_count));
    for (int i = 0; i < c->num_hidden_layers; i++) {
        compressed += c->compress_ratios[i] > 0;
    }
    BL_TRY(READ_INTS(k, c, index_ints, compressed > 0));
    if (compressed > 0) {
        BL_TRY(bl_keys_double(k, "compress_rope_theta", 1, 1e30, &c->compress_rope_theta));
    }
    int64_t source = -1;
    if (bl_keys_find(k, "candidate_source_layer_id").kind != BL_JSON_NONE) {
        BL_TRY(bl_keys_i64(k, "candidate_source_layer_id", -1, c->num_hidden_layers - 1, &source));
    }
    c->candidate_source_layer_id = (int)source;
    return READ_INTS(k, c, candidate_ints, source >= 0);
}

static bl_status read_engram(const bl_keys *k, bl_config *c)
{
    int tables;
    BL_TRY(bl_keys_layers(k, "engram_layer_ids", c->num_hidden_layers, &c->engram_layer_ids, &c->engram_count));
    if (c->engram_count == 0) {
        return BL_OK;
    }
    BL_TRY(bl_keys_list(k, "engram_num_embeddings", 1, (int64_t)1 << 40, &c->engram_num_embeddings, &tables));
    if (tables != c->engram_count) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "engram_num_embeddings", -1,
                       "has %d entr%s, engram_layer_ids has %d", tables, tables == 1 ? "y" : "ies", c->engram_count);
    }
    BL_TRY(READ_INTS(k, c, engram_ints, true));
    return bl_keys_i64(k, "engram_vocab_size", 2, (int64_t)1 << 40, &c->engram_vocab_size);
}

static bl_status read_drafts(const bl_keys *k, bl_config *c)
{
    if (c->num_nextn_predict_layers == 0) {
        return BL_OK;
    }
    BL_TRY(READ_INTS(k, c, draft_ints, true));
    return bl_keys_layers(k, "dspark_target_layer_ids", c->num_hidden_layers, &c->dspark_target_layer_ids, &c->dspark_target_count);
}

static bl_status read_quantization(const bl_keys *k, bl_config *c)
{
    bl_json q = bl_keys_find(k, "quantization_config"), e = bl_keys_find(k, "engram_quant");
    bl_keys quiet = *k;
    quiet.err = NULL;
    c->fp8_block_rows = 32;
    if (q.kind != BL_JSON_NONE) {
        if (q.kind != BL_JSON_OBJECT) {
            return bl_keys_bad(k, "quantization_config", "must be an object");
        }
        c->quantized = true;
        if (!bl_json_equals(bl_json_get(q, "quant_method"), "fp8")) {
            return bl_keys_bad(k, "quantization_config.quant_method", "must be 'fp8'");
        }
        BL_TRY(bl_keys_string(k, bl_json_get(q, "scale_fmt"), "quantization_config.scale_fmt", "ue8m0"));
        bl_json block = bl_json_get(q, "weight_block_size");
        if (bl_keys_block(&quiet, block, "", 1, 32) == BL_OK) {
            c->fp8_block_rows = 1;
        } else {
            BL_TRY(bl_keys_block(k, block, "quantization_config.weight_block_size", 32, 32));
        }
        BL_TRY(bl_keys_string(k, bl_json_get(q, "expert_dtype"), "quantization_config.expert_dtype", "fp4"));
        c->experts_fp4 = bl_json_get(q, "expert_dtype").kind == BL_JSON_STRING;
    }
    if (e.kind != BL_JSON_NONE) {
        if (e.kind != BL_JSON_OBJECT) {
            return bl_keys_bad(k, "engram_quant", "must be an object");
        }
        c->engram_quant = true;
        BL_TRY(bl_keys_string(k, bl_json_get(e, "dtype"), "engram_quant.dtype", "float8_e4m3fn"));
        BL_TRY(bl_keys_string(k, bl_json_get(e, "scale_dtype"), "engram_quant.scale_dtype", "float8_e8m0fnu"));
        BL_TRY(bl_keys_block(k, bl_json_get(e, "block"), "engram_quant.block", 1, 32));
    }
    return BL_OK;
}

static bl_status read_model_type(const bl_keys *k, bl_config *c)
{
    bl_json type = bl_json_get(k->top, "model_type");
    char have[64];
    if (type.kind != BL_JSON_STRING) {
        return bl_keys_bad(k, "model_type", type.kind == BL_JSON_NONE ? "is missing" : "must be a string");
    }
    if (bl_json_equals(type, "deepseek_v41") || bl_json_equals(type, "deepseek_v4.1")) {
        return BL_OK;
    }
    bl_json_string(type, have, sizeof have);
    return bl_fail(k->err, BL_E_INPUT, k->path, "model_type", -1, "is '%s', only 'deepseek_v41' is supported",
                   have);
}

static bl_status read_all(const bl_keys *k, bl_config *c)
{
    int64_t drafts = 0;
    BL_TRY(read_model_type(k, c));
    BL_TRY(READ_INTS(k, c, required_ints, true));
    if (bl_keys_find(k, "num_nextn_predict_layers").kind != BL_JSON_NONE) {
        BL_TRY(bl_keys_i64(k, "num_nextn_predict_layers", 0, BL_MAX_LAYERS, &drafts));
    }
    c->num_nextn_predict_layers = (int)drafts;
    BL_TRY(read_fixed(k, c));
    BL_TRY(read_numbers(k, c));
    BL_TRY(read_rotation(k, c));
    BL_TRY(read_compression(k, c));
    BL_TRY(read_engram(k, c));
    BL_TRY(read_drafts(k, c));
    c->bos_token_id = c->eos_token_id = c->pad_token_id = c->image_token_id = -1;
    BL_TRY(READ_INTS(k, c, token_ints, false));
    c->has_vision = bl_json_get(k->top, "vision_config").kind == BL_JSON_OBJECT;
    BL_TRY(read_quantization(k, c));
    return bl_config_check(c, k->path, k->err);
}

bl_status bl_config_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_config *out,
                          bl_error *err)
{
    const bl_json_limits limits = {.max_bytes = MAX_TEXT};
    bl_json root;
    memset(out, 0, sizeof *out);
    BL_TRY(bl_json_parse(text, n, &limits, path, &root, err));
    if (root.kind != BL_JSON_OBJECT) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "is not a JSON object");
    }
    out->text = bl_arena_strndup(arena, text, n);
    out->text_bytes = n;
    if (!out->text) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    const bl_keys k = {.text = bl_json_get(root, "text_config"), .top = root, .path = path, .arena = arena, .err = err};
    if (k.text.kind != BL_JSON_NONE && k.text.kind != BL_JSON_OBJECT) {
        return bl_keys_bad(&k, "text_config", "must be an object");
    }
    out->nested = k.text.kind == BL_JSON_OBJECT;
    return read_all(&k, out);
}
