/* Writing buckets.json, and the same for serving engines. */
#include "formats/buckets.h"
#include "formats/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static bl_status no_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, BL_BUCKETS_NAME, NULL, -1, "out of memory");
}

static void put_shape(FILE *f, const uint64_t *shape, uint32_t ndim)
{
    fputs("[", f);
    for (uint32_t i = 0; i < ndim; i++) {
        fprintf(f, "%s%" PRIu64, i ? ", " : "", shape[i]);
    }
    fputs("]", f);
}

static void put_digest(FILE *f, const bl_digest *d)
{
    char text[40];
    fprintf(f, "\"%s\"", bl_hex_encode(text, d->b, sizeof d->b));
}

static void put_slice(FILE *f, const bl_bucket_tensor *t)
{
    if (t->of) {
        fputs(", \"slice\": {\"of\": ", f);
        bl_json_put(f, t->of);
        fprintf(f, ", \"row\": %" PRIu64 ", \"rows\": %" PRIu64 "}", t->row, t->rows);
    }
}

static void put_host(FILE *f, const bl_host_tensor *t)
{
    fputs("{\"name\": ", f);
    bl_json_put(f, t->tensor.name);
    fprintf(f, ", \"dtype\": \"%s\", \"shape\": ", bl_dtype_name(t->tensor.dtype));
    put_shape(f, t->tensor.shape, t->tensor.ndim);
    fputs(", \"value\": ", f);
    if (t->value_class == BL_VALUE_NONE) {
        fputs("null}", f);
        return;
    }
    fprintf(f, "{\"class\": \"%s\", \"shape\": ", bl_value_class_name(t->value_class));
    put_shape(f, t->value_shape, t->value_ndim);
    fputs(", \"digest\": ", f);
    put_digest(f, &t->value);
    fputs("}}", f);
}

static void put_tensor(FILE *f, const bl_bucket_tensor *t)
{
    fputs("{\"name\": ", f);
    bl_json_put(f, t->tensor.name);
    fprintf(f, ", \"dtype\": \"%s\", \"shape\": ", bl_dtype_name(t->tensor.dtype));
    put_shape(f, t->tensor.shape, t->tensor.ndim);
    fprintf(f, ", \"offset\": %" PRIu64 ", \"nbytes\": %" PRIu64 ", \"group\": %" PRIu64 ", \"xxh3\": ", t->tensor.offset,
            t->tensor.nbytes, t->group);
    put_digest(f, &t->digest);
    put_slice(f, t);
    fputs("}", f);
}

static void put_bucket(FILE *f, const bl_bucket *b)
{
    fprintf(f, "{\"name\": \"%s\", \"data_offset\": %" PRIu64 ", \"nbytes\": %" PRIu64 ", \"xxh3\": ", b->name, b->data_offset,
            b->nbytes);
    put_digest(f, &b->digest);
    fputs(", \"tensors\": [", f);
    for (size_t i = 0; i < b->count; i++) {
        fputs(i ? ",\n  " : "\n  ", f);
        put_tensor(f, &b->tensors[i]);
    }
    fputs("]}", f);
}

static void put_buckets(FILE *f, const bl_buckets *b)
{
    fputs("{\"format\": \"baleen-buckets\",\n\"version\": 1,\n\"writer\": ", f);
    bl_json_put(f, b->writer);
    fprintf(f, ",\n\"size\": %" PRIu64 ",\n\"align\": %" PRIu64 ",\n\"oversize\": \"%s\",\n\"names\": ", b->size, b->align,
            b->slice ? "slice" : "alone");
    put_digest(f, &b->names);
    fputs(",\n\"host_owned\": [", f);
    for (size_t i = 0; i < b->host_count; i++) {
        fputs(i ? ",\n " : "\n ", f);
        put_host(f, &b->host[i]);
    }
    fputs("],\n\"buckets\": [", f);
    for (size_t i = 0; i < b->count; i++) {
        fputs(i ? ",\n " : "\n ", f);
        put_bucket(f, &b->buckets[i]);
    }
    fputs("]}\n", f);
}

/* What is written must be what can be read. */
static bl_status check(const char *text, size_t n, bl_error *err)
{
    bl_arena arena = {0};
    bl_buckets again;
    bl_error e = {0};
    bl_status s = bl_buckets_parse(text, n, BL_BUCKETS_NAME, &arena, &again, &e);
    bl_arena_reset(&arena);
    return s == BL_OK ? BL_OK
                      : bl_fail(err, s == BL_E_INPUT ? BL_E_INTERNAL : s, BL_BUCKETS_NAME, e.tensor, e.offset,
                                "refusing to write what cannot be read: %s", e.message);
}

