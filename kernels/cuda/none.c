/* Builds without CUDA: asking for casts on a GPU is refused. */
#include "kernels/cuda/host.h"

bl_status bl_cuda_cast_device(bl_cast_device **out, bl_error *err)
{
    *out = NULL;
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "this build has no CUDA backend");
}
