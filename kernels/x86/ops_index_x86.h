/* What the x86 variants of index_scores share. The codes' dot products are integers: heads lie across 32-bit lanes, four
 * dimensions of each per vpmaddubsw, whose unsigned side is the key's values made positive by an offset that is taken back
 * per head. A group of 32 dimensions is eight such steps, sums stay within 16 bits. */
#ifndef BL_KERNELS_X86_OPS_INDEX_X86_H
#define BL_KERNELS_X86_OPS_INDEX_X86_H

#include "kernels/cast.h"
#include "kernels/x86/ops_avx2.h"

#include <string.h>

enum {
    INDEX_STEPS = 8,   /* of four dimensions, in a group */
    INDEX_OFFSET = 12, /* makes a doubled value unsigned */
    INDEX_KEYS = 2,    /* scored side by side, so that the query is read half as often */
    /* what fits the stack; larger shapes take the reference. The released model has 32 heads of 128. */
    INDEX_MAX_DIM = 512,
    INDEX_MAX_QUERY = 16384
};

/* The query with heads across the lanes, padded with heads of zeros to bl_index_padded_heads. */
typedef struct bl_index_query {
    int64_t padded, groups;
    _Alignas(64) int8_t value[INDEX_MAX_QUERY]; /* [group][step][head][4], doubled */
    int32_t offset[INDEX_MAX_QUERY / 32];       /* [group][head], INDEX_OFFSET times the sum of the head's values */
    float scale[INDEX_MAX_QUERY / 32];          /* [group][head], a quarter of the scale: both sides are doubled */
    float w[INDEX_MAX_QUERY / 32];              /* [head] */
} bl_index_query;

typedef struct bl_index_key {
    uint8_t value[INDEX_MAX_DIM]; /* doubled, plus INDEX_OFFSET */
    float scale[INDEX_MAX_DIM / 32];
} bl_index_key;

/* Does a shape fit? */
static inline int bl_index_fits_x86(int64_t heads, int64_t d)
{
    return d <= INDEX_MAX_DIM && heads <= INDEX_MAX_QUERY && bl_index_padded_heads(heads) * d <= INDEX_MAX_QUERY;
}

/* Sixteen packed bytes to thirty-two doubled values plus offset, in the order of the codes. */
static inline __m256i bl_index_doubled_x86(const uint8_t *packed, int offset)
{
    const __m128i value = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15), table = _mm_add_epi8(value, _mm_set1_epi8((char)offset));
    __m128i b = _mm_loadu_si128((const __m128i *)packed);
    __m128i even = _mm_and_si128(b, nibble), odd = _mm_and_si128(_mm_srli_epi16(b, 4), nibble);
    __m256i c = _mm256_setr_m128i(_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), c);
}

/* Group g of heads h to h + 8. */
static inline void bl_index_load_heads_x86(bl_index_query *out, const uint8_t *q, int64_t heads, int64_t d, int64_t h, int64_t g)
{
    __m256 r[8];
    __m256i sum = _mm256_setzero_si256();
    int64_t at = g * out->padded + h;
    for (int k = 0; k < 8; k++) {
        const uint8_t *row = q + (h + k) * (int64_t)bl_index_row_bytes(d);
        r[k] = h + k < heads ? _mm256_castsi256_ps(bl_index_doubled_x86(row + 16 * g, 0)) : _mm256_setzero_ps();
        out->scale[at + k] = h + k < heads ? 0.25f * bl_e8m0_to_f32(row[d / 2 + g]) : 0.0f;
    }
    bl_transpose8_avx2(r);
    for (int s = 0; s < INDEX_STEPS; s++) {
        __m256i four = _mm256_castps_si256(r[s]);
        _mm256_store_si256((__m256i *)(out->value + 4 * ((g * INDEX_STEPS + s) * out->padded + h)), four);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(INDEX_OFFSET), four));
    }
    _mm256_storeu_si256((__m256i *)(out->offset + at), _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

static inline void bl_index_load_query_x86(bl_index_query *out, const uint8_t *q, const float *w, int64_t heads, int64_t d)
{
    out->padded = bl_index_padded_heads(heads);
    out->groups = d / 32;
    for (int64_t h = 0; h < out->padded; h++) out->w[h] = h < heads ? w[h] : 0.0f;
    for (int64_t h = 0; h < out->padded; h += 8)
        for (int64_t g = 0; g < out->groups; g++) bl_index_load_heads_x86(out, q, heads, d, h, g);
}

static inline void bl_index_load_key_x86(bl_index_key *out, const uint8_t *row, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        uint32_t byte = row[d / 2 + g];
        _mm256_storeu_si256((__m256i *)(out->value + 32 * g), bl_index_doubled_x86(row + 16 * g, INDEX_OFFSET));
        uint32_t bits = byte == 255 ? 0x7fc00000u : byte == 0 ? 0x00400000u : byte << 23;
        memcpy(out->scale + g, &bits, 4);
    }
}

/* Step s of group g of a key: four of its values. */
static inline int32_t bl_index_step_x86(const bl_index_key *k, int64_t g, int s)
{
    int32_t four;
    memcpy(&four, k->value + 32 * g + 4 * s, 4);
    return four;
}

#endif
