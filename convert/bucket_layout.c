/* Planning buckets: where in its file each tensor goes. */
#include "convert/bucket_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the plan");
}

/* One tensor of a bucket, while they are being sorted. */
typedef struct sorted {
    unsigned width;
    bl_dtype dtype;
    size_t index;
} sorted;

/* Wide elements first, so that everything is aligned for its dtype; tensors of one dtype together, in model order. */
static int by_dtype(const void *a, const void *b)
{
    const sorted *s = a, *t = b;
    if (s->width != t->width) {
        return s->width > t->width ? -1 : 1;
    }
    return s->dtype != t->dtype ? (s->dtype < t->dtype ? -1 : 1) : s->index < t->index ? -1 : s->index > t->index;
}

typedef struct placer {
    const bl_bucket_dealt *dealt;
    bl_arena *arena;
    bl_bucket_plan *out;
    bl_tensor *scratch; /* [tensors of a bucket with padding] */
    sorted *order;
} placer;

/* Zeros up to the next aligned byte. */
static bl_status padding(bl_arena *arena, uint64_t bytes, size_t number, bl_tensor *out, bl_error *err)
{
    char name[40];
    uint64_t *shape = bl_arena_alloc(arena, sizeof *shape);
    snprintf(name, sizeof name, BL_BUCKETS_PAD "%zu", number);
    *out = (bl_tensor){.name = bl_arena_strndup(arena, name, strlen(name)), .dtype = BL_DT_U8, .ndim = 1, .shape = shape, .nbytes = bytes};
    if (!shape || !out->name) {
        return nomem(err);
    }
    *shape = bytes;
    return BL_OK;
}

/* Tensors [first, first + count) of those dealt become those of the next bucket, in data order, with padding between them. */
static bl_status fill(placer *p, size_t first, size_t count, bl_error *err)
{
    bl_bucket_plan *out = p->out;
    bl_bucket *b = &out->buckets.buckets[out->buckets.count];
    uint64_t at = 0;
    size_t pads = 0;
    for (size_t i = 0; i < count; i++) {
        const bl_tensor *t = &p->dealt->made[first + i].tensor;
        p->order[i] = (sorted){.width = bl_dtype_bits(t->dtype), .dtype = t->dtype, .index = first + i};
    }
    qsort(p->order, count, sizeof *p->order, by_dtype);
    b->tensors = bl_arena_array(p->arena, count, sizeof *b->tensors);
    if (!b->tensors) {
        return nomem(err);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t aligned = bl_bucket_aligned(at, out->buckets.align);
        if (aligned > at) {
            BL_TRY(padding(p->arena, aligned - at, pads++, &out->plan.tensors[out->plan.tensor_count++].tensor, err));
        }
        bl_bucket_tensor *entry = &b->tensors[b->count++];
        const bl_plan_tensor *made = &p->dealt->made[p->order[i].index];
        *entry = p->dealt->about[p->order[i].index];
        entry->tensor = made->tensor;
        entry->tensor.offset = aligned;
        out->entries[out->plan.tensor_count] = entry;
        out->plan.tensors[out->plan.tensor_count++] = *made;
        at = aligned + made->tensor.nbytes;
    }
    b->nbytes = at;
    return BL_OK;
}

static bl_status make_file(placer *p, size_t first, size_t count, bl_error *err)
{
    bl_bucket_plan *out = p->out;
    size_t index = out->buckets.count, from = out->plan.tensor_count;
    bl_plan_file *f = &out->plan.files[index];
    bl_bucket *b = &out->buckets.buckets[index];
    char name[32];
    b->name = f->name = bl_arena_strndup(p->arena, bl_bucket_name(name, index), strlen(bl_bucket_name(name, index)));
    if (!f->name) {
        return nomem(err);
    }
    BL_TRY(fill(p, first, count, err));
    f->tensors = &out->plan.tensors[from];
    f->count = out->plan.tensor_count - from;
    for (size_t i = 0; i < f->count; i++) {
        p->scratch[i] = f->tensors[i].tensor;
    }
    BL_TRY(bl_st_layout(p->scratch, f->count, bl_st_metadata, 1, BL_BUCKETS_MAX_ALIGN, 1, p->arena, &f->head, err));
    for (size_t i = 0; i < f->count; i++) {
        bl_tensor *t = &out->plan.tensors[from + i].tensor;
        const bl_bucket_tensor *entry = out->entries[from + i];
        if (p->scratch[i].nbytes != t->nbytes || (entry && p->scratch[i].offset != f->head.header_bytes + entry->tensor.offset)) {
            return bl_fail(err, BL_E_INTERNAL, f->name, t->name, -1, "planned place and layout disagree");
        }
        *t = p->scratch[i];
    }
    b->data_offset = f->head.header_bytes;
    out->plan.file_bytes += f->head.file_bytes;
    out->buckets.count++;
    return BL_OK;
}

