/* vec.h with AVX2, FMA and F16C: the names, and what has no namesake at the other level. */
#ifndef BL_KERNELS_X86_VEC_AVX2_H
#define BL_KERNELS_X86_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define BL_LEVEL(name) name##_avx2
#define BL_LEVEL_NAME "avx2"
#define BL_MM(intrinsic) _mm256_##intrinsic

enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m128i vhalf; /* LANES elements of 16 bits */

static inline vi vi_loadu(const void *x)
{
    return _mm256_loadu_si256(x);
}

static inline vhalf vhalf_load(const void *x)
{
    return _mm_loadu_si128(x);
}

/* Part v of sixteen. */
static inline vhalf vhalf_of(__m256i x, int v)
{
    return v ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x);
}

static inline vi vi_set1_64(int64_t x)
{
    return _mm256_set1_epi64x(x);
}

/* nan where x is NaN, else other. */
static inline vi vi_where_nan(vf x, vi nan, vi other)
{
    return _mm256_blendv_epi8(other, nan, (vi)_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Bit l: a[l] > b[l]. */
static inline unsigned vf_greater(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

/* The low words of sixteen 32-bit elements, whose high ones are zero. */
static inline __m256i vi_pack(const vi x[2])
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(x[0], x[1]), 0xd8);
}

/* Sixteen e2m1 codes, two a byte, as floats: each one's bf16 is looked up byte by byte. */
static inline void vf_from_e2m1(vf out[2], const uint8_t *packed)
{
    const __m128i low = _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
    const __m128i high = _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64);
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i b = _mm_loadl_epi64((const __m128i *)packed);
    __m128i c = _mm_unpacklo_epi8(_mm_and_si128(b, nibble), _mm_and_si128(_mm_srli_epi16(b, 4), nibble));
    __m128i l = _mm_shuffle_epi8(low, c), h = _mm_shuffle_epi8(high, c);
    out[0] = (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, h)), 16);
    out[1] = (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_unpackhi_epi8(l, h)), 16);
}

/* Sixteen lanes to eight: l + (l + 8). */
static inline __m256 vf_fold(const vf x[2])
{
    return x[0] + x[1];
}

#endif
