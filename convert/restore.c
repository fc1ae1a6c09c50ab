#include "convert/restore.h"

#include "formats/foreign.h"
#include "formats/json.h"
#include "formats/names.h"
#include "verify/companions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the config");
}

static bool is_among(bl_json key, const char *const *names)
{
    while (*names && !bl_json_equals(key, *names)) {
        names++;
    }
    return *names != NULL;
}

/* ---- equal values, however they are written */

static bool equal(bl_json a, bl_json b);

static bool equal_members(bl_json a, bl_json b)
{
    bl_json key, v, other_key, w;
    bl_json_iter it = bl_json_begin(a), other = bl_json_begin(b);
    while (bl_json_next(&it, &key, &v)) {
        char name[256];
        if (a.kind == BL_JSON_OBJECT) {
            w = bl_json_string(key, name, sizeof name) < sizeof name ? bl_json_get(b, name) : (bl_json){0};
        } else if (!bl_json_next(&other, &other_key, &w)) {
            return false;
        }
        if (!equal(v, w)) {
            return false;
        }
    }
    return bl_json_count(a) == bl_json_count(b);
}

static bool equal(bl_json a, bl_json b)
{
    double x, y;
    if (a.kind != b.kind) {
        return false;
    }
    if (a.n == b.n && !memcmp(a.p, b.p, a.n)) {
        return true;
    }
    if (a.kind == BL_JSON_NUMBER) {
        return bl_json_double(a, &x) && bl_json_double(b, &y) && !(x < y) && !(x > y);
    }
    if (a.kind == BL_JSON_STRING) {
        char name[1024];
        return bl_json_string(a, name, sizeof name) < sizeof name && bl_json_equals(b, name);
    }
    return (a.kind == BL_JSON_ARRAY || a.kind == BL_JSON_OBJECT) && equal_members(a, b);
}

/* ---- config.source.json */

/* What differs although it is the same model: changed by flattening, by leaving tensors out, or by whoever saved the checkpoint. */
static bool may_differ(bl_json key)
{
    static const char *const names[] = {"model_type",     "num_nextn_predict_layers", "compress_ratios", "vision_config", "image_token_id",
                                        "quantization_config", "text_config", "architectures", "transformers_version", "dtype",
                                        "torch_dtype", "use_cache", "expert_dtype", BL_LAYERS_KEY, NULL};
    char name[256];
    bl_json_string(key, name, sizeof name);
    return is_among(key, names) || !strncmp(name, "dspark_", 7);
}

/* Every member of object (of the source's config) that own has too. */
static bl_status compare(bl_json object, bl_json own, const char *path, bl_error *err)
{
    bl_json key, v;
    bl_json_iter it = bl_json_begin(object);
    while (bl_json_next(&it, &key, &v)) {
        char name[256];
        if (may_differ(key) || bl_json_string(key, name, sizeof name) >= sizeof name) {
            continue;
        }
        bl_json mine = bl_json_get(own, name);
        if (mine.kind != BL_JSON_NONE && !equal(v, mine)) {
            return bl_fail(err, BL_E_INPUT, path, name, -1,
                           "is %.*s here and %.*s in config.source.json: make them agree, or remove config.source.json to keep this one",
                           (int)(mine.n < 80 ? mine.n : 80), mine.p, (int)(v.n < 80 ? v.n : 80), v.p);
        }
    }
    return BL_OK;
}

static bool same_yarn(const bl_config *a, const bl_config *b)
{
    return a->rope_factor == b->rope_factor && a->rope_beta_fast == b->rope_beta_fast && a->rope_beta_slow == b->rope_beta_slow &&
           a->rope_original_max_position_embeddings == b->rope_original_max_position_embeddings;
}

