/* Reading buckets.json. */
#include "formats/buckets.h"

#include "formats/foreign.h"
#include "formats/manifest_read.h"
#include "formats/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *bl_bucket_name(char *buf, size_t i)
{
    snprintf(buf, 32, "bucket-%05zu.safetensors", i + 1);
    return buf;
}

uint64_t bl_bucket_aligned(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* ---- one tensor */

static bl_status read_kind(bl_mreader *r, bl_json name, bl_json dtype, bl_json shape, bl_tensor *t)
{
    size_t n, ndim;
    const char *type;
    r->tensor = NULL;
    BL_TRY(bl_mread_to_text(r, name, "a tensor's name", &t->name, &n));
    r->tensor = t->name;
    if (!bl_tensor_name_ok(t->name, n) || strncmp(t->name, BL_BUCKETS_PAD, strlen(BL_BUCKETS_PAD)) == 0) {
        return bl_mread_bad(r, name, "not a legal tensor name");
    }
    BL_TRY(bl_mread_to_text(r, dtype, "'dtype'", &type, &n));
    t->dtype = bl_dtype_parse(type, n);
    BL_TRY(bl_mread_to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->shape, &ndim));
    t->ndim = (uint32_t)ndim;
    if (bl_dtype_bits(t->dtype) % 8 || !bl_tensor_size(t->dtype, t->shape, t->ndim, &t->nbytes) || t->nbytes > INT64_MAX) {
        return bl_mread_bad(r, shape, "dtype and shape give no size");
    }
    return BL_OK;
}

static bl_status read_slice(const bl_mreader *r, bl_json v, bl_bucket_tensor *t)
{
    bl_json of = {0}, row = {0}, rows = {0};
    const bl_mread_slot slots[] = {{"of", &of, false}, {"row", &row, false}, {"rows", &rows, false}};
    char name[BL_MAX_NAME + 64];
    size_t n;
    BL_TRY(BL_MREAD_TAKE(r, v, "'slice'", slots));
    BL_TRY(bl_mread_to_text(r, of, "'of'", &t->of, &n));
    BL_TRY(bl_mread_to_u64(r, row, "'row'", INT64_MAX, &t->row));
    BL_TRY(bl_mread_to_u64(r, rows, "'rows'", INT64_MAX, &t->rows));
    if (!bl_tensor_name_ok(t->of, n)) {
        return bl_mread_bad(r, of, "not a legal tensor name");
    }
    if (t->tensor.ndim == 0 || t->tensor.shape[0] == 0 || t->row >= t->rows || t->tensor.shape[0] > t->rows - t->row) {
        return bl_mread_bad(r, v, "reaches past the rows of its tensor");
    }
    snprintf(name, sizeof name, "%s[%llu:%llu]", t->of, (unsigned long long)t->row,
             (unsigned long long)(t->row + t->tensor.shape[0]));
    return strcmp(name, t->tensor.name) ? bl_mread_bad(r, v, "a slice that is not named for its rows") : BL_OK;
}

/* Where a tensor must be: behind the one before it, at the next aligned byte, in descending order of element width. */
static bl_status check_place(const bl_mreader *r, bl_json offset, const bl_buckets *out, const bl_bucket *b, const bl_bucket_tensor *t)
{
    uint64_t want = 0;
    if (b->count) {
        const bl_tensor *last = &b->tensors[b->count - 1].tensor;
        want = bl_bucket_aligned(last->offset + last->nbytes, out->align);
        bool narrower = bl_dtype_bits(t->tensor.dtype) < bl_dtype_bits(last->dtype);
        if (t->tensor.dtype != last->dtype && !narrower && bl_dtype_bits(t->tensor.dtype) != bl_dtype_bits(last->dtype)) {
            return bl_mread_bad(r, offset, "a wider dtype behind a narrower one");
        }
        for (size_t i = 0; t->tensor.dtype != last->dtype && i < b->count; i++) {
            if (b->tensors[i].tensor.dtype == t->tensor.dtype) {
                return bl_mread_bad(r, offset, "tensors of its dtype do not lie together");
            }
        }
    }
    return t->tensor.offset == want ? BL_OK
                                    : bl_fail(r->err, BL_E_INPUT, r->path, r->tensor, offset.p - r->text,
                                              "'offset' is not %llu, the next aligned byte", (unsigned long long)want);
}

