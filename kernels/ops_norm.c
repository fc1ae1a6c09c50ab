/* Root-mean-square norm and rotary positions. */
#include "kernels/cast.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"
#include "kernels/row_sum.h"

float bl_sum_squares_c(const uint16_t *x, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float v = bl_bf16_to_f32(x[i]);
        lane[i % 16] = fmaf(v, v, lane[i % 16]);
    }
    return bl_lane_tree(lane);
}

void bl_rmsnorm_c(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t T, int64_t n, float eps)
{
    for (int64_t t = 0; t < T; t++, x += n, y += n) {
        float r = bl_rsqrt(bl_sum_squares_c(x, n) / (float)n + eps);
        for (int64_t i = 0; i < n; i++) y[i] = bl_f32_to_bf16(bl_bf16_to_f32(w[i]) * (bl_bf16_to_f32(x[i]) * r));
    }
}

void bl_rope_c(uint16_t *x, int64_t heads, int64_t d, int64_t R, const float *cs, int inverse)
{
    for (int64_t h = 0; h < heads; h++) {
        uint16_t *v = x + h * d + (d - R);
        for (int64_t i = 0; i < R; i += 2) {
            float a = bl_bf16_to_f32(v[i]), b = bl_bf16_to_f32(v[i + 1]);
            float c = cs[i], s = inverse ? -cs[i + 1] : cs[i + 1];
            v[i] = bl_f32_to_bf16(a * c - b * s);
            v[i + 1] = bl_f32_to_bf16(a * s + b * c);
        }
    }
}
