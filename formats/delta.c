#include "formats/delta.h"

#include "formats/foreign.h"
#include "formats/manifest_read.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bl_delta_encoding_name(bl_delta_encoding e)
{
    static const char *const names[] = {[BL_DELTA_XOR] = "xor", [BL_DELTA_RANGES] = "ranges", [BL_DELTA_AUTO] = "auto"};
    return names[e];
}

/* "xor" or "ranges", or "auto" where last is BL_DELTA_AUTO. */
static bool parse_encoding(bl_json v, bl_delta_encoding last, bl_delta_encoding *out)
{
    for (*out = BL_DELTA_XOR; *out <= last; ++*out) {
        if (bl_json_equals(v, bl_delta_encoding_name(*out))) {
            return true;
        }
    }
    return false;
}

char *bl_delta_file_name(char *buf, size_t i)
{
    snprintf(buf, 32, "delta-%05zu.safetensors", i + 1);
    return buf;
}

/* ---- reading */

/* of: how the delta is encoded. */
static bl_status read_tensor(bl_mreader *r, bl_json v, bl_delta_encoding of, uint64_t at, bl_delta_tensor *t)
{
    bl_json name = {0}, encoding = {0}, offset = {0}, nbytes = {0}, bytes = {0}, digest = {0}, base = {0}, target = {0};
    const bl_mread_slot slots[] = {{"name", &name, false},   {"offset", &offset, false}, {"nbytes", &nbytes, false},
                                   {"bytes", &bytes, false}, {"xxh3", &digest, false},   {"base", &base, false},
                                   {"target", &target, false}, {"encoding", &encoding, true}};
    size_t n;
    r->tensor = NULL;
    BL_TRY(BL_MREAD_TAKE(r, v, "a tensor", slots));
    BL_TRY(bl_mread_to_text(r, name, "a tensor's name", &t->name, &n));
    r->tensor = t->name;
    BL_TRY(bl_mread_to_u64(r, offset, "'offset'", INT64_MAX, &t->offset));
    BL_TRY(bl_mread_to_u64(r, nbytes, "'nbytes'", INT64_MAX, &t->nbytes));
    BL_TRY(bl_mread_to_u64(r, bytes, "'bytes'", INT64_MAX, &t->bytes));
    BL_TRY(bl_mread_to_hex(r, digest, sizeof t->digest.b, t->digest.b));
    BL_TRY(bl_mread_to_hex(r, base, sizeof t->base.b, t->base.b));
    BL_TRY(bl_mread_to_hex(r, target, sizeof t->target.b, t->target.b));
    if (!bl_tensor_name_ok(t->name, n)) {
        return bl_mread_bad(r, name, "not a legal tensor name");
    }
    t->encoding = of;
    if (of == BL_DELTA_AUTO ? !parse_encoding(encoding, BL_DELTA_RANGES, &t->encoding) : encoding.kind != BL_JSON_NONE) {
        return bl_mread_bad(r, encoding, "'encoding' is \"xor\" or \"ranges\" for every tensor where it is \"auto\" for the delta, else for none");
    }
    if (t->offset != at || t->nbytes == 0 || t->nbytes > INT64_MAX - at) {
        return bl_mread_bad(r, offset, "streams do not follow each other");
    }
    return bl_digest_equal(&t->base, &t->target) ? bl_mread_bad(r, target, "a tensor that has not changed") : BL_OK;
}

static bl_status read_file(bl_mreader *r, bl_json v, bl_delta *out)
{
    bl_json name = {0}, bucket = {0}, at = {0}, nbytes = {0}, digest = {0}, tensors = {0}, k, e;
    const bl_mread_slot slots[] = {{"name", &name, false},     {"bucket", &bucket, false}, {"data_offset", &at, false},
                                   {"nbytes", &nbytes, false}, {"xxh3", &digest, false},   {"tensors", &tensors, false}};
    bl_delta_file *f = &out->files[out->count];
    char want[32];
    uint64_t index, end = 0;
    size_t n;
    r->tensor = NULL;
    BL_TRY(BL_MREAD_TAKE(r, v, "a file", slots));
    BL_TRY(bl_mread_to_u64(r, bucket, "'bucket'", UINT32_MAX - 1, &index));
    f->bucket = (size_t)index;
    BL_TRY(bl_mread_to_text(r, name, "a file's name", &f->name, &n));
    if (strcmp(f->name, bl_delta_file_name(want, f->bucket)) != 0 || (out->count && f->bucket <= f[-1].bucket)) {
        return bl_mread_bad(r, name, "a file that is not named for its bucket, or out of order");
    }
    BL_TRY(bl_mread_to_u64(r, at, "'data_offset'", BL_ST_MAX_HEADER + BL_BUCKETS_MAX_ALIGN, &f->data_offset));
    BL_TRY(bl_mread_to_u64(r, nbytes, "'nbytes'", INT64_MAX, &f->nbytes));
    BL_TRY(bl_mread_to_hex(r, digest, sizeof f->digest.b, f->digest.b));
    if (tensors.kind != BL_JSON_ARRAY || !(n = bl_json_count(tensors))) {
        return bl_mread_bad(r, tensors, "'tensors' is not an array, or empty");
    }
    f->tensors = bl_arena_array(r->arena, n, sizeof *f->tensors);
    if (!f->tensors) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(tensors);
    for (; bl_json_next(&it, &k, &e); f->count++) {
        BL_TRY(read_tensor(r, e, out->encoding, end, &f->tensors[f->count]));
        end += f->tensors[f->count].nbytes;
    }
    r->tensor = NULL;
    out->count++;
    return end == f->nbytes ? BL_OK : bl_mread_bad(r, nbytes, "'nbytes' is not where its last stream ends");
}

