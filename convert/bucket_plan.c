#include "convert/bucket_plan.h"

#include "formats/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor of the checkpoint on its way to a bucket. */
typedef struct item {
    bl_plan_tensor *t;
    char *key;     /* of its group */
    size_t order;  /* in the model */
    size_t leader; /* order of the first of its group */
} item;

typedef struct planner {
    const bl_checkpoint *c;
    const bl_bucket_options *o;
    const bl_buckets *like; /* NULL: the options say what is not sent */
    bl_arena *arena;
    bl_bucket_plan *out;
    item *items; /* [item_count] what is sent, groups together */
    size_t item_count;
    bl_plan_tensor *made; /* [made_count] tensors and slices, bucket by bucket; tensor.file is the bucket */
    bl_bucket_tensor *about; /* [made_count] of each */
    size_t made_count;
    bl_plan_tensor **read; /* [read_count] what is read and not sent */
    size_t read_count;
    uint64_t filled; /* bytes in the bucket being filled */
    size_t bucket;   /* its number */
    uint64_t groups;
} planner;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the plan");
}

/* ---- groups */

char *bl_bucket_group(char *buf, size_t cap, const char *weight)
{
    static const char compressor[] = ".indexer.compressor.";
    static const struct {
        const char *tail, *with;
    } pairs[] = {{".attn.wkv", ".attn.wq_a"},
                 {".compressor.wgate", ".compressor.wkv"},
                 {".self_attn.kv_a_proj_with_mqa", ".self_attn.q_a_proj"}};
    const char *all = strstr(weight, compressor);
    size_t n = bl_stem(weight, ".weight");
    n = n ? n : strlen(weight);
    if (all) {
        snprintf(buf, cap, "%.*s", (int)((size_t)(all - weight) + sizeof compressor - 1), weight);
        return buf;
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t k = strlen(pairs[i].tail);
        if (n > k && !memcmp(weight + n - k, pairs[i].tail, k)) {
            snprintf(buf, cap, "%.*s%s", (int)(n - k), weight, pairs[i].with);
            return buf;
        }
    }
    snprintf(buf, cap, "%.*s", (int)n, weight);
    return buf;
}

static int by_key(const void *a, const void *b)
{
    const item *s = a, *t = b;
    int c = strcmp(s->key, t->key);
    return c ? c : s->order < t->order ? -1 : s->order > t->order;
}

static int by_leader(const void *a, const void *b)
{
    const item *s = a, *t = b;
    return s->leader != t->leader ? (s->leader < t->leader ? -1 : 1) : s->order < t->order ? -1 : s->order > t->order;
}

/* Groups stand where their first tensor stands in the model. */
static void gather_groups(planner *p)
{
    qsort(p->items, p->item_count, sizeof *p->items, by_key);
    for (size_t i = 0, first = 0; i < p->item_count; i++) {
        first = i && strcmp(p->items[first].key, p->items[i].key) == 0 ? first : i;
        p->items[i].leader = p->items[first].order;
    }
    qsort(p->items, p->item_count, sizeof *p->items, by_leader);
}

/* ---- what is sent, what is not */

static int host_is(const void *name, const void *host)
{
    return strcmp(name, ((const bl_host_tensor *)host)->tensor.name);
}

static bool is_host(const planner *p, const bl_plan_tensor *t)
{
    if (p->like) {
        return p->like->host_count &&
               bsearch(t->tensor.name, p->like->host, p->like->host_count, sizeof *p->like->host, host_is);
    }
    const bl_slot *s = t->members[0].pieces->slot;
    return (s->kind == BL_SLOT_TABLE && (p->o->host & BL_HOST_ENGRAM)) ||
           (s->group == BL_GROUP_DSPARK && (p->o->host & BL_HOST_DSPARK)) ||
           (s->group == BL_GROUP_VISION && (p->o->host & BL_HOST_VISION));
}

