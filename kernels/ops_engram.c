/* Engram: rows out of the tables, and the gate that lets their projection into the streams. */
#include "kernels/cast_variants.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"
#include "kernels/row_sum.h"

/* Row sum of (h * qk) * key. */
static float weighted_dot(const uint16_t *h, const float *qk, const uint16_t *key, int64_t D)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < D; i++) lane[i % 16] = fmaf(bl_bf16_to_f32(h[i]) * qk[i], bl_bf16_to_f32(key[i]), lane[i % 16]);
    return bl_lane_tree(lane);
}

float bl_engram_gate_value(float squares_h, float squares_key, float dot, int64_t D, float eps)
{
    float r = bl_rsqrt(squares_h / (float)D + eps) * bl_rsqrt(squares_key / (float)D + eps);
    float v = dot * r * (float)(1.0 / sqrt((double)D));
    float size = fabsf(v) > 1e-6f ? fabsf(v) : 1e-6f; /* so a NaN closes the gate to its floor */
    return bl_sigmoid(copysignf(sqrtf(size), v));
}

void bl_engram_gate_c(uint16_t *H, const uint16_t *key, const uint16_t *value, const float *qk, int64_t D, float eps)
{
    for (int j = 0; j < 4; j++, H += D, key += D, qk += D) {
        float gate = bl_engram_gate_value(bl_sum_squares_c(H, D), bl_sum_squares_c(key, D), weighted_dot(H, qk, key, D), D, eps);
        for (int64_t i = 0; i < D; i++) H[i] = bl_f32_to_bf16(bl_bf16_to_f32(H[i]) + gate * bl_bf16_to_f32(value[i]));
    }
}

void bl_engram_gather_c(uint16_t *y, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t cols, int64_t width)
{
    for (int64_t c = 0; c < cols; c++)
        bl_fp8_row_c(y + c * width, codes + rows[c] * width, scale + rows[c] * (width / 32), width);
}
