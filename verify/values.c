#include "verify/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE ((uint64_t)1 << 20) /* bytes of rows read at once to take columns from */

bl_status bl_values_open(bl_values *v, const bl_checkpoint *source, const bl_binding *binding, unsigned cpu, bl_arena *arena,
                         bl_error *err)
{
    *v = (bl_values){.source = source, .binding = binding};
    pthread_mutex_init(&v->lock, NULL);
    bl_cast_init(&v->kernels, cpu);
    v->readers = bl_arena_array(arena, source->file_count, sizeof *v->readers);
    if (!v->readers) {
        return bl_fail(err, BL_E_NOMEM, source->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < source->file_count; i++) {
        BL_TRY(bl_reader_open(&v->readers[i], source->files[i].file, err));
    }
    for (size_t i = 0; i < binding->count; i++) {
        const bl_weight *w = &binding->weights[i];
        bool coded = (w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4) && bl_weight_class(w) == BL_VALUE_MATRIX;
        uint64_t n = coded ? BL_VALUE_TILE * 2 * w->slot->shape[1] : 0;
        v->stripe_bytes = n > v->stripe_bytes ? n : v->stripe_bytes;
    }
    return BL_OK;
}

void bl_values_close(bl_values *v)
{
    if (v->source) {
        for (size_t i = 0; v->readers && i < v->source->file_count; i++) {
            bl_reader_close(&v->readers[i]);
        }
        pthread_mutex_destroy(&v->lock);
        v->source = NULL;
    }
}

/* A thread's scratch: room to gather, scales (a byte to 16 packed bytes of a tile at most, a float to 64 rows of codes), a
 * stripe. */
static uint64_t stage_room(void)
{
    return STAGE + 2 * BL_IO_ALIGN;
}

static uint64_t scale_room(uint64_t tile)
{
    uint64_t n = BL_READ_ROOM(tile / 16 + BL_IO_ALIGN);
    return n + (BL_IO_ALIGN - n % BL_IO_ALIGN) % BL_IO_ALIGN;
}

uint64_t bl_values_scratch(const bl_values *v, uint64_t tile)
{
    return stage_room() + scale_room(tile) + v->stripe_bytes;
}

static bl_status name_tensor(bl_status s, const bl_tensor *t, bl_error *err)
{
    if (s != BL_OK && err && !err->tensor[0]) {
        snprintf(err->tensor, sizeof err->tensor, "%.300s", t->name);
    }
    return s;
}

/* Bytes [col, col + cols) of rows of a piece that lie pitch bytes apart in its file, from offset on, to dst, rows of which are
 * width bytes apart. Reads whole rows, as many at once as the stage takes; of wider ones the bytes asked for. */
static bl_status take_columns(bl_reader *r, uint64_t offset, uint64_t pitch, uint64_t rows, uint64_t col, uint64_t cols,
                              uint8_t *dst, uint64_t width, uint8_t *stage, bl_error *err)
{
    const uint8_t *data;
    if (pitch > STAGE) {
        for (uint64_t i = 0; i < rows; i++) {
            for (uint64_t at = 0, n; at < cols; at += n) {
                n = cols - at < STAGE ? cols - at : STAGE;
                BL_TRY(bl_reader_read(r, stage, n, offset + i * pitch + col + at, &data, err));
                memcpy(dst + i * width + at, data, n);
            }
        }
        return BL_OK;
    }
    for (uint64_t i = 0, n; i < rows; i += n) {
        n = rows - i < STAGE / pitch ? rows - i : STAGE / pitch;
        BL_TRY(bl_reader_read(r, stage, n * pitch, offset + i * pitch, &data, err));
        for (uint64_t k = 0; k < n; k++) {
            memcpy(dst + (i + k) * width, data + k * pitch + col, cols);
        }
    }
    return BL_OK;
}

/* Rows that several pieces hold, or that are cut out of wider ones. */
static bl_status gather(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, uint8_t *dst, uint8_t *stage,
                        bl_error *err)
{
    bl_stored want = bl_weight_stored(&view->w, scale);
    uint64_t got = 0;
    want.row += want.pitch ? offset / want.pitch : 0;
    want.rows = want.pitch ? n / want.pitch : 0;
    for (size_t i = 0; i < view->count; i++) {
        const bl_weight *p = &view->pieces[i];
        const bl_tensor *t = scale ? p->scale : p->tensor;
        bl_stored have = bl_weight_stored(p, scale);
        uint64_t r0 = have.row > want.row ? have.row : want.row, c0 = have.col > want.col ? have.col : want.col;
        uint64_t r1 = have.row + have.rows, c1 = have.col + have.cols;
        r1 = r1 < want.row + want.rows ? r1 : want.row + want.rows;
        c1 = c1 < want.col + want.cols ? c1 : want.col + want.cols;
        if ((view->count > 1 && p->replica) || r0 >= r1 || c0 >= c1) {
            continue;
        }
        uint64_t from = (scale ? p->scale_offset : p->offset) + (r0 - have.row) * have.pitch;
        uint8_t *to = dst + (r0 - want.row) * want.pitch + (c0 - want.col);
        BL_TRY(name_tensor(take_columns(v->readers[t->file], from, have.pitch, r1 - r0, c0 - have.col, c1 - c0, to, want.pitch,
                                        stage, err),
                           t, err));
        got += (r1 - r0) * (c1 - c0);
    }
    return got == want.rows * want.cols ? BL_OK
                    : bl_fail(err, BL_E_INTERNAL, v->source->path, view->w.slot->name, -1, "the ranks' parts leave a hole");
}

bl_status bl_values_read(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, uint8_t *buf, uint8_t *scratch,
                         const uint8_t **data, bl_error *err)
{
    uint64_t place;
    const bl_tensor *t = bl_view_plain(view, scale, offset, n, &place);
    if (!t) {
        *data = buf;
        return gather(v, view, scale, offset, n, buf, scratch, err);
    }
    return name_tensor(bl_reader_read(v->readers[t->file], buf, n, place, data, err), t, err);
}

bl_status bl_values_copy(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, uint8_t *dst, uint8_t *buf,
                         uint8_t *scratch, bl_error *err)
{
    uint64_t place;
    const bl_tensor *t = bl_view_plain(view, scale, offset, n, &place);
    if (!t) {
        return gather(v, view, scale, offset, n, dst, scratch, err);
    }
    return name_tensor(bl_reader_copy(v->readers[t->file], dst, buf, n, place, err), t, err);
}

/* The scale at byte at of the view's grid will not do: value and range are its description. */
static bl_status bad_scale(const bl_values *v, const bl_view *view, uint64_t at, const char *value, const char *range, bl_error *err)
{
    const bl_tensor *t;
    const bl_weight *w = &view->w;
    uint64_t row_bytes = bl_weight_scale_row_bytes(w), size = bl_weight_f32_scaled(w) ? 4 : 1;
    int64_t offset = bl_view_place(view, true, at, &t);
    bl_stored s = bl_weight_stored(w, true);
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(v->source, t)->path, t->name, offset, "%s at [%llu, %llu] of '%s' is outside %s",
                   value, (unsigned long long)(s.row + at / row_bytes), (unsigned long long)((s.col + at % row_bytes) / size),
                   w->slot->name, range);
}

