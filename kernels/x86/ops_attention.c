/* Sparse attention. All heads multiply the same rows, so a block of 64 slots is decoded once and both products are blocked in
 * registers: scores of 2 vectors of heads x 6 or 8 slots, values of 6 or 8 heads x 2 vectors of elements. Heads are the vector
 * dimension of the scores and of the softmax (every sum over slots is then vertical), elements that of the value product.
 *
 * Heads come in tiles of 16. The query is stored as [tile][lane][element of the lane][16 heads], an order in which one lane of
 * the fixed sum over d reads consecutive memory: element 2b of lane l is x[32b + 2l + 1], element 2b + 1 is x[32b + 2l]. */
#include "kernels/x86/fmath_x86.h"
#include "kernels/x86/ops_x86.h"

#include <string.h>

enum {
    TILE = 16,
    LANE_SUMS = 16,
    MOST = 8,                      /* slots of scores or heads of values at a time, at any level */
    SLOTS = LANES == 8 ? 6 : MOST, /* what sixteen and thirty-two registers hold */
    HEADS = SLOTS
};

typedef struct work {
    int64_t heads, padded, d; /* padded: heads up to whole tiles */
    int64_t ld;               /* floats from row to row: d and a cache line, so that a column of rows does not share a cache set */
    float *query;             /* [padded / 16][16 lanes][d / 16][16 heads] */
    float *rows;              /* [64][ld] the block's keys = values */
    float *p;                 /* [64][padded] scores, then probabilities rounded to bf16 */
    float *acc;               /* [heads][ld] */
    float *total, *peak, *fade; /* [padded] */
    int64_t used;             /* slots of this block to walk, even */
    uint64_t holes;           /* bit i: slot i of the block is a hole */
} work;

static size_t attention_scratch(int64_t heads, int64_t d)
{
    int64_t padded = (heads + TILE - 1) / TILE * TILE, ld = d + 16;
    return sizeof(float) * (size_t)(padded * d + BL_ATTN_BLOCK * ld + BL_ATTN_BLOCK * padded + heads * ld + 3 * padded);
}

/* Where element e of head h's query goes; the eight heads from a multiple of 8 on are neighbours. */
static inline float *query_at(const work *w, int64_t h, int64_t e)
{
    int64_t lane = e % 32 / 2, element = e / 32 * 2 + (e % 2 == 0);
    return w->query + h / TILE * TILE * w->d + (lane * (w->d / 16) + element) * TILE + h % TILE;
}

/* Fills query from q [heads, d], zeros for the heads that pad. */
static void load_query(work *w, const uint16_t *q)
{
    for (int64_t h = 0; h < w->padded; h += 8)
        for (int64_t e = 0; e < w->d; e += 8) {
            __m256 r[8];
            for (int k = 0; k < 8; k++)
                r[k] = h + k < w->heads ? vec_widen8(q + (h + k) * w->d + e) : _mm256_setzero_ps();
            vec_transpose8(r);
            for (int k = 0; k < 8; k++) _mm256_store_ps(query_at(w, h, e + k), r[k]);
        }
}

/* Lays out scratch (64-byte aligned) for q [heads, d]. */
static void begin(work *w, const uint16_t *q, int64_t heads, int64_t d, void *scratch)
{
    int64_t padded = (heads + TILE - 1) / TILE * TILE, ld = d + 16;
    float *at = scratch;
    *w = (work){.heads = heads, .padded = padded, .d = d, .ld = ld};
    w->query = at;
    w->rows = w->query + padded * d;
    w->p = w->rows + BL_ATTN_BLOCK * ld;
    w->acc = w->p + BL_ATTN_BLOCK * padded;
    w->total = w->acc + heads * ld;
    w->peak = w->total + padded;
    w->fade = w->peak + padded;
    for (int64_t h = 0; h < padded; h++) {
        w->total[h] = 0;
        w->peak[h] = -1e30f;
    }
    memset(w->acc, 0, sizeof(float) * (size_t)(heads * ld));
    load_query(w, q);
}

