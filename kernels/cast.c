#include "kernels/cast_variants.h"

#include "kernels/cpu.h"

#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* ---- decode. A small float's exponent and mantissa, moved to where float32 keeps its own, are its value times two to the
 * power (its bias - 127): one exact multiplication, which also normalises subnormal codes. */

static inline float with_sign(float magnitude, uint32_t sign)
{
    return float_of(bits_of(magnitude) | sign << 31);
}

float bl_e4m3_to_f32(uint8_t code)
{
    uint32_t m = code & 0x7f;
    float v = m == 0x7f ? float_of(0x7fc00000) : float_of(m << 20) * 0x1p120f;
    return with_sign(v, code >> 7);
}

float bl_e5m2_to_f32(uint8_t code)
{
    uint32_t m = code & 0x7f;
    float v = m > 0x7c ? float_of(0x7fc00000) : m == 0x7c ? float_of(0x7f800000) : float_of(m << 21) * 0x1p112f;
    return with_sign(v, code >> 7);
}

float bl_e2m1_to_f32(uint8_t code)
{
    return with_sign(float_of((uint32_t)(code & 7) << 22) * 0x1p126f, code >> 3 & 1);
}

float bl_e8m0_to_f32(uint8_t code)
{
    return float_of(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : (uint32_t)code << 23);
}

/* ---- encode */

uint16_t bl_f32_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(0x7fc0 | (u >> 16 & 0x8000)); /* the sum below would carry into inf */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Magnitude u (bits of a float32, at most the largest value of the format) to a format with m mantissa bits and the given
 * bias, nearest even. Below the smallest normal 2^(1 - bias) the adder does the rounding: in a float32 next to
 * 2^(24 - m - bias) the last bit counts the format's subnormal quantum 2^(1 - bias - m). */
static inline uint32_t round_magnitude(uint32_t u, uint32_t m, uint32_t bias)
{
    uint32_t drop = 23 - m, smallest_normal = (128 - bias) << 23;
    if (u < smallest_normal) {
        uint32_t anchor = (127 + 24 - m - bias) << 23;
        return bits_of(float_of(u) + float_of(anchor)) - anchor;
    }
    u += (1u << (drop - 1)) - 1 + (u >> drop & 1);
    return (u >> drop) - ((127 - bias) << m);
}

static inline uint32_t clamp_magnitude(uint32_t u, float most)
{
    return u < bits_of(most) ? u : bits_of(most);
}

uint8_t bl_f32_to_e4m3(float x)
{
    uint32_t u = bits_of(x) & 0x7fffffff, sign = bits_of(x) >> 24 & 0x80;
    if (u > 0x7f800000) return (uint8_t)(sign | 0x7f);
    return (uint8_t)(sign | round_magnitude(clamp_magnitude(u, 448), 3, 7));
}

uint8_t bl_f32_to_e5m2(float x)
{
    uint32_t u = bits_of(x) & 0x7fffffff, sign = bits_of(x) >> 24 & 0x80;
    if (u > 0x7f800000) return (uint8_t)(sign | 0x7f);
    return (uint8_t)(sign | round_magnitude(clamp_magnitude(u, 57344), 2, 15));
}

uint8_t bl_f32_to_e2m1(float x)
{
    uint32_t u = bits_of(x) & 0x7fffffff, sign = bits_of(x) >> 28 & 8;
    if (u > 0x7f800000) return (uint8_t)sign;
    return (uint8_t)(sign | round_magnitude(clamp_magnitude(u, 6), 1, 1));
}

uint8_t bl_e8m0_ceil(float r)
{
    uint32_t u = bits_of(r), e = (u >> 23) + ((u & 0x7fffff) != 0);
    return (uint8_t)(e < 254 ? e : 254);
}

/* ---- rows. The float32 product of a code and a power of two is exact wherever it is finite (at most four significant bits,
 * and 2^-9 * 2^-127 is still a float32), so the only rounding is the last one. The sign is the code's, also of a NaN. */

static inline uint16_t scaled(float magnitude, float scale, unsigned sign)
{
    return (uint16_t)((bl_f32_to_bf16(magnitude * scale) & 0x7fff) | sign << 15);
}

void bl_fp8_row_c(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    for (int64_t i = 0; i < cols; i++)
        out[i] = scaled(bl_e4m3_to_f32(codes[i] & 0x7f), bl_e8m0_to_f32(scale[i / 32]), codes[i] >> 7);
}

void bl_fp4_row_c(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    for (int64_t i = 0; i < cols; i++) {
        unsigned code = packed[i / 2] >> (i % 2 * 4) & 15;
        out[i] = scaled(bl_e2m1_to_f32(code & 7), bl_e8m0_to_f32(scale[i / 32]), code >> 3);
    }
}

