/* Casts to bf16 with AVX2 and F16C. */
#include "kernels/cast_variants.h"

#include <immintrin.h>
#include <string.h>

/* ---- searches: whole vectors until one holds a hit, then the reference's loop to name it */

static int64_t scale_check_avx2(const uint8_t *scale, int64_t n, uint8_t lo, uint8_t hi)
{
    const __m256i vlo = _mm256_set1_epi8((char)lo), vhi = _mm256_set1_epi8((char)hi);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i s = _mm256_loadu_si256((const __m256i *)(scale + i));
        __m256i ok = _mm256_cmpeq_epi8(s, _mm256_min_epu8(_mm256_max_epu8(s, vlo), vhi));
        if (_mm256_movemask_epi8(ok) != -1) break;
    }
    while (i < n && scale[i] >= lo && scale[i] <= hi) i++;
    return i;
}

static int64_t fp8_nan_avx2(const uint8_t *codes, int64_t n)
{
    const __m256i nan = _mm256_set1_epi8(0x7f);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i c = _mm256_loadu_si256((const __m256i *)(codes + i));
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(c, nan), nan))) break;
    }
    while (i < n && (codes[i] & 0x7f) != 0x7f) i++;
    return i;
}

static int64_t f32_nonfinite_avx2(const void *x, int64_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const char *p = x;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i e = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(p + 4 * i)), exponent);
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(e, exponent))) break;
    }
    for (uint32_t u; i < n; i++) {
        memcpy(&u, p + 4 * i, 4);
        if ((u & 0x7f800000) == 0x7f800000) break;
    }
    return i;
}

static int64_t bf16_nonfinite_avx2(const void *x, int64_t n)
{
    const __m256i exponent = _mm256_set1_epi16(0x7f80);
    const char *p = x;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i e = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(p + 2 * i)), exponent);
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi16(e, exponent))) break;
    }
    for (uint16_t u; i < n; i++) {
        memcpy(&u, p + 2 * i, 2);
        if ((u & 0x7f80) == 0x7f80) break;
    }
    return i;
}

static __m256i canonical(const char *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
    x = _mm256_andnot_si256(_mm256_cmpeq_epi16(magnitude, _mm256_setzero_si256()), x);
    return _mm256_blendv_epi8(x, _mm256_set1_epi16(0x7fc0), _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7f80)));
}

/* Bytes ahead in every row: the rows are too many for the hardware to see where they go. */
enum { TILE_AHEAD = 256 };

static void bf16_tile_avx2(uint16_t *tile, const void *in, int64_t stride, int64_t rows)
{
    const char *row = in;
    for (int64_t r = 0; r < rows; r++, row += stride, tile += 32) {
        __builtin_prefetch(row + TILE_AHEAD);
        _mm256_storeu_si256((__m256i *)tile, canonical(row));
        _mm256_storeu_si256((__m256i *)(tile + 16), canonical(row + 32));
    }
}

/* How far ahead of the codes to ask for the next ones: past the end of a page, where the hardware's prefetcher stops. */
enum { AHEAD = 2048 };

/* ---- rows. stream is a constant at every call, so that each function compiles into two. */

static inline __attribute__((always_inline)) void store(uint16_t *out, __m256i v, int stream)
{
    if (stream) _mm256_stream_si256((__m256i *)out, v);
    else _mm256_storeu_si256((__m256i *)out, v);
}

/* Sixteen halves, widened to float, times f; the top halves of the results interleaved: even[i], odd[i] -> out[2i], out[2i+1].
 * An fp16 with e4m3's exponent and mantissa on top is the code's value times 2^-8, and F16C takes subnormal ones at full
 * speed; f makes up for the 2^8. */
static inline __m256i scale_pairs(__m128i even, __m128i odd, __m256 f)
{
    __m256i e = _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtph_ps(even), f));
    __m256i o = _mm256_castps_si256(_mm256_mul_ps(_mm256_cvtph_ps(odd), f));
    return _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xaa);
}

/* Scale bytes for which every result is a normal bf16 or zero. */
enum { FP8_FAST_MIN = 10, FP8_FAST_MAX = BL_FP8_SCALE_MAX };

/* 32 codes under a fast scale byte. A NaN code is decoded as 480 times the scale. */
static inline __attribute__((always_inline)) void fp8_block(uint16_t *out, __m256i c, unsigned scale, int stream)
{
    const __m256i field = _mm256_set1_epi16((short)0xbf80);
    __m256 f = _mm256_castsi256_ps(_mm256_set1_epi32((int)(scale + 8) << 23));
    __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 1), field);
    __m256i odd = _mm256_and_si256(_mm256_srai_epi16(c, 1), field);
    store(out, scale_pairs(_mm256_castsi256_si128(even), _mm256_castsi256_si128(odd), f), stream);
    store(out + 16, scale_pairs(_mm256_extracti128_si256(even, 1), _mm256_extracti128_si256(odd, 1), f), stream);
}

