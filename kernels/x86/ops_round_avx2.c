/* Roundings to the grids of fp8 and fp4, and packing of cache rows. The adder rounds: next to anchor = 1.5 * 2^(23 + q) the
 * last bit of a float32 counts 2^q, and nearest even multiples of the quantum are the nearest even codes. */
#include "kernels/x86/ops_x86.h"

#include "kernels/cast.h"

#include <string.h>

enum { NOT_FINITE = 0x7f80, E8M0_NAN = 0xff, E4M3_NAN = 0x7f };

/* Largest of eight unsigned 16-bit numbers: the complement of the smallest complement, for which there is an instruction. */
static inline unsigned max_u16(__m128i x)
{
    return 0xffff & ~(unsigned)_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1))));
}

/* amax of sixteen or thirty-two bf16, as bits. */
static inline unsigned amax_bits(__m256i a, __m256i b)
{
    __m256i m = _mm256_and_si256(_mm256_max_epu16(_mm256_and_si256(a, _mm256_set1_epi16(0x7fff)),
                                                  _mm256_and_si256(b, _mm256_set1_epi16(0x7fff))),
                                 _mm256_set1_epi16(0x7fff));
    return max_u16(_mm_max_epu16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1)));
}

static inline float max_of(float amax, float least)
{
    return amax > least ? amax : least;
}

static inline uint8_t fp8_scale(unsigned amax)
{
    return bl_e8m0_ceil(max_of(bl_bf16_to_f32((uint16_t)amax), 1e-4f) * (1.0f / 448.0f));
}

static inline __m256 power_of_two(int byte)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32(byte << 23));
}

/* Sixteen bf16 as two vectors of floats; the order is the one that packus undoes. */
static inline __m256 widen_lo(__m256i x)
{
    return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), x));
}

static inline __m256 widen_hi(__m256i x)
{
    return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), x));
}

/* |v| on a grid with m mantissa bits whose quantum stops shrinking below 2^least; most = its largest value. */
static inline __m256 round_grid(__m256 v, int m, int least, float most)
{
    __m256 a = _mm256_min_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), _mm256_set1_ps(most));
    __m256i e = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7f800000));
    e = _mm256_max_epi32(e, _mm256_set1_epi32((127 + least) << 23));
    __m256 anchor = _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32((23 - m) << 23)));
    return _mm256_sub_ps(_mm256_add_ps(a, anchor), anchor);
}

static inline __m256 round_e4m3(__m256 v)
{
    return round_grid(v, 3, -6, 448.0f);
}

/* e4m3 codes, without sign, of values on its grid. */
static inline __m256i e4m3_codes(__m256 r)
{
    __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(r), 20), _mm256_set1_epi32(120 << 3));
    __m256i small = _mm256_cvtps_epi32(_mm256_mul_ps(r, _mm256_set1_ps(512.0f)));
    __m256 is_small = _mm256_cmp_ps(r, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    return _mm256_blendv_epi8(normal, small, _mm256_castps_si256(is_small));
}

static inline __m256i rounded_bf16(__m256i x, __m256 inverse, __m256 scale)
{
    __m256 lo = _mm256_mul_ps(round_e4m3(_mm256_mul_ps(widen_lo(x), inverse)), scale);
    __m256 hi = _mm256_mul_ps(round_e4m3(_mm256_mul_ps(widen_hi(x), inverse)), scale);
    __m256i y = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(lo), 16), _mm256_srli_epi32(_mm256_castps_si256(hi), 16));
    return _mm256_or_si256(y, _mm256_and_si256(x, _mm256_set1_epi16((short)0x8000)));
}

static void round_fp8_avx2(uint16_t *y, const uint16_t *x, int64_t n)
{
    for (int64_t g = 0; g < n; g += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(x + g)), b = _mm256_loadu_si256((const __m256i *)(x + g + 16));
        unsigned amax = amax_bits(a, b);
        int byte = fp8_scale(amax);
        __m256 inverse = power_of_two(254 - byte), scale = power_of_two(byte);
        a = rounded_bf16(a, inverse, scale);
        b = rounded_bf16(b, inverse, scale);
        if (amax >= NOT_FINITE) a = b = _mm256_set1_epi16(0x7fc0);
        _mm256_storeu_si256((__m256i *)(y + g), a);
        _mm256_storeu_si256((__m256i *)(y + g + 16), b);
    }
}

