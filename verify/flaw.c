#include "verify/flaw.h"

typedef int64_t (*search_fn)(const bl_cast_kernels *k, const uint8_t *p, int64_t n);

static int64_t fp8(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->fp8_nan(p, n);
}
static int64_t scale(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->scale_check(p, n, 0, 254);
}
static int64_t fp8_scale(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->scale_check(p, n, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX);
}
static int64_t fp4_scale(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->scale_check(p, n, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX);
}
static int64_t f32(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->f32_nonfinite(p, n);
}
static int64_t bf16(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    return k->bf16_nonfinite(p, n);
}

static int64_t f32_scale(const bl_cast_kernels *k, const uint8_t *p, int64_t n)
{
    (void)k;
    return bl_f32_scale_check(p, n);
}

/* The first is found by a kernel, so are the stretches between; each is counted. */
static bl_flaw count(const bl_cast_kernels *k, search_fn search, const uint8_t *p, uint64_t n, unsigned size, const char *what)
{
    bl_flaw f = {.size = size, .what = what};
    for (uint64_t at = 0; at < n;) {
        uint64_t hit = at + (uint64_t)search(k, p + at * size, (int64_t)(n - at));
        if (hit >= n) {
            break;
        }
        f.first = f.count++ ? f.first : hit;
        f.last = hit;
        at = hit + 1;
    }
    return f;
}

static bl_flaw scale_flaw(const bl_cast_kernels *k, const bl_weight *w, const uint8_t *data, uint64_t n)
{
    bl_flaw nan = count(k, scale, data, n, 1, "NaN scale bytes");
    if (!w || (w->form != BL_FORM_FP8 && w->form != BL_FORM_FP4)) {
        return nan;
    }
    bl_flaw all = w->form == BL_FORM_FP8 ? count(k, fp8_scale, data, n, 1, "scale bytes outside 3..246: no exact BF16 values")
                                         : count(k, fp4_scale, data, n, 1, "scale bytes outside 0..252: no exact BF16 values");
    return all.count == nan.count ? nan : all;
}

bl_flaw bl_flaw_find(const bl_cast_kernels *k, bl_dtype dtype, const bl_weight *w, const uint8_t *data, uint64_t n)
{
    switch (dtype) {
    case BL_DT_F8_E4M3:
        return count(k, fp8, data, n, 1, "NaN codes");
    case BL_DT_F8_E8M0:
        return scale_flaw(k, w, data, n);
    case BL_DT_F32:
        if (w && bl_weight_f32_scaled(w)) {
            return count(k, f32_scale, data, n / 4, 4, "scales outside 2^-124..2^119");
        }
        return count(k, f32, data, n / 4, 4, "values that are not finite");
    case BL_DT_BF16:
        return count(k, bf16, data, n / 2, 2, "values that are not finite");
    default:
        return (bl_flaw){.size = 1};
    }
}
