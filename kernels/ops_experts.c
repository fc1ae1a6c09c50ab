/* Router and the experts' elementwise parts. */
#include "kernels/cast.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"

void bl_route_offer(int32_t *ids, float *keys, int64_t id, int64_t k, float key)
{
    if (key != key) key = -INFINITY;
    if (id >= k && !(key > keys[k - 1])) return;
    int64_t at = id < k ? id : k - 1;
    while (at > 0 && key > keys[at - 1]) {
        ids[at] = ids[at - 1];
        keys[at] = keys[at - 1];
        at--;
    }
    ids[at] = (int32_t)id;
    keys[at] = key;
}

void bl_route_gates(float *gates, const int32_t *ids, const float *logits, int64_t k, int norm_topk, float route_scale)
{
    float sum = 0;
    for (int64_t i = 0; i < k; i++) {
        gates[i] = bl_sqrt_softplus(logits[ids[i]]);
        sum += gates[i];
    }
    for (int64_t i = 0; i < k; i++) {
        float g = norm_topk && k > 1 ? gates[i] / (sum + 1e-20f) : gates[i];
        gates[i] = g * route_scale;
    }
}

void bl_route_c(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, int norm_topk,
                float route_scale)
{
    /* gates holds the biased keys until the list is final */
    for (int64_t e = 0; e < E; e++) bl_route_offer(ids, gates, e, k, bl_sqrt_softplus(logits[e]) + bias[e]);
    bl_route_gates(gates, ids, logits, k, norm_topk, route_scale);
}

void bl_swiglu_c(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n)
{
    float most = limit > 0 ? limit : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        float a = bl_bf16_to_f32(g[i]), b = bl_bf16_to_f32(u[i]);
        a = most < a ? most : a;
        b = most < b ? most : b;
        b = -most > b ? -most : b;
        y[i] = bl_f32_to_bf16(gate_w * (a * bl_sigmoid(a) * b));
    }
}

void bl_accumulate_c(float *acc, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) acc[i] += bl_bf16_to_f32(x[i]);
}