/* Rows of the scale grid of the view that rows of r lie in: from *first on. The view may begin inside a block. */
static uint64_t scale_rows(const bl_rows *r, uint64_t *first)
{
    uint64_t block = r->view->w.block_rows, inside = r->view->w.part.row % block;
    *first = (inside + r->row) / block;
    return bl_pieces(inside + r->row + r->rows, block) - *first;
}

bl_status bl_values_scale(bl_values *v, bl_rows *r, uint8_t *scratch, bl_error *err)
{
    const bl_weight *w = &r->view->w;
    bool fp8 = w->form == BL_FORM_FP8;
    uint64_t first, count = scale_rows(r, &first), row_bytes = bl_weight_scale_row_bytes(w), n = count * row_bytes;
    char value[48], range[64];
    bl_view plain = *r->view; /* without padding */
    plain.w.pad_cols = 0;
    BL_TRY(bl_values_read(v, &plain, true, first * row_bytes, n, scratch + stage_room(), scratch, &r->scale, err));
    if (bl_weight_f32_scaled(w)) {
        float x;
        uint64_t bad = (uint64_t)bl_f32_scale_check(r->scale, (int64_t)(n / 4));
        if (bad == n / 4) {
            return BL_OK;
        }
        memcpy(&x, r->scale + 4 * bad, sizeof x);
        snprintf(value, sizeof value, "scale %.9g", (double)x);
        return bad_scale(v, &plain, first * row_bytes + 4 * bad, value, "2^-124..2^119: no sound weight has it", err);
    }
    uint8_t lo = fp8 ? BL_FP8_SCALE_MIN : BL_FP4_SCALE_MIN, hi = fp8 ? BL_FP8_SCALE_MAX : BL_FP4_SCALE_MAX;
    int64_t bad = v->kernels.scale_check(r->scale, (int64_t)n, lo, hi);
    if (bad == (int64_t)n) {
        return BL_OK;
    }
    snprintf(value, sizeof value, "scale byte %u", r->scale[bad]);
    snprintf(range, sizeof range, "%u..%u: the weight has no exact BF16 value", lo, hi);
    return bad_scale(v, &plain, first * row_bytes + (uint64_t)bad, value, range, err);
}

