/* The two fixed orders of summation over a row, for reference code: ops.h's row sum and linear.h's product. */
#ifndef BL_KERNELS_ROW_SUM_H
#define BL_KERNELS_ROW_SUM_H

#include <math.h>
#include <stdint.h>

/* Sum of 16 lanes as the tree l + (l+8), l + (l+4), l + (l+2), l + (l+1). lane is used up. */
static inline float bl_lane_tree(float lane[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

/* sum x[i] * y[i], n a multiple of 32: lane l takes the pair 2l, 2l+1 of each 32 elements, its odd element first. */
static inline float bl_pair_dot(const float *x, const float *y, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i += 32)
        for (int l = 0; l < 16; l++) {
            lane[l] = fmaf(x[i + 2 * l + 1], y[i + 2 * l + 1], lane[l]);
            lane[l] = fmaf(x[i + 2 * l], y[i + 2 * l], lane[l]);
        }
    return bl_lane_tree(lane);
}

#endif
