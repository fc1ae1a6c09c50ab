#include "formats/safetensors.h"

#include "formats/foreign.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What one header is read with. */
typedef struct reader {
    const bl_file *file;
    const char *path;
    uint32_t file_index;
    bl_arena *arena;
    bl_st_header *out;
    const char *text; /* the header's JSON */
    bl_error *err;
} reader;

bool bl_tensor_size(bl_dtype dtype, const uint64_t *shape, uint32_t ndim, uint64_t *nbytes)
{
    uint64_t bits = bl_dtype_bits(dtype);
    bool empty = false;
    for (uint32_t i = 0; i < ndim; i++) {
        empty |= shape[i] == 0; /* a zero does not excuse an overflow beside it */
        if (shape[i] != 0 && bl_mul_overflow(bits, shape[i], &bits)) {
            return false;
        }
    }
    *nbytes = empty ? 0 : bits / 8;
    return bits != 0 && (empty || bits % 8 == 0);
}

bool bl_tensor_name_ok(const char *name, size_t n)
{
    bool reserved = n == strlen("__metadata__") && memcmp(name, "__metadata__", n) == 0;
    return n > 0 && n <= BL_MAX_NAME && !reserved && bl_text_is_clean(name, n);
}

uint64_t bl_tensor_elements(const bl_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->ndim; i++) {
        n *= t->shape[i];
    }
    return n;
}

int bl_tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const bl_tensor *)a)->name, ((const bl_tensor *)b)->name);
}

int bl_tensor_by_place(const void *a, const void *b)
{
    const bl_tensor *s = a, *t = b;
    if (s->file != t->file) {
        return s->file < t->file ? -1 : 1;
    }
    if (s->offset != t->offset) {
        return s->offset < t->offset ? -1 : 1;
    }
    if (s->nbytes != t->nbytes) { /* empty tensors come before the one that begins where they are */
        return s->nbytes < t->nbytes ? -1 : 1;
    }
    return strcmp(s->name, t->name);
}

static bl_status no_memory(const reader *r)
{
    return bl_fail(r->err, BL_E_NOMEM, r->path, NULL, -1, "out of memory for the header");
}

/* Byte offset in the file of something in the header. */
static int64_t at(const reader *r, bl_json v)
{
    return 8 + (int64_t)(v.p - r->text);
}

/* A string's unescaped bytes in the arena; *n is their count. */
static bl_status take_string(const reader *r, bl_json v, const char **out, size_t *n)
{
    char *s = bl_arena_alloc(r->arena, v.n);
    if (!s) {
        return no_memory(r);
    }
    *n = bl_json_string(v, s, v.n);
    *out = s;
    return BL_OK;
}

static bl_status read_shape(const reader *r, bl_tensor *t, bl_json shape)
{
    bl_json k, v;
    size_t ndim = bl_json_count(shape);
    if (shape.kind != BL_JSON_ARRAY) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, shape), "'shape' is not an array");
    }
    if (ndim > BL_MAX_DIMS) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, shape), "%zu dimensions, the most is %d",
                       ndim, BL_MAX_DIMS);
    }
    uint64_t *dims = bl_arena_array(r->arena, ndim, sizeof *dims);
    if (!dims) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(shape);
    for (size_t i = 0; bl_json_next(&it, &k, &v); i++) {
        if (!bl_json_u64(v, &dims[i])) {
            return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v),
                           "'shape' holds something that is not an integer from 0 to 2^64 - 1");
        }
    }
    t->shape = dims;
    t->ndim = (uint32_t)ndim;
    return BL_OK;
}

static bl_status read_dtype(const reader *r, bl_tensor *t, bl_json v)
{
    char name[64];
    size_t n = bl_json_string(v, name, sizeof name);
    if (v.kind != BL_JSON_STRING) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v), "'dtype' is not a string");
    }
    t->dtype = bl_dtype_parse(name, n < sizeof name ? n : sizeof name - 1);
    if (t->dtype == BL_DT_NONE || n >= sizeof name) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v), "unknown dtype '%s'", name);
    }
    return BL_OK;
}

/* "data_offsets": [begin, end], relative to the data buffer. t->offset stays relative until all is known to
 * be sound. */