static bl_status read_tensor(bl_mreader *r, bl_json v, const bl_buckets *out, bl_bucket *b, bl_bucket_tensor *t)
{
    bl_json name = {0}, dtype = {0}, shape = {0}, offset = {0}, nbytes = {0}, group = {0}, digest = {0}, slice = {0};
    const bl_mread_slot slots[] = {{"name", &name, false},     {"dtype", &dtype, false}, {"shape", &shape, false},
                                   {"offset", &offset, false}, {"nbytes", &nbytes, false}, {"group", &group, false},
                                   {"xxh3", &digest, false},   {"slice", &slice, true}};
    uint64_t bytes;
    r->tensor = NULL;
    BL_TRY(BL_MREAD_TAKE(r, v, "a tensor", slots));
    BL_TRY(read_kind(r, name, dtype, shape, &t->tensor));
    BL_TRY(bl_mread_to_u64(r, offset, "'offset'", INT64_MAX, &t->tensor.offset));
    BL_TRY(bl_mread_to_u64(r, nbytes, "'nbytes'", INT64_MAX, &bytes));
    BL_TRY(bl_mread_to_u64(r, group, "'group'", INT64_MAX, &t->group));
    BL_TRY(bl_mread_to_hex(r, digest, sizeof t->digest.b, t->digest.b));
    if (bytes != t->tensor.nbytes) {
        return bl_mread_bad(r, nbytes, "'nbytes' is not what dtype and shape give");
    }
    if (slice.kind != BL_JSON_NONE) {
        BL_TRY(read_slice(r, slice, t));
    }
    BL_TRY(check_place(r, offset, out, b, t));
    return t->tensor.offset > INT64_MAX - bl_bucket_aligned(t->tensor.nbytes, BL_BUCKETS_MAX_ALIGN)
               ? bl_mread_bad(r, offset, "reaches past 2^63")
               : BL_OK;
}

/* ---- a bucket */

/* groups: the smallest number that a group of this bucket may have; set for the next one. */
static bl_status read_bucket(bl_mreader *r, bl_json v, bl_buckets *out, uint64_t *groups)
{
    bl_json name = {0}, at = {0}, nbytes = {0}, digest = {0}, tensors = {0}, k, e;
    const bl_mread_slot slots[] = {{"name", &name, false},   {"data_offset", &at, false},   {"nbytes", &nbytes, false},
                                   {"xxh3", &digest, false}, {"tensors", &tensors, false}};
    bl_bucket *b = &out->buckets[out->count];
    char want[32];
    uint64_t end = 0, next = *groups;
    size_t n;
    r->tensor = NULL;
    BL_TRY(BL_MREAD_TAKE(r, v, "a bucket", slots));
    BL_TRY(bl_mread_to_text(r, name, "a bucket's name", &b->name, &n));
    if (strcmp(b->name, bl_bucket_name(want, out->count)) != 0) {
        return bl_mread_bad(r, name, "a bucket that is not named for its place");
    }
    BL_TRY(bl_mread_to_u64(r, at, "'data_offset'", BL_ST_MAX_HEADER + BL_BUCKETS_MAX_ALIGN, &b->data_offset));
    BL_TRY(bl_mread_to_u64(r, nbytes, "'nbytes'", INT64_MAX, &b->nbytes));
    BL_TRY(bl_mread_to_hex(r, digest, sizeof b->digest.b, b->digest.b));
    if (b->data_offset == 0 || b->data_offset % BL_BUCKETS_MAX_ALIGN) {
        return bl_mread_bad(r, at, "'data_offset' is not a multiple of 4096");
    }
    if (tensors.kind != BL_JSON_ARRAY || !(n = bl_json_count(tensors))) {
        return bl_mread_bad(r, tensors, "'tensors' is not an array, or empty");
    }
    b->tensors = bl_arena_array(r->arena, n, sizeof *b->tensors);
    if (!b->tensors) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(tensors);
    for (; bl_json_next(&it, &k, &e); b->count++) {
        bl_bucket_tensor *t = &b->tensors[b->count];
        BL_TRY(read_tensor(r, e, out, b, t));
        if (t->group < *groups) {
            return bl_mread_bad(r, e, "its group is parted, or out of order");
        }
        t->tensor.file = (uint32_t)out->count;
        next = t->group >= next ? t->group + 1 : next;
        end = t->tensor.offset + t->tensor.nbytes;
    }
    *groups = next;
    r->tensor = NULL;
    out->count++;
    return end == b->nbytes ? BL_OK : bl_mread_bad(r, nbytes, "'nbytes' is not where its last tensor ends");
}

/* ---- what is not sent */

