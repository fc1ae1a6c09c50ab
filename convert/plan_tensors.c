/* Planning: the tensors that come out, their shapes and what they are made of. */
#include "convert/plan_build.h"

#include "verify/values.h"

#include <string.h>

/* A new output tensor with members, or room for them (members NULL); NULL when out of memory. */
static bl_plan_tensor *add(bl_planner *p, const char *name, bl_dtype dtype, uint32_t ndim, const bl_plan_member *members, size_t count)
{
    bl_plan_tensor *t = &p->out->tensors[p->out->tensor_count];
    uint64_t *shape = bl_arena_array(p->arena, 3, sizeof *shape);
    t->members = members ? members : bl_arena_array(p->arena, count, sizeof *t->members);
    char *copy = bl_arena_strndup(p->arena, name, strlen(name));
    if (!shape || !t->members || !copy) {
        return NULL;
    }
    t->tensor = (bl_tensor){.name = copy, .dtype = dtype, .ndim = ndim, .shape = shape};
    t->member_count = members ? count : 0;
    p->out->tensor_count++;
    return t;
}

static uint64_t *shape_of(bl_plan_tensor *t)
{
    return (uint64_t *)(uintptr_t)t->tensor.shape; /* ours until the plan is done */
}

static void add_member(bl_planner *p, bl_plan_tensor *t, bl_plan_source s, bl_rect part)
{
    bl_plan_member *members = (bl_plan_member *)(uintptr_t)t->members; /* likewise */
    members[t->member_count++] =
        (bl_plan_member){.pieces = s.w, .piece_count = s.count, .part = part, .sum = p->out->sum_count++};
}

/* Shape of a weight (or its scale) as it comes out, without a leading number of experts. */
static void out_shape(const bl_weight *w, bool scale, bool cast, uint64_t shape[2])
{
    if (scale) {
        shape[0] = bl_weight_scale_rows(w);
        shape[1] = bl_weight_scale_cols(w);
        return;
    }
    shape[0] = w->slot->ndim == 1 ? bl_weight_cols(w) : bl_weight_rows(w);
    shape[1] = w->form == BL_FORM_FP4 && !cast ? bl_weight_cols(w) / 2 : bl_weight_cols(w);
}

bl_status bl_plan_single(bl_planner *p, bl_plan_source s, bool cast, bl_error *err)
{
    const bl_slot *slot = s.w->slot;
    bl_rect part = bl_slot_rect(slot);
    bl_view view = bl_view_cut(s.w, s.count, part);
    bl_plan_tensor *t = add(p, slot->name, cast ? BL_DT_BF16 : s.w->tensor->dtype, slot->ndim, NULL, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->cast = cast;
    add_member(p, t, s, part);
    out_shape(&view.w, false, cast, shape_of(t));
    if (!s.w->scale || (cast && !p->o->save_scales)) {
        return BL_OK;
    }
    char name[192];
    bl_scale_name(name, sizeof name, slot->name);
    t = add(p, name, s.w->scale->dtype, slot->ndim, t->members, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->scale = true;
    t->aside = cast;
    out_shape(&view.w, true, false, shape_of(t));
    return BL_OK;
}

bl_status bl_plan_encoded(bl_planner *p, bl_plan_source s, bl_form form, bl_error *err)
{
    char name[192];
    const bl_slot *slot = s.w->slot;
    bl_plan_tensor *t = add(p, slot->name, form == BL_FORM_FP4 ? BL_DT_I8 : BL_DT_F8_E4M3, slot->ndim, NULL, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->encode = form;
    add_member(p, t, s, bl_slot_rect(slot));
    bl_view made = bl_plan_made(t, 0);
    out_shape(&made.w, false, false, shape_of(t));
    bl_scale_name(name, sizeof name, slot->name);
    t = add(p, name, BL_DT_F8_E8M0, slot->ndim, t->members, 1);
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->encode = form;
    t->scale = true;
    out_shape(&made.w, true, false, shape_of(t));
    return BL_OK;
}

static bl_status open_stack(bl_planner *p, const bl_view *first, bool scale, bl_error *err)
{
    char name[192];
    const bl_slot *slot = first->w.slot;
    int experts = slot->group == BL_GROUP_DSPARK ? p->c->config.dspark_n_routed_experts : p->c->config.n_routed_experts;
    bl_stacked_name(name, sizeof name, &p->b->slots, slot, scale);
    bl_plan_tensor **open = p->stack[slot->part - 1];
    *(scale ? open + 1 : open) = add(p, name, scale ? first->w.scale->dtype : first->w.tensor->dtype, 3,
                                     scale ? open[0]->members : NULL, (size_t)experts);
    bl_plan_tensor *t = open[scale];
    if (!t) {
        return bl_plan_nomem(p, err);
    }
    t->scale = scale;
    t->stacked = true;
    shape_of(t)[0] = (uint64_t)experts;
    out_shape(&first->w, scale, false, shape_of(t) + 1);
    return BL_OK;
}

bl_status bl_plan_stacked(bl_planner *p, bl_plan_source s, bl_error *err)
{
    const bl_slot *slot = s.w->slot;
    bl_rect part = bl_slot_rect(slot);
    if (slot->expert == 0) {
        bl_view view = bl_view_cut(s.w, s.count, part);
        BL_TRY(open_stack(p, &view, false, err));
        if (s.w->scale) {
            BL_TRY(open_stack(p, &view, true, err));
        }
    }
    bl_plan_tensor *t = p->stack[slot->part - 1][0];
    const bl_weight *first = t->member_count ? t->members[0].pieces : s.w;
    if (first->form != s.w->form) {
        return bl_fail(err, BL_E_INPUT, p->c->path, slot->name, -1, "has dtype %s, expert 0 of its layer has %s: cannot be stacked",
                       bl_dtype_name(s.w->tensor->dtype), bl_dtype_name(first->tensor->dtype));
    }
    add_member(p, t, s, part);
    return BL_OK;
}

bl_view bl_plan_view(const bl_plan_tensor *t, size_t i)
{
    const bl_plan_member *m = &t->members[i];
    return bl_view_cut(m->pieces, m->piece_count, m->part);
}

bl_view bl_plan_made(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_view(t, i);
    if (t->cast || t->encode) {
        bl_weight_reform(&v.w, t->cast ? BL_FORM_BF16 : t->encode);
    }
    return v;
}

uint64_t bl_plan_member_bytes(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_made(t, i);
    bl_stored s = bl_weight_stored(&v.w, t->scale);
    return s.rows * s.cols;
}

uint64_t bl_plan_granule(const bl_plan_tensor *t, size_t i)
{
    bl_view v = bl_plan_made(t, i);
    return bl_values_granule(&v.w, t->scale);
}
