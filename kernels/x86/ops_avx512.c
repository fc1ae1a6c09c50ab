/* The elementwise operations of a layer with AVX-512, and the table. Rows are multiples of 32. */
#include "kernels/x86/ops_avx512.h"

#include "kernels/x86/fmath_avx512.h"

enum { S = 4 };

static void to_bf16_avx512(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) bl_narrow_avx512(y + i, _mm512_loadu_ps(x + i));
    bl_to_bf16_c(y + i, x + i, n - i);
}

/* A vector is the sixteen lanes. */
static float sum_squares_avx512(const uint16_t *x, int64_t n)
{
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        __m512 v = bl_widen_avx512(x + i);
        sum = _mm512_fmadd_ps(v, v, sum);
    }
    return bl_lane_tree_avx512(sum);
}

static void rmsnorm_avx512(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps)
{
    for (int64_t t = 0; t < T; t++, x += n, y += n) {
        __m512 r = _mm512_set1_ps(bl_rsqrt(sum_squares_avx512(x, n) / (float)n + eps));
        for (int64_t i = 0; i < n; i += 16)
            bl_narrow_avx512(y + i, _mm512_mul_ps(bl_widen_avx512(w + i), _mm512_mul_ps(bl_widen_avx512(x + i), r)));
    }
}

static void collapse_avx512(uint16_t *y, const uint16_t *H, const float *pre, int64_t D)
{
    for (int64_t i = 0; i < D; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_set1_ps(pre[0]), bl_widen_avx512(H + i));
        for (int j = 1; j < S; j++) v = _mm512_fmadd_ps(_mm512_set1_ps(pre[j]), bl_widen_avx512(H + j * D + i), v);
        bl_narrow_avx512(y + i, v);
    }
}

static void expand_avx512(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D)
{
    for (int64_t i = 0; i < D; i += 16) {
        __m512 h[S], v = bl_widen_avx512(y + i);
        for (int j = 0; j < S; j++) h[j] = bl_widen_avx512(H + j * D + i);
        for (int k = 0; k < S; k++) {
            __m512 sum = _mm512_mul_ps(_mm512_set1_ps(comb[k]), h[0]);
            for (int j = 1; j < S; j++) sum = _mm512_fmadd_ps(_mm512_set1_ps(comb[S * j + k]), h[j], sum);
            bl_narrow_avx512(out + k * D + i, _mm512_fmadd_ps(_mm512_set1_ps(post[k]), v, sum));
        }
    }
}

static void swiglu_avx512(uint16_t *y, const uint16_t *g, const uint16_t *u, float gate_w, float limit, int64_t n)
{
    __m512 w = _mm512_set1_ps(gate_w), most = _mm512_set1_ps(limit > 0 ? limit : INFINITY);
    __m512 least = _mm512_xor_ps(most, _mm512_set1_ps(-0.0f));
    for (int64_t i = 0; i < n; i += 16) {
        __m512 a = _mm512_min_ps(most, bl_widen_avx512(g + i));
        __m512 b = _mm512_max_ps(least, _mm512_min_ps(most, bl_widen_avx512(u + i)));
        bl_narrow_avx512(y + i, _mm512_mul_ps(w, _mm512_mul_ps(_mm512_mul_ps(a, bl_sigmoid_avx512(a)), b)));
    }
}

void bl_op_init_avx512(bl_op_kernels *t)
{
    t->name = "avx512";
    t->to_bf16 = to_bf16_avx512;
    t->sum_squares = sum_squares_avx512;
    t->rmsnorm = rmsnorm_avx512;
    t->collapse = collapse_avx512;
    t->expand = expand_avx512;
    t->swiglu = swiglu_avx512;
    bl_op_rows_init_avx512(t);
    bl_op_attention_init_avx512(t);
    bl_op_index_init_avx512(t);
}
