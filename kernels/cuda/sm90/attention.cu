/* Sparse attention for many tokens, of heads of 512 dimensions: the order of ../attention.cu by wgmma. A block has a token's heads, 64 at
 * a time. Two warpgroups decode blocks of 64 rows to shared memory, where they are keys and values at once. The two that multiply share the
 * rest: each makes the chain of one half of the dimensions for all scores, then has every other eight slots of the softmax, then a half of
 * the columns. */
#include "kernels/cuda/sm90/attention_rows.cuh"
#include "kernels/cuda/sm90/attention_softmax.cuh"

namespace bl {

#ifdef BL_HOPPER

/* One chain, of 256 dimensions from the operands' first on, of the block's scores. */
__device__ __forceinline__ void make_chain(float (&s)[SLOTS / 2], uint32_t query, uint32_t rows)
{
    const uint64_t q = operand_by_rows(query), k = operand_by_rows(rows);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < CHUNKS / 2; c++)
#pragma unroll
        for (int j = 0; j < TILE_K / 16; j++) {
            const uint64_t at = c * (CHUNK_BYTES >> 4) + 2 * j;
            wgmma_ss<SLOTS, 0>::run(s, q + at, k + at, c + j > 0);
        }
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
}

/* The other chain from the warpgroup that made it: x = scores of slots 16 k + 8 half + 2 t and + 1, rows as the products have them. */
__device__ __forceinline__ void swap_chains(float (&x)[MINE], float (&s)[SLOTS / 2], uint32_t swap, int half)
{
    const uint32_t to = swap + threadIdx.x * 16, from = swap + (threadIdx.x ^ GROUP) * 16, step = 2 * GROUP * 16;
#pragma unroll
    for (int k = 0; k < MINE / 4; k++) {
        float give[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[4 * k + i] = half ? s[8 * k + 4 + i] : s[8 * k + i];
            give[i] = half ? s[8 * k + i] : s[8 * k + 4 + i];
        }
        put_floats(to + k * step, give);
    }
    named_sync(SCORED, 2 * GROUP);
#pragma unroll
    for (int k = 0; k < MINE / 4; k++) {
        float y[4];
        shared_floats(y, from + k * step);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float mine = x[4 * k + i];
            x[4 * k + i] = (0.0f + (half ? y[i] : mine)) + (half ? mine : y[i]);
        }
    }
}

/* Whether a slot that was read ahead is filled: a window's by the token's position. */
__device__ __forceinline__ bool filled(const bl_cuda_attention &a, int64_t position, int slot, int entry)
{
    return slot < a.window ? slot <= position : entry >= 0;
}

