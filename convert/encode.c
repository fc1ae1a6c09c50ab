#include "convert/encode.h"

#include "convert/spill.h"
#include "convert/stripe.h"

#include <stdlib.h>
#include <string.h>

/* Source bytes that are read at once: enough for the disk, little beside a tile. At least a stripe of 32 rows. */
#define PIECE ((uint64_t)2 << 20)

struct bl_encoder {
    const bl_plan *plan;
    bl_values *values;
    bl_sum *sums; /* of the values read; NULL: not wanted */
    bl_encode_options o;
    bl_quant_kernels quant;
    bl_cast_kernels cast;
    bl_spill *scales;
    bool recasts;             /* some weights come as codes */
    uint64_t max_cols, piece; /* of any encoded weight; source bytes read at once */
    pthread_mutex_t lock;     /* of stats and sums */
    bl_encode_stats (*stats)[BL_ENCODE_CLASSES]; /* [plan files] */
};

const char *bl_encode_class_name(bl_encode_class c)
{
    static const char *const names[] = {"attention", "experts", "shared experts", "engram", "draft"};
    return names[c];
}

static bl_encode_class class_of(const bl_slot *s)
{
    if (s->group == BL_GROUP_DSPARK) {
        return BL_ENCODE_DRAFT;
    }
    if (s->expert >= 0 || s->kind == BL_SLOT_EXPERT) {
        return BL_ENCODE_EXPERTS;
    }
    return strstr(s->name, ".shared_experts.") ? BL_ENCODE_SHARED : strstr(s->name, ".engram.") ? BL_ENCODE_ENGRAM : BL_ENCODE_ATTENTION;
}

/* Are t's codes made of other codes, without loss, and not of BF16? */
static bool is_recast(const bl_plan_tensor *t)
{
    return t->members[0].pieces->form != BL_FORM_BF16;
}

void bl_encode_count(const bl_plan *plan, bl_encode_stats out[BL_ENCODE_CLASSES])
{
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        if (t->encode && !t->scale && !is_recast(t)) {
            out[class_of(t->members[0].pieces->slot)].weights++;
        }
    }
}

/* ---- scratch of a thread */

typedef struct room {
    uint8_t *source, *values, *hints, *fresh; /* fresh: scale bytes of a piece */
    uint16_t *decoded;                        /* values of a piece of codes */
    bl_stripe_room stripe;
} room;

enum { ROOMS = 10 };

/* Most scale bytes of a piece: one for 32 values. */
static uint64_t piece_scales(const bl_encoder *e)
{
    return e->piece / 2 / 32 + 32;
}

static room make_room(const bl_encoder *e, uint8_t *p, uint64_t *bytes)
{
    uint64_t blocks = e->max_cols / 32 + 1;
    const uint64_t sizes[ROOMS] = {BL_READ_ROOM(e->piece), bl_values_scratch(e->values, e->piece / 2),
                                   (e->o.hints ? bl_hints_scratch(e->o.hints, piece_scales(e)) : 0) + piece_scales(e), piece_scales(e),
                                   e->recasts ? e->piece : 0, 2 * e->max_cols, 2 * blocks, blocks, blocks, blocks};
    uint64_t at[ROOMS], end = 0;
    for (int i = 0; i < ROOMS; i++) {
        at[i] = end;
        end += bl_io_pages(sizes[i]);
    }
    *bytes = end;
    if (!p) {
        return (room){0};
    }
    return (room){.source = p + at[0], .values = p + at[1], .hints = p + at[2], .fresh = p + at[3],
                  .decoded = (uint16_t *)(void *)(p + at[4]),
                  .stripe = {.back = (uint16_t *)(void *)(p + at[5]), .amax = (uint16_t *)(void *)(p + at[6]), .differs = p + at[7],
                             .chosen = p + at[8], .scale = p + at[9]}};
}

/* Rows are encoded in multiples of these: blocks of scales and tiles of digests stay whole. */
static uint64_t rows_at_once(const bl_weight *w)
{
    return w->block_rows > BL_VALUE_TILE ? w->block_rows : BL_VALUE_TILE;
}

