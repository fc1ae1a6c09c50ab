/* The end of a token's attention: accumulators over denominators, rotated back, to memory. */
#ifndef BL_KERNELS_CUDA_SM90_ATTENTION_OUTPUT_CUH
#define BL_KERNELS_CUDA_SM90_ATTENTION_OUTPUT_CUH

#include "kernels/cuda/sm90/attention.cuh"

#ifdef BL_HOPPER
namespace bl {

/* Two as bf16, low half first; EASY: neither is a NaN. */
template <bool EASY> __device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    const uint32_t v = convert_bf16x2(high, low);
    return EASY || (low == low && high == high) ? v : to_bf16(low) | (uint32_t)to_bf16(high) << 16;
}

/* a / b as a division gives it: from the reciprocal, rounded (inverse) and what that leaves (rest). With the reciprocal rounded to nearest
 * and a quotient next to the true one, the last step rounds correctly (Markstein, 1990); all in the range of in_range. */
struct divisor {
    float b, inverse, rest;
};

__device__ __forceinline__ divisor make_divisor(float b)
{
    const float inverse = 1.0f / b;
    return {b, inverse, fmaf(-b, inverse, 1.0f) * inverse};
}

__device__ __forceinline__ float divide(float a, const divisor &d)
{
    const float q = fmaf(a, d.inverse, a * d.rest);
    return fmaf(fmaf(-q, d.b, a), d.inverse, q);
}

/* How far twice the bits of x lie above those of 2^-60: at most SPAN where 2^-60 <= |x| <= 2^60. */
__device__ __forceinline__ uint32_t range_of(float x)
{
    return 2 * __float_as_uint(x) - 2 * 0x21800000u;
}
#define SPAN (2 * 0x5d800000u - 2 * 0x21800000u)

/* Any division, as rarely needed: not unrolled, by the thread's words of shared memory. */
template <int N, int M> __device__ __forceinline__ void divide_all(float (&acc)[N][M], float b0, float b1, uint32_t swap)
{
    const uint32_t at = swap + threadIdx.x * 16, step = 2 * GROUP * 16;
#pragma unroll
    for (int from = 0; from < N * M; from += MINE) {
        float *x = &acc[from / M][from % M];
#pragma unroll
        for (int k = 0; k < MINE; k++) put_float(at + k / 4 * step + k % 4 * 4, x[k]);
#pragma unroll 1
        for (int k = 0; k < MINE; k++) {
            const uint32_t mine = at + k / 4 * step + k % 4 * 4;
            put_float(mine, shared_float(mine) / (k % 4 < 2 ? b0 : b1));
        }
#pragma unroll
        for (int k = 0; k < MINE; k++) x[k] = shared_float(at + k / 4 * step + k % 4 * 4);
    }
}

/* Of acc's first 32 columns what the thread has of a row, its first (H = 0) or second, to columns from col on. EASY: every number is
 * in range, else divided already. rotation: the token's, in any memory. */
template <bool EASY, int H, int M>
__device__ __forceinline__ void store_columns(const bl_cuda_attention &a, const float *rotation, const float (&acc)[M],
                                              const divisor &below, const turn &at, int row, int col)
{
    const int t = threadIdx.x % 4, head = at.head0 + row;
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = acc[4 * i + 2 * H], y = acc[4 * i + 2 * H + 1];
        v[i] = EASY ? pair_of<true>(divide(x, below), divide(y, below)) : pack_bf16(x, y);
    }
    if (col + 32 > D - a.R) { /* rotated back */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t pair = col + 8 * i + 2 * t - (D - a.R);
            if (pair < 0) continue;
            const float2 cs = *(const float2 *)(rotation + pair);
            const float x = __uint_as_float(v[i] << 16), y = __uint_as_float(v[i] & 0xffff0000);
            v[i] = pair_of<EASY>(x * cs.x - y * -cs.y, x * -cs.y + y * cs.x);
        }
    }
    transpose4(v);
    if (head < a.heads) *(uint4 *)(a.o + ((int64_t)at.token * a.heads + head) * D + col + 8 * t) = make_uint4(v[0], v[1], v[2], v[3]);
}

/* The thread's rows, 32 columns at a time. Few accumulators move down instead of being named: most of a short kernel's last part would
 * be waiting for its own instructions. */
template <bool EASY, int N, int M>
__device__ __forceinline__ void store_rows(const bl_cuda_attention &a, const float *rotation, const softmax_state &sh, float (&acc)[N][M],
                                           const turn &at, int col0)
{
    enum { TIMES = N * M / 16 };
    const int row = threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
    const divisor low = make_divisor(sh.denominator[row]), high = make_divisor(sh.denominator[row + 8]);
#pragma unroll(N == 1 ? 1 : TIMES)
    for (int c = 0; c < TIMES; c++) {
        store_columns<EASY, 0>(a, rotation, acc[0], low, at, row, col0 + 32 * c);
        store_columns<EASY, 1>(a, rotation, acc[0], high, at, row + 8, col0 + 32 * c);
#pragma unroll
        for (int k = 0; k + 16 < N * M; k++) acc[k / M][k % M] = acc[(k + 16) / M][(k + 16) % M];
    }
}

template <int N, int M>
__device__ __forceinline__ void store_output(const bl_cuda_attention &a, const float *rotation, const softmax_state &sh,
                                             float (&acc)[N][M], const turn &at, int col0, uint32_t swap)
{
    const int row = threadIdx.x % GROUP / WARP * 16 + threadIdx.x % WARP / 4;
    const float b0 = sh.denominator[row], b1 = sh.denominator[row + 8];
    uint32_t most = range_of(b0) > range_of(b1) ? range_of(b0) : range_of(b1);
#pragma unroll
    for (int i = 0; i < N * M; i++) {
        const uint32_t other = range_of(acc[i / M][i % M]);
        most = other > most ? other : most;
    }
    if (__all_sync(~0u, most <= SPAN)) {
        store_rows<true>(a, rotation, sh, acc, at, col0);
    } else {
        divide_all(acc, b0, b1, swap);
        store_rows<false>(a, rotation, sh, acc, at, col0);
    }
}

} // namespace bl
#endif

#endif
