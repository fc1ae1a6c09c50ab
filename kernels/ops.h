/* The model's operations besides the linear product (kernels/linear.h). Single-threaded, no allocation: callers split
 * tokens or heads over threads, and every output element's order of operations is fixed here, so results depend neither on
 * the split nor on the variant: every variant gives the bits of the C reference.
 *
 * bf16 values are uint16_t. T tokens, D hidden size, S = 4 residual streams, d head dimension, R rope dimensions.
 * Sums over a row ("row sum" below): 16 float32 lanes, lane l takes elements 16i + l ascending by fma (squares) or addition,
 * then the tree l+(l+8), l+(l+4), l+(l+2), l+(l+1); a tail below 16 goes to lanes 0... exp, sigmoid, softplus and 1/sqrt are
 * those of kernels/fmath.h. Sums and products written without fma round after each operation, left to right. "The bits" hold
 * for everything but which NaN a NaN is. Row lengths (n, d, D, width) are multiples of 32, as linear.h wants of every K, but
 * for to_bf16 and accumulate, which take any. No pointer needs more than its element's alignment unless said; no two arguments
 * overlap unless said. */
#ifndef BL_KERNELS_OPS_H
#define BL_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of packed cache rows (formats in cast.h terms): e4m3 codes then e8m0 scales; e2m1 pairs then scales. */
static inline size_t bl_window_row_bytes(int64_t d) { return (size_t)(d + d / 32); }      /* 528 at d = 512 */
static inline size_t bl_latent_row_bytes(int64_t d) { return (size_t)(d / 2 + d / 16); }  /* 288 at d = 512 */
static inline size_t bl_index_row_bytes(int64_t d) { return (size_t)(d / 2 + d / 32); }   /* 68 at d = 128 */

#define BL_ATTN_BLOCK 64 /* slots per step of the online softmax */

/* The kept compressed entries and window of one query, in list order; a hole is a NULL row. */
typedef struct bl_attn_slots {
    const uint8_t *const *window;   /* [window_slots] packed window rows or NULL, ascending position */
    const uint8_t *const *selected; /* [selected_slots] packed latent rows or NULL, ascending entry */
    int64_t window_slots, selected_slots;
} bl_attn_slots;