static bl_status from_source(const bl_checkpoint *c, const char *own_path, bl_arena *arena, bl_restored *out, bl_error *err)
{
    char *text;
    size_t n;
    bl_json own, root;
    const bl_config *f = &c->config, *s = &out->config;
    BL_TRY(bl_foreign_slurp(out->path, BL_COMPANION_MAX, &text, &n, err));
    bl_status r = (f->earlier ? bl_config_parse_any : bl_config_parse)(text, n, out->path, arena, &out->config, err);
    free(text);
    BL_TRY(r);
    if (s->earlier != f->earlier) {
        return bl_fail(err, BL_E_INPUT, out->path, "model_type", -1, "is of another generation than that of config.json");
    }
    BL_TRY(bl_json_parse(f->text, f->text_bytes, NULL, own_path, &own, err));
    BL_TRY(bl_json_parse(s->text, s->text_bytes, NULL, out->path, &root, err));
    BL_TRY(compare(root, own, own_path, err));
    BL_TRY(compare(bl_json_get(root, "text_config"), own, own_path, err));
    if (f->earlier) {
        return BL_OK; /* all of its tensors are kept */
    }
    if (f->rope_theta != s->rope_theta || f->yarn != s->yarn || (f->yarn && !same_yarn(f, s))) { /* has two forms */
        return bl_fail(err, BL_E_INPUT, own_path, "rope_parameters", -1, "says something else than config.source.json: make them agree, "
                       "or remove config.source.json to keep this one");
    }
    out->absent |= s->num_nextn_predict_layers > 0 && f->num_nextn_predict_layers == 0 ? BL_DROP_DSPARK : 0;
    out->absent |= s->has_vision && !f->has_vision ? BL_DROP_VISION : 0;
    return BL_OK;
}

/* ---- no original: put the keys of the model under text_config */

static void put(FILE *f, bool *first, const char *indent, bl_json key, bl_json v)
{
    fprintf(f, "%s\n%s%.*s: %.*s", *first ? "" : ",", indent, (int)key.n, key.p, (int)v.n, v.p);
    *first = false;
}

static void nest(FILE *f, bl_json own)
{
    static const char *const top[] = {"architectures", "model_type",     "dtype",         "torch_dtype",         "transformers_version",
                                      "bos_token_id",  "eos_token_id",   "pad_token_id",  "image_token_id",      "vision_config",
                                      "auto_map",      "quantization_config", BL_LAYERS_KEY, NULL};
    bl_json key, v;
    bool first = true;
    bl_json_iter it = bl_json_begin(own);
    fputc('{', f);
    while (bl_json_next(&it, &key, &v)) {
        if (is_among(key, top)) {
            put(f, &first, "  ", key, v);
        }
    }
    fprintf(f, "%s\n  \"text_config\": {\n    \"model_type\": \"deepseek_v41_text\"", first ? "" : ",");
    first = false;
    it = bl_json_begin(own);
    while (bl_json_next(&it, &key, &v)) {
        if (!is_among(key, top) && !bl_json_equals(key, "engram_quant")) {
            put(f, &first, "    ", key, v);
        }
    }
    fputs("\n  }\n}\n", f);
}

static bl_status from_own(const bl_checkpoint *c, bl_arena *arena, bl_restored *out, bl_error *err)
{
    bl_json own;
    char *text = NULL;
    size_t n = 0;
    BL_TRY(bl_json_parse(c->config.text, c->config.text_bytes, NULL, out->path, &own, err));
    FILE *f = open_memstream(&text, &n);
    if (!f) {
        return nomem(err);
    }
    nest(f, own);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    bl_status s = bad ? nomem(err) : bl_config_parse(text, n, out->path, arena, &out->config, err);
    free(text);
    return s;
}

bl_status bl_config_restore(const bl_checkpoint *c, bl_arena *arena, bl_restored *out, bl_error *err)
{
    const char *own = bl_path_join(arena, c->path, "config.json"), *kept = bl_path_join(arena, c->path, "config.source.json");
    *out = (bl_restored){.config = c->config, .path = own};
    if (!own || !kept) {
        return nomem(err);
    }
    if (c->config.nested) {
        return BL_OK;
    }
    if (access(kept, F_OK) == 0) {
        out->path = kept;
        return from_source(c, own, arena, out, err);
    }
    return c->config.earlier ? BL_OK : from_own(c, arena, out, err);
}
