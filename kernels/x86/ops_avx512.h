/* What the AVX-512 variants of the model's operations share. */
#ifndef BL_KERNELS_X86_OPS_AVX512_H
#define BL_KERNELS_X86_OPS_AVX512_H

#include "kernels/ops_variants.h"

#include <immintrin.h>

/* Sixteen bf16 as floats. */
static inline __m512 bl_widen_avx512(const uint16_t *x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16));
}

/* Nearest even bf16 in the low half of each element; NaN becomes the canonical one of its sign. */
static inline __m512i bl_round_bf16_avx512(__m512 x)
{
    __m512i u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    __m512i nan = _mm512_or_si512(_mm512_and_si512(top, _mm512_set1_epi32(0x8000)), _mm512_set1_epi32(0x7fc0));
    return _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/* Sixteen floats to bf16 at y. */
static inline void bl_narrow_avx512(uint16_t *y, __m512 x)
{
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtepi32_epi16(bl_round_bf16_avx512(x)));
}

/* The tree over sixteen lanes. */
static inline float bl_lane_tree_avx512(__m512 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Each overlays its entries. */
void bl_op_rows_init_avx512(bl_op_kernels *t);
void bl_op_attention_init_avx512(bl_op_kernels *t);
void bl_op_index_init_avx512(bl_op_kernels *t);

/* The rows of ops_rows_avx512.c as floats: what attention multiplies. */
void bl_window_row_f32_avx512(float *x, const uint8_t *row, int64_t d);
void bl_latent_row_f32_avx512(float *x, const uint8_t *row, int64_t d);

#endif
