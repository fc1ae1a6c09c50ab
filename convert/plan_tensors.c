/* Planning: the tensors that come out, their shapes and what they are made of. */
#include "convert/plan_build.h"

#include "verify/values.h"

#include <string.h>

static uint64_t *own(const uint64_t *list)
{
    return (uint64_t *)(uintptr_t)list; /* ours until the plan is done */
}

/* A new output tensor with members, or room for them (members NULL); NULL when out of memory. Its shapes are zero. */
static bl_plan_tensor *add(bl_planner *p, const char *name, bl_dtype dtype, uint32_t ndim, const bl_plan_member *members, size_t count)
{
    bl_plan_tensor *t = &p->out->tensors[p->out->tensor_count];
    uint64_t *shapes = bl_arena_array(p->arena, 9, sizeof *shapes);
    t->members = members ? members : bl_arena_array(p->arena, count, sizeof *t->members);
    char *copy = bl_arena_strndup(p->arena, name, strlen(name));
    if (!shapes || !t->members || !copy) {
        return NULL;
    }
    t->tensor = (bl_tensor){.name = copy, .dtype = dtype, .ndim = ndim, .shape = shapes};
    t->start = shapes + 3;
    t->global_shape = shapes + 6;
    t->member_count = members ? count : 0;
    p->out->tensor_count++;
    return t;
}

static void add_member(bl_planner *p, bl_plan_tensor *t, bl_plan_source s, bl_rect part)
{
    bl_plan_member *members = (bl_plan_member *)(uintptr_t)t->members; /* likewise */
    members[t->member_count++] =
        (bl_plan_member){.pieces = s.w, .piece_count = s.count, .part = part, .sum = p->out->sum_count++};
    if (p->o->target == BL_TO_PACKED) {
        bl_layout_fine(p->out->layout, s.w->slot, &t->fine_rows, &t->fine_cols);
    } else { /* not recorded, but held against what the source records */
        t->fine_rows = s.w->fine_rows;
        t->fine_cols = s.w->fine_cols;
    }
}

/* A weight of as many rows as the share has with padding: for its geometry. */
static bl_weight padded(const bl_weight *w, bl_rect part, uint64_t rows)
{
    bl_weight all = *w;
    all.part = part;
    all.part.rows = w->slot->ndim == 1 ? 1 : rows;
    return all;
}

/* Those rows and columns of it, for the geometry of their scales. */
static bl_weight region(const bl_weight *w, uint64_t start, uint64_t rows, uint64_t start_col, uint64_t cols)
{
    bl_weight all = *w;
    all.part = (bl_rect){start, rows, start_col, cols};
    all.pad_cols = 0;
    return all;
}

/* One dimension: its length, where the part begins, the length of all parts together. */
static void dimension(bl_plan_tensor *t, uint32_t i, uint64_t length, uint64_t start, uint64_t whole)
{
    own(t->tensor.shape)[i] = length;
    own(t->start)[i] = start;
    own(t->global_shape)[i] = whole;
}

/* Shapes of a share of a weight (or of its scale) as it comes out, from dimension first on. */
static void set_shapes(bl_plan_tensor *t, uint32_t first, const bl_weight *w, const bl_share *share)
{
    const bl_slot *slot = w->slot;
    bl_weight whole = region(w, 0, share->all_rows, 0, share->all_cols);
    bl_weight part = region(w, share->start, share->rows, share->start_col, share->cols);
    uint64_t block = t->scale ? w->block_rows : 1, pack = t->scale ? w->block_cols : w->form == BL_FORM_FP4 ? 2 : 1;
    t->rows = share->rows;
    t->pad_cols = slot->ndim == 1 ? 0 : share->cols - share->part.cols;
    if (slot->ndim == 1) {
        dimension(t, first, share->part.cols, share->part.col, slot->shape[0]);
        return;
    }
    dimension(t, first, t->scale ? bl_weight_scale_rows(&part) : share->rows, share->start / block,
              t->scale ? bl_weight_scale_rows(&whole) : share->all_rows);
    dimension(t, first + 1, t->scale ? bl_weight_scale_cols(&part) : share->cols / pack, share->start_col / pack,
              t->scale ? bl_weight_scale_cols(&whole) : share->all_cols / pack);
}

