/* Packed cache rows back to values, thirty-two at a time: to bf16, and to the floats that attention multiplies. A NaN scale
 * makes a NaN group. */
#include "kernels/x86/ops_avx512.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef enum as { AS_BF16, AS_FLOAT } as; /* a constant at every call */

/* Sixteen values, exact in bf16, as elements i.. of x. */
INLINE void put(void *x, int64_t i, __m512 v, as type)
{
    if (type == AS_FLOAT) _mm512_storeu_ps((float *)x + i, v);
    else _mm256_storeu_si256((__m256i *)((uint16_t *)x + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)));
}

/* pack never makes scale byte 0. */
INLINE __m512 e8m0(uint8_t scale)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32(scale == 255 ? 0x7fc00000 : scale << 23));
}

/* An fp16 with a code's exponent and mantissa on top is its value times 2^-8, subnormals included. */
INLINE void window_row(void *x, const uint8_t *row, int64_t d, as type)
{
    const __m512i field = _mm512_set1_epi16((short)0xbf80);
    const __m512 up = _mm512_set1_ps(256.0f);
    for (int64_t i = 0; i < d; i += 32) {
        __m512 s = e8m0(row[d + i / 32]); /* not times 256: the largest scales would overflow */
        __m512i c = _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(row + i))), 8);
        c = _mm512_and_si512(_mm512_srai_epi16(c, 1), field);
        __m512 lo = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(c)), up);
        __m512 hi = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(c, 1)), up);
        put(x, i, _mm512_mul_ps(lo, s), type);
        put(x, i + 16, _mm512_mul_ps(hi, s), type);
    }
}

/* Thirty-two e2m1 codes, looked up as bf16; the two halves over their scales. */
INLINE void pairs32(void *x, int64_t i, const uint8_t *packed, __m512 scale0, __m512 scale1, as type)
{
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, (short)0x8000, (short)0xbf00, (short)0xbf80, (short)0xbfc0,
        (short)0xc000, (short)0xc040, (short)0xc080, (short)0xc0c0));
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i b = _mm_loadu_si128((const __m128i *)packed);
    __m128i even = _mm_and_si128(b, nibble), odd = _mm_and_si128(_mm_srli_epi16(b, 4), nibble);
    __m256i c = _mm256_setr_m128i(_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
    __m512i v = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(c), table);
    __m512i v0 = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)), 16);
    __m512i v1 = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)), 16);
    put(x, i, _mm512_mul_ps(_mm512_castsi512_ps(v0), scale0), type);
    put(x, i + 16, _mm512_mul_ps(_mm512_castsi512_ps(v1), scale1), type);
}

/* The e4m3 scales of up to sixteen groups. */
INLINE void latent_scales(float out[16], const uint8_t *codes, int64_t n)
{
    __mmask16 live = (__mmask16)(n < 16 ? (1 << n) - 1 : 0xffff);
    __m256i c = _mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(live, codes));
    __m512 v = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(c, 7)), _mm512_set1_ps(256.0f));
    __mmask16 nan = _mm256_cmpeq_epi16_mask(c, _mm256_set1_epi16(0x7f));
    _mm512_storeu_ps(out, _mm512_mask_mov_ps(v, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000))));
}

INLINE void latent_row(void *x, const uint8_t *row, int64_t d, as type)
{
    float scale[16];
    for (int64_t g = 0; g < d / 16; g += 2) {
        if (g % 16 == 0) latent_scales(scale, row + d / 2 + g, d / 16 - g);
        pairs32(x, 16 * g, row + 8 * g, _mm512_set1_ps(scale[g % 16]), _mm512_set1_ps(scale[g % 16 + 1]), type);
    }
}

void bl_window_row_f32_avx512(float *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_FLOAT);
}

void bl_latent_row_f32_avx512(float *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_FLOAT);
}

static void unpack_window_avx512(uint16_t *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_BF16);
}

static void unpack_latent_avx512(uint16_t *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_BF16);
}

void bl_op_rows_init_avx512(bl_op_kernels *t)
{
    t->unpack_window = unpack_window_avx512;
    t->unpack_latent = unpack_latent_avx512;
}
