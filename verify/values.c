#include "verify/values.h"

#include <stdio.h>
#include <stdlib.h>

bl_status bl_values_open(bl_values *v, const bl_checkpoint *source, const bl_binding *binding, unsigned cpu, bl_arena *arena,
                         bl_error *err)
{
    *v = (bl_values){.source = source, .binding = binding};
    pthread_mutex_init(&v->lock, NULL);
    bl_cast_init(&v->kernels, cpu);
    v->sums = bl_arena_array(arena, binding->count, sizeof *v->sums);
    v->readers = bl_arena_array(arena, source->file_count, sizeof *v->readers);
    if (!v->sums || !v->readers) {
        return bl_fail(err, BL_E_NOMEM, source->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < source->file_count; i++) {
        BL_TRY(bl_reader_open(&v->readers[i], source->files[i].file, err));
    }
    for (size_t i = 0; i < binding->count; i++) {
        const bl_weight *w = &binding->weights[i];
        bool coded = (w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4) && bl_weight_class(w) == BL_VALUE_MATRIX;
        uint64_t n = coded ? BL_VALUE_TILE * 2 * bl_weight_cols(w) : 0;
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

/* Scale bytes beside tile bytes of codes: one to 16 packed bytes at most. */
static uint64_t scale_room(uint64_t tile)
{
    uint64_t n = BL_READ_ROOM(tile / 16 + BL_IO_ALIGN);
    return n + (BL_IO_ALIGN - n % BL_IO_ALIGN) % BL_IO_ALIGN;
}

uint64_t bl_values_scratch(const bl_values *v, uint64_t tile)
{
    return scale_room(tile) + v->stripe_bytes;
}

static bl_status name_tensor(bl_status s, const bl_tensor *t, bl_error *err)
{
    if (s != BL_OK && err && !err->tensor[0]) {
        snprintf(err->tensor, sizeof err->tensor, "%.300s", t->name);
    }
    return s;
}

bl_status bl_values_read(bl_values *v, const bl_tensor *t, uint64_t offset, uint64_t n, uint8_t *buf, const uint8_t **data,
                         bl_error *err)
{
    return name_tensor(bl_reader_read(v->readers[t->file], buf, n, offset, data, err), t, err);
}

bl_status bl_values_copy(bl_values *v, const bl_tensor *t, uint64_t offset, uint64_t n, uint8_t *dst, uint8_t *buf, bl_error *err)
{
    return name_tensor(bl_reader_copy(v->readers[t->file], dst, buf, n, offset, err), t, err);
}

bl_status bl_values_scale(bl_values *v, bl_rows *r, uint8_t *buf, bl_error *err)
{
    const bl_weight *w = r->w;
    bool fp8 = w->form == BL_FORM_FP8;
    uint64_t first = fp8 ? r->row / 32 : r->row, count = fp8 ? (r->rows + 31) / 32 : r->rows;
    uint64_t row_bytes = bl_weight_scale_row_bytes(w), n = count * row_bytes, offset = w->scale_offset + first * row_bytes;
    BL_TRY(bl_values_read(v, w->scale, offset, n, buf, &r->scale, err));
    uint8_t lo = fp8 ? BL_FP8_SCALE_MIN : BL_FP4_SCALE_MIN, hi = fp8 ? BL_FP8_SCALE_MAX : BL_FP4_SCALE_MAX;
    int64_t bad = v->kernels.scale_check(r->scale, (int64_t)n, lo, hi);
    if (bad == (int64_t)n) {
        return BL_OK;
    }
    uint64_t at = first * row_bytes + (uint64_t)bad;
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(v->source, w->scale)->path, w->scale->name, (int64_t)(offset + (uint64_t)bad),
                   "scale byte %u at [%llu, %llu] of '%s' is outside %u..%u: the weight has no exact BF16 value", r->scale[bad],
                   (unsigned long long)(at / row_bytes), (unsigned long long)(at % row_bytes), w->slot->name, lo, hi);
}

void bl_values_decode(const bl_values *v, const bl_rows *r, uint64_t from, uint64_t count, uint16_t *out)
{
    uint64_t cols = bl_weight_cols(r->w), code_bytes = bl_weight_row_bytes(r->w), scale_bytes = bl_weight_scale_row_bytes(r->w);
    bool fp8 = r->w->form == BL_FORM_FP8;
    for (uint64_t i = from; i < from + count; i++, out += cols) {
        const uint8_t *scale = r->scale + (fp8 ? i / 32 : i) * scale_bytes;
        (fp8 ? v->kernels.fp8_row : v->kernels.fp4_row)(out, r->codes + i * code_bytes, scale, (int64_t)cols);
    }
}

/* Decode and digest a stripe of 32 rows at a time, so that it stays in cache. */
static bl_status add_codes(bl_values *v, bl_rows *r, uint8_t *scratch, uint64_t tile, bl_sum *sum, bl_error *err)
{
    uint16_t *stripe = (uint16_t *)(void *)(scratch + scale_room(tile));
    BL_TRY(bl_values_scale(v, r, scratch, err));
    if (r->w->form == BL_FORM_FP4) {
        bl_value_fp4(&v->kernels, sum, r->codes, r->scale, r->row, r->rows, bl_weight_cols(r->w));
        return BL_OK;
    }
    for (uint64_t at = 0; at < r->rows; at += BL_VALUE_TILE) {
        uint64_t n = r->rows - at < BL_VALUE_TILE ? r->rows - at : BL_VALUE_TILE;
        bl_values_decode(v, r, at, n, stripe);
        bl_value_matrix(&v->kernels, sum, stripe, r->row + at, n, bl_weight_cols(r->w));
    }
    return BL_OK;
}

bl_status bl_values_add(bl_values *v, const bl_weight *w, bool scale, uint64_t offset, uint64_t n, const uint8_t *data,
                        uint8_t *scratch, bl_error *err)
{
    bl_sum sum = {0};
    bl_value_class class = bl_weight_class(w);
    uint64_t row = scale ? bl_weight_scale_row_bytes(w) : bl_weight_row_bytes(w);
    if (class == BL_VALUE_ROWS) {
        bl_value_rows(&sum, data, offset / row, n / row, row, scale);
    } else if (scale) {
        return BL_OK;
    } else if (class == BL_VALUE_BYTES) {
        bl_value_bytes(&sum, data, offset, n);
    } else if (w->form == BL_FORM_BF16) {
        bl_value_matrix(&v->kernels, &sum, data, offset / row, n / row, bl_weight_cols(w));
    } else {
        bl_rows r = {.w = w, .row = offset / row, .rows = n / row, .codes = data};
        BL_TRY(add_codes(v, &r, scratch, n, &sum, err));
    }
    pthread_mutex_lock(&v->lock);
    bl_sum_add(&v->sums[w - v->binding->weights], sum);
    pthread_mutex_unlock(&v->lock);
    return BL_OK;
}

uint64_t bl_values_granule(const bl_weight *w, bool scale)
{
    bl_value_class class = bl_weight_class(w);
    if (class == BL_VALUE_ROWS) {
        return scale ? bl_weight_scale_row_bytes(w) : bl_weight_row_bytes(w);
    }
    return class == BL_VALUE_MATRIX && !scale ? BL_VALUE_TILE * bl_weight_row_bytes(w) : BL_VALUE_UNIT_BYTES;
}