/* Whole blocks with fast scale bytes. Returns nonzero when a NaN code went through. */
static inline __attribute__((always_inline)) int fp8_blocks(uint16_t *out, const uint8_t *codes, const uint8_t *scale,
                                                            int64_t blocks, int stream)
{
    const __m256i nan = _mm256_set1_epi8(0x7f);
    __m256i most = _mm256_setzero_si256();
    for (int64_t b = 0; b < blocks; b++) {
        __builtin_prefetch(codes + 32 * b + AHEAD);
        __m256i c = _mm256_loadu_si256((const __m256i *)(codes + 32 * b));
        most = _mm256_max_epu8(most, _mm256_and_si256(c, nan));
        fp8_block(out + 32 * b, c, scale[b], stream);
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, nan)) != 0;
}

/* Float32 scales: those of the fast range, whose products are normal, and which the 2^8 does not make infinite. */
#define F32_FAST_MIN 0x1p-117f

/* To bf16, nearest even, in the top half of each result; no NaN comes here. */
static inline __m256i to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
}

static inline __m256i round_pairs(__m128i even, __m128i odd, __m256 f)
{
    __m256i e = to_bf16(_mm256_mul_ps(_mm256_cvtph_ps(even), f)), o = to_bf16(_mm256_mul_ps(_mm256_cvtph_ps(odd), f));
    return _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xaa);
}

/* n codes under one scale. */
static void fp8_f32_block(uint16_t *out, const uint8_t *codes, float scale, int64_t n)
{
    const __m256i field = _mm256_set1_epi16((short)0xbf80), nan = _mm256_set1_epi8(0x7f);
    const __m256 f = _mm256_set1_ps(scale * 0x1p8f);
    __m256i most = _mm256_setzero_si256();
    int64_t i = 0;
    for (; scale >= F32_FAST_MIN && scale <= BL_F32_SCALE_MAX && i + 32 <= n; i += 32) {
        __builtin_prefetch(codes + i + AHEAD);
        __m256i c = _mm256_loadu_si256((const __m256i *)(codes + i));
        __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(c, 8), 1), field);
        __m256i odd = _mm256_and_si256(_mm256_srai_epi16(c, 1), field);
        most = _mm256_max_epu8(most, _mm256_and_si256(c, nan));
        store(out + i, round_pairs(_mm256_castsi256_si128(even), _mm256_castsi256_si128(odd), f), 0);
        store(out + i + 16, round_pairs(_mm256_extracti128_si256(even, 1), _mm256_extracti128_si256(odd, 1), f), 0);
    }
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(most, nan))) i = 0; /* decoded as 480 */
    bl_fp8_f32_row_c(out + i, codes + i, &scale, n - i, n);
}

static void fp8_f32_row_avx2(uint16_t *out, const uint8_t *codes, const void *scale, int64_t cols, int64_t block)
{
    for (int64_t i = 0, k = 0; i < cols; i += block, k++) {
        float s;
        memcpy(&s, (const char *)scale + 4 * k, 4);
        fp8_f32_block(out + i, codes + i, s, cols - i < block ? cols - i : block);
    }
}

/* Two blocks of packed codes, one in each 128-bit lane, and their scale bytes, the first in the low byte: a nibble is looked up in its block's sixteen low and sixteen high bytes.
 * With e = -1 .. 2 the exponent of a code's value, the exponent field is scale + e, one bit of it in the low byte. */
enum { FP4_FAST_MIN = 2, FP4_FAST_MAX = BL_FP4_SCALE_MAX };

