/* Packed cache rows back to values: to bf16, and to the floats that attention multiplies. A NaN scale makes a NaN group. */
#include "kernels/x86/ops_avx2.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef enum as { AS_BF16, AS_FLOAT } as; /* a constant at every call */

/* Sixteen values, exact in bf16, as elements i.. of x. */
INLINE void put(void *x, int64_t i, __m256 lo, __m256 hi, as type)
{
    if (type == AS_FLOAT) {
        _mm256_storeu_ps((float *)x + i, lo);
        _mm256_storeu_ps((float *)x + i + 8, hi);
        return;
    }
    __m256i a = _mm256_srli_epi32(_mm256_castps_si256(lo), 16), b = _mm256_srli_epi32(_mm256_castps_si256(hi), 16);
    _mm256_storeu_si256((__m256i *)((uint16_t *)x + i), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}

/* pack never makes scale byte 0. */
INLINE __m256 e8m0(uint8_t scale)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32(scale == 255 ? 0x7fc00000 : scale << 23));
}

/* An fp16 with a code's exponent and mantissa on top is its value times 2^-8, and F16C takes subnormal ones at full speed. */
INLINE void window_row(void *x, const uint8_t *row, int64_t d, as type)
{
    const __m256i field = _mm256_set1_epi16((short)0xbf80);
    const __m256 up = _mm256_set1_ps(256.0f);
    for (int64_t i = 0; i < d; i += 16) {
        __m256 s = e8m0(row[d + i / 32]); /* not times 256: the largest scales would overflow */
        __m256i c = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(row + i))), 8);
        c = _mm256_and_si256(_mm256_srai_epi16(c, 1), field);
        __m256 lo = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(c)), up);
        __m256 hi = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(c, 1)), up);
        put(x, i, _mm256_mul_ps(lo, s), _mm256_mul_ps(hi, s), type);
    }
}

/* Sixteen e2m1 codes over scale: each nibble's bf16 is looked up byte by byte. */
INLINE void pairs16(void *x, int64_t i, const uint8_t *packed, __m256 scale, as type)
{
    const __m128i low = _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
    const __m128i high = _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64);
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i b = _mm_loadl_epi64((const __m128i *)packed);
    __m128i c = _mm_unpacklo_epi8(_mm_and_si128(b, nibble), _mm_and_si128(_mm_srli_epi16(b, 4), nibble));
    __m128i l = _mm_shuffle_epi8(low, c), h = _mm_shuffle_epi8(high, c);
    __m256i v0 = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, h)), 16);
    __m256i v1 = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpackhi_epi8(l, h)), 16);
    put(x, i, _mm256_mul_ps(_mm256_castsi256_ps(v0), scale), _mm256_mul_ps(_mm256_castsi256_ps(v1), scale), type);
}

/* The e4m3 scales of up to eight groups. */
INLINE void latent_scales(float out[8], const uint8_t *codes, int64_t n)
{
    uint64_t eight = 0;
    memcpy(&eight, codes, n < 8 ? (size_t)n : 8);
    __m128i c = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)eight));
    __m256 v = _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(c, 7)), _mm256_set1_ps(256.0f));
    __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(c, _mm_set1_epi16(0x7f)));
    __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(out, _mm256_blendv_ps(v, quiet, _mm256_castsi256_ps(nan)));
}

INLINE void latent_row(void *x, const uint8_t *row, int64_t d, as type)
{
    float scale[8];
    for (int64_t g = 0; g < d / 16; g++) {
        if (g % 8 == 0) latent_scales(scale, row + d / 2 + g, d / 16 - g);
        pairs16(x, 16 * g, row + 8 * g, _mm256_set1_ps(scale[g % 8]), type);
    }
}

void bl_window_row_f32_avx2(float *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_FLOAT);
}

void bl_latent_row_f32_avx2(float *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_FLOAT);
}

static void unpack_window_avx2(uint16_t *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_BF16);
}

static void unpack_latent_avx2(uint16_t *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_BF16);
}

static void unpack_index_avx2(uint16_t *x, const uint8_t *row, int64_t d)
{
    for (int64_t i = 0; i < d; i += 16) pairs16(x, i, row + i / 2, e8m0(row[d / 2 + i / 32]), AS_BF16);
}

void bl_op_rows_init_avx2(bl_op_kernels *t)
{
    t->unpack_window = unpack_window_avx2;
    t->unpack_latent = unpack_latent_avx2;
    t->unpack_index = unpack_index_avx2;
}
