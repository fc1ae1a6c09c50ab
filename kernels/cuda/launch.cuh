/* Starting kernels, on the host. */
#ifndef BL_KERNELS_CUDA_LAUNCH_CUH
#define BL_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

namespace bl {

/* A kernel by itself; bytes: of dynamic shared memory. */
template <class... P, class... A>
static void launch_plain(cudaStream_t s, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    kernel<<<grid, threads, (size_t)bytes, s>>>(args...);
}

/* ... whose declaration says that its clusters have so many blocks. */
template <class... P, class... A>
static void launch_declared(unsigned, cudaStream_t s, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    launch_plain(s, grid, threads, bytes, kernel, args...);
}

/* ... with so many attributes. */
template <class... P, class... A>
static void launch_with(cudaLaunchAttribute *attributes, unsigned count, cudaStream_t s, dim3 grid, int threads, int64_t bytes,
                        void (*kernel)(P...), A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = s;
    config.attrs = attributes;
    config.numAttrs = count;
    cudaLaunchKernelEx(&config, kernel, args...);
}

} // namespace bl

#endif
