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

/* What a weight of 1 counts when there are n: n of them are less than 2^63. */
BL_MATH_FN double bl_sampling_one(int64_t n)
{
    double one = 0x1p+62;
    for (int64_t most = 1; most < n; most *= 2) one *= 0.5;
    return one;
}

/* A weight as a whole number; `one` as above. */
BL_MATH_FN uint64_t bl_sampling_units(float weight, double one)
{
    return (uint64_t)((double)weight * one);
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