bl_status bl_delta_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_delta *out, bl_error *err)
{
    bl_mreader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, writer = {0}, encoding = {0}, base = {0}, target = {0}, files = {0}, k, e;
    const bl_mread_slot slots[] = {{"format", &format, false}, {"version", &version, false}, {"writer", &writer, false},
                                   {"encoding", &encoding, false}, {"base", &base, false},   {"target", &target, false},
                                   {"files", &files, false}};
    size_t length;
    *out = (bl_delta){0};
    BL_TRY(bl_mread_root(&r, n, "baleen-bucket-delta", &root));
    BL_TRY(BL_MREAD_TAKE(&r, root, "the description of the delta", slots));
    BL_TRY(bl_mread_to_text(&r, writer, "'writer'", &out->writer, &length));
    BL_TRY(bl_mread_to_hex(&r, base, sizeof out->base.b, out->base.b));
    BL_TRY(bl_mread_to_hex(&r, target, sizeof out->target.b, out->target.b));
    if (!parse_encoding(encoding, BL_DELTA_AUTO, &out->encoding)) {
        return bl_mread_bad(&r, encoding, "'encoding' is neither 'xor', 'ranges' nor 'auto'");
    }
    if (files.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(&r, files, "'files' is not an array");
    }
    out->files = bl_arena_array(arena, bl_json_count(files), sizeof *out->files);
    if (!out->files) {
        return bl_mread_no_memory(&r);
    }
    bl_json_iter it = bl_json_begin(files);
    while (bl_json_next(&it, &k, &e)) {
        BL_TRY(read_file(&r, e, out));
    }
    return BL_OK;
}

bool bl_delta_recognise(const char *folder)
{
    return bl_sync_recognise(folder, BL_DELTA_NAME, BL_DELTA_TARGET_NAME);
}

bl_status bl_delta_read(const char *folder, bl_arena *arena, bl_delta *out, bl_error *err)
{
    char *path = bl_path_join(arena, folder, BL_DELTA_NAME), *text;
    size_t n;
    if (!path) {
        return bl_fail(err, BL_E_NOMEM, folder, NULL, -1, "out of memory");
    }
    BL_TRY(bl_sync_there(folder, BL_DELTA_NAME, bl_delta_recognise(folder), "delta of weight-sync buckets", err));
    BL_TRY(bl_foreign_slurp(path, BL_MANIFEST_MAX_BYTES, &text, &n, err));
    bl_status s = bl_delta_parse(text, n, path, arena, out, err);
    free(text);
    return s;
}

/* ---- writing */

static void put_digest(FILE *f, const char *key, const bl_digest *d)
{
    char text[40];
    fprintf(f, ", \"%s\": \"%s\"", key, bl_hex_encode(text, d->b, sizeof d->b));
}

static void put_file(FILE *f, const bl_delta_file *d, bl_delta_encoding of)
{
    fprintf(f, "{\"name\": \"%s\", \"bucket\": %zu, \"data_offset\": %" PRIu64 ", \"nbytes\": %" PRIu64, d->name, d->bucket,
            d->data_offset, d->nbytes);
    put_digest(f, "xxh3", &d->digest);
    fputs(", \"tensors\": [", f);
    for (size_t i = 0; i < d->count; i++) {
        const bl_delta_tensor *t = &d->tensors[i];
        fputs(i ? ",\n  {\"name\": " : "\n  {\"name\": ", f);
        bl_json_put(f, t->name);
        fprintf(f, ", \"offset\": %" PRIu64 ", \"nbytes\": %" PRIu64 ", \"bytes\": %" PRIu64, t->offset, t->nbytes, t->bytes);
        if (of == BL_DELTA_AUTO) {
            fprintf(f, ", \"encoding\": \"%s\"", bl_delta_encoding_name(t->encoding));
        }
        put_digest(f, "xxh3", &t->digest);
        put_digest(f, "base", &t->base);
        put_digest(f, "target", &t->target);
        fputs("}", f);
    }
    fputs("]}", f);
}

bl_status bl_delta_text(const bl_delta *d, char **text, size_t *n, bl_error *err)
{
    bl_arena arena = {0};
    bl_delta again;
    bl_error e = {0};
    FILE *f = open_memstream(text, n);
    if (!f) {
        return bl_fail(err, BL_E_NOMEM, BL_DELTA_NAME, NULL, -1, "out of memory");
    }
    fputs("{\"format\": \"baleen-bucket-delta\",\n\"version\": 1,\n\"writer\": ", f);
    bl_json_put(f, d->writer);
    fprintf(f, ",\n\"encoding\": \"%s\"", bl_delta_encoding_name(d->encoding));
    put_digest(f, "base", &d->base);
    put_digest(f, "target", &d->target);
    fputs(",\n\"files\": [", f);
    for (size_t i = 0; i < d->count; i++) {
        fputs(i ? ",\n " : "\n ", f);
        put_file(f, &d->files[i], d->encoding);
    }
    fputs("]}\n", f);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    bl_status s = bad ? bl_fail(&e, BL_E_NOMEM, NULL, NULL, -1, "out of memory")
                      : bl_delta_parse(*text, *n, BL_DELTA_NAME, &arena, &again, &e);
    bl_arena_reset(&arena);
    if (s != BL_OK) {
        free(*text);
        *text = NULL;
        return bl_fail(err, s == BL_E_INPUT ? BL_E_INTERNAL : s, BL_DELTA_NAME, e.tensor, e.offset, "%s", e.message);
    }
    return BL_OK;
}
