/* Encoders of weights with aarch64 Advanced SIMD: eight bf16 in 16-bit lanes. The arithmetic is that of the AVX2 variant. */
#include "kernels/quant_variants.h"

#include <arm_neon.h>

static inline uint16x8_t magnitude(uint16x8_t x)
{
    return vandq_u16(x, vdupq_n_u16(0x7fff));
}

static void amax_rows_neon(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < cols; i += 32) {
        uint16x8_t most = vdupq_n_u16(0);
        uint16_t rest = 0;
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *p = x + r * cols + i;
            int64_t left = cols - i < 32 ? cols - i : 32, k = 0;
            for (; k + 8 <= left; k += 8) most = vmaxq_u16(most, magnitude(vld1q_u16(p + k)));
            for (; k < left; k++) rest = (p[k] & 0x7fff) > rest ? p[k] & 0x7fff : rest;
        }
        uint16_t m = vmaxvq_u16(most);
        amax[i / 32] = m > rest ? m : rest;
    }
}

static inline uint8x8_t fp8_lanes(uint16x8_t x, int16x8_t bias, uint16x8_t *rare)
{
    uint16x8_t m = magnitude(x);
    int16x8_t t = vsubq_s16(vreinterpretq_s16_u16(m), bias);
    uint16x8_t small = vandq_u16(vcltq_s16(t, vdupq_n_s16(128)), vcgtq_s16(t, vdupq_n_s16(-385)));
    *rare = vorrq_u16(*rare, vandq_u16(vtstq_u16(m, m), small));
    int16x8_t odd = vandq_s16(vshrq_n_s16(t, 4), vdupq_n_s16(1));
    int16x8_t c = vshrq_n_s16(vaddq_s16(vaddq_s16(t, odd), vdupq_n_s16(7)), 4);
    c = vmaxq_s16(vminq_s16(c, vdupq_n_s16(0x7e)), vdupq_n_s16(0));
    uint16x8_t sign = vandq_u16(vshrq_n_u16(x, 8), vdupq_n_u16(0x80));
    return vmovn_u16(vorrq_u16(vreinterpretq_u16_s16(c), sign));
}

static void fp8_row_neon(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols)
{
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        unsigned s = scale[i / 32];
        uint16x8_t rare = vdupq_n_u16(0);
        int16x8_t bias = vdupq_n_s16((int16_t)(((int)s - 7) * 128));
        uint8x8_t c[4];
        for (int k = 0; k < 4; k++) c[k] = fp8_lanes(vld1q_u16(x + i + 8 * k), bias, &rare);
        if (s < BL_FP8_ENCODE_MIN || s > BL_FP8_ENCODE_MAX || vmaxvq_u16(rare)) {
            bl_fp8_encode_c(codes + i, x + i, scale + i / 32, 32);
            continue;
        }
        for (int k = 0; k < 4; k++) vst1_u8(codes + i + 8 * k, c[k]);
    }
    bl_fp8_encode_c(codes + i, x + i, scale + i / 32, cols - i);
}

static inline uint16x8_t fp4_lanes(uint16x8_t x, const int16x8_t threshold[7])
{
    int16x8_t m = vreinterpretq_s16_u16(magnitude(x));
    uint16x8_t c = vdupq_n_u16(0);
    for (int i = 0; i < 7; i++) c = vsubq_u16(c, vcgtq_s16(m, threshold[i]));
    return vorrq_u16(c, vandq_u16(vshrq_n_u16(x, 12), vdupq_n_u16(8)));
}

static void fp4_row_neon(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties)
{
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        int s = scale[i / 32];
        if (s < BL_FP4_ENCODE_MIN || s > BL_FP4_ENCODE_MAX) {
            bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, 32, ties);
            continue;
        }
        int16x8_t threshold[7];
        for (int k = 0; k < 7; k++) threshold[k] = vdupq_n_s16((int16_t)(bl_fp4_threshold[ties][k] + (s - 127) * 128));
        for (int k = 0; k < 32; k += 16) { /* even elements in one register, odd ones in the other */
            uint16x8x2_t v = vld2q_u16(x + i + k);
            uint16x8_t c = vorrq_u16(fp4_lanes(v.val[0], threshold), vshlq_n_u16(fp4_lanes(v.val[1], threshold), 4));
            vst1_u8(packed + (i + k) / 2, vmovn_u16(c));
        }
    }
    bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, cols - i, ties);
}

void bl_quant_init_neon(bl_quant_kernels *t)
{
    t->name = "neon";
    t->amax_rows = amax_rows_neon;
    t->fp8_row = fp8_row_neon;
    t->fp4_row = fp4_row_neon;
}
