#include "convert/rewrite.h"

#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    FILE *f;
    const bl_config *c;
    const bl_plan *plan;
    bool flatten, first;
    int indent;
} writer;

static void line(writer *w)
{
    fprintf(w->f, "%s\n%*s", w->first ? "" : ",", w->indent, "");
    w->first = false;
}

static bool is_container(bl_json v)
{
    return (v.kind == BL_JSON_ARRAY || v.kind == BL_JSON_OBJECT) && bl_json_count(v) > 0;
}

static void value(writer *w, bl_json v);

/* Members or elements, one a line; arrays of plain values on one line. */
static void container(writer *w, bl_json v)
{
    bool object = v.kind == BL_JSON_OBJECT, inline_list = !object;
    bl_json key, item;
    bl_json_iter it = bl_json_begin(v);
    while (inline_list && bl_json_next(&it, &key, &item)) {
        inline_list = !is_container(item);
    }
    const char *comma = "";
    fputc(object ? '{' : '[', w->f);
    bool outer = w->first;
    w->first = true;
    w->indent += 2;
    it = bl_json_begin(v);
    while (bl_json_next(&it, &key, &item)) {
        if (inline_list) {
            fputs(comma, w->f);
            comma = ", ";
        } else {
            line(w);
        }
        if (object) {
            fprintf(w->f, "%.*s: ", (int)key.n, key.p);
        }
        value(w, item);
    }
    w->indent -= 2;
    w->first = outer;
    if (!inline_list) {
        fprintf(w->f, "\n%*s", w->indent, "");
    }
    fputc(object ? '}' : ']', w->f);
}

static void value(writer *w, bl_json v)
{
    if (is_container(v)) {
        container(w, v);
    } else {
        fwrite(v.p, 1, v.n, w->f);
    }
}

