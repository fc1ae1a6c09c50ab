/* rank-NNNN/manifest.json. */
#include "formats/manifest.h"

#include "formats/manifest_read.h"
#include "formats/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "unit": two powers of two up to 32, not both 32. */
static bl_status read_unit(const bl_mreader *r, bl_json v, bl_manifest_tensor *t)
{
    const uint64_t *unit;
    size_t n = 0;
    if (v.kind == BL_JSON_NONE) {
        return BL_OK;
    }
    BL_TRY(bl_mread_to_list(r, v, "'unit'", BL_MAX_DIMS, &unit, &n));
    bool ok = n == 2 && t->value_class == BL_VALUE_MATRIX && !(unit[0] == 32 && unit[1] == 32);
    for (size_t i = 0; ok && i < 2; i++) {
        ok = unit[i] >= 1 && unit[i] <= 32 && (unit[i] & (unit[i] - 1)) == 0;
        t->value_unit[i] = (uint32_t)unit[i];
    }
    return ok ? BL_OK : bl_mread_bad(r, v, "'unit' is not a part of a matrix's tile of 32x32: two powers of two");
}

static bl_status read_value(const bl_mreader *r, bl_json v, bl_manifest_tensor *t)
{
    bl_json kind = {0}, shape = {0}, digests = {0}, unit = {0};
    const bl_mread_slot slots[] = {
        {"class", &kind, false}, {"shape", &shape, false}, {"digests", &digests, false}, {"unit", &unit, true}};
    size_t ndim;
    if (v.kind == BL_JSON_NULL) {
        return BL_OK;
    }
    BL_TRY(BL_MREAD_TAKE(r, v, "'value'", slots));
    BL_TRY(bl_mread_to_value_class(r, kind, &t->value_class));
    BL_TRY(bl_mread_to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->value_shape, &ndim));
    t->value_ndim = (uint32_t)ndim;
    BL_TRY(bl_mread_to_digests(r, digests, "'digests'", &t->values, &t->value_count));
    BL_TRY(read_unit(r, unit, t));
    bool stacked = t->tensor.ndim == 3 && t->value_ndim == 2;
    if (t->value_count != (stacked ? t->tensor.shape[0] : 1)) {
        return bl_mread_bad(r, digests, "'digests' has the wrong number of entries");
    }
    return BL_OK;
}

static bl_status check_slice(const bl_mreader *r, bl_json at, const bl_manifest_tensor *t)
{
    for (uint32_t i = 0; i < t->tensor.ndim; i++) {
        uint64_t end;
        if (bl_add_overflow(t->start[i], t->tensor.shape[i], &end) || end > t->global_shape[i]) {
            return bl_mread_bad(r, at, "'start' and 'shape' reach past 'global_shape'");
        }
    }
    return BL_OK;
}

static bl_status read_place(const bl_mreader *r, bl_json file, bl_json offset, const bl_rank_manifest *m,
                            bl_tensor *t)
{
    uint64_t index, end;
    BL_TRY(bl_mread_to_u64(r, file, "'file'", UINT32_MAX, &index));
    BL_TRY(bl_mread_to_u64(r, offset, "'offset'", INT64_MAX, &t->offset));
    if (index >= m->file_count) {
        return bl_mread_bad(r, file, "'file' is past the end of 'files'");
    }
    t->file = (uint32_t)index;
    if (bl_add_overflow(t->offset, t->nbytes, &end) || end > m->files[index].bytes) {
        return bl_mread_bad(r, offset, "reaches past the end of its file");
    }
    return BL_OK;
}

static bl_status read_tensor(bl_mreader *r, bl_json v, const bl_rank_manifest *m, bl_manifest_tensor *t)
{
    bl_json name = {0}, dtype = {0}, shape = {0}, file = {0}, offset = {0}, start = {0}, global = {0},
            chunks = {0}, value = {0};
    const bl_mread_slot slots[] = {
        {"name", &name, false},           {"dtype", &dtype, false},   {"shape", &shape, false},
        {"file", &file, false},           {"offset", &offset, false}, {"start", &start, false},
        {"global_shape", &global, false}, {"chunks", &chunks, false}, {"value", &value, false}};
    const char *type;
    size_t n, ndim, starts, globals;
    r->tensor = NULL;
    BL_TRY(BL_MREAD_TAKE(r, v, "a tensor", slots));
    BL_TRY(bl_mread_to_text(r, name, "a tensor's name", &t->tensor.name, &n));
    r->tensor = t->tensor.name;
    if (!bl_tensor_name_ok(t->tensor.name, n)) {
        return bl_mread_bad(r, name, "not a legal tensor name");
    }
    BL_TRY(bl_mread_to_text(r, dtype, "'dtype'", &type, &n));
    t->tensor.dtype = bl_dtype_parse(type, n);
    BL_TRY(bl_mread_to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->tensor.shape, &ndim));
    t->tensor.ndim = (uint32_t)ndim;
    if (!bl_tensor_size(t->tensor.dtype, t->tensor.shape, t->tensor.ndim, &t->tensor.nbytes)) {
        return bl_mread_bad(r, shape, "dtype and shape give no size");
    }
    BL_TRY(bl_mread_to_list(r, start, "'start'", BL_MAX_DIMS, &t->start, &starts));
    BL_TRY(bl_mread_to_list(r, global, "'global_shape'", BL_MAX_DIMS, &t->global_shape, &globals));
    if (starts != ndim || globals != ndim) {
        return bl_mread_bad(r, start, "'shape', 'start' and 'global_shape' differ in length");
    }
    BL_TRY(check_slice(r, start, t));
    BL_TRY(read_place(r, file, offset, m, &t->tensor));
    BL_TRY(bl_mread_to_digests(r, chunks, "'chunks'", &t->chunks, &t->chunk_count));
    if (t->chunk_count != bl_chunk_count(t->tensor.nbytes)) {
        return bl_mread_bad(r, chunks, "'chunks' has the wrong number of entries");
    }
    return read_value(r, value, t);
}

