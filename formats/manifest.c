/* Reading manifests. Writing is manifest_write.c. */
#include "formats/manifest.h"

#include "formats/json.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 65536

typedef struct reader {
    const char *text, *path, *tensor; /* tensor: the one being read, for errors */
    bl_arena *arena;
    bl_error *err;
} reader;

/* A key of an object: where its value goes, whether it may be absent. */
typedef struct slot {
    const char *key;
    bl_json *value;
    bool optional;
} slot;

const char *bl_value_class_name(bl_value_class c)
{
    static const char *const names[] = {"none", "matrix", "rows", "bytes"};
    return names[(unsigned)c < 4 ? c : 0];
}

char *bl_rank_folder(char *buf, int rank)
{
    snprintf(buf, 16, "rank-%04d", rank);
    return buf;
}

size_t bl_chunk_count(uint64_t nbytes)
{
    return (size_t)(nbytes / BL_CHUNK_BYTES + (nbytes % BL_CHUNK_BYTES != 0));
}

static bl_status bad(const reader *r, bl_json at, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, at.p ? (int64_t)(at.p - r->text) : -1, "%s", what);
}

static bl_status no_memory(const reader *r)
{
    return bl_fail(r->err, BL_E_NOMEM, r->path, NULL, -1, "out of memory for a manifest");
}

/* Take an object apart. Keys that are not in slots mean a newer writer, whose meaning is unknown. */
static bl_status take(const reader *r, bl_json object, const char *what, const slot *slots, size_t count)
{
    bl_json k, v;
    if (object.kind != BL_JSON_OBJECT) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, object.p ? object.p - r->text : -1,
                       "%s is not an object", what);
    }
    bl_json_iter it = bl_json_begin(object);
    while (bl_json_next(&it, &k, &v)) {
        size_t i = 0;
        while (i < count && !bl_json_equals(k, slots[i].key)) {
            i++;
        }
        if (i == count) {
            char name[64];
            bl_json_string(k, name, sizeof name);
            return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, k.p - r->text,
                           "%s has an unknown key '%s': a newer writer?", what, name);
        }
        *slots[i].value = v;
    }
    for (size_t i = 0; i < count; i++) {
        if (slots[i].value->kind == BL_JSON_NONE && !slots[i].optional) {
            return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, object.p - r->text, "%s lacks '%s'", what,
                           slots[i].key);
        }
    }
    return BL_OK;
}
#define TAKE(r, object, what, slots) take(r, object, what, slots, sizeof(slots) / sizeof *(slots))

static bl_status to_u64(const reader *r, bl_json v, const char *what, uint64_t max, uint64_t *out)
{
    if (!bl_json_u64(v, out) || *out > max) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text,
                       "%s is not an integer from 0 to %" PRIu64, what, max);
    }
    return BL_OK;
}

static bl_status to_int(const reader *r, bl_json v, const char *what, int min, int max, int *out)
{
    uint64_t u;
    BL_TRY(to_u64(r, v, what, (uint64_t)max, &u));
    *out = (int)u;
    return *out >= min ? BL_OK
                       : bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is less than %d",
                                 what, min);
}

static bl_status to_text(const reader *r, bl_json v, const char *what, const char **out, size_t *n)
{
    char *s = v.kind == BL_JSON_STRING ? bl_arena_alloc(r->arena, v.n) : NULL;
    if (v.kind != BL_JSON_STRING) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is not a string", what);
    }
    if (!s) {
        return no_memory(r);
    }
    *n = bl_json_string(v, s, v.n);
    *out = s;
    return bl_text_is_clean(s, *n) ? BL_OK : bad(r, v, "a string with control characters");
}

/* n bytes as hexadecimal digits. */
static bl_status to_hex(const reader *r, bl_json v, size_t n, void *out)
{
    bool ok = v.kind == BL_JSON_STRING && v.n == 2 * n + 2 && bl_hex_decode(out, v.p + 1, 2 * n);
    return ok ? BL_OK
              : bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text,
                        "not a digest of %zu hexadecimal digits", 2 * n);
}

