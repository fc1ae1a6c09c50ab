/* The frame that the x86 variants of sparse attention share: scratch, and the order of the work. All heads multiply the same
 * rows, so a block of 64 slots is decoded once and both products are register-blocked; heads are the vector dimension of the
 * scores and of the softmax (every sum over slots is then vertical), value elements that of the value product.
 *
 * Heads come in tiles of 16. The query is stored as [tile][lane][element of the lane][16 heads], an order in which one lane of
 * the fixed sum over d reads consecutive memory: element 2b of lane l is x[32b + 2l + 1], element 2b + 1 is x[32b + 2l]. */
#ifndef BL_KERNELS_X86_OPS_ATTENTION_X86_H
#define BL_KERNELS_X86_OPS_ATTENTION_X86_H

#include "kernels/ops.h"

#include <string.h>

enum { ATTN_TILE = 16, ATTN_LANES = 16 };

typedef struct bl_attn_work {
    int64_t heads, padded, d; /* padded: heads up to whole tiles */
    int64_t ld;               /* floats from row to row: d and a cache line, so that a column of rows does not share a cache set */
    float *query;             /* [padded / 16][16 lanes][d / 16][16 heads] */
    float *rows;              /* [64][ld] the block's keys = values */
    float *p;                 /* [64][padded] scores, then probabilities rounded to bf16 */
    float *acc;               /* [heads][ld] */
    float *total, *peak, *fade; /* [padded] */
    int64_t used;             /* slots of this block to walk, even */
    uint64_t holes;           /* bit i: slot i of the block is a hole */
} bl_attn_work;

static inline size_t bl_attn_scratch_x86(int64_t heads, int64_t d)
{
    int64_t padded = (heads + ATTN_TILE - 1) / ATTN_TILE * ATTN_TILE, ld = d + 16;
    return sizeof(float) * (size_t)(padded * d + BL_ATTN_BLOCK * ld + BL_ATTN_BLOCK * padded + heads * ld + 3 * padded);
}

/* Lays out scratch (64-byte aligned) and fills acc, total and peak; query is the variant's to fill. */
static inline void bl_attn_begin_x86(bl_attn_work *w, int64_t heads, int64_t d, void *scratch)
{
    int64_t padded = (heads + ATTN_TILE - 1) / ATTN_TILE * ATTN_TILE, ld = d + 16;
    float *at = scratch;
    *w = (bl_attn_work){.heads = heads, .padded = padded, .d = d, .ld = ld};
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
}

/* Where element e of head h's query goes; the eight heads from a multiple of 8 on are neighbours. */
static inline float *bl_attn_query_x86(const bl_attn_work *w, int64_t h, int64_t e)
{
    int64_t lane = e % 32 / 2, element = e / 32 * 2 + (e % 2 == 0);
    return w->query + h / ATTN_TILE * ATTN_TILE * w->d + (lane * (w->d / 16) + element) * ATTN_TILE + h % ATTN_TILE;
}

/* ops_attention_avx2.c: fills query from q [heads, d], zeros for the heads that pad. */
void bl_attn_query_avx2(bl_attn_work *w, const uint16_t *q);

typedef void bl_attn_decode(float *x, const uint8_t *row, int64_t d);

/* Decodes the block of slots that begins at from, and sets used and holes. Holes below used become zeros. */
static inline void bl_attn_load_x86(bl_attn_work *w, const bl_attn_slots *slots, int64_t from, bl_attn_decode *window,
                                    bl_attn_decode *latent)
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
        (s < 0 ? window : latent)(w->rows + i * w->ld, row, w->d);
        used = i + 1;
    }
    w->used = used + used % 2;
    for (int64_t i = 0; i < w->used; i++)
        if (w->holes >> i & 1) memset(w->rows + i * w->ld, 0, sizeof(float) * (size_t)w->d);
}

#endif
