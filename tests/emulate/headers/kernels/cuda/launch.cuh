/* As kernels/cuda/launch.cuh: what is launched has run when the function returns. */
#ifndef BL_KERNELS_CUDA_LAUNCH_CUH
#define BL_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/instructions.cuh"

#include <cuda_runtime.h>

/* As nvcc has it, for any kernel. */
template <class... P> static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute a, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, a, value);
}

namespace bl {

/* Every thread gets arguments of its own. early: a block at least has to wait for the kernel before. */
template <class... P, class... A>
static void launch_on(bool early, unsigned cluster, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    const emu::shape s = {{grid.x, grid.y, grid.z}, (unsigned)threads, cluster, (unsigned)bytes};
    const uint64_t before = waits_for_last;
    emu::check_dynamic((const void *)kernel, s.dynamic_bytes);
    emu::run(emu::kernel_name((const void *)kernel), s, [&] { kernel((P)args...); });
    if (early && waits_for_last == before) emu::fail("and all others begin early and never wait for the kernel before");
}

template <class... P, class... A>
static void launch_plain(cudaStream_t, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    launch_on(false, 1, grid, threads, bytes, kernel, args...);
}

template <class... P, class... A>
static void launch_declared(unsigned cluster, cudaStream_t, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    launch_on(false, cluster, grid, threads, bytes, kernel, args...);
}

template <class... P, class... A>
static void launch_with(cudaLaunchAttribute *attributes, unsigned count, cudaStream_t, dim3 grid, int threads, int64_t bytes,
                        void (*kernel)(P...), A... args)
{
    unsigned cluster = 1;
    bool early = false;
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i].id == cudaLaunchAttributeClusterDimension) cluster = attributes[i].val.clusterDim.x;
        if (attributes[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early = attributes[i].val.programmaticStreamSerializationAllowed;
    }
    launch_on(early, cluster, grid, threads, bytes, kernel, args...);
}

} // namespace bl

#endif