/* The value digest that the manifests of a packed model have for a weight; false: it is to be computed. */
static bool recorded_value(const planner *p, const bl_plan_tensor *t, bl_digest *out)
{
    bl_sum sum = {0};
    for (size_t i = 0; i < t->members[0].piece_count; i++) {
        bl_digest d;
        const bl_weight *w = &t->members[0].pieces[i];
        if (!w->replica && !bl_weight_recorded(p->c, w, &d)) {
            return false;
        }
        if (!w->replica) {
            bl_sum_add(&sum, bl_digest_sum(d));
        }
    }
    *out = bl_sum_digest(sum);
    return true;
}

/* Describe a tensor that is not sent; what its value digest is not on record for is to be read, its scale included. */
static void add_host(planner *p, bl_plan_tensor *t)
{
    bl_buckets *b = &p->out->buckets;
    bl_host_tensor *h = &b->host[b->host_count++];
    const bl_weight *w = t->members[0].pieces;
    bool recorded = recorded_value(p, t, &h->value);
    h->tensor = t->tensor;
    if (!t->scale && (recorded || !p->o->no_host_digests)) {
        h->value_class = bl_weight_class(w);
        h->value_shape = w->slot->shape;
        h->value_ndim = w->slot->ndim;
    }
    if (!recorded && !p->o->no_host_digests) {
        p->read[p->read_count++] = t;
    }
}

static int by_model(const void *a, const void *b)
{
    const bl_plan_tensor *s = *(bl_plan_tensor *const *)a, *t = *(bl_plan_tensor *const *)b;
    const bl_weight *v = s->members[0].pieces, *w = t->members[0].pieces;
    return v != w ? (v < w ? -1 : 1) : (int)s->scale - (int)t->scale;
}

static int tensor_by_name(const void *a, const void *b)
{
    return bl_tensor_by_name(&(*(bl_plan_tensor *const *)a)->tensor, &(*(bl_plan_tensor *const *)b)->tensor);
}

static bl_status add_item(planner *p, bl_plan_tensor *t, size_t order, bl_error *err)
{
    char key[BL_MAX_NAME + 64];
    bl_bucket_group(key, sizeof key, t->members[0].pieces->slot->name);
    p->items[p->item_count] = (item){.t = t, .order = order, .key = bl_arena_strndup(p->arena, key, strlen(key))};
    return p->items[p->item_count++].key ? BL_OK : nomem(err);
}

/* Deal the tensors of the whole plan, in model order, to those that are sent and those that are not. */
static bl_status part_tensors(planner *p, bl_plan_tensor **all, size_t count, bl_error *err)
{
    bl_buckets *b = &p->out->buckets;
    p->items = bl_arena_array(p->arena, count, sizeof *p->items);
    p->out->names = bl_arena_array(p->arena, count, sizeof *p->out->names);
    b->host = bl_arena_array(p->arena, count, sizeof *b->host);
    p->read = bl_arena_array(p->arena, count, sizeof *p->read);
    if (!p->items || !p->out->names || !b->host || !p->read) {
        return nomem(err);
    }
    qsort(all, count, sizeof *all, by_model);
    for (size_t i = 0; i < count; i++) {
        if (!is_host(p, all[i])) {
            BL_TRY(add_item(p, all[i], i, err));
        }
    }
    gather_groups(p);
    qsort(all, count, sizeof *all, tensor_by_name);
    for (size_t i = 0; i < count; i++) {
        p->out->names[p->out->name_count++] = all[i]->tensor.name;
        if (is_host(p, all[i])) {
            add_host(p, all[i]);
        }
    }
    return BL_OK;
}

/* ---- slices */

