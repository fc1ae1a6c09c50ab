/* Encoders of weights with AVX2: sixteen bf16 in 16-bit lanes. */
#include "kernels/quant_variants.h"

#include <immintrin.h>

static inline __m256i load(const uint16_t *x)
{
    return _mm256_loadu_si256((const __m256i *)x);
}

static inline __m256i magnitude(__m256i x)
{
    return _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
}

/* ---- largest magnitudes */

/* Largest of sixteen unsigned lanes: there is an instruction for the smallest of eight. */
static inline uint16_t largest(__m256i m)
{
    __m128i half = _mm_max_epu16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_extract_epi16(least, 0);
}

/* Bytes ahead in every row: the rows are too many for the hardware to see where they go. */
enum { ROWS_AHEAD = 256, ROW_AHEAD = 2048 };

static void amax_rows_avx2(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols)
{
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        __m256i most = _mm256_setzero_si256();
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *p = x + r * cols + i;
            __builtin_prefetch((const char *)p + (rows > 1 ? ROWS_AHEAD : ROW_AHEAD));
            most = _mm256_max_epu16(most, _mm256_max_epu16(magnitude(load(p)), magnitude(load(p + 16))));
        }
        amax[i / 32] = largest(most);
    }
    if (i == cols) return;
    uint16_t most = 0;
    for (int64_t r = 0; r < rows; r++) {
        uint16_t m;
        bl_amax_rows_c(&m, x + r * cols + i, 1, cols - i);
        most = m > most ? m : most;
    }
    amax[i / 32] = most;
}

/* ---- fp8. With t the magnitude bits less the scale, e4m3's exponent stands in bits 7.. and its mantissa in the three below:
 * four bits are rounded away. Below e4m3's normal range more would be: rare, and left to the reference, unless the value is so
 * small (t below -384 is less than half a quantum) that its code is 0 and comes out as such. */

static inline __m256i fp8_lanes(__m256i x, __m256i bias, __m256i *rare)
{
    __m256i m = magnitude(x), t = _mm256_sub_epi16(m, bias);
    __m256i small = _mm256_and_si256(_mm256_cmpgt_epi16(_mm256_set1_epi16(128), t), _mm256_cmpgt_epi16(t, _mm256_set1_epi16(-385)));
    *rare = _mm256_or_si256(*rare, _mm256_andnot_si256(_mm256_cmpeq_epi16(m, _mm256_setzero_si256()), small));
    __m256i odd = _mm256_and_si256(_mm256_srai_epi16(t, 4), _mm256_set1_epi16(1));
    __m256i c = _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(t, odd), _mm256_set1_epi16(7)), 4);
    c = _mm256_max_epi16(_mm256_min_epi16(c, _mm256_set1_epi16(0x7e)), _mm256_setzero_si256());
    return _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi16(x, 8), _mm256_set1_epi16(0x80)));
}

static void fp8_row_avx2(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols)
{
    int64_t i = 0;
    for (; i + 32 <= cols; i += 32) {
        unsigned s = scale[i / 32];
        __m256i rare = _mm256_setzero_si256(), bias = _mm256_set1_epi16((short)(((int)s - 7) * 128));
        __m256i a = fp8_lanes(load(x + i), bias, &rare), b = fp8_lanes(load(x + i + 16), bias, &rare);
        if (s < BL_FP8_ENCODE_MIN || s > BL_FP8_ENCODE_MAX || !_mm256_testz_si256(rare, rare)) {
            bl_fp8_encode_c(codes + i, x + i, scale + i / 32, 32);
            continue;
        }
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8);
        _mm256_storeu_si256((__m256i *)(codes + i), packed);
    }
    bl_fp8_encode_c(codes + i, x + i, scale + i / 32, cols - i);
}

/* ---- fp4: count the thresholds below */

static inline __m256i fp4_lanes(__m256i x, const __m256i threshold[7])
{
    __m256i m = magnitude(x), c = _mm256_setzero_si256();
    for (int i = 0; i < 7; i++) c = _mm256_sub_epi16(c, _mm256_cmpgt_epi16(m, threshold[i]));
    c = _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi16(x, 12), _mm256_set1_epi16(8)));
    return _mm256_madd_epi16(c, _mm256_set1_epi32(0x00100001)); /* low + 16 * high */
}

