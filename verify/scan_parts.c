/* What the files of a scan are made of. */
#include "verify/scan_impl.h"

#include "verify/arrival.h"

#include <stdatomic.h>

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

bl_status bl_scan_index(bl_scanner *x, bl_error *err)
{
    size_t tensors = x->s->c->tensor_count, weights = x->s->binding ? x->s->binding->count : 0;
    x->first_weight = bl_arena_array(x->arena, tensors, sizeof(size_t));
    x->first_scale = bl_arena_array(x->arena, tensors, sizeof(size_t));
    x->next_weight = bl_arena_array(x->arena, weights, sizeof(size_t));
    x->next_scale = bl_arena_array(x->arena, weights, sizeof(size_t));
    if (!x->first_weight || !x->first_scale || !x->next_weight || !x->next_scale) {
        return nomem(err);
    }
    for (size_t i = weights; i-- > 0;) { /* backwards: lists then ascend, as experts do in the binding */
        const bl_weight *w = &x->s->binding->weights[i];
        size_t t = (size_t)(w->tensor - x->s->c->tensors);
        x->next_weight[i] = x->first_weight[t];
        x->first_weight[t] = i + 1;
        if (w->scale) {
            t = (size_t)(w->scale - x->s->c->tensors);
            x->next_scale[i] = x->first_scale[t];
            x->first_scale[t] = i + 1;
        }
    }
    return BL_OK;
}

typedef struct part_list {
    bl_part *parts;
    bl_scan_piece *pieces;
    size_t count;
} part_list;

static void put_part(part_list *l, uint64_t nbytes, uint64_t granule, bl_scan_piece p)
{
    if (nbytes) {
        l->parts[l->count] = (bl_part){.nbytes = nbytes, .granule = granule, .tag = l->count};
        l->pieces[l->count++] = p;
    }
}

static void put_tensor(const bl_scanner *x, part_list *l, const bl_tensor *t)
{
    size_t index = (size_t)(t - x->s->c->tensors);
    bool scale = x->first_scale[index] != 0;
    size_t w = scale ? x->first_scale[index] : x->first_weight[index];
    uint64_t at = 0;
    for (; w; w = scale ? x->next_scale[w - 1] : x->next_weight[w - 1]) {
        const bl_weight *weight = &x->s->binding->weights[w - 1];
        uint64_t n = scale ? weight->scale_nbytes : weight->nbytes;
        uint64_t granule = x->s->look ? x->s->granule(weight, scale) : bl_values_granule(weight, scale);
        if (!granule || granule > BL_STREAM_TILE) {
            granule = BL_VALUE_UNIT_BYTES; /* no value digest then: see values_fit */
        }
        put_part(l, n, granule, (bl_scan_piece){.tensor = t, .weight = weight, .scale = scale, .base = at});
        at += n;
    }
    put_part(l, t->nbytes - at, BL_VALUE_UNIT_BYTES, (bl_scan_piece){.tensor = t, .base = at});
}

bl_status bl_scan_file_parts(bl_scanner *x, const bl_tensor **order, size_t tensors, bl_scan_source *src, bl_lane *lane, bl_error *err)
{
    uint64_t size = bl_file_size(src->file), at = 0;
    size_t room = 2 * tensors + 2;
    for (size_t i = 0; i < tensors; i++) {
        size_t t = (size_t)(order[i] - x->s->c->tensors);
        for (size_t w = x->first_weight[t]; w; w = x->next_weight[w - 1]) {
            room++;
        }
        for (size_t w = x->first_scale[t]; w; w = x->next_scale[w - 1]) {
            room++;
        }
    }
    part_list l = {.parts = bl_arena_array(x->arena, room, sizeof *l.parts),
                   .pieces = bl_arena_array(x->arena, room, sizeof *l.pieces)};
    if (!l.parts || !l.pieces) {
        return nomem(err);
    }
    for (size_t i = 0; i < tensors; i++) {
        const bl_tensor *t = order[i];
        if (t->offset < at || t->offset > size || t->nbytes > size - t->offset) {
            bl_find(x->f, 1, src->path, t->name, (int64_t)t->offset, (int64_t)(t->offset + t->nbytes),
                    "overlaps another tensor or ends beyond the file");
            continue;
        }
        put_part(&l, t->offset - at, BL_IO_ALIGN, (bl_scan_piece){.base = at});
        put_tensor(x, &l, t);
        at = t->offset + t->nbytes;
    }
    put_part(&l, size - at, BL_IO_ALIGN, (bl_scan_piece){.base = at});
    src->pieces = l.pieces;
    *lane = (bl_lane){.parts = l.parts, .count = l.count};
    return BL_OK;
}

bl_status bl_scan_raw_parts(bl_scanner *x, bl_scan_source *src, bl_lane *lane, bl_error *err)
{
    bl_part *part = bl_arena_array(x->arena, 1, sizeof *part);
    src->pieces = bl_arena_array(x->arena, 1, sizeof *src->pieces);
    if (!part || !src->pieces) {
        return nomem(err);
    }
    *part = (bl_part){.nbytes = bl_file_size(src->file), .granule = BL_IO_ALIGN};
    *lane = (bl_lane){.parts = part, .count = 1};
    return BL_OK;
}

/* The scale that is read for the value digest of a part; NULL: none. */
static const bl_tensor *scale_of(const bl_scanner *x, const bl_scan_piece *p)
{
    return x->s->values && p->weight && !p->scale ? p->weight->scale : NULL;
}

bl_status bl_scan_expect(const bl_scanner *x, size_t lane, bl_error *err)
{
    const bl_scan_source *src = &x->sources[lane];
    for (size_t i = 0; x->arrives && i < x->lanes[lane].count; i++) {
        const bl_part *part = &x->lanes[lane].parts[i];
        const bl_scan_piece *p = &src->pieces[part->tag];
        const bl_tensor *t = p->tensor, *scale = scale_of(x, p);
        BL_TRY(bl_arrival_expect(src->file, t ? t->offset : p->base, t ? t->nbytes : part->nbytes, err));
        BL_TRY(scale ? bl_arrival_expect(bl_checkpoint_file(x->s->c, scale)->file, scale->offset, scale->nbytes, err) : BL_OK);
    }
    return BL_OK;
}

void bl_scan_count(const bl_scanner *x, size_t lane, const bl_part *part, uint64_t n)
{
    const bl_scan_source *src = &x->sources[lane];
    bl_scan_piece *p = &src->pieces[part->tag];
    if (!x->arrives || atomic_fetch_add(&p->read, n) + n != part->nbytes) {
        return;
    }
    const bl_tensor *t = p->tensor, *scale = scale_of(x, p);
    bl_arrival_done(src->file, t ? t->offset : p->base, t ? t->nbytes : part->nbytes);
    if (scale) {
        bl_arrival_done(bl_checkpoint_file(x->s->c, scale)->file, scale->offset, scale->nbytes);
    }
}
