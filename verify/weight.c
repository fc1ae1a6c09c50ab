/* Geometry of weights and their parts. */
#include "verify/bind.h"

/* How many blocks n elements from first on lie in. */
static uint64_t blocks_of(uint64_t first, uint64_t n, uint64_t block)
{
    return n ? bl_pieces(first + n, block) - first / block : 0;
}

bl_rect bl_slot_rect(const bl_slot *s)
{
    return s->ndim == 1 ? (bl_rect){.rows = 1, .cols = s->shape[0]} : (bl_rect){.rows = s->shape[0], .cols = s->shape[1]};
}

uint64_t bl_weight_cols(const bl_weight *w)
{
    return w->part.cols;
}

uint64_t bl_weight_rows(const bl_weight *w)
{
    return w->part.rows;
}

uint64_t bl_weight_row_bytes(const bl_weight *w)
{
    return bl_weight_stored_bytes(w, w->part.cols + w->pad_cols);
}

void bl_weight_reform(bl_weight *w, bl_form form)
{
    bool scaled = form == BL_FORM_FP8 || form == BL_FORM_FP4 || form == BL_FORM_TABLE;
    w->form = form;
    w->block_rows = !scaled ? 0 : form == BL_FORM_FP8 ? BL_BLOCK : 1;
    w->block_cols = scaled ? BL_BLOCK : 0;
}

uint64_t bl_weight_stored_bytes(const bl_weight *w, uint64_t n)
{
    switch (w->form) {
    case BL_FORM_F32:
        return 4 * n;
    case BL_FORM_BF16:
        return 2 * n;
    case BL_FORM_FP4:
        return n / 2;
    case BL_FORM_OTHER:
        return n * (bl_dtype_bits(w->tensor->dtype) / 8);
    default:
        return n;
    }
}

bool bl_weight_f32_scaled(const bl_weight *w)
{
    return w->form == BL_FORM_FP8 && w->scale && w->scale->dtype == BL_DT_F32;
}

uint64_t bl_weight_scale_cols(const bl_weight *w)
{
    return blocks_of(w->part.col, w->part.cols, w->block_cols);
}

uint64_t bl_weight_scale_row_bytes(const bl_weight *w)
{
    return bl_weight_scale_cols(w) * (bl_weight_f32_scaled(w) ? 4 : 1);
}

uint64_t bl_weight_scale_rows(const bl_weight *w)
{
    return blocks_of(w->part.row, w->part.rows, w->block_rows);
}

bl_value_class bl_weight_class(const bl_weight *w)
{
    if (w->form == BL_FORM_TABLE) {
        return BL_VALUE_ROWS;
    }
    if (w->slot->ndim == 1 && w->slot->cut == BL_CUT_HEADS) {
        return BL_VALUE_ELEMENTS;
    }
    bool bf16 = w->form == BL_FORM_BF16 || w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4;
    bool matrix = w->slot->ndim == 2 && bf16 && w->slot->shape[1] <= BL_VALUE_MAX_COLS;
    return matrix ? BL_VALUE_MATRIX : BL_VALUE_BYTES;
}

bool bl_weight_recorded(const bl_checkpoint *c, const bl_weight *w, bl_digest *out)
{
    const bl_manifest_tensor *m = bl_checkpoint_record(c, w->tensor);
    size_t at = m && m->tensor.ndim > w->slot->ndim ? (size_t)w->slot->expert - m->start[0] : 0;
    if (!m || at >= m->value_count) {
        return false;
    }
    *out = m->values[at];
    return true;
}
