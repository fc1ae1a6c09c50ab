/* What the AVX-512 files of the linear product share: the packed activation, the decoding of weights, the tree of lanes.
 *
 * A vector holds the sixteen lanes in order, so a block of 32 elements is two vectors: its odd and its even elements. */
#ifndef BL_KERNELS_X86_LINEAR_AVX512_H
#define BL_KERNELS_X86_LINEAR_AVX512_H

#include "kernels/x86/linear_panel.h"

#include <immintrin.h>

#define BL_INLINE static inline __attribute__((always_inline))

enum { VEC = 16 }; /* floats of a vector */

/* ---- the packed activation is cut into chunks of K, so that a chunk of many tokens can stay in a cache: chunks ascending, in
 * each the tokens, in each the blocks, in each odd then even: float [chunk][token][block][32]. */
enum { CHUNK = 512 };

static inline int64_t chunk_cols(int64_t cols, int64_t k)
{
    return cols - k < CHUNK ? cols - k : CHUNK;
}

/* Token t's blocks in the chunk that begins at element k. */
static inline const float *packed_at(const float *packed, int64_t tokens, int64_t cols, int64_t k, int64_t t)
{
    return packed + k * tokens + t * chunk_cols(cols, k);
}

/* ---- scales, as the factors that the decoders want: float32 with (byte + bias) as its exponent field */
enum { FP8_BIAS = 8, FP4_BIAS = 1 };

static inline void expand_scales(float *out, const uint8_t *scale, int64_t blocks, int bias)
{
    const __m512i vbias = _mm512_set1_epi32(bias);
    int64_t i = 0;
    for (; i + 16 <= blocks; i += 16) {
        __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(scale + i)));
        _mm512_storeu_ps(out + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(s, vbias), 23)));
    }
    for (; i < blocks; i++) _mm_store_ss(out + i, _mm_castsi128_ps(_mm_cvtsi32_si128((scale[i] + bias) << 23)));
}

static inline int scale_bias(bl_weight_kind kind)
{
    return kind == BL_W_FP4 ? FP4_BIAS : FP8_BIAS;
}

/* ---- decoders: the odd or the even elements of a block; what the calls for both have in common the compiler keeps */

BL_INLINE __m512 decode_bf16(int odd, const uint8_t *codes)
{
    __m512i v = _mm512_loadu_si512(codes);
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(v, 16));
}

BL_INLINE __m512 decode_f32(int odd, const uint8_t *codes)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 a = _mm512_loadu_ps(codes), b = _mm512_loadu_ps(codes + 64);
    return _mm512_permutex2var_ps(a, odd ? _mm512_add_epi32(order, _mm512_set1_epi32(1)) : order, b);
}

/* e4m3 shifted to where float16 keeps exponent and mantissa is the value times 2^-8, subnormal codes included (whose
 * conversion, unlike arithmetic on subnormals, costs nothing extra); factor is 2^(scale + 8 - 127). */
BL_INLINE __m512 decode_fp8(int odd, const uint8_t *codes, __m512 factor)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)codes);
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(odd ? v : _mm256_slli_epi16(v, 8), 1), _mm256_set1_epi16((short)0xbf80));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), factor);
}

/* fp4 times its scale is looked up: half the value of the sixteen codes times factor, 2^(scale + 1 - 127), whose operands are
 * never subnormal. */
BL_INLINE __m512 fp4_values(__m512 factor)
{
    return _mm512_mul_ps(_mm512_setr_ps(0, .25f, .5f, .75f, 1, 1.5f, 2, 3, -0.f, -.25f, -.5f, -.75f, -1, -1.5f, -2, -3), factor);
}

BL_INLINE __m512 decode_fp4(int odd, const uint8_t *codes, __m512 values)
{
    __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes)); /* the permute looks at four bits */
    return _mm512_permutexvar_ps(odd ? _mm512_srli_epi32(v, 4) : v, values);
}

/* Block b of a row; factor: the row's expanded scales, unused by the kinds without. */
BL_INLINE void decode_block(bl_weight_kind kind, __m512 w[2], const uint8_t *codes, int64_t b, const float *factor)
{
    for (int even = 0; even < 2; even++) {
        if (kind == BL_W_BF16) w[even] = decode_bf16(!even, codes + b * 64);
        if (kind == BL_W_F32) w[even] = decode_f32(!even, codes + b * 128);
        if (kind == BL_W_FP8) w[even] = decode_fp8(!even, codes + b * 32, _mm512_set1_ps(factor[b]));
        if (kind == BL_W_FP4) w[even] = decode_fp4(!even, codes + b * 16, fp4_values(_mm512_set1_ps(factor[b])));
    }
}

/* ---- the tree: the sums of eight rows' lanes */

/* l + (l + 8) of two rows, one in each half of the result. */
BL_INLINE __m512 join_rows(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* l + (l + 4) of four rows of which each vector has two: one row in each 128 bits, those of a first. */
BL_INLINE __m512 join_pairs(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

static inline __m256 tree_rows8(const __m512 v[8])
{
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 a = join_pairs(join_rows(v[0], v[2]), join_rows(v[4], v[6]));
    __m512 b = join_pairs(join_rows(v[1], v[3]), join_rows(v[5], v[7]));
    /* l + (l + 2): in each 128 bits two lanes of a's and two of b's row */
    __m512 c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    /* l + (l + 1): in each 128 bits the sum of a's and of b's row, twice */
    __m512 d = _mm512_add_ps(_mm512_shuffle_ps(c, c, 0x88), _mm512_shuffle_ps(c, c, 0xdd));
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, d));
}

/* ---- the regimes; arguments as rows() of linear.h */

size_t bl_linear_packed_bytes_avx512(int64_t tokens, int64_t cols);
void bl_linear_pack_avx512(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols);

/* 1..GEMV_TOKENS tokens: each code is decoded in registers and used at once. */
enum { GEMV_TOKENS = 6 };
size_t bl_linear_gemv_scratch_avx512(int64_t cols);
void bl_linear_gemv_avx512(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0,
                           int64_t row1, float *scratch);

/* ---- many tokens, in steps that the bf16 variant shares. Panels are of ROWS rows by a chunk of K, whose rows past n repeat the
 * last; lanes are [token][row][lane] of TOKENS tokens at most, whose x at K = 5120 stays in a second-level cache of 1 MB. */
enum { ROWS = PANEL_ROWS, TOKENS = 48, STEP_TOKENS = 6 };
enum { LANES_FLOATS = TOKENS * ROWS * VEC, PANEL_FLOATS = ROWS * CHUNK, FACTOR_FLOATS = CHUNK / BL_BLOCK };

static inline panel_ahead ask_for(const bl_matrix *w, int64_t row, int64_t k, int64_t T)
{
    return panel_ask_for(w, row, k, CHUNK, (T + STEP_TOKENS - 1) / STEP_TOKENS);
}

/* lanes = (first) or += the chunk at element k of rows row..row + n of w times T tokens from t0 on; panel PANEL_FLOATS, factor
 * FACTOR_FLOATS of scratch. */
void bl_linear_chunk_avx512(float *lanes, const float *packed, int64_t tokens, int64_t t0, int64_t T, const bl_matrix *w,
                            int64_t row, int64_t n, int64_t k, float *panel, float *factor);
/* y[t * ldy + r] = the tree of lanes, T tokens x n rows. */
void bl_linear_reduce_avx512(float *y, int64_t ldy, const float *lanes, int64_t T, int64_t n);

size_t bl_linear_gemm_scratch_avx512(void);
void bl_linear_gemm_avx512(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0,
                           int64_t row1, float *scratch);

#endif