/* An array of unsigned integers. */
static bl_status to_list(const reader *r, bl_json v, const char *what, size_t max, const uint64_t **out,
                         size_t *count)
{
    bl_json k, e;
    *count = bl_json_count(v);
    if (v.kind != BL_JSON_ARRAY || *count > max) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text,
                       "%s is not an array of at most %zu integers", what, max);
    }
    uint64_t *list = bl_arena_array(r->arena, *count, sizeof *list);
    if (!list) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(to_u64(r, e, what, UINT64_MAX, &list[i]));
    }
    *out = list;
    return BL_OK;
}

static bl_status to_digests(const reader *r, bl_json v, const char *what, const bl_digest **out,
                            size_t *count)
{
    bl_json k, e;
    *count = bl_json_count(v);
    if (v.kind != BL_JSON_ARRAY) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is not an array", what);
    }
    bl_digest *list = bl_arena_array(r->arena, *count, sizeof *list);
    if (!list) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(to_hex(r, e, sizeof list[i].b, list[i].b));
    }
    *out = list;
    return BL_OK;
}

/* A file name inside a folder; in the global manifest also one level down, in a rank's folder. */
static bool file_name_ok(const char *name, size_t n, bool nested)
{
    const char *slash = memchr(name, '/', n);
    if (slash) {
        size_t folder = (size_t)(slash - name);
        return nested && folder >= 9 && memcmp(name, "rank-", 5) == 0 &&
               strspn(name + 5, "0123456789") == folder - 5 && file_name_ok(slash + 1, n - folder - 1, false);
    }
    return n > 0 && n < 256 && name[0] != '.' && strlen(name) == n;
}

static bl_status read_file(const reader *r, bl_json v, bool global, bl_manifest_file *f)
{
    bl_json name = {0}, bytes = {0}, sha = {0}, linked = {0};
    const slot global_slots[] = {{"name", &name, false}, {"bytes", &bytes, false}, {"sha256", &sha, false}};
    const slot rank_slots[] = {{"name", &name, false}, {"bytes", &bytes, false}, {"linked", &linked, true}};
    size_t n = 0;
    BL_TRY(global ? TAKE(r, v, "a file", global_slots) : TAKE(r, v, "a file", rank_slots));
    BL_TRY(to_text(r, name, "a file's name", &f->name, &n));
    if (!file_name_ok(f->name, n, global)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, name.p - r->text,
                       "'%s' may not be the name of a file here", f->name);
    }
    BL_TRY(to_u64(r, bytes, "a file's size", INT64_MAX, &f->bytes));
    if (sha.kind != BL_JSON_NONE && sha.kind != BL_JSON_NULL) {
        BL_TRY(to_hex(r, sha, sizeof f->sha256, f->sha256));
        f->has_sha256 = true;
    }
    return linked.kind == BL_JSON_NONE || bl_json_bool(linked, &f->linked)
               ? BL_OK
               : bad(r, linked, "'linked' is not true or false");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bl_status read_files(const reader *r, bl_json v, bool global, const bl_manifest_file **out,
                            size_t *count)
{
    bl_json k, e;
    if (v.kind != BL_JSON_ARRAY) {
        return bad(r, v, "'files' is not an array");
    }
    *count = bl_json_count(v);
    bl_manifest_file *files = bl_arena_array(r->arena, *count, sizeof *files);
    const char **names = bl_arena_array(r->arena, *count, sizeof *names);
    if (!files || !names) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(read_file(r, e, global, &files[i]));
        names[i] = files[i].name;
    }
    qsort(names, *count, sizeof *names, by_text);
    for (size_t i = 1; i < *count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return bl_fail(r->err, BL_E_INPUT, r->path, NULL, v.p - r->text, "file '%s' is listed twice",
                           names[i]);
        }
    }
    *out = files;
    return BL_OK;
}

