/* What drawing a token is made of, one definition for host and device: both draw the same token from the same logits. Weights are
 * summed as whole numbers, so that no order of adding matters. */
#ifndef BL_KERNELS_SAMPLING_MATH_H
#define BL_KERNELS_SAMPLING_MATH_H

#include "kernels/fmath.h"

#define BL_GREEDY_BELOW 1e-6f

/* exp((logit - max) / temperature); 1 for the largest even when it is infinite, 0 for NaN. */
BL_MATH_FN float bl_sampling_weight(float logit, float max, float temperature)
{
    if (logit == max) return 1.0f;
    return logit != logit ? 0.0f : bl_exp((logit - max) / temperature);
}

/* A weight of 1 counts 2^scale when there are n: n of them are less than 2^63. */
BL_MATH_FN int bl_sampling_scale(int64_t n)
{
    int scale = 62;
    for (int64_t most = 1; most < n; most *= 2) scale--;
    return scale;
}

/* A weight of 0 to 1 times 2^scale, rounded down, in the form piece << shift: 24 bits, and what all weights of an exponent share. */
BL_MATH_FN uint32_t bl_sampling_piece(float weight, int scale, int *shift)
{
    const uint32_t u = bl_float_bits(weight), e = u >> 23, m = u & 0x7fffff;
    const uint32_t mantissa = e ? m | 0x800000 : m;
    const int up = (e ? (int)e : 1) - 150 + scale;
    *shift = up > 0 ? up : 0;
    return up >= 0 ? mantissa : up > -24 ? mantissa >> -up : 0;
}

BL_MATH_FN uint64_t bl_sampling_units(float weight, int scale)
{
    int shift;
    const uint64_t piece = bl_sampling_piece(weight, scale, &shift);
    return piece << shift;
}

/* The share p of total: what the most likely tokens must reach together. */
BL_MATH_FN uint64_t bl_sampling_share(float p, uint64_t total)
{
    return p > 0 ? (uint64_t)((double)p * (double)total) : 0;
}

BL_MATH_FN uint64_t bl_splitmix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* 53 random bits, a function of the arguments alone. */
BL_MATH_FN uint64_t bl_sampling_bits(uint64_t seed, uint64_t position)
{
    return bl_splitmix64(bl_splitmix64(seed) ^ position) >> 11;
}

/* bits / 2^53 of total, rounded down: below total. */
BL_MATH_FN uint64_t bl_sampling_target(uint64_t bits, uint64_t total)
{
#if defined(__CUDA_ARCH__)
    return __umul64hi(bits, total) << 11 | bits * total >> 53;
#else
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)bits * total >> 53);
#endif
}

#endif
