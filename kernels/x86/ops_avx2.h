/* What the AVX2 variants of the model's operations share. bf16 travel as eight or sixteen at a time in natural order. */
#ifndef BL_KERNELS_X86_OPS_AVX2_H
#define BL_KERNELS_X86_OPS_AVX2_H

#include "kernels/ops_variants.h"

#include <immintrin.h>

/* Eight bf16 as floats. */
static inline __m256 bl_widen_avx2(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

/* Nearest even bf16 in the low half of each element; NaN becomes the canonical one of its sign. */
static inline __m256i bl_round_bf16_avx2(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_or_si256(_mm256_and_si256(top, _mm256_set1_epi32(0x8000)), _mm256_set1_epi32(0x7fc0));
    return _mm256_blendv_epi8(r, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

/* Sixteen floats to bf16 at y. */
static inline void bl_narrow_avx2(uint16_t *y, __m256 lo, __m256 hi)
{
    __m256i p = _mm256_packus_epi32(bl_round_bf16_avx2(lo), bl_round_bf16_avx2(hi));
    _mm256_storeu_si256((__m256i *)y, _mm256_permute4x64_epi64(p, 0xd8));
}

/* The tree over lanes 0-7 in lo and 8-15 in hi. */
static inline float bl_lane_tree_avx2(__m256 lo, __m256 hi)
{
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Eight rows of eight 32-bit elements, transposed in place. */
static inline void bl_transpose8_avx2(__m256 r[8])
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

/* Each overlays its entries. */
void bl_op_rows_init_avx2(bl_op_kernels *t);
void bl_op_round_init_avx2(bl_op_kernels *t);
void bl_op_norm_init_avx2(bl_op_kernels *t);
void bl_op_streams_init_avx2(bl_op_kernels *t);
void bl_op_attention_init_avx2(bl_op_kernels *t);
void bl_op_index_init_avx2(bl_op_kernels *t);
void bl_op_experts_init_avx2(bl_op_kernels *t);
void bl_op_engram_init_avx2(bl_op_kernels *t);

/* Sum of squares of n bf16, n a multiple of 16. */
float bl_sum_squares_avx2(const uint16_t *x, int64_t n);

/* The rows of ops_rows_avx2.c as floats: what attention multiplies. */
void bl_window_row_f32_avx2(float *x, const uint8_t *row, int64_t d);
void bl_latent_row_f32_avx2(float *x, const uint8_t *row, int64_t d);

#endif
