/* Reading config.json: keys into fields, one by one. Checks across fields are config_check.c. */
#include "formats/config.h"

#include "formats/config_check.h"
#include "formats/json.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXT ((size_t)16 << 20)

typedef struct reader {
    bl_json text, top; /* keys are looked up in text_config, then at the top level */
    const char *path;
    bl_arena *arena;
    bl_config *c;
    bl_error *err;
} reader;

/* An int field. An absent or null key fails where it is required, and otherwise leaves the default. */
typedef struct int_field {
    const char *key;
    size_t at;
    int min, max;
} int_field;

#define FIELD(name, min, max)                                                                                \
    {                                                                                                        \
#name, offsetof(bl_config, name), min, max                                                           \
    }
#define MAX_WIDTH (1 << 20) /* of one dimension; products are checked apart */

static const int_field required_ints[] = {
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
static const int_field index_ints[] = {
    /* needed when any layer is compressed */
    FIELD(index_n_heads, 1, MAX_WIDTH),
    FIELD(index_head_dim, 32, MAX_WIDTH),
    FIELD(index_topk, 1, 1 << 24),
};
static const int_field candidate_ints[] = {
    FIELD(candidate_topk_blocks, 1, 1 << 28),
    FIELD(candidate_block_size, 1, 1 << 24),
};
static const int_field engram_ints[] = {
    FIELD(engram_max_ngram_size, 2, 16),
    FIELD(engram_n_heads, 1, 1 << 10),
    FIELD(engram_head_dim, 32, MAX_WIDTH),
    FIELD(engram_pad_token_id, 0, INT_MAX),
    FIELD(engram_compressed_vocab_size, 1, INT_MAX),
};
static const int_field draft_ints[] = {
    FIELD(dspark_block_size, 1, 1 << 16),          FIELD(dspark_noise_token_id, 0, INT_MAX),
    FIELD(dspark_markov_rank, 1, MAX_WIDTH),       FIELD(dspark_n_routed_experts, 1, 1 << 16),
    FIELD(dspark_num_experts_per_tok, 1, 1 << 16),
};
static const int_field token_ints[] = {
    /* -1 when absent */
    FIELD(bos_token_id, 0, INT_MAX),
    FIELD(eos_token_id, 0, INT_MAX),
    FIELD(pad_token_id, 0, INT_MAX),
    FIELD(image_token_id, 0, INT_MAX),
};

static bl_status bad(const reader *r, const char *key, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "%s", what);
}

/* The value of a key; NONE when it is absent or null. */
static bl_json find(const reader *r, const char *key)
{
    bl_json v = bl_json_get(r->text, key);
    if (v.kind == BL_JSON_NONE) {
        v = bl_json_get(r->top, key);
    }
    return v.kind == BL_JSON_NULL ? (bl_json){NULL, 0, BL_JSON_NONE} : v;
}

static bl_status to_int(const reader *r, const char *key, bl_json v, int64_t min, int64_t max, int64_t *out)
{
    double d;
    /* Trainers write 16.0 where they mean 16. */
    if (!bl_json_i64(v, out)) {
        if (!bl_json_double(v, &d) || d != floor(d) || fabs(d) > 9e15) {
            return bad(r, key, "must be an integer");
        }
        *out = (int64_t)d;
    }
    if (*out < min || *out > max) {
        return bl_fail(r->err, BL_E_INPUT, r->path, key, -1,
                       "is %" PRId64 ", must be from %" PRId64 " to %" PRId64, *out, min, max);
    }
    return BL_OK;
}

static bl_status read_i64(const reader *r, const char *key, int64_t min, int64_t max, int64_t *out)
{
    bl_json v = find(r, key);
    return v.kind == BL_JSON_NONE ? bad(r, key, "is missing") : to_int(r, key, v, min, max, out);
}

