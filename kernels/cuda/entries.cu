/* Entries of the compressor and queries of the indexer, for any number of tokens: a block or a warp for each. */
#include "kernels/cuda/entries.cuh"

namespace bl {

enum { THREADS = 256 };

__global__ void pool_pairs_kernel(bl_cuda_tables t, uint16_t *pooled, const float *kv, const float *z, int64_t d, int64_t source)
{
    const int64_t i = blockIdx.x;
    take_over();
    if (t.position[i] % 2 == 0) return;
    const token_pair p = pair_of(t, kv, z, d, source, i);
    for (int64_t k = threadIdx.x; k < d; k += blockDim.x) pooled[i * d + k] = pool_pair(p, k);
}

__global__ void keep_open_kernel(bl_cuda_tables t, const float *kv, const float *z, int64_t d, int64_t source)
{
    const int64_t i = blockIdx.x;
    take_over();
    const bl_cuda_span *s = &t.spans[t.span_of[i]];
    if (t.position[i] % 2 == 0 && i == s->first + s->count - 1) keep_open(t, kv, z, d, source, i);
}

__global__ void __launch_bounds__(THREADS) store_entries_kernel(bl_cuda_entries e, bl_cuda_tables t)
{
    __shared__ uint16_t latent[BL_CUDA_MAX_HEAD_DIM], key[BL_CUDA_MAX_INDEX_DIM];
    __shared__ float sums[ROW_SUMS];
    const int64_t i = blockIdx.x, position = t.position[i];
    take_over();
    if ((position + 1) % e.ratio) return;
    for (int64_t k = threadIdx.x; k < e.d; k += blockDim.x) latent[k] = e.latent[i * e.d + k];
    for (int64_t k = threadIdx.x; k < e.width; k += blockDim.x) key[k] = e.key[i * e.width + k];
    __syncthreads();
    store_entry(e, t, i, latent, key, e.k_norm, entry_rotation(e, position), sums);
}

__global__ void index_queries_kernel(bl_cuda_index_query q)
{
    __shared__ uint16_t row[BL_CUDA_MAX_INDEX_DIM];
    take_over();
    index_query(q, blockIdx.x / q.heads, blockIdx.x % q.heads, row);
}

} // namespace bl

using namespace bl;

void bl_cuda_pool_pairs(bl_cuda_stream s, const bl_cuda_tables *t, uint16_t *pooled, const float *kv, const float *z, int64_t d,
                        int64_t source)
{
    launch_early(true, s, dim3((unsigned)t->tokens), THREADS, 0, pool_pairs_kernel, *t, pooled, kv, z, d, source);
    launch_early(true, s, dim3((unsigned)t->tokens), THREADS, 0, keep_open_kernel, *t, kv, z, d, source);
}

void bl_cuda_store_entries(bl_cuda_stream s, const bl_cuda_entries *e)
{
    launch_early(true, s, dim3((unsigned)e->t->tokens), THREADS, 0, store_entries_kernel, *e, *e->t);
}

void bl_cuda_index_queries(bl_cuda_stream s, const bl_cuda_index_query *q)
{
    launch_early(true, s, dim3((unsigned)(q->T * q->heads)), WARP, 0, index_queries_kernel, *q);
}
