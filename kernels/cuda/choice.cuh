/* What orders experts for a token. */
#ifndef BL_KERNELS_CUDA_CHOICE_CUH
#define BL_KERNELS_CUDA_CHOICE_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

/* A score as a key that orders as it does; NaN as the least number. 0: taken. */
__device__ __forceinline__ uint32_t choice_key(float score)
{
    const uint32_t u = __float_as_uint(score == score ? score + 0.0f : -INFINITY); /* one zero */
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

} // namespace bl

#endif
