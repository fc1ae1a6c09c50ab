/* Compressor pooling and the indexer's scores. The codes' dot products are integers: heads lie across 32-bit lanes, four
 * dimensions of each per vpmaddubsw, whose unsigned side is the key's values made positive by an offset that is taken back
 * per head. A group of 32 dimensions is eight such steps, sums stay within 16 bits. */
#include "kernels/cast.h"
#include "kernels/x86/fmath_x86.h"
#include "kernels/x86/ops_x86.h"

#include <string.h>

static void pool_pair(uint16_t *y, const float *kv0, const float *z0, const float *kv1, const float *z1, int64_t d)
{
    for (int64_t i = 0; i < d; i += 16) {
        vf out[VECS];
        for (int v = 0; v < VECS; v++) {
            const int64_t at = i + LANES * v;
            vf a = vf_loadu(z0 + at), b = vf_loadu(z1 + at), most = vf_max(b, a);
            vf e0 = vf_exp(a - most), e1 = vf_exp(b - most), sum = e0 + e1;
            out[v] = vf_loadu(kv0 + at) * (e0 / sum) + vf_loadu(kv1 + at) * (e1 / sum);
        }
        vf_narrow(y + i, out);
    }
}

/* ---- the query and the keys, unpacked */

enum {
    STEPS = 8,   /* of four dimensions, in a group */
    OFFSET = 12, /* makes a doubled value unsigned */
    KEYS = 2,    /* scored side by side, so that the query is read half as often */
    VECTORS = 32 / LANES, /* of heads, side by side in registers */
    /* what fits the stack; larger shapes take the reference. The released model has 32 heads of 128. */
    MAX_DIM = 512,
    MAX_QUERY = 16384
};

/* The query with heads across the lanes, padded with heads of zeros to bl_index_padded_heads. */
typedef struct index_query {
    int64_t padded, groups;
    _Alignas(64) int8_t value[MAX_QUERY]; /* [group][step][head][4], doubled */
    int32_t offset[MAX_QUERY / 32];       /* [group][head], OFFSET times the sum of the head's values */
    float scale[MAX_QUERY / 32];          /* [group][head], a quarter of the scale: both sides are doubled */
    float w[MAX_QUERY / 32];              /* [head] */
} index_query;

typedef struct index_key {
    uint8_t value[MAX_DIM]; /* doubled, plus OFFSET */
    float scale[MAX_DIM / 32];
} index_key;

static int fits(int64_t heads, int64_t d)
{
    return d <= MAX_DIM && heads <= MAX_QUERY && bl_index_padded_heads(heads) * d <= MAX_QUERY;
}

/* Sixteen packed bytes to thirty-two doubled values plus offset, in the order of the codes. */
static inline __m256i doubled(const uint8_t *packed, int offset)
{
    const __m128i value = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15), table = _mm_add_epi8(value, _mm_set1_epi8((char)offset));
    __m128i b = _mm_loadu_si128((const __m128i *)packed);
    __m128i even = _mm_and_si128(b, nibble), odd = _mm_and_si128(_mm_srli_epi16(b, 4), nibble);
    __m256i c = _mm256_setr_m128i(_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), c);
}

/* Group g of heads h to h + 8. */
static void load_heads(index_query *out, const uint8_t *q, int64_t heads, int64_t d, int64_t h, int64_t g)
{
    __m256 r[8];
    __m256i sum = _mm256_setzero_si256();
    int64_t at = g * out->padded + h;
    for (int k = 0; k < 8; k++) {
        const uint8_t *row = q + (h + k) * (int64_t)bl_index_row_bytes(d);
        r[k] = h + k < heads ? _mm256_castsi256_ps(doubled(row + 16 * g, 0)) : _mm256_setzero_ps();
        out->scale[at + k] = h + k < heads ? 0.25f * bl_e8m0_to_f32(row[d / 2 + g]) : 0.0f;
    }
    vec_transpose8(r);
    for (int s = 0; s < STEPS; s++) {
        __m256i four = _mm256_castps_si256(r[s]);
        _mm256_store_si256((__m256i *)(out->value + 4 * ((g * STEPS + s) * out->padded + h)), four);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(OFFSET), four));
    }
    _mm256_storeu_si256((__m256i *)(out->offset + at), _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

static void load_query(index_query *out, const uint8_t *q, const float *w, int64_t heads, int64_t d)
{
    out->padded = bl_index_padded_heads(heads);
    out->groups = d / 32;
    for (int64_t h = 0; h < out->padded; h++) out->w[h] = h < heads ? w[h] : 0.0f;
    for (int64_t h = 0; h < out->padded; h += 8)
        for (int64_t g = 0; g < out->groups; g++) load_heads(out, q, heads, d, h, g);
}

static inline void load_key(index_key *out, const uint8_t *row, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        uint32_t byte = row[d / 2 + g];
        _mm256_storeu_si256((__m256i *)(out->value + 32 * g), doubled(row + 16 * g, OFFSET));
        uint32_t bits = byte == 255 ? 0x7fc00000u : byte == 0 ? 0x00400000u : byte << 23;
        memcpy(out->scale + g, &bits, 4);
    }
}