static inline __attribute__((always_inline)) void fp4_pair(__m256i out[4], __m256i p, uint16_t scales)
{
    /* codes 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, for an even scale byte and for an odd one */
    const __m256i low_even = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, 0, 64, -128, -64, 0, 64, 0, -128, 0, 64, -128, -64, 0, 64));
    const __m256i low_odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_even = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 0, 0, 0, 0, 1, 1, -128, 127, -128, -128, -128, -128, -127, -127));
    const __m256i high_odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, -128, -128, -128, -128, -127, -127, -127, -127));
    const __m256i nonzero = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 127, 127, 127, 127, 127, 127, 127, 0, 127, 127, 127, 127, 127, 127, 127));
    const __m256i lane = _mm256_setr_m128i(_mm_setzero_si128(), _mm_set1_epi8(1));
    const __m256i nibble = _mm256_set1_epi8(15);

    __m256i s = _mm256_shuffle_epi8(_mm256_set1_epi16((short)scales), lane);
    __m256i parity = _mm256_slli_epi16(s, 7); /* to the top of each byte, where a blend looks */
    __m256i half = _mm256_and_si256(_mm256_srli_epi16(s, 1), nonzero);
    __m256i low = _mm256_blendv_epi8(low_even, low_odd, parity);
    __m256i high = _mm256_add_epi8(_mm256_blendv_epi8(high_even, high_odd, parity), half);

    __m256i even = _mm256_and_si256(p, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(p, 4), nibble);
    __m256i c0 = _mm256_unpacklo_epi8(even, odd), c1 = _mm256_unpackhi_epi8(even, odd);
    __m256i l0 = _mm256_shuffle_epi8(low, c0), h0 = _mm256_shuffle_epi8(high, c0);
    __m256i l1 = _mm256_shuffle_epi8(low, c1), h1 = _mm256_shuffle_epi8(high, c1);
    __m256i r0 = _mm256_unpacklo_epi8(l0, h0), r1 = _mm256_unpackhi_epi8(l0, h0);
    __m256i r2 = _mm256_unpacklo_epi8(l1, h1), r3 = _mm256_unpackhi_epi8(l1, h1);
    out[0] = _mm256_permute2x128_si256(r0, r1, 0x20);
    out[1] = _mm256_permute2x128_si256(r2, r3, 0x20);
    out[2] = _mm256_permute2x128_si256(r0, r1, 0x31);
    out[3] = _mm256_permute2x128_si256(r2, r3, 0x31);
}

/* Whole blocks with scale bytes in the fast range. */
static inline __attribute__((always_inline)) void fp4_blocks(uint16_t *out, const uint8_t *packed, const uint8_t *scale,
                                                             int64_t blocks, int stream)
{
    __m256i r[4];
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
        uint16_t scales;
        __builtin_prefetch(packed + 16 * b + AHEAD);
        memcpy(&scales, scale + b, 2);
        fp4_pair(r, _mm256_loadu_si256((const __m256i *)(packed + 16 * b)), scales);
        for (int i = 0; i < 4; i++) store(out + 32 * b + 16 * i, r[i], stream);
    }
    if (b == blocks) return;
    fp4_pair(r, _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(packed + 16 * b))), scale[b]);
    for (int i = 0; i < 2; i++) store(out + 32 * b + 16 * i, r[i], stream);
}

/* One block of a tile: 16 packed bytes under one scale byte to 32 values, code 8 to +0. As fp4_pair, but each byte is doubled
 * and lies in the lane where its values end, so that nothing crosses lanes later. */
static inline __attribute__((always_inline)) void fp4_tile_row(uint16_t *out, const uint8_t *packed, unsigned scale)
{
    static const _Alignas(16) int8_t lows[2][16] = {{0, -128, 0, 64, -128, -64, 0, 64, 0, -128, 0, 64, -128, -64, 0, 64},
                                                    {0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64}};
    static const _Alignas(16) int8_t highs[2][16] = {{0, -1, 0, 0, 0, 0, 1, 1, 0, 127, -128, -128, -128, -128, -127, -127},
                                                     {0, 0, 0, 0, 1, 1, 1, 1, 0, -128, -128, -128, -127, -127, -127, -127}};
    const __m256i nonzero = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 127, 127, 127, 127, 127, 127, 127, 0, 127, 127, 127, 127, 127, 127, 127));
    const __m256i place = _mm256_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11, 4, 4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13,
                                           14, 14, 15, 15);

    __m256i p = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)packed)), place);
    __m256i code = _mm256_or_si256(_mm256_and_si256(p, _mm256_set1_epi16(0x000f)),
                                   _mm256_and_si256(_mm256_srli_epi16(p, 4), _mm256_set1_epi16(0x0f00)));
    __m256i half = _mm256_and_si256(_mm256_set1_epi8((char)(scale >> 1)), nonzero);
    __m256i low = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)lows[scale & 1]));
    __m256i high = _mm256_add_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)highs[scale & 1])), half);
    low = _mm256_shuffle_epi8(low, code);
    high = _mm256_shuffle_epi8(high, code);
    _mm256_storeu_si256((__m256i *)out, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(out + 16), _mm256_unpackhi_epi8(low, high));
}