uint64_t bl_encoder_scratch(const bl_encoder *e)
{
    uint64_t n;
    make_room(e, NULL, &n);
    return n;
}

bl_status bl_encoder_create(bl_encoder **out, const bl_plan *plan, bl_values *values, bl_sum *sums, const bl_encode_options *o,
                            const char *folder, bl_error *err)
{
    bl_encoder *e = *out = calloc(1, sizeof *e);
    if (!e) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    e->plan = plan;
    e->values = values;
    e->sums = sums;
    e->o = *o;
    e->piece = PIECE;
    pthread_mutex_init(&e->lock, NULL);
    bl_quant_init(&e->quant, o->cpu);
    bl_cast_init(&e->cast, o->cpu);
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        if (!t->encode || t->scale) {
            continue;
        }
        bl_view v = bl_plan_made(t, 0);
        uint64_t cols = bl_weight_cols(&v.w), stripe = 2 * rows_at_once(&v.w) * cols;
        e->max_cols = cols > e->max_cols ? cols : e->max_cols;
        e->piece = stripe > e->piece ? stripe : e->piece;
        e->recasts |= is_recast(t);
    }
    e->stats = calloc(plan->file_count + 1, sizeof *e->stats);
    bl_status s = e->stats ? bl_spill_create(&e->scales, folder, plan->sum_count, err)
                           : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (s != BL_OK) {
        bl_encoder_destroy(out);
    }
    return s;
}

void bl_encoder_destroy(bl_encoder **ep)
{
    bl_encoder *e = *ep;
    if (e) {
        bl_spill_destroy(&e->scales);
        pthread_mutex_destroy(&e->lock);
        free(e->stats);
        free(e);
        *ep = NULL;
    }
}

/* ---- pieces */

/* A weight being encoded. */
typedef struct work {
    bl_encoder *e;
    bl_view made, source;
    const room *r;
    size_t sum;
    bool recast;
} work;

/* Where the value at [row, col] of the source is. */
static int64_t place_of(const bl_view *source, uint64_t row, uint64_t col, const bl_tensor **t)
{
    bl_stored stored = bl_weight_stored(&source->w, false);
    return bl_view_place(source, false, row * stored.cols + col * stored.cols / bl_weight_cols(&source->w), t);
}

/* Name the first value of the stripe, whose first row is row, that is not finite. */
static bl_status not_finite(const work *w, const bl_stripe *s, uint64_t row, bl_error *err)
{
    uint64_t i = 0;
    while (i + 1 < s->rows * s->cols && (s->x[i] & 0x7fff) < 0x7f80) {
        i++;
    }
    const bl_tensor *t;
    int64_t at = place_of(&w->source, row + i / s->cols, i % s->cols, &t);
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(w->e->values->source, t)->path, t->name, at,
                   "the value at [%llu, %llu] is %s (bf16 0x%04x): no code stands for it", (unsigned long long)(row + i / s->cols),
                   (unsigned long long)(i % s->cols), (s->x[i] & 0x7fff) > 0x7f80 ? "NaN" : "infinite", s->x[i]);
}

/* Name the first block of the stripe, whose first row is row, that is not the same under any one scale. */
static bl_status inexact(const work *w, const bl_stripe *s, uint64_t row, bl_error *err)
{
    uint64_t b = (uint64_t)((const uint8_t *)memchr(s->r->differs, 1, bl_stripe_blocks(s)) - s->r->differs);
    const bl_tensor *t;
    int64_t at = place_of(&w->source, row, 32 * b, &t);
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(w->e->values->source, t)->path, t->name, at,
                   "the values of block [%llu, %llu] of '%s' do not all have %s codes under one scale: it cannot be recast without loss",
                   (unsigned long long)(row / s->w->block_rows), (unsigned long long)b, s->w->slot->name,
                   s->w->form == BL_FORM_FP8 ? "fp8" : "fp4");
}

