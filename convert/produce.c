#include "convert/produce.h"

#include "verify/flaw.h"

#include <string.h>

#define PADDING_SCALE 127 /* a factor of one */

static bl_status open_parts(bl_producer *p, bl_arena *arena, bl_error *err)
{
    const bl_plan *plan = p->plan;
    size_t pieces = 2 * plan->file_count;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        pieces += plan->tensors[i].member_count + plan->tensors[i].linked + (plan->tensors[i].member_count == 0);
    }
    p->pieces = bl_arena_array(arena, pieces, sizeof *p->pieces);
    p->lanes = bl_arena_array(arena, plan->file_count, sizeof *p->lanes);
    p->sums = bl_arena_array(arena, plan->sum_count, sizeof *p->sums);
    bl_part *parts = bl_arena_array(arena, pieces, sizeof *parts);
    if (!p->pieces || !p->lanes || !p->sums || !parts) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the conversion");
    }
    size_t n = 0;
    for (size_t f = 0; f < plan->file_count; f++) {
        const bl_plan_file *file = &plan->files[f];
        size_t first = n;
        uint64_t at = file->head.header_bytes;
        parts[n] = (bl_part){.nbytes = at, .granule = BL_IO_ALIGN, .tag = n};
        n++;
        for (size_t i = 0; i < file->count; i++) {
            const bl_plan_tensor *t = &file->tensors[i];
            if (t->linked) {
                parts[n] = (bl_part){.nbytes = t->tensor.offset - at, .granule = BL_IO_ALIGN, .tag = n};
                p->pieces[n++].at = at;
            }
            at = t->tensor.offset + t->tensor.nbytes;
            if (t->member_count == 0) {
                parts[n] = (bl_part){.nbytes = t->tensor.nbytes, .granule = BL_IO_ALIGN, .tag = n};
                p->pieces[n++].tensor = t;
            }
            for (size_t m = 0; m < t->member_count; m++, n++) {
                parts[n] = (bl_part){.nbytes = bl_plan_member_bytes(t, m), .granule = bl_plan_granule(t, m), .tag = n};
                p->pieces[n] = (bl_piece){.tensor = t, .member = m};
            }
        }
        if (file->linked) {
            parts[n] = (bl_part){.nbytes = file->head.file_bytes - at, .granule = BL_IO_ALIGN, .tag = n};
            p->pieces[n++].at = at;
        }
        p->lanes[f] = (bl_lane){.parts = parts + first, .count = n - first};
    }
    return BL_OK;
}

bl_status bl_producer_open(bl_producer *p, const bl_checkpoint *source, const bl_binding *binding, const bl_plan *plan,
                           bool digest, unsigned cpu, bl_arena *arena, bl_error *err)
{
    *p = (bl_producer){.plan = plan, .digest = digest};
    BL_TRY(bl_values_open(&p->values, source, binding, cpu, arena, err));
    for (size_t i = 0; i < source->file_count; i++) {
        BL_TRY(bl_reader_watch(p->values.readers[i], err));
    }
    p->scratch = BL_READ_ROOM(BL_IO_ALIGN) + bl_values_scratch(&p->values, 0);
    p->scratch_ratio = 16 + BL_VALUES_SCRATCH_RATIO;
    return open_parts(p, arena, err);
}

bl_status bl_producer_prove(bl_producer *p, bl_error *err)
{
    const bl_checkpoint *source = p->values.source;
    for (size_t i = 0; i < source->file_count; i++) {
        BL_TRY(bl_reader_prove(p->values.readers[i], err));
    }
    return source->archive ? bl_archive_finish(source->archive, err) : BL_OK;
}

void bl_producer_encode(bl_producer *p, bl_encoder *e)
{
    uint64_t n = bl_encoder_scratch(e);
    p->encoder = e;
    p->scratch = n > p->scratch ? n : p->scratch;
}

void bl_producer_close(bl_producer *p)
{
    bl_encoder_destroy(&p->encoder);
    bl_values_close(&p->values);
}

/* A worker's scratch: source bytes, then what values need. */
static uint8_t *after_source(const bl_tile *t, uint64_t bytes)
{
    uint64_t room = BL_READ_ROOM(bytes);
    return t->scratch + room + (BL_IO_ALIGN - room % BL_IO_ALIGN) % BL_IO_ALIGN;
}