/* A row after the other: a cache line of codes is read once. */
static void fp4_tiles_avx2(uint16_t *tiles, const uint8_t *packed, int64_t stride, const uint8_t *scale, int64_t scale_stride,
                           int64_t rows, int64_t count)
{
    unsigned slow = 0;
    for (int64_t i = 0; i < rows; i++, packed += stride, scale += scale_stride) {
        __builtin_prefetch(packed + TILE_AHEAD);
        for (int64_t k = 0; k < count; k++) {
            slow |= scale[k] - (unsigned)FP4_FAST_MIN > FP4_FAST_MAX - FP4_FAST_MIN;
            fp4_tile_row(tiles + (k * rows + i) * 32, packed + 16 * k, scale[k]);
        }
    }
    if (slow) bl_fp4_tiles_c(tiles, packed - rows * stride, stride, scale - rows * scale_stride, scale_stride, rows, count);
}

static void fp8_tiles_avx2(uint16_t *tiles, const uint8_t *codes, int64_t stride, const uint8_t *scale, int64_t rows, int64_t count)
{
    const __m256i nan = _mm256_set1_epi8(0x7f);
    __m256i most = _mm256_setzero_si256();
    int slow = scale_check_avx2(scale, count, FP8_FAST_MIN, FP8_FAST_MAX) < count;
    for (int64_t i = 0; i < rows && !slow; i++) {
        const uint8_t *row = codes + i * stride;
        __builtin_prefetch(row + TILE_AHEAD);
        for (int64_t k = 0; k < count; k++) {
            __m256i c = _mm256_loadu_si256((const __m256i *)(row + 32 * k)), magnitude = _mm256_and_si256(c, nan);
            most = _mm256_max_epu8(most, magnitude);
            c = _mm256_andnot_si256(_mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256()), c);
            fp8_block(tiles + (k * rows + i) * 32, c, scale[k], 0);
        }
    }
    slow |= _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, nan));
    if (slow) bl_fp8_tiles_c(tiles, codes, stride, scale, rows, count);
}

static inline __attribute__((always_inline)) void fp8_row(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols,
                                                          int stream)
{
    int64_t blocks = cols / 32;
    for (int64_t b = 0; b < blocks;) {
        int64_t run = scale_check_avx2(scale + b, blocks - b, FP8_FAST_MIN, FP8_FAST_MAX);
        if (fp8_blocks(out + 32 * b, codes + 32 * b, scale + b, run, stream))
            bl_fp8_row_c(out + 32 * b, codes + 32 * b, scale + b, 32 * run);
        b += run;
        if (b < blocks) {
            bl_fp8_row_c(out + 32 * b, codes + 32 * b, scale + b, 32);
            b++;
        }
    }
    bl_fp8_row_c(out + 32 * blocks, codes + 32 * blocks, scale + blocks, cols % 32);
}

static inline __attribute__((always_inline)) void fp4_row(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols,
                                                          int stream)
{
    int64_t blocks = cols / 32;
    for (int64_t b = 0; b < blocks;) {
        int64_t run = scale_check_avx2(scale + b, blocks - b, FP4_FAST_MIN, FP4_FAST_MAX);
        fp4_blocks(out + 32 * b, packed + 16 * b, scale + b, run, stream);
        b += run;
        if (b < blocks) {
            bl_fp4_row_c(out + 32 * b, packed + 16 * b, scale + b, 32);
            b++;
        }
    }
    bl_fp4_row_c(out + 32 * blocks, packed + 16 * blocks, scale + blocks, cols % 32);
}

void bl_fp8_row_avx2(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    fp8_row(out, codes, scale, cols, 0);
}

static void fp4_row_avx2(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    fp4_row(out, packed, scale, cols, 0);
}

static void fp8_row_stream_avx2(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    if ((uintptr_t)out % 64 == 0) fp8_row(out, codes, scale, cols, 1);
    else fp8_row(out, codes, scale, cols, 0);
}

static void fp4_row_stream_avx2(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    if ((uintptr_t)out % 64 == 0) fp4_row(out, packed, scale, cols, 1);
    else fp4_row(out, packed, scale, cols, 0);
}

static void fence(void)
{
    _mm_sfence();
}

void bl_cast_init_avx2(bl_cast_kernels *t)
{
    t->name = "avx2";
    t->fp8_row = bl_fp8_row_avx2;
    t->fp4_row = fp4_row_avx2;
    t->fp8_row_stream = fp8_row_stream_avx2;
    t->fp4_row_stream = fp4_row_stream_avx2;
    t->stream_fence = fence;
    t->fp8_f32_row = fp8_f32_row_avx2;
    t->scale_check = scale_check_avx2;
    t->fp8_nan = fp8_nan_avx2;
    t->f32_nonfinite = f32_nonfinite_avx2;
    t->bf16_nonfinite = bf16_nonfinite_avx2;
    t->bf16_tile = bf16_tile_avx2;
    t->fp4_tiles = fp4_tiles_avx2;
    t->fp8_tiles = fp8_tiles_avx2;
}
