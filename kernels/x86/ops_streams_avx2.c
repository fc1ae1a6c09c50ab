/* Residual streams: collapse and expand. */
#include "kernels/x86/ops_avx2.h"

enum { S = 4 };

static inline __m256 collapse8(const uint16_t *H, const __m256 pre[S], int64_t D)
{
    __m256 v = _mm256_mul_ps(pre[0], bl_widen_avx2(H));
    for (int j = 1; j < S; j++) v = _mm256_fmadd_ps(pre[j], bl_widen_avx2(H + j * D), v);
    return v;
}

static void collapse_avx2(uint16_t *y, const uint16_t *H, const float *pre, int64_t D)
{
    __m256 p[S];
    for (int j = 0; j < S; j++) p[j] = _mm256_set1_ps(pre[j]);
    for (int64_t i = 0; i < D; i += 16) bl_narrow_avx2(y + i, collapse8(H + i, p, D), collapse8(H + i + 8, p, D));
}

/* Eight elements of stream k after a sublayer. */
static inline __m256 expand8(const __m256 h[S], __m256 y, const float *post, const float *comb, int k)
{
    __m256 sum = _mm256_mul_ps(_mm256_broadcast_ss(comb + k), h[0]);
    for (int j = 1; j < S; j++) sum = _mm256_fmadd_ps(_mm256_broadcast_ss(comb + S * j + k), h[j], sum);
    return _mm256_fmadd_ps(_mm256_broadcast_ss(post + k), y, sum);
}

static void expand_avx2(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D)
{
    for (int64_t i = 0; i < D; i += 16) {
        __m256 a[S], b[S], ya = bl_widen_avx2(y + i), yb = bl_widen_avx2(y + i + 8);
        for (int j = 0; j < S; j++) {
            a[j] = bl_widen_avx2(H + j * D + i);
            b[j] = bl_widen_avx2(H + j * D + i + 8);
        }
        for (int k = 0; k < S; k++) bl_narrow_avx2(out + k * D + i, expand8(a, ya, post, comb, k), expand8(b, yb, post, comb, k));
    }
}

void bl_op_streams_init_avx2(bl_op_kernels *t)
{
    t->collapse = collapse_avx2;
    t->expand = expand_avx2;
}