/* A converted model that verify would not pass is of no use: refuse while the source is at hand. n bytes at offset of the view. */
static bl_status check(const bl_producer *p, const bl_view *v, bool scale, uint64_t offset, const uint8_t *data, uint64_t n,
                       bl_error *err)
{
    bl_flaw f = bl_flaw_find(&p->values.kernels, (scale ? v->w.scale : v->w.tensor)->dtype, &v->w, data, n);
    if (f.count == 0) {
        return BL_OK;
    }
    const bl_tensor *from;
    int64_t at = bl_view_place(v, scale, offset + f.first * f.size, &from);
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(p->values.source, from)->path, from->name, at,
                   "%s: the tensor is damaged (verify lists all damage)", f.what);
}

/* Whole blocks in released forms, legal as they are by now. */
static bool suits_device(const bl_rows *r)
{
    const bl_weight *w = &r->view->w;
    bool fp8 = w->form == BL_FORM_FP8 && w->block_rows == 32 && w->block_cols == 32 && !bl_weight_f32_scaled(w);
    bool fp4 = w->form == BL_FORM_FP4 && w->block_rows == 1 && w->block_cols == 32;
    return (fp8 || fp4) && !w->pad_cols && !w->fine_rows && !w->fine_cols && w->part.row % 32 == 0 &&
           w->part.col % 32 == 0 && bl_weight_cols(w) % 32 == 0 && r->row % 32 == 0;
}

static bl_status decode(bl_producer *p, const bl_rows *r, uint16_t *dst, bl_error *err)
{
    const bl_weight *w = &r->view->w;
    if (!p->caster || !suits_device(r)) {
        bl_values_decode(&p->values, r, 0, r->rows, dst);
        return BL_OK;
    }
    bl_matrix m = {.kind = w->form == BL_FORM_FP8 ? BL_W_FP8 : BL_W_FP4,
                   .rows = (int64_t)r->rows,
                   .cols = (int64_t)bl_weight_cols(w),
                   .codes = r->codes,
                   .scale = r->scale};
    return p->caster->cast(p->caster, dst, &m, err);
}

static bl_status cast_segment(bl_producer *p, const bl_plan_tensor *pt, size_t member, const bl_segment *g, const bl_tile *t,
                              uint8_t *dst, bl_error *err)
{
    const bl_view view = bl_plan_view(pt, member), made = bl_plan_made(pt, member), *v = &view;
    uint64_t out_row = 2 * bl_weight_cols(&v->w), in_row = bl_weight_row_bytes(&v->w);
    bl_rows r = {.view = v, .row = g->offset / out_row, .rows = g->nbytes / out_row};
    uint64_t at = r.row * in_row, n = r.rows * in_row;
    uint8_t *scratch = after_source(t, g->nbytes);
    BL_TRY(bl_values_read(&p->values, v, false, at, n, t->scratch, scratch, &r.codes, err));
    BL_TRY(check(p, v, false, at, r.codes, n, err));
    BL_TRY(bl_values_scale(&p->values, &r, scratch, err));
    BL_TRY(decode(p, &r, (uint16_t *)(void *)dst, err));
    return p->digest ? bl_values_add(&p->values, &made, false, g->offset, g->nbytes, dst, scratch, &p->sums[pt->members[member].sum], err)
                     : BL_OK;
}

/* Bytes of a segment's rows that the source has; rows that follow are padding, and so may be the ends of these. */
static uint64_t held_bytes(const bl_view *v, bool scale, const bl_segment *g)
{
    bl_stored part = bl_weight_stored(&v->w, scale);
    uint64_t held = part.cols ? part.rows * part.pitch : 0, n = held > g->offset ? held - g->offset : 0;
    return n < g->nbytes ? n : g->nbytes;
}

static bl_status copy_segment(bl_producer *p, const bl_view *v, bool scale, size_t sum, const bl_segment *g, const bl_tile *t,
                              uint8_t *dst, bl_error *err)
{
    uint64_t n = held_bytes(v, scale, g), whole = v->w.pad_cols ? 0 : n;
    uint8_t *scratch = after_source(t, g->nbytes);
    memset(dst + whole, scale ? PADDING_SCALE : 0, g->nbytes - whole);
    if (n == 0) {
        return BL_OK;
    }
    BL_TRY(bl_values_copy(&p->values, v, scale, g->offset, n, dst, t->scratch, scratch, err));
    bool judged = scale && v->w.form != BL_FORM_TABLE && p->digest; /* with its codes, which need exact values */
    if (!judged) {
        BL_TRY(check(p, v, scale, g->offset, dst, n, err));
    }
    return p->digest ? bl_values_add(&p->values, v, scale, g->offset, n, dst, scratch, &p->sums[sum], err) : BL_OK;
}

