/* What scoring and choosing share: the entries that a token sees. */
#ifndef BL_KERNELS_CUDA_INDEX_CUH
#define BL_KERNELS_CUDA_INDEX_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

/* Entries of the token's list: all visible ones, or those of its candidate blocks side by side. */
__device__ __forceinline__ int64_t visible(const bl_cuda_selection &a, const bl_cuda_tables &t, int64_t token)
{
    return (t.position[token] + 1) / a.ratio;
}

/* A warp together. */
__device__ __forceinline__ int64_t list_length(const bl_cuda_selection &a, const bl_cuda_tables &t, int64_t token)
{
    const int64_t n = visible(a, t, token);
    if (!a.filtered) return n;
    const int32_t *blocks = a.candidates + token * a.blocks;
    const int lane = threadIdx.x % WARP;
    int low = 0, high = (int)a.blocks; /* how many are listed: -1 fills the rest */
    while (low < high) {
        const int step = (high - low + WARP - 1) / WARP, at = low + lane * step;
        const int found = __popc(__ballot_sync(~0u, at < high && blocks[at] >= 0)); /* of those a step apart the first so many */
        high = min(high, low + found * step);
        low += found ? (found - 1) * step + 1 : 0;
    }
    const int64_t over = low ? (blocks[low - 1] + 1) * a.size - n : 0; /* only the last block can be partial */
    return low * a.size - (over > 0 ? over : 0);
}

__device__ __forceinline__ int64_t entry_at(const bl_cuda_selection &a, int64_t token, int64_t i)
{
    if (!a.filtered) return i;
    const int size = (int)a.size, block = (int)i / size; /* short divisions */
    return (int64_t)a.candidates[token * a.blocks + block] * size + ((int)i - block * size);
}

/* Chooses from the scores of a's rows, of lists of at most `longest`. */
void launch_choice(cudaStream_t s, const bl_cuda_selection *a, int64_t longest);

} // namespace bl

#endif