/* Rows [row, row + rows) of the source, read already, and their hints. */
static bl_status encode_piece(const work *w, bl_stripe *s, uint64_t row, uint64_t rows, const uint8_t *hint, bl_encode_stats *stats,
                              bl_error *err)
{
    uint64_t step = s->w->block_rows, blocks = bl_weight_scale_cols(s->w);
    for (uint64_t i = 0; i < rows; i += step) {
        s->rows = rows - i < step ? rows - i : step;
        s->scale = w->r->fresh + i / step * blocks;
        s->hint = hint ? hint + i / step * blocks : NULL;
        if (!bl_stripe_measure(s)) {
            return not_finite(w, s, row + i, err);
        }
        bl_stripe_encode(s, stats);
        if (w->recast && memchr(s->r->differs, 1, blocks)) {
            return inexact(w, s, row + i, err);
        }
        s->x += s->rows * s->cols;
        s->codes += s->rows * s->code_bytes;
    }
    return BL_OK;
}

void bl_encode_stats_add(bl_encode_stats *s, const bl_encode_stats *more)
{
    s->weights += more->weights;
    s->values += more->values;
    s->blocks += more->blocks;
    s->kept += more->kept;
    s->lost += more->lost;
    s->error2 += more->error2;
    s->value2 += more->value2;
    s->error = more->error > s->error ? more->error : s->error;
}

/* Values of rows [row, row + rows) of the source, where they are BF16. */
static bl_status read_bf16(bl_encoder *e, const bl_view *source, uint64_t row, uint64_t rows, const room *r, const uint16_t **x,
                           bl_error *err)
{
    uint64_t row_bytes = 2 * bl_weight_cols(&source->w);
    const uint8_t *data;
    BL_TRY(bl_values_read(e->values, source, false, row * row_bytes, rows * row_bytes, r->source, r->values, &data, err));
    if ((uintptr_t)data % 2) { /* as the tensor lies in its file; there is room before it */
        data = memmove((uint8_t *)(uintptr_t)data - 1, data, rows * row_bytes);
    }
    *x = (const uint16_t *)(const void *)data;
    return BL_OK;
}

/* The same where they are codes. A NaN code decodes to a NaN, which is found with the others. rows->scale stays in r->values. */
static bl_status read_codes(bl_encoder *e, const bl_view *source, bl_rows *rows, const room *r, const uint16_t **x, bl_error *err)
{
    uint64_t row_bytes = bl_weight_row_bytes(&source->w);
    BL_TRY(bl_values_read(e->values, source, false, rows->row * row_bytes, rows->rows * row_bytes, r->source, r->values, &rows->codes, err));
    BL_TRY(bl_values_scale(e->values, rows, r->values, err));
    bl_values_decode(e->values, rows, 0, rows->rows, r->decoded);
    *x = r->decoded;
    return BL_OK;
}

/* Scales for fp8 codes made of other codes, share rows to a scale: the largest of those that its rows had; of fp4 less 6, as the
 * release's converter does it: 6 times 2^6 is the largest such multiple below 448, which leaves the most room below. */
static void recast_hints(const bl_view *source, const bl_rows *rows, uint64_t share, uint8_t *hint)
{
    uint64_t blocks = bl_weight_scale_row_bytes(&source->w), block_rows = source->w.block_rows;
    int less = source->w.form == BL_FORM_FP4 ? 6 : 0;
    for (uint64_t i = 0; i < rows->rows; i += share, hint += blocks) {
        for (uint64_t b = 0; b < blocks; b++) {
            int most = 0;
            for (uint64_t k = i; k < rows->rows && k < i + share; k++) {
                int s = rows->scale[k / block_rows * blocks + b];
                most = s > most ? s : most;
            }
            hint[b] = (uint8_t)(most < BL_FP8_SCALE_MIN + less ? BL_FP8_SCALE_MIN : most - less);
        }
    }
}

