/* Casts to bf16 with aarch64 Advanced SIMD. There are no streaming stores worth having: the core sees by itself when whole
 * lines are written. */
#include "kernels/cast_variants.h"

#include <arm_neon.h>
#include <string.h>

/* ---- searches: whole vectors until one holds a hit, then the reference's loop to name it */

static int64_t scale_check_neon(const uint8_t *scale, int64_t n, uint8_t lo, uint8_t hi)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint8x16_t s = vld1q_u8(scale + i);
        if (vminvq_u8(s) < lo || vmaxvq_u8(s) > hi) break;
    }
    while (i < n && scale[i] >= lo && scale[i] <= hi) i++;
    return i;
}

static int64_t fp8_nan_neon(const uint8_t *codes, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        if (vmaxvq_u8(vandq_u8(vld1q_u8(codes + i), vdupq_n_u8(0x7f))) == 0x7f) break;
    while (i < n && (codes[i] & 0x7f) != 0x7f) i++;
    return i;
}

static int64_t f32_nonfinite_neon(const void *x, int64_t n)
{
    const uint8_t *p = x;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(p + 4 * i));
        if (vmaxvq_u32(vandq_u32(v, vdupq_n_u32(0x7f800000))) == 0x7f800000) break;
    }
    for (uint32_t u; i < n; i++) {
        memcpy(&u, p + 4 * i, 4);
        if ((u & 0x7f800000) == 0x7f800000) break;
    }
    return i;
}

static int64_t bf16_nonfinite_neon(const void *x, int64_t n)
{
    const uint8_t *p = x;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(p + 2 * i));
        if (vmaxvq_u16(vandq_u16(v, vdupq_n_u16(0x7f80))) == 0x7f80) break;
    }
    for (uint16_t u; i < n; i++) {
        memcpy(&u, p + 2 * i, 2);
        if ((u & 0x7f80) == 0x7f80) break;
    }
    return i;
}

/* ---- rows: low and high bytes of the results apart, stored interleaved */

/* Scale bytes whose results are all normal bf16 or zero. */
enum { FP8_FAST_MIN = 10, FP8_FAST_MAX = BL_FP8_SCALE_MAX, FP4_FAST_MIN = 2, FP4_FAST_MAX = BL_FP4_SCALE_MAX };

static inline void store(uint16_t *out, uint8x16_t low, uint8x16_t high)
{
    uint8x16x2_t pair = {{low, high}};
    vst2q_u8((uint8_t *)out, pair);
}

/* Exponent and mantissa of a normal code stand in place after a shift by four; the exponent still lacks add = scale - 7, whose
 * last bit goes in before the shift and the others after it. Subnormal codes are looked up already normalised. */
static void fp8_block(uint16_t *out, const uint8_t *codes, int scale)
{
    static const uint8_t low[2][16] = {{0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60}, {0, 0x80, 0, 0x40, 0x80, 0xa0, 0xc0, 0xe0}};
    static const uint8_t high[2][16] = {{0, 0xff, 0xff, 0xff}, {0, 0xff}};
    static const uint8_t nonzero[16] = {0, 255, 255, 255, 255, 255, 255, 255};
    int add = scale - 7, odd = add & 1;
    uint8x16_t half = vdupq_n_u8((uint8_t)(add >> 1)), last = vdupq_n_u8((uint8_t)(odd << 3));
    uint8x16_t table_low = vld1q_u8(low[odd]);
    uint8x16_t table_high = vaddq_u8(vld1q_u8(high[odd]), vandq_u8(half, vld1q_u8(nonzero)));
    for (int i = 0; i < 32; i += 16) {
        uint8x16_t c = vld1q_u8(codes + i), m = vandq_u8(c, vdupq_n_u8(0x7f)), e = vaddq_u8(m, last);
        uint8x16_t subnormal = vcltq_u8(m, vdupq_n_u8(8)), nan = vceqq_u8(m, vdupq_n_u8(0x7f));
        uint8x16_t l = vbslq_u8(subnormal, vqtbl1q_u8(table_low, m), vshlq_n_u8(e, 4));
        uint8x16_t h = vbslq_u8(subnormal, vqtbl1q_u8(table_high, m), vaddq_u8(vshrq_n_u8(e, 4), half));
        l = vbslq_u8(nan, vdupq_n_u8(0xc0), l);
        h = vbslq_u8(nan, vdupq_n_u8(0x7f), h);
        store(out + i, l, vorrq_u8(h, vandq_u8(c, vdupq_n_u8(0x80))));
    }
}

