/* Encoders of weights with AVX-512 F, BW, DQ, VL: a block of 32 bf16 is one register. */
#include "kernels/quant_variants.h"

#include <immintrin.h>
#include <string.h>

enum { BF16_HALF = 0x3f00 }; /* 0.5 */

static inline __m512i magnitude(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

/* c, with the one bit of sign that v may have there. */
static inline __m512i with_sign(__m512i c, __m512i v, short bit)
{
    return _mm512_ternarylogic_epi64(c, v, _mm512_set1_epi16(bit), 0xf8); /* c | (v & bit) */
}

/* ---- largest magnitudes. Four blocks at a time: their registers are folded into each other, two steps shorter than one by one. */

/* Bytes ahead in every row: the rows are too many for the hardware to see where they go. */
enum { ROWS_AHEAD = 256, ROW_AHEAD = 2048 };

static inline __m512i fold(__m512i a, __m512i b)
{
    return _mm512_max_epu16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

/* The largest of each register, 16 bits each, in order. */
static inline uint64_t largest(const __m512i m[4])
{
    __m512i v = fold(fold(m[0], m[1]), fold(m[2], m[3])); /* a quarter of the register each */
    v = _mm512_max_epu16(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
    v = _mm512_max_epu16(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
    v = _mm512_max_epu16(v, _mm512_rol_epi32(v, 16));
    const __m512i first = _mm512_zextsi128_si512(_mm_set_epi16(0, 0, 0, 0, 24, 16, 8, 0));
    return (uint64_t)_mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_permutexvar_epi16(first, v)));
}

static void amax_rows_avx512(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < cols; i += 128) {
        __m512i most[4];
        __mmask32 live[4];
        int64_t left = cols - i < 128 ? cols - i : 128;
        for (int k = 0; k < 4; k++) {
            int64_t n = left - 32 * k;
            live[k] = _bzhi_u32(~0u, n < 0 ? 0 : n < 32 ? (unsigned)n : 32);
            most[k] = _mm512_setzero_si512();
        }
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *p = x + r * cols + i;
            for (int k = 0; k < 4; k++) {
                __builtin_prefetch((const char *)p + 64 * k + (rows > 1 ? ROWS_AHEAD : ROW_AHEAD));
                most[k] = _mm512_max_epu16(most[k], magnitude(_mm512_maskz_loadu_epi16(live[k], p + 32 * k)));
            }
        }
        uint64_t four = largest(most);
        memcpy(amax + i / 32, &four, (size_t)(left + 31) / 32 * 2);
    }
}

/* ---- fp8: as with AVX2, see there */

static void fp8_row_avx512(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols)
{
    const __m512i one = _mm512_set1_epi16(1), seven = _mm512_set1_epi16(7), most = _mm512_set1_epi16(0x7e);
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        unsigned s = scale[i / 32];
        __m512i v = _mm512_loadu_si512(x + i), m = magnitude(v);
        __m512i t = _mm512_sub_epi16(m, _mm512_set1_epi16((short)(((int)s - 7) * 128)));
        __mmask32 rare = _mm512_mask_cmplt_epu16_mask(_mm512_test_epi16_mask(m, m), _mm512_add_epi16(t, _mm512_set1_epi16(384)),
                                                      _mm512_set1_epi16(384 + 128));
        if (rare || s < BL_FP8_ENCODE_MIN || s > BL_FP8_ENCODE_MAX) {
            bl_fp8_encode_c(codes + i, x + i, scale + i / 32, 32);
            continue;
        }
        __m512i odd = _mm512_and_si512(_mm512_srli_epi16(t, 4), one);
        __m512i c = _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(t, odd), seven), 4);
        c = _mm512_max_epi16(_mm512_min_epi16(c, most), _mm512_setzero_si512());
        c = with_sign(c, _mm512_srli_epi16(v, 8), 0x80);
        _mm256_storeu_si256((__m256i *)(codes + i), _mm512_cvtepi16_epi8(c));
    }
    bl_fp8_encode_c(codes + i, x + i, scale + i / 32, cols - i);
}

