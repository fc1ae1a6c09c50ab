#include "verify/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "verify/pairs.h"

#define TILE_BYTES ((uint64_t)4 << 20)

/* The tensor as rows of its last dimension, and the scale grid over them. */
typedef struct view {
    const bl_tensor *t;
    uint64_t rows, row_bytes, cols; /* cols in elements */
    bool fp4;
    uint64_t scale_cols, scale_bytes; /* of a row, of one scale */
} view;

static double half_to_double(uint16_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static double load_int(const uint8_t *p, bl_dtype type)
{
    union { uint8_t b[8]; int16_t i16; uint16_t u16; int32_t i32; uint32_t u32; int64_t i64; uint64_t u64; } v = {{0}};
    memcpy(v.b, p, bl_dtype_bits(type) / 8);
    switch (type) {
    case BL_DT_I16: return v.i16;
    case BL_DT_U16: return v.u16;
    case BL_DT_I32: return v.i32;
    case BL_DT_U32: return v.u32;
    case BL_DT_I64: return (double)v.i64;
    case BL_DT_U64: return (double)v.u64;
    case BL_DT_I8: return (int8_t)v.b[0];
    default: return v.b[0];
    }
}

static double load(const view *v, const uint8_t *row, uint64_t i)
{
    if (v->fp4) return bl_e2m1_to_f32((uint8_t)(row[i / 2] >> (i & 1 ? 4 : 0) & 15));
    union { uint8_t b[8]; uint16_t u16; float f32; double f64; } x = {{0}};
    unsigned size = bl_dtype_bits(v->t->dtype) / 8;
    const uint8_t *p = row + i * size;
    memcpy(x.b, p, size);
    switch (v->t->dtype) {
    case BL_DT_F8_E4M3: return bl_e4m3_to_f32(*p);
    case BL_DT_F8_E5M2: return bl_e5m2_to_f32(*p);
    case BL_DT_F8_E8M0: return bl_e8m0_to_f32(*p);
    case BL_DT_BF16: return bl_bf16_to_f32(x.u16);
    case BL_DT_F16: return half_to_double(x.u16);
    case BL_DT_F32: return x.f32;
    case BL_DT_F64: return x.f64;
    default: return load_int(p, v->t->dtype);
    }
}

static bool countable(bl_dtype t)
{
    switch (t) {
    case BL_DT_NONE: case BL_DT_F4: case BL_DT_F6_E2M3: case BL_DT_F6_E3M2: case BL_DT_F8_E4M3FNUZ: case BL_DT_F8_E5M2FNUZ:
    case BL_DT_C64: case BL_DT_COUNT:
        return false;
    default:
        return true;
    }
}

/* The blocks that a grid of scales stands for: 1x32, or square ones. False when it fits none. */
static bool find_blocks(const bl_checkpoint *c, const view *v, const bl_tensor *s, bl_stats *out)
{
    uint64_t rows = 1, cols = s->ndim ? s->shape[s->ndim - 1] : 0;
    for (uint32_t i = 0; i + 1 < s->ndim; i++) rows *= s->shape[i];
    const uint64_t grid[2] = {rows, cols}, shape[2] = {v->rows, v->cols};
    out->block_cols = 32;
    out->block_rows = 1;
    if (s->dtype == BL_DT_F8_E8M0 && rows == v->rows && cols == bl_pieces(v->cols, 32)) return true;
    uint64_t edge = v->fp4 ? 0 : bl_grid_edge(grid, shape, c->config.earlier ? (uint64_t)c->config.block[0] : 32);
    out->block_rows = out->block_cols = (int64_t)edge;
    return edge != 0;
}

static bl_status find_scale(const bl_checkpoint *c, view *v, bl_stats *out, bl_error *err)
{
    const char *name = v->t->name;
    const bl_tensor *second, *s = bl_pair_scale(c, name, &second);
    if (!s || (v->t->dtype != BL_DT_F8_E4M3 && v->t->dtype != BL_DT_I8)) return BL_OK;
    v->fp4 = v->t->dtype == BL_DT_I8;
    if (v->fp4) v->cols *= 2;
    bool known = s->dtype == BL_DT_F8_E8M0 || (s->dtype == BL_DT_F32 && !v->fp4);
    if (second)
        return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(c, v->t)->path, name, -1, "has two scales, '%.300s' and '%.300s'", s->name,
                       second->name);
    if (!known || !find_blocks(c, v, s, out))
        return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(c, v->t)->path, name, -1,
                       "the grid of '%.300s' does not fit this tensor", s->name);
    out->scale = s;
    v->scale_cols = s->shape[s->ndim - 1];
    v->scale_bytes = s->dtype == BL_DT_F32 ? 4 : 1;
    return BL_OK;
}

static double scale_at(const view *v, const uint8_t *scale, uint64_t i)
{
    float x;
    if (v->scale_bytes == 1) return bl_e8m0_to_f32(scale[i]);
    memcpy(&x, scale + 4 * i, sizeof x);
    return x;
}

/* Elements [0, cols) of a row or of a piece of one; are all of them zero? */
static bool add_elements(const view *v, bl_stats *s, const uint8_t *data, const uint8_t *scale, uint64_t cols)
{
    bool all_zero = true;
    for (uint64_t i = 0; i < cols; i++) {
        double x = load(v, data, i);
        if (scale) x *= scale_at(v, scale, i / (uint64_t)s->block_cols);
        if (isnan(x)) {
            s->nans++;
        } else if (isinf(x)) {
            s->infinities++;
        } else {
            s->min = fmin(s->min, x);
            s->max = fmax(s->max, x);
            s->mean += x;
            s->rms += x * x;
        }
        s->negatives += x < 0;
        if (x == 0) {
            s->zeros++;
            s->negative_zeros += signbit(x) != 0;
        } else {
            all_zero = false;
        }
    }
    return all_zero;
}

