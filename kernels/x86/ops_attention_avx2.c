/* Sparse attention, register-blocked: scores of 16 heads x 6 slots, values of 6 heads x 16 elements. */
#include "kernels/x86/fmath_avx2.h"
#include "kernels/x86/ops_attention_x86.h"
#include "kernels/x86/ops_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum { SLOTS = 6, HEADS = 6 };

void bl_attn_query_avx2(bl_attn_work *w, const uint16_t *q)
{
    for (int64_t h = 0; h < w->padded; h += 8)
        for (int64_t e = 0; e < w->d; e += 8) {
            __m256 r[8];
            for (int k = 0; k < 8; k++)
                r[k] = h + k < w->heads ? bl_widen_avx2(q + (h + k) * w->d + e) : _mm256_setzero_ps();
            bl_transpose8_avx2(r);
            for (int k = 0; k < 8; k++) _mm256_store_ps(bl_attn_query_x86(w, h, e + k), r[k]);
        }
}

/* The sixteen lanes of an output, vertically. */
INLINE __m256 tree(const __m256 *lane, int stride)
{
    __m256 v[8];
    for (int l = 0; l < 8; l++) v[l] = _mm256_add_ps(lane[l * stride], lane[(l + 8) * stride]);
    for (int l = 0; l < 4; l++) v[l] = _mm256_add_ps(v[l], v[l + 4]);
    return _mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3]));
}

/* p[slot][head] of nv * 8 heads and ns slots. query: a tile; rows, p: the first of the slots, p at the tile's first head. */
INLINE void scores_tile(float *p, int64_t padded, const float *query, const float *rows, int64_t ld, int64_t d, float scale, int nv,
                        int ns)
{
    __m256 lanes[ATTN_LANES][SLOTS * 2];
    for (int l = 0; l < ATTN_LANES; l++) {
        __m256 acc[SLOTS][2];
        const float *k = rows + 2 * l;
        for (int s = 0; s < ns; s++)
            for (int v = 0; v < nv; v++) acc[s][v] = _mm256_setzero_ps();
        for (int64_t e = 0; e < d; e += 32, k += 32)
            for (int odd = 1; odd >= 0; odd--, query += ATTN_TILE) {
                __m256 q0 = _mm256_load_ps(query), q1 = _mm256_load_ps(query + 8);
                for (int s = 0; s < ns; s++) {
                    __m256 x = _mm256_broadcast_ss(k + s * ld + odd);
                    acc[s][0] = _mm256_fmadd_ps(q0, x, acc[s][0]);
                    if (nv == 2) acc[s][1] = _mm256_fmadd_ps(q1, x, acc[s][1]);
                }
            }
        for (int s = 0; s < ns; s++)
            for (int v = 0; v < nv; v++) lanes[l][s * nv + v] = acc[s][v];
    }
    for (int s = 0; s < ns; s++)
        for (int v = 0; v < nv; v++) {
            __m256 dot = tree(&lanes[0][s * nv + v], SLOTS * 2);
            _mm256_store_ps(p + s * padded + 8 * v, _mm256_mul_ps(dot, _mm256_set1_ps(scale)));
        }
}

static void scores_slots(bl_attn_work *w, int64_t head, int64_t slot, float scale)
{
    float *p = w->p + slot * w->padded + head;
    const float *query = w->query + head * w->d, *rows = w->rows + slot * w->ld;
    int64_t left = w->used - slot;
    if (w->heads - head > 8) {
        if (left >= 6) scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 2, 6);
        else if (left == 4) scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 2, 4);
        else scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 2, 2);
    } else {
        if (left >= 6) scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 1, 6);
        else if (left == 4) scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 1, 4);
        else scores_tile(p, w->padded, query, rows, w->ld, w->d, scale, 1, 2);
    }
}

static void scores(bl_attn_work *w, float scale)
{
    for (int64_t head = 0; head < w->heads; head += ATTN_TILE)
        for (int64_t slot = 0; slot < w->used; slot += SLOTS) scores_slots(w, head, slot, scale);
    for (int64_t i = 0; i < w->used; i++)
        if (w->holes >> i & 1)
            for (int64_t h = 0; h < w->heads; h++) w->p[i * w->padded + h] = -INFINITY;
}

