/* Residual streams: mixing coefficients (sigmoids and a Sinkhorn normalisation), collapse, expand. */
#include "kernels/cast.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"

enum { S = 4 };

static float sum4(float a, float b, float c, float d)
{
    return ((a + b) + c) + d;
}

/* Softmax over the targets of one source, plus eps. */
static void softmax_row(float *row, float eps)
{
    float most = row[0], sum;
    for (int k = 1; k < S; k++)
        if (row[k] > most) most = row[k];
    for (int k = 0; k < S; k++) row[k] = bl_exp(row[k] - most);
    sum = sum4(row[0], row[1], row[2], row[3]);
    for (int k = 0; k < S; k++) row[k] = row[k] / sum + eps;
}

static void normalise_rows(float comb[S][S], float eps)
{
    for (int j = 0; j < S; j++) {
        float sum = sum4(comb[j][0], comb[j][1], comb[j][2], comb[j][3]) + eps;
        for (int k = 0; k < S; k++) comb[j][k] /= sum;
    }
}

static void normalise_columns(float comb[S][S], float eps)
{
    float sum[S];
    for (int k = 0; k < S; k++) sum[k] = sum4(comb[0][k], comb[1][k], comb[2][k], comb[3][k]) + eps;
    for (int j = 0; j < S; j++)
        for (int k = 0; k < S; k++) comb[j][k] /= sum[k];
}

void bl_mix_c(float *pre, float *post, float *comb, const float *m, float sum, int64_t n, const float *scale3,
              const float *base24, float eps_rms, float eps, int iters)
{
    float r = bl_rsqrt(sum / (float)n + eps_rms), c[S][S];
    for (int j = 0; j < S; j++) {
        pre[j] = bl_sigmoid(m[j] * r * scale3[0] + base24[j]) + eps;
        post[j] = 2.0f * bl_sigmoid(m[S + j] * r * scale3[1] + base24[S + j]);
    }
    for (int j = 0; j < S; j++) {
        for (int k = 0; k < S; k++) {
            int i = 2 * S + S * j + k;
            c[j][k] = m[i] * r * scale3[2] + base24[i];
        }
        softmax_row(c[j], eps);
    }
    normalise_columns(c, eps);
    for (int i = 1; i < iters; i++) {
        normalise_rows(c, eps);
        normalise_columns(c, eps);
    }
    for (int i = 0; i < S * S; i++) comb[i] = c[i / S][i % S];
}

void bl_collapse_c(uint16_t *y, const uint16_t *H, const float *pre, int64_t D)
{
    for (int64_t i = 0; i < D; i++) {
        float v = pre[0] * bl_bf16_to_f32(H[i]);
        for (int j = 1; j < S; j++) v = fmaf(pre[j], bl_bf16_to_f32(H[j * D + i]), v);
        y[i] = bl_f32_to_bf16(v);
    }
}

void bl_expand_c(uint16_t *out, const uint16_t *y, const uint16_t *H, const float *post, const float *comb, int64_t D)
{
    for (int64_t i = 0; i < D; i++) {
        float h[S], v = bl_bf16_to_f32(y[i]);
        for (int j = 0; j < S; j++) h[j] = bl_bf16_to_f32(H[j * D + i]);
        for (int k = 0; k < S; k++) {
            float sum = comb[k] * h[0];
            for (int j = 1; j < S; j++) sum = fmaf(comb[S * j + k], h[j], sum);
            out[k * D + i] = bl_f32_to_bf16(fmaf(post[k], v, sum));
        }
    }
}