/* Decodes the block of slots that begins at from, and sets used and holes. Holes below used become zeros. */
static void load_rows(work *w, const bl_attn_slots *slots, int64_t from)
{
    int64_t n = slots->window_slots + slots->selected_slots, used = 0;
    w->holes = 0;
    for (int64_t i = 0; i < BL_ATTN_BLOCK; i++) {
        int64_t s = from + i - slots->window_slots;
        const uint8_t *row = from + i >= n ? NULL : s < 0 ? slots->window[from + i] : slots->selected[s];
        if (!row) {
            w->holes |= 1ull << i;
            continue;
        }
        if (s < 0) BL_LEVEL(bl_window_row_f32)(w->rows + i * w->ld, row, w->d);
        else BL_LEVEL(bl_latent_row_f32)(w->rows + i * w->ld, row, w->d);
        used = i + 1;
    }
    w->used = used + used % 2;
    for (int64_t i = 0; i < w->used; i++)
        if (w->holes >> i & 1) memset(w->rows + i * w->ld, 0, sizeof(float) * (size_t)w->d);
}

/* ---- scores */

/* The sixteen lanes of an output, vertically. */
BL_INLINE vf tree(const vf *lane, int stride)
{
    vf v[8];
    for (int l = 0; l < 8; l++) v[l] = lane[l * stride] + lane[(l + 8) * stride];
    for (int l = 0; l < 4; l++) v[l] = v[l] + v[l + 4];
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/* One product more of nv vectors of heads and ns slots. next: floats to the second vector of the query. */
BL_INLINE void add_element(vf acc[MOST][2], const float *query, int64_t next, const float *k, int64_t ld, int nv, int ns)
{
    vf q0 = vf_load(query), q1 = nv == 2 ? vf_load(query + next) : q0;
#pragma GCC unroll 8
    for (int s = 0; s < ns; s++) {
        vf x = vf_set1(k[s * ld]);
        acc[s][0] = vf_fmadd(q0, x, acc[s][0]);
        if (nv == 2) acc[s][1] = vf_fmadd(q1, x, acc[s][1]);
    }
}

/* p[slot][head] of nv vectors of heads and ns slots. query, p: at the first head; rows, p: at the first slot. */
BL_INLINE void scores_tile(float *p, const work *w, const float *query, const float *rows, float scale, int nv, int ns)
{
    vf lanes[LANE_SUMS][MOST * 2];
    const int64_t d = w->d, ld = w->ld, padded = w->padded;
    const int64_t next = VECS == 2 ? LANES : d * TILE; /* in this tile or in the one after */
    for (int l = 0; l < LANE_SUMS; l++) {
        vf acc[MOST][2];
        const float *k = rows + 2 * l;
#pragma GCC unroll 8
        for (int s = 0; s < ns; s++) acc[s][0] = acc[s][1] = vf_zero();
        for (int64_t e = 0; e < d; e += 32, k += 32)
            for (int odd = 1; odd >= 0; odd--, query += TILE) add_element(acc, query, next, k + odd, ld, nv, ns);
#pragma GCC unroll 8
        for (int s = 0; s < ns; s++)
            for (int v = 0; v < nv; v++) lanes[l][s * nv + v] = acc[s][v];
    }
    for (int s = 0; s < ns; s++)
        for (int v = 0; v < nv; v++) vf_store(p + s * padded + LANES * v, tree(&lanes[0][s * nv + v], MOST * 2) * vf_set1(scale));
}

/* As many slots from slot on as fit the registers. */
BL_INLINE void scores_slots(const work *w, int64_t head, int64_t slot, float scale, int nv)
{
    float *p = w->p + slot * w->padded + head;
    const float *query = w->query + head * w->d, *rows = w->rows + slot * w->ld;
    switch (w->used - slot < SLOTS ? w->used - slot : SLOTS) {
    case 2: scores_tile(p, w, query, rows, scale, nv, 2); break;
    case 4: scores_tile(p, w, query, rows, scale, nv, 4); break;
    case 6: scores_tile(p, w, query, rows, scale, nv, 6); break;
    case 8: scores_tile(p, w, query, rows, scale, nv, 8);
    }
}

/* Inlined into the loops over all of them, the scale would take a register that the tiles need. */
static __attribute__((noinline)) void scores_heads(const work *w, int64_t head, int64_t slot, float scale)
{
    if (w->heads - head > LANES) scores_slots(w, head, slot, scale, 2);
    else scores_slots(w, head, slot, scale, 1);
}

static void scores(const work *w, float scale)
{
    for (int64_t head = 0; head < w->heads; head += 2 * LANES)
        for (int64_t slot = 0; slot < w->used; slot += SLOTS) scores_heads(w, head, slot, scale);
    for (int64_t i = 0; i < w->used; i++)
        if (w->holes >> i & 1)
            for (int64_t h = 0; h < w->heads; h++) w->p[i * w->padded + h] = -INFINITY;
}

/* ---- probabilities */

/* Scores to probabilities for a vector of heads from head on; their sums, maxima and the factor for what came before. */
static void softmax(const work *w, int64_t head)
{
    float *p = w->p + head;
    vf old = vf_load(w->peak + head), most = old, lane[LANE_SUMS];
    for (int64_t i = 0; i < w->used; i++) most = vf_max(vf_load(p + i * w->padded), most);
    for (int l = 0; l < LANE_SUMS; l++) lane[l] = vf_zero();
    for (int64_t i = 0; i < w->used; i++) {
        vf e = vf_exp(vf_load(p + i * w->padded) - most);
        lane[i % LANE_SUMS] = lane[i % LANE_SUMS] + e;
        vf_store(p + i * w->padded, (vf)vi_shl_32(vf_round_bf16(e), 16));
    }
    vf fade = vf_exp(old - most);
    vf_store(w->total + head, vf_load(w->total + head) * fade + tree(lane, 1));
    vf_store(w->peak + head, most);
    vf_store(w->fade + head, fade);
}

/* ---- values */

/* One slot more for two vectors of value elements of nh heads. */
BL_INLINE void add_slot(vf acc[MOST][2], const float *p, const float *value, int nh)
{
    vf v0 = vf_load(value), v1 = vf_load(value + LANES);
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        vf x = vf_set1(p[h]);
        acc[h][0] = vf_fmadd(x, v0, acc[h][0]);
        acc[h][1] = vf_fmadd(x, v1, acc[h][1]);
    }
}

