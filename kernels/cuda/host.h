/* The CUDA runtime from the host's side: devices, errors, casts for who has no backend. */
#ifndef BL_KERNELS_CUDA_HOST_H
#define BL_KERNELS_CUDA_HOST_H

#include "kernels/cast_device.h"

#include <stdbool.h>

/* An error of the CUDA runtime (a cudaError_t) as status; BL_OK for success. No device, or a driver that is too old: BL_E_USAGE. */
bl_status bl_cuda_check(int code, const char *doing, bl_error *err);
/* The current device, for which there is machine code; else BL_E_USAGE, saying why not. */
bl_status bl_cuda_find_device(int *device, bl_error *err);

/* Is there a driver, and a GPU that it knows of, usable or not? */
bool bl_cuda_present(void);

/* Casts on the current device, which holds a few pieces at once. Errors as bl_cuda_find_device; in a build without CUDA BL_E_USAGE.
 * Ended by its destroy. */
bl_status bl_cuda_cast_device(bl_cast_device **out, bl_error *err);

#endif
