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

/* Where a token's rows are: its window's positions (all below 2^31), those of this pass, from `start` on, at pass + position * bytes, the
 * others in the ring; and the pages of the entries that it selects from. */
struct token_rows {
    int first, last, start;
    const uint8_t *pass, *ring;
    const bl_cuda_page *pages;
};

__device__ __forceinline__ token_rows rows_of(const bl_cuda_attention &a, const bl_cuda_tables &tables, int64_t token)
{
    const int64_t position = tables.position[token], span = tables.span_of[token];
    const bl_cuda_span *s = &tables.spans[span];
    const int first = position >= a.window ? (int)(position - a.window + 1) : 0;
    const bl_cuda_page *pages = a.selected ? tables.pages + s->pages + tables.source_pages[span * tables.sources + a.source] : NULL;
    return {first, (int)position, (int)s->start, a.kv + (s->first - s->start) * window_bytes(a.d), s->windows + a.layer_offset, pages};
}

__device__ __forceinline__ const uint8_t *window_row(const bl_cuda_attention &a, const token_rows &r, int i)
{
    const int at = r.first + i;
    if (at > r.last) return NULL;
    return at >= r.start ? r.pass + at * window_bytes(a.d) : r.ring + (int)((unsigned)at % (unsigned)a.ring) * window_bytes(a.d);
}

/* The entry that a token selects in slot i; negative where there is none. */
__device__ __forceinline__ int selected_entry(const bl_cuda_attention &a, int64_t token, int i)
{
    return i >= a.window && i < attended(a) ? a.selected[token * a.topk + i - a.window] : -1;
}

/* The packed row in slot i of a token's list, which selects `entry` there; NULL for a hole. */
__device__ __forceinline__ const uint8_t *slot_row(const bl_cuda_attention &a, const token_rows &r, int i, int entry)
{
    if (i < a.window) return window_row(a, r, i);
    return entry < 0 ? NULL : r.pages[(unsigned)entry / PAGE].latents + (unsigned)entry % PAGE * (unsigned)latent_bytes(a.d);
}

} // namespace bl

#endif
