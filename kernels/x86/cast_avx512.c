/* Casts to bf16 with AVX-512 F, BW: sixteen-bit lookups and masked adds. */
#include "kernels/cast_variants.h"

#include <immintrin.h>
#include <string.h>

/* ---- searches: the mask of hits names the first one; the tail is a masked load */

static inline __mmask64 first(int64_t left, int64_t lanes)
{
    return left >= lanes ? ~(uint64_t)0 : ((uint64_t)1 << left) - 1;
}

static int64_t scale_check_avx512(const uint8_t *scale, int64_t n, uint8_t lo, uint8_t hi)
{
    const __m512i vlo = _mm512_set1_epi8((char)lo), width = _mm512_set1_epi8((char)(hi - lo));
    for (int64_t i = 0; i < n; i += 64) {
        __mmask64 live = first(n - i, 64);
        __m512i s = _mm512_maskz_loadu_epi8(live, scale + i);
        __mmask64 bad = _mm512_mask_cmpgt_epu8_mask(live, _mm512_sub_epi8(s, vlo), width);
        if (bad) return i + __builtin_ctzll(bad);
    }
    return n;
}

static int64_t fp8_nan_avx512(const uint8_t *codes, int64_t n)
{
    const __m512i nan = _mm512_set1_epi8(0x7f);
    for (int64_t i = 0; i < n; i += 64) {
        __m512i c = _mm512_maskz_loadu_epi8(first(n - i, 64), codes + i);
        __mmask64 bad = _mm512_cmpeq_epi8_mask(_mm512_and_si512(c, nan), nan);
        if (bad) return i + __builtin_ctzll(bad);
    }
    return n;
}

static int64_t f32_nonfinite_avx512(const void *x, int64_t n)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    for (int64_t i = 0; i < n; i += 16) {
        __m512i v = _mm512_maskz_loadu_epi32((__mmask16)first(n - i, 16), (const char *)x + 4 * i);
        __mmask16 bad = _mm512_cmpeq_epi32_mask(_mm512_and_si512(v, exponent), exponent);
        if (bad) return i + __builtin_ctz(bad);
    }
    return n;
}

static int64_t bf16_nonfinite_avx512(const void *x, int64_t n)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    for (int64_t i = 0; i < n; i += 32) {
        __m512i v = _mm512_maskz_loadu_epi16((__mmask32)first(n - i, 32), (const char *)x + 2 * i);
        __mmask32 bad = _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
        if (bad) return i + __builtin_ctz(bad);
    }
    return n;
}

/* Bytes ahead in every row: the rows are too many for the hardware to see where they go. */
enum { TILE_AHEAD = 256 };

static void bf16_tile_avx512(uint16_t *tile, const void *in, int64_t stride, int64_t rows)
{
    const __m512i inf = _mm512_set1_epi16(0x7f80), nan = _mm512_set1_epi16(0x7fc0);
    const char *row = in;
    for (int64_t r = 0; r < rows; r++, row += stride, tile += 32) {
        __builtin_prefetch(row + TILE_AHEAD);
        __m512i x = _mm512_loadu_si512(row), magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
        x = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(magnitude, magnitude), x);
        _mm512_storeu_si512(tile, _mm512_mask_mov_epi16(x, _mm512_cmpgt_epi16_mask(magnitude, inf), nan));
    }
}

/* ---- rows. stream is a constant at every call, so that each function compiles into two. */

static inline __attribute__((always_inline)) void store(uint16_t *out, __m512i v, int stream)
{
    if (stream) _mm512_stream_si512((__m512i *)out, v);
    else _mm512_storeu_si512(out, v);
}

/* How far ahead of the codes to ask for the next ones: past the end of a page, where the hardware's prefetcher stops. */
enum { AHEAD = 2048 };

/* Scale bytes whose results are all normal bf16 or zero. */
enum { FP8_FAST_MIN = 10, FP8_FAST_MAX = BL_FP8_SCALE_MAX, FP4_FAST_MIN = 2, FP4_FAST_MAX = BL_FP4_SCALE_MAX };

