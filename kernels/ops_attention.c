/* Sparse attention of one query token: online softmax over blocks of 64 slots, key = value, one row shared by all heads. */
#include "kernels/cast.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"
#include "kernels/row_sum.h"

/* Scratch, in floats: the block's rows [64, d], the query [heads, d], accumulators [heads, d], denominators and maxima. */
size_t bl_attention_scratch_c(int64_t heads, int64_t d)
{
    return sizeof(float) * (size_t)(BL_ATTN_BLOCK * d + 2 * heads * d + 2 * heads);
}

static const uint8_t *slot_row(const bl_attn_slots *s, int64_t i)
{
    return i < s->window_slots ? s->window[i] : s->selected[i - s->window_slots];
}

static void widen(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = bl_bf16_to_f32(x[i]);
}

/* Decode the block of slots [from, to) to rows, holes to zeros. Returns the slots to walk: up to the last kept one, made
 * even; 0 when there is none. */
static int64_t load_block(float *rows, int kept[BL_ATTN_BLOCK], const bl_attn_slots *slots, int64_t from, int64_t to, int64_t d,
                          uint16_t *bf)
{
    int64_t used = 0;
    for (int64_t i = 0; i < BL_ATTN_BLOCK; i++) {
        const uint8_t *row = from + i < to ? slot_row(slots, from + i) : NULL;
        kept[i] = row != NULL;
        if (!row) {
            for (int64_t e = 0; e < d; e++) rows[i * d + e] = 0;
            continue;
        }
        if (from + i < slots->window_slots) bl_unpack_window_c(bf, row, d);
        else bl_unpack_latent_c(bf, row, d);
        widen(rows + i * d, bf, d);
        used = i + 1;
    }
    return used + used % 2;
}

/* One block for one head. */
static void head_block(float *acc, float *total, float *peak, const float *q, const float *rows, const int *kept, int64_t used,
                       int64_t d, float scale)
{
    float s[BL_ATTN_BLOCK], lane[16] = {0}, most = *peak;
    for (int64_t i = 0; i < used; i++) {
        s[i] = kept[i] ? bl_pair_dot(q, rows + i * d, d) * scale : -INFINITY;
        if (s[i] > most) most = s[i];
    }
    float fade = bl_exp(*peak - most);
    for (int64_t i = 0; i < used; i++) {
        s[i] = bl_exp(s[i] - most);
        lane[i % 16] += s[i];
        s[i] = bl_bf16_to_f32(bl_f32_to_bf16(s[i]));
    }
    *total = *total * fade + bl_lane_tree(lane);
    *peak = most;
    for (int64_t e = 0; e < d; e++) {
        float a = acc[e] * fade;
        for (int64_t i = 0; i < used; i += 2) {
            a = fmaf(s[i + 1], rows[(i + 1) * d + e], a);
            a = fmaf(s[i], rows[i * d + e], a);
        }
        acc[e] = a;
    }
}

void bl_attention_c(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                    float scale, void *scratch)
{
    float *rows = scratch, *query = rows + BL_ATTN_BLOCK * d, *acc = query + heads * d, *total = acc + heads * d;
    float *peak = total + heads;
    int kept[BL_ATTN_BLOCK];
    widen(query, q, heads * d);
    for (int64_t i = 0; i < heads * d; i++) acc[i] = 0;
    for (int64_t h = 0; h < heads; h++) {
        total[h] = 0;
        peak[h] = -1e30f;
    }
    int64_t n = slots->window_slots + slots->selected_slots;
    for (int64_t from = 0; from < n; from += BL_ATTN_BLOCK) {
        /* o serves as the bf16 row until the end: it is written once everything has been read */
        int64_t used = load_block(rows, kept, slots, from, n, d, o);
        for (int64_t h = 0; used && h < heads; h++)
            head_block(acc + h * d, total + h, peak + h, query + h * d, rows, kept, used, d, scale);
    }
    for (int64_t h = 0; h < heads; h++) {
        total[h] += bl_exp(sink[h] - peak[h]);
        for (int64_t e = h * d; e < (h + 1) * d; e++) o[e] = bl_f32_to_bf16(acc[e] / total[h]);
    }
}
