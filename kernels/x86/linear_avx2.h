/* What the AVX2 files of the linear product share: the packed activation, the decoding of weights, the tree of lanes.
 *
 * A vector holds eight of the sixteen lanes in the order 0 2 4 6 1 3 5 7 (half 0) or 8 10 12 14 9 11 13 15 (half 1): that is how
 * the cheapest split of packed fp4 delivers them, and lanes meet only in the final tree. A block of 32 elements is four vectors:
 * half 0 odd, half 0 even, half 1 odd, half 1 even elements. */
#ifndef BL_KERNELS_X86_LINEAR_AVX2_H
#define BL_KERNELS_X86_LINEAR_AVX2_H

#include "kernels/linear_variants.h"

#include <immintrin.h>

/* The packed activation is cut into chunks of K, so that a chunk of many tokens can stay in a cache: chunks ascending, in each
 * half 0 then half 1, in each the tokens, in each the blocks, in each odd then even: float [chunk][half][token][block][16]. */
enum { CHUNK = 512 };

static inline int64_t chunk_cols(int64_t cols, int64_t k)
{
    return cols - k < CHUNK ? cols - k : CHUNK;
}

/* Token t's blocks of one half in the chunk that begins at element k. */
static inline const float *packed_at(const float *packed, int64_t tokens, int64_t cols, int64_t k, int half, int64_t t)
{
    int64_t n = chunk_cols(cols, k) / 2;
    return packed + k * tokens + (half * tokens + t) * n;
}

/* ---- scales, as the factors that the decoders want: float32 of (byte + bias) as an exponent, never subnormal */
enum { FP8_BIAS = 8, FP4_BIAS = 1 };

static inline void expand_scales(float *out, const uint8_t *scale, int64_t blocks, int bias)
{
    const __m256i vbias = _mm256_set1_epi32(bias);
    int64_t i = 0;
    for (; i + 8 <= blocks; i += 8) {
        __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(scale + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(s, vbias), 23)));
    }
    for (; i < blocks; i++) _mm_store_ss(out + i, _mm_castsi128_ps(_mm_cvtsi32_si128((scale[i] + bias) << 23)));
}

/* ---- decoders: one block of 32 elements to the four vectors of a block */

static inline void split_pairs(__m256 *odd, __m256 *even, __m256i pairs)
{
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    __m256i v = _mm256_permutevar8x32_epi32(pairs, order);
    *odd = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

static inline void decode_bf16(__m256 w[4], const uint8_t *codes)
{
    split_pairs(&w[0], &w[1], _mm256_loadu_si256((const __m256i *)codes));
    split_pairs(&w[2], &w[3], _mm256_loadu_si256((const __m256i *)(codes + 32)));
}

static inline void decode_f32(__m256 w[4], const uint8_t *codes)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    for (int half = 0; half < 2; half++) {
        const float *p = (const float *)(const void *)(codes + 64 * half);
        __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
        w[2 * half] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0xdd), order);
        w[2 * half + 1] = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0x88), order);
    }
}

/* e4m3 shifted to where float16 keeps exponent and mantissa is the value times 2^-8, subnormal codes included; the factor
 * 2^(scale + 8 - 127) restores it. */
static inline __m256 from_half(__m128i h, __m256 factor)
{
    return _mm256_mul_ps(_mm256_cvtph_ps(h), factor);
}

static inline void decode_fp8(__m256 w[4], const uint8_t *codes, __m256 factor)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, /**/ 0, 1, 4, 5, 8, 9, 12, 13, 2,
                                           3, 6, 7, 10, 11, 14, 15);
    const __m256i mask = _mm256_set1_epi16((short)0xbf80);
    __m256i v = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)codes), order);
    __m256i odd = _mm256_and_si256(_mm256_srai_epi16(v, 1), mask);
    __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 1), mask);
    w[0] = from_half(_mm256_castsi256_si128(odd), factor);
    w[1] = from_half(_mm256_castsi256_si128(even), factor);
    w[2] = from_half(_mm256_extracti128_si256(odd, 1), factor);
    w[3] = from_half(_mm256_extracti128_si256(even, 1), factor);
}

/* fp4 is decoded for two rows at once, row a in the low and row b in the high half of each register: w[2g] are the odd and
 * w[2g + 1] the even elements of lanes 0 2 4 6 (g = 0), 1 3 5 7, 8 10 12 14, 9 11 13 15 of both. The tables give the two upper
 * bytes of half the value as float32; factor is 2^(scale + 1 - 127), of row a in its low and of row b in its high half. */
static inline void split_words(__m256 *first, __m256 *second, __m256i words, __m256 factor)
{
    *first = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)), factor);
    *second = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000))), factor);
}

static inline void decode_fp4_pair(__m256 w[8], const uint8_t *a, const uint8_t *b, __m256 factor)
{
    const __m256i upper = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3e, 0x3f, 0x3f, 0x3f, 0x3f, 0x40, 0x40, -128, (char)0xbe, (char)0xbf, (char)0xbf, (char)0xbf, (char)0xbf,
                      (char)0xc0, (char)0xc0));
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, 0, 0x40, -128, (char)0xc0, 0, 0x40, 0, -128, 0, 0x40,
                                                                    -128, (char)0xc0, 0, 0x40));
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                        _mm_loadu_si128((const __m128i *)b), 1);
    for (int odd = 0; odd < 2; odd++) {
        __m256i n = _mm256_and_si256(odd ? _mm256_srli_epi16(v, 4) : v, nibble);
        __m256i hi = _mm256_shuffle_epi8(upper, n), lo = _mm256_shuffle_epi8(lower, n);
        split_words(&w[1 - odd], &w[3 - odd], _mm256_unpacklo_epi8(lo, hi), factor);
        split_words(&w[5 - odd], &w[7 - odd], _mm256_unpackhi_epi8(lo, hi), factor);
    }
}

static inline __m256 pair_factor(const float *a, const float *b)
{
    return _mm256_blend_ps(_mm256_broadcast_ss(a), _mm256_broadcast_ss(b), 0xf0);
}

/* ---- the tree. v[r] holds lanes l + (l + 8) of row r; returns the sums of rows 0..7. */
static inline __m256 tree_rows8(const __m256 v[8])
{
    __m256 p[4], q[2];
    for (int i = 0; i < 4; i++) /* l + (l + 4) */
        p[i] = _mm256_add_ps(_mm256_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44), _mm256_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++) /* l + (l + 2) */
        q[i] = _mm256_add_ps(_mm256_shuffle_ps(p[2 * i], p[2 * i + 1], 0x88), _mm256_shuffle_ps(p[2 * i], p[2 * i + 1], 0xdd));
    return _mm256_add_ps(_mm256_permute2f128_ps(q[0], q[1], 0x20), _mm256_permute2f128_ps(q[0], q[1], 0x31)); /* l + (l + 1) */
}

/* ---- the two regimes; arguments as rows() of linear.h */

/* 1..GEMV_TOKENS tokens: each code is decoded in registers and used at once. */
enum { GEMV_TOKENS = 3 };
size_t bl_linear_gemv_scratch_avx2(int64_t cols);
void bl_linear_gemv_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch);
/* Any number of tokens: rows are decoded a chunk at a time into scratch. */
size_t bl_linear_gemm_scratch_avx2(int64_t tokens, int64_t cols);
void bl_linear_gemm_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch);

#endif
