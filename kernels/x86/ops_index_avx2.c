/* Compressor pooling and the indexer's scores. */
#include "kernels/x86/fmath_avx2.h"
#include "kernels/x86/ops_index_x86.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8, VECTORS = 4 /* of heads, side by side in registers */ };

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

/* sum[key][vector] of group g over its steps. */
INLINE void dot_group(__m256i sum[INDEX_KEYS][VECTORS], const bl_index_query *q, int64_t h, const bl_index_key *k, int64_t g, int nv)
{
    const int8_t *value = q->value + 4 * (g * INDEX_STEPS * q->padded + h);
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++) sum[j][v] = _mm256_setzero_si256();
#pragma GCC unroll 1 /* unrolled, the additions are made a tree whose leaves do not fit the registers */
    for (int s = 0; s < INDEX_STEPS; s++, value += 4 * q->padded) {
        __m256i a = _mm256_set1_epi32(bl_index_step_x86(k, g, s)), b = _mm256_set1_epi32(bl_index_step_x86(k + 1, g, s));
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            __m256i heads = _mm256_load_si256((const __m256i *)value + v);
            sum[0][v] = _mm256_add_epi16(sum[0][v], _mm256_maddubs_epi16(a, heads));
            sum[1][v] = _mm256_add_epi16(sum[1][v], _mm256_maddubs_epi16(b, heads));
        }
    }
}

/* The terms of nv vectors of heads from head h on, for two keys. */
INLINE void head_terms(__m256 *term[INDEX_KEYS], const bl_index_query *q, int64_t h, const bl_index_key *k, int nv)
{
    __m256 acc[INDEX_KEYS][VECTORS];
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++) acc[j][v] = _mm256_setzero_ps();
    for (int64_t g = 0; g < q->groups; g++) {
        __m256i sum[INDEX_KEYS][VECTORS];
        dot_group(sum, q, h, k, g, nv);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            int64_t at = g * q->padded + h + LANES * v;
            __m256i offset = _mm256_loadu_si256((const __m256i *)(q->offset + at));
            __m256 scale = _mm256_loadu_ps(q->scale + at);
#pragma GCC unroll 2
            for (int j = 0; j < INDEX_KEYS; j++) {
                __m256 dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_madd_epi16(sum[j][v], _mm256_set1_epi16(1)), offset));
                acc[j][v] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale, _mm256_broadcast_ss(k[j].scale + g)), acc[j][v]);
            }
        }
    }
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++)
            term[j][h / LANES + v] = _mm256_mul_ps(_mm256_max_ps(acc[j][v], _mm256_setzero_ps()), _mm256_loadu_ps(q->w + h + LANES * v));
}

static float sum_heads(__m256 *term, int64_t padded)
{
    for (int64_t half = padded / LANES / 2; half > 1; half /= 2)
        for (int64_t i = 0; i < half; i++) term[i] = _mm256_add_ps(term[i], term[i + half]);
    return bl_lane_tree_avx2(term[0], term[1]);
}

static void score_two(float out[INDEX_KEYS], const bl_index_query *q, const uint8_t *row0, const uint8_t *row1, int64_t d)
{
    __m256 terms[INDEX_KEYS][INDEX_MAX_QUERY / 32 / LANES], *term[INDEX_KEYS] = {terms[0], terms[1]};
    bl_index_key k[INDEX_KEYS];
    int64_t h = 0;
    bl_index_load_key_x86(&k[0], row0, d);
    bl_index_load_key_x86(&k[1], row1, d);
    for (; h + LANES * VECTORS <= q->padded; h += LANES * VECTORS) head_terms(term, q, h, k, VECTORS);
    if (h < q->padded) head_terms(term, q, h, k, 2); /* sixteen heads */
    for (int j = 0; j < INDEX_KEYS; j++) out[j] = sum_heads(term[j], q->padded);
}

static void index_scores_avx2(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n)
{
    int64_t stride = (int64_t)bl_index_row_bytes(d), j = 0;
    bl_index_query loaded;
    float last[INDEX_KEYS];
    if (!bl_index_fits_x86(heads, d)) {
        bl_index_scores_c(scores, q, w, heads, d, keys, n);
        return;
    }
    bl_index_load_query_x86(&loaded, q, w, heads, d);
    for (; j + 2 <= n; j += 2) score_two(scores + j, &loaded, keys + j * stride, keys + (j + 1) * stride, d);
    if (j < n) {
        score_two(last, &loaded, keys + j * stride, keys + j * stride, d);
        scores[j] = last[0];
    }
}

void bl_op_index_init_avx2(bl_op_kernels *t)
{
    t->pool_pair = pool_pair_avx2;
    t->index_scores = index_scores_avx2;
}