/* Values of a piece, and what scales they had or may have: *hint is NULL where nothing is known. */
static bl_status read_piece(const work *w, uint64_t row, uint64_t rows, uint64_t at, uint64_t scales, const uint16_t **x,
                            const uint8_t **hint, bl_error *err)
{
    bl_encoder *e = w->e;
    bl_rows codes = {.view = &w->source, .row = row, .rows = rows};
    *hint = NULL;
    BL_TRY(w->recast ? read_codes(e, &w->source, &codes, w->r, x, err) : read_bf16(e, &w->source, row, rows, w->r, x, err));
    if (e->o.hints) {
        BL_TRY(bl_hints_read(e->o.hints, w->sum, at, scales, w->r->hints, hint, err));
    }
    if (!*hint && w->recast && w->made.w.form == BL_FORM_FP8) {
        recast_hints(&w->source, &codes, w->made.w.block_rows, w->r->hints);
        *hint = w->r->hints;
    }
    return BL_OK;
}

/* Digest values of a piece as they were read: what comes out has others. */
static void digest_piece(const work *w, uint64_t row, uint64_t rows, const uint16_t *x)
{
    const bl_weight *from = &w->source.w;
    bl_sum sum = {0};
    if (!w->e->sums) {
        return;
    }
    bl_value_matrix(&w->e->cast, &sum, x, rows, bl_weight_cols(from), bl_weight_tiles(from, row));
    pthread_mutex_lock(&w->e->lock);
    bl_sum_add(&w->e->sums[w->sum], sum);
    pthread_mutex_unlock(&w->e->lock);
}

bl_status bl_encode(bl_encoder *e, const bl_plan_tensor *t, uint64_t row, uint64_t rows, uint8_t *codes, uint8_t *scratch,
                    bl_error *err)
{
    uint64_t bytes;
    room r = make_room(e, scratch, &bytes);
    work w = {.e = e, .made = bl_plan_made(t, 0), .source = bl_plan_view(t, 0), .r = &r, .sum = t->members[0].sum};
    w.recast = is_recast(t);
    bl_stripe s = {.quant = &e->quant, .cast = &e->cast, .o = &e->o, .w = &w.made.w, .cols = bl_weight_cols(&w.made.w), .codes = codes,
                   .code_bytes = bl_weight_row_bytes(&w.made.w), .each = w.made.w.block_cols / BL_BLOCK, .r = &r.stripe};
    bl_stored grid = bl_weight_stored(s.w, true);
    uint64_t share = s.w->block_rows;
    uint64_t unit = rows_at_once(s.w), most = e->piece / (2 * s.cols) / unit * unit;
    bl_encode_stats stats = {0};
    for (uint64_t end = row + rows, n; row < end; row += n) {
        n = end - row < most ? end - row : most;
        const uint8_t *hint;
        uint64_t at = row / share * grid.cols, count = bl_pieces(n, share) * grid.cols;
        BL_TRY(read_piece(&w, row, n, at, count, &s.x, &hint, err));
        digest_piece(&w, row, n, s.x);
        BL_TRY(encode_piece(&w, &s, row, n, hint, &stats, err));
        BL_TRY(bl_spill_put(e->scales, w.sum, grid.rows * grid.cols, at, r.fresh, count, err));
    }
    if (!w.recast) {
        pthread_mutex_lock(&e->lock);
        bl_encode_stats_add(&e->stats[t->tensor.file][class_of(s.w->slot)], &stats);
        pthread_mutex_unlock(&e->lock);
    }
    return BL_OK;
}

bl_status bl_encode_scales(bl_encoder *e, const bl_plan_tensor *t, uint64_t offset, uint64_t n, uint8_t *dst, bl_error *err)
{
    return bl_spill_take(e->scales, t->members[0].sum, t->tensor.nbytes, offset, dst, n, err);
}

void bl_encoder_stats(bl_encoder *e, size_t file, bl_encode_stats out[BL_ENCODE_CLASSES])
{
    pthread_mutex_lock(&e->lock);
    memcpy(out, e->stats[file], sizeof e->stats[file]);
    pthread_mutex_unlock(&e->lock);
}