/* Exponent and mantissa of a normal code, moved in place, lack only the sum of scale and biases in the exponent; subnormal
 * codes are looked up already normalised. */
static inline __attribute__((always_inline)) void fp8_blocks(uint16_t *out, const uint8_t *codes, const uint8_t *scale,
                                                             int64_t blocks, int stream)
{
    const __m512i subnormal = _mm512_zextsi128_si512(
        _mm_setr_epi16(0, -0x100, -0x80, -0x40, 0, 0x20, 0x40, 0x60)); /* m * 2^-9, exponent -2 and up in bits 7.. */
    const __mmask32 nonzero = 0xfe;
    const __m512i magnitude = _mm512_set1_epi16(0x7f), normal = _mm512_set1_epi16(0x78), sign = _mm512_set1_epi16((short)0x8000),
                  bf16_nan = _mm512_set1_epi16(0x7fc0);
    for (int64_t b = 0; b < blocks; b++) {
        __builtin_prefetch(codes + 32 * b + AHEAD);
        __m512i add = _mm512_set1_epi16((short)((scale[b] - 7) << 7));
        __m512i table = _mm512_mask_add_epi16(subnormal, nonzero, subnormal, add);
        __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + 32 * b)));
        __m512i m = _mm512_and_si512(c, magnitude);
        __m512i r = _mm512_add_epi16(_mm512_slli_epi16(m, 4), add);
        r = _mm512_mask_permutexvar_epi16(r, _mm512_testn_epi16_mask(c, normal), c, table); /* five index bits: the mantissa */
        r = _mm512_mask_mov_epi16(r, _mm512_cmpeq_epi16_mask(m, magnitude), bf16_nan);
        r = _mm512_ternarylogic_epi32(r, _mm512_slli_epi16(c, 8), sign, 0xf8); /* r | (c << 8 & sign) */
        store(out + 32 * b, r, stream);
    }
}

/* Float32 scales: those of the fast range, whose products are normal, and which the 2^8 does not make infinite. */
#define F32_FAST_MIN 0x1p-117f

/* Sixteen halves times f, to bf16, nearest even; no NaN comes here. An fp16 with e4m3's exponent and mantissa on top is the
 * code's value times 2^-8. (The conversion of AVX-512 BF16 takes subnormal values as zero, and few CPUs have it.) */
static inline __m256i round_halves(__m256i h, __m512 f)
{
    __m512i u = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtph_ps(h), f));
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16));
}

/* n codes under one scale. */
static void fp8_f32_block(uint16_t *out, const uint8_t *codes, float scale, int64_t n)
{
    const __m512i field = _mm512_set1_epi16((short)0xbf80), magnitude = _mm512_set1_epi16(0x7f);
    const __m512 f = _mm512_set1_ps(scale * 0x1p8f);
    __mmask32 nan = 0;
    int64_t i = 0;
    for (; scale >= F32_FAST_MIN && scale <= BL_F32_SCALE_MAX && i + 32 <= n; i += 32) {
        __builtin_prefetch(codes + i + AHEAD);
        __m512i c = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + i)));
        __m512i h = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(c, 8), 1), field);
        nan |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(c, magnitude), magnitude);
        _mm256_storeu_si256((__m256i *)(out + i), round_halves(_mm512_castsi512_si256(h), f));
        _mm256_storeu_si256((__m256i *)(out + i + 16), round_halves(_mm512_extracti64x4_epi64(h, 1), f));
    }
    if (nan) i = 0; /* decoded as 480 */
    bl_fp8_f32_row_c(out + i, codes + i, &scale, n - i, n);
}

static void fp8_f32_row_avx512(uint16_t *out, const uint8_t *codes, const void *scale, int64_t cols, int64_t block)
{
    for (int64_t i = 0, k = 0; i < cols; i += block, k++) {
        float s;
        memcpy(&s, (const char *)scale + 4 * k, 4);
        fp8_f32_block(out + i, codes + i, s, cols - i < block ? cols - i : block);
    }
}

