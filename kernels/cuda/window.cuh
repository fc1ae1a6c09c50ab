/* Window rows: norm, rotation and packing of a row in shared memory, by a block. */
#ifndef BL_KERNELS_CUDA_WINDOW_CUH
#define BL_KERNELS_CUDA_WINDOW_CUH

#include "kernels/cuda/slots.cuh"

namespace bl {

/* rmsnorm of a row of n in shared memory, by a whole block. */
__device__ __forceinline__ void norm_in_place(uint16_t *row, const uint16_t *w, int64_t n, float eps, float *sums)
{
    const float sum = row_sum(sums, n, [&](int64_t i, float v) { return fmaf(from_bf16(row[i]), from_bf16(row[i]), v); });
    const float r = bl_rsqrt(sum / (float)n + eps);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) row[i] = to_bf16(from_bf16(w[i]) * (from_bf16(row[i]) * r));
    __syncthreads();
}

__device__ __forceinline__ void rotate_row(uint16_t *row, int64_t n, int64_t R, int pair, float2 cs)
{
    if (pair < R / 2) rotate(row[n - R + 2 * pair], row[n - R + 2 * pair + 1], cs.x, cs.y);
}

/* Packed rows of what is in shared memory; n a multiple of 32, whole warps. also: NULL or another place for the same. */
__device__ __forceinline__ void pack_window(uint8_t *out, uint8_t *also, const uint16_t *row, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint8_t byte = fp8_scale(row[i]), code = byte == 255 ? 0x7f : to_e4m3(from_bf16(row[i]) / e8m0(byte));
        out[i] = code;
        if (also) also[i] = code;
        if (i % 32) continue;
        out[n + i / 32] = byte;
        if (also) also[n + i / 32] = byte;
    }
}

struct window_args {
    bl_cuda_tables tables;
    uint8_t *kv;
    const uint16_t *down, *norm;
    const float *rotation;
    int64_t d, R, ring, layer_offset;
    float eps;
};

static inline window_args args_of(const bl_cuda_window *w)
{
    return {*w->t, w->kv, w->down, w->norm, w->rotation, w->d, w->R, w->ring, w->layer_offset, w->eps};
}

/* Token t's. In a kernel that may begin early: waits for the one before. */
__device__ __forceinline__ void make_window_row(const window_args &w, int64_t t)
{
    __shared__ uint16_t row[BL_CUDA_MAX_HEAD_DIM], weight[BL_CUDA_MAX_HEAD_DIM];
    __shared__ float sums[ROW_SUMS];
    const bl_cuda_tables &at = w.tables;
    uint8_t *const also = w.ring ? ring_row(&at.spans[at.span_of[t]], w.layer_offset, at.position[t], w.ring, w.d) : NULL;
    const float2 turn = threadIdx.x < w.R / 2 ? ((const float2 *)(w.rotation + t * w.R))[threadIdx.x] : make_float2(1, 0);
    for (int64_t i = threadIdx.x; i < w.d; i += blockDim.x) weight[i] = w.norm[i];
    take_over();
    for (int64_t i = threadIdx.x; i < w.d; i += blockDim.x) row[i] = w.down[t * w.d + i];
    __syncthreads();
    norm_in_place(row, weight, w.d, w.eps, sums);
    if (threadIdx.x < w.R / 2) rotate_row(row, w.d, w.R, threadIdx.x, turn);
    __syncthreads();
    pack_window(w.kv + t * window_bytes(w.d), also, row, w.d);
}

} // namespace bl

#endif