void bl_fp8_f32_row_c(uint16_t *out, const uint8_t *codes, const void *scale, int64_t cols, int64_t block)
{
    float s = 0;
    for (int64_t i = 0; i < cols; i++) {
        if (i % block == 0) memcpy(&s, (const char *)scale + i / block * 4, 4);
        out[i] = scaled(bl_e4m3_to_f32(codes[i] & 0x7f), s, codes[i] >> 7);
    }
}

static void no_fence(void)
{
}

/* ---- searches */

static int64_t scale_check_c(const uint8_t *scale, int64_t n, uint8_t lo, uint8_t hi)
{
    int64_t i = 0;
    while (i < n && scale[i] >= lo && scale[i] <= hi) i++;
    return i;
}

int64_t bl_f32_scale_check(const void *scale, int64_t n)
{
    int64_t i = 0;
    for (float s; i < n; i++) {
        memcpy(&s, (const char *)scale + 4 * i, 4);
        if (!(s >= BL_F32_SCALE_MIN && s <= BL_F32_SCALE_MAX)) break;
    }
    return i;
}

int64_t bl_f32_scale_inexact(const void *scale, int64_t n)
{
    int64_t i = 0;
    for (uint32_t u; i < n; i++) {
        memcpy(&u, (const char *)scale + 4 * i, 4);
        if (u & 0x7fffff) break;
    }
    return i;
}

static int64_t fp8_nan_c(const uint8_t *codes, int64_t n)
{
    int64_t i = 0;
    while (i < n && (codes[i] & 0x7f) != 0x7f) i++;
    return i;
}

static int64_t f32_nonfinite_c(const void *x, int64_t n)
{
    int64_t i = 0;
    for (; i < n; i++) {
        uint32_t u;
        memcpy(&u, (const char *)x + 4 * i, 4);
        if ((u & 0x7f800000) == 0x7f800000) break;
    }
    return i;
}

static int64_t bf16_nonfinite_c(const void *x, int64_t n)
{
    int64_t i = 0;
    for (; i < n; i++) {
        uint16_t u;
        memcpy(&u, (const char *)x + 2 * i, 2);
        if ((u & 0x7f80) == 0x7f80) break;
    }
    return i;
}

static void canonical_row(uint16_t *row)
{
    for (int i = 0; i < 32; i++) {
        int magnitude = row[i] & 0x7fff;
        if (magnitude == 0) row[i] = 0;
        if (magnitude > 0x7f80) row[i] = 0x7fc0;
    }
}

static void bf16_tile_c(uint16_t *tile, const void *in, int64_t stride, int64_t rows)
{
    const char *row = in;
    for (int64_t r = 0; r < rows; r++, row += stride, tile += 32) {
        memcpy(tile, row, 64);
        canonical_row(tile);
    }
}

void bl_fp4_tiles_c(uint16_t *tiles, const uint8_t *packed, int64_t stride, const uint8_t *scale, int64_t scale_stride, int64_t rows,
                    int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        for (int64_t r = 0; r < rows; r++, tiles += 32) {
            bl_fp4_row_c(tiles, packed + r * stride + 16 * k, scale + r * scale_stride + k, 32);
            canonical_row(tiles);
        }
}

void bl_fp8_tiles_c(uint16_t *tiles, const uint8_t *codes, int64_t stride, const uint8_t *scale, int64_t rows, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        for (int64_t r = 0; r < rows; r++, tiles += 32) {
            bl_fp8_row_c(tiles, codes + r * stride + 32 * k, scale + k, 32);
            canonical_row(tiles);
        }
}

void bl_cast_init(bl_cast_kernels *t, unsigned cpu)
{
    *t = (bl_cast_kernels){
        .name = "c",
        .fp8_row = bl_fp8_row_c,
        .fp4_row = bl_fp4_row_c,
        .fp8_row_stream = bl_fp8_row_c,
        .fp4_row_stream = bl_fp4_row_c,
        .stream_fence = no_fence,
        .fp8_f32_row = bl_fp8_f32_row_c,
        .scale_check = scale_check_c,
        .fp8_nan = fp8_nan_c,
        .f32_nonfinite = f32_nonfinite_c,
        .bf16_nonfinite = bf16_nonfinite_c,
        .bf16_tile = bf16_tile_c,
        .fp4_tiles = bl_fp4_tiles_c,
        .fp8_tiles = bl_fp8_tiles_c,
    };
#if defined(__x86_64__)
    if (cpu & BL_CPU_AVX2) bl_cast_init_avx2(t);
    if (cpu & BL_CPU_AVX512) bl_cast_init_avx512(t);
#elif defined(__aarch64__)
    if (cpu & BL_CPU_NEON) bl_cast_init_neon(t);
#endif
}