static bl_status check_format(const reader *r, bl_json format, bl_json version, const char *want)
{
    uint64_t n;
    if (!bl_json_equals(format, want)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, format.p - r->text, "'format' is not '%s'", want);
    }
    if (!bl_json_u64(version, &n) || n != 1) {
        return bad(r, version, "'version' is not 1: written by another version of the program");
    }
    return BL_OK;
}

static bl_status read_source(const reader *r, bl_json v, bl_manifest *m)
{
    bl_json tensors = {0}, bytes = {0}, config = {0}, index = {0};
    const slot slots[] = {{"tensors", &tensors, false},
                          {"tensor_bytes", &bytes, false},
                          {"config_sha256", &config, false},
                          {"index_sha256", &index, false}};
    BL_TRY(TAKE(r, v, "'source'", slots));
    BL_TRY(to_u64(r, tensors, "'tensors'", INT64_MAX, &m->source_tensors));
    BL_TRY(to_u64(r, bytes, "'tensor_bytes'", INT64_MAX, &m->source_tensor_bytes));
    BL_TRY(to_hex(r, config, sizeof m->source_config_sha256, m->source_config_sha256));
    m->has_source_index_sha256 = index.kind != BL_JSON_NULL;
    return m->has_source_index_sha256
               ? to_hex(r, index, sizeof m->source_index_sha256, m->source_index_sha256)
               : BL_OK;
}

static bl_status read_layout(const reader *r, bl_json v, bl_manifest *m)
{
    bl_json tp = {0}, ep = {0}, pp = {0}, ranks = {0};
    const slot slots[] = {
        {"tp", &tp, false}, {"ep", &ep, false}, {"pp", &pp, false}, {"ranks", &ranks, false}};
    BL_TRY(TAKE(r, v, "'layout'", slots));
    BL_TRY(to_int(r, tp, "'tp'", 1, MAX_RANKS, &m->tp));
    BL_TRY(to_int(r, ep, "'ep'", 1, MAX_RANKS, &m->ep));
    BL_TRY(to_int(r, pp, "'pp'", 1, MAX_RANKS, &m->pp));
    BL_TRY(to_int(r, ranks, "'ranks'", 1, MAX_RANKS, &m->ranks));
    int64_t width = m->tp > m->ep ? m->tp : m->ep;
    if (width * m->pp != m->ranks || (m->tp % m->ep != 0 && m->ep % m->tp != 0)) {
        return bad(r, v,
                   "'layout' does not add up: ranks = pp * max(tp, ep), one of tp and ep divides the other");
    }
    return BL_OK;
}

static bl_status read_dropped(const reader *r, bl_json v, bl_manifest *m)
{
    bl_json k, e;
    if (v.kind != BL_JSON_ARRAY) {
        return bad(r, v, "'dropped' is not an array");
    }
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &e)) {
        unsigned bit = bl_json_equals(e, "dspark")   ? BL_DROP_DSPARK
                       : bl_json_equals(e, "vision") ? BL_DROP_VISION
                                                     : 0;
        if (!bit) {
            return bad(r, e, "'dropped' holds something that is not \"dspark\" or \"vision\"");
        }
        m->dropped |= bit;
    }
    return BL_OK;
}

/* A positive 64-bit integer in decimal digits, as a string. */
static bl_status to_multiplier(const reader *r, bl_json v, int64_t *out)
{
    bl_json digits = {v.p + 1, v.n - 2, BL_JSON_NUMBER};
    bool ok = v.kind == BL_JSON_STRING && v.n > 2 && bl_json_i64(digits, out) && *out > 0;
    return ok ? BL_OK : bad(r, v, "an Engram multiplier is not a positive decimal string below 2^63");
}

