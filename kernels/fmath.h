/* The transcendental functions of the model, one definition for every backend: each is a fixed sequence of single IEEE
 * float32 operations (add, multiply, fused multiply-add, divide, square root), so that C, vector and device code that keep
 * the sequence agree to the bit. Never compile this with contraction or fast-math. The constants are shared with
 * x86/fmath_x86.h. Errors are against the exact value. */
#ifndef BL_KERNELS_FMATH_H
#define BL_KERNELS_FMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define BL_MATH_FN static __host__ __device__ __forceinline__
#else
#define BL_MATH_FN static inline
#endif

/* Beyond these exp is 0 and infinity in float32. */
#define BL_EXP_LOW -104.0f
#define BL_EXP_HIGH 89.0f
#define BL_LOG2E 0x1.715476p+0f
#define BL_LN2 0x1.62e43p-1f
#define BL_LN2_REST -0x1.05c61p-29f
/* Adding this leaves the nearest integer in the low mantissa bits: 1.5 * 2^23. */
#define BL_ROUND_MAGIC 0x1.8p+23f
/* exp(r) = 1 + r + r^2 (C2 + C3 r + ...) for |r| <= ln2 / 2, relative error 3.1e-9 before rounding. */
#define BL_EXP_C2 0x1.fffffcp-2f
#define BL_EXP_C3 0x1.555492p-3f
#define BL_EXP_C4 0x1.5558f2p-5f
#define BL_EXP_C5 0x1.123a2p-7f
#define BL_EXP_C6 0x1.6a23cep-10f
/* log1p(u) = u - s (u - z (C0 + C1 z + ...)), s = u / (2 + u), z = s^2, 0 <= u <= 1: relative error 4.5e-9. */
#define BL_LOG1P_C0 0x1.555502p-1f
#define BL_LOG1P_C1 0x1.99d208p-2f
#define BL_LOG1P_C2 0x1.1ebd0ep-2f
#define BL_LOG1P_C3 0x1.1ed7bep-2f

BL_MATH_FN uint32_t bl_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

BL_MATH_FN float bl_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* e^x, within 1 ulp where the result is normal; overflows to infinity, underflows gradually; NaN stays NaN. */
BL_MATH_FN float bl_exp(float x)
{
    x = BL_EXP_HIGH < x ? BL_EXP_HIGH : x; /* in this order a NaN passes, as in minps */
    x = BL_EXP_LOW > x ? BL_EXP_LOW : x;
    float z = fmaf(x, BL_LOG2E, BL_ROUND_MAGIC), n = z - BL_ROUND_MAGIC;
    float r = fmaf(n, -BL_LN2, x);
    r = fmaf(n, -BL_LN2_REST, r);
    float p = fmaf(BL_EXP_C6, r, BL_EXP_C5);
    p = fmaf(p, r, BL_EXP_C4);
    p = fmaf(p, r, BL_EXP_C3);
    p = fmaf(p, r, BL_EXP_C2);
    p = fmaf(p, r * r, r) + 1.0f;
    /* times 2^n in two steps: n reaches -150 and 128, and only the second step may round */
    int32_t k = (int32_t)(bl_float_bits(z) - bl_float_bits(BL_ROUND_MAGIC));
    int32_t half = k >> 1;
    return p * bl_bits_float((uint32_t)(half + 127) << 23) * bl_bits_float((uint32_t)(k - half + 127) << 23);
}

/* 1 / (1 + e^-x), within 2.5 ulp for x > -87; 0 where e^-x overflows. */
BL_MATH_FN float bl_sigmoid(float x)
{
    return 1.0f / (1.0f + bl_exp(-x));
}

/* log(1 + u) for 0 <= u <= 1, within 1.1 ulp. */
BL_MATH_FN float bl_log1p_unit(float u)
{
    float s = u / (2.0f + u), z = s * s;
    float p = fmaf(BL_LOG1P_C3, z, BL_LOG1P_C2);
    p = fmaf(p, z, BL_LOG1P_C1);
    p = fmaf(p, z, BL_LOG1P_C0);
    return fmaf(-s, fmaf(-z, p, u), u);
}

/* sqrt(log(1 + e^x)): the router's score; within 2 ulp for x > -87, 0 below -104. */
BL_MATH_FN float bl_sqrt_softplus(float x)
{
    float tail = bl_log1p_unit(bl_exp(-fabsf(x)));
    return sqrtf(tail + (0.0f < x ? x : 0.0f));
}

/* 1 / sqrt(x), both correctly rounded. */
BL_MATH_FN float bl_rsqrt(float x)
{
    return 1.0f / sqrtf(x);
}

#endif
