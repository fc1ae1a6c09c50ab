/* Sizes of scratch, which the memory plan needs where there is no CUDA too. */
#include "kernels/cuda/cuda.h"

#include "kernels/cuda/sm90/many.h"
#include "kernels/ops.h"

static int64_t up_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

size_t bl_cuda_attend_scores(int64_t T, int64_t heads, int64_t slots)
{
    if (T > BL_CUDA_ATTEND_TOKENS) T = BL_CUDA_ATTEND_TOKENS;
    return (size_t)(T * up_to(heads, BL_CUDA_HEAD_TILE) * up_to(slots, BL_ATTN_BLOCK)) * sizeof(float);
}

int64_t bl_cuda_unit_slots(int64_t T, bool many)
{
    return many ? BL_CUDA_MANY_SLOTS : T <= 64 ? 8 : T <= 256 ? 16 : 32;
}

int64_t bl_cuda_max_units(int64_t T, int64_t k, int64_t E, bool many)
{
    const int64_t most = E + T * k / bl_cuda_unit_slots(T, many);
    return T * k < most ? T * k : most;
}

int64_t bl_cuda_sort_chunk(int64_t k)
{
    return BL_CUDA_SORT_CHUNK / k * k;
}

int64_t bl_cuda_sort_counts(int64_t T, int64_t k, int64_t E)
{
    return (T * k + bl_cuda_sort_chunk(k) - 1) / bl_cuda_sort_chunk(k) * E;
}
