/* Rows of bf16 by four columns: norms and their fp8 rounding. */
#ifndef BL_KERNELS_CUDA_NORM_CUH
#define BL_KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

/* Four neighbours of a row of bf16. */
struct four {
    float v[4];
};

__device__ __forceinline__ four unpack_four(uint2 w)
{
    return {{__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000), __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000)}};
}

__device__ __forceinline__ four load_four(const uint16_t *p)
{
    return unpack_four(*(const uint2 *)p);
}

__device__ __forceinline__ uint2 pack_four(const float v[4])
{
    return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

/* The fp8 rounding of four of a group of 32 bf16, whose others the eight neighbouring lanes have: all of them here. */
__device__ __forceinline__ uint2 round_four(uint2 x)
{
    const unsigned group = 0xffu << threadIdx.x % WARP / 8 * 8;
    uint32_t most = __vmaxu2(x.x & 0x7fff7fff, x.y & 0x7fff7fff);
    for (int m = 4; m; m /= 2) most = __vmaxu2(most, __shfl_xor_sync(group, most, m));
    most = (most & 0xffff) > most >> 16 ? most & 0xffff : most >> 16;
    const uint8_t scale = scale_of(most, 1e-4f, 1.0f / 448.0f);
    if (scale == 255) return make_uint2(0x7fc07fc0, 0x7fc07fc0);
    const float inverse = e8m0(254 - scale); /* exact: a power of two */
    const four v = unpack_four(x);
    const uint16_t low = convert_e4m3x2(v.v[1] * inverse, v.v[0] * inverse), high = convert_e4m3x2(v.v[3] * inverse, v.v[2] * inverse);
    return decode_fp8(low | (uint32_t)high << 16, scale_bf16x2(scale));
}

/* Four columns of y = by * (from * r), and their fp8 rounding (rounded NULL: none). */
__device__ __forceinline__ void norm_four(uint16_t *y, uint16_t *rounded, const four &from, const four &by, float r)
{
    float v[4];
    for (int e = 0; e < 4; e++) v[e] = by.v[e] * (from.v[e] * r);
    const uint2 z = pack_four(v);
    *(uint2 *)y = z;
    if (rounded) *(uint2 *)rounded = round_four(z);
}

/* y = rmsnorm of the n values in row (shared), and their fp8 rounding (NULL: none). Ends without a barrier. */
__device__ __forceinline__ void norm_row(uint16_t *y, uint16_t *rounded, const uint16_t *row, const uint16_t *w, int64_t n, float eps,
                                         float *sums)
{
    const float sum = row_sum(sums, n, [&](int64_t i, float v) { return fmaf(from_bf16(row[i]), from_bf16(row[i]), v); });
    const float r = bl_rsqrt(sum / (float)n + eps);
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x)
        norm_four(y + i, rounded ? rounded + i : NULL, load_four(row + i), load_four(w + i), r);
}

/* The same of a row in global memory, by all THREADS of a block, in a kernel that may begin early: waits for the one before, when w is in
 * shared memory. shared: [2][n]. */
template <int THREADS>
__device__ __forceinline__ void norm_new_row(uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t n, float eps,
                                             uint16_t *shared)
{
    __shared__ float sums[ROW_SUMS];
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * THREADS) *(uint2 *)(shared + n + i) = *(const uint2 *)(w + i);
    take_over();
#pragma unroll 2
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * THREADS) *(uint2 *)(shared + i) = *(const uint2 *)(x + i);
    __syncthreads();
    norm_row(y, rounded, shared, shared + n, n, eps, sums);
}

} // namespace bl

#endif