static bl_status read_engram(const reader *r, bl_json v, bl_manifest *m)
{
    bl_json k, e, f;
    if (v.kind != BL_JSON_ARRAY) {
        return bad(r, v, "'engram' is not an array");
    }
    size_t count = bl_json_count(v);
    bl_manifest_engram *list = bl_arena_array(r->arena, count, sizeof *list);
    if (!list) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        bl_json layer = {0}, rows = {0}, multipliers = {0};
        const slot slots[] = {
            {"layer", &layer, false}, {"rows", &rows, false}, {"multipliers", &multipliers, false}};
        BL_TRY(TAKE(r, e, "an 'engram' entry", slots));
        BL_TRY(to_int(r, layer, "'layer'", 0, INT_MAX, &list[i].layer));
        BL_TRY(to_u64(r, rows, "'rows'", INT64_MAX, &list[i].rows));
        list[i].multiplier_count = bl_json_count(multipliers);
        int64_t *values = bl_arena_array(r->arena, list[i].multiplier_count, sizeof *values);
        if (multipliers.kind != BL_JSON_ARRAY || (i > 0 && list[i].layer <= list[i - 1].layer)) {
            return bad(r, e, "'engram' needs ascending layers, each with an array of multipliers");
        }
        if (!values) {
            return no_memory(r);
        }
        bl_json_iter inner = bl_json_begin(multipliers);
        for (size_t j = 0; bl_json_next(&inner, &k, &f); j++) {
            BL_TRY(to_multiplier(r, f, &values[j]));
        }
        list[i].multipliers = values;
    }
    m->engram = list;
    m->engram_count = count;
    return BL_OK;
}

static bl_status parse(reader *r, size_t n, bl_json *root)
{
    const bl_json_limits limits = {
        .max_bytes = BL_MANIFEST_MAX_BYTES, .max_depth = 8, .refuse_lone_surrogates = true};
    return bl_json_parse(r->text, n, &limits, r->path, root, r->err);
}

bl_status bl_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_manifest *out,
                            bl_error *err)
{
    reader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, writer = {0}, source = {0}, layout = {0}, dropped = {0},
                  chunk = {0}, engram = {0}, files = {0};
    const slot slots[] = {
        {"format", &format, false},     {"version", &version, false}, {"writer", &writer, false},
        {"source", &source, false},     {"layout", &layout, false},   {"dropped", &dropped, false},
        {"chunk_bytes", &chunk, false}, {"engram", &engram, false},   {"files", &files, false}};
    size_t length;
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    BL_TRY(parse(&r, n, &root));
    BL_TRY(check_format(&r, bl_json_get(root, "format"), bl_json_get(root, "version"), "baleen-packed"));
    BL_TRY(TAKE(&r, root, "the manifest", slots));
    BL_TRY(to_text(&r, writer, "'writer'", &out->writer, &length));
    BL_TRY(read_source(&r, source, out));
    BL_TRY(read_layout(&r, layout, out));
    BL_TRY(read_dropped(&r, dropped, out));
    BL_TRY(to_u64(&r, chunk, "'chunk_bytes'", INT64_MAX, &bytes));
    if (bytes != BL_CHUNK_BYTES) {
        return bad(&r, chunk, "'chunk_bytes' is not 8388608");
    }
    BL_TRY(read_engram(&r, engram, out));
    return read_files(&r, files, true, &out->files, &out->file_count);
}

