/* What the readers of the two manifests share. */
#include "formats/manifest_read.h"

#include "formats/foreign.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bl_status bl_mread_bad(const bl_mreader *r, bl_json at, const char *what)
{
    return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, at.p ? (int64_t)(at.p - r->text) : -1, "%s", what);
}

bl_status bl_mread_no_memory(const bl_mreader *r)
{
    return bl_fail(r->err, BL_E_NOMEM, r->path, NULL, -1, "out of memory for a manifest");
}

bl_status bl_mread_take(const bl_mreader *r, bl_json object, const char *what, const bl_mread_slot *slots,
                        size_t count)
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

bl_status bl_mread_to_u64(const bl_mreader *r, bl_json v, const char *what, uint64_t max, uint64_t *out)
{
    if (!bl_json_u64(v, out) || *out > max) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text,
                       "%s is not an integer from 0 to %" PRIu64, what, max);
    }
    return BL_OK;
}

bl_status bl_mread_to_int(const bl_mreader *r, bl_json v, const char *what, int min, int max, int *out)
{
    uint64_t u;
    BL_TRY(bl_mread_to_u64(r, v, what, (uint64_t)max, &u));
    *out = (int)u;
    return *out >= min ? BL_OK
                       : bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is less than %d",
                                 what, min);
}

bl_status bl_mread_to_text(const bl_mreader *r, bl_json v, const char *what, const char **out, size_t *n)
{
    char *s = v.kind == BL_JSON_STRING ? bl_arena_alloc(r->arena, v.n) : NULL;
    if (v.kind != BL_JSON_STRING) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is not a string", what);
    }
    if (!s) {
        return bl_mread_no_memory(r);
    }
    *n = bl_json_string(v, s, v.n);
    *out = s;
    return bl_text_is_clean(s, *n) ? BL_OK : bl_mread_bad(r, v, "a string with control characters");
}

bl_status bl_mread_to_hex(const bl_mreader *r, bl_json v, size_t n, void *out)
{
    bool ok = v.kind == BL_JSON_STRING && v.n == 2 * n + 2 && bl_hex_decode(out, v.p + 1, 2 * n);
    return ok ? BL_OK
              : bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text,
                        "not a digest of %zu hexadecimal digits", 2 * n);
}

bl_status bl_mread_to_value_class(const bl_mreader *r, bl_json v, bl_value_class *out)
{
    for (int c = BL_VALUE_MATRIX; c <= BL_VALUE_BYTES; c++) {
        if (bl_json_equals(v, bl_value_class_name((bl_value_class)c))) {
            *out = (bl_value_class)c;
            return BL_OK;
        }
    }
    return bl_mread_bad(r, v, "an unknown value class");
}

bl_status bl_mread_to_list(const bl_mreader *r, bl_json v, const char *what, size_t max, const uint64_t **out,
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
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(bl_mread_to_u64(r, e, what, UINT64_MAX, &list[i]));
    }
    *out = list;
    return BL_OK;
}

bl_status bl_mread_to_digests(const bl_mreader *r, bl_json v, const char *what, const bl_digest **out,
                              size_t *count)
{
    bl_json k, e;
    *count = bl_json_count(v);
    if (v.kind != BL_JSON_ARRAY) {
        return bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, v.p - r->text, "%s is not an array", what);
    }
    bl_digest *list = bl_arena_array(r->arena, *count, sizeof *list);
    if (!list) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(bl_mread_to_hex(r, e, sizeof list[i].b, list[i].b));
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

static bl_status read_file(const bl_mreader *r, bl_json v, int rank, bl_manifest_file *f)
{
    bool global = rank < 0;
    bl_json name = {0}, bytes = {0}, sha = {0}, linked = {0}, owner = {0};
    const bl_mread_slot global_slots[] = {
        {"name", &name, false}, {"bytes", &bytes, false}, {"sha256", &sha, false}};
    const bl_mread_slot rank_slots[] = {
        {"name", &name, false}, {"bytes", &bytes, false}, {"linked", &linked, true}, {"rank", &owner, true}};
    size_t n = 0;
    BL_TRY(global ? BL_MREAD_TAKE(r, v, "a file", global_slots) : BL_MREAD_TAKE(r, v, "a file", rank_slots));
    BL_TRY(bl_mread_to_text(r, name, "a file's name", &f->name, &n));
    if (!file_name_ok(f->name, n, global)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, name.p - r->text,
                       "'%s' may not be the name of a file here", f->name);
    }
    BL_TRY(bl_mread_to_u64(r, bytes, "a file's size", INT64_MAX, &f->bytes));
    if (sha.kind != BL_JSON_NONE && sha.kind != BL_JSON_NULL) {
        BL_TRY(bl_mread_to_hex(r, sha, sizeof f->sha256, f->sha256));
        f->has_sha256 = true;
    }
    f->rank = global ? 0 : rank;
    if (owner.kind != BL_JSON_NONE) {
        BL_TRY(bl_mread_to_int(r, owner, "a file's rank", 0, BL_MAX_RANKS - 1, &f->rank));
    }
    return linked.kind == BL_JSON_NONE || bl_json_bool(linked, &f->linked)
               ? BL_OK
               : bl_mread_bad(r, linked, "'linked' is not true or false");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bl_status bl_mread_files(const bl_mreader *r, bl_json v, int rank, const bl_manifest_file **out,
                         size_t *count)
{
    bl_json k, e;
    if (v.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(r, v, "'files' is not an array");
    }
    *count = bl_json_count(v);
    bl_manifest_file *files = bl_arena_array(r->arena, *count, sizeof *files);
    const char **names = bl_arena_array(r->arena, *count, sizeof *names);
    if (!files || !names) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(v);
    for (size_t i = 0; bl_json_next(&it, &k, &e); i++) {
        BL_TRY(read_file(r, e, rank, &files[i]));
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

bl_status bl_mread_root(const bl_mreader *r, size_t n, const char *want, bl_json *root)
{
    const bl_json_limits limits = {
        .max_bytes = BL_MANIFEST_MAX_BYTES, .max_depth = 8, .refuse_lone_surrogates = true};
    uint64_t number;
    BL_TRY(bl_json_parse(r->text, n, &limits, r->path, root, r->err));
    if (!bl_json_equals(bl_json_get(*root, "format"), want)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, -1, "'format' is not '%s'", want);
    }
    if (!bl_json_u64(bl_json_get(*root, "version"), &number) || number != 1) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, -1,
                       "'version' is not 1: written by another version of the program");
    }
    return BL_OK;
}

bl_status bl_mread_slurp(const char *folder, const char *sub, bl_arena *arena, const char **path, char **text,
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
    return bl_foreign_slurp(p, BL_MANIFEST_MAX_BYTES, text, n, err);
}