static inline __m256i window_codes(__m256i x, __m256 inverse)
{
    __m256i lo = e4m3_codes(round_e4m3(_mm256_mul_ps(widen_lo(x), inverse)));
    __m256i hi = e4m3_codes(round_e4m3(_mm256_mul_ps(widen_hi(x), inverse)));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi16(x, 8), _mm256_set1_epi16(0x80));
    return _mm256_or_si256(_mm256_packus_epi32(lo, hi), sign);
}

static void pack_window_avx2(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        const __m256i *in = (const __m256i *)(x + 32 * g);
        __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
        unsigned amax = amax_bits(a, b);
        if (amax >= NOT_FINITE) {
            row[d + g] = E8M0_NAN;
            memset(row + 32 * g, E4M3_NAN, 32);
            continue;
        }
        row[d + g] = fp8_scale(amax);
        __m256 inverse = power_of_two(254 - row[d + g]);
        __m256i codes = _mm256_packus_epi16(window_codes(a, inverse), window_codes(b, inverse));
        _mm256_storeu_si256((__m256i *)(row + 32 * g), _mm256_permute4x64_epi64(codes, 0xd8));
    }
}

/* Sixteen e2m1 codes of v, whose signs are those of the bf16 x, as eight bytes at out. lo, hi in widen's order. */
static inline void store_e2m1(uint8_t *out, __m256i x, __m256 lo, __m256 hi)
{
    /* twice the value is an integer, 0 1 2 3 4 6 8 12; even and odd codes join in 16 * odd + even */
    const __m256i code = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0));
    const __m256 two = _mm256_set1_ps(2.0f);
    __m256i l = _mm256_cvtps_epi32(_mm256_mul_ps(round_grid(lo, 1, 0, 6.0f), two));
    __m256i h = _mm256_cvtps_epi32(_mm256_mul_ps(round_grid(hi, 1, 0, 6.0f), two));
    __m256i c = _mm256_shuffle_epi8(code, _mm256_packus_epi32(l, h));
    c = _mm256_or_si256(c, _mm256_and_si256(_mm256_srli_epi16(x, 12), _mm256_set1_epi16(8)));
    __m256i pair = _mm256_madd_epi16(c, _mm256_set1_epi32(1 | 16 << 16));
    __m128i p = _mm_packus_epi32(_mm256_castsi256_si128(pair), _mm256_extracti128_si256(pair, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(p, p));
}

static void pack_latent_avx2(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 16; g++) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(x + 16 * g));
        unsigned amax = amax_bits(a, a);
        if (amax >= NOT_FINITE) {
            row[d / 2 + g] = E4M3_NAN;
            memset(row + 8 * g, 0, 8);
            continue;
        }
        row[d / 2 + g] = bl_f32_to_e4m3(max_of(bl_bf16_to_f32((uint16_t)amax), 6 * 0x1p-9f) / 6.0f);
        __m256 s = _mm256_set1_ps(bl_e4m3_to_f32(row[d / 2 + g]));
        store_e2m1(row + 8 * g, a, _mm256_div_ps(widen_lo(a), s), _mm256_div_ps(widen_hi(a), s));
    }
}

static void pack_index_avx2(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        const __m256i *in = (const __m256i *)(x + 32 * g);
        __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
        unsigned amax = amax_bits(a, b);
        if (amax >= NOT_FINITE) {
            row[d / 2 + g] = E8M0_NAN;
            memset(row + 16 * g, 0, 16);
            continue;
        }
        row[d / 2 + g] = bl_e8m0_ceil(max_of(bl_bf16_to_f32((uint16_t)amax), 6 * 0x1p-126f) * (1.0f / 6.0f));
        __m256 inverse = power_of_two(254 - row[d / 2 + g]);
        store_e2m1(row + 16 * g, a, _mm256_mul_ps(widen_lo(a), inverse), _mm256_mul_ps(widen_hi(a), inverse));
        store_e2m1(row + 16 * g + 8, b, _mm256_mul_ps(widen_lo(b), inverse), _mm256_mul_ps(widen_hi(b), inverse));
    }
}

void bl_op_round_init_avx2(bl_op_kernels *t)
{
    t->round_fp8 = round_fp8_avx2;
    t->pack_window = pack_window_avx2;
    t->pack_latent = pack_latent_avx2;
    t->pack_index = pack_index_avx2;
}