static void add_scale_bytes(bl_stats *s, const uint8_t *p, uint64_t n)
{
    bl_exponents_add(&s->exponents, p, n, false);
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] < s->scale_min) s->scale_min = p[i];
        if (p[i] > s->scale_max) s->scale_max = p[i];
    }
}

static void add_scales(const view *v, bl_stats *s, const uint8_t *p, uint64_t n)
{
    if (v->scale_bytes == 1) {
        add_scale_bytes(s, p, n);
        return;
    }
    bl_exponents_add(&s->exponents, p, n, true);
    for (uint64_t i = 0; i < n; i++) {
        double x = scale_at(v, p, i);
        s->scale_low = fmin(s->scale_low, x);
        s->scale_high = fmax(s->scale_high, x);
    }
}

/* What is read at once: whole rows, or a piece of one row that is wider than a tile. */
typedef struct tile {
    uint64_t row, rows, col, cols; /* col is a multiple of 64: whole bytes of codes and of scales */
    uint8_t *data, *scales;
    uint64_t data_bytes, scale_rows, scale_cols;
} tile;

static uint64_t bytes_of(const view *v, uint64_t elements)
{
    return v->fp4 ? elements / 2 : elements * (bl_dtype_bits(v->t->dtype) / 8);
}

static bl_status read_tile(const bl_checkpoint *c, const view *v, bl_stats *s, tile *t, bl_error *err)
{
    t->data_bytes = t->rows * bytes_of(v, t->cols);
    uint64_t at = v->t->offset + t->row * v->row_bytes + bytes_of(v, t->col);
    BL_TRY(bl_file_read(bl_checkpoint_file(c, v->t)->file, t->data, t->data_bytes, at, err));
    if (v->t->dtype == BL_DT_F8_E8M0) add_scale_bytes(s, t->data, t->data_bytes);
    if (!s->scale) return BL_OK;
    uint64_t block = (uint64_t)s->block_rows, first = t->row / block;
    t->scale_rows = (t->row + t->rows - 1) / block - first + 1;
    uint64_t wide = (uint64_t)s->block_cols;
    t->scale_cols = bl_pieces(t->cols, wide);
    at = s->scale->offset + (first * v->scale_cols + t->col / wide) * v->scale_bytes;
    uint64_t n = t->scale_rows * t->scale_cols;
    BL_TRY(bl_file_read(bl_checkpoint_file(c, s->scale)->file, t->scales, n * v->scale_bytes, at, err));
    uint64_t seen = t->row % block ? t->scale_cols : 0; /* a block that the tile before had too */
    add_scales(v, s, t->scales + seen * v->scale_bytes, n - seen);
    return BL_OK;
}

static bl_status scan(const bl_checkpoint *c, const view *v, bl_stats *s, bl_error *err)
{
    uint64_t most = TILE_BYTES / 8, per_tile = v->row_bytes && v->row_bytes <= TILE_BYTES ? TILE_BYTES / v->row_bytes : 1;
    uint64_t per_row = v->row_bytes <= TILE_BYTES ? v->cols : most; /* elements: none has more than 8 bytes */
    tile t = {.data = malloc(TILE_BYTES), .scales = malloc(2 * TILE_BYTES)};
    bl_status st = t.data && t.scales ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, v->t->name, -1, "out of memory");
    for (; st == BL_OK && t.row < v->rows; t.row += t.rows) {
        bool zero = true;
        t.rows = v->rows - t.row < per_tile ? v->rows - t.row : per_tile;
        for (t.col = 0; st == BL_OK && t.col < v->cols; t.col += t.cols) {
            t.cols = v->cols - t.col < per_row ? v->cols - t.col : per_row;
            st = read_tile(c, v, s, &t, err);
            for (uint64_t r = 0; st == BL_OK && r < t.rows; r++) {
                uint64_t grid = s->scale ? (t.row + r) / (uint64_t)s->block_rows - t.row / (uint64_t)s->block_rows : 0;
                const uint8_t *scale = s->scale ? t.scales + grid * t.scale_cols * v->scale_bytes : NULL;
                bool piece = add_elements(v, s, t.data + r * (t.data_bytes / t.rows), scale, t.cols);
                zero = zero && piece;
                s->zero_rows += t.rows > 1 && piece;
            }
        }
        s->zero_rows += t.rows == 1 && zero;
    }
    free(t.data);
    free(t.scales);
    return st;
}

bl_status bl_tensor_stats(const bl_checkpoint *c, const bl_tensor *t, bl_stats *out, bl_error *err)
{
    *out = (bl_stats){.min = INFINITY, .max = -INFINITY, .scale_min = 255, .scale_low = INFINITY, .scale_high = -INFINITY};
    if (!countable(t->dtype))
        return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(c, t)->path, t->name, -1, "no statistics for dtype %s",
                       bl_dtype_name(t->dtype));
    uint64_t elements = bl_tensor_elements(t);
    view v = {.t = t, .cols = t->ndim ? t->shape[t->ndim - 1] : 1};
    v.rows = v.cols ? elements / v.cols : 0;
    v.row_bytes = v.cols * bl_dtype_bits(t->dtype) / 8;
    BL_TRY(find_scale(c, &v, out, err));
    out->elements = v.rows * v.cols;
    out->rows = v.rows;
    BL_TRY(scan(c, &v, out, err));
    uint64_t finite = out->elements - out->nans - out->infinities;
    if (finite) {
        out->mean /= (double)finite;
        out->rms = sqrt(out->rms / (double)finite);
    }
    return BL_OK;
}