/* Scale bytes of blocks wider than 32 as bytes of blocks of 32, which is what the kernels take. */
static const uint8_t *spread(uint8_t out[BL_VALUE_MAX_COLS / 32], const uint8_t *scale, const bl_weight *w)
{
    uint64_t n = bl_pieces(bl_weight_cols(w), 32), each = w->block_cols / 32;
    for (uint64_t i = 0; i < n; i++) {
        out[i] = scale[i / each];
    }
    return out;
}

/* A row of codes with a scale for each of the blocks of 32 that it lies in; it may begin inside the first. */
static void decode_row(const bl_cast_kernels *k, const bl_weight *w, uint16_t *out, const uint8_t *codes, const uint8_t *scale)
{
    uint64_t cols = bl_weight_cols(w), inside = w->part.col % 32, head = inside && 32 - inside < cols ? 32 - inside : inside ? cols : 0;
    if (w->form == BL_FORM_FP4) {
        k->fp4_row(out, codes, scale, (int64_t)cols);
        return;
    }
    if (head) {
        k->fp8_row(out, codes, scale++, (int64_t)head);
    }
    k->fp8_row(out + head, codes + head, scale, (int64_t)(cols - head));
}

void bl_values_decode(const bl_values *v, const bl_rows *r, uint64_t from, uint64_t count, uint16_t *out)
{
    const bl_weight *w = &r->view->w;
    uint64_t cols = bl_weight_cols(w), code_bytes = bl_weight_row_bytes(w), scale_bytes = bl_weight_scale_row_bytes(w);
    uint64_t inside = w->part.row % w->block_rows, first = (inside + r->row) / w->block_rows, last = UINT64_MAX;
    bool f32 = bl_weight_f32_scaled(w);
    uint8_t wide[BL_VALUE_MAX_COLS / 32];
    const uint8_t *scale = NULL;
    for (uint64_t i = from; i < from + count; i++, out += cols) {
        uint64_t row = (inside + r->row + i) / w->block_rows - first;
        const uint8_t *codes = r->codes + i * code_bytes;
        if (row != last) {
            scale = r->scale + row * scale_bytes;
            scale = f32 || w->block_cols == 32 ? scale : spread(wide, scale, w);
            last = row;
        }
        if (f32) {
            v->kernels.fp8_f32_row(out, codes, scale, (int64_t)cols, w->block_cols);
        } else {
            decode_row(&v->kernels, w, out, codes, scale);
        }
    }
}

bl_tiles bl_weight_tiles(const bl_weight *w, uint64_t row)
{
    return bl_tiles_of(w->part.row + row, w->part.col, w->slot->shape[1], BL_VALUE_TILE >> w->fine_rows, BL_VALUE_TILE >> w->fine_cols);
}