static bl_status read_ints(const reader *r, const int_field *f, size_t n, bool required)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        if (!required && find(r, f[i].key).kind == BL_JSON_NONE) {
            continue;
        }
        BL_TRY(read_i64(r, f[i].key, f[i].min, f[i].max, &value));
        int narrow = (int)value;
        memcpy((char *)r->c + f[i].at, &narrow, sizeof narrow);
    }
    return BL_OK;
}
#define READ_INTS(r, table, required) read_ints(r, table, sizeof(table) / sizeof *(table), required)

static bl_status to_double(const reader *r, const char *key, bl_json v, double min, double max, double *out)
{
    if (v.kind == BL_JSON_NONE) {
        return bad(r, key, "is missing");
    }
    if (!bl_json_double(v, out)) {
        return bad(r, key, "must be a finite number");
    }
    if (!(*out >= min && *out <= max)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "is %g, must be from %g to %g", *out, min, max);
    }
    return BL_OK;
}

static bl_status read_double(const reader *r, const char *key, double min, double max, double *out)
{
    return to_double(r, key, find(r, key), min, max, out);
}

static bl_status read_float(const reader *r, const char *key, double min, double max, float *out)
{
    double d;
    BL_TRY(read_double(r, key, min, max, &d));
    *out = (float)d;
    return BL_OK;
}

static bl_status read_bool(const reader *r, const char *key, bool fallback, bool *out)
{
    bl_json v = find(r, key);
    *out = fallback;
    return v.kind == BL_JSON_NONE || bl_json_bool(v, out) ? BL_OK : bad(r, key, "must be true or false");
}

/* A list of integers, each in [min, max]; an absent key is an empty list. */
static bl_status read_list(const reader *r, const char *key, int64_t min, int64_t max, const int64_t **out,
                           int *count)
{
    bl_json v = find(r, key), k, e;
    *count = 0;
    *out = NULL;
    if (v.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    size_t n = bl_json_count(v);
    if (v.kind != BL_JSON_ARRAY) {
        return bad(r, key, "must be a list of integers");
    }
    if (n > 2 * BL_MAX_LAYERS) {
        return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "has %zu entries, the most is %d", n,
                       2 * BL_MAX_LAYERS);
    }
    int64_t *list = bl_arena_array(r->arena, n, sizeof *list);
    if (!list) {
        return bl_fail(r->err, BL_E_NOMEM, r->path, key, -1, "out of memory");
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(to_int(r, key, e, min, max, &list[i]));
    }
    *out = list;
    *count = (int)n;
    return BL_OK;
}

static bl_status read_int_list(const reader *r, const char *key, int min, int max, const int **out,
                               int *count)
{
    const int64_t *wide;
    BL_TRY(read_list(r, key, min, max, &wide, count));
    int *list = bl_arena_array(r->arena, (size_t)*count, sizeof *list);
    if (!list) {
        return bl_fail(r->err, BL_E_NOMEM, r->path, key, -1, "out of memory");
    }
    for (int i = 0; i < *count; i++) {
        list[i] = (int)wide[i];
    }
    *out = list;
    return BL_OK;
}

/* Layer numbers, strictly ascending. */
static bl_status read_layers(const reader *r, const char *key, const int **out, int *count)
{
    BL_TRY(read_int_list(r, key, 0, r->c->num_hidden_layers - 1, out, count));
    for (int i = 1; i < *count; i++) {
        if ((*out)[i] <= (*out)[i - 1]) {
            return bad(r, key, "must be in strictly ascending order");
        }
    }
    return BL_OK;
}

/* A key that, where present, may only have one value: the arithmetic knows no other. */
static bl_status expect_string(const reader *r, bl_json v, const char *key, const char *want)
{
    char have[64];
    if (v.kind == BL_JSON_NONE || bl_json_equals(v, want)) {
        return BL_OK;
    }
    bl_json_string(v, have, sizeof have);
    return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "is '%s', only '%s' is supported", have, want);
}

