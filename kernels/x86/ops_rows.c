/* Packed cache rows back to values: to bf16, and to the floats that attention multiplies. A NaN scale makes a NaN group. */
#include "kernels/x86/ops_x86.h"

#include <string.h>

typedef enum as { AS_BF16, AS_FLOAT } as; /* a constant at every call */

/* Sixteen values, exact in bf16, as elements i.. of x. */
BL_INLINE void put(void *x, int64_t i, const vf value[VECS], as type)
{
    vi words[VECS];
    for (int v = 0; v < VECS; v++) {
        if (type == AS_FLOAT) vf_storeu((float *)x + i + LANES * v, value[v]);
        words[v] = vi_shr_32((vi)value[v], 16);
    }
    if (type == AS_BF16) _mm256_storeu_si256((__m256i *)((uint16_t *)x + i), vi_pack(words));
}

/* pack never makes scale byte 0. */
BL_INLINE vf e8m0(uint8_t scale)
{
    return (vf)vi_set1_32(scale == 255 ? 0x7fc00000 : scale << 23);
}

/* An fp16 with a code's exponent and mantissa on top is its value times 2^-8, and F16C takes subnormal ones at full speed. */
BL_INLINE void window_row(void *x, const uint8_t *row, int64_t d, as type)
{
    const __m256i field = _mm256_set1_epi16((short)0xbf80);
    for (int64_t i = 0; i < d; i += 16) {
        const vf s = e8m0(row[d + i / 32]); /* not times 256: the largest scales would overflow */
        __m256i c = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(row + i))), 8);
        c = _mm256_and_si256(_mm256_srai_epi16(c, 1), field);
        vf value[VECS];
        for (int v = 0; v < VECS; v++) value[v] = vf_from_half(vhalf_of(c, v)) * vf_set1(256.0f) * s;
        put(x, i, value, type);
    }
}

/* Sixteen e2m1 codes times scale. */
BL_INLINE void pairs16(void *x, int64_t i, const uint8_t *packed, vf scale, as type)
{
    vf value[VECS];
    vf_from_e2m1(value, packed);
    for (int v = 0; v < VECS; v++) value[v] = value[v] * scale;
    put(x, i, value, type);
}

/* The e4m3 scales of up to eight groups. */
BL_INLINE void latent_scales(float out[8], const uint8_t *codes, int64_t n)
{
    uint64_t eight = 0;
    memcpy(&eight, codes, n < 8 ? (size_t)n : 8);
    __m128i c = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)eight));
    __m256 v = _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(c, 7)), _mm256_set1_ps(256.0f));
    __m256i nan = _mm256_cvtepi16_epi32(_mm_cmpeq_epi16(c, _mm_set1_epi16(0x7f)));
    __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(out, _mm256_blendv_ps(v, quiet, _mm256_castsi256_ps(nan)));
}

BL_INLINE void latent_row(void *x, const uint8_t *row, int64_t d, as type)
{
    float scale[8];
    for (int64_t g = 0; g < d / 16; g++) {
        if (g % 8 == 0) latent_scales(scale, row + d / 2 + g, d / 16 - g);
        pairs16(x, 16 * g, row + 8 * g, vf_set1(scale[g % 8]), type);
    }
}

void BL_LEVEL(bl_window_row_f32)(float *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_FLOAT);
}

void BL_LEVEL(bl_latent_row_f32)(float *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_FLOAT);
}

static void unpack_window(uint16_t *x, const uint8_t *row, int64_t d)
{
    window_row(x, row, d, AS_BF16);
}

static void unpack_latent(uint16_t *x, const uint8_t *row, int64_t d)
{
    latent_row(x, row, d, AS_BF16);
}

static void unpack_index(uint16_t *x, const uint8_t *row, int64_t d)
{
    for (int64_t i = 0; i < d; i += 16) pairs16(x, i, row + i / 2, e8m0(row[d / 2 + i / 32]), AS_BF16);
}

void BL_LEVEL(bl_op_rows_init)(bl_op_kernels *t)
{
    t->unpack_window = unpack_window;
    t->unpack_latent = unpack_latent;
    t->unpack_index = unpack_index;
}
