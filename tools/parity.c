#include "tools/parity.h"

#include "formats/arena.h"
#include "formats/names.h"
#include "formats/output.h"
#include "formats/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One intermediate over all passes so far. */
typedef struct record {
    char *name;
    bl_dtype dtype;
    int ndim;
    int64_t shape[3];
    uint8_t *data; /* NULL unless traced */
    size_t bytes, capacity;
    const bl_tensor *golden; /* what is injected, NULL = nothing */
} record;

struct parity {
    bool trace;
    record *records;
    size_t count, capacity;
    const char *path; /* of the golden file */
    bl_file *file;
    bl_region *region;
    bl_st_header header;
    bl_arena arena;
    bl_status status;
    bl_error err;
};

/* ---- the golden file */

static const bl_tensor *find_golden(const parity *p, const char *name)
{
    for (size_t i = 0; i < p->header.count; i++)
        if (!strcmp(p->header.tensors[i].name, name)) return &p->header.tensors[i];
    return NULL;
}

static const uint8_t *golden_bytes(const parity *p, const bl_tensor *t)
{
    return bl_region_data(p->region) + t->offset;
}

static bl_status check_ids(const parity *p, const int32_t *ids, int64_t count, bl_error *err)
{
    const bl_tensor *t = find_golden(p, "ids");
    if (!t || t->dtype != BL_DT_I64 || t->ndim != 1)
        return bl_fail(err, BL_E_INPUT, p->path, "ids", -1, "is missing: this is no file of one prompt, layer by layer");
    for (int64_t i = 0; i < count; i++) {
        int64_t id = -1;
        if ((uint64_t)i < t->shape[0]) memcpy(&id, golden_bytes(p, t) + 8 * i, sizeof id);
        if (id != ids[i])
            return bl_fail(err, BL_E_USAGE, p->path, "ids", -1, "the file's prompt does not begin with the ids given (token %" PRId64 ")", i);
    }
    return BL_OK;
}

static bl_status open_golden(parity *p, const char *path, const int32_t *ids, int64_t count, bl_error *err)
{
    p->path = path;
    BL_TRY(bl_file_open(&p->file, path, err));
    BL_TRY(bl_st_read(p->file, 0, &p->arena, &p->header, err));
    BL_TRY(bl_region_open(&p->region, p->file, 0, bl_file_size(p->file), BL_ACCESS_AUTO, err));
    return check_ids(p, ids, count, err);
}

bl_status parity_open(parity **out, bool trace, const char *golden, const int32_t *ids, int64_t count, bl_error *err)
{
    parity *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    p->trace = trace;
    bl_status s = golden ? open_golden(p, golden, ids, count, err) : BL_OK;
    if (s != BL_OK) parity_close(out);
    return s;
}

void parity_close(parity **parity_)
{
    parity *p = *parity_;
    if (!p) return;
    for (size_t i = 0; i < p->count; i++) {
        free(p->records[i].name);
        free(p->records[i].data);
    }
    free(p->records);
    bl_region_close(&p->region);
    bl_file_close(&p->file);
    bl_arena_reset(&p->arena);
    free(p);
    *parity_ = NULL;
}

/* ---- recording */

static int64_t row_elements(const bl_hook_value *v)
{
    int64_t n = 1;
    for (int i = 1; i < v->ndim; i++) n *= v->shape[i];
    return n;
}

/* Inputs and selections; what an operation computed from them (routing, table rows) is its own. */
static bool injected(const char *name)
{
    return bl_ends_with(name, ".in") || bl_ends_with(name, ".out") || bl_ends_with(name, ".pre_in") || bl_ends_with(name, ".pre_out") ||
           bl_ends_with(name, ".selected");
}

static record *add_record(parity *p, const bl_hook_value *v)
{
    record *grown = bl_grow(p->records, &p->capacity, p->count, sizeof *grown);
    if (!grown) return NULL;
    p->records = grown;
    record *r = &p->records[p->count];
    *r = (record){.name = strdup(v->name), .dtype = v->dtype, .ndim = v->ndim};
    if (!r->name) return NULL;
    memcpy(r->shape, v->shape, sizeof r->shape);
    r->shape[0] = 0;
    if (injected(v->name)) r->golden = find_golden(p, v->name);
    p->count++;
    return r;
}

static record *find_record(parity *p, const bl_hook_value *v)
{
    for (size_t i = 0; i < p->count; i++)
        if (!strcmp(p->records[i].name, v->name)) return &p->records[i];
    return add_record(p, v);
}

