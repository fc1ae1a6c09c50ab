/* Compressor pooling and the indexer's scores. */
#include "kernels/cast.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"

void bl_pool_pair_c(uint16_t *y, const float *kv0, const float *z0, const float *kv1, const float *z1, int64_t d)
{
    for (int64_t i = 0; i < d; i++) {
        float most = z1[i] > z0[i] ? z1[i] : z0[i];
        float e0 = bl_exp(z0[i] - most), e1 = bl_exp(z1[i] - most), sum = e0 + e1;
        y[i] = bl_f32_to_bf16(kv0[i] * (e0 / sum) + kv1[i] * (e1 / sum));
    }
}

/* Twice the value of an e2m1 code: an integer. */
static int twice(unsigned code)
{
    static const signed char value[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return value[code & 15];
}

/* Four times the dot product of 32 codes: at most 4608. */
static int dot_codes(const uint8_t *a, const uint8_t *b)
{
    int sum = 0;
    for (int i = 0; i < 16; i++) sum += twice(a[i]) * twice(b[i]) + twice(a[i] >> 4) * twice(b[i] >> 4);
    return sum;
}

static float index_dot(const uint8_t *q, const uint8_t *k, int64_t d)
{
    float acc = 0;
    for (int64_t g = 0; g < d / 32; g++) {
        float scale = 0.25f * bl_e8m0_to_f32(q[d / 2 + g]) * bl_e8m0_to_f32(k[d / 2 + g]);
        acc = fmaf((float)dot_codes(q + 16 * g, k + 16 * g), scale, acc);
    }
    return acc;
}

/* The tree over heads [from, from + size) of those padded to a power of two, whose step pairs h with h + half: split by the
 * lowest bit, so heads of one parity meet last. */
static float head_tree(const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *key, int64_t from, int64_t step,
                       int64_t padded)
{
    if (step == padded) {
        if (from >= heads) return 0;
        float dot = index_dot(q + from * (int64_t)bl_index_row_bytes(d), key, d);
        return (dot > 0 ? dot : 0) * w[from];
    }
    return head_tree(q, w, heads, d, key, from, 2 * step, padded) + head_tree(q, w, heads, d, key, from + step, 2 * step, padded);
}

void bl_index_scores_c(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n)
{
    int64_t padded = bl_index_padded_heads(heads);
    for (int64_t j = 0; j < n; j++)
        scores[j] = head_tree(q, w, heads, d, keys + j * (int64_t)bl_index_row_bytes(d), 0, 1, padded);
}