static void fp4_row_avx2(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties)
{
    __m256i base[7];
    int64_t i = 0;
    for (int k = 0; k < 7; k++) base[k] = _mm256_set1_epi16(bl_fp4_threshold[ties][k]);
    for (; i + 32 <= cols; i += 32) {
        int s = scale[i / 32];
        if (s < BL_FP4_ENCODE_MIN || s > BL_FP4_ENCODE_MAX) {
            bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, 32, ties);
            continue;
        }
        __m256i threshold[7], shift = _mm256_set1_epi16((short)((s - 127) * 128));
        for (int k = 0; k < 7; k++) threshold[k] = _mm256_add_epi16(base[k], shift);
        __m256i a = fp4_lanes(load(x + i), threshold), b = fp4_lanes(load(x + i + 16), threshold);
        __m256i w = _mm256_packus_epi32(a, b);
        __m256i c = _mm256_packus_epi16(w, w);
        _mm_storeu_si128((__m128i *)(packed + i / 2), _mm_unpacklo_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1)));
    }
    bl_fp4_encode_c(packed + i / 2, x + i, scale + i / 32, cols - i, ties);
}

/* ---- comparison */

static inline __m256 widen(const uint16_t *x)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}

static inline __m256d add_square(__m256d sum, __m128 v)
{
    __m256d d = _mm256_cvtps_pd(v);
    return _mm256_fmadd_pd(d, d, sum); /* the product of two float32 is exact */
}

typedef struct lanes {
    __m256d error2[4], value2[4];
    __m256 error;
} lanes;

/* Eight values, which belong to lanes 4 * k .. 4 * k + 7. Returns a mask of those that differ. */
static inline int compare_eight(lanes *l, int k, const uint16_t *x, const uint16_t *back)
{
    __m256 v = widen(x), d = _mm256_sub_ps(v, widen(back));
    l->error2[k] = add_square(l->error2[k], _mm256_castps256_ps128(d));
    l->error2[k + 1] = add_square(l->error2[k + 1], _mm256_extractf128_ps(d, 1));
    l->value2[k] = add_square(l->value2[k], _mm256_castps256_ps128(v));
    l->value2[k + 1] = add_square(l->value2[k + 1], _mm256_extractf128_ps(v, 1));
    l->error = _mm256_max_ps(l->error, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), d));
    return _mm256_movemask_ps(_mm256_cmp_ps(d, _mm256_setzero_ps(), _CMP_NEQ_OQ));
}

static void compare_row_avx2(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t cols)
{
    lanes l;
    int64_t i = 0;
    for (int k = 0; k < 4; k++) {
        l.error2[k] = _mm256_loadu_pd(sums->error2 + 4 * k);
        l.value2[k] = _mm256_loadu_pd(sums->value2 + 4 * k);
    }
    l.error = _mm256_set1_ps(sums->error);
    for (; i + 16 <= cols; i += 16) {
        int any = compare_eight(&l, 0, x + i, back + i);
        any |= compare_eight(&l, 2, x + i + 8, back + i + 8);
        differs[i / 32] |= any != 0;
    }
    float most[8];
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(sums->error2 + 4 * k, l.error2[k]);
        _mm256_storeu_pd(sums->value2 + 4 * k, l.value2[k]);
    }
    _mm256_storeu_ps(most, l.error);
    for (int k = 0; k < 8; k++) sums->error = most[k] > sums->error ? most[k] : sums->error;
    bl_compare_tail_c(sums, differs, x, back, i, cols);
}

void bl_quant_init_avx2(bl_quant_kernels *t)
{
    t->name = "avx2";
    t->amax_rows = amax_rows_avx2;
    t->fp8_row = fp8_row_avx2;
    t->fp4_row = fp4_row_avx2;
    t->compare_row = compare_row_avx2;
}