typedef struct bl_op_kernels {
    const char *name;

    /* ---- roundings (groups along the row; n a multiple of the group), as value -> value. A group that is not all finite
     * becomes NaN (bf16 0x7FC0; packed: a NaN scale). */
    /* y = bf16(e4m3(x / s) * s), groups of 32, s = 2^ceil(log2(max(amax, 1e-4) * fl(1/448))). y may equal x. */
    void (*round_fp8)(uint16_t *y, const uint16_t *x, int64_t n);
    /* ... and to packed cache rows and back: unpack(pack(x)) is the rounding. unpack takes what pack made. */
    void (*pack_window)(uint8_t *row, const uint16_t *x, int64_t d);  /* fp8, groups of 32 */
    void (*pack_latent)(uint8_t *row, const uint16_t *x, int64_t d);  /* e2m1, e4m3 scale amax/6 (floor 2^-9), groups of 16 */
    void (*pack_index)(uint8_t *row, const uint16_t *x, int64_t d);   /* e2m1, s = 2^ceil(log2(max(amax, 6 * 2^-126) * fl(1/6))), groups of 32 */
    void (*unpack_window)(uint16_t *x, const uint8_t *row, int64_t d);
    void (*unpack_latent)(uint16_t *x, const uint8_t *row, int64_t d);
    void (*unpack_index)(uint16_t *x, const uint8_t *row, int64_t d);
    /* y[i] = bf16(x[i]), nearest even. */
    void (*to_bf16)(uint16_t *y, const float *x, int64_t n);

    /* ---- norms and positions */
    /* y = bf16(w * (x * (1 / sqrt(sum / n + eps)))) per row of T rows of n, sum the row sum of squares; w bf16 [n]. y may
     * equal x. */
    void (*rmsnorm)(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps);
    /* Rotate the last R of d in each of heads rows at x (stride d) as adjacent pairs by cs [R/2][2] = (cos, sin) fp32;
     * conjugate when inverse. Products and sums as (a*c - b*s), (a*s + b*c), each product rounded, then bf16. */
    void (*rope)(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse);

    /* ---- residual streams (H is [S, D] bf16 per token) */
    /* From m [24] = fn . flatten(H) (raw dot products) and sum = row sum of squares of flatten(H) (n = S*D elements):
     * r = 1/sqrt(sum/n + eps_rms); pre [4] = sigmoid(m * r * scale + base) + eps, post [4] = 2 sigmoid(...), comb [4][4]
     * (source, target): softmax over targets + eps, columns / (sum + eps), then iters - 1 rounds of rows and columns. fp32,
     * four-term sums ascending. */
    void (*mix)(float *pre, float *post, float *comb, const float *m, float sum, int64_t n, const float *scale3,
                const float *base24, float eps_rms, float eps, int iters);
    /* Row sum of squares of n bf16. */
    float (*sum_squares)(const uint16_t *x, int64_t n);
    /* y[D] = bf16(sum_j pre[j] * H[j]), j ascending: product, then fma. */
    void (*collapse)(uint16_t *y, const uint16_t *H, const float *pre, int64_t D);
    /* out[k] = bf16(fma(post[k], y, sum_j comb[j][k] * H[j])), j ascending: product, then fma. out may equal H. */
    void (*expand)(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D);

    /* ---- attention */
    /* One query token: q [heads, d] bf16 (rotated), slots, sink [heads] fp32 -> o [heads, d] bf16 (not yet rotated back).
     * Slots in list order, window then selected, in blocks of 64; per block the scores are linear.h's order over d, times
     * scale; running maximum from -1e30; p = exp(s - max); denominator: row sum of p per block added ascending; p rounded to
     * bf16 for the value product, which walks slot pairs ascending: acc = fma(p[2i+1], v[2i+1], acc), then 2i; both
     * rescaled by exp(old - new) before a block's terms are added; at the end denominator += exp(sink - max),
     * o = bf16(acc / denominator). A hole scores -inf and its row is zeros; the walk over a block ends with the pair of its
     * last kept slot, and a block of holes is skipped. A list of holes gives 0. heads >= 1, d a multiple of 32. scratch from
     * attention_scratch, 64-byte aligned. o may equal q. */
    void (*attention)(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                      float scale, void *scratch);
    size_t (*attention_scratch)(int64_t heads, int64_t d);

    /* ---- compressor and indexer */
    /* A ratio-2 pair: kv0, z0 of the even token, kv1, z1 of the odd one, fp32 [d] -> bf16(sum softmax(z) * kv). */
    void (*pool_pair)(uint16_t *y, const float *kv0, const float *z0, const float *kv1, const float *z1, int64_t d);
    /* scores[j] = sum_h relu(q_h . k_j) * w_h over n packed index keys (row stride bl_index_row_bytes): q [heads, d] packed
     * index rows; per 32-group the integer dot of the doubled codes t and f = (0.25 * scale_q) * scale_k; groups ascending
     * from +0: acc = fma(t, f, acc); the heads' terms (rounded products; relu of NaN is 0) are padded with +0 to a power of
     * two, at least 16, and added as a tree, h + (h + half), half first. w [heads] fp32. d a multiple of 32.
     * keys is one page of n rows. GPU backends use the same order, so that all backends select alike. */
    void (*index_scores)(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys,
                         int64_t n);

    /* ---- router and experts */
    /* One token: logits [E] fp32 -> the k best of sqrt(softplus(logit)) + bias, best first, ties to the lower id (NaN counts as
     * -inf): ids [k], gates [k] = score (without bias), normalised by (sum + 1e-20) when norm_topk and k > 1, times route_scale. */
    void (*route)(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, int norm_topk,
                  float route_scale);
    /* y = bf16(gate_w * ((g * sigmoid(g)) * u)), g = min(g, limit), u clamped to +-limit, from bf16 g, u [n]; limit 0 = no
     * clamp. */
    void (*swiglu)(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n);
    /* acc[i] += float(x[i]). */
    void (*accumulate)(float *acc, const uint16_t *x, int64_t n);

    /* ---- Engram */
    /* One token: H [S, D] bf16 in place; key [S, D], value [D] bf16; qk [S, D] fp32 = q_weight * k_weight. Per stream: v = row
     * sum by fma of (h * qk) * key, times (1/sqrt(mean(h^2) + eps) * 1/sqrt(mean(key^2) + eps)), times D^-0.5;
     * gate = sigmoid(copysign(sqrt(max(|v|, 1e-6)), v)); h = bf16(h + gate * value). */
    void (*engram_gate)(uint16_t *H, const uint16_t *key, const uint16_t *value, const float *qk, int64_t D, float eps);
    /* cols rows of an fp8 table with 1x32 scales -> bf16 [cols, width]: codes row r at codes + r * width, scales at
     * scale + r * width/32. Any codes and scales (the product is rounded to bf16, NaN stays NaN); width a multiple of 32. */
    void (*engram_gather)(uint16_t *y, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t cols,
                          int64_t width);
} bl_op_kernels;

void bl_op_init(bl_op_kernels *t, unsigned cpu);

/* ---- selection (integer work, one version) */
/* The k best finite scores among n (below 2^31), as index [k], ascending by index; equal scores (+0 and -0 are equal) favour
 * the lower index. NaN and infinities are never selected. Returns how many, min(k, finite scores). scratch: n floats. */
int64_t bl_select_top(int32_t *index, const float *scores, int64_t n, int64_t k, float *scratch);
/* Candidate blocks: the best `blocks` of ceil(n/size) by their largest finite score, ties to the lower block, the block of
 * entry visible-1 always among them (visible = 0 forces none), none without a finite score; writes keep [n] bytes 0/1, whole
 * blocks. Scores of entries at or past visible must be -inf. scratch: 2 * ceil(n/size) floats. */
void bl_select_candidates(uint8_t *keep, const float *scores, int64_t n, int64_t visible, int64_t blocks, int64_t size,
                          float *scratch);

#endif
