/* One source for every vector level of x86. A file without a level in its name is compiled for each of them; here is the vector
 * type of the level that the compiler was told of, and what the kernels do with it. Instructions are named after the intrinsics;
 * + - * / are the compiler's, element by element and rounded after each. Vectors of integers have no arithmetic operators here,
 * since those would take them for 64-bit numbers; & | ^ are bitwise and right for any. */
#ifndef BL_KERNELS_X86_VEC_H
#define BL_KERNELS_X86_VEC_H

#include <immintrin.h>
#include <stdint.h>

#define BL_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "kernels/x86/vec_avx512.h"
#else
#include "kernels/x86/vec_avx2.h"
#endif

/* The sixteen elements that ops.h sums in lanes, and that are rounded to bf16 at a time, are so many vectors. */
enum { VECS = 16 / LANES };

#define vf_load BL_MM(load_ps)
#define vf_loadu BL_MM(loadu_ps)
#define vf_store BL_MM(store_ps)
#define vf_storeu BL_MM(storeu_ps)
#define vf_set1 BL_MM(set1_ps)
#define vf_zero BL_MM(setzero_ps)
#define vf_min BL_MM(min_ps)
#define vf_max BL_MM(max_ps)
#define vf_sqrt BL_MM(sqrt_ps)
#define vf_fmadd BL_MM(fmadd_ps)
#define vf_fnmadd BL_MM(fnmadd_ps)
#define vf_from_int32 BL_MM(cvtepi32_ps)
#define vf_from_half BL_MM(cvtph_ps)

#define vi_set1_16 BL_MM(set1_epi16)
#define vi_set1_32 BL_MM(set1_epi32)
#define vi_add_16 BL_MM(add_epi16)
#define vi_add_32 BL_MM(add_epi32)
#define vi_sub_32 BL_MM(sub_epi32)
#define vi_shl_32 BL_MM(slli_epi32)
#define vi_shr_32 BL_MM(srli_epi32)
#define vi_sar_32 BL_MM(srai_epi32)
#define vi_madd_16 BL_MM(madd_epi16)     /* pairs of int16, their products added */
#define vi_maddubs_8 BL_MM(maddubs_epi16) /* the same of uint8 with int8 */

/* LANES bf16 as floats. */
BL_INLINE vf vf_from_bf16(vhalf x)
{
    return (vf)vi_shl_32(BL_MM(cvtepu16_epi32)(x), 16);
}

BL_INLINE vf vf_widen(const uint16_t *x)
{
    return vf_from_bf16(vhalf_load(x));
}

/* Nearest even bf16 in the low half of each element; NaN becomes the canonical one of its sign. */
BL_INLINE vi vf_round_bf16(vf x)
{
    vi u = (vi)x, top = vi_shr_32(u, 16), odd = top & vi_set1_32(1);
    vi r = vi_shr_32(vi_add_32(vi_add_32(u, vi_set1_32(0x7fff)), odd), 16);
    return vi_where_nan(x, (top & vi_set1_32(0x8000)) | vi_set1_32(0x7fc0), r);
}

/* Sixteen floats to bf16 at y. */
BL_INLINE void vf_narrow(uint16_t *y, const vf x[VECS])
{
    vi words[VECS];
    for (int v = 0; v < VECS; v++) words[v] = vf_round_bf16(x[v]);
    _mm256_storeu_si256((__m256i *)y, vi_pack(words));
}

/* The tree over sixteen lanes: l + (l + 8), l + (l + 4), l + (l + 2), l + (l + 1). */
BL_INLINE float vf_lane_tree(const vf x[VECS])
{
    __m256 a = vf_fold(x);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Eight bf16 as floats, at every level. */
static inline __m256 vec_widen8(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

/* Eight rows of eight 32-bit elements, transposed in place. */
static inline void vec_transpose8(__m256 r[8])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            __m256d a = _mm256_castps_pd(t[i + k]), b = _mm256_castps_pd(t[i + k + 2]);
            u[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            u[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#endif
