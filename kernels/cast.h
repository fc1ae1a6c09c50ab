/* Number codecs and the exact casts of weights. Formats and semantics: kernels/README.md ("Numbers").
 *
 * e4m3 = E4M3FN (bias 7, max 448, 0x7F/0xFF NaN), e5m2, e2m1 (bit 3 sign, code 8 is -0), e8m0 (byte b = 2^(b-127); 0 is
 * 2^-127, 255 NaN), bf16. All roundings to nearest even; NaN stays NaN. */
#ifndef BL_KERNELS_CAST_H
#define BL_KERNELS_CAST_H

#include <stddef.h>
#include <stdint.h>

/* ---- scalar codecs: the definitions */
float bl_e4m3_to_f32(uint8_t code);
float bl_e5m2_to_f32(uint8_t code);
float bl_e2m1_to_f32(uint8_t code); /* low 4 bits */
float bl_e8m0_to_f32(uint8_t code);
static inline float bl_bf16_to_f32(uint16_t b)
{
    union { uint32_t u; float f; } v = {.u = (uint32_t)b << 16};
    return v.f;
}
uint16_t bl_f32_to_bf16(float x);
uint8_t bl_f32_to_e4m3(float x); /* clamps to +-448 first (saturating); NaN -> 0x7F | sign */
uint8_t bl_f32_to_e5m2(float x); /* saturates to +-57344; NaN -> 0x7F | sign */
/* Clamps to +-6; ties to even; keeps the sign of zero. NaN, which the format lacks, gives 0 with its sign: refuse it before. */
uint8_t bl_f32_to_e2m1(float x);
/* Byte of 2^ceil(log2 r), r > 0 finite, from the bits: 1 for every subnormal r, 254 (2^127) for everything above 2^126, so
 * that 255 is never returned. */
uint8_t bl_e8m0_ceil(float r);

/* ---- casts to bf16: one row stripe. Exact for scale bytes in the ranges below. Outside them the result is still defined,
 * and the same in every variant: the exact product rounded to nearest even, infinite from 2^128 on; a caller that promises
 * exactness refuses such bytes first (scale_check). NaN (code 0x7F/0xFF or scale 255) becomes 0x7FC0 with the code's sign;
 * zeros keep their sign. Any alignment; out never overlaps in. */
typedef struct bl_cast_kernels {
    const char *name;
    /* cols e4m3 codes of one row, scale byte scale[i / 32] for element i (cols need not be a multiple of 32). */
    void (*fp8_row)(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);
    /* cols (even) e2m1 codes of one row packed two a byte, scale byte scale[i / 32]. */
    void (*fp4_row)(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols);
    /* The same bits, stored past the caches: for bulk casts in memory whose output is larger than the last-level cache and is
     * not read back soon (ordinary stores first read every line they fill). A tile that is hashed or written next wants the
     * functions above. Takes effect when out is 64-byte aligned. Call stream_fence, in the thread that cast, before another
     * thread may read the output. */
    void (*fp8_row_stream)(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);
    void (*fp4_row_stream)(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols);
    void (*stream_fence)(void);
    /* cols e4m3 codes of one row, float32 scale[i / block] for element i; scale at any alignment, block >= 1. The result is
     * the float32 product rounded to nearest even, rounded to bf16 likewise: exact for scales that are powers of two in
     * [BL_F32_SCALE_MIN, BL_F32_SCALE_MAX], one rounding of either kind (at most half a unit of bf16, but for double rounding)
     * for others. A caller refuses scales that bl_f32_scale_check finds. */
    void (*fp8_f32_row)(uint16_t *out, const uint8_t *codes, const void *scale, int64_t cols, int64_t block);
    /* Are all n scale bytes inside [lo, hi], lo <= hi? Returns the index of the first that is not, n when all are. */
    int64_t (*scale_check)(const uint8_t *scale, int64_t n, uint8_t lo, uint8_t hi);
    /* Index of the first e4m3 NaN code (0x7F, 0xFF) among n, n when none. */
    int64_t (*fp8_nan)(const uint8_t *codes, int64_t n);
    /* Index of the first fp32 that is NaN or infinite, n when none. x any alignment. */
    int64_t (*f32_nonfinite)(const void *x, int64_t n);
    int64_t (*bf16_nonfinite)(const void *x, int64_t n);
    /* A tile as it is digested: rows of 32 bf16 values, stride bytes apart, any alignment, to tile [rows, 32] contiguous, with
     * -0 as +0 and any NaN as 0x7FC0. */
    void (*bf16_tile)(uint16_t *tile, const void *in, int64_t stride, int64_t rows);
    /* count tiles beside each other from e2m1 codes: rows of count * 16 packed bytes, stride bytes apart, with rows of count
     * scale bytes, scale_stride bytes apart, to tiles [count, rows, 32] in the same canonical form. */
    void (*fp4_tiles)(uint16_t *tiles, const uint8_t *packed, int64_t stride, const uint8_t *scale, int64_t scale_stride, int64_t rows,
                      int64_t count);
    /* The same from e4m3 codes: rows of count * 32 bytes, stride apart, with one scale byte for each tile. */
    void (*fp8_tiles)(uint16_t *tiles, const uint8_t *codes, int64_t stride, const uint8_t *scale, int64_t rows, int64_t count);
} bl_cast_kernels;

void bl_cast_init(bl_cast_kernels *t, unsigned cpu);

/* Scale bytes for which every code casts exactly: e4m3 3..246, e2m1 0..252. */
enum { BL_FP8_SCALE_MIN = 3, BL_FP8_SCALE_MAX = 246, BL_FP4_SCALE_MIN = 0, BL_FP4_SCALE_MAX = 252 };

/* ---- float32 scales of e4m3 codes. The range is that of the bytes above; no sound weight has a scale outside it. */
#define BL_F32_SCALE_MIN 0x1p-124f
#define BL_F32_SCALE_MAX 0x1p119f
/* Index of the first of n float32 scales, at any alignment, that is outside the range (zero, negative and NaN are); n when none. */
int64_t bl_f32_scale_check(const void *scale, int64_t n);
/* Index of the first of n float32 scales inside the range that is no power of two, n when all are. */
int64_t bl_f32_scale_inexact(const void *scale, int64_t n);

#endif