/* Close a memory stream. */
static bl_status finish(FILE *f, char **text, bl_error *err)
{
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    if (bad) {
        free(*text);
        *text = NULL;
        return no_memory(err);
    }
    return BL_OK;
}

bl_status bl_buckets_text(const bl_buckets *b, char **text, size_t *n, bl_error *err)
{
    FILE *f = open_memstream(text, n);
    if (!f) {
        return no_memory(err);
    }
    put_buckets(f, b);
    BL_TRY(finish(f, text, err));
    bl_status s = check(*text, *n, err);
    if (s != BL_OK) {
        free(*text);
        *text = NULL;
    }
    return s;
}

/* ---- as serving engines have it */

/* PyTorch's name of a dtype whose elements are whole bytes. */
static const char *torch_name(bl_dtype t)
{
    static const char *const names[BL_DT_COUNT] = {
        [BL_DT_BOOL] = "bool",
        [BL_DT_U8] = "uint8",
        [BL_DT_I8] = "int8",
        [BL_DT_F8_E5M2] = "float8_e5m2",
        [BL_DT_F8_E4M3] = "float8_e4m3fn",
        [BL_DT_F8_E8M0] = "float8_e8m0fnu",
        [BL_DT_F8_E4M3FNUZ] = "float8_e4m3fnuz",
        [BL_DT_F8_E5M2FNUZ] = "float8_e5m2fnuz",
        [BL_DT_I16] = "int16",
        [BL_DT_U16] = "uint16",
        [BL_DT_F16] = "float16",
        [BL_DT_BF16] = "bfloat16",
        [BL_DT_I32] = "int32",
        [BL_DT_U32] = "uint32",
        [BL_DT_F32] = "float32",
        [BL_DT_C64] = "complex64",
        [BL_DT_F64] = "float64",
        [BL_DT_I64] = "int64",
        [BL_DT_U64] = "uint64",
    };
    return names[t];
}

/* Tensors [first, end) of a bucket as one buffer, whose indices count units of width bytes. */
static void put_buffer(FILE *f, const bl_bucket *b, size_t index, size_t first, size_t end, bool elements)
{
    const bl_tensor *head = &b->tensors[first].tensor, *tail = &b->tensors[end - 1].tensor;
    uint64_t width = elements ? bl_dtype_bits(head->dtype) / 8 : 1;
    fprintf(f, "{\"bucket\": %zu, \"file\": \"%s\", \"data_offset\": %" PRIu64 ", \"dtype\": \"%s\", \"numel\": %" PRIu64
               ", \"metadata\": [",
            index, b->name, b->data_offset + head->offset, elements ? torch_name(head->dtype) : "uint8",
            (tail->offset + tail->nbytes - head->offset) / width);
    for (size_t i = first; i < end; i++) {
        const bl_tensor *t = &b->tensors[i].tensor;
        uint64_t start = (t->offset - head->offset) / width, numel = t->nbytes / width;
        fputs(i > first ? ",\n  {\"name\": " : "\n  {\"name\": ", f);
        bl_json_put(f, t->name);
        fputs(", \"shape\": ", f);
        put_shape(f, t->shape, t->ndim);
        fprintf(f, ", \"dtype\": \"%s\", \"start_idx\": %" PRIu64 ", \"end_idx\": %" PRIu64 ", \"numel\": %" PRIu64,
                torch_name(t->dtype), start, start + numel, numel);
        put_slice(f, &b->tensors[i]);
        fputs("}", f);
    }
    fputs("]}", f);
}

bl_status bl_buckets_flattened(const bl_buckets *b, bool elements, char **text, size_t *n, bl_error *err)
{
    FILE *f = open_memstream(text, n);
    const char *comma = "\n ";
    if (!f) {
        return no_memory(err);
    }
    fprintf(f, "{\"index_unit\": \"%s\",\n\"supports_multi_dtypes\": %s,\n\"buckets\": [", elements ? "elements" : "bytes",
            elements ? "false" : "true");
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket *k = &b->buckets[i];
        for (size_t first = 0, end; first < k->count; first = end) {
            for (end = first + 1; end < k->count && (!elements || k->tensors[end].tensor.dtype == k->tensors[first].tensor.dtype);) {
                end++;
            }
            fputs(comma, f);
            put_buffer(f, k, i, first, end, elements);
            comma = ",\n ";
        }
    }
    fputs("]}\n", f);
    return finish(f, text, err);
}
