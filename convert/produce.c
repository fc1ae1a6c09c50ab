#include "convert/produce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Scratch of a worker: source bytes, scale bytes, one decoded stripe. */
static uint64_t scale_room(uint64_t tile)
{
    return BL_READ_ROOM(tile / 16);
}

static bl_status open_parts(bl_producer *p, bl_arena *arena, bl_error *err)
{
    const bl_plan *plan = p->plan;
    size_t pieces = plan->file_count;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        pieces += plan->tensors[i].member_count;
    }
    p->pieces = bl_arena_array(arena, pieces, sizeof *p->pieces);
    p->lanes = bl_arena_array(arena, plan->file_count, sizeof *p->lanes);
    bl_part *parts = bl_arena_array(arena, pieces, sizeof *parts);
    if (!p->pieces || !p->lanes || !parts) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the conversion");
    }
    size_t n = 0;
    for (size_t f = 0; f < plan->file_count; f++) {
        const bl_plan_file *file = &plan->files[f];
        size_t first = n;
        parts[n] = (bl_part){.nbytes = file->header_bytes, .granule = BL_IO_ALIGN, .tag = n};
        n++;
        for (size_t i = 0; i < file->count; i++) {
            const bl_plan_tensor *t = &file->tensors[i];
            for (size_t m = 0; m < t->member_count; m++, n++) {
                parts[n] = (bl_part){.nbytes = bl_plan_member_bytes(t, m), .granule = bl_plan_granule(t, m), .tag = n};
                p->pieces[n] = (bl_piece){.tensor = t, .member = m};
            }
        }
        p->lanes[f] = (bl_lane){.parts = parts + first, .count = n - first};
    }
    return BL_OK;
}

bl_status bl_producer_open(bl_producer *p, const bl_checkpoint *source, const bl_binding *binding, const bl_plan *plan,
                           bool values, unsigned cpu, bl_arena *arena, bl_error *err)
{
    *p = (bl_producer){.source = source, .binding = binding, .plan = plan, .values = values};
    pthread_mutex_init(&p->lock, NULL);
    bl_cast_init(&p->kernels, cpu);
    p->sums = bl_arena_array(arena, binding->count, sizeof *p->sums);
    p->readers = bl_arena_array(arena, source->file_count, sizeof *p->readers);
    if (!p->sums || !p->readers) {
        return bl_fail(err, BL_E_NOMEM, source->path, NULL, -1, "out of memory for the conversion");
    }
    for (size_t i = 0; i < source->file_count; i++) {
        BL_TRY(bl_reader_open(&p->readers[i], source->files[i].file, err));
    }
    uint64_t widest = 0;
    for (size_t i = 0; i < binding->count; i++) {
        const bl_weight *w = &binding->weights[i];
        if (w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4) {
            widest = bl_weight_cols(w) > widest ? bl_weight_cols(w) : widest;
        }
    }
    p->scratch = BL_READ_ROOM(0) + scale_room(0) + (values ? BL_VALUE_TILE * 2 * widest : 0) + 3 * BL_IO_ALIGN;
    p->scratch_ratio = 17;
    return open_parts(p, arena, err);
}

void bl_producer_close(bl_producer *p)
{
    if (p->source) {
        for (size_t i = 0; p->readers && i < p->source->file_count; i++) {
            bl_reader_close(&p->readers[i]);
        }
        pthread_mutex_destroy(&p->lock);
        p->source = NULL;
    }
}

/* A worker's scratch, cut up. */
typedef struct room {
    uint8_t *source, *scale;
    uint16_t *stripe;
} room;

static uint8_t *align_up(uint8_t *p)
{
    return p + (BL_IO_ALIGN - (uintptr_t)p % BL_IO_ALIGN) % BL_IO_ALIGN;
}

static room rooms(const bl_tile *t, uint64_t bytes)
{
    room r = {.source = t->scratch};
    r.scale = align_up(r.source + BL_READ_ROOM(bytes));
    r.stripe = (uint16_t *)(void *)align_up(r.scale + scale_room(bytes));
    return r;
}