static bl_status read_offsets(const reader *r, bl_tensor *t, bl_json v)
{
    uint64_t ends[2] = {0, 0}, want;
    bl_json k, e;
    size_t n = 0;
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &e)) {
        if (n < 2 && !bl_json_u64(e, &ends[n])) {
            return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, e),
                           "'data_offsets' holds something that is not an integer from 0 to 2^64 - 1");
        }
        n++;
    }
    if (v.kind != BL_JSON_ARRAY || n != 2) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v),
                       "'data_offsets' is not an array of two integers");
    }
    if (ends[1] < ends[0]) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v),
                       "ends at %" PRIu64 " before it begins at %" PRIu64, ends[1], ends[0]);
    }
    if (!bl_tensor_size(t->dtype, t->shape, t->ndim, &want)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v),
                       "dtype %s and the shape do not give a whole number of bytes below 2^61",
                       bl_dtype_name(t->dtype));
    }
    if (ends[1] - ends[0] != want) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, v),
                       "'data_offsets' span %" PRIu64 " bytes, dtype and shape need %" PRIu64,
                       ends[1] - ends[0], want);
    }
    t->offset = ends[0];
    t->nbytes = want;
    return BL_OK;
}

static bl_status read_tensor(const reader *r, bl_tensor *t, bl_json name, bl_json entry)
{
    size_t n = 0;
    BL_TRY(take_string(r, name, &t->name, &n));
    if (n == 0) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, at(r, name), "a tensor with an empty name");
    }
    if (n > BL_MAX_NAME) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, name),
                       "a name of %zu bytes, the most is %d", n, BL_MAX_NAME);
    }
    if (!bl_text_is_clean(t->name, n)) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, name),
                       "a tensor name with a NUL or control character");
    }
    if (entry.kind != BL_JSON_OBJECT) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, entry), "the entry is not an object");
    }
    bl_json dtype = {0}, shape = {0}, offsets = {0}, k, v;
    bl_json_iter it = bl_json_begin(entry);
    while (bl_json_next(&it, &k, &v)) { /* other keys are tolerated, as in the reference implementation */
        bl_json *slot = bl_json_equals(k, "dtype")          ? &dtype
                        : bl_json_equals(k, "shape")        ? &shape
                        : bl_json_equals(k, "data_offsets") ? &offsets
                                                            : NULL;
        if (slot) {
            *slot = v;
        }
    }
    const char *missing = !dtype.kind     ? "dtype"
                          : !shape.kind   ? "shape"
                          : !offsets.kind ? "data_offsets"
                                          : NULL;
    if (missing) {
        return bl_fail(r->err, BL_E_INPUT, r->path, t->name, at(r, entry), "'%s' is missing", missing);
    }
    t->file = r->file_index;
    BL_TRY(read_dtype(r, t, dtype));
    BL_TRY(read_shape(r, t, shape));
    return read_offsets(r, t, offsets);
}

static bl_status read_metadata(const reader *r, bl_json m)
{
    if (m.kind != BL_JSON_OBJECT) {
        return bl_fail(r->err, BL_E_INPUT, r->path, "__metadata__", at(r, m), "is not an object");
    }
    size_t count = bl_json_count(m), n = 0;
    const char **pairs = bl_arena_array(r->arena, count, 2 * sizeof *pairs);
    if (!pairs) {
        return no_memory(r);
    }
    bl_json k, v;
    bl_json_iter it = bl_json_begin(m);
    for (size_t i = 0; bl_json_next(&it, &k, &v); i++) {
        if (v.kind != BL_JSON_STRING) {
            return bl_fail(r->err, BL_E_INPUT, r->path, "__metadata__", at(r, v),
                           "holds a value that is not a string");
        }
        BL_TRY(take_string(r, k, &pairs[2 * i], &n));
        BL_TRY(take_string(r, v, &pairs[2 * i + 1], &n));
    }
    r->out->metadata = pairs;
    r->out->metadata_count = count;
    return BL_OK;
}

static bl_status read_entries(const reader *r, bl_json root)
{
    bl_st_header *h = r->out;
    bl_json k, v;
    h->tensors = bl_arena_array(r->arena, bl_json_count(root), sizeof *h->tensors);
    if (!h->tensors) {
        return no_memory(r);
    }
    bl_json_iter it = bl_json_begin(root);
    while (bl_json_next(&it, &k, &v)) {
        if (bl_json_equals(k, "__metadata__")) {
            BL_TRY(read_metadata(r, v));
        } else {
            BL_TRY(read_tensor(r, &h->tensors[h->count], k, v));
            h->count++;
        }
    }
    return BL_OK;
}

