/* What the compressor stores and what the indexer asks with: pairs, packed rows. */
#ifndef BL_KERNELS_CUDA_ENTRIES_CUH
#define BL_KERNELS_CUDA_ENTRIES_CUH

#include "kernels/cuda/window.cuh"

namespace bl {

/* Codes of a lane and the next one as a byte, written by even lanes; all zero where the scale is NaN. */
__device__ __forceinline__ void store_pair(uint8_t *out, int64_t i, uint16_t x, float s)
{
    const unsigned code = s == s ? to_e2m1(from_bf16(x) / s) : 0, next = __shfl_down_sync(~0u, code, 1);
    if (i % 2 == 0) out[i / 2] = (uint8_t)(code | next << 4);
}

__device__ __forceinline__ void pack_latent(uint8_t *out, const uint16_t *row, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const unsigned most = group_max<16>(row[i] & 0x7fff);
        const float amax = from_bf16((uint16_t)most), least = 6 * 0x1p-9f;
        const uint8_t byte = most >= 0x7f80 ? 0x7f : to_e4m3((amax > least ? amax : least) / 6.0f);
        store_pair(out, i, row[i], e4m3(byte));
        if (i % 16 == 0) out[n / 2 + i / 16] = byte;
    }
}

__device__ __forceinline__ void pack_index(uint8_t *out, const uint16_t *row, int64_t n, int64_t from, int64_t step)
{
    for (int64_t i = from; i < n; i += step) {
        const uint8_t byte = group_scale(row[i], 6 * 0x1p-126f, 1.0f / 6.0f);
        store_pair(out, i, row[i], e8m0(byte));
        if (i % 32 == 0) out[n / 2 + i / 32] = byte;
    }
}

/* A pair's products with the compressor's weights, its first token's and its second's. */
struct token_pair {
    const float *kv[2], *z[2];
};

/* Token i's pair, i of an odd position: where its partner is not in the pass it is its sequence's open one. */
__device__ __forceinline__ token_pair pair_of(const bl_cuda_tables &t, const float *kv, const float *z, int64_t d, int64_t source, int64_t i)
{
    const bl_cuda_span *s = &t.spans[t.span_of[i]];
    const bool here = t.position[i] > s->start;
    const float *open = s->open + source * 2 * d;
    return {{here ? kv + (i - 1) * d : open, kv + i * d}, {here ? z + (i - 1) * d : open + d, z + i * d}};
}

/* Element k of what a pair becomes. */
__device__ __forceinline__ uint16_t pool_pair(const token_pair &p, int64_t k)
{
    const float a = p.z[0][k], b = p.z[1][k], most = b > a ? b : a;
    const float e0 = bl_exp(a - most), e1 = bl_exp(b - most), sum = e0 + e1;
    return to_bf16(p.kv[0][k] * (e0 / sum) + p.kv[1][k] * (e1 / sum));
}

/* The products of token i, of an even position, wait for its partner. By a block. */
__device__ __forceinline__ void keep_open(const bl_cuda_tables &t, const float *kv, const float *z, int64_t d, int64_t source, int64_t i)
{
    float *open = t.spans[t.span_of[i]].open + source * 2 * d;
    for (int64_t k = threadIdx.x; k < d; k += blockDim.x) {
        open[k] = kv[i * d + k];
        open[d + k] = z[i * d + k];
    }
}

/* Rotates and packs an entry, from what is in shared memory: its latent, and its key before the norm. By a block; weight: k_norm. */
__device__ __forceinline__ void store_entry(const bl_cuda_entries &e, const bl_cuda_tables &t, int64_t i, uint16_t *latent, uint16_t *key,
                                            const uint16_t *weight, float2 turn, float *sums)
{
    const bl_cuda_span *s = &t.spans[t.span_of[i]];
    const int64_t entry = t.position[i] / e.ratio;
    const bl_cuda_page page = t.pages[s->pages + t.source_pages[(int64_t)t.span_of[i] * t.sources + e.source] + entry / PAGE];
    norm_in_place(key, weight, e.width, e.eps, sums);
    if (threadIdx.x < e.R / 2) {
        rotate_row(key, e.width, e.R, threadIdx.x, turn);
        rotate_row(latent, e.d, e.R, threadIdx.x, turn);
    }
    __syncthreads();
    pack_index(page.keys + entry % PAGE * index_bytes(e.width), key, e.width, threadIdx.x, blockDim.x);
    pack_latent(page.latents + entry % PAGE * latent_bytes(e.d), latent, e.d);
}

/* The rotation of a thread's pair of the entry that token i closes: at the position of the group's first token. */
__device__ __forceinline__ float2 entry_rotation(const bl_cuda_entries &e, int64_t position)
{
    return threadIdx.x < e.R / 2 ? rotation_of(position / e.ratio * e.ratio, e.frequency[threadIdx.x]) : make_float2(1, 0);
}

/* Token t's query with head h, by a warp; row: [width] in shared memory. */
__device__ __forceinline__ void index_query(const bl_cuda_index_query &q, int64_t t, int64_t h, uint16_t *row)
{
    const int lane = threadIdx.x % WARP;
    const int64_t at = t * q.heads + h;
    for (int64_t i = lane; i < q.width; i += WARP) row[i] = q.q[at * q.width + i];
    __syncwarp();
    for (int pair = lane; pair < q.R / 2; pair += WARP) rotate_row(row, q.width, q.R, pair, ((const float2 *)(q.rotation + t * q.R))[pair]);
    __syncwarp();
    pack_index(q.rows + at * index_bytes(q.width), row, q.width, lane, WARP);
    if (lane == 0) q.weights[at] = from_bf16(to_bf16(from_bf16(q.dots[at]) * q.scale));
}

} // namespace bl

#endif