/* A nibble is looked up in its block's sixteen low and sixteen high bytes. With e = -1 .. 2 the exponent of a code's value, the
 * exponent field is scale + e, one bit of it in the low byte. */
static void fp4_block(uint16_t *out, const uint8_t *packed, int scale)
{
    static const uint8_t low[2][16] = {{0, 128, 0, 64, 128, 192, 0, 64, 0, 128, 0, 64, 128, 192, 0, 64},
                                       {0, 0, 128, 192, 0, 64, 128, 192, 0, 0, 128, 192, 0, 64, 128, 192}};
    static const uint8_t high[2][16] = {{0, 255, 0, 0, 0, 0, 1, 1, 128, 127, 128, 128, 128, 128, 129, 129},
                                        {0, 0, 0, 0, 1, 1, 1, 1, 128, 128, 128, 128, 129, 129, 129, 129}};
    static const uint8_t nonzero[16] = {0, 255, 255, 255, 255, 255, 255, 255, 0, 255, 255, 255, 255, 255, 255, 255};
    int odd = scale & 1;
    uint8x16_t half = vandq_u8(vdupq_n_u8((uint8_t)(scale >> 1)), vld1q_u8(nonzero));
    uint8x16_t table_low = vld1q_u8(low[odd]), table_high = vaddq_u8(vld1q_u8(high[odd]), half);
    uint8x16_t p = vld1q_u8(packed), even_codes = vandq_u8(p, vdupq_n_u8(15)), odd_codes = vshrq_n_u8(p, 4);
    uint8x16_t c0 = vzip1q_u8(even_codes, odd_codes), c1 = vzip2q_u8(even_codes, odd_codes);
    store(out, vqtbl1q_u8(table_low, c0), vqtbl1q_u8(table_high, c0));
    store(out + 16, vqtbl1q_u8(table_low, c1), vqtbl1q_u8(table_high, c1));
}

static void fp8_row_neon(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    int64_t b = 0;
    for (; b < cols / 32; b++) {
        if (scale[b] >= FP8_FAST_MIN && scale[b] <= FP8_FAST_MAX) fp8_block(out + 32 * b, codes + 32 * b, scale[b]);
        else bl_fp8_row_c(out + 32 * b, codes + 32 * b, scale + b, 32);
    }
    bl_fp8_row_c(out + 32 * b, codes + 32 * b, scale + b, cols % 32);
}

static void fp4_row_neon(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    int64_t b = 0;
    for (; b < cols / 32; b++) {
        if (scale[b] >= FP4_FAST_MIN && scale[b] <= FP4_FAST_MAX) fp4_block(out + 32 * b, packed + 16 * b, scale[b]);
        else bl_fp4_row_c(out + 32 * b, packed + 16 * b, scale + b, 32);
    }
    bl_fp4_row_c(out + 32 * b, packed + 16 * b, scale + b, cols % 32);
}

void bl_cast_init_neon(bl_cast_kernels *t)
{
    t->name = "neon";
    t->fp8_row = t->fp8_row_stream = fp8_row_neon;
    t->fp4_row = t->fp4_row_stream = fp4_row_neon;
    t->scale_check = scale_check_neon;
    t->fp8_nan = fp8_nan_neon;
    t->f32_nonfinite = f32_nonfinite_neon;
    t->bf16_nonfinite = bf16_nonfinite_neon;
}