/* half: the warpgroup's of the dimensions, of the slots by eights and of the columns. */
__device__ __forceinline__ void attend_tokens(shared_state &sh, const bl_cuda_attention &a, const bl_cuda_tables &tables,
                                              const CUtensorMap *map, const tiles_at &tile, const turns &all, int half)
{
    enum { COLS = D / 2, N = 2, WIDE = COLS / N /* of an instruction: more than the registers of a kernel's start cannot be one's */ };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP, g = lane / 4, t = lane % 4;
    const uint32_t query = shared_address(&sh.query);
    softmax_state &soft = sh.softmax;
    int n = 0, buffer = 0, phase = 0;
    if (half == 0 && threadIdx.x == 0) load_query(tile.query, map, query, turn_of(all.first, all.tiles), a.heads, 0, CHUNKS);
    for (int i = all.first; i < all.count; i += all.step, n++) {
        const turn at = turn_of(i, all.tiles);
        softmax_rows r = {{-1e30f, -1e30f}, {0, 0}};
        float acc[N][WIDE / 2];
#pragma unroll
        for (int k = 0; k < COLS / 2; k++) acc[k % N][k / N] = 0;
        const int64_t position = tables.position[at.token];
        int low = selected_entry(a, at.token, lane), high = selected_entry(a, at.token, lane + WARP);
        barrier_wait(query, n % 2);
        for (int b = 0; b < all.blocks; b++) {
            const uint32_t block = tile.rows + buffer * ROW_BYTES;
            const unsigned low_there = __ballot_sync(~0u, filled(a, position, b * SLOTS + lane, low));
            const uint64_t there = low_there | (uint64_t)__ballot_sync(~0u, filled(a, position, b * SLOTS + lane + WARP, high)) << 32;
            low = selected_entry(a, at.token, (b + 1) * SLOTS + lane);
            high = selected_entry(a, at.token, (b + 1) * SLOTS + lane + WARP);
            barrier_wait(shared_address(&sh.full[buffer]), phase);
            if (there) {
                float s[SLOTS / 2], x[MINE], fade[2], lanes[2][2];
                make_chain(s, tile.query + half * (ROW_BYTES / 2), block + half * (ROW_BYTES / 2));
                swap_chains(x, s, tile.swap, half);
                softmax_block(soft, r, fade, lanes, x, tile.p, there, a.scale, half);
                if (half == 1) soft.sums[threadIdx.x % GROUP] = make_float4(lanes[0][0], lanes[0][1], lanes[1][0], lanes[1][1]);
                fade_values(acc, fade);
                publish_shared();
                named_sync(WEIGHED, 2 * GROUP);
                start_values(acc, tile.p, block + half * (COLS / TILE_K * CHUNK_BYTES));
                if (half == 0) add_sums(r, fade, lanes, soft.sums[threadIdx.x]);
                wgmma_wait<0>();
#pragma unroll
                for (int m = 0; m < N; m++) settle(acc[m]);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&sh.empty[buffer]));
            if (++buffer == BUFFERS) buffer = 0, phase ^= 1;
        }
        if (half == 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * warp + g + 8 * h, head = at.head0 + row;
                if (t == 0) soft.denominator[row] = head < a.heads ? r.total[h] + bl_exp(a.sink[head] - r.peak[h]) : 1;
            }
        }
        named_sync(DONE, 2 * GROUP); /* also: nobody reads the query any more */
        const int next = i + all.step;
        if (half == 0 && threadIdx.x == 0 && next < all.count)
            load_query(tile.query, map, query, turn_of(next, all.tiles), a.heads, 0, CHUNKS);
        store_output(a, a.rotation + at.token * a.R, soft, acc, at, half * COLS, tile.swap);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) many_attend_kernel(const __grid_constant__ bl_cuda_attention a,
                                                                 const __grid_constant__ bl_cuda_tables tables,
                                                                 const __grid_constant__ CUtensorMap map)
{
#ifdef BL_HOPPER
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ __align__(16) shared_state sh;
    const int tiles = (int)((a.heads + HEADS - 1) / HEADS), blocks = (int)((attended(a) + SLOTS - 1) / SLOTS);
    const turns all = {(int)tables.tokens * tiles, (int)blockIdx.x, (int)gridDim.x, tiles, blocks};
    const uint32_t base = (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN;
    const tiles_at tile = {base, base + ROW_BYTES, base + (1 + BUFFERS) * ROW_BYTES, base + (1 + BUFFERS) * ROW_BYTES + P_BYTES};
    if (threadIdx.x == 0) {
        for (int i = 0; i < BUFFERS; i++) {
            barrier_init(shared_address(&sh.full[i]), 2 * GROUP / WARP);
            barrier_init(shared_address(&sh.empty[i]), 2 * GROUP / WARP);
        }
        barrier_init(shared_address(&sh.query), 1);
        barrier_init_done();
    }
    __syncthreads();
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
    if (group < 2) {
        more_registers<184>();
        attend_tokens(sh, a, tables, &map, tile, all, group);
    } else {
        fewer_registers<72>();
        decode_tokens(sh, a, tables, tile.rows, all);
    }
    __syncthreads(); /* nobody leaves while others use barriers */
#endif
}

} // namespace bl

using namespace bl;

bool bl_cuda_attend_many(bl_cuda_stream s, const bl_cuda_attention *a)
{
    if (a->d != D || a->t->tokens < BL_CUDA_MANY_ATTEND || a->R > D / 2 || !is_hopper()) return false;
    const int64_t count = a->t->tokens * ((a->heads + HEADS - 1) / HEADS), room = processor_count();
    CUtensorMap map;
    if (!make_tile_map(&map, a->q, a->t->tokens * a->heads, D, D, HEADS)) return false;
    cudaFuncSetAttribute(many_attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    launch_plain(s, (unsigned)(count < room ? count : room), THREADS, SHARED_BYTES, many_attend_kernel, *a, *a->t, map);
    return true;
}
