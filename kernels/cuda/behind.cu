/* Behind attention's projections up, for a few tokens, in one launch: rotated queries, the indexer's packed ones, and the compressor's
 * entries. */
#include "kernels/cuda/entries.cuh"
#include "kernels/cuda/held.cuh"

namespace bl {

enum {
    THREADS = 512, WARPS = THREADS / WARP, SEGMENTS = (BL_CUDA_MAX_HEAD_DIM + SEGMENT - 1) / SEGMENT,
    LATENT = SEGMENTS * SEGMENT /* elements that a key's product takes */
};
static_assert(WARPS * HELD_ROWS >= BL_CUDA_MAX_INDEX_DIM, "a warp for each tile of a key");

struct rope_args {
    uint16_t *q;
    const float *rotation;
    int64_t heads, d, R;
};

/* Blocks of a token: one that makes its entry, some for the indexer's queries, some that rotate. */
struct block_counts {
    int entries, index, rope;
};

/* The key of the latent in shared memory, whose columns behind its end are zeros, before its norm: a warp for each tile of eight rows, whose
 * weights it has. */
__device__ __forceinline__ void make_key(uint16_t *key, const uint16_t *latent, const uint2 (&w)[SEGMENTS][STEPS], int64_t width)
{
    const int lane = threadIdx.x % WARP, row = (int)(threadIdx.x / WARP) * HELD_ROWS + lane / 4;
    float total = 0;
#pragma unroll
    for (int e = 0; e < SEGMENTS; e++) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = 0; s < STEPS; s++) /* one token, in each place that tokens have */
            held_step(c, w[e][s], *(const uint2 *)(latent + e * SEGMENT + s * BL_DOT_STEP + lane % 4 * 4));
        total += c[0]; /* behind the last column +0 */
    }
    if (lane % 4 == 0 && row < width) key[row] = to_bf16(total);
}

/* The entry that token i closes, from the compressor's products; waits for the kernel before. Where they are pairs', a span's first token,
 * which alone takes the open pair, puts the last one there afterwards. */
__device__ __forceinline__ void make_entry(const bl_cuda_compression &c, const bl_cuda_entries &e, const bl_cuda_tables &t, int64_t i)
{
    __shared__ __align__(16) uint16_t latent[LATENT];
    __shared__ uint16_t key[BL_CUDA_MAX_INDEX_DIM], norm[BL_CUDA_MAX_HEAD_DIM], k_norm[BL_CUDA_MAX_INDEX_DIM];
    __shared__ float sums[ROW_SUMS];
    const int lane = threadIdx.x % WARP, row = (int)(threadIdx.x / WARP) * HELD_ROWS + lane / 4;
    const int64_t position = t.position[i];
    const bl_cuda_span *span = &t.spans[t.span_of[i]];
    const int64_t last = i == span->first ? i + span->count - 1 : -1;
    const bool closes = (position + 1) % e.ratio == 0, opens = c.kv && last >= 0 && t.position[last] % 2 == 0;
    uint2 w[SEGMENTS][STEPS];
    float2 turn = make_float2(1, 0);
    if (closes) {
        turn = entry_rotation(e, position);
#pragma unroll
        for (int k = 0; k < SEGMENTS; k++) {
            const int64_t from = k * SEGMENT + 4 * (lane % 4);
            load_steps(w[k], (const uint2 *)((const uint16_t *)c.wk.codes + (row < e.width ? row : e.width - 1) * e.d + from),
                       (int)(e.d - from));
        }
        for (int64_t k = threadIdx.x; k < e.d; k += THREADS) norm[k] = c.norm[k];
        for (int64_t k = threadIdx.x; k < e.width; k += THREADS) k_norm[k] = e.k_norm[k];
        for (int64_t k = e.d + threadIdx.x; k < LATENT; k += THREADS) latent[k] = 0;
    }
    take_over();
    if (closes && c.kv) {
        const token_pair p = pair_of(t, c.kv, c.z, e.d, e.source, i);
        for (int64_t k = threadIdx.x; k < e.d; k += THREADS) latent[k] = pool_pair(p, k);
    } else if (closes) {
        for (int64_t k = threadIdx.x; k < e.d; k += THREADS) latent[k] = e.latent[i * e.d + k];
    }
    __syncthreads();
    if (opens) keep_open(t, c.kv, c.z, e.d, e.source, last);
    if (!closes) return;
    norm_in_place(latent, norm, e.d, e.eps, sums);
    make_key(key, latent, w, e.width);
    __syncthreads();
    store_entry(e, t, i, latent, key, k_norm, turn, sums);
}

__global__ void __launch_bounds__(THREADS) behind_kernel(rope_args r, bl_cuda_index_query index, bl_cuda_compression c, bl_cuda_entries e,
                                                         bl_cuda_tables tables, block_counts n)
{
    __shared__ uint16_t row[WARPS][BL_CUDA_MAX_INDEX_DIM];
    const int at = (int)blockIdx.x, warp = (int)threadIdx.x / WARP;
    const int64_t t = blockIdx.y;
    if (at < n.entries) {
        make_entry(c, e, tables, t);
        return;
    }
    take_over();
    if (at < n.entries + n.index) {
        const int64_t head = (int64_t)(at - n.entries) * WARPS + warp;
        if (head < index.heads) index_query(index, t, head, row[warp]);
    } else {
        rotate_query(r.q, r.rotation, r.heads, r.d, r.R, t, (int64_t)(at - n.entries - n.index) * THREADS + threadIdx.x);
    }
}

} // namespace bl

using namespace bl;

bool bl_cuda_holds_key(const bl_matrix *wk)
{
    return wk->kind == BL_W_BF16 && wk->rows <= BL_CUDA_MAX_INDEX_DIM && wk->cols <= BL_CUDA_MAX_HEAD_DIM;
}

void bl_cuda_finish_queries(bl_cuda_stream s, const bl_cuda_behind *b)
{
    if (!b->index && !b->entries) {
        bl_cuda_rope(s, b->q, b->rotation, b->T, b->heads, b->d, b->R);
        return;
    }
    const rope_args r = {b->q, b->rotation, b->heads, b->d, b->R};
    const bl_cuda_index_query index = b->index ? *b->index : bl_cuda_index_query{};
    const bl_cuda_compression c = b->entries ? *b->entries : bl_cuda_compression{};
    const bl_cuda_entries e = b->entries ? *b->entries->e : bl_cuda_entries{};
    const bl_cuda_tables tables = b->entries ? *b->entries->e->t : bl_cuda_tables{};
    const block_counts n = {b->entries ? 1 : 0, (int)blocks_of(index.heads, WARPS), (int)blocks_of(b->heads * (b->R / 2), THREADS)};
    launch_early(true, s, dim3((unsigned)(n.entries + n.index + n.rope), (unsigned)b->T), THREADS, 0, behind_kernel, r, index, c, e, tables,
                 n);
}
