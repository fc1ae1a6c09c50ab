/* Copies from global to shared memory that run beside the program. */
#ifndef BL_KERNELS_CUDA_COPIES_CUH
#define BL_KERNELS_CUDA_COPIES_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Sixteen bytes; zeros where they are not there (from must be an address all the same). */
__device__ __forceinline__ void copy_sixteen(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copies_end_group(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most so many of this thread's newest groups are under way. */
template <int LEFT> __device__ __forceinline__ void copies_wait_for(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

} // namespace bl

#endif