/* Two vectors of value elements from e on of nh heads. */
BL_INLINE void values_tile(const work *w, int64_t head, int64_t e, int nh)
{
    vf acc[MOST][2];
    const int64_t ld = w->ld, padded = w->padded, used = w->used;
    float *out = w->acc + head * ld + e;
    const float *p = w->p + head, *value = w->rows + e;
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        vf fade = vf_set1(w->fade[head + h]);
        acc[h][0] = vf_load(out + h * ld) * fade;
        acc[h][1] = vf_load(out + h * ld + LANES) * fade;
    }
    for (int64_t i = 0; i < used; i += 2, p += 2 * padded, value += 2 * ld) {
        add_slot(acc, p + padded, value + ld, nh);
        add_slot(acc, p, value, nh);
    }
#pragma GCC unroll 8
    for (int h = 0; h < nh; h++) {
        vf_store(out + h * ld, acc[h][0]);
        vf_store(out + h * ld + LANES, acc[h][1]);
    }
}

static void values_heads(const work *w, int64_t head, int64_t e)
{
    switch (w->heads - head < HEADS ? w->heads - head : HEADS) {
    case 1: values_tile(w, head, e, 1); break;
    case 2: values_tile(w, head, e, 2); break;
    case 3: values_tile(w, head, e, 3); break;
    case 4: values_tile(w, head, e, 4); break;
    case 5: values_tile(w, head, e, 5); break;
    case 6: values_tile(w, head, e, 6); break;
    case 7: values_tile(w, head, e, 7); break;
    case 8: values_tile(w, head, e, 8);
    }
}

static void finish(const work *w, uint16_t *o, const float *sink)
{
    for (int64_t h = 0; h < w->heads; h++) {
        const vf total = vf_set1(w->total[h] + bl_exp(sink[h] - w->peak[h]));
        const float *acc = w->acc + h * w->ld;
        for (int64_t e = 0; e < w->d; e += 16) {
            vf out[VECS];
            for (int v = 0; v < VECS; v++) out[v] = vf_load(acc + e + LANES * v) / total;
            vf_narrow(o + h * w->d + e, out);
        }
    }
}

static void attention(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                      float scale, void *scratch)
{
    work w;
    begin(&w, q, heads, d, scratch);
    int64_t n = slots->window_slots + slots->selected_slots;
    for (int64_t from = 0; from < n; from += BL_ATTN_BLOCK) {
        load_rows(&w, slots, from);
        if (w.used == 0) continue;
        scores(&w, scale);
        for (int64_t h = 0; h < heads; h += LANES) softmax(&w, h);
        for (int64_t e = 0; e < d; e += 2 * LANES)
            for (int64_t h = 0; h < heads; h += HEADS) values_heads(&w, h, e);
    }
    finish(&w, o, sink);
}

void BL_LEVEL(bl_op_attention_init)(bl_op_kernels *t)
{
    t->attention = attention;
    t->attention_scratch = attention_scratch;
}
