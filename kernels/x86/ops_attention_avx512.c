/* Sparse attention, register-blocked: scores of 32 heads x 8 slots, values of 8 heads x 32 elements. */
#include "kernels/x86/fmath_avx512.h"
#include "kernels/x86/ops_attention_x86.h"
#include "kernels/x86/ops_avx512.h"

#define INLINE static inline __attribute__((always_inline))

enum { SLOTS = 8, HEADS = 8 };

/* The sixteen lanes of an output, vertically. */
INLINE __m512 tree(const __m512 *lane, int stride)
{
    __m512 v[8];
    for (int l = 0; l < 8; l++) v[l] = _mm512_add_ps(lane[l * stride], lane[(l + 8) * stride]);
    for (int l = 0; l < 4; l++) v[l] = _mm512_add_ps(v[l], v[l + 4]);
    return _mm512_add_ps(_mm512_add_ps(v[0], v[2]), _mm512_add_ps(v[1], v[3]));
}

/* One product more of nv tiles of heads and ns slots. */
INLINE void add_element(__m512 acc[SLOTS][2], const float *query, int64_t tile, const float *k, int64_t ld, int nv, int ns)
{
    __m512 q0 = _mm512_load_ps(query), q1 = nv == 2 ? _mm512_load_ps(query + tile) : q0;
#pragma GCC unroll 8
    for (int s = 0; s < ns; s++) {
        __m512 x = _mm512_set1_ps(k[s * ld]);
        acc[s][0] = _mm512_fmadd_ps(q0, x, acc[s][0]);
        if (nv == 2) acc[s][1] = _mm512_fmadd_ps(q1, x, acc[s][1]);
    }
}

/* p[slot][head] of nv tiles and ns slots. query: the first tile; rows, p: the first of the slots, p at the tile's first head. */
INLINE void scores_tile(float *p, const bl_attn_work *w, const float *query, const float *rows, float scale, int nv, int ns)
{
    __m512 lanes[ATTN_LANES][SLOTS * 2];
    const int64_t d = w->d, ld = w->ld, padded = w->padded, tile = d * ATTN_TILE;
    for (int l = 0; l < ATTN_LANES; l++) {
        __m512 acc[SLOTS][2];
        const float *k = rows + 2 * l;
#pragma GCC unroll 8
        for (int s = 0; s < ns; s++) acc[s][0] = acc[s][1] = _mm512_setzero_ps();
        for (int64_t e = 0; e < d; e += 32, k += 32, query += 2 * ATTN_TILE) {
            add_element(acc, query, tile, k + 1, ld, nv, ns);
            add_element(acc, query + ATTN_TILE, tile, k, ld, nv, ns);
        }
#pragma GCC unroll 8
        for (int s = 0; s < ns; s++)
            for (int v = 0; v < nv; v++) lanes[l][s * nv + v] = acc[s][v];
    }
    for (int s = 0; s < ns; s++)
        for (int v = 0; v < nv; v++) {
            __m512 dot = tree(&lanes[0][s * nv + v], SLOTS * 2);
            _mm512_store_ps(p + s * padded + ATTN_TILE * v, _mm512_mul_ps(dot, _mm512_set1_ps(scale)));
        }
}

static void scores_two_tiles(const bl_attn_work *w, int64_t head, int64_t slot, float scale)
{
    float *p = w->p + slot * w->padded + head;
    const float *query = w->query + head * w->d, *rows = w->rows + slot * w->ld;
    switch (w->used - slot) {
    case 2: scores_tile(p, w, query, rows, scale, 2, 2); break;
    case 4: scores_tile(p, w, query, rows, scale, 2, 4); break;
    case 6: scores_tile(p, w, query, rows, scale, 2, 6); break;
    default: scores_tile(p, w, query, rows, scale, 2, 8);
    }
}

static void scores_one_tile(const bl_attn_work *w, int64_t head, int64_t slot, float scale)
{
    float *p = w->p + slot * w->padded + head;
    const float *query = w->query + head * w->d, *rows = w->rows + slot * w->ld;
    switch (w->used - slot) {
    case 2: scores_tile(p, w, query, rows, scale, 1, 2); break;
    case 4: scores_tile(p, w, query, rows, scale, 1, 4); break;
    case 6: scores_tile(p, w, query, rows, scale, 1, 6); break;
    default: scores_tile(p, w, query, rows, scale, 1, 8);
    }
}

static void scores(const bl_attn_work *w, float scale)
{
    int64_t head = 0;
    for (; head + 2 * ATTN_TILE <= w->padded; head += 2 * ATTN_TILE)
        for (int64_t slot = 0; slot < w->used; slot += SLOTS) scores_two_tiles(w, head, slot, scale);
    for (int64_t slot = 0; head < w->padded && slot < w->used; slot += SLOTS) scores_one_tile(w, head, slot, scale);
    for (int64_t i = 0; i < w->used; i++)
        if (w->holes >> i & 1)
            for (int64_t h = 0; h < w->heads; h++) w->p[i * w->padded + h] = -INFINITY;
}