/* Rows [row, row + rows) of the weight that t is of, or of its scale. */
static bl_status make_slice(planner *p, const bl_plan_tensor *t, uint64_t row, uint64_t rows, size_t sum, bl_plan_tensor *out,
                            bl_bucket_tensor *about, bl_error *err)
{
    const bl_weight *w = t->members[0].pieces;
    char name[BL_MAX_NAME + 64];
    bl_plan_member *m = bl_arena_alloc(p->arena, sizeof *m);
    uint64_t *shape = bl_arena_array(p->arena, t->tensor.ndim, sizeof *shape);
    if (!m || !shape) {
        return nomem(err);
    }
    *out = *t;
    *m = t->members[0];
    m->part.row += row;
    m->part.rows = rows;
    m->sum = sum;
    out->members = m;
    out->rows = rows;
    bl_view v = bl_plan_made(out, 0);
    memcpy(shape, t->tensor.shape, t->tensor.ndim * sizeof *shape);
    shape[0] = t->scale ? bl_weight_scale_rows(&v.w) : rows;
    about->of = t->tensor.name;
    about->row = t->scale ? row / w->block_rows : row;
    about->rows = t->tensor.shape[0];
    snprintf(name, sizeof name, "%s[%llu:%llu]", t->tensor.name, (unsigned long long)about->row,
             (unsigned long long)(about->row + shape[0]));
    out->tensor.name = bl_arena_strndup(p->arena, name, strlen(name));
    out->tensor.shape = shape;
    out->tensor.nbytes = bl_plan_member_bytes(out, 0);
    return out->tensor.name ? BL_OK : nomem(err);
}

/* Bytes of rows of a weight and, with it, of its scale in a bucket. */
static uint64_t slice_bytes(const planner *p, const item *items, size_t count, uint64_t rows)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const bl_plan_tensor *t = items[i].t;
        uint64_t block = t->scale ? t->members[0].pieces->block_rows : 1, whole = t->tensor.shape[0] ? t->tensor.shape[0] : 1;
        sum += bl_bucket_aligned((rows + block - 1) / block * (t->tensor.nbytes / whole), p->out->buckets.align);
    }
    return sum;
}

/* Rows of a slice that fits a bucket, a multiple of what shares a scale; 0: none does. */
static uint64_t slice_rows(const planner *p, const item *items, size_t count)
{
    const bl_weight *w = items[0].t->members[0].pieces;
    uint64_t step = w->scale && w->block_rows > BL_BLOCK ? w->block_rows : BL_BLOCK;
    uint64_t steps = p->o->size / slice_bytes(p, items, count, step) + 1;
    while (steps && slice_bytes(p, items, count, steps * step) > p->o->size) {
        steps--;
    }
    return steps * step;
}

/* ---- dealing */

static bl_plan_tensor *next_made(planner *p, bl_bucket_tensor **about)
{
    *about = &p->about[p->made_count];
    return &p->made[p->made_count++];
}

/* Begin another bucket, unless this one has room for that many bytes or is empty. */
static void make_room(planner *p, uint64_t bytes)
{
    if (p->filled && p->filled + bytes > p->o->size) {
        p->bucket++;
        p->filled = 0;
    }
    p->filled += bytes;
}

static void place(planner *p, bl_plan_tensor *t, bl_bucket_tensor *about)
{
    t->tensor.file = (uint32_t)p->bucket;
    about->group = p->groups;
}

static bl_status refuse(const planner *p, const item *items, uint64_t bytes, const char *why, bl_error *err)
{
    return bl_fail(err, BL_E_USAGE, p->c->path, items->t->tensor.name, -1,
                   "its group has %llu bytes, a bucket %llu, and %s: a larger --size or --oversize alone is needed",
                   (unsigned long long)bytes, (unsigned long long)p->o->size, why);
}

static bl_status deal_slices(planner *p, const item *items, size_t count, uint64_t bytes, bl_error *err)
{
    const bl_plan_tensor *first = items[0].t;
    for (size_t i = 1; i < count; i++) {
        if (items[i].t->members[0].pieces->slot != first->members[0].pieces->slot) {
            return refuse(p, items, bytes, "several weights must travel together", err);
        }
    }
    if (first->tensor.ndim < 2 || first->scale) {
        return refuse(p, items, bytes, "a vector is not cut", err);
    }
    uint64_t all = first->members[0].part.rows, step = slice_rows(p, items, count);
    if (step == 0) {
        return refuse(p, items, bytes, "rows that share a scale do not fit", err);
    }
    for (uint64_t row = 0; row < all; row += step, p->groups++) {
        uint64_t rows = all - row < step ? all - row : step;
        size_t sum = p->out->plan.sum_count++;
        make_room(p, slice_bytes(p, items, count, rows));
        for (size_t i = 0; i < count; i++) {
            bl_bucket_tensor *about;
            bl_plan_tensor *t = next_made(p, &about);
            BL_TRY(make_slice(p, items[i].t, row, rows, sum, t, about, err));
            place(p, t, about);
        }
    }
    return BL_OK;
}

