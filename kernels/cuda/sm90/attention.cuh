/* What attention of many tokens and that by pairs of blocks share: sizes, a block's state in shared memory, whose turn is what. */
#ifndef BL_KERNELS_CUDA_SM90_ATTENTION_CUH
#define BL_KERNELS_CUDA_SM90_ATTENTION_CUH

#include "kernels/cuda/slots.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    D = BL_CUDA_MANY_HEAD_DIM, HEADS = 64, SLOTS = BL_ATTN_BLOCK, CHUNKS = D / TILE_K, CHUNK_BYTES = SLOTS * SWIZZLE,
    ROW_BYTES = CHUNKS * CHUNK_BYTES,
    BUFFERS = 2, THREADS = 4 * GROUP, PART = D / 4 /* columns that a thread decodes */, MINE = SLOTS / 4 /* weights that a thread makes */,
    P_BYTES = HEADS * SWIZZLE, SWAP_BYTES = 2 * GROUP * MINE * 4, ALIGN = 1024,
    SHARED_BYTES = (1 + BUFFERS) * ROW_BYTES + P_BYTES + SWAP_BYTES + ALIGN,
    SCORED = 1, PEAKED, WEIGHED, DONE /* named barriers of those that multiply, in turn */
};

struct softmax_state {
    float peak[2][HEADS], denominator[HEADS];
    float4 sums[GROUP];
};

struct shared_state {
    uint64_t full[BUFFERS], empty[BUFFERS], query;
    softmax_state softmax;
};

/* Shared memory for tiles. */
struct tiles_at {
    uint32_t query, rows, p, swap;
};

/* A turn is 64 heads of a token, `tiles` of them a token's; a block has every step-th from the first on. */
struct turns {
    int count, first, step, tiles, blocks /* of a token's slots */;
};

struct turn {
    int token, head0;
};

__device__ __forceinline__ turn turn_of(int i, int tiles)
{
    return {i / tiles, i % tiles * HEADS};
}

#ifdef BL_HOPPER

/* `count` chunks of a turn's queries from a chunk on. */
__device__ __forceinline__ void load_query(uint32_t to, const CUtensorMap *map, uint32_t bar, const turn &at, int64_t heads, int chunk,
                                           int count)
{
    barrier_expect(bar, count * CHUNK_BYTES);
    for (int c = 0; c < count; c++)
        load_tile(to + c * CHUNK_BYTES, map, bar, (chunk + c) * TILE_K, (int)(at.token * heads + at.head0));
}

#endif

} // namespace bl

#endif