/* Tensors in data order must touch, and end with the file. Offsets become absolute. */
static bl_status check_places(const reader *r)
{
    bl_st_header *h = r->out;
    bool sorted = true;
    for (size_t i = 1; i < h->count && sorted; i++) {
        sorted = bl_tensor_by_place(&h->tensors[i - 1], &h->tensors[i]) <= 0;
    }
    if (!sorted) {
        qsort(h->tensors, h->count, sizeof *h->tensors, bl_tensor_by_place);
    }
    uint64_t end = 0, data = h->file_bytes - h->header_bytes;
    for (size_t i = 0; i < h->count; i++) {
        bl_tensor *t = &h->tensors[i];
        if (t->offset > end) {
            return bl_fail(r->err, BL_E_INPUT, r->path, t->name, -1,
                           "a hole of %" PRIu64 " byte%s before it (data offset %" PRIu64 ")", t->offset - end,
                           bl_plural(t->offset - end), end);
        }
        if (t->offset < end) {
            return bl_fail(r->err, BL_E_INPUT, r->path, t->name, -1,
                           "overlaps '%s' by %" PRIu64 " byte%s or more", h->tensors[i - 1].name,
                           end - t->offset, bl_plural(end - t->offset));
        }
        end += t->nbytes; /* its data_offsets[1], so that this cannot overflow */
    }
    if (end > data) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, (int64_t)h->file_bytes,
                       "truncated: %" PRIu64 " of %" PRIu64 " data bytes are missing", end - data, end);
    }
    if (end < data) {
        return bl_fail(r->err, BL_E_INPUT, r->path, NULL, (int64_t)(h->header_bytes + end),
                       data - end == 1 ? "%" PRIu64 " byte follows the last tensor" : "%" PRIu64 " bytes follow the last tensor",
                       data - end);
    }
    for (size_t i = 0; i < h->count; i++) {
        h->tensors[i].offset += h->header_bytes;
    }
    return BL_OK;
}

static bl_status read_header(reader *r, uint64_t n)
{
    /* root, tensor entry, shape: nothing legal is deeper */
    const bl_json_limits limits = {
        .max_bytes = BL_ST_MAX_HEADER, .max_depth = 3, .refuse_lone_surrogates = true};
    bl_json root;
    bl_status s = bl_json_parse(r->text, (size_t)n, &limits, r->path, &root, r->err);
    if (s != BL_OK) {
        if (r->err && r->err->offset >= 0) {
            r->err->offset += 8;
        }
        return s;
    }
    for (const char *p = root.p + root.n; p < r->text + n; p++) {
        if (*p != ' ') {
            return bl_fail(r->err, BL_E_INPUT, r->path, NULL, 8 + (int64_t)(p - r->text),
                           "header padding holds something that is not a space");
        }
    }
    BL_TRY(read_entries(r, root));
    return check_places(r);
}

/* The length field, before anything is allocated for it. */
static bl_status check_length(const bl_file *f, uint64_t *n, bl_error *err)
{
    uint64_t size = bl_file_size(f);
    const char *path = bl_file_path(f);
    uint8_t b[9] = {0};
    if (size == 0) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "the file is empty");
    }
    BL_TRY(bl_file_read(f, b, size < sizeof b ? size : sizeof b, 0, err));
    *n = 0;
    for (int i = 7; i >= 0; i--) {
        *n = *n << 8 | b[i];
    }
    if (size > 8 && *n > 0 && *n <= BL_ST_MAX_HEADER && *n <= size - 8 && b[8] == '{') {
        return BL_OK;
    }
    BL_TRY(bl_foreign_check(f, err)); /* say what it is, when that is known */
    if (size < 8) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1,
                       "only %" PRIu64 " byte%s, too short for a safetensors file", size, bl_plural(size));
    }
    if (*n > BL_ST_MAX_HEADER) {
        return bl_fail(err, BL_E_INPUT, path, NULL, 0,
                       "header length %" PRIu64 ", the most is %u: not a safetensors file", *n,
                       BL_ST_MAX_HEADER);
    }
    if (*n > size - 8) {
        return bl_fail(err, BL_E_INPUT, path, NULL, 0,
                       "truncated: the header has %" PRIu64 " bytes, %" PRIu64 " of them are missing", *n,
                       *n - (size - 8));
    }
    return bl_fail(err, BL_E_INPUT, path, NULL, 8,
                   *n == 0 ? "the header is empty" : "the header does not start with '{'");
}

bl_status bl_st_read(const bl_file *f, uint32_t file_index, bl_arena *arena, bl_st_header *out, bl_error *err)
{
    uint64_t n = 0;
    memset(out, 0, sizeof *out);
    BL_TRY(check_length(f, &n, err));
    char *text = malloc((size_t)n);
    if (!text) {
        return bl_fail(err, BL_E_NOMEM, bl_file_path(f), NULL, -1,
                       "out of memory for a header of %" PRIu64 " bytes", n);
    }
    reader r = {f, bl_file_path(f), file_index, arena, out, text, err};
    out->header_bytes = 8 + n;
    out->file_bytes = bl_file_size(f);
    bl_status s = bl_file_read(f, text, n, 8, err);
    if (s == BL_OK) {
        s = read_header(&r, n);
    }
    free(text);
    return s;
}
