/* kernels/fmath.h on sixteen floats: the same operations in the same order, so the same bits. */
#ifndef BL_KERNELS_X86_FMATH_AVX512_H
#define BL_KERNELS_X86_FMATH_AVX512_H

#include "kernels/fmath.h"

#include <immintrin.h>

static inline __m512 bl_exp_avx512(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(BL_ROUND_MAGIC), one = _mm512_set1_ps(1.0f);
    x = _mm512_min_ps(_mm512_set1_ps(BL_EXP_HIGH), x); /* a NaN in the second operand passes */
    x = _mm512_max_ps(_mm512_set1_ps(BL_EXP_LOW), x);
    __m512 z = _mm512_fmadd_ps(x, _mm512_set1_ps(BL_LOG2E), magic), n = _mm512_sub_ps(z, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-BL_LN2), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-BL_LN2_REST), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(BL_EXP_C6), r, _mm512_set1_ps(BL_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BL_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BL_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BL_EXP_C2));
    p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), one);
    __m512i k = _mm512_sub_epi32(_mm512_castps_si512(z), _mm512_castps_si512(magic)), half = _mm512_srai_epi32(k, 1);
    __m512i bias = _mm512_set1_epi32(127);
    __m512i s0 = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    __m512i s1 = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(k, half), bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(s0)), _mm512_castsi512_ps(s1));
}

static inline __m512 bl_sigmoid_avx512(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 e = bl_exp_avx512(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
    return _mm512_div_ps(one, _mm512_add_ps(one, e));
}

#endif
