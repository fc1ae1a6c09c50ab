/* vec.h with AVX-512 F, BW, DQ and VL: the names, and what has no namesake at the other level. */
#ifndef BL_KERNELS_X86_VEC_AVX512_H
#define BL_KERNELS_X86_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define BL_LEVEL(name) name##_avx512
#define BL_LEVEL_NAME "avx512"
#define BL_MM(intrinsic) _mm512_##intrinsic

enum { LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __m256i vhalf; /* LANES elements of 16 bits */

static inline vi vi_loadu(const void *x)
{
    return _mm512_loadu_si512(x);
}

static inline vhalf vhalf_load(const void *x)
{
    return _mm256_loadu_si256(x);
}

/* Part v of sixteen: there is one. */
static inline vhalf vhalf_of(__m256i x, int v)
{
    (void)v;
    return x;
}

static inline vi vi_set1_64(int64_t x)
{
    return _mm512_set1_epi64(x);
}

/* nan where x is NaN, else other. */
static inline vi vi_where_nan(vf x, vi nan, vi other)
{
    return _mm512_mask_mov_epi32(other, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/* Bit l: a[l] > b[l]. */
static inline unsigned vf_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

/* The low words of sixteen 32-bit elements. */
static inline __m256i vi_pack(const vi x[1])
{
    return _mm512_cvtepi32_epi16(x[0]);
}

/* Sixteen e2m1 codes, two a byte, as floats: looked up by the low four bits of an element. */
static inline void vf_from_e2m1(vf out[1], const uint8_t *packed)
{
    const vf value = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    __m128i b = _mm_loadl_epi64((const __m128i *)packed);
    vi c = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)));
    out[0] = _mm512_permutexvar_ps(c, value);
}

/* Sixteen lanes to eight: l + (l + 8). */
static inline __m256 vf_fold(const vf x[1])
{
    return _mm512_castps512_ps256(x[0]) + _mm512_extractf32x8_ps(x[0], 1);
}

#endif
