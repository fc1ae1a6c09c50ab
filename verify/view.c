#include "verify/view.h"

bl_view bl_view_of(const bl_weight *w)
{
    return (bl_view){.w = *w, .pieces = w, .count = 1};
}

bl_view bl_view_cut(const bl_weight *pieces, size_t count, bl_rect part)
{
    bl_view v = {.w = pieces[0], .pieces = pieces, .count = count};
    v.w.part = part;
    v.w.pad_cols = 0;
    return v;
}

size_t bl_view_pieces(const bl_binding *b, size_t i)
{
    size_t n = 1;
    while (i + n < b->count && b->weights[i + n].slot == b->weights[i].slot) {
        n++;
    }
    return n;
}

bl_stored bl_weight_stored(const bl_weight *w, bool scale)
{
    const bl_rect *p = &w->part;
    if (!scale) {
        return (bl_stored){p->row, p->rows, bl_weight_stored_bytes(w, p->col), bl_weight_stored_bytes(w, p->cols), bl_weight_row_bytes(w)};
    }
    uint64_t size = bl_weight_f32_scaled(w) ? 4 : 1, cols = bl_weight_scale_row_bytes(w);
    return (bl_stored){p->row / w->block_rows, bl_weight_scale_rows(w), p->col / w->block_cols * size, cols,
                       cols + w->pad_cols / w->block_cols * size};
}

static bool holds(const bl_stored *s, uint64_t row, uint64_t col)
{
    return row - s->row < s->rows && col - s->col < s->cols; /* also when row < s->row: the difference wraps */
}

int64_t bl_view_place(const bl_view *v, bool scale, uint64_t offset, const bl_tensor **t)
{
    bl_stored want = bl_weight_stored(&v->w, scale);
    uint64_t row = want.row + offset / want.pitch, col = want.col + offset % want.pitch;
    for (size_t i = 0; i < v->count; i++) {
        const bl_weight *p = &v->pieces[i];
        bl_stored have = bl_weight_stored(p, scale);
        if (!(v->count > 1 && p->replica) && holds(&have, row, col)) {
            *t = scale ? p->scale : p->tensor;
            return (int64_t)((scale ? p->scale_offset : p->offset) + (row - have.row) * have.pitch + (col - have.col));
        }
    }
    *t = scale ? v->w.scale : v->w.tensor;
    return -1;
}

const bl_tensor *bl_view_plain(const bl_view *v, bool scale, uint64_t offset, uint64_t n, uint64_t *place)
{
    bl_stored want = bl_weight_stored(&v->w, scale);
    if (want.cols != want.pitch || !want.cols) {
        return NULL;
    }
    uint64_t first = want.row + offset / want.cols, end = want.row + bl_pieces(offset + n, want.cols);
    for (size_t i = 0; i < v->count; i++) {
        const bl_weight *p = &v->pieces[i];
        bl_stored have = bl_weight_stored(p, scale);
        if (!(v->count > 1 && p->replica) && want.col == have.col && want.cols == have.cols && have.cols == have.pitch && first >= have.row &&
            end <= have.row + have.rows) {
            *place = (scale ? p->scale_offset : p->offset) + (first - have.row) * have.cols + offset % want.cols;
            return scale ? p->scale : p->tensor;
        }
    }
    return NULL;
}
