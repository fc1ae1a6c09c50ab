/* Root-mean-square norm and rotary positions. */
#include "kernels/x86/ops_avx2.h"

#include "kernels/fmath.h"

float bl_sum_squares_avx2(const uint16_t *x, int64_t n)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    for (int64_t i = 0; i < n; i += 16) {
        __m256 a = bl_widen_avx2(x + i), b = bl_widen_avx2(x + i + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    return bl_lane_tree_avx2(lo, hi);
}

static void rmsnorm_avx2(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps)
{
    for (int64_t t = 0; t < T; t++, x += n, y += n) {
        __m256 r = _mm256_set1_ps(bl_rsqrt(bl_sum_squares_avx2(x, n) / (float)n + eps));
        for (int64_t i = 0; i < n; i += 16) {
            __m256 a = _mm256_mul_ps(bl_widen_avx2(w + i), _mm256_mul_ps(bl_widen_avx2(x + i), r));
            __m256 b = _mm256_mul_ps(bl_widen_avx2(w + i + 8), _mm256_mul_ps(bl_widen_avx2(x + i + 8), r));
            bl_narrow_avx2(y + i, a, b);
        }
    }
}

/* Four pairs x = (a, b): (a c - b s, b c + a s). cs holds their cosines and sines as they come, flip the sign bit for each
 * element: an addition of the negated product is the subtraction. */
static inline __m256 rotate(__m256 x, __m256 cs, __m256 flip)
{
    __m256 c = _mm256_moveldup_ps(cs), s = _mm256_xor_ps(_mm256_movehdup_ps(cs), flip);
    return _mm256_add_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), s));
}

static void rope_avx2(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse)
{
    const __m256 even = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0), odd = _mm256_permute_ps(even, 0xb1);
    const __m256 flip = inverse ? odd : even;
    const int64_t whole = R / 16 * 16;
    for (int64_t h = 0; h < heads; h++) {
        uint16_t *v = x + h * d + (d - R);
        for (int64_t i = 0; i < whole; i += 16) {
            __m256 a = rotate(bl_widen_avx2(v + i), _mm256_loadu_ps(cs + i), flip);
            __m256 b = rotate(bl_widen_avx2(v + i + 8), _mm256_loadu_ps(cs + i + 8), flip);
            bl_narrow_avx2(v + i, a, b);
        }
    }
    bl_rope_c(x, heads, d, R - whole, cs + whole, inverse);
}

void bl_op_norm_init_avx2(bl_op_kernels *t)
{
    t->rmsnorm = rmsnorm_avx2;
    t->rope = rope_avx2;
    t->sum_squares = bl_sum_squares_avx2;
}