bl_status bl_rank_manifest_parse(const char *text, size_t n, const char *path, bl_arena *arena,
                                 bl_rank_manifest *out, bl_error *err)
{
    bl_mreader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, rank = {0}, files = {0}, tensors = {0}, k, e;
    const bl_mread_slot slots[] = {{"format", &format, false},
                                   {"version", &version, false},
                                   {"rank", &rank, false},
                                   {"files", &files, false},
                                   {"tensors", &tensors, false}};
    memset(out, 0, sizeof *out);
    BL_TRY(bl_mread_root(&r, n, "baleen-packed-rank", &root));
    BL_TRY(BL_MREAD_TAKE(&r, root, "the manifest", slots));
    BL_TRY(bl_mread_to_int(&r, rank, "'rank'", 0, BL_MAX_RANKS - 1, &out->rank));
    BL_TRY(bl_mread_files(&r, files, out->rank, &out->files, &out->file_count));
    if (tensors.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(&r, tensors, "'tensors' is not an array");
    }
    out->tensor_count = bl_json_count(tensors);
    bl_manifest_tensor *list = bl_arena_array(arena, out->tensor_count, sizeof *list);
    if (!list) {
        return bl_mread_no_memory(&r);
    }
    bl_json_iter it = bl_json_begin(tensors);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(read_tensor(&r, e, out, &list[i]));
        if (i > 0 && strcmp(list[i - 1].tensor.name, list[i].tensor.name) >= 0) {
            return bl_mread_bad(&r, e, "'tensors' is not sorted by name, or names one twice");
        }
    }
    out->tensors = list;
    return BL_OK;
}

bl_status bl_rank_manifest_read(const char *folder, int rank, bl_arena *arena, bl_rank_manifest *out,
                                bl_error *err)
{
    const char *path = NULL;
    char *text, sub[16];
    size_t n;
    BL_TRY(bl_mread_slurp(folder, bl_rank_folder(sub, rank), arena, &path, &text, &n, err));
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

/* What holds folder, as it may be named from here: malloc'd, NULL without memory. */
static char *folder_above(const char *folder)
{
    char *plain = bl_folder_plain(folder), *slash = plain ? strrchr(plain, '/') : NULL, *above = NULL;
    if (plain) {
        bool dots = !strcmp(plain, ".") || !strcmp(plain, "..") || (slash && (!strcmp(slash, "/.") || !strcmp(slash, "/..")));
        if (dots && asprintf(&above, "%s/..", plain) < 0) {
            above = NULL;
        } else if (!dots) {
            above = !slash ? strdup(".") : strndup(plain, slash == plain ? 1 : (size_t)(slash - plain));
        }
    }
    free(plain);
    return above;
}

bl_status bl_rank_folder_check(const char *folder, bl_error *err)
{
    bl_arena arena = {0};
    const char *path = NULL;
    char *text = NULL;
    size_t n;
    bl_json root;
    uint64_t rank = 0;
    bl_status s = BL_OK;
    if (bl_mread_slurp(folder, "", &arena, &path, &text, &n, NULL) == BL_OK && bl_json_parse(text, n, NULL, path, &root, NULL) == BL_OK &&
        root.kind == BL_JSON_OBJECT && bl_json_equals(bl_json_get(root, "format"), "baleen-packed-rank") &&
        bl_json_u64(bl_json_get(root, "rank"), &rank)) {
        char *above = folder_above(folder);
        s = bl_fail(err, BL_E_INPUT, folder, NULL, -1,
                    "is the folder of rank %llu alone: name the one that holds it, %s ('baleen verify --rank %llu' proves one rank)",
                    (unsigned long long)rank, above ? above : "above it", (unsigned long long)rank);
        free(above);
    }
    free(text);
    bl_arena_reset(&arena);
    return s;
}
