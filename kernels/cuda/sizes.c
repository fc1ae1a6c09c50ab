/* Sizes of scratch, which the memory plan needs where there is no CUDA too. */
#include "kernels/cuda/cuda.h"

#include "kernels/ops.h"

static int64_t up_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

size_t bl_cuda_attend_scores(int64_t T, int64_t heads, int64_t slots)
{
    return (size_t)(T * up_to(heads, BL_CUDA_HEAD_TILE) * up_to(slots, BL_ATTN_BLOCK)) * sizeof(float);
}

size_t bl_cuda_attend_rows(int64_t T, int64_t slots)
{
    return (size_t)(T * up_to(slots, BL_ATTN_BLOCK)) * sizeof(uint8_t *);
}

int64_t bl_cuda_unit_slots(int64_t T)
{
    return T <= 64 ? 8 : T <= 256 ? 16 : 32;
}

int64_t bl_cuda_max_units(int64_t T, int64_t k, int64_t E)
{
    const int64_t most = E + T * k / bl_cuda_unit_slots(T);
    return T * k < most ? T * k : most;
}
