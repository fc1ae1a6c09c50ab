/* What the AVX2 files of the linear product share: the packed activation, the decoding of weights, the tree of lanes.
 *
 * A vector holds eight of the sixteen lanes: half 0 is lanes 0 2 4 6 8 10 12 14, half 1 the odd ones. That is how the cheapest
 * split of 16-bit words delivers them, and lanes meet only in the final tree. A block of 32 elements is four vectors: half 0 odd,
 * half 0 even, half 1 odd, half 1 even elements. */
#ifndef BL_KERNELS_X86_LINEAR_AVX2_H
#define BL_KERNELS_X86_LINEAR_AVX2_H

#include "kernels/linear_variants.h"

#include <immintrin.h>

/* The packed activation is cut into chunks of K, so that a chunk of many tokens can stay in a cache: chunks ascending, in each
 * half 0 then half 1, in each the tokens, in each the blocks, in each odd then even: float [chunk][half][token][block][16]. */
enum { CHUNK = 1024 };

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

#define BL_INLINE static inline __attribute__((always_inline))

/* ---- fp8 scales, as the factors that the decoder wants: float32 with the byte as its exponent field */
static inline void expand_scales(float *out, const uint8_t *scale, int64_t blocks)
{
    int64_t i = 0;
    for (; i + 8 <= blocks; i += 8) {
        __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(scale + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(s, 23)));
    }
    for (; i < blocks; i++) _mm_store_ss(out + i, _mm_castsi128_ps(_mm_cvtsi32_si128(scale[i] << 23)));
}

/* ---- decoders. Each takes the odd or the even elements of a block of 32 and gives their two halves w[0], w[1]; what the calls
 * for odd and even have in common the compiler keeps. */

/* Words of 16 bits that are the upper halves of float32, lane l in word l: half 0 is in the low word of each pair. */
BL_INLINE __m256 low_words(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

BL_INLINE __m256 high_words(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

BL_INLINE __m256i load_two(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

BL_INLINE void decode_bf16(int odd, __m256 w[2], const uint8_t *codes)
{
    __m256 a = _mm256_castsi256_ps(load_two(codes, codes + 32)), b = _mm256_castsi256_ps(load_two(codes + 16, codes + 48));
    __m256i first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), second = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    w[0] = odd ? high_words(first) : low_words(first);
    w[1] = odd ? high_words(second) : low_words(second);
}

BL_INLINE void decode_f32(int odd, __m256 w[2], const uint8_t *codes)
{
    __m256 c[4];
    for (int i = 0; i < 4; i++) c[i] = _mm256_castsi256_ps(load_two(codes + 16 * i, codes + 16 * i + 64));
    /* lanes 0 and 2, 4 and 6, 1 and 3, 5 and 7 of either 128 bits, even elements first */
    __m256 a = _mm256_unpacklo_ps(c[0], c[1]), b = _mm256_unpacklo_ps(c[2], c[3]);
    __m256 d = _mm256_unpackhi_ps(c[0], c[1]), e = _mm256_unpackhi_ps(c[2], c[3]);
    w[0] = odd ? _mm256_shuffle_ps(a, b, 0xee) : _mm256_shuffle_ps(a, b, 0x44);
    w[1] = odd ? _mm256_shuffle_ps(d, e, 0xee) : _mm256_shuffle_ps(d, e, 0x44);
}

/* e4m3 shifted to where float32 keeps exponent and mantissa is the value times 2^-120, subnormal codes included. */
BL_INLINE void fp8_unscaled(int odd, __m256 w[2], const uint8_t *codes)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)codes);
    __m256i words = _mm256_and_si256(_mm256_srai_epi16(odd ? v : _mm256_slli_epi16(v, 8), 4), _mm256_set1_epi16((short)0x87f0));
    w[0] = low_words(words);
    w[1] = high_words(words);
}

/* Scale bytes that x can take over from the weights: its factor 2^(byte - 7) is a float32 not below one. */
enum { FP8_FAST_BIAS = 120, FP8_FAST_MIN = 7, FP8_FAST_MAX = 134 };

/* Two steps, since 2^(120 + scale - 127) is no float32 for large scales. */
BL_INLINE void decode_fp8(int odd, __m256 w[2], const uint8_t *codes, __m256 factor)
{
    fp8_unscaled(odd, w, codes);
    for (int i = 0; i < 2; i++) w[i] = _mm256_mul_ps(_mm256_mul_ps(w[i], _mm256_set1_ps(0x1p120f)), factor);
}

/* fp4 times its scale is looked up: for each scale byte, the upper bytes of the sixteen codes' values as float32, then the
 * bytes below; the rest is zero. Sixteen bytes before and after may be read. */