/* The same of rows that lie as w is stored, size bytes a value. */
static bl_tiles stored_tiles(const bl_weight *w, uint64_t row, uint64_t size)
{
    bl_tiles at = bl_weight_tiles(w, row);
    at.pitch = bl_weight_row_bytes(w) / size;
    return at;
}

/* Codes with a scale byte for each of their tiles, or of their rows' blocks, are decoded tile by tile; others a stripe of 32 rows at
 * a time, so that it stays in cache. */
static bl_status add_codes(bl_values *v, bl_rows *r, uint8_t *scratch, uint64_t tile, bl_sum *sum, bl_error *err)
{
    const bl_weight *w = &r->view->w;
    uint16_t *stripe = (uint16_t *)(void *)(scratch + stage_room() + scale_room(tile));
    BL_TRY(bl_values_scale(v, r, scratch, err));
    if (w->form == BL_FORM_FP4) {
        bl_value_fp4(&v->kernels, sum, r->codes, r->scale, r->rows, bl_weight_cols(w), bl_weight_tiles(w, r->row));
        return BL_OK;
    }
    bool whole = !w->fine_rows && !w->fine_cols;
    if (whole && !bl_weight_f32_scaled(w) && w->block_rows == BL_VALUE_TILE && w->block_cols == BL_VALUE_TILE) {
        bl_value_fp8(&v->kernels, sum, r->codes, r->scale, r->rows, bl_weight_cols(w), stored_tiles(w, r->row, 1));
        return BL_OK;
    }
    for (uint64_t at = 0; at < r->rows; at += BL_VALUE_TILE) {
        uint64_t n = r->rows - at < BL_VALUE_TILE ? r->rows - at : BL_VALUE_TILE;
        bl_values_decode(v, r, at, n, stripe);
        bl_value_matrix(&v->kernels, sum, stripe, n, bl_weight_cols(w), bl_weight_tiles(w, r->row + at));
    }
    return BL_OK;
}

bl_status bl_values_add(bl_values *v, const bl_view *view, bool scale, uint64_t offset, uint64_t n, const uint8_t *data,
                        uint8_t *scratch, bl_sum *into, bl_error *err)
{
    bl_sum sum = {0};
    const bl_weight *w = &view->w;
    bl_value_class class = bl_weight_class(w);
    uint64_t row = scale ? bl_weight_scale_row_bytes(w) : bl_weight_row_bytes(w);
    if (!w->part.rows || !w->part.cols) {
        return BL_OK; /* all padding */
    }
    if (class == BL_VALUE_ROWS) {
        bl_value_rows(&sum, data, w->part.row + offset / row, n / row, row, scale);
    } else if (scale) {
        return BL_OK;
    } else if (class == BL_VALUE_ELEMENTS) {
        uint64_t size = row / w->part.cols;
        bl_value_elements(&sum, data, w->part.col + offset / size, n / size, size);
    } else if (class == BL_VALUE_BYTES) {
        bl_value_bytes(&sum, data, offset, n);
    } else if (w->form == BL_FORM_BF16) {
        bl_value_matrix(&v->kernels, &sum, data, n / row, bl_weight_cols(w), stored_tiles(w, offset / row, 2));
    } else {
        bl_rows r = {.view = view, .row = offset / row, .rows = n / row, .codes = data};
        BL_TRY(add_codes(v, &r, scratch, n, &sum, err));
    }
    pthread_mutex_lock(&v->lock);
    bl_sum_add(into, sum);
    pthread_mutex_unlock(&v->lock);
    return BL_OK;
}

uint64_t bl_values_granule(const bl_weight *w, bool scale)
{
    switch (scale ? BL_VALUE_ROWS : bl_weight_class(w)) {
    case BL_VALUE_ROWS:
        return scale ? bl_weight_stored(w, true).pitch : bl_weight_row_bytes(w);
    case BL_VALUE_MATRIX:
        return BL_VALUE_TILE * bl_weight_row_bytes(w);
    case BL_VALUE_ELEMENTS:
        return bl_weight_row_bytes(w);
    default:
        return BL_VALUE_UNIT_BYTES;
    }
}