static bl_status read_value(const bl_mreader *r, bl_json v, bl_host_tensor *t)
{
    bl_json kind = {0}, shape = {0}, digest = {0};
    const bl_mread_slot slots[] = {{"class", &kind, false}, {"shape", &shape, false}, {"digest", &digest, false}};
    size_t ndim;
    if (v.kind == BL_JSON_NULL) {
        return BL_OK;
    }
    BL_TRY(BL_MREAD_TAKE(r, v, "'value'", slots));
    BL_TRY(bl_mread_to_value_class(r, kind, &t->value_class));
    BL_TRY(bl_mread_to_list(r, shape, "'shape'", BL_MAX_DIMS, &t->value_shape, &ndim));
    t->value_ndim = (uint32_t)ndim;
    return bl_mread_to_hex(r, digest, sizeof t->value.b, t->value.b);
}

static bl_status read_host(bl_mreader *r, bl_json list, bl_buckets *out)
{
    bl_json k, e;
    if (list.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(r, list, "'host_owned' is not an array");
    }
    out->host = bl_arena_array(r->arena, bl_json_count(list), sizeof *out->host);
    if (!out->host) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(list);
    for (; bl_json_next(&it, &k, &e); out->host_count++) {
        bl_host_tensor *t = &out->host[out->host_count];
        bl_json name = {0}, dtype = {0}, shape = {0}, value = {0};
        const bl_mread_slot slots[] = {
            {"name", &name, false}, {"dtype", &dtype, false}, {"shape", &shape, false}, {"value", &value, false}};
        r->tensor = NULL;
        BL_TRY(BL_MREAD_TAKE(r, e, "a tensor", slots));
        BL_TRY(read_kind(r, name, dtype, shape, &t->tensor));
        BL_TRY(read_value(r, value, t));
        if (out->host_count && strcmp(t[-1].tensor.name, t->tensor.name) >= 0) {
            return bl_mread_bad(r, name, "'host_owned' is not sorted by name, or names one twice");
        }
    }
    r->tensor = NULL;
    return BL_OK;
}

/* ---- all of them together */

static int by_whole(const void *a, const void *b)
{
    const bl_bucket_tensor *s = *(const bl_bucket_tensor *const *)a, *t = *(const bl_bucket_tensor *const *)b;
    int c = strcmp(s->of ? s->of : s->tensor.name, t->of ? t->of : t->tensor.name);
    return c ? c : s->row < t->row ? -1 : s->row > t->row;
}

static bool continues(const bl_bucket_tensor *a, const bl_bucket_tensor *b)
{
    const bl_tensor *s = &a->tensor, *t = &b->tensor;
    return b->row == a->row + s->shape[0] && a->rows == b->rows && s->dtype == t->dtype && s->ndim == t->ndim &&
           memcmp(s->shape + 1, t->shape + 1, (s->ndim - 1) * sizeof *s->shape) == 0;
}

static bool is_host(const bl_buckets *b, const char *name)
{
    for (size_t lo = 0, hi = b->host_count; lo < hi;) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, b->host[mid].tensor.name);
        if (c == 0) {
            return true;
        }
        lo = c > 0 ? mid + 1 : lo;
        hi = c > 0 ? hi : mid;
    }
    return false;
}

/* list is sorted: every tensor whole, in slices that follow each other, or not there; none twice. */
static bl_status check_wholes(const bl_mreader *r, const bl_buckets *b, const bl_bucket_tensor **list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bl_bucket_tensor *t = list[i], *last = i ? list[i - 1] : NULL;
        const char *name = t->of ? t->of : t->tensor.name, *before = !last ? "" : last->of ? last->of : last->tensor.name;
        bool again = last && strcmp(name, before) == 0;
        bool ended = i + 1 == count || strcmp(name, list[i + 1]->of ? list[i + 1]->of : list[i + 1]->tensor.name) != 0;
        if (is_host(b, name) || (again && (!t->of || !last->of))) {
            return bl_fail(r->err, BL_E_INPUT, r->path, name, -1, "is there twice");
        }
        if (t->of && ((again ? !continues(last, t) : t->row != 0) || (ended && t->row + t->tensor.shape[0] != t->rows))) {
            return bl_fail(r->err, BL_E_INPUT, r->path, name, -1, "its slices do not make up the tensor");
        }
    }
    return BL_OK;
}

static bl_status check_names(const bl_mreader *r, const bl_buckets *b)
{
    size_t count = 0;
    for (size_t i = 0; i < b->count; i++) {
        count += b->buckets[i].count;
    }
    const bl_bucket_tensor **list = malloc((count + 1) * sizeof *list);
    if (!list) {
        return bl_mread_no_memory(r);
    }
    count = 0;
    for (size_t i = 0; i < b->count; i++) {
        for (size_t k = 0; k < b->buckets[i].count; k++) {
            list[count++] = &b->buckets[i].tensors[k];
        }
    }
    qsort(list, count, sizeof *list, by_whole);
    bl_status s = check_wholes(r, b, list, count);
    free(list);
    return s;
}

