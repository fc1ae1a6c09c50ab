/* kernels/fmath.h on a vector: the same operations in the same order, so the same bits. */
#ifndef BL_KERNELS_X86_FMATH_X86_H
#define BL_KERNELS_X86_FMATH_X86_H

#include "kernels/fmath.h"
#include "kernels/x86/vec.h"

static inline vf vf_exp(vf x)
{
    const vf magic = vf_set1(BL_ROUND_MAGIC);
    x = vf_min(vf_set1(BL_EXP_HIGH), x); /* a NaN in the second operand passes */
    x = vf_max(vf_set1(BL_EXP_LOW), x);
    vf z = vf_fmadd(x, vf_set1(BL_LOG2E), magic), n = z - magic;
    vf r = vf_fmadd(n, vf_set1(-BL_LN2), x);
    r = vf_fmadd(n, vf_set1(-BL_LN2_REST), r);
    vf p = vf_fmadd(vf_set1(BL_EXP_C6), r, vf_set1(BL_EXP_C5));
    p = vf_fmadd(p, r, vf_set1(BL_EXP_C4));
    p = vf_fmadd(p, r, vf_set1(BL_EXP_C3));
    p = vf_fmadd(p, r, vf_set1(BL_EXP_C2));
    p = vf_fmadd(p, r * r, r) + vf_set1(1.0f);
    vi k = vi_sub_32((vi)z, (vi)magic), half = vi_sar_32(k, 1), bias = vi_set1_32(127);
    vi s0 = vi_shl_32(vi_add_32(half, bias), 23);
    vi s1 = vi_shl_32(vi_add_32(vi_sub_32(k, half), bias), 23);
    return p * (vf)s0 * (vf)s1;
}

static inline vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    return one / (one + vf_exp(-x));
}

static inline vf vf_log1p_unit(vf u)
{
    vf s = u / (vf_set1(2.0f) + u), z = s * s;
    vf p = vf_fmadd(vf_set1(BL_LOG1P_C3), z, vf_set1(BL_LOG1P_C2));
    p = vf_fmadd(p, z, vf_set1(BL_LOG1P_C1));
    p = vf_fmadd(p, z, vf_set1(BL_LOG1P_C0));
    return vf_fnmadd(s, vf_fnmadd(z, p, u), u);
}

static inline vf vf_sqrt_softplus(vf x)
{
    vf minus = (vf)((vi)x | (vi)vf_set1(-0.0f)); /* -|x| */
    return vf_sqrt(vf_log1p_unit(vf_exp(minus)) + vf_max(x, vf_zero()));
}

#endif
