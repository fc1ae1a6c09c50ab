/* Encoders of weights with AVX-512 F, BW, DQ, VL: a block of 32 bf16 is one register. */
#include "kernels/quant_variants.h"

#include <immintrin.h>

static inline __m512i magnitude(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

static inline uint16_t largest(__m512i m)
{
    __m256i a = _mm256_max_epu16(_mm512_castsi512_si256(m), _mm512_extracti64x4_epi64(m, 1));
    __m128i b = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint16_t)~_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(b, _mm_set1_epi16(-1))), 0);
}

/* Bytes ahead in every row: the rows are too many for the hardware to see where they go. */
enum { ROWS_AHEAD = 256, ROW_AHEAD = 2048 };

static void amax_rows_avx512(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < cols; i += 32) {
        __m512i most = _mm512_setzero_si512();
        __mmask32 live = cols - i >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (cols - i)) - 1;
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *p = x + r * cols + i;
            __builtin_prefetch((const char *)p + (rows > 1 ? ROWS_AHEAD : ROW_AHEAD));
            most = _mm512_max_epu16(most, magnitude(_mm512_maskz_loadu_epi16(live, p)));
        }
        amax[i / 32] = largest(most);
    }
}

/* As with AVX2: see there. */
static void fp8_row_avx512(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols)
{
    const __m512i one = _mm512_set1_epi16(1), seven = _mm512_set1_epi16(7), most = _mm512_set1_epi16(0x7e);
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        unsigned s = scale[i / 32];
        __m512i v = _mm512_loadu_si512(x + i), m = magnitude(v);
        __m512i t = _mm512_sub_epi16(m, _mm512_set1_epi16((short)(((int)s - 7) * 128)));
        __mmask32 rare = _mm512_test_epi16_mask(m, m) & _mm512_cmplt_epi16_mask(t, _mm512_set1_epi16(128)) &
                         _mm512_cmpgt_epi16_mask(t, _mm512_set1_epi16(-385));
        if (rare || s < BL_FP8_ENCODE_MIN || s > BL_FP8_ENCODE_MAX) {
            bl_fp8_encode_c(codes + i, x + i, scale + i / 32, 32);
            continue;
        }
        __m512i odd = _mm512_and_si512(_mm512_srai_epi16(t, 4), one);
        __m512i c = _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(t, odd), seven), 4);
        c = _mm512_max_epi16(_mm512_min_epi16(c, most), _mm512_setzero_si512());
        c = _mm512_or_si512(c, _mm512_and_si512(_mm512_srli_epi16(v, 8), _mm512_set1_epi16(0x80)));
        _mm256_storeu_si256((__m256i *)(codes + i), _mm512_cvtepi16_epi8(c));
    }
    bl_fp8_encode_c(codes + i, x + i, scale + i / 32, cols - i);
}

static void fp4_row_avx512(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties)
{
    const __m512i one = _mm512_set1_epi16(1), pair = _mm512_set1_epi32(0x00100001);
    __m512i base[7];
    int64_t i = 0;
    for (int k = 0; k < 7; k++) base[k] = _mm512_set1_epi16(bl_fp4_threshold[ties][k]);
    for (; i + 32 <= cols; i += 32) {
        int s = scale[i / 32];
        if (s < BL_FP4_ENCODE_MIN || s > BL_FP4_ENCODE_MAX) {
            bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, 32, ties);
            continue;
        }
        __m512i v = _mm512_loadu_si512(x + i), m = magnitude(v), shift = _mm512_set1_epi16((short)((s - 127) * 128));
        __m512i c = _mm512_and_si512(_mm512_srli_epi16(v, 12), _mm512_set1_epi16(8));
        for (int k = 0; k < 7; k++)
            c = _mm512_mask_add_epi16(c, _mm512_cmpgt_epi16_mask(m, _mm512_add_epi16(base[k], shift)), c, one);
        _mm_storeu_si128((__m128i *)(packed + i / 2), _mm512_cvtepi32_epi8(_mm512_madd_epi16(c, pair)));
    }
    bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, cols - i, ties);
}

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