static bl_status read_fixed(const reader *r)
{
    static const char *const strings[][2] = {
        {"hidden_act", "silu"}, {"scoring_func", "sqrtsoftplus"}, {"topk_method", "noaux_tc"}};
    static const char *const off[] = {"attention_bias", "tie_word_embeddings"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        BL_TRY(expect_string(r, find(r, strings[i][0]), strings[i][0], strings[i][1]));
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        bool on;
        BL_TRY(read_bool(r, off[i], false, &on));
        if (on) {
            return bad(r, off[i], "is true, only false is supported");
        }
    }
    int64_t heads = 1;
    if (find(r, "num_key_value_heads").kind != BL_JSON_NONE) {
        BL_TRY(read_i64(r, "num_key_value_heads", 1, 1, &heads));
    }
    return BL_OK;
}

static bl_status read_numbers(const reader *r)
{
    bl_config *c = r->c;
    BL_TRY(read_i64(r, "max_position_embeddings", 1, (int64_t)1 << 40, &c->max_position_embeddings));
    BL_TRY(read_float(r, "hc_eps", 0, 1, &c->hc_eps));
    BL_TRY(read_float(r, "rms_norm_eps", 0, 1, &c->rms_norm_eps));
    BL_TRY(read_float(r, "swiglu_limit", 0, 1e30, &c->swiglu_limit));
    BL_TRY(read_float(r, "routed_scaling_factor", 1e-30, 1e30, &c->routed_scaling_factor));
    return read_bool(r, "norm_topk_prob", true, &c->norm_topk_prob);
}

