#include "runtime/rope.h"

#include <math.h>

/* The dimension at which YaRN's correction for `turns` rotations over the original context stands. */
static double correction(const bl_config *c, double base, double turns)
{
    const double two_pi = 6.283185307179586;
    double length = (double)c->rope_original_max_position_embeddings;
    return c->qk_rope_head_dim * log(length / (turns * two_pi)) / (2 * log(base));
}

void bl_rope_frequencies(float *f, const bl_config *c, bool compressed)
{
    const int n = c->qk_rope_head_dim / 2;
    const float base = (float)(compressed ? c->compress_rope_theta : c->rope_theta);
    for (int i = 0; i < n; i++) {
        float exponent = (float)(2 * i) / (float)c->qk_rope_head_dim;
        f[i] = 1.0f / (float)pow((double)base, (double)exponent); /* a float32 power, correctly rounded */
    }
    if (!compressed || !c->yarn || c->rope_original_max_position_embeddings <= 0) return;
    double low = fmax(floor(correction(c, (double)base, c->rope_beta_fast)), 0);
    double high = fmin(ceil(correction(c, (double)base, c->rope_beta_slow)), c->qk_rope_head_dim - 1);
    const float span = (float)fmax(high - low, 1e-3), factor = (float)c->rope_factor;
    for (int i = 0; i < n; i++) {
        float ramp = ((float)i - (float)low) / span;
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        f[i] = f[i] / factor * ramp + f[i] * (1.0f - ramp);
    }
}

void bl_rope_rotation(float *cs, const float *f, int n, int64_t position)
{
    for (int i = 0; i < n; i++) {
        double angle = (double)((float)position * f[i]);
        cs[2 * i] = (float)cos(angle);
        cs[2 * i + 1] = (float)sin(angle);
    }
}
