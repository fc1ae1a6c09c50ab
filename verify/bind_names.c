#include "verify/bind_names.h"

#include "verify/pairs.h"

/* The form of t by its dtype and the scale beside it. */
static void shape_weight(const bl_checkpoint *c, const bl_tensor *t, bl_slot *slot, bl_weight *w)
{
    const bl_tensor *second, *s = bl_pair_scale(c, t->name, &second);
    uint64_t cols = t->ndim ? t->shape[t->ndim - 1] : 1, rows = cols ? bl_tensor_elements(t) / cols : 0;
    bool fp4 = t->dtype == BL_DT_I8 && s, e8m0 = s && s->dtype == BL_DT_F8_E8M0;
    bool grid = s && s->ndim == 2 && (e8m0 || s->dtype == BL_DT_F32);
    const uint64_t shape[2] = {rows, fp4 ? 2 * cols : cols};
    uint64_t edge = t->dtype == BL_DT_F8_E4M3 && grid ? bl_grid_edge(s->shape, shape, 32) : 0;
    bool by_row = e8m0 && bl_tensor_elements(s) == rows * bl_pieces(shape[1], 32);
    w->form = t->dtype == BL_DT_F32 ? BL_FORM_F32 : t->dtype == BL_DT_BF16 ? BL_FORM_BF16 : fp4 && by_row ? BL_FORM_FP4 : BL_FORM_OTHER;
    if (t->dtype == BL_DT_F8_E4M3 && !second && (by_row || edge)) {
        w->form = by_row ? BL_FORM_TABLE : BL_FORM_FP8;
    }
    if (w->form == BL_FORM_FP4 || w->form == BL_FORM_TABLE || w->form == BL_FORM_FP8) {
        w->block_rows = by_row ? 1 : (uint32_t)edge;
        w->block_cols = by_row ? 32 : (uint32_t)edge;
        w->scale = s;
        w->scale_offset = s->offset;
        w->scale_nbytes = s->nbytes;
    }
    slot->shape[0] = rows;
    slot->shape[1] = w->form == BL_FORM_FP4 ? 2 * cols : cols;
    slot->ndim = t->ndim > 1 ? 2 : 1;
    w->part = (bl_rect){.rows = rows, .cols = slot->shape[1]};
}

bl_status bl_bind_names(const bl_checkpoint *c, bl_arena *arena, bl_binding *out, bl_error *err)
{
    bl_slot *slots = bl_arena_array(arena, c->tensor_count, sizeof *slots);
    out->weights = bl_arena_array(arena, c->tensor_count, sizeof *out->weights);
    if (!slots || !out->weights) {
        return bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i];
        char weight[BL_MAX_NAME + 32];
        bool is_scale = bl_pair_is_scale(t->name, weight, sizeof weight) && weight[0] && bl_checkpoint_find(c, weight);
        if (is_scale || !t->nbytes) {
            continue;
        }
        slots[i] = (bl_slot){.name = t->name, .layer = -1, .expert = -1};
        bl_weight *w = &out->weights[out->count++];
        *w = (bl_weight){.slot = &slots[i], .tensor = t, .offset = t->offset, .nbytes = t->nbytes};
        shape_weight(c, t, &slots[i], w);
    }
    return BL_OK;
}
