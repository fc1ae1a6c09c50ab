/* Router and the experts' elementwise parts. */
#include "kernels/x86/fmath_x86.h"
#include "kernels/x86/ops_x86.h"

/* A vector at a time: once the list is full only the keys that beat its last place are offered. */
static void route(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, int norm_topk,
                  float route_scale)
{
    float key[LANES];
    int64_t e = 0;
    for (; e + LANES <= E; e += LANES) {
        vf v = vf_sqrt_softplus(vf_loadu(logits + e)) + vf_loadu(bias + e);
        unsigned offered = e < k ? (1u << LANES) - 1 : vf_greater(v, vf_set1(gates[k - 1]));
        vf_storeu(key, v);
        for (; offered; offered &= offered - 1) {
            const int i = __builtin_ctz(offered);
            bl_route_offer(ids, gates, e + i, k, key[i]);
        }
    }
    for (; e < E; e++) bl_route_offer(ids, gates, e, k, bl_sqrt_softplus(logits[e]) + bias[e]);
    bl_route_gates(gates, ids, logits, k, norm_topk, route_scale);
}

static void swiglu(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n)
{
    const vf w = vf_set1(gate_w), most = vf_set1(limit > 0 ? limit : INFINITY);
    for (int64_t i = 0; i < n; i += 16) {
        vf out[VECS];
        for (int v = 0; v < VECS; v++) {
            vf a = vf_min(most, vf_widen(g + i + LANES * v));
            vf b = vf_max(-most, vf_min(most, vf_widen(u + i + LANES * v)));
            out[v] = w * (a * vf_sigmoid(a) * b);
        }
        vf_narrow(y + i, out);
    }
}

static void accumulate(float *acc, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_storeu(acc + i, vf_loadu(acc + i) + vf_widen(x + i));
    bl_accumulate_c(acc + i, x + i, n - i);
}

void BL_LEVEL(bl_op_experts_init)(bl_op_kernels *t)
{
    t->route = route;
    t->swiglu = swiglu;
    t->accumulate = accumulate;
}
