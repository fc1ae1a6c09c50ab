/* What the kernels of the mixing of many tokens share: parts of their products, and from sums to coefficients. */
#ifndef BL_KERNELS_CUDA_MIXING_MANY_CUH
#define BL_KERNELS_CUDA_MIXING_MANY_CUH

#include "kernels/cuda/mixing.cuh"

namespace bl {

enum { TOKENS = 64 /* of a block */ };

/* The leading 16 bits of two floats, cut; both become what is left. */
__device__ __forceinline__ uint32_t leading_pair(float &a, float &b)
{
    const uint32_t u = __float_as_uint(a), v = __float_as_uint(b);
    a -= __uint_as_float(u & 0xffff0000);
    b -= __uint_as_float(v & 0xffff0000);
    return __byte_perm(u, v, 0x7632);
}

/* Lanes 2 t, 2 t + 1, 2 t + 8, 2 t + 9. */
__device__ __forceinline__ void add_squares(float q[4], uint32_t low, uint32_t high)
{
    const float v[4] = {__uint_as_float(low << 16), __uint_as_float(low & 0xffff0000), __uint_as_float(high << 16),
                        __uint_as_float(high & 0xffff0000)};
#pragma unroll
    for (int e = 0; e < 4; e++) q[e] = fmaf(v[e], v[e], q[e]);
}

/* As lane_tree of the 16 lanes of a row sum, which four threads have. */
__device__ __forceinline__ float sum_of_squares(const float q[4])
{
    float even = q[0] + q[2], odd = q[1] + q[3];
    even = even + __shfl_xor_sync(~0u, even, 2);
    odd = odd + __shfl_xor_sync(~0u, odd, 2);
    even = even + __shfl_xor_sync(~0u, even, 1);
    odd = odd + __shfl_xor_sync(~0u, odd, 1);
    return even + odd;
}

/* 16 rows of 16 elements: a thread gets elements 2 t, 2 t + 1 and 2 t + 8, 2 t + 9 of rows g and g + 8. */
__device__ __forceinline__ fragment_a load_fragment(uint32_t at)
{
    fragment_a a;
    load_matrices(a.r, at);
    return a;
}

/* pre and post of token t, by the lanes below 8 of a half warp. */
__device__ __forceinline__ void gates(const mix_args &a, int64_t t, int lane, const float *dots, float r)
{
    if (lane < S) a.pre[t * S + lane] = bl_sigmoid(dots[lane] * r * a.scale3[0] + a.base24[lane]) + a.eps;
    else if (lane < 2 * S) a.post[t * S + lane - S] = 2.0f * bl_sigmoid(dots[lane] * r * a.scale3[1] + a.base24[lane]);
}

__device__ __forceinline__ float comb_start(const mix_args &a, int lane, const float *dots, float r)
{
    return dots[2 * S + lane] * r * a.scale3[2] + a.base24[2 * S + lane];
}

/* From the sums of a block's tokens to their coefficients, by its first THREADS: half a warp for EACH tokens. */
template <int THREADS> __device__ __forceinline__ void finish(const mix_args &a, int64_t token, const float *dots, const float *squares)
{
    enum { EACH = TOKENS * 16 / THREADS };
    const int lane = threadIdx.x % 16, first = threadIdx.x / 16 * EACH;
    float c[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const float r = scale_of_row(a, squares[first + n]);
        if (token + first + n < a.T) gates(a, token + first + n, lane, dots + (first + n) * MIX, r);
        c[n] = comb_start(a, lane, dots + (first + n) * MIX, r);
    }
    sinkhorn<EACH>(c, a.eps, a.iters);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        if (token + first + n < a.T) a.comb[(token + first + n) * 16 + lane] = c[n];
}

} // namespace bl

#endif
