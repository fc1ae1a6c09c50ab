/* Router and the experts' elementwise parts. */
#include "kernels/x86/fmath_avx2.h"
#include "kernels/x86/ops_avx2.h"

/* Eight at a time into the list only when one of them beats its last place. */
static void route_avx2(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, int norm_topk,
                       float route_scale)
{
    float key[8];
    int64_t e = 0;
    for (; e + 8 <= E; e += 8) {
        __m256 v = _mm256_add_ps(bl_sqrt_softplus_avx2(_mm256_loadu_ps(logits + e)), _mm256_loadu_ps(bias + e));
        if (e >= k && !_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(gates[k - 1]), _CMP_GT_OQ))) continue;
        _mm256_storeu_ps(key, v);
        for (int i = 0; i < 8; i++) bl_route_offer(ids, gates, e + i, k, key[i]);
    }
    for (; e < E; e++) bl_route_offer(ids, gates, e, k, bl_sqrt_softplus(logits[e]) + bias[e]);
    bl_route_gates(gates, ids, logits, k, norm_topk, route_scale);
}

static inline __m256 swiglu8(const uint16_t *g, const uint16_t *u, __m256 gate_w, __m256 most)
{
    __m256 least = _mm256_xor_ps(most, _mm256_set1_ps(-0.0f));
    __m256 a = _mm256_min_ps(most, bl_widen_avx2(g)), b = _mm256_min_ps(most, bl_widen_avx2(u));
    b = _mm256_max_ps(least, b);
    return _mm256_mul_ps(gate_w, _mm256_mul_ps(_mm256_mul_ps(a, bl_sigmoid_avx2(a)), b));
}

static void swiglu_avx2(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n)
{
    __m256 w = _mm256_set1_ps(gate_w), most = _mm256_set1_ps(limit > 0 ? limit : INFINITY);
    for (int64_t i = 0; i < n; i += 16) bl_narrow_avx2(y + i, swiglu8(g + i, u + i, w, most), swiglu8(g + i + 8, u + i + 8, w, most));
}

static void accumulate_avx2(float *acc, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), bl_widen_avx2(x + i)));
    bl_accumulate_c(acc + i, x + i, n - i);
}

void bl_op_experts_init_avx2(bl_op_kernels *t)
{
    t->route = route_avx2;
    t->swiglu = swiglu_avx2;
    t->accumulate = accumulate_avx2;
}
