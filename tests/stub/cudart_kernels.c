/* Kernels, as nvcc's host code registers and launches them. */
#include "tests/stub/cudart_impl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 65536, FUNCTIONS = 512 };

static struct {
    const void *host;
    const char *name;
} functions[FUNCTIONS];
static int function_count;
static const char *kernels[KERNELS];
static bool early[KERNELS];
static int kernel_count;

const char *cuda_stub_kernel(int i)
{
    return i < kernel_count ? kernels[i] : NULL;
}

bool cuda_stub_early(int i)
{
    return i < kernel_count && early[i];
}

void stub_forget_kernels(void)
{
    kernel_count = 0;
}

typedef struct dim3 dim3;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, dim3 *threads,
                            dim3 *grid, int *shared);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, cudaStream_t s);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *s);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, dim3 *threads,
                            dim3 *grid, int *shared)
{
    if (function_count == FUNCTIONS) abort();
    functions[function_count].host = host;
    functions[function_count++].name = name;
}

static __thread struct {
    dim3 grid, threads;
    size_t shared;
    cudaStream_t stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared, cudaStream_t s)
{
    configuration.grid = grid;
    configuration.threads = threads;
    configuration.shared = shared;
    configuration.stream = s;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared, void *s)
{
    *grid = configuration.grid;
    *threads = configuration.threads;
    *shared = configuration.shared;
    memcpy(s, &configuration.stream, sizeof configuration.stream);
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    memcpy(kernel, &host, sizeof host);
    return cudaSuccess;
}

static bool is_launchable(const dim3 *n, uint64_t most)
{
    return n->x && n->y && n->z && (uint64_t)n->x * n->y * n->z <= most;
}

static cudaError_t launch(cudaKernel_t kernel, dim3 grid, dim3 threads, bool begins_early)
{
    const char *name = "?";
    for (int i = 0; i < function_count; i++)
        if (functions[i].host == (const void *)kernel) name = functions[i].name;
    pthread_mutex_lock(&stub_lock);
    cudaError_t e = stub_enter("cudaLaunchKernel");
    if (!is_launchable(&threads, 1024) || !is_launchable(&grid, UINT64_MAX) || grid.y > 65535 || grid.z > 65535) {
        cuda_stub_seen.faults++;
        if (e == cudaSuccess) e = stub_refuse(cudaErrorInvalidConfiguration);
    }
    if (e == cudaSuccess && kernel_count < KERNELS) {
        early[kernel_count] = begins_early;
        kernels[kernel_count++] = name;
    }
    if (e == cudaSuccess && !stub_capture((stub_node){.kernel = name})) {
        cuda_stub_seen.kernels++;
        cuda_stub_seen.direct++;
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s)
{
    (void)args;
    (void)shared;
    (void)s;
    return launch(kernel, grid, threads, false);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args)
{
    cudaKernel_t kernel;
    bool begins_early = false;
    (void)args;
    __cudaGetKernel(&kernel, host);
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            begins_early = c->attrs[i].val.programmaticStreamSerializationAllowed;
    return launch(kernel, c->gridDim, c->blockDim, begins_early);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 threads, void **args, size_t shared, cudaStream_t s)
{
    cudaKernel_t kernel;
    __cudaGetKernel(&kernel, host);
    return __cudaLaunchKernel(kernel, grid, threads, args, shared, s);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute a, int value)
{
    (void)host;
    (void)a;
    (void)value;
    return stub_call("cudaFuncSetAttribute");
}