static bl_status read_value(const reader *r, bl_json v, bl_manifest_tensor *t)
{
    bl_json kind = {0}, shape = {0}, digests = {0};
    const slot slots[] = {{"class", &kind, false}, {"shape", &shape, false}, {"digests", &digests, false}};
    size_t ndim;
    if (v.kind == BL_JSON_NULL) {
        return BL_OK;
    }
    BL_TRY(TAKE(r, v, "'value'", slots));
    for (int c = BL_VALUE_MATRIX; c <= BL_VALUE_BYTES; c++) {
        if (bl_json_equals(kind, bl_value_class_name((bl_value_class)c))) {
            t->value_class = (bl_value_class)c;
        }
    }
    if (t->value_class == BL_VALUE_NONE) {
        return bad(r, kind, "an unknown value class");
    }
    BL_TRY(to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->value_shape, &ndim));
    t->value_ndim = (uint32_t)ndim;
    BL_TRY(to_digests(r, digests, "'digests'", &t->values, &t->value_count));
    bool stacked = t->tensor.ndim == 3 && t->value_ndim == 2;
    if (t->value_count != (stacked ? t->tensor.shape[0] : 1)) {
        return bad(r, digests, "'digests' has the wrong number of entries");
    }
    return BL_OK;
}

static bl_status check_slice(const reader *r, bl_json at, const bl_manifest_tensor *t)
{
    for (uint32_t i = 0; i < t->tensor.ndim; i++) {
        uint64_t end;
        if (bl_add_overflow(t->start[i], t->tensor.shape[i], &end) || end > t->global_shape[i]) {
            return bad(r, at, "'start' and 'shape' reach past 'global_shape'");
        }
    }
    return BL_OK;
}

static bl_status read_place(const reader *r, bl_json file, bl_json offset, const bl_rank_manifest *m,
                            bl_tensor *t)
{
    uint64_t index, end;
    BL_TRY(to_u64(r, file, "'file'", UINT32_MAX, &index));
    BL_TRY(to_u64(r, offset, "'offset'", INT64_MAX, &t->offset));
    if (index >= m->file_count) {
        return bad(r, file, "'file' is past the end of 'files'");
    }
    t->file = (uint32_t)index;
    if (bl_add_overflow(t->offset, t->nbytes, &end) || end > m->files[index].bytes) {
        return bad(r, offset, "reaches past the end of its file");
    }
    return BL_OK;
}

static bl_status read_tensor(reader *r, bl_json v, const bl_rank_manifest *m, bl_manifest_tensor *t)
{
    bl_json name = {0}, dtype = {0}, shape = {0}, file = {0}, offset = {0}, start = {0}, global = {0},
            chunks = {0}, value = {0};
    const slot slots[] = {
        {"name", &name, false},           {"dtype", &dtype, false},   {"shape", &shape, false},
        {"file", &file, false},           {"offset", &offset, false}, {"start", &start, false},
        {"global_shape", &global, false}, {"chunks", &chunks, false}, {"value", &value, false}};
    const char *type;
    size_t n, ndim, starts, globals;
    r->tensor = NULL;
    BL_TRY(TAKE(r, v, "a tensor", slots));
    BL_TRY(to_text(r, name, "a tensor's name", &t->tensor.name, &n));
    r->tensor = t->tensor.name;
    if (!bl_tensor_name_ok(t->tensor.name, n)) {
        return bad(r, name, "not a legal tensor name");
    }
    BL_TRY(to_text(r, dtype, "'dtype'", &type, &n));
    t->tensor.dtype = bl_dtype_parse(type, n);
    BL_TRY(to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->tensor.shape, &ndim));
    t->tensor.ndim = (uint32_t)ndim;
    if (!bl_tensor_size(t->tensor.dtype, t->tensor.shape, t->tensor.ndim, &t->tensor.nbytes)) {
        return bad(r, shape, "dtype and shape give no size");
    }
    BL_TRY(to_list(r, start, "'start'", BL_MAX_DIMS, &t->start, &starts));
    BL_TRY(to_list(r, global, "'global_shape'", BL_MAX_DIMS, &t->global_shape, &globals));
    if (starts != ndim || globals != ndim) {
        return bad(r, start, "'shape', 'start' and 'global_shape' differ in length");
    }
    BL_TRY(check_slice(r, start, t));
    BL_TRY(read_place(r, file, offset, m, &t->tensor));
    BL_TRY(to_digests(r, chunks, "'chunks'", &t->chunks, &t->chunk_count));
    if (t->chunk_count != bl_chunk_count(t->tensor.nbytes)) {
        return bad(r, chunks, "'chunks' has the wrong number of entries");
    }
    return read_value(r, value, t);
}