static bool starts_with(bl_json key, const char *prefix)
{
    char name[128];
    bl_json_string(key, name, sizeof name);
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* compress_ratios of the backbone alone. */
static void cut_ratios(writer *w, bl_json list)
{
    bl_json key, item;
    bl_json_iter it = bl_json_begin(list);
    fputc('[', w->f);
    for (int i = 0; i < w->c->num_hidden_layers && bl_json_next(&it, &key, &item); i++) {
        fprintf(w->f, "%s%.*s", i ? ", " : "", (int)item.n, item.p);
    }
    fputc(']', w->f);
}

static bool left_out(const writer *w, bl_json key)
{
    bool plain = w->plan->target == BL_TO_RELEASED && w->plan->fp8 + w->plan->fp4 == 0;
    if (bl_json_equals(key, BL_LAYERS_KEY)) {
        return true; /* written anew */
    }
    if (plain && bl_json_equals(key, "quantization_config")) {
        return true;
    }
    if (w->c->earlier && (plain || w->flatten) && bl_json_equals(key, "expert_dtype")) {
        return true;
    }
    if (w->flatten && (bl_json_equals(key, "quantization_config") || bl_json_equals(key, "engram_quant"))) {
        return true;
    }
    if ((w->plan->dropped & BL_DROP_DSPARK) && starts_with(key, "dspark_")) {
        return true;
    }
    return (w->plan->dropped & BL_DROP_VISION) && (bl_json_equals(key, "vision_config") || bl_json_equals(key, "image_token_id"));
}

/* Is the config right about how weights come out? Other targets than the released form keep what the source says. */
static bool quantisation_holds(const bl_config *c, const bl_plan *plan)
{
    int rows = c->earlier && c->block[0] ? c->block[0] : c->earlier ? plan->fp8_block_rows : c->fp8_block_rows;
    return plan->target != BL_TO_RELEASED ||
           (c->quantized == (plan->fp8 + plan->fp4 > 0) && c->experts_fp4 == (plan->fp4 > 0) && rows == plan->fp8_block_rows);
}

/* The members of a quantization_config, v, with weight_block_size and expert_dtype as the weights have them. */
static void quantisation(writer *w, bl_json v)
{
    bl_json key, item;
    bl_json_iter it = bl_json_begin(v);
    const char *comma = "";
    fputs("\"quantization_config\": {", w->f);
    while (bl_json_next(&it, &key, &item)) {
        if (bl_json_equals(key, "expert_dtype")) {
            continue;
        }
        fprintf(w->f, "%s%.*s: ", comma, (int)key.n, key.p);
        if (bl_json_equals(key, "weight_block_size")) {
            fprintf(w->f, "[%d, %d]", w->plan->fp8_block_rows, w->c->earlier ? w->plan->fp8_block_rows : 32);
        } else {
            fprintf(w->f, "%.*s", (int)item.n, item.p);
        }
        comma = ", ";
    }
    bool fp4 = w->plan->fp4 && !w->c->earlier; /* there it is a key of its own */
    fprintf(w->f, "%s%s}", fp4 ? comma : "", fp4 ? "\"expert_dtype\": \"fp4\"" : "");
}

static void member(writer *w, bl_json key, bl_json v)
{
    if (left_out(w, key)) {
        return;
    }
    line(w);
    if (bl_json_equals(key, "quantization_config") && !quantisation_holds(w->c, w->plan)) {
        quantisation(w, v);
        return;
    }
    fprintf(w->f, "%.*s: ", (int)key.n, key.p);
    bool no_drafts = w->plan->dropped & BL_DROP_DSPARK;
    if (no_drafts && bl_json_equals(key, "num_nextn_predict_layers")) {
        fputc('0', w->f);
    } else if (no_drafts && bl_json_equals(key, "compress_ratios")) {
        cut_ratios(w, v);
    } else if (w->flatten && !w->c->earlier && bl_json_equals(key, "model_type")) {
        fputs("\"deepseek_v41\"", w->f);
    } else {
        value(w, v);
    }
}

static void members(writer *w, bl_json object)
{
    bl_json key, v;
    bl_json_iter it = bl_json_begin(object);
    while (bl_json_next(&it, &key, &v)) {
        member(w, key, v);
    }
}

/* Member of an object whose key has the same text; kind NONE when absent. */
static bl_json same_key(bl_json object, bl_json key)
{
    char name[256];
    return bl_json_string(key, name, sizeof name) < sizeof name ? bl_json_get(object, name) : (bl_json){0};
}

static void flattened(writer *w, bl_json root, bl_json text)
{
    bl_json key, v;
    bl_json_iter it = bl_json_begin(root);
    while (bl_json_next(&it, &key, &v)) {
        bl_json inner = same_key(text, key);
        if (!bl_json_equals(key, "text_config")) {
            member(w, key, inner.kind != BL_JSON_NONE ? inner : v);
        }
    }
    it = bl_json_begin(text);
    while (bl_json_next(&it, &key, &v)) {
        if (same_key(root, key).kind == BL_JSON_NONE) {
            member(w, key, v);
        }
    }
    line(w);
    fputs("\"engram_quant\": {\"dtype\": \"float8_e4m3fn\", \"scale_dtype\": \"float8_e8m0fnu\", \"block\": [1, 32]}", w->f);
}

static void nested(writer *w, bl_json root)
{
    bl_json key, v;
    bl_json_iter it = bl_json_begin(root);
    while (bl_json_next(&it, &key, &v)) {
        if (!bl_json_equals(key, "text_config")) {
            member(w, key, v);
            continue;
        }
        line(w);
        fputs("\"text_config\": {", w->f);
        w->first = true;
        w->indent += 2;
        members(w, v);
        w->indent -= 2;
        w->first = false;
        fprintf(w->f, "\n%*s}", w->indent, "");
    }
}

/* A source without any gets what the release has. */
static void new_quantisation(writer *w)
{
    static const char v41[] = "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"weight_block_size\": [32, 32], "
                              "\"scale_fmt\": \"ue8m0\"}";
    static const char v4[] = "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", "
                             "\"weight_block_size\": [128, 128], \"scale_fmt\": \"ue8m0\"}";
    bool released = w->plan->target == BL_TO_RELEASED, earlier = w->c->earlier;
    if (released && !w->c->quantized && w->plan->fp8 + w->plan->fp4 > 0) {
        line(w);
        quantisation(w, (bl_json){.p = earlier ? v4 : v41, .n = (earlier ? sizeof v4 : sizeof v41) - 1, .kind = BL_JSON_OBJECT});
    }
    if (released && earlier && w->plan->fp4 && !w->c->experts_fp4) {
        line(w);
        fputs("\"expert_dtype\": \"fp4\"", w->f);
    }
}

static void layers(writer *w)
{
    if (!w->plan->present) {
        return;
    }
    line(w);
    fputs("\"" BL_LAYERS_KEY "\": [", w->f);
    const char *comma = "";
    for (int i = 0; i < w->c->num_hidden_layers; i++) {
        if (w->plan->present[i]) {
            fprintf(w->f, "%s%d", comma, i);
            comma = ", ";
        }
    }
    fputc(']', w->f);
}

bl_status bl_config_rewrite(const bl_config *c, const char *path, const bl_plan *plan, char **text, size_t *bytes, bl_error *err)
{
    bl_json root;
    *text = NULL;
    BL_TRY(bl_json_parse(c->text, c->text_bytes, NULL, path, &root, err));
    bool flatten = plan->target == BL_TO_BF16;
    FILE *f = open_memstream(text, bytes);
    if (!f) {
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    if (plan->target == BL_TO_MERGED) {
        fwrite(c->text, 1, c->text_bytes, f); /* its own way already */
    } else if (!flatten && !plan->dropped && !plan->present && quantisation_holds(c, plan)) {
        fwrite(c->text, 1, c->text_bytes, f);
    } else {
        writer w = {.f = f, .c = c, .plan = plan, .flatten = flatten, .first = true, .indent = 2};
        fputc('{', f);
        if (c->earlier) {
            members(&w, root);
        } else if (flatten) {
            flattened(&w, root, bl_json_get(root, "text_config"));
        } else {
            nested(&w, root);
        }
        new_quantisation(&w);
        layers(&w);
        fputs("\n}\n", f);
    }
    bool bad = ferror(f);
    if (fclose(f) != 0 || bad) {
        free(*text);
        *text = NULL;
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    return BL_OK;
}
