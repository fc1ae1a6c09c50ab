/* Rotary positions: plain for window-only layers, YaRN with its own base for compressed ones (arch.md sections 3 and 4). */
#ifndef BL_RUNTIME_ROPE_H
#define BL_RUNTIME_ROPE_H

#include "formats/config.h"

/* f [qk_rope_head_dim / 2] angular frequencies, in float32 arithmetic as the reference computes them. */
void bl_rope_frequencies(float *f, const bl_config *c, bool compressed);
/* cs [n][2]: cos and sin of the float32 product position * f[i], each correctly rounded to float32. */
void bl_rope_rotation(float *cs, const float *f, int n, int64_t position);

#endif