/* Positions beyond the trained length. y is the object of that key. */
static bl_status read_yarn(const reader *r, const char *key, bl_json y)
{
    bl_config *c = r->c;
    static const char *const fields[] = {"rope_type", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings"};
    enum { TYPE, FACTOR, FAST, SLOW, ORIGINAL, FIELDS };
    char name[FIELDS][64];
    for (int i = 0; i < FIELDS; i++) {
        snprintf(name[i], sizeof name[i], "%s.%s", key, fields[i]);
    }
    if (y.kind != BL_JSON_OBJECT) {
        return bad(r, key, "must be an object");
    }
    bl_json type = bl_json_get(y, "rope_type");
    if (type.kind == BL_JSON_NONE) {
        type = bl_json_get(y, "type");
    }
    if (bl_json_equals(type, "default")) {
        return BL_OK;
    }
    if (type.kind != BL_JSON_STRING) {
        return bad(r, name[TYPE], "must be a string");
    }
    BL_TRY(expect_string(r, type, name[TYPE], "yarn"));
    c->yarn = true;
    BL_TRY(to_double(r, name[FACTOR], bl_json_get(y, fields[FACTOR]), 1e-3, 1e6, &c->rope_factor));
    BL_TRY(to_double(r, name[FAST], bl_json_get(y, fields[FAST]), 1e-6, 1e9, &c->rope_beta_fast));
    BL_TRY(to_double(r, name[SLOW], bl_json_get(y, fields[SLOW]), 1e-6, 1e9, &c->rope_beta_slow));
    return to_int(r, name[ORIGINAL], bl_json_get(y, fields[ORIGINAL]), 0, (int64_t)1 << 40,
                  &c->rope_original_max_position_embeddings);
}

/* rope_theta and rope_scaling as released; a config that transformers 5 has saved has both in rope_parameters instead. */
static bl_status read_rotation(const reader *r)
{
    bl_json scaling = find(r, "rope_scaling"), both = find(r, "rope_parameters");
    if (both.kind == BL_JSON_NONE) {
        BL_TRY(read_double(r, "rope_theta", 1, 1e30, &r->c->rope_theta));
        return scaling.kind == BL_JSON_NONE ? BL_OK : read_yarn(r, "rope_scaling", scaling);
    }
    if (scaling.kind != BL_JSON_NONE || find(r, "rope_theta").kind != BL_JSON_NONE) {
        return bad(r, "rope_parameters", "stands beside rope_theta or rope_scaling, which say the same in another form: keep one");
    }
    BL_TRY(read_yarn(r, "rope_parameters", both));
    return to_double(r, "rope_parameters.rope_theta", bl_json_get(both, "rope_theta"), 1, 1e30, &r->c->rope_theta);
}

static bl_status read_compression(const reader *r)
{
    bl_config *c = r->c;
    int ratios, compressed = 0;
    if (find(r, "compress_ratios").kind == BL_JSON_NONE) {
        return bad(r, "compress_ratios", "is missing");
    }
    BL_TRY(read_int_list(r, "compress_ratios", 0, 2, &c->compress_ratios, &ratios));
    if (ratios != c->num_hidden_layers + c->num_nextn_predict_layers) {
        return bl_fail(r->err, BL_E_INPUT, r->path, "compress_ratios", -1,
                       "has %d entries, num_hidden_layers + num_nextn_predict_layers is %d", ratios,
                       c->num_hidden_layers + c->num_nextn_predict_layers);
    }
    BL_TRY(read_layers(r, "kv_source_layer_ids", &c->kv_source_layer_ids, &c->kv_source_count));
    BL_TRY(read_layers(r, "index_source_layer_ids", &c->index_source_layer_ids, &c->index_source_count));
    for (int i = 0; i < c->num_hidden_layers; i++) {
        compressed += c->compress_ratios[i] > 0;
    }
    BL_TRY(READ_INTS(r, index_ints, compressed > 0));
    if (compressed > 0) {
        BL_TRY(read_double(r, "compress_rope_theta", 1, 1e30, &c->compress_rope_theta));
    }
    int64_t source = -1;
    if (find(r, "candidate_source_layer_id").kind != BL_JSON_NONE) {
        BL_TRY(read_i64(r, "candidate_source_layer_id", -1, c->num_hidden_layers - 1, &source));
    }
    c->candidate_source_layer_id = (int)source;
    return READ_INTS(r, candidate_ints, source >= 0);
}

static bl_status read_engram(const reader *r)
{
    bl_config *c = r->c;
    int tables;
    BL_TRY(read_layers(r, "engram_layer_ids", &c->engram_layer_ids, &c->engram_count));
    if (c->engram_count == 0) {
        return BL_OK;
    }
    BL_TRY(read_list(r, "engram_num_embeddings", 1, (int64_t)1 << 40, &c->engram_num_embeddings, &tables));
    if (tables != c->engram_count) {
        return bl_fail(r->err, BL_E_INPUT, r->path, "engram_num_embeddings", -1,
                       "has %d entries, engram_layer_ids has %d", tables, c->engram_count);
    }
    BL_TRY(READ_INTS(r, engram_ints, true));
    return read_i64(r, "engram_vocab_size", 2, (int64_t)1 << 40, &c->engram_vocab_size);
}

static bl_status read_drafts(const reader *r)
{
    bl_config *c = r->c;
    if (c->num_nextn_predict_layers == 0) {
        return BL_OK;
    }
    BL_TRY(READ_INTS(r, draft_ints, true));
    return read_layers(r, "dspark_target_layer_ids", &c->dspark_target_layer_ids, &c->dspark_target_count);
}

static bl_status expect_block(const reader *r, bl_json v, const char *key, int64_t rows, int64_t cols)
{
    int64_t have[2] = {0, 0};
    bl_json k, e;
    int n = 0;
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &e)) {
        if (n < 2) {
            BL_TRY(to_int(r, key, e, 1, INT_MAX, &have[n]));
        }
        n++;
    }
    if (v.kind != BL_JSON_ARRAY || n != 2 || have[0] != rows || have[1] != cols) {
        return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "must be [%" PRId64 ", %" PRId64 "]", rows,
                       cols);
    }
    return BL_OK;
}