static bl_status read_range(bl_producer *p, const bl_tensor *t, uint64_t offset, uint64_t n, uint8_t *buf, const uint8_t **data,
                            bl_error *err)
{
    bl_status s = bl_reader_read(p->readers[t->file], buf, n, offset, data, err);
    if (s != BL_OK && err && !err->tensor[0]) {
        snprintf(err->tensor, sizeof err->tensor, "%.300s", t->name);
    }
    return s;
}

/* Rows [row, row + rows) of a weight; row is a multiple of 32. */
typedef struct stripe {
    const bl_weight *w;
    uint64_t row, rows;
    const uint8_t *codes, *scale;
    uint64_t code_bytes, scale_bytes; /* of a row */
} stripe;

/* Read the scale bytes that belong to s and check that every code times every one of them is exact. */
static bl_status read_scale(bl_producer *p, stripe *s, uint8_t *buf, bl_error *err)
{
    const bl_weight *w = s->w;
    uint64_t first = w->form == BL_FORM_FP8 ? s->row / 32 : s->row;
    uint64_t count = w->form == BL_FORM_FP8 ? (s->rows + 31) / 32 : s->rows;
    s->scale_bytes = bl_weight_scale_row_bytes(w);
    uint64_t n = count * s->scale_bytes, offset = w->scale_offset + first * s->scale_bytes;
    BL_TRY(read_range(p, w->scale, offset, n, buf, &s->scale, err));
    uint8_t lo = w->form == BL_FORM_FP8 ? BL_FP8_SCALE_MIN : BL_FP4_SCALE_MIN;
    uint8_t hi = w->form == BL_FORM_FP8 ? BL_FP8_SCALE_MAX : BL_FP4_SCALE_MAX;
    int64_t bad = p->kernels.scale_check(s->scale, (int64_t)n, lo, hi);
    if (bad == (int64_t)n) {
        return BL_OK;
    }
    uint64_t at = first * s->scale_bytes + (uint64_t)bad;
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(p->source, w->scale)->path, w->scale->name, (int64_t)(offset + (uint64_t)bad),
                   "scale byte %u at [%llu, %llu] of '%s' is outside %u..%u: the weight has no exact BF16 value", s->scale[bad],
                   (unsigned long long)(at / s->scale_bytes), (unsigned long long)(at % s->scale_bytes), w->slot->name, lo, hi);
}

/* Decode rows [from, from + count) of s, relative to it, into out [count, cols]. */
static void decode(const bl_producer *p, const stripe *s, uint64_t from, uint64_t count, uint16_t *out)
{
    uint64_t cols = bl_weight_cols(s->w);
    bool fp8 = s->w->form == BL_FORM_FP8;
    for (uint64_t r = from; r < from + count; r++, out += cols) {
        const uint8_t *codes = s->codes + r * s->code_bytes;
        const uint8_t *scale = s->scale + (fp8 ? r / 32 : r) * s->scale_bytes;
        (fp8 ? p->kernels.fp8_row : p->kernels.fp4_row)(out, codes, scale, (int64_t)cols);
    }
}

static bl_status cast_segment(bl_producer *p, const bl_weight *w, const bl_segment *g, const bl_tile *t, uint8_t *dst, bl_error *err)
{
    uint64_t out_row = 2 * bl_weight_cols(w);
    stripe s = {.w = w, .row = g->offset / out_row, .rows = g->nbytes / out_row, .code_bytes = bl_weight_row_bytes(w)};
    room r = rooms(t, g->nbytes);
    BL_TRY(read_range(p, w->tensor, w->offset + s.row * s.code_bytes, s.rows * s.code_bytes, r.source, &s.codes, err));
    BL_TRY(read_scale(p, &s, r.scale, err));
    decode(p, &s, 0, s.rows, (uint16_t *)(void *)dst);
    return BL_OK;
}