/* Scores to probabilities for eight heads from head on; their sums, maxima and the factor for what came before. */
static void softmax8(bl_attn_work *w, int64_t head)
{
    float *p = w->p + head;
    __m256 old = _mm256_load_ps(w->peak + head), most = old, lane[ATTN_LANES];
    for (int64_t i = 0; i < w->used; i++) most = _mm256_max_ps(_mm256_load_ps(p + i * w->padded), most);
    for (int l = 0; l < ATTN_LANES; l++) lane[l] = _mm256_setzero_ps();
    for (int64_t i = 0; i < w->used; i++) {
        __m256 e = bl_exp_avx2(_mm256_sub_ps(_mm256_load_ps(p + i * w->padded), most));
        lane[i % ATTN_LANES] = _mm256_add_ps(lane[i % ATTN_LANES], e);
        _mm256_store_ps(p + i * w->padded, _mm256_castsi256_ps(_mm256_slli_epi32(bl_round_bf16_avx2(e), 16)));
    }
    __m256 fade = bl_exp_avx2(_mm256_sub_ps(old, most));
    __m256 total = _mm256_add_ps(_mm256_mul_ps(_mm256_load_ps(w->total + head), fade), tree(lane, 1));
    _mm256_store_ps(w->total + head, total);
    _mm256_store_ps(w->peak + head, most);
    _mm256_store_ps(w->fade + head, fade);
}

/* One slot more for sixteen value elements of nh heads. */
INLINE void add_slot(__m256 acc[HEADS][2], const float *p, const float *v, int nh)
{
    __m256 v0 = _mm256_load_ps(v), v1 = _mm256_load_ps(v + 8);
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        __m256 x = _mm256_broadcast_ss(p + h);
        acc[h][0] = _mm256_fmadd_ps(x, v0, acc[h][0]);
        acc[h][1] = _mm256_fmadd_ps(x, v1, acc[h][1]);
    }
}

/* Sixteen value elements from e on of nh heads. */
INLINE void values_tile(const bl_attn_work *w, int64_t head, int64_t e, int nh)
{
    __m256 acc[HEADS][2];
    const int64_t ld = w->ld, padded = w->padded, used = w->used;
    float *out = w->acc + head * ld + e;
    const float *p = w->p + head, *v = w->rows + e;
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        __m256 fade = _mm256_broadcast_ss(w->fade + head + h);
        acc[h][0] = _mm256_mul_ps(_mm256_load_ps(out + h * ld), fade);
        acc[h][1] = _mm256_mul_ps(_mm256_load_ps(out + h * ld + 8), fade);
    }
    for (int64_t i = 0; i < used; i += 2, p += 2 * padded, v += 2 * ld) {
        add_slot(acc, p + padded, v + ld, nh);
        add_slot(acc, p, v, nh);
    }
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        _mm256_store_ps(out + h * ld, acc[h][0]);
        _mm256_store_ps(out + h * ld + 8, acc[h][1]);
    }
}

static void values_heads(const bl_attn_work *w, int64_t head, int64_t e)
{
    switch (w->heads - head) {
    case 1: values_tile(w, head, e, 1); break;
    case 2: values_tile(w, head, e, 2); break;
    case 3: values_tile(w, head, e, 3); break;
    case 4: values_tile(w, head, e, 4); break;
    case 5: values_tile(w, head, e, 5); break;
    default: values_tile(w, head, e, 6);
    }
}

static void finish(bl_attn_work *w, uint16_t *o, const float *sink)
{
    for (int64_t h = 0; h < w->heads; h++) {
        __m256 total = _mm256_set1_ps(w->total[h] + bl_exp(sink[h] - w->peak[h]));
        const float *acc = w->acc + h * w->ld;
        for (int64_t e = 0; e < w->d; e += 16)
            bl_narrow_avx2(o + h * w->d + e, _mm256_div_ps(_mm256_load_ps(acc + e), total),
                           _mm256_div_ps(_mm256_load_ps(acc + e + 8), total));
    }
}

static void attention_avx2(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                           float scale, void *scratch)
{
    bl_attn_work w;
    bl_attn_begin_x86(&w, heads, d, scratch);
    bl_attn_query_avx2(&w, q);
    int64_t n = slots->window_slots + slots->selected_slots;
    for (int64_t from = 0; from < n; from += BL_ATTN_BLOCK) {
        bl_attn_load_x86(&w, slots, from, bl_window_row_f32_avx2, bl_latent_row_f32_avx2);
        if (w.used == 0) continue;
        scores(&w, scale);
        for (int64_t h = 0; h < heads; h += 8) softmax8(&w, h);
        for (int64_t e = 0; e < d; e += 16)
            for (int64_t h = 0; h < heads; h += HEADS) values_heads(&w, h, e);
    }
    finish(&w, o, sink);
}

void bl_op_attention_init_avx2(bl_op_kernels *t)
{
    t->attention = attention_avx2;
    t->attention_scratch = bl_attn_scratch_x86;
}