/* ---- scores */

/* Step s of group g of a key, four of its values, in all lanes. */
BL_INLINE vi key_step(const index_key *k, int64_t g, int s)
{
    int32_t four;
    memcpy(&four, k->value + 32 * g + 4 * s, 4);
    return vi_set1_32(four);
}

/* sum[key][vector] of group g over its steps. */
BL_INLINE void dot_group(vi sum[KEYS][VECTORS], const index_query *q, int64_t h, const index_key *k, int64_t g, int nv)
{
    const int8_t *value = q->value + 4 * (g * STEPS * q->padded + h);
    for (int j = 0; j < KEYS; j++)
        for (int v = 0; v < nv; v++) sum[j][v] = (vi)vf_zero();
#pragma GCC unroll 1 /* unrolled, the additions are made a tree whose leaves do not fit the registers */
    for (int s = 0; s < STEPS; s++, value += 4 * q->padded) {
        vi a = key_step(k, g, s), b = key_step(k + 1, g, s);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            vi heads = vi_loadu(value + 4 * LANES * v);
            sum[0][v] = vi_add_16(sum[0][v], vi_maddubs_8(a, heads));
            sum[1][v] = vi_add_16(sum[1][v], vi_maddubs_8(b, heads));
        }
    }
}

/* The terms of nv vectors of heads from head h on, for two keys. */
BL_INLINE void head_terms(vf *term[KEYS], const index_query *q, int64_t h, const index_key *k, int nv)
{
    vf acc[KEYS][VECTORS];
    for (int j = 0; j < KEYS; j++)
        for (int v = 0; v < nv; v++) acc[j][v] = vf_zero();
    for (int64_t g = 0; g < q->groups; g++) {
        vi sum[KEYS][VECTORS];
        dot_group(sum, q, h, k, g, nv);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            int64_t at = g * q->padded + h + LANES * v;
            vi offset = vi_loadu(q->offset + at);
            vf scale = vf_loadu(q->scale + at);
#pragma GCC unroll 2
            for (int j = 0; j < KEYS; j++) {
                vf dot = vf_from_int32(vi_sub_32(vi_madd_16(sum[j][v], vi_set1_16(1)), offset));
                acc[j][v] = vf_fmadd(dot, scale * vf_set1(k[j].scale[g]), acc[j][v]);
            }
        }
    }
    for (int j = 0; j < KEYS; j++)
        for (int v = 0; v < nv; v++) term[j][h / LANES + v] = vf_max(acc[j][v], vf_zero()) * vf_loadu(q->w + h + LANES * v);
}

static float sum_heads(vf *term, int64_t padded)
{
    for (int64_t half = padded / LANES / 2; half >= VECS; half /= 2)
        for (int64_t i = 0; i < half; i++) term[i] = term[i] + term[i + half];
    return vf_lane_tree(term);
}

static void score_two(float out[KEYS], const index_query *q, const uint8_t *row0, const uint8_t *row1, int64_t d)
{
    vf terms[KEYS][MAX_QUERY / 32 / LANES], *term[KEYS] = {terms[0], terms[1]};
    index_key k[KEYS];
    load_key(&k[0], row0, d);
    load_key(&k[1], row1, d);
    int64_t h = 0;
    if (q->padded == 16) head_terms(term, q, 0, k, VECTORS / 2);
    else do head_terms(term, q, h, k, VECTORS); /* so that a compiler sees all terms set */
        while ((h += 32) < q->padded);
    for (int j = 0; j < KEYS; j++) out[j] = sum_heads(term[j], q->padded);
}

static void index_scores(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n)
{
    int64_t stride = (int64_t)bl_index_row_bytes(d), j = 0;
    index_query loaded;
    float last[KEYS];
    if (!fits(heads, d)) {
        bl_index_scores_c(scores, q, w, heads, d, keys, n);
        return;
    }
    load_query(&loaded, q, w, heads, d);
    for (; j + 2 <= n; j += 2) score_two(scores + j, &loaded, keys + j * stride, keys + (j + 1) * stride, d);
    if (j < n) {
        score_two(last, &loaded, keys + j * stride, keys + j * stride, d);
        scores[j] = last[0];
    }
}

void BL_LEVEL(bl_op_index_init)(bl_op_kernels *t)
{
    t->pool_pair = pool_pair;
    t->index_scores = index_scores;
}