bool bl_plan_links(const bl_planner *p, const bl_weight *w, const bl_share *share)
{
    bl_rect all = bl_slot_rect(w->slot);
    return p->o->link && p->o->target == BL_TO_PACKED && w->form == BL_FORM_TABLE && share->all_rows == all.rows &&
           share->rows == all.rows && memcmp(&w->part, &all, sizeof all) == 0;
}

bl_status bl_plan_single(bl_planner *p, bl_plan_source s, const bl_share *share, bool cast, bl_error *err)
{
    const bl_slot *slot = s.w->slot;
    bl_plan_tensor *t = add(p, slot->name, cast ? BL_DT_BF16 : s.w->tensor->dtype, slot->ndim, NULL, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->cast = cast;
    t->rank = share->owner;
    t->linked = bl_plan_links(p, s.w, share);
    t->expand = bl_plan_expands(p, s.w);
    add_member(p, t, s, share->part);
    bl_view made = bl_plan_made(t, 0);
    set_shapes(t, 0, &made.w, share);
    if (!s.w->scale || (cast && !p->o->save_scales)) {
        return BL_OK;
    }
    char name[192];
    bool own = p->c->config.earlier; /* there scales have names of several kinds, and no experts are stacked */
    if (!own) {
        bl_scale_name(name, sizeof name, slot->name);
    }
    t = add(p, own ? s.w->scale->name : name, s.w->scale->dtype, slot->ndim, t->members, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->scale = true;
    t->aside = cast;
    t->linked = bl_plan_links(p, s.w, share);
    t->expand = bl_plan_expands(p, s.w);
    t->rank = share->owner;
    set_shapes(t, 0, cast ? s.w : &made.w, share);
    return BL_OK;
}

bl_status bl_plan_kept_scale(bl_planner *p, bl_plan_source s, bl_error *err)
{
    char name[192];
    bl_share whole;
    bl_share_of(&p->c->config, &bl_layout_single, true, s.w->slot, 0, &whole);
    bl_scale_name(name, sizeof name, s.w->slot->name);
    bl_plan_tensor *t = add(p, name, s.w->scale->dtype, s.w->slot->ndim, NULL, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->scale = t->aside = true;
    add_member(p, t, s, whole.part);
    set_shapes(t, 0, s.w, &whole);
    return BL_OK;
}

bool bl_plan_expands(const bl_planner *p, const bl_weight *w)
{
    return p->o->target == BL_TO_PACKED && w->form == BL_FORM_FP8 && w->block_rows > 1 &&
           bl_layout_remedy(p->out->layout, w->slot) == BL_REMEDY_EXPAND;
}

bl_status bl_plan_encoded(bl_planner *p, bl_plan_source s, const bl_share *share, bl_form form, bl_error *err)
{
    char name[192];
    const bl_slot *slot = s.w->slot;
    bl_plan_tensor *t = add(p, slot->name, form == BL_FORM_FP4 ? BL_DT_I8 : BL_DT_F8_E4M3, slot->ndim, NULL, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    int rows = p->o->target == BL_TO_MERGED ? p->c->config.fp8_block_rows : p->o->fp8_block_rows;
    int cols = form == BL_FORM_FP8 && p->c->config.earlier ? rows : BL_BLOCK;
    t->encode = form;
    t->encode_rows = form == BL_FORM_FP8 ? rows : 1;
    t->encode_cols = cols;
    t->rank = share->owner;
    add_member(p, t, s, share->part);
    bl_view made = bl_plan_made(t, 0);
    set_shapes(t, 0, &made.w, share);
    bl_scale_name(name, sizeof name, slot->name);
    t = add(p, name, BL_DT_F8_E8M0, slot->ndim, t->members, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->encode = form;
    t->encode_rows = form == BL_FORM_FP8 ? rows : 1;
    t->encode_cols = cols;
    t->scale = true;
    t->rank = share->owner;
    set_shapes(t, 0, &made.w, share);
    return BL_OK;
}

static bl_status open_stack(bl_planner *p, const bl_weight *first, const bl_share *share, bool scale, bl_error *err)
{
    char name[192];
    const bl_slot *slot = first->slot;
    bl_stacked_name(name, sizeof name, &p->b->slots, slot, scale);
    bl_plan_tensor **open = p->stack[slot->part - 1];
    bl_plan_tensor *t = add(p, name, scale ? first->scale->dtype : first->tensor->dtype, 3, scale ? open[0]->members : NULL,
                            (size_t)share->experts);
    open[scale] = t;
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->scale = scale;
    t->stacked = true;
    t->rank = share->owner;
    dimension(t, 0, (uint64_t)share->experts, (uint64_t)share->first_expert, (uint64_t)share->all_experts);
    set_shapes(t, 1, first, share);
    return BL_OK;
}

bl_status bl_plan_stacked(bl_planner *p, bl_plan_source s, const bl_share *share, bl_error *err)
{
    const bl_slot *slot = s.w->slot;
    if (slot->expert == share->first_expert) {
        BL_TRY(open_stack(p, s.w, share, false, err));
        if (s.w->scale) {
            BL_TRY(open_stack(p, s.w, share, true, err));
        }
    }
    bl_plan_tensor *t = p->stack[slot->part - 1][0];
    const bl_weight *first = t->member_count ? t->members[0].pieces : s.w;
    if (first->form != s.w->form) {
        return bl_fail(err, BL_E_INPUT, p->c->path, slot->name, -1, "has dtype %s, expert %d of its layer has %s: cannot be stacked",
                       bl_dtype_name(s.w->tensor->dtype), first->slot->expert, bl_dtype_name(first->tensor->dtype));
    }
    add_member(p, t, s, share->part);
    return BL_OK;
}

bl_view bl_plan_view(const bl_plan_tensor *t, size_t i)
{
    const bl_plan_member *m = &t->members[i];
    bl_view v = bl_view_cut(m->pieces, m->piece_count, m->part);
    v.w.pad_cols = t->pad_cols;
    v.w.fine_rows = t->fine_rows;
    v.w.fine_cols = t->fine_cols;
    return v;
}

bl_view bl_plan_made(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_view(t, i);
    if (t->cast || t->encode) {
        bl_weight_reform(&v.w, t->cast ? BL_FORM_BF16 : t->encode);
        v.w.block_rows = t->encode ? (uint32_t)t->encode_rows : v.w.block_rows;
        v.w.block_cols = t->encode ? (uint32_t)t->encode_cols : v.w.block_cols;
    }
    v.w.block_rows = t->expand ? 1 : v.w.block_rows;
    return v;
}

uint64_t bl_plan_row_bytes(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_made(t, i);
    return bl_weight_stored(&v.w, t->scale).pitch;
}

uint64_t bl_plan_member_bytes(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_made(t, i);
    bl_weight w = padded(&v.w, v.w.part, t->rows);
    return bl_weight_stored(&w, t->scale).rows * bl_plan_row_bytes(t, i);
}

uint64_t bl_plan_granule(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_made(t, i);
    uint64_t rows = t->encode && !t->scale && t->encode_rows > BL_VALUE_TILE ? (uint64_t)t->encode_rows / BL_VALUE_TILE : 1;
    return rows * bl_values_granule(&v.w, t->scale);
}

bool bl_plan_names(const bl_plan *p, const bl_plan_tensor *t, int rank)
{
    const bl_weight *w = t->members[0].pieces;
    if (t->aside) {
        return false;
    }
    int stage = p->layout->ranks / p->layout->pp;
    return t->rank == rank || (p->layout->engram_shared && w->form == BL_FORM_TABLE && t->rank / stage == rank / stage);
}