/* Scores to probabilities for sixteen heads from head on; their sums, maxima and the factor for what came before. */
static void softmax16(const bl_attn_work *w, int64_t head)
{
    float *p = w->p + head;
    __m512 old = _mm512_load_ps(w->peak + head), most = old, lane[ATTN_LANES];
    for (int64_t i = 0; i < w->used; i++) most = _mm512_max_ps(_mm512_load_ps(p + i * w->padded), most);
    for (int l = 0; l < ATTN_LANES; l++) lane[l] = _mm512_setzero_ps();
    for (int64_t i = 0; i < w->used; i++) {
        __m512 e = bl_exp_avx512(_mm512_sub_ps(_mm512_load_ps(p + i * w->padded), most));
        lane[i % ATTN_LANES] = _mm512_add_ps(lane[i % ATTN_LANES], e);
        _mm512_store_ps(p + i * w->padded, _mm512_castsi512_ps(_mm512_slli_epi32(bl_round_bf16_avx512(e), 16)));
    }
    __m512 fade = bl_exp_avx512(_mm512_sub_ps(old, most));
    __m512 total = _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(w->total + head), fade), tree(lane, 1));
    _mm512_store_ps(w->total + head, total);
    _mm512_store_ps(w->peak + head, most);
    _mm512_store_ps(w->fade + head, fade);
}

/* One slot more for thirty-two value elements of nh heads. */
INLINE void add_slot(__m512 acc[HEADS][2], const float *p, const float *v, int nh)
{
    __m512 v0 = _mm512_load_ps(v), v1 = _mm512_load_ps(v + 16);
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        __m512 x = _mm512_set1_ps(p[h]);
        acc[h][0] = _mm512_fmadd_ps(x, v0, acc[h][0]);
        acc[h][1] = _mm512_fmadd_ps(x, v1, acc[h][1]);
    }
}

/* Thirty-two value elements from e on of nh heads. */
INLINE void values_tile(const bl_attn_work *w, int64_t head, int64_t e, int nh)
{
    __m512 acc[HEADS][2];
    const int64_t ld = w->ld, padded = w->padded, used = w->used;
    float *out = w->acc + head * ld + e;
    const float *p = w->p + head, *v = w->rows + e;
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        __m512 fade = _mm512_set1_ps(w->fade[head + h]);
        acc[h][0] = _mm512_mul_ps(_mm512_load_ps(out + h * ld), fade);
        acc[h][1] = _mm512_mul_ps(_mm512_load_ps(out + h * ld + 16), fade);
    }
    for (int64_t i = 0; i < used; i += 2, p += 2 * padded, v += 2 * ld) {
        add_slot(acc, p + padded, v + ld, nh);
        add_slot(acc, p, v, nh);
    }
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        _mm512_store_ps(out + h * ld, acc[h][0]);
        _mm512_store_ps(out + h * ld + 16, acc[h][1]);
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
    case 6: values_tile(w, head, e, 6); break;
    case 7: values_tile(w, head, e, 7); break;
    default: values_tile(w, head, e, 8);
    }
}

static void finish(const bl_attn_work *w, uint16_t *o, const float *sink)
{
    for (int64_t h = 0; h < w->heads; h++) {
        __m512 total = _mm512_set1_ps(w->total[h] + bl_exp(sink[h] - w->peak[h]));
        const float *acc = w->acc + h * w->ld;
        for (int64_t e = 0; e < w->d; e += 16) bl_narrow_avx512(o + h * w->d + e, _mm512_div_ps(_mm512_load_ps(acc + e), total));
    }
}

static void attention_avx512(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                             float scale, void *scratch)
{
    bl_attn_work w;
    bl_attn_begin_x86(&w, heads, d, scratch);
    bl_attn_query_avx2(&w, q);
    int64_t n = slots->window_slots + slots->selected_slots;
    for (int64_t from = 0; from < n; from += BL_ATTN_BLOCK) {
        bl_attn_load_x86(&w, slots, from, bl_window_row_f32_avx512, bl_latent_row_f32_avx512);
        if (w.used == 0) continue;
        scores(&w, scale);
        for (int64_t h = 0; h < heads; h += ATTN_TILE) softmax16(&w, h);
        for (int64_t e = 0; e < d; e += 32)
            for (int64_t h = 0; h < heads; h += HEADS) values_heads(&w, h, e);
    }
    finish(&w, o, sink);
}

void bl_op_attention_init_avx512(bl_op_kernels *t)
{
    t->attention = attention_avx512;
    t->attention_scratch = bl_attn_scratch_x86;
}