/* A lookup of the nibble in the sixteen bf16 of a block's scale. The permutation looks at five bits of each index, so the
 * table stands there twice and the bits above a nibble need no clearing. */
static inline __attribute__((always_inline)) void fp4_blocks(uint16_t *out, const uint8_t *packed, const uint8_t *scale,
                                                             int64_t blocks, int stream)
{
    /* exponents -1 .. 2 in bits 7..; the scale byte is added to them */
    const __m512i values = _mm512_broadcast_i64x4(_mm256_setr_epi16(0, -0x80, 0, 0x40, 0x80, 0xc0, 0x100, 0x140, -0x8000, 0x7f80,
                                                                    -0x8000, -0x7fc0, -0x7f80, -0x7f40, -0x7f00, -0x7ec0));
    const __mmask32 nonzero = 0xfefefefe;
    for (int64_t b = 0; b < blocks; b++) {
        __builtin_prefetch(packed + 16 * b + AHEAD);
        __m512i table = _mm512_mask_add_epi16(values, nonzero, values, _mm512_set1_epi16((short)(scale[b] << 7)));
        __m512i p = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(packed + 16 * b)));
        __m512i index = _mm512_or_si512(p, _mm512_slli_epi32(p, 12)); /* the high nibble to the upper half of each 32 bits */
        store(out + 32 * b, _mm512_permutexvar_epi16(index, table), stream);
    }
}

static inline __attribute__((always_inline)) void fp8_row(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols,
                                                          int stream)
{
    int64_t blocks = cols / 32;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t run = scale_check_avx512(scale + b, blocks - b, FP8_FAST_MIN, FP8_FAST_MAX);
        fp8_blocks(out + 32 * b, codes + 32 * b, scale + b, run, stream);
        b += run;
        if (b < blocks) bl_fp8_row_c(out + 32 * b, codes + 32 * b, scale + b, 32);
    }
    bl_fp8_row_c(out + 32 * blocks, codes + 32 * blocks, scale + blocks, cols % 32);
}

static inline __attribute__((always_inline)) void fp4_row(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols,
                                                          int stream)
{
    int64_t blocks = cols / 32;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t run = scale_check_avx512(scale + b, blocks - b, FP4_FAST_MIN, FP4_FAST_MAX);
        fp4_blocks(out + 32 * b, packed + 16 * b, scale + b, run, stream);
        b += run;
        if (b < blocks) bl_fp4_row_c(out + 32 * b, packed + 16 * b, scale + b, 32);
    }
    bl_fp4_row_c(out + 32 * blocks, packed + 16 * blocks, scale + blocks, cols % 32);
}

void bl_fp8_row_avx512(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    fp8_row(out, codes, scale, cols, 0);
}

static void fp4_row_avx512(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    fp4_row(out, packed, scale, cols, 0);
}

static void fp8_row_stream_avx512(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    if ((uintptr_t)out % 64 == 0) fp8_row(out, codes, scale, cols, 1);
    else fp8_row(out, codes, scale, cols, 0);
}

static void fp4_row_stream_avx512(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols)
{
    if ((uintptr_t)out % 64 == 0) fp4_row(out, packed, scale, cols, 1);
    else fp4_row(out, packed, scale, cols, 0);
}

void bl_cast_init_avx512(bl_cast_kernels *t)
{
    t->name = "avx512";
    t->fp8_row = bl_fp8_row_avx512;
    t->fp4_row = fp4_row_avx512;
    t->fp8_row_stream = fp8_row_stream_avx512;
    t->fp4_row_stream = fp4_row_stream_avx512;
    t->fp8_f32_row = fp8_f32_row_avx512;
    t->scale_check = scale_check_avx512;
    t->fp8_nan = fp8_nan_avx512;
    t->f32_nonfinite = f32_nonfinite_avx512;
    t->bf16_nonfinite = bf16_nonfinite_avx512;
    t->bf16_tile = bf16_tile_avx512;
}
