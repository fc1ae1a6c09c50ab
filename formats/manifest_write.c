/* Writing manifests. */
#include "formats/manifest.h"

#include "formats/output.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson's _new functions accept NULL and then fail: one failed flag at the end is enough. */
typedef struct writer {
    int failed;
} writer;

static void set(writer *w, json_t *object, const char *key, json_t *value)
{
    w->failed |= json_object_set_new(object, key, value) != 0;
}

static void append(writer *w, json_t *array, json_t *value)
{
    w->failed |= json_array_append_new(array, value) != 0;
}

/* NULL, and so a failure, where JSON integers of 64 bits do not reach. */
static json_t *integer(uint64_t u)
{
    return u <= INT64_MAX ? json_integer((json_int_t)u) : NULL;
}

static json_t *hex(const void *bytes, size_t n)
{
    char text[65];
    return json_string(bl_hex_encode(text, bytes, n));
}

static json_t *list(writer *w, const uint64_t *values, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        append(w, a, integer(values[i]));
    }
    return a;
}

static json_t *digests(writer *w, const bl_digest *values, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        append(w, a, hex(values[i].b, sizeof values[i].b));
    }
    return a;
}

/* rank: whose manifest; -1 for the global one. */
static json_t *file_list(writer *w, const bl_manifest_file *files, size_t n, int rank)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *f = json_object();
        set(w, f, "name", json_string(files[i].name));
        set(w, f, "bytes", integer(files[i].bytes));
        if (rank < 0) {
            set(w, f, "sha256", files[i].has_sha256 ? hex(files[i].sha256, 32) : json_null());
        } else {
            if (files[i].linked) {
                set(w, f, "linked", json_true());
            }
            if (files[i].rank != rank) {
                set(w, f, "rank", json_integer(files[i].rank));
            }
        }
        append(w, a, f);
    }
    return a;
}

static json_t *source(writer *w, const bl_manifest *m)
{
    json_t *s = json_object();
    set(w, s, "tensors", integer(m->source_tensors));
    set(w, s, "tensor_bytes", integer(m->source_tensor_bytes));
    set(w, s, "config_sha256", hex(m->source_config_sha256, 32));
    set(w, s, "index_sha256", m->has_source_index_sha256 ? hex(m->source_index_sha256, 32) : json_null());
    return s;
}

static json_t *layout(writer *w, const bl_manifest *m)
{
    json_t *l = json_object();
    const bl_layout *k = &m->layout;
    set(w, l, "tp", json_integer(k->tp));
    set(w, l, "ep", json_integer(k->ep));
    set(w, l, "pp", json_integer(k->pp));
    set(w, l, "ranks", json_integer(k->ranks));
    if (k->stage_layers) {
        json_t *layers = json_array();
        for (int i = 0; i < k->pp; i++) {
            append(w, layers, json_integer(k->stage_layers[i]));
        }
        set(w, l, "layers", layers);
    }
    if (k->vocab_rows) {
        set(w, l, "vocab_rows", integer(k->vocab_rows));
    }
    if (k->split) {
        set(w, l, "split", json_string(bl_split_name(k->split)));
    }
    if (k->engram_shared) {
        set(w, l, "engram_shared", json_true());
    }
    return l;
}

static json_t *dropped(writer *w, unsigned bits)
{
    json_t *a = json_array();
    if (bits & BL_DROP_DSPARK) {
        append(w, a, json_string("dspark"));
    }
    if (bits & BL_DROP_VISION) {
        append(w, a, json_string("vision"));
    }
    return a;
}

static json_t *engram(writer *w, const bl_manifest *m)
{
    json_t *a = json_array();
    for (size_t i = 0; i < m->engram_count; i++) {
        const bl_manifest_engram *e = &m->engram[i];
        json_t *o = json_object(), *multipliers = json_array();
        for (size_t j = 0; j < e->multiplier_count; j++) {
            char text[24];
            snprintf(text, sizeof text, "%" PRId64, e->multipliers[j]);
            append(w, multipliers, json_string(text));
        }
        set(w, o, "layer", json_integer(e->layer));
        set(w, o, "rows", integer(e->rows));
        set(w, o, "multipliers", multipliers);
        append(w, a, o);
    }
    return a;
}