bl_status bl_rank_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena,
                                 bl_rank_manifest *out, bl_error *err)
{
    reader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, rank = {0}, files = {0}, tensors = {0}, k, e;
    const slot slots[] = {{"format", &format, false},
                          {"version", &version, false},
                          {"rank", &rank, false},
                          {"files", &files, false},
                          {"tensors", &tensors, false}};
    memset(out, 0, sizeof *out);
    BL_TRY(parse(&r, n, &root));
    BL_TRY(check_format(&r, bl_json_get(root, "format"), bl_json_get(root, "version"), "baleen-packed-rank"));
    BL_TRY(TAKE(&r, root, "the manifest", slots));
    BL_TRY(to_int(&r, rank, "'rank'", 0, MAX_RANKS - 1, &out->rank));
    BL_TRY(read_files(&r, files, false, &out->files, &out->file_count));
    if (tensors.kind != BL_JSON_ARRAY) {
        return bad(&r, tensors, "'tensors' is not an array");
    }
    out->tensor_count = bl_json_count(tensors);
    bl_manifest_tensor *list = bl_arena_array(arena, out->tensor_count, sizeof *list);
    if (!list) {
        return no_memory(&r);
    }
    bl_json_iter it = bl_json_begin(tensors);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(read_tensor(&r, e, out, &list[i]));
        if (i > 0 && strcmp(list[i - 1].tensor.name, list[i].tensor.name) >= 0) {
            return bad(&r, e, "'tensors' is not sorted by name, or names one twice");
        }
    }
    out->tensors = list;
    return BL_OK;
}

/* folder/sub/manifest.json: its path in the arena, its text malloc'd. */
static bl_status slurp(const char *folder, const char *sub, bl_arena *arena, const char **path, char **text,
                       size_t *n, bl_error *err)
{
    size_t size = strlen(folder) + strlen(sub) + 20;
    char *p = bl_arena_alloc(arena, size);
    *text = NULL;
    if (!p) {
        return bl_fail(err, BL_E_NOMEM, folder, NULL, -1, "out of memory");
    }
    snprintf(p, size, "%s%s%s/manifest.json", folder, *sub ? "/" : "", sub);
    *path = p;
    return bl_file_slurp(p, BL_MANIFEST_MAX_BYTES, text, n, err);
}

bl_status bl_manifest_read(const char *folder, bl_arena *arena, bl_manifest *out, bl_error *err)
{
    const char *path = NULL;
    char *text;
    size_t n;
    BL_TRY(slurp(folder, "", arena, &path, &text, &n, err));
    bl_status s = bl_manifest_parse(text, n, path, arena, out, err);
    free(text);
    return s;
}

bl_status bl_rank_manifest_read(const char *folder, int rank, bl_arena *arena, bl_rank_manifest *out,
                                bl_error *err)
{
    const char *path = NULL;
    char *text, sub[16];
    size_t n;
    BL_TRY(slurp(folder, bl_rank_folder(sub, rank), arena, &path, &text, &n, err));
    bl_status s = bl_rank_manifest_parse(text, n, path, arena, out, err);
    free(text);
    if (s == BL_OK && out->rank != rank) {
        s = bl_fail(err, BL_E_INPUT, path, NULL, -1, "is the manifest of rank %d", out->rank);
    }
    return s;
}

static int name_against_tensor(const void *name, const void *t)
{
    return strcmp(name, ((const bl_manifest_tensor *)t)->tensor.name);
}

const bl_manifest_tensor *bl_rank_manifest_find(const bl_rank_manifest *m, const char *name)
{
    return m->tensor_count
               ? bsearch(name, m->tensors, m->tensor_count, sizeof *m->tensors, name_against_tensor)
               : NULL;
}
