/* Compressor pooling and the indexer's scores. The codes' dot products are integers: eight heads at a time, one to a 32-bit
 * lane, four dimensions of each per vpmaddubsw, whose unsigned side is the key's values made positive. */
#include "kernels/x86/fmath_avx2.h"
#include "kernels/x86/ops_avx2.h"

#include "kernels/cast.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    STEPS = 8,   /* of four dimensions, in a group */
    VECTORS = 4, /* of eight heads, side by side in registers */
    OFFSET = 12, /* makes a doubled value unsigned */
    /* what fits the stack; larger shapes take the reference. The released model has 32 heads of 128. */
    MAX_DIM = 512,
    MAX_QUERY = 16384
};

static inline __m256 pool8(const float *kv0, const float *z0, const float *kv1, const float *z1)
{
    __m256 a = _mm256_loadu_ps(z0), b = _mm256_loadu_ps(z1), most = _mm256_max_ps(b, a);
    __m256 e0 = bl_exp_avx2(_mm256_sub_ps(a, most)), e1 = bl_exp_avx2(_mm256_sub_ps(b, most)), sum = _mm256_add_ps(e0, e1);
    return _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(kv0), _mm256_div_ps(e0, sum)),
                         _mm256_mul_ps(_mm256_loadu_ps(kv1), _mm256_div_ps(e1, sum)));
}

static void pool_pair_avx2(uint16_t *y, const float *kv0, const float *z0, const float *kv1, const float *z1, int64_t d)
{
    for (int64_t i = 0; i < d; i += 16)
        bl_narrow_avx2(y + i, pool8(kv0 + i, z0 + i, kv1 + i, z1 + i),
                       pool8(kv0 + i + 8, z0 + i + 8, kv1 + i + 8, z1 + i + 8));
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

/* The query with heads across the lanes, padded with heads of zeros. */
typedef struct query {
    int64_t vectors, groups;        /* of eight heads; of 32 dimensions */
    __m256i value[MAX_QUERY / 32];  /* [group][step][vector], a lane: four values of its head */
    __m256i offset[MAX_QUERY / 256]; /* [group][vector], OFFSET times the sum of the head's values in the group */
    __m256 scale[MAX_QUERY / 256];  /* [group][vector], a quarter of the scale: both sides are doubled */
    __m256 w[MAX_QUERY / 256];      /* [vector] */
} query;

/* Values and scales of heads h to h + 8 in group g. */
static void load_heads(query *out, const uint8_t *q, int64_t heads, int64_t d, int64_t h, int64_t g)
{
    __m256 r[8];
    float scale[8] = {0};
    __m256i sum = _mm256_setzero_si256();
    int64_t v = h / 8;
    for (int k = 0; k < 8; k++) {
        const uint8_t *row = q + (h + k) * (int64_t)bl_index_row_bytes(d);
        r[k] = _mm256_setzero_ps();
        if (h + k >= heads) continue;
        r[k] = _mm256_castsi256_ps(doubled(row + 16 * g, 0));
        scale[k] = 0.25f * bl_e8m0_to_f32(row[d / 2 + g]);
    }
    bl_transpose8_avx2(r);
    for (int s = 0; s < STEPS; s++) {
        __m256i four = _mm256_castps_si256(r[s]);
        out->value[(g * STEPS + s) * out->vectors + v] = four;
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(OFFSET), four));
    }
    out->offset[g * out->vectors + v] = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    out->scale[g * out->vectors + v] = _mm256_loadu_ps(scale);
}

static void load_query(query *out, const uint8_t *q, const float *w, int64_t heads, int64_t padded, int64_t d)
{
    out->vectors = padded / 8;
    out->groups = d / 32;
    for (int64_t h = 0; h < padded; h += 8) {
        float lane[8] = {0};
        for (int k = 0; k < 8 && h + k < heads; k++) lane[k] = w[h + k];
        out->w[h / 8] = _mm256_loadu_ps(lane);
        for (int64_t g = 0; g < out->groups; g++) load_heads(out, q, heads, d, h, g);
    }
}

typedef struct key {
    uint8_t value[MAX_DIM]; /* doubled, plus OFFSET */
    float scale[MAX_DIM / 32];
} key;

static inline void load_key(key *out, const uint8_t *row, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        uint8_t byte = row[d / 2 + g];
        _mm256_storeu_si256((__m256i *)(out->value + 32 * g), doubled(row + 16 * g, OFFSET));
        out->scale[g] = bl_bits_float(byte == 255 ? 0x7fc00000u : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
    }
}

/* The terms of nv * 8 heads from vector v on. */
INLINE void head_terms(__m256 *term, const query *q, int64_t v, const key *k, int nv)
{
    __m256 acc[VECTORS];
#pragma GCC unroll 4
    for (int i = 0; i < nv; i++) acc[i] = _mm256_setzero_ps();
    for (int64_t g = 0; g < q->groups; g++) {
        const __m256i *value = q->value + g * STEPS * q->vectors + v;
        __m256i sum[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 1 /* unrolled, the additions are made a tree whose leaves do not fit the registers */
        for (int s = 0; s < STEPS; s++, value += q->vectors) {
            int32_t four;
            memcpy(&four, k->value + 32 * g + 4 * s, 4);
            __m256i x = _mm256_set1_epi32(four);
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(x, value[i]));
        }
        __m256 scale = _mm256_broadcast_ss(k->scale + g);
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) {
            __m256i dot = _mm256_sub_epi32(_mm256_madd_epi16(sum[i], _mm256_set1_epi16(1)), q->offset[g * q->vectors + v + i]);
            acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(q->scale[g * q->vectors + v + i], scale), acc[i]);
        }
    }
    for (int i = 0; i < nv; i++) term[i] = _mm256_mul_ps(_mm256_max_ps(acc[i], _mm256_setzero_ps()), q->w[v + i]);
}

static float score(const query *q, const uint8_t *row, int64_t d)
{
    __m256 term[MAX_QUERY / 256];
    key k;
    load_key(&k, row, d);
    int64_t v = 0;
    for (; v + VECTORS <= q->vectors; v += VECTORS) head_terms(term + v, q, v, &k, VECTORS);
    if (v < q->vectors) head_terms(term, q, 0, &k, 2); /* sixteen heads: the only number of vectors left over */
    for (int64_t half = q->vectors / 2; half > 1; half /= 2)
        for (int64_t i = 0; i < half; i++) term[i] = _mm256_add_ps(term[i], term[i + half]);
    return bl_lane_tree_avx2(term[0], term[1]);
}

static void index_scores_avx2(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n)
{
    int64_t stride = (int64_t)bl_index_row_bytes(d), padded = bl_index_padded_heads(heads);
    query loaded;
    if (d > MAX_DIM || padded * d > MAX_QUERY) {
        bl_index_scores_c(scores, q, w, heads, d, keys, n);
        return;
    }
    load_query(&loaded, q, w, heads, padded, d);
    for (int64_t j = 0; j < n; j++) scores[j] = score(&loaded, keys + j * stride, d);
}

void bl_op_index_init_avx2(bl_op_kernels *t)
{
    t->pool_pair = pool_pair_avx2;
    t->index_scores = index_scores_avx2;
}