/* Rows of a scale, each that of the block which it lies in. */
static bl_status expand_segment(bl_producer *p, const bl_plan_tensor *pt, const bl_segment *g, const bl_tile *t, uint8_t *dst,
                                bl_error *err)
{
    bl_view v = bl_plan_view(pt, 0);
    uint64_t row_bytes = bl_weight_scale_row_bytes(&v.w), block = v.w.block_rows, inside = v.w.part.row % block;
    uint64_t row = g->offset / row_bytes, rows = g->nbytes / row_bytes;
    uint64_t first = (inside + row) / block, count = bl_pieces(inside + row + rows, block) - first;
    const uint8_t *data;
    BL_TRY(bl_values_read(&p->values, &v, true, first * row_bytes, count * row_bytes, t->scratch, after_source(t, g->nbytes), &data, err));
    BL_TRY(check(p, &v, true, first * row_bytes, data, count * row_bytes, err));
    for (uint64_t i = 0; i < rows; i++) {
        memcpy(dst + i * row_bytes, data + ((inside + row + i) / block - first) * row_bytes, row_bytes);
    }
    return BL_OK;
}

static bl_status encode_segment(bl_producer *p, const bl_plan_tensor *pt, const bl_segment *g, const bl_tile *t, uint8_t *dst,
                                bl_error *err)
{
    bl_view made = bl_plan_made(pt, 0);
    uint64_t row = bl_weight_row_bytes(&made.w);
    return bl_encode(p->encoder, pt, g->offset / row, g->nbytes / row, dst, t->scratch, err);
}

static const bl_piece *piece_of(const bl_producer *p, const bl_tile *t, const bl_segment *g)
{
    return &p->pieces[p->lanes[t->lane].parts[g->part].tag];
}

static bool is_late(const bl_piece *piece)
{
    return piece->tensor && piece->tensor->encode && piece->tensor->scale;
}

bool bl_produce_waits(const bl_producer *p, const bl_tile *t)
{
    for (size_t i = 0; p->encoder && i < t->segment_count; i++) {
        if (is_late(piece_of(p, t, &t->segments[i]))) {
            return true;
        }
    }
    return false;
}

bl_status bl_produce_late(bl_producer *p, const bl_tile *t, bl_error *err)
{
    uint8_t *dst = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_piece *piece = piece_of(p, t, g);
        if (is_late(piece)) {
            BL_TRY(bl_encode_scales(p->encoder, piece->tensor, g->offset, g->nbytes, dst, err));
        }
        dst += g->nbytes;
    }
    return BL_OK;
}

bl_status bl_produce_digest(bl_producer *p, const bl_tile *t, bl_error *err)
{
    const uint8_t *data = t->data;
    for (size_t i = 0; p->digest && i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_piece *piece = piece_of(p, t, g);
        const bl_plan_tensor *pt = piece->tensor && piece->tensor->member_count ? piece->tensor : NULL;
        bl_view v = !pt ? (bl_view){0} : pt->cast ? bl_plan_made(pt, piece->member) : bl_plan_view(pt, piece->member);
        uint64_t n = pt && !pt->encode && !(pt->expand && pt->scale) ? held_bytes(&v, pt->scale, g) : 0;
        if (n) {
            BL_TRY(bl_values_add(&p->values, &v, pt->scale, g->offset, n, data, after_source(t, g->nbytes),
                                 &p->sums[pt->members[piece->member].sum], err));
        }
        data += g->nbytes;
    }
    return BL_OK;
}

bl_status bl_produce(bl_producer *p, const bl_tile *t, bl_error *err)
{
    uint8_t *dst = t->data;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_piece *piece = piece_of(p, t, g);
        if (!piece->tensor && p->plan->files[t->lane].linked) {
            BL_TRY(bl_reader_copy(p->values.readers[p->plan->files[t->lane].source], dst, t->scratch, g->nbytes, piece->at + g->offset, err));
        } else if (!piece->tensor) {
            bl_st_head_copy(&p->plan->files[t->lane].head, g->offset, g->nbytes, dst);
        } else if (piece->tensor->member_count == 0) {
            memset(dst, 0, g->nbytes);
        } else if (piece->tensor->encode && !is_late(piece)) {
            BL_TRY(encode_segment(p, piece->tensor, g, t, dst, err));
        } else if (!is_late(piece)) {
            const bl_plan_tensor *pt = piece->tensor;
            bl_view v = bl_plan_view(pt, piece->member);
            BL_TRY(pt->expand && pt->scale ? expand_segment(p, pt, g, t, dst, err)
                   : pt->cast ? cast_segment(p, pt, piece->member, g, t, dst, err)
                            : copy_segment(p, &v, pt->scale, pt->members[piece->member].sum, g, t, dst, err));
        }
        dst += g->nbytes;
    }
    return BL_OK;
}
