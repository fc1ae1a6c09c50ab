/* Builds without CUDA: asking for a GPU is refused. */
#include "runtime/backend.h"

bl_status bl_backend_cuda(bl_backend **out, const bl_config *config, const bl_shard *shard, const bl_cuda_options *o, bl_error *err)
{
    (void)config;
    (void)shard;
    (void)o;
    *out = NULL;
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "this build has no CUDA backend");
}

bl_status bl_cuda_free_memory(uint64_t *bytes, bl_error *err)
{
    *bytes = 0;
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "this build has no CUDA backend");
}

bool bl_cuda_usable(bl_error *why)
{
    (void)why;
    return false;
}
