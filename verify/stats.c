#include "verify/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"

#define TILE_BYTES ((uint64_t)4 << 20)

/* The tensor as rows of its last dimension, and the scale grid over them. */
typedef struct view {
    const bl_tensor *t;
    uint64_t rows, row_bytes, cols; /* cols in elements */
    bool fp4;
    uint64_t scale_cols;
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

static bl_status find_scale(const bl_checkpoint *c, view *v, bl_stats *out, bl_error *err)
{
    const char *name = v->t->name;
    size_t n = strlen(name);
    if (n < 8 || strcmp(name + n - 7, ".weight") || (v->t->dtype != BL_DT_F8_E4M3 && v->t->dtype != BL_DT_I8)) return BL_OK;
    char scale_name[BL_MAX_NAME + 8];
    snprintf(scale_name, sizeof scale_name, "%.*s.scale", (int)(n - 7), name);
    const bl_tensor *s = bl_checkpoint_find(c, scale_name);
    if (!s) return BL_OK;
    v->fp4 = v->t->dtype == BL_DT_I8;
    if (v->fp4) v->cols *= 2;
    uint64_t scale_rows = 1, cols = s->ndim ? s->shape[s->ndim - 1] : 0;
    for (uint32_t i = 0; i + 1 < s->ndim; i++) scale_rows *= s->shape[i];
    bool rows_fit = scale_rows == v->rows || scale_rows == v->rows / 32 + (v->rows % 32 != 0);
    if (s->dtype != BL_DT_F8_E8M0 || !rows_fit || cols != v->cols / 32 + (v->cols % 32 != 0))
        return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(c, v->t)->path, name, -1,
                       "the grid of '%s' does not fit this tensor", scale_name);
    out->scale = s;
    out->block_rows = scale_rows == v->rows ? 1 : 32;
    out->block_cols = 32;
    v->scale_cols = cols;
    return BL_OK;
}

static void add_row(const view *v, bl_stats *s, const uint8_t *row, const uint8_t *scale)
{
    bool all_zero = v->cols > 0;
    for (uint64_t i = 0; i < v->cols; i++) {
        double x = load(v, row, i);
        if (scale) x *= (double)bl_e8m0_to_f32(scale[i / 32]);
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
    s->zero_rows += all_zero;
}

static void add_scale_bytes(bl_stats *s, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] < s->scale_min) s->scale_min = p[i];
        if (p[i] > s->scale_max) s->scale_max = p[i];
    }
}

/* Rows are read in tiles of whole 32-row blocks (or all rows, when they are fewer). */
static bl_status scan(const bl_checkpoint *c, const view *v, bl_stats *s, bl_error *err)
{
    uint64_t per_tile = v->row_bytes ? TILE_BYTES / v->row_bytes : 1;
    per_tile = per_tile < 32 ? 32 : per_tile / 32 * 32;
    if (per_tile > v->rows) per_tile = v->rows;
    uint8_t *tile = malloc(per_tile * v->row_bytes + 1);
    uint8_t *scales = malloc(per_tile * v->scale_cols + 1);
    bl_status st = tile && scales ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, v->t->name, -1, "out of memory");
    for (uint64_t r0 = 0; st == BL_OK && r0 < v->rows; r0 += per_tile) {
        uint64_t rows = v->rows - r0 < per_tile ? v->rows - r0 : per_tile;
        st = bl_file_read(bl_checkpoint_file(c, v->t)->file, tile, rows * v->row_bytes, v->t->offset + r0 * v->row_bytes, err);
        uint64_t block = (uint64_t)(s->scale ? s->block_rows : 1), grid0 = r0 / block, grid_rows = (rows + block - 1) / block;
        if (st == BL_OK && s->scale) {
            st = bl_file_read(bl_checkpoint_file(c, s->scale)->file, scales, grid_rows * v->scale_cols,
                              s->scale->offset + grid0 * v->scale_cols, err);
            add_scale_bytes(s, scales, grid_rows * v->scale_cols);
        }
        if (st != BL_OK) break;
        if (v->t->dtype == BL_DT_F8_E8M0) add_scale_bytes(s, tile, rows * v->row_bytes);
        for (uint64_t r = 0; r < rows; r++)
            add_row(v, s, tile + r * v->row_bytes, s->scale ? scales + r / block * v->scale_cols : NULL);
    }
    free(tile);
    free(scales);
    return st;
}

bl_status bl_tensor_stats(const bl_checkpoint *c, const bl_tensor *t, bl_stats *out, bl_error *err)
{
    *out = (bl_stats){.min = INFINITY, .max = -INFINITY, .scale_min = 255};
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
