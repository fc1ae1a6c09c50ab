/* The indexer's scores: sixteen heads to a vector. */
#include "kernels/x86/ops_avx512.h"
#include "kernels/x86/ops_index_x86.h"

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16, VECTORS = 2 /* of heads, side by side in registers */ };

/* sum[key][vector] of group g over its steps. */
INLINE void dot_group(__m512i sum[INDEX_KEYS][VECTORS], const bl_index_query *q, int64_t h, const bl_index_key *k, int64_t g, int nv)
{
    const int8_t *value = q->value + 4 * (g * INDEX_STEPS * q->padded + h);
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++) sum[j][v] = _mm512_setzero_si512();
#pragma GCC unroll 1 /* unrolled, the additions are made a tree whose leaves do not fit the registers */
    for (int s = 0; s < INDEX_STEPS; s++, value += 4 * q->padded) {
        __m512i a = _mm512_set1_epi32(bl_index_step_x86(k, g, s)), b = _mm512_set1_epi32(bl_index_step_x86(k + 1, g, s));
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            __m512i heads = _mm512_loadu_si512(value + 64 * v);
            sum[0][v] = _mm512_add_epi16(sum[0][v], _mm512_maddubs_epi16(a, heads));
            sum[1][v] = _mm512_add_epi16(sum[1][v], _mm512_maddubs_epi16(b, heads));
        }
    }
}

/* The terms of nv vectors of heads from head h on, for two keys. */
INLINE void head_terms(__m512 *term[INDEX_KEYS], const bl_index_query *q, int64_t h, const bl_index_key *k, int nv)
{
    __m512 acc[INDEX_KEYS][VECTORS];
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++) acc[j][v] = _mm512_setzero_ps();
    for (int64_t g = 0; g < q->groups; g++) {
        __m512i sum[INDEX_KEYS][VECTORS];
        dot_group(sum, q, h, k, g, nv);
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            int64_t at = g * q->padded + h + LANES * v;
            __m512i offset = _mm512_loadu_si512(q->offset + at);
            __m512 scale = _mm512_loadu_ps(q->scale + at);
#pragma GCC unroll 2
            for (int j = 0; j < INDEX_KEYS; j++) {
                __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_madd_epi16(sum[j][v], _mm512_set1_epi16(1)), offset));
                acc[j][v] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, _mm512_set1_ps(k[j].scale[g])), acc[j][v]);
            }
        }
    }
    for (int j = 0; j < INDEX_KEYS; j++)
        for (int v = 0; v < nv; v++)
            term[j][h / LANES + v] = _mm512_mul_ps(_mm512_max_ps(acc[j][v], _mm512_setzero_ps()), _mm512_loadu_ps(q->w + h + LANES * v));
}

static float sum_heads(__m512 *term, int64_t padded)
{
    for (int64_t half = padded / LANES / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++) term[i] = _mm512_add_ps(term[i], term[i + half]);
    return bl_lane_tree_avx512(term[0]);
}

static void score_two(float out[INDEX_KEYS], const bl_index_query *q, const uint8_t *row0, const uint8_t *row1, int64_t d)
{
    __m512 terms[INDEX_KEYS][INDEX_MAX_QUERY / 32 / LANES], *term[INDEX_KEYS] = {terms[0], terms[1]};
    bl_index_key k[INDEX_KEYS];
    bl_index_load_key_x86(&k[0], row0, d);
    bl_index_load_key_x86(&k[1], row1, d);
    int64_t h = 0;
    if (q->padded == LANES) head_terms(term, q, 0, k, 1);
    else do head_terms(term, q, h, k, VECTORS);
        while ((h += LANES * VECTORS) < q->padded);
    for (int j = 0; j < INDEX_KEYS; j++) out[j] = sum_heads(term[j], q->padded);
}

static void index_scores_avx512(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys,
                                int64_t n)
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

void bl_op_index_init_avx512(bl_op_kernels *t)
{
    t->index_scores = index_scores_avx512;
}
