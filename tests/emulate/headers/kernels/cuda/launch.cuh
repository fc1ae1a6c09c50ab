/* As kernels/cuda/launch.cuh: what is launched has run when the function returns. */
#ifndef BL_KERNELS_CUDA_LAUNCH_CUH
#define BL_KERNELS_CUDA_LAUNCH_CUH

#include "tests/emulate/engine.h"

#include <cuda_runtime.h>

/* As nvcc has it, for any kernel. */
template <class... P> static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute a, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, a, value);
}

namespace bl {

/* Every thread gets arguments of its own. */
template <class... P, class... A>
static void launch_declared(unsigned cluster, cudaStream_t, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    const emu::shape s = {{grid.x, grid.y, grid.z}, (unsigned)threads, cluster, (unsigned)bytes};
    emu::check_dynamic((const void *)kernel, s.dynamic_bytes);
    emu::check_dynamic((const void *)kernel, s.dynamic_bytes);
    emu::run(emu::kernel_name((const void *)kernel), s, [&] { kernel((P)args...); });
}

template <class... P, class... A>
static void launch_plain(cudaStream_t s, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    launch_declared(1, s, grid, threads, bytes, kernel, args...);
}

template <class... P, class... A>
static void launch_with(cudaLaunchAttribute *attributes, unsigned count, cudaStream_t s, dim3 grid, int threads, int64_t bytes,
                        void (*kernel)(P...), A... args)
{
    unsigned cluster = 1;
    for (unsigned i = 0; i < count; i++)
        if (attributes[i].id == cudaLaunchAttributeClusterDimension) cluster = attributes[i].val.clusterDim.x;
    launch_declared(cluster, s, grid, threads, bytes, kernel, args...);
}

} // namespace bl

#endif
