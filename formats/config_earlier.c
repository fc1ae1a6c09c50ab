/* config.json of a generation before V4.1: how many layers and experts there are, and what is claimed about the scales. */
#include "formats/config.h"

#include "formats/config_keys.h"

#include <string.h>

#define MAX_TEXT ((size_t)16 << 20)
#define MAX_EXPERTS 65536
#define MAX_BLOCK 65536

static bl_status read_count(const bl_keys *k, const char *key, int64_t min, int64_t max, int *out)
{
    int64_t n = 0;
    if (bl_keys_find(k, key).kind != BL_JSON_NONE) {
        BL_TRY(bl_keys_i64(k, key, min, max, &n));
    }
    *out = (int)n;
    return BL_OK;
}

static bl_status read_block(const bl_keys *k, bl_config *c, bl_json v)
{
    static const char key[] = "quantization_config.weight_block_size";
    bl_json name, e;
    int64_t n;
    int at = 0;
    if (v.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    bl_json_iter it = bl_json_begin(v);
    while (v.kind == BL_JSON_ARRAY && bl_json_next(&it, &name, &e)) {
        if (at == 2 || !bl_json_i64(e, &n) || n < 1 || n > MAX_BLOCK) {
            at = 0;
            break;
        }
        c->block[at++] = (int)n;
    }
    return at == 2 ? BL_OK : bl_keys_bad(k, key, "must be two integers from 1 to 65536");
}

static bl_status read_quantization(const bl_keys *k, bl_config *c)
{
    bl_json q = bl_keys_find(k, "quantization_config");
    if (q.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    if (q.kind != BL_JSON_OBJECT) {
        return bl_keys_bad(k, "quantization_config", "must be an object");
    }
    c->quantized = true;
    bl_json method = bl_keys_member(q, "quant_method"), scales = bl_keys_member(q, "scale_fmt"), inner = bl_keys_member(q, "expert_dtype");
    if (method.kind == BL_JSON_NONE) {
        return bl_keys_bad(k, "quantization_config.quant_method", "is missing");
    }
    BL_TRY(bl_keys_string(k, method, "quantization_config.quant_method", "fp8"));
    BL_TRY(bl_keys_string(k, bl_keys_member(q, "fmt"), "quantization_config.fmt", "e4m3"));
    BL_TRY(read_block(k, c, bl_keys_member(q, "weight_block_size")));
    BL_TRY(bl_keys_string(k, scales, "quantization_config.scale_fmt", "ue8m0"));
    c->scale_ue8m0 = scales.kind != BL_JSON_NONE;
    c->experts_fp4 = bl_json_equals(inner.kind == BL_JSON_NONE ? bl_keys_find(k, "expert_dtype") : inner, "fp4");
    return BL_OK;
}

static bl_status read_model_type(const bl_keys *k, bl_config *c)
{
    bl_json type = bl_keys_find(k, "model_type");
    char have[64];
    if (type.kind != BL_JSON_STRING) {
        return bl_keys_bad(k, "model_type", type.kind == BL_JSON_NONE ? "is missing" : "must be a string");
    }
    bl_json_string(type, have, sizeof have);
    c->model_type = bl_arena_strndup(k->arena, have, strlen(have));
    return c->model_type ? BL_OK : bl_fail(k->err, BL_E_NOMEM, k->path, NULL, -1, "out of memory");
}

static bl_status read_all(const bl_keys *k, bl_config *c)
{
    int64_t layers;
    BL_TRY(read_model_type(k, c));
    if (bl_keys_find(k, "text_config").kind != BL_JSON_NONE) {
        return bl_fail(k->err, BL_E_INPUT, k->path, "text_config", -1,
                       "is there, but model_type is '%s': only configs of DeepSeek-V4.1 are nested", c->model_type);
    }
    BL_TRY(bl_keys_i64(k, "num_hidden_layers", 1, BL_MAX_LAYERS, &layers));
    c->num_hidden_layers = (int)layers;
    BL_TRY(read_count(k, "n_routed_experts", 0, MAX_EXPERTS, &c->n_routed_experts));
    BL_TRY(read_count(k, "num_nextn_predict_layers", 0, BL_MAX_LAYERS, &c->num_nextn_predict_layers));
    return read_quantization(k, c);
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
    return read_all(&(bl_keys){.top = root, .path = path, .arena = arena, .err = err}, out);
}