static bl_status read_buckets(bl_mreader *r, bl_json list, bl_buckets *out)
{
    bl_json k, e;
    uint64_t groups = 0;
    if (list.kind != BL_JSON_ARRAY) {
        return bl_mread_bad(r, list, "'buckets' is not an array");
    }
    out->buckets = bl_arena_array(r->arena, bl_json_count(list), sizeof *out->buckets);
    if (!out->buckets) {
        return bl_mread_no_memory(r);
    }
    bl_json_iter it = bl_json_begin(list);
    while (bl_json_next(&it, &k, &e)) {
        BL_TRY(read_bucket(r, e, out, &groups));
    }
    return BL_OK;
}

bl_status bl_buckets_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_buckets *out, bl_error *err)
{
    bl_mreader r = {text, path, NULL, arena, err};
    bl_json root, format = {0}, version = {0}, writer = {0}, size = {0}, align = {0}, oversize = {0}, names = {0}, host = {0}, list = {0};
    const bl_mread_slot slots[] = {{"format", &format, false}, {"version", &version, false},   {"writer", &writer, false},
                                   {"size", &size, false},     {"align", &align, false},       {"oversize", &oversize, false},
                                   {"names", &names, false},   {"host_owned", &host, false},   {"buckets", &list, false}};
    size_t length;
    *out = (bl_buckets){0};
    BL_TRY(bl_mread_root(&r, n, "baleen-buckets", &root));
    BL_TRY(BL_MREAD_TAKE(&r, root, "the description of the buckets", slots));
    BL_TRY(bl_mread_to_text(&r, writer, "'writer'", &out->writer, &length));
    BL_TRY(bl_mread_to_u64(&r, size, "'size'", INT64_MAX, &out->size));
    BL_TRY(bl_mread_to_u64(&r, align, "'align'", BL_BUCKETS_MAX_ALIGN, &out->align));
    BL_TRY(bl_mread_to_hex(&r, names, sizeof out->names.b, out->names.b));
    if (out->align == 0 || (out->align & (out->align - 1)) != 0) {
        return bl_mread_bad(&r, align, "'align' is not a power of two");
    }
    out->slice = bl_json_equals(oversize, "slice");
    if (!out->slice && !bl_json_equals(oversize, "alone")) {
        return bl_mread_bad(&r, oversize, "'oversize' is neither 'slice' nor 'alone'");
    }
    BL_TRY(read_host(&r, host, out));
    BL_TRY(read_buckets(&r, list, out));
    return check_names(&r, out);
}

static bool there(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path && lstat(path, &st) == 0;
}

bool bl_sync_recognise(const char *folder, const char *own, const char *beside)
{
    return there(folder, own) ||
           (there(folder, beside) && !there(folder, "model.safetensors.index.json") && !there(folder, "manifest.json"));
}

bl_status bl_sync_there(const char *folder, const char *own, bool recognised, const char *what, bl_error *err)
{
    if (there(folder, own) || access(folder, F_OK) != 0) { /* what else is wrong shows where it is read */
        return BL_OK;
    }
    return recognised ? bl_fail(err, BL_E_INPUT, folder, NULL, -1, "%s is missing: nothing else says what the files here hold", own)
                      : bl_fail(err, BL_E_INPUT, folder, NULL, -1, "holds no %s: there is no %s", what, own);
}

bool bl_buckets_recognise(const char *folder)
{
    return bl_sync_recognise(folder, BL_BUCKETS_NAME, BL_BUCKETS_BYTES_NAME);
}

bl_status bl_buckets_read(const char *folder, bl_arena *arena, bl_buckets *out, char **text, size_t *n, bl_error *err)
{
    size_t size;
    char *path = bl_path_join(arena, folder, BL_BUCKETS_NAME), *data;
    if (!path) {
        return bl_fail(err, BL_E_NOMEM, folder, NULL, -1, "out of memory");
    }
    BL_TRY(bl_sync_there(folder, BL_BUCKETS_NAME, bl_buckets_recognise(folder), "weight-sync buckets", err));
    BL_TRY(bl_foreign_slurp(path, BL_MANIFEST_MAX_BYTES, &data, &size, err));
    bl_status s = bl_buckets_parse(data, size, path, arena, out, err);
    if (s == BL_OK && text) {
        *text = data;
        *n = size;
        return BL_OK;
    }
    free(data);
    return s;
}