static bl_status read_quantization(const reader *r)
{
    bl_config *c = r->c;
    bl_json q = find(r, "quantization_config"), e = find(r, "engram_quant");
    reader quiet = *r;
    quiet.err = NULL;
    c->fp8_block_rows = 32;
    if (q.kind != BL_JSON_NONE) {
        if (q.kind != BL_JSON_OBJECT) {
            return bad(r, "quantization_config", "must be an object");
        }
        c->quantized = true;
        if (!bl_json_equals(bl_json_get(q, "quant_method"), "fp8")) {
            return bad(r, "quantization_config.quant_method", "must be 'fp8'");
        }
        BL_TRY(expect_string(r, bl_json_get(q, "scale_fmt"), "quantization_config.scale_fmt", "ue8m0"));
        bl_json block = bl_json_get(q, "weight_block_size");
        if (expect_block(&quiet, block, "", 1, 32) == BL_OK) {
            c->fp8_block_rows = 1;
        } else {
            BL_TRY(expect_block(r, block, "quantization_config.weight_block_size", 32, 32));
        }
        BL_TRY(expect_string(r, bl_json_get(q, "expert_dtype"), "quantization_config.expert_dtype", "fp4"));
        c->experts_fp4 = bl_json_get(q, "expert_dtype").kind == BL_JSON_STRING;
    }
    if (e.kind != BL_JSON_NONE) {
        if (e.kind != BL_JSON_OBJECT) {
            return bad(r, "engram_quant", "must be an object");
        }
        c->engram_quant = true;
        BL_TRY(expect_string(r, bl_json_get(e, "dtype"), "engram_quant.dtype", "float8_e4m3fn"));
        BL_TRY(expect_string(r, bl_json_get(e, "scale_dtype"), "engram_quant.scale_dtype", "float8_e8m0fnu"));
        BL_TRY(expect_block(r, bl_json_get(e, "block"), "engram_quant.block", 1, 32));
    }
    return BL_OK;
}

static bl_status read_model_type(const reader *r)
{
    bl_json type = bl_json_get(r->top, "model_type");
    char have[64];
    if (type.kind != BL_JSON_STRING) {
        return bad(r, "model_type", type.kind == BL_JSON_NONE ? "is missing" : "must be a string");
    }
    if (bl_json_equals(type, "deepseek_v41") || bl_json_equals(type, "deepseek_v4.1")) {
        return BL_OK;
    }
    bl_json_string(type, have, sizeof have);
    return bl_fail(r->err, BL_E_INPUT, r->path, "model_type", -1, "is '%s', only 'deepseek_v41' is supported",
                   have);
}

static bl_status read_all(reader *r)
{
    bl_config *c = r->c;
    int64_t drafts = 0;
    BL_TRY(read_model_type(r));
    BL_TRY(READ_INTS(r, required_ints, true));
    if (find(r, "num_nextn_predict_layers").kind != BL_JSON_NONE) {
        BL_TRY(read_i64(r, "num_nextn_predict_layers", 0, BL_MAX_LAYERS, &drafts));
    }
    c->num_nextn_predict_layers = (int)drafts;
    BL_TRY(read_fixed(r));
    BL_TRY(read_numbers(r));
    BL_TRY(read_rotation(r));
    BL_TRY(read_compression(r));
    BL_TRY(read_engram(r));
    BL_TRY(read_drafts(r));
    c->bos_token_id = c->eos_token_id = c->pad_token_id = c->image_token_id = -1;
    BL_TRY(READ_INTS(r, token_ints, false));
    c->has_vision = bl_json_get(r->top, "vision_config").kind == BL_JSON_OBJECT;
    BL_TRY(read_quantization(r));
    return bl_config_check(c, r->path, r->err);
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
    reader r = {.text = bl_json_get(root, "text_config"),
                .top = root,
                .path = path,
                .arena = arena,
                .c = out,
                .err = err};
    if (r.text.kind != BL_JSON_NONE && r.text.kind != BL_JSON_OBJECT) {
        return bad(&r, "text_config", "must be an object");
    }
    out->nested = r.text.kind == BL_JSON_OBJECT;
    return read_all(&r);
}