static bl_status deal_group(planner *p, const item *items, size_t count, bl_error *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += bl_bucket_aligned(items[i].t->tensor.nbytes, p->out->buckets.align);
    }
    if (bytes > p->o->size && p->o->slice) {
        return deal_slices(p, items, count, bytes, err);
    }
    make_room(p, bytes);
    for (size_t i = 0; i < count; i++) {
        bl_bucket_tensor *about;
        bl_plan_tensor *t = next_made(p, &about);
        *t = *items[i].t;
        place(p, t, about);
    }
    p->groups++;
    return BL_OK;
}

static size_t group_size(const planner *p, size_t i)
{
    size_t n = 1;
    while (i + n < p->item_count && p->items[i + n].leader == p->items[i].leader) {
        n++;
    }
    return n;
}

/* Tensors and slices at the most. */
static size_t count_made(const planner *p)
{
    size_t count = p->item_count;
    for (size_t i = 0, n; p->o->slice && i < p->item_count; i += n) {
        n = group_size(p, i);
        uint64_t all = p->items[i].t->members[0].part.rows, step = slice_rows(p, &p->items[i], n);
        count += step && all > step ? (size_t)((all / step) * n) : 0;
    }
    return count;
}

static bl_status deal(planner *p, bl_error *err)
{
    size_t most = count_made(p);
    p->made = bl_arena_array(p->arena, most, sizeof *p->made);
    p->about = bl_arena_array(p->arena, most, sizeof *p->about);
    if (!p->made || !p->about) {
        return nomem(err);
    }
    for (size_t i = 0, n; i < p->item_count; i += n) {
        n = group_size(p, i);
        BL_TRY(deal_group(p, &p->items[i], n, err));
    }
    return BL_OK;
}

static bl_status make_whole_plan(const bl_checkpoint *c, const bl_binding *b, bl_arena *arena, bl_plan *whole, bl_plan_tensor ***all,
                                 bl_error *err)
{
    const bl_plan_options o = {.target = BL_TO_MERGED, .shard_size = 5000000000u};
    BL_TRY(bl_plan_released_scales(c, err));
    BL_TRY(bl_plan_make(c, b, &o, arena, whole, err));
    *all = bl_arena_array(arena, whole->tensor_count, sizeof **all);
    for (size_t i = 0; *all && i < whole->tensor_count; i++) {
        (*all)[i] = &whole->tensors[i];
    }
    return *all ? BL_OK : nomem(err);
}

bl_status bl_bucket_plan_make(const bl_checkpoint *c, const bl_binding *b, const bl_bucket_options *o, const bl_buckets *like,
                              bl_arena *arena, bl_bucket_plan *out, bl_error *err)
{
    bl_plan whole;
    bl_plan_tensor **all;
    planner p = {.c = c, .o = o, .like = like, .arena = arena, .out = out};
    *out = (bl_bucket_plan){.buckets = {.writer = "baleen " BL_VERSION, .size = o->size, .align = o->align, .slice = o->slice}};
    BL_TRY(make_whole_plan(c, b, arena, &whole, &all, err));
    out->plan = whole;
    BL_TRY(part_tensors(&p, all, whole.tensor_count, err));
    BL_TRY(deal(&p, err));
    const bl_bucket_dealt dealt = {.made = p.made, .about = p.about, .count = p.made_count, .read = p.read, .read_count = p.read_count};
    return bl_bucket_lay_out(&dealt, arena, out, err);
}