static void add_sum(bl_producer *p, const bl_weight *w, bl_sum x)
{
    pthread_mutex_lock(&p->lock);
    bl_sum_add(&p->sums[w - p->binding->weights], x);
    pthread_mutex_unlock(&p->lock);
}

/* Digest codes that need decoding first, a stripe of 32 rows at a time so that it stays in cache. */
static bl_status digest_codes(bl_producer *p, const bl_weight *w, const bl_segment *g, const bl_tile *t, const uint8_t *codes,
                              bl_error *err)
{
    stripe s = {.w = w, .codes = codes, .code_bytes = bl_weight_row_bytes(w)};
    s.row = g->offset / s.code_bytes;
    s.rows = g->nbytes / s.code_bytes;
    room r = rooms(t, g->nbytes);
    BL_TRY(read_scale(p, &s, r.scale, err));
    bl_sum sum = {0};
    for (uint64_t at = 0; at < s.rows; at += BL_VALUE_TILE) {
        uint64_t n = s.rows - at < BL_VALUE_TILE ? s.rows - at : BL_VALUE_TILE;
        decode(p, &s, at, n, r.stripe);
        bl_value_matrix(&sum, r.stripe, s.row + at, n, bl_weight_cols(w));
    }
    add_sum(p, w, sum);
    return BL_OK;
}

static bl_status digest_segment(bl_producer *p, const bl_plan_tensor *pt, const bl_weight *w, const bl_segment *g,
                                const bl_tile *t, const uint8_t *data, bl_error *err)
{
    bl_sum sum = {0};
    bl_value_class class = bl_weight_class(w);
    if (pt->scale) {
        if (class == BL_VALUE_ROWS) {
            uint64_t row = bl_weight_scale_row_bytes(w);
            bl_value_rows(&sum, data, g->offset / row, g->nbytes / row, row, true);
            add_sum(p, w, sum);
        }
        return BL_OK;
    }
    if (class == BL_VALUE_MATRIX && w->form != BL_FORM_BF16) {
        return digest_codes(p, w, g, t, data, err);
    }
    uint64_t row = bl_weight_row_bytes(w);
    if (class == BL_VALUE_MATRIX) {
        bl_value_matrix(&sum, (const uint16_t *)(const void *)data, g->offset / row, g->nbytes / row, bl_weight_cols(w));
    } else if (class == BL_VALUE_ROWS) {
        bl_value_rows(&sum, data, g->offset / row, g->nbytes / row, row, false);
    } else {
        bl_value_bytes(&sum, data, g->offset, g->nbytes);
    }
    add_sum(p, w, sum);
    return BL_OK;
}

static bl_status copy_segment(bl_producer *p, const bl_plan_tensor *pt, const bl_weight *w, const bl_segment *g, const bl_tile *t,
                              uint8_t *dst, bl_error *err)
{
    const bl_tensor *from = pt->scale ? w->scale : w->tensor;
    const uint8_t *data;
    room r = rooms(t, g->nbytes);
    BL_TRY(read_range(p, from, (pt->scale ? w->scale_offset : w->offset) + g->offset, g->nbytes, r.source, &data, err));
    memcpy(dst, data, g->nbytes);
    return p->values ? digest_segment(p, pt, w, g, t, dst, err) : BL_OK;
}

bl_status bl_produce(bl_producer *p, const bl_tile *t, bl_error *err)
{
    uint8_t *dst = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_piece *piece = &p->pieces[p->lanes[t->lane].parts[g->part].tag];
        if (!piece->tensor) {
            memcpy(dst, p->plan->files[t->lane].header + g->offset, g->nbytes);
        } else {
            const bl_weight *w = piece->tensor->members[piece->member];
            BL_TRY(piece->tensor->cast ? cast_segment(p, w, g, t, dst, err)
                                       : copy_segment(p, piece->tensor, w, g, t, dst, err));
        }
        dst += g->nbytes;
    }
    return BL_OK;
}
