#include "kernels/quant_variants.h"

#include "kernels/cast.h"
#include "kernels/cpu.h"

#include <math.h>

const int16_t bl_fp4_threshold[2][7] = {
    {0x3e80, 0x3f40 - 1, 0x3fa0, 0x3fe0 - 1, 0x4020, 0x4060 - 1, 0x40a0}, /* .25 .75 1.25 1.75 2.5 3.5 5 */
    {0x3e80, 0x3f40, 0x3fa0, 0x3fe0, 0x4020, 0x4060, 0x40a0},
};

/* ---- scales. amax <= 448 * 2^(b-127) with 448 = 1.75 * 2^8 and amax = (1 + f/128) * 2^(e-127): b >= e - 8, one more when f > 96.
 * The sum carries exactly then. */

static uint8_t least(int exponent, int lo, int hi, int zero, uint16_t amax)
{
    int b = exponent < lo ? lo : exponent > hi ? hi : exponent;
    return (uint8_t)(amax ? b : zero);
}

void bl_fp8_scales(uint8_t *scale, const uint16_t *amax, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        scale[i] = least(((amax[i] + 31) >> 7) - 8, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX, BL_FP8_SCALE_ZERO, amax[i]);
}

void bl_fp4_scales(uint8_t *scale, const uint16_t *amax, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        scale[i] = least(((amax[i] + 63) >> 7) - 2, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX, BL_FP4_SCALE_ZERO, amax[i]);
}

/* ---- the reference rows */

void bl_amax_rows_c(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < cols; i += 32) {
        uint16_t most = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = i; k < cols && k < i + 32; k++) {
                uint16_t m = x[r * cols + k] & 0x7fff;
                most = m > most ? m : most;
            }
        amax[i / 32] = most;
    }
}

/* x over the scale, exact unless it leaves float32: too large is infinite, and too small rounds to a zero of either format in
 * any case. NaN becomes infinite. */
static float unscaled(uint16_t x, uint8_t scale)
{
    float v = bl_bf16_to_f32(x);
    if (isnan(v)) v = copysignf(INFINITY, v);
    return scale == 254 ? v * 0x1p-127f : v * bl_e8m0_to_f32((uint8_t)(254 - scale));
}

void bl_fp8_encode_c(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols)
{
    for (int64_t i = 0; i < cols; i++) codes[i] = bl_f32_to_e4m3(unscaled(x[i], scale[i / 32]));
}

static unsigned fp4_code(float v, bl_fp4_ties ties)
{
    static const float middle[7] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    unsigned code = 0;
    for (unsigned i = 0; i < 7; i++) code += fabsf(v) > middle[i] || (fabsf(v) == middle[i] && ties == BL_FP4_TIES_EVEN && i % 2);
    return code | (signbit(v) ? 8u : 0u);
}

void bl_fp4_encode_c(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties)
{
    for (int64_t i = 0; i < cols; i += 2) {
        unsigned low = fp4_code(unscaled(x[i], scale[i / 32]), ties), high = fp4_code(unscaled(x[i + 1], scale[i / 32]), ties);
        packed[i / 2] = (uint8_t)(low | high << 4);
    }
}

void bl_compare_tail_c(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t first, int64_t cols)
{
    for (int64_t i = first; i < cols; i++) {
        float v = bl_bf16_to_f32(x[i]), d = v - bl_bf16_to_f32(back[i]);
        sums->error2[i % 16] += (double)d * (double)d;
        sums->value2[i % 16] += (double)v * (double)v;
        sums->error = fabsf(d) > sums->error ? fabsf(d) : sums->error;
        differs[i / 32] |= d != 0;
    }
}

static void compare_row_c(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t cols)
{
    bl_compare_tail_c(sums, differs, x, back, 0, cols);
}

void bl_quant_init(bl_quant_kernels *t, unsigned cpu)
{
    *t = (bl_quant_kernels){
        .name = "c",
        .amax_rows = bl_amax_rows_c,
        .fp8_row = bl_fp8_encode_c,
        .fp4_row = bl_fp4_encode_c,
        .compare_row = compare_row_c,
    };
#if defined(__x86_64__)
    if (cpu & BL_CPU_AVX2) bl_quant_init_avx2(t);
    if (cpu & BL_CPU_AVX512) bl_quant_init_avx512(t);
#elif defined(__aarch64__)
    if (cpu & BL_CPU_NEON) bl_quant_init_neon(t);
#endif
}
