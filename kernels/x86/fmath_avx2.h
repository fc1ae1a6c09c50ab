/* kernels/fmath.h on eight floats: the same operations in the same order, so the same bits. */
#ifndef BL_KERNELS_X86_FMATH_AVX2_H
#define BL_KERNELS_X86_FMATH_AVX2_H

#include "kernels/fmath.h"

#include <immintrin.h>

static inline __m256 bl_exp_avx2(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(BL_ROUND_MAGIC), one = _mm256_set1_ps(1.0f);
    x = _mm256_min_ps(_mm256_set1_ps(BL_EXP_HIGH), x); /* a NaN in the second operand passes */
    x = _mm256_max_ps(_mm256_set1_ps(BL_EXP_LOW), x);
    __m256 z = _mm256_fmadd_ps(x, _mm256_set1_ps(BL_LOG2E), magic), n = _mm256_sub_ps(z, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-BL_LN2), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-BL_LN2_REST), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(BL_EXP_C6), r, _mm256_set1_ps(BL_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BL_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BL_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BL_EXP_C2));
    p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), one);
    __m256i k = _mm256_sub_epi32(_mm256_castps_si256(z), _mm256_castps_si256(magic)), half = _mm256_srai_epi32(k, 1);
    __m256i bias = _mm256_set1_epi32(127);
    __m256i s0 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i s1 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(s0)), _mm256_castsi256_ps(s1));
}

static inline __m256 bl_sigmoid_avx2(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 e = bl_exp_avx2(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
    return _mm256_div_ps(one, _mm256_add_ps(one, e));
}

static inline __m256 bl_log1p_unit_avx2(__m256 u)
{
    __m256 s = _mm256_div_ps(u, _mm256_add_ps(_mm256_set1_ps(2.0f), u)), z = _mm256_mul_ps(s, s);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(BL_LOG1P_C3), z, _mm256_set1_ps(BL_LOG1P_C2));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(BL_LOG1P_C1));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(BL_LOG1P_C0));
    return _mm256_fnmadd_ps(s, _mm256_fnmadd_ps(z, p, u), u);
}

static inline __m256 bl_sqrt_softplus_avx2(__m256 x)
{
    __m256 tail = bl_log1p_unit_avx2(bl_exp_avx2(_mm256_or_ps(x, _mm256_set1_ps(-0.0f))));
    return _mm256_sqrt_ps(_mm256_add_ps(tail, _mm256_max_ps(x, _mm256_setzero_ps())));
}

#endif
