/* config.json of a generation before V4.1: how many layers and experts there are, and what is claimed about the scales. */
#include "formats/config.h"

#include "formats/json.h"

#include <inttypes.h>
#include <string.h>

#define MAX_TEXT ((size_t)16 << 20)
#define MAX_EXPERTS 65536
#define MAX_BLOCK 65536

typedef struct reader {
    bl_json top;
    const char *path;
    bl_arena *arena;
    bl_config *c;
    bl_error *err;
} reader;

static bl_status bad(const reader *r, const char *key, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "%s", what);
}

/* Member of object; NONE when it is absent or null. */
static bl_json find(bl_json object, const char *key)
{
    bl_json v = bl_json_get(object, key);
    return v.kind == BL_JSON_NULL ? (bl_json){0} : v;
}

static bl_status read_count(const reader *r, const char *key, int64_t min, int64_t max, bool required, int *out)
{
    int64_t n = 0;
    bl_json v = find(r->top, key);
    if (v.kind == BL_JSON_NONE) {
        return required ? bad(r, key, "is missing") : BL_OK;
    }
    if (!bl_json_i64(v, &n) || n < min || n > max) {
        return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "must be an integer from %" PRId64 " to %" PRId64, min, max);
    }
    *out = (int)n;
    return BL_OK;
}

/* A string that, where present, has one known value. */
static bl_status expect(const reader *r, bl_json v, const char *key, const char *want, bool *present)
{
    *present = v.kind != BL_JSON_NONE;
    if (!*present || bl_json_equals(v, want)) {
        return BL_OK;
    }
    char have[64] = "";
    bl_json_string(v, have, sizeof have);
    return bl_fail(r->err, BL_E_INPUT, r->path, key, -1, "is '%s', only '%s' is supported", have, want);
}

static bl_status read_block(const reader *r, bl_json v)
{
    static const char key[] = "quantization_config.weight_block_size";
    bl_json k, e;
    int64_t n;
    int at = 0;
    if (v.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    bl_json_iter it = bl_json_begin(v);
    while (v.kind == BL_JSON_ARRAY && bl_json_next(&it, &k, &e)) {
        if (at == 2 || !bl_json_i64(e, &n) || n < 1 || n > MAX_BLOCK) {
            at = 0;
            break;
        }
        r->c->block[at++] = (int)n;
    }
    return at == 2 ? BL_OK : bad(r, key, "must be two integers from 1 to 65536");
}

static bl_status read_quantization(const reader *r)
{
    bl_config *c = r->c;
    bl_json q = find(r->top, "quantization_config"), experts = find(r->top, "expert_dtype");
    bool there;
    if (q.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    if (q.kind != BL_JSON_OBJECT) {
        return bad(r, "quantization_config", "must be an object");
    }
    c->quantized = true;
    BL_TRY(expect(r, find(q, "quant_method"), "quantization_config.quant_method", "fp8", &there));
    if (!there) {
        return bad(r, "quantization_config.quant_method", "is missing");
    }
    BL_TRY(expect(r, find(q, "fmt"), "quantization_config.fmt", "e4m3", &there));
    BL_TRY(read_block(r, find(q, "weight_block_size")));
    BL_TRY(expect(r, find(q, "scale_fmt"), "quantization_config.scale_fmt", "ue8m0", &c->scale_ue8m0));
    bl_json inner = find(q, "expert_dtype");
    c->experts_fp4 = bl_json_equals(inner.kind == BL_JSON_NONE ? experts : inner, "fp4");
    return BL_OK;
}

static bl_status read_model_type(const reader *r)
{
    bl_json type = find(r->top, "model_type");
    char have[64];
    if (type.kind != BL_JSON_STRING) {
        return bad(r, "model_type", type.kind == BL_JSON_NONE ? "is missing" : "must be a string");
    }
    bl_json_string(type, have, sizeof have);
    r->c->model_type = bl_arena_strndup(r->arena, have, strlen(have));
    return r->c->model_type ? BL_OK : bl_fail(r->err, BL_E_NOMEM, r->path, NULL, -1, "out of memory");
}

static bl_status read_all(const reader *r)
{
    bl_config *c = r->c;
    BL_TRY(read_model_type(r));
    if (find(r->top, "text_config").kind != BL_JSON_NONE) {
        return bl_fail(r->err, BL_E_INPUT, r->path, "text_config", -1,
                       "is there, but model_type is '%s': only configs of DeepSeek-V4.1 are nested", c->model_type);
    }
    BL_TRY(read_count(r, "num_hidden_layers", 1, BL_MAX_LAYERS, true, &c->num_hidden_layers));
    BL_TRY(read_count(r, "n_routed_experts", 0, MAX_EXPERTS, false, &c->n_routed_experts));
    BL_TRY(read_count(r, "num_nextn_predict_layers", 0, BL_MAX_LAYERS, false, &c->num_nextn_predict_layers));
    return read_quantization(r);
}

bl_status bl_config_parse_any(const char *text, size_t n, const char *path, bl_arena *arena, bl_config *out, bl_error *err)
{
    const bl_json_limits limits = {.max_bytes = MAX_TEXT};
    bl_json root;
    BL_TRY(bl_json_parse(text, n, &limits, path, &root, err));
    bl_json type = bl_json_get(root, "model_type");
    if (root.kind != BL_JSON_OBJECT || bl_json_equals(type, "deepseek_v41") || bl_json_equals(type, "deepseek_v4.1")) {
        return bl_config_parse(text, n, path, arena, out, err);
    }
    *out = (bl_config){.earlier = true, .text = bl_arena_strndup(arena, text, n), .text_bytes = n};
    if (!out->text) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    return read_all(&(reader){.top = root, .path = path, .arena = arena, .c = out, .err = err});
}