enum { FP4_ENTRY = 32, FP4_PAD = 16, FP4_TABLE = FP4_PAD + 256 * FP4_ENTRY + FP4_PAD };

/* Fills memory [FP4_TABLE], returns the first entry. */
static inline const uint8_t *make_fp4_table(void *memory)
{
    const __m256 codes[2] = {_mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6), _mm256_setr_ps(-0.f, -.5f, -1, -1.5f, -2, -3, -4, -6)};
    const __m256i split = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14));
    uint8_t *table = (uint8_t *)memory + FP4_PAD;
    _mm_storeu_si128((__m128i *)memory, _mm_setzero_si128());
    _mm_storeu_si128((__m128i *)(table + 256 * FP4_ENTRY), _mm_setzero_si128());
    for (int s = 0; s < 256; s++) {
        __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32(s ? s << 23 : 1 << 22));
        __m256i a = _mm256_srli_epi32(_mm256_castps_si256(_mm256_mul_ps(codes[0], scale)), 16);
        __m256i b = _mm256_srli_epi32(_mm256_castps_si256(_mm256_mul_ps(codes[1], scale)), 16);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8); /* in the order of the codes */
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, split), 0xd8);
        _mm256_storeu_si256((__m256i *)(table + s * FP4_ENTRY), bytes);
    }
    return table;
}

/* The low 128 bits of one load, the high of another: cheaper than to insert half a register. */
BL_INLINE __m256i halves_of(const uint8_t *low, const uint8_t *high)
{
    return _mm256_blend_epi32(_mm256_loadu_si256((const __m256i *)low), _mm256_loadu_si256((const __m256i *)high), 0xf0);
}

/* The entries of two rows. */
typedef struct fp4_pair {
    __m256i upper, lower;
} fp4_pair;

BL_INLINE fp4_pair fp4_entries(const uint8_t *table, uint8_t a, uint8_t b)
{
    const uint8_t *p = table + (size_t)a * FP4_ENTRY, *q = table + (size_t)b * FP4_ENTRY;
    return (fp4_pair){halves_of(p, q - 16), halves_of(p + 16, q)};
}

BL_INLINE __m256i fp4_codes(const uint8_t *a, const uint8_t *b)
{
    const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)a));
    return _mm256_blend_epi32(low, _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)b)), 0xf0);
}

/* Two rows at once, row a in the low and row b in the high 128 bits of v: words[0] is lanes 0..7, words[1] lanes 8..15 of both,
 * for low_words and high_words. */
BL_INLINE void decode_fp4(int odd, __m256i words[2], __m256i v, fp4_pair table)
{
    __m256i n = _mm256_and_si256(odd ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
    __m256i hi = _mm256_shuffle_epi8(table.upper, n), lo = _mm256_shuffle_epi8(table.lower, n);
    words[0] = _mm256_unpacklo_epi8(lo, hi);
    words[1] = _mm256_unpackhi_epi8(lo, hi);
}

/* ---- the tree */

/* l + (l + 8) of rows a (to the low 128 bits) and b (to the high), from the vectors of one half. */
BL_INLINE __m256 join_rows(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* half0[p], half1[p] are lanes 0 2 4 6 and 1 3 5 7 of two rows after l + (l + 8); the sums of those in the low 128 bits come
 * first. */
static inline __m256 tree_pairs(const __m256 half0[4], const __m256 half1[4])
{
    __m256 q[2];
    for (int h = 0; h < 2; h++) {
        const __m256 *v = h ? half1 : half0;
        __m256 a = _mm256_add_ps(_mm256_shuffle_ps(v[0], v[1], 0x44), _mm256_shuffle_ps(v[0], v[1], 0xee)); /* l + (l + 4) */
        __m256 b = _mm256_add_ps(_mm256_shuffle_ps(v[2], v[3], 0x44), _mm256_shuffle_ps(v[2], v[3], 0xee));
        q[h] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)); /* l + (l + 2) */
    }
    return _mm256_add_ps(q[0], q[1]); /* l + (l + 1) */
}

/* ---- the two regimes; arguments as rows() of linear.h */

/* 1..GEMV_TOKENS tokens: each code is decoded in registers and used at once. */
enum { GEMV_TOKENS = 3 };
size_t bl_linear_gemv_scratch_avx2(int64_t tokens, int64_t cols);
void bl_linear_gemv_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch);
/* Any number of tokens: rows are decoded a chunk at a time into scratch. */
size_t bl_linear_gemm_scratch_avx2(int64_t tokens, int64_t cols);
void bl_linear_gemm_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch);

#endif
