/* A packed model's records of a tensor against the part that the layout gives its rank. */
#include "verify/records.h"

#include <stdio.h>
#include <string.h>

/* Where a rank's tensor begins in the whole one, and the shape of that: [experts, rows, columns] as stored. */
typedef struct bound {
    uint64_t start[3], whole[3];
} bound;

static bound bound_of(const bl_slot *s, const bl_share *share, const bl_weight *w, bool scale)
{
    bl_form form = w->form;
    uint64_t block = scale ? w->block_rows : 1, pack = scale ? 32 : form == BL_FORM_FP4 ? 2 : 1;
    return (bound){.start = {(uint64_t)share->first_expert, share->start / block, share->start_col / pack},
                   .whole = {(uint64_t)share->all_experts, bl_pieces(share->all_rows, block), bl_pieces(share->all_cols, pack)}};
}

/* Does it hold the part of the whole that the layout gives the rank? */
static bool right_place(const bl_manifest_tensor *m, bound want, bool stacked, char *text, size_t cap)
{
    size_t skip = stacked ? 0 : 1, bytes = m->tensor.ndim * sizeof(uint64_t);
    if (memcmp(m->start, want.start + skip, bytes) == 0 && memcmp(m->global_shape, want.whole + skip, bytes) == 0) {
        return true;
    }
    char have_start[160], have_whole[160], want_start[160], want_whole[160];
    bl_shape_text(have_start, sizeof have_start, m->start, m->tensor.ndim);
    bl_shape_text(have_whole, sizeof have_whole, m->global_shape, m->tensor.ndim);
    bl_shape_text(want_start, sizeof want_start, want.start + skip, m->tensor.ndim);
    bl_shape_text(want_whole, sizeof want_whole, want.whole + skip, m->tensor.ndim);
    snprintf(text, cap, "begins at %s of %s, the layout calls for %s of %s", have_start, have_whole, want_start, want_whole);
    return false;
}

/* Is its value digest that of the tiles that the layout leaves whole? */
static bool right_unit(const bl_manifest_tensor *m, const bl_weight *w, char *text, size_t cap)
{
    uint32_t rows = BL_BLOCK >> w->fine_rows, cols = BL_BLOCK >> w->fine_cols;
    uint32_t have_rows = m->value_unit[0] ? m->value_unit[0] : BL_BLOCK, have_cols = m->value_unit[0] ? m->value_unit[1] : BL_BLOCK;
    if (have_rows == rows && have_cols == cols) {
        return true;
    }
    snprintf(text, cap, "its value digest is of tiles of %ux%u, the layout calls for %ux%u", have_rows, have_cols, rows, cols);
    return false;
}

bool bl_records_agree(const bl_checkpoint *c, const bl_weight *w, const bl_share *share, bool scale, bool stacked, char *text, size_t cap)
{
    const bl_manifest_tensor *m = bl_checkpoint_record(c, scale ? w->scale : w->tensor);
    return !m || (right_place(m, bound_of(w->slot, share, w, scale), stacked, text, cap) && (scale || right_unit(m, w, text, cap)));
}
