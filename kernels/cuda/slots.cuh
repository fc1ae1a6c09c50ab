/* The slots of a token's attention: window, then selected entries, as packed rows. */
#ifndef BL_KERNELS_CUDA_SLOTS_CUH
#define BL_KERNELS_CUDA_SLOTS_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

__device__ __forceinline__ uint8_t *ring_row(const bl_cuda_span *s, int64_t layer_offset, int64_t position, int64_t ring, int64_t d)
{
    return s->windows + layer_offset + position % ring * window_bytes(d);
}

/* Slots of a token's list. */
__device__ __host__ __forceinline__ int64_t attended(const bl_cuda_attention &a)
{
    return a.window + (a.selected ? a.topk : 0);
}

/* The packed row in slot i of token's list; NULL for a hole. */
__device__ __forceinline__ const uint8_t *slot_row(const bl_cuda_attention &a, const bl_cuda_tables &tables, int64_t token,
                                                           const bl_cuda_span *s, int64_t i)
{
    const int64_t position = tables.position[token];
    if (i < a.window) {
        const int64_t at = (position >= a.window ? position - a.window + 1 : 0) + i;
        if (at > position) return NULL;
        return at >= s->start ? a.kv + (s->first + at - s->start) * window_bytes(a.d)
                              : ring_row(s, a.layer_offset, at, a.ring, a.d);
    }
    const int32_t entry = a.selected[token * a.topk + i - a.window];
    if (entry < 0) return NULL;
    const int64_t page = s->pages + tables.source_pages[(int64_t)tables.span_of[token] * tables.sources + a.source] + entry / PAGE;
    return tables.pages[page].latents + entry % PAGE * latent_bytes(a.d);
}

} // namespace bl

#endif