/* What is read and not sent: a file without header that is never written. */
static void add_read(placer *p)
{
    bl_bucket_plan *out = p->out;
    bl_plan_file *f = &out->plan.files[out->plan.file_count];
    *f = (bl_plan_file){.name = "", .tensors = &out->plan.tensors[out->plan.tensor_count], .count = p->dealt->read_count};
    for (size_t i = 0; i < f->count; i++) {
        bl_plan_tensor *t = &out->plan.tensors[out->plan.tensor_count];
        *t = *p->dealt->read[i];
        t->tensor.offset = f->head.file_bytes;
        f->head.file_bytes += t->tensor.nbytes;
        for (size_t h = 0; h < out->buckets.host_count; h++) {
            bl_host_tensor *host = &out->buckets.host[h];
            if (host->value_class != BL_VALUE_NONE && !strcmp(host->tensor.name, t->tensor.name)) {
                out->hosts[out->plan.tensor_count] = host;
            }
        }
        out->plan.tensor_count++;
    }
    out->plan.file_count += f->count > 0;
}

static size_t count_buckets(const bl_bucket_dealt *d, size_t *most)
{
    size_t buckets = 0;
    *most = 0;
    for (size_t i = 0, n; i < d->count; i += n, buckets++) {
        for (n = 1; i + n < d->count && d->made[i + n].tensor.file == d->made[i].tensor.file;) {
            n++;
        }
        *most = n > *most ? n : *most;
    }
    return buckets;
}

bl_status bl_bucket_lay_out(const bl_bucket_dealt *d, bl_arena *arena, bl_bucket_plan *out, bl_error *err)
{
    size_t most, buckets = count_buckets(d, &most), room = 2 * d->count + d->read_count;
    placer p = {.dealt = d, .arena = arena, .out = out};
    bl_plan *plan = &out->plan;
    p.scratch = bl_arena_array(arena, 2 * most, sizeof *p.scratch);
    p.order = bl_arena_array(arena, most, sizeof *p.order);
    plan->files = bl_arena_array(arena, buckets + 1, sizeof *plan->files);
    plan->tensors = bl_arena_array(arena, room, sizeof *plan->tensors);
    out->entries = bl_arena_array(arena, room, sizeof *out->entries);
    out->hosts = bl_arena_array(arena, room, sizeof *out->hosts);
    out->buckets.buckets = bl_arena_array(arena, buckets, sizeof *out->buckets.buckets);
    if (!p.scratch || !p.order || !plan->files || !plan->tensors || !out->entries || !out->hosts || !out->buckets.buckets) {
        return nomem(err);
    }
    plan->tensor_count = 0;
    plan->file_bytes = 0;
    for (size_t i = 0; i < d->count;) {
        size_t n = 1;
        while (i + n < d->count && d->made[i + n].tensor.file == d->made[i].tensor.file) {
            n++;
        }
        BL_TRY(make_file(&p, i, n, err));
        i += n;
    }
    plan->file_count = buckets;
    add_read(&p);
    return BL_OK;
}

bl_status bl_bucket_head(const bl_bucket *b, bl_arena *arena, bl_st_head *out, bl_error *err)
{
    bl_tensor *list = bl_arena_array(arena, 2 * b->count, sizeof *list);
    uint64_t at = 0;
    size_t n = 0, pads = 0;
    if (!list) {
        return nomem(err);
    }
    for (size_t i = 0; i < b->count; i++) {
        const bl_tensor *t = &b->tensors[i].tensor;
        if (t->offset > at) {
            BL_TRY(padding(arena, t->offset - at, pads++, &list[n++], err));
        }
        list[n++] = *t;
        at = t->offset + t->nbytes;
    }
    BL_TRY(bl_st_layout(list, n, bl_st_metadata, 1, BL_BUCKETS_MAX_ALIGN, 1, arena, out, err));
    return out->header_bytes == b->data_offset && out->file_bytes == b->data_offset + b->nbytes
               ? BL_OK
               : bl_fail(err, BL_E_INPUT, b->name, NULL, -1, "its description is not of a bucket that this program would write");
}