static bool keep(record *r, const bl_hook_value *v, size_t bytes)
{
    if (r->bytes + bytes > r->capacity) {
        const size_t more = 2 * (r->bytes + bytes);
        uint8_t *d = realloc(r->data, more);
        if (!d) return false;
        r->data = d;
        r->capacity = more;
    }
    memcpy(r->data + r->bytes, v->data, bytes);
    r->bytes += bytes;
    return true;
}

/* ---- injecting */

/* Lists of selected entries may be shorter in the file: the rest is -1. */
static bool fits(const record *r, const bl_hook_value *v)
{
    const bl_tensor *t = r->golden;
    if (t->dtype != v->dtype || (int)t->ndim != v->ndim || t->shape[0] < (uint64_t)(r->shape[0] + v->shape[0])) return false;
    if (bl_ends_with(v->name, ".selected")) return t->shape[1] <= (uint64_t)v->shape[1];
    for (int i = 1; i < v->ndim; i++)
        if (t->shape[i] != (uint64_t)v->shape[i]) return false;
    return true;
}

static void inject(parity *p, const record *r, const bl_hook_value *v)
{
    const bl_tensor *t = r->golden;
    if (!fits(r, v)) {
        p->status = bl_fail(&p->err, BL_E_INPUT, p->path, t->name, -1, "does not fit the model: other dtype or shape");
        return;
    }
    const size_t size = bl_dtype_bits(t->dtype) / 8, there = (size_t)(t->nbytes / t->shape[0]), here = (size_t)row_elements(v) * size;
    uint8_t *to = v->data;
    if (there < here) memset(to, 0xff, here * (size_t)v->shape[0]); /* -1 */
    for (int64_t i = 0; i < v->shape[0]; i++)
        memcpy(to + (size_t)i * here, golden_bytes(p, t) + (size_t)(r->shape[0] + i) * there, there);
}

static void visit(void *arg, const bl_hook_value *v)
{
    parity *p = arg;
    if (p->status != BL_OK) return;
    record *r = find_record(p, v);
    const size_t bytes = (size_t)(v->shape[0] * row_elements(v)) * bl_dtype_bits(v->dtype) / 8;
    if (!r || (p->trace && !keep(r, v, bytes))) {
        p->status = bl_fail(&p->err, BL_E_NOMEM, NULL, v->name, -1, "out of memory for the trace");
        return;
    }
    if (r->golden) inject(p, r, v);
    r->shape[0] += v->shape[0];
}

bl_hooks parity_hooks(parity *p)
{
    return (bl_hooks){.arg = p, .visit = visit};
}

bl_status parity_status(const parity *p, bl_error *err)
{
    if (p->status != BL_OK && err) *err = p->err;
    return p->status;
}

/* ---- writing */

static bl_status out_of_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

static bl_status describe(const parity *p, bl_arena *arena, bl_tensor **out, bl_error *err)
{
    bl_tensor *t = bl_arena_array(arena, p->count, sizeof *t);
    if (!t) return out_of_memory(err);
    for (size_t i = 0; i < p->count; i++) {
        const record *r = &p->records[i];
        uint64_t *shape = bl_arena_array(arena, 3, sizeof *shape);
        if (!shape) return out_of_memory(err);
        for (int d = 0; d < r->ndim; d++) shape[d] = (uint64_t)r->shape[d];
        t[i] = (bl_tensor){.name = r->name, .shape = shape, .ndim = (uint32_t)r->ndim, .dtype = r->dtype};
    }
    *out = t;
    return BL_OK;
}

static bl_status write_records(const parity *p, const bl_tensor *t, const bl_st_head *head, bl_output *o, bl_error *err)
{
    BL_TRY(bl_st_head_write(head, o, err));
    for (size_t i = 0; i < p->count; i++) BL_TRY(bl_output_write(o, p->records[i].data, p->records[i].bytes, t[i].offset, err));
    return BL_OK;
}

bl_status parity_write(const parity *p, const char *path, bl_error *err)
{
    bl_arena arena = {0};
    bl_tensor *tensors = NULL;
    bl_st_head head;
    bl_output *o = NULL;
    bl_status s = describe(p, &arena, &tensors, err);
    if (s == BL_OK) s = bl_st_layout(tensors, p->count, NULL, 0, 8, 0, &arena, &head, err);
    if (s == BL_OK) s = bl_output_open(&o, path, head.file_bytes, err);
    if (s == BL_OK) s = write_records(p, tensors, &head, o, err);
    if (s == BL_OK) s = bl_output_commit(&o, err);
    bl_output_abort(&o);
    bl_arena_reset(&arena);
    return s;
}
