#include "kernels/cuda/host.h"

#include <cuda_runtime_api.h>

/* The runtime's own words say neither which versions nor that there is no driver at all. */
static bl_status wrong_driver(const char *doing, bl_error *err)
{
    int have = 0, need = 0;
    (void)cudaDriverGetVersion(&have);
    (void)cudaRuntimeGetVersion(&need);
    if (have == 0) return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "CUDA: %s: there is no NVIDIA driver", doing);
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "CUDA: %s: the driver is too old: it has CUDA %d.%d, this build needs %d.%d", doing,
                   have / 1000, have % 1000 / 10, need / 1000, need % 1000 / 10);
}

bl_status bl_cuda_check(int code, const char *doing, bl_error *err)
{
    const cudaError_t e = (cudaError_t)code;
    if (e == cudaSuccess) return BL_OK;
    if (e == cudaErrorInsufficientDriver) return wrong_driver(doing, err);
    const bl_status s = e == cudaErrorMemoryAllocation ? BL_E_NOMEM : e == cudaErrorNoDevice ? BL_E_USAGE : BL_E_IO;
    return bl_fail(err, s, NULL, NULL, -1, "CUDA: %s: %s", doing, cudaGetErrorString(e));
}

/* Is there machine code for it? kernels/meson.build builds for these two alone. */
static bool is_supported(const struct cudaDeviceProp *p)
{
    return (p->major == 9 || p->major == 10) && p->minor == 0;
}

bool bl_cuda_present(void)
{
    int driver = 0, device;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return false;
    const cudaError_t e = cudaGetDevice(&device);
    (void)cudaGetLastError(); /* no fault of what comes */
    return e != cudaErrorNoDevice;
}

bl_status bl_cuda_find_device(int *device, bl_error *err)
{
    struct cudaDeviceProp prop;
    BL_TRY(bl_cuda_check(cudaGetDevice(device), "looking for a device", err));
    BL_TRY(bl_cuda_check(cudaGetDeviceProperties(&prop, *device), "looking for a device", err));
    if (is_supported(&prop)) return BL_OK;
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "%s has compute capability %d.%d: the CUDA backend is built for 9.0 and 10.0", prop.name,
                   prop.major, prop.minor);
}