static json_t *tensor(writer *w, const bl_manifest_tensor *t)
{
    json_t *o = json_object(), *value = json_null();
    set(w, o, "name", json_string(t->tensor.name));
    set(w, o, "dtype", json_string(bl_dtype_name(t->tensor.dtype)));
    set(w, o, "shape", list(w, t->tensor.shape, t->tensor.ndim));
    set(w, o, "file", json_integer(t->tensor.file));
    set(w, o, "offset", integer(t->tensor.offset));
    set(w, o, "start", list(w, t->start, t->tensor.ndim));
    set(w, o, "global_shape", list(w, t->global_shape, t->tensor.ndim));
    set(w, o, "chunks", digests(w, t->chunks, t->chunk_count));
    if (t->value_class != BL_VALUE_NONE) {
        value = json_object();
        set(w, value, "class", json_string(bl_value_class_name(t->value_class)));
        set(w, value, "shape", list(w, t->value_shape, t->value_ndim));
        set(w, value, "digests", digests(w, t->values, t->value_count));
        if (t->value_unit[0]) {
            set(w, value, "unit", json_pack("[i, i]", (int)t->value_unit[0], (int)t->value_unit[1]));
        }
    }
    set(w, o, "value", value);
    return o;
}

/* The text of root, one line per entry so that manifests can be compared with line tools; malloc'd, NULL on
 * failure. */
static char *dump(json_t *root, size_t *n)
{
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_ENSURE_ASCII);
    if (text) {
        *n = strlen(text);
        text[(*n)++] = '\n'; /* over the NUL: the length is what counts from here */
    }
    return text;
}

static bl_status no_memory(const char *path, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, path, NULL, -1,
                   "cannot build the manifest: out of memory, or a number or name it cannot hold");
}

/* What is written must be what can be read. */
static bl_status check_text(const char *text, size_t n, bool global, const char *path, bl_error *err)
{
    bl_arena arena = {0};
    bl_manifest m;
    bl_rank_manifest r;
    bl_error e = {0};
    bl_status s = global ? bl_manifest_parse(text, n, path, &arena, &m, &e)
                         : bl_rank_manifest_parse(text, n, path, &arena, &r, &e);
    bl_arena_reset(&arena);
    if (s == BL_E_INPUT) {
        return bl_fail(err, BL_E_INTERNAL, path, e.tensor, -1,
                       "refusing to write a manifest that cannot be read: %s", e.message);
    }
    return s == BL_OK ? BL_OK : bl_fail(err, s, path, NULL, -1, "%s", e.message);
}

/* Consumes root. */
static bl_status finish(writer *w, json_t *root, bool global, const char *path, bl_error *err)
{
    size_t n = 0;
    char *text = w->failed ? NULL : dump(root, &n);
    json_decref(root);
    if (!text) {
        return no_memory(path, err);
    }
    bl_status s = check_text(text, n, global, path, err);
    if (s == BL_OK) {
        s = bl_output_file(path, text, n, err);
    }
    free(text);
    return s;
}

bl_status bl_manifest_write(const bl_manifest *m, const char *path, bl_error *err)
{
    writer w = {0};
    json_t *root = json_object();
    set(&w, root, "format", json_string("baleen-packed"));
    set(&w, root, "version", json_integer(1));
    set(&w, root, "writer", json_string(m->writer));
    set(&w, root, "source", source(&w, m));
    set(&w, root, "layout", layout(&w, m));
    set(&w, root, "dropped", dropped(&w, m->dropped));
    set(&w, root, "chunk_bytes", integer(BL_CHUNK_BYTES));
    set(&w, root, "engram", engram(&w, m));
    set(&w, root, "files", file_list(&w, m->files, m->file_count, -1));
    return finish(&w, root, true, path, err);
}

static int by_name(const void *a, const void *b)
{
    return bl_tensor_by_name(&(*(const bl_manifest_tensor *const *)a)->tensor,
                             &(*(const bl_manifest_tensor *const *)b)->tensor);
}

bl_status bl_rank_manifest_write(const bl_rank_manifest *m, const char *path, bl_error *err)
{
    writer w = {0};
    const bl_manifest_tensor **order = calloc(m->tensor_count + 1, sizeof *order);
    json_t *root = json_object(), *tensors = json_array();
    if (!order) {
        json_decref(root);
        json_decref(tensors);
        return no_memory(path, err);
    }
    for (size_t i = 0; i < m->tensor_count; i++) {
        order[i] = &m->tensors[i];
    }
    qsort(order, m->tensor_count, sizeof *order, by_name);
    for (size_t i = 0; i < m->tensor_count; i++) {
        append(&w, tensors, tensor(&w, order[i]));
    }
    free(order);
    set(&w, root, "format", json_string("baleen-packed-rank"));
    set(&w, root, "version", json_integer(1));
    set(&w, root, "rank", json_integer(m->rank));
    set(&w, root, "files", file_list(&w, m->files, m->file_count, m->rank));
    set(&w, root, "tensors", tensors);
    return finish(&w, root, false, path, err);
}
