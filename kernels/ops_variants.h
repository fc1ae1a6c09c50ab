/* The C references of ops.h and how the variants overlay them. Not for callers: they use the table of ops.h. */
#ifndef BL_KERNELS_OPS_VARIANTS_H
#define BL_KERNELS_OPS_VARIANTS_H

#include "kernels/ops.h"

/* ops_round.c. A variant hands the reference what is not a whole vector. */
void bl_round_fp8_c(uint16_t *y, const uint16_t *x, int64_t n);
void bl_pack_window_c(uint8_t *row, const uint16_t *x, int64_t d);
void bl_pack_latent_c(uint8_t *row, const uint16_t *x, int64_t d);
void bl_pack_index_c(uint8_t *row, const uint16_t *x, int64_t d);
void bl_unpack_window_c(uint16_t *x, const uint8_t *row, int64_t d);
void bl_unpack_latent_c(uint16_t *x, const uint8_t *row, int64_t d);
void bl_unpack_index_c(uint16_t *x, const uint8_t *row, int64_t d);
void bl_to_bf16_c(uint16_t *y, const float *x, int64_t n);

/* ops_norm.c */
void bl_rmsnorm_c(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps);
void bl_rope_c(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse);
float bl_sum_squares_c(const uint16_t *x, int64_t n);

/* ops_streams.c */
void bl_mix_c(float *pre, float *post, float *comb, const float *m, float sum, int64_t n, const float *scale3,
              const float *base24, float eps_rms, float eps, int iters);
void bl_collapse_c(uint16_t *y, const uint16_t *H, const float *pre, int64_t D);
void bl_expand_c(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D);

/* ops_attention.c */
void bl_attention_c(uint16_t *o, const uint16_t *q, const bl_attn_slots *slots, const float *sink, int64_t heads, int64_t d,
                    float scale, void *scratch);
size_t bl_attention_scratch_c(int64_t heads, int64_t d);

/* ops_index.c */
/* Heads up to the power of two over which their terms are added. */
static inline int64_t bl_index_padded_heads(int64_t heads)
{
    int64_t n = 16;
    while (n < heads) n *= 2;
    return n;
}
void bl_pool_pair_c(uint16_t *y, const float *kv0, const float *z0, const float *kv1, const float *z1, int64_t d);
void bl_index_scores_c(float *scores, const uint8_t *q, const float *w, int64_t heads, int64_t d, const uint8_t *keys, int64_t n);

/* ops_experts.c */
/* Offers are made in ascending id: put id into the list of the best so far, at most k, best first, if it belongs there; an
 * equal key stays behind. */
void bl_route_offer(int32_t *ids, float *keys, int64_t id, int64_t k, float key);
/* Gates of the chosen ids, from their logits: scores, normalised and scaled as route says. */
void bl_route_gates(float *gates, const int32_t *ids, const float *logits, int64_t k, int norm_topk, float route_scale);
void bl_route_c(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, int norm_topk,
                float route_scale);
void bl_swiglu_c(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n);
void bl_accumulate_c(float *acc, const uint16_t *x, int64_t n);

/* ops_engram.c */
/* The gate of one stream from the sums over its row: squares of h and of key, and h * qk * key. */
float bl_engram_gate_value(float squares_h, float squares_key, float dot, int64_t D, float eps);
void bl_engram_gate_c(uint16_t *H, const uint16_t *key, const uint16_t *value, const float *qk, int64_t D, float eps);
void bl_engram_gather_c(uint16_t *y, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t cols, int64_t width);

/* x86: each overlays the entries it has on a table filled for the level below it. */
void bl_op_init_avx2(bl_op_kernels *t);
void bl_op_init_avx512(bl_op_kernels *t);

#endif