/* ---- fp4: two mantissa bits and whether any below are set tell on which side of every threshold a value is, so that a table
 * has the codes of all values from 0.5 on. Steps are of a half: an even one is a value with no more bits, an odd one all up to
 * the next. */

enum { FP4_STEPS = 32, FP4_STEP_BITS = 32 }; /* FP4_STEP_BITS: distance of bf16 bits over two steps */

static __m512i fp4_codes(bl_fp4_ties ties)
{
    int16_t code[FP4_STEPS];
    for (int i = 0; i < FP4_STEPS; i++) {
        int bits = BF16_HALF + i / 2 * FP4_STEP_BITS + i % 2;
        code[i] = 0;
        for (int k = 0; k < 7; k++) code[i] = (int16_t)(code[i] + (bits > bl_fp4_threshold[ties][k]));
    }
    return _mm512_loadu_si512(code);
}

static void fp4_row_avx512(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties)
{
    const __m512i table = fp4_codes(ties), pair = _mm512_set1_epi32(0x00100001);
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        int s = scale[i / 32];
        if (s < BL_FP4_ENCODE_MIN || s > BL_FP4_ENCODE_MAX) {
            bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, 32, ties);
            continue;
        }
        __m512i v = _mm512_loadu_si512(x + i), m = magnitude(v), half = _mm512_set1_epi16((short)(BF16_HALF + (s - 127) * 128));
        __mmask32 some = _mm512_cmpgt_epu16_mask(m, _mm512_sub_epi16(half, _mm512_set1_epi16(128))); /* above a quarter */
        __m512i t = _mm512_subs_epu16(m, half);
        __m512i step = _mm512_add_epi16(_mm512_srli_epi16(t, 5), _mm512_srli_epi16(_mm512_add_epi16(t, _mm512_set1_epi16(31)), 5));
        step = _mm512_min_epu16(step, _mm512_set1_epi16(FP4_STEPS - 1));
        __m512i c = with_sign(_mm512_maskz_permutexvar_epi16(some, step, table), _mm512_srli_epi16(v, 12), 8);
        _mm_storeu_si128((__m128i *)(packed + i / 2), _mm512_cvtepi32_epi8(_mm512_madd_epi16(c, pair)));
    }
    bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, cols - i, ties);
}

/* ---- comparison */

static inline __m512 widen(const uint16_t *x)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}

static inline __m512d add_square(__m512d sum, __m256 v)
{
    __m512d d = _mm512_cvtps_pd(v);
    return _mm512_fmadd_pd(d, d, sum); /* the product of two float32 is exact */
}

static void compare_row_avx512(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t cols)
{
    __m512d error2[2], value2[2];
    __m512 most = _mm512_set1_ps(sums->error);
    int64_t i = 0;
    for (int k = 0; k < 2; k++) {
        error2[k] = _mm512_loadu_pd(sums->error2 + 8 * k);
        value2[k] = _mm512_loadu_pd(sums->value2 + 8 * k);
    }
    for (; i + 16 <= cols; i += 16) {
        __m512 v = widen(x + i), d = _mm512_sub_ps(v, widen(back + i));
        error2[0] = add_square(error2[0], _mm512_castps512_ps256(d));
        error2[1] = add_square(error2[1], _mm512_extractf32x8_ps(d, 1));
        value2[0] = add_square(value2[0], _mm512_castps512_ps256(v));
        value2[1] = add_square(value2[1], _mm512_extractf32x8_ps(v, 1));
        most = _mm512_max_ps(most, _mm512_abs_ps(d));
        differs[i / 32] |= _mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_NEQ_OQ) != 0;
    }
    for (int k = 0; k < 2; k++) {
        _mm512_storeu_pd(sums->error2 + 8 * k, error2[k]);
        _mm512_storeu_pd(sums->value2 + 8 * k, value2[k]);
    }
    sums->error = _mm512_reduce_max_ps(most);
    bl_compare_tail_c(sums, differs, x, back, i, cols);
}

void bl_quant_init_avx512(bl_quant_kernels *t)
{
    t->name = "avx512";
    t->amax_rows = amax_rows_avx512;
    t->fp8_row = fp8_row_avx512;
    t->fp4_row = fp4_row_avx512;
    t->compare_row = compare_row_avx512;
}
