/* Sparse attention where tokens are too few to fill the device: two blocks, a cluster, have 64 heads of a token, and each one half of the
 * dimensions, as keys and as values: the order of ../attention.cu with nothing decoded or multiplied twice. A block makes its chain of all
 * scores and sends it to the other; both then make all weights, each for its half of the columns. Within a block two warpgroups decode
 * and two multiply; each of these has every other eight slots of the scores, then a half of the block's columns. */
#include "kernels/cuda/sm90/attention_rows.cuh"
#include "kernels/cuda/sm90/attention_softmax.cuh"

namespace bl {

enum {
    PAIR = 2, HALF = D / PAIR /* dimensions of a block */, HALF_CHUNKS = CHUNKS / PAIR, HALF_BYTES = ROW_BYTES / PAIR, RING = 4,
    SCORE_BYTES = 2 * GROUP * MINE * 4 /* a block's chain of a block of slots */, WARP_BYTES = WARP * MINE * 4 /* of a warp */,
    FIXED_BYTES = (1 + RING) * HALF_BYTES + P_BYTES + 2 * SCORE_BYTES + ALIGN,
    MULTIPLIERS = 2 * GROUP / WARP /* warps */
};

#ifdef BL_HOPPER

struct pair_state {
    uint64_t full[RING], empty[RING], query, scored[2][MULTIPLIERS];
    softmax_state softmax;
    float rotation[D / 2];
};

/* Shared memory for tiles, for the other block's scores of two blocks of slots, and behind them for the list. */
struct pair_tiles {
    uint32_t query, rows, p, scores;
};

/* A token's list: rows of its slots, NULL for holes, and bits of those that are there. */
struct slot_list {
    const uint8_t **rows;
    uint64_t *there; /* by blocks */
    int blocks;
};

__device__ __forceinline__ void fill_list(const slot_list &list, const bl_cuda_attention &a, const bl_cuda_tables &tables, int token)
{
    int entry = selected_entry(a, token, threadIdx.x);
    const token_rows r = rows_of(a, tables, token);
#pragma unroll 1
    for (int i = threadIdx.x; i < list.blocks * SLOTS; i += THREADS) {
        const int next = selected_entry(a, token, i + THREADS);
        const uint8_t *row = slot_row(a, r, i, entry);
        const unsigned there = __ballot_sync(~0u, row != NULL);
        list.rows[i] = row;
        if (threadIdx.x % WARP == 0) ((unsigned *)list.there)[i / WARP] = there;
        entry = next;
    }
}

/* The first block of slots from b on that is not empty. */
__device__ __forceinline__ int next_block(const slot_list &list, int b)
{
    while (b < list.blocks && !list.there[b]) b++;
    return b;
}

/* ---- the warpgroups that decode */

/* A thread's 64 columns of a packed row; zeros of a hole. */
struct row_chunk {
    uint4 codes[4]; /* of latents two */
    uint32_t scales;
};

__device__ __forceinline__ void load_chunk(row_chunk &r, const uint8_t *row, bool window, int chunk)
{
    const uint4 *codes = (const uint4 *)(row + chunk * (window ? TILE_K : TILE_K / 2));
#pragma unroll
    for (int k = 0; k < 4; k++) r.codes[k] = row && (window || k < 2) ? codes[k] : make_uint4(0, 0, 0, 0);
    r.scales = 0;
    if (row && window) r.scales = *(const uint16_t *)(row + D + chunk * (TILE_K / 32));
    else if (row) r.scales = *(const uint32_t *)(row + D / 2 + chunk * (TILE_K / 16));
}

__device__ __forceinline__ void decode_list(pair_state &sh, const slot_list &list, int window, uint32_t rows, int rank)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - MULTIPLIERS;
    const int slot = 8 * warp + lane % 8, part = lane / 8; /* eight lanes that store together have eight slots */
    const uint32_t to = rows + part * CHUNK_BYTES + slot * SWIZZLE;
    const auto load = [&](row_chunk &r, int b) {
        if (b < list.blocks) load_chunk(r, list.rows[b * SLOTS + slot], b * SLOTS + slot < window, rank * HALF_CHUNKS + part);
    };
    row_chunk now;
    int b = next_block(list, 0);
    load(now, b);
    for (int n = 0; b < list.blocks; n++) {
        const int buffer = n % RING, next = next_block(list, b + 1);
        barrier_wait(shared_address(&sh.empty[buffer]), n / RING % 2 ^ 1);
        if (b * SLOTS + slot < window) decode_window_chunk(to + buffer * HALF_BYTES, slot, now.codes, now.scales);
        else decode_latent_chunk(to + buffer * HALF_BYTES, slot, now.codes, now.scales);
        publish_shared();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&sh.full[buffer]));
        b = next;
        load(now, b);
    }
}

/* ---- the warpgroups that multiply */

/* The chain of the block's dimensions, of a warpgroup's slots (x of softmax_block); started. */
__device__ __forceinline__ void start_chain(float (&s)[MINE], uint32_t query, uint32_t rows, int half)
{
    const uint64_t q = operand_by_rows(query), k = operand_by_rows(rows + half * 1024, 2048);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < HALF_CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < TILE_K / 16; j++) {
            const uint64_t at = c * (CHUNK_BYTES >> 4) + 2 * j;
            wgmma_ss<2 * MINE, 0>::run(s, q + at, k + at, c + j > 0);
        }
    wgmma_commit();
}

/* Chains by way of both blocks' shared memory. A place is written again only two blocks of slots later: when the other block has sent
 * the next one, behind its reading of this one. */
struct exchange {
    uint32_t scores, bar, other_scores, other_bar; /* of a thread, of its warp */
};

__device__ __forceinline__ void send_chain(const exchange &e, const float (&s)[MINE], int n)
{
#pragma unroll
    for (int k = 0; k < MINE / 4; k++)
        send(e.other_scores + n % 2 * SCORE_BYTES + k * (SCORE_BYTES / (MINE / 4)), e.other_bar + n % 2 * (MULTIPLIERS * 8), s[4 * k],
             s[4 * k + 1], s[4 * k + 2], s[4 * k + 3]);
}

/* x = +0 plus one chain plus the other, whose order changes nothing then. */
__device__ __forceinline__ void add_chains(float (&x)[MINE], const exchange &e, const float (&s)[MINE], int n)
{
    const uint32_t bar = e.bar + n % 2 * (MULTIPLIERS * 8);
    barrier_wait(bar, n / 2 % 2);
    if (threadIdx.x % WARP == 0) barrier_expect(bar, WARP_BYTES);
#pragma unroll
    for (int k = 0; k < MINE / 4; k++) {
        float y[4];
        shared_floats(y, e.scores + n % 2 * SCORE_BYTES + k * (SCORE_BYTES / (MINE / 4)));
#pragma unroll
        for (int i = 0; i < 4; i++) x[4 * k + i] = (0.0f + s[4 * k + i]) + y[i];
    }
}

/* half: the warpgroup's of the slots by eights and of the block's columns. */
__device__ __forceinline__ void attend_list(pair_state &sh, const bl_cuda_attention &a, const slot_list &list, const pair_tiles &tile,
                                            const turn &at, int rank, int half)
{
    enum { COLS = HALF / 2 };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP, g = lane / 4, t = lane % 4;
    const uint32_t scores = tile.scores + threadIdx.x * 16, bar = shared_address(&sh.scored[0][threadIdx.x / WARP]);
    const exchange e = {scores, bar, address_at(scores, rank ^ 1), address_at(bar, rank ^ 1)};
    softmax_state &soft = sh.softmax;
    softmax_rows r = {{-1e30f, -1e30f}, {0, 0}};
    float acc[1][COLS / 2], s[MINE], sink[2];
#pragma unroll
    for (int k = 0; k < COLS / 2; k++) acc[0][k] = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int head = at.head0 + 16 * warp + g + 8 * h;
        sink[h] = head < a.heads ? a.sink[head] : 0;
    }
    int b = next_block(list, 0);
    barrier_wait(shared_address(&sh.query), 0);
    if (b < list.blocks) {
        barrier_wait(shared_address(&sh.full[0]), 0);
        start_chain(s, tile.query, tile.rows, half);
        wgmma_wait<0>();
        settle(s);
        send_chain(e, s, 0);
    }
    for (int n = 0; b < list.blocks; n++) {
        const uint64_t there = list.there[b];
        const int next = next_block(list, b + 1), after = next < list.blocks ? n + 1 : n;
        const uint32_t block = tile.rows + n % RING * HALF_BYTES;
        float x[MINE], fade[2], lanes[2][2];
        add_chains(x, e, s, n);
        /* beside the softmax the next block's chain; behind the last its own again, for nobody */
        barrier_wait(shared_address(&sh.full[after % RING]), after / RING % 2);
        start_chain(s, tile.query, tile.rows + after % RING * HALF_BYTES, half);
        softmax_block(soft, r, fade, lanes, x, tile.p, there, a.scale, half);
        if (half == 1) soft.sums[threadIdx.x % GROUP] = make_float4(lanes[0][0], lanes[0][1], lanes[1][0], lanes[1][1]);
        wgmma_wait<0>();
        settle(s);
        fade_values(acc, fade);
        publish_shared();
        if (after > n) send_chain(e, s, after); /* behind the fence, which might wait for it */
        named_sync(WEIGHED, 2 * GROUP);
        start_values(acc, tile.p, block + half * (COLS / TILE_K * CHUNK_BYTES));
        if (half == 0) add_sums(r, fade, lanes, soft.sums[threadIdx.x]);
        wgmma_wait<0>();
        settle(acc[0]);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&sh.empty[n % RING]));
        b = next;
    }
    if (half == 0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = 16 * warp + g + 8 * h;
            if (t == 0) soft.denominator[row] = at.head0 + row < a.heads ? r.total[h] + bl_exp(sink[h] - r.peak[h]) : 1;
        }
    }
    named_sync(DONE, 2 * GROUP);
    store_output(a, sh.rotation, soft, acc, at, rank * HALF + half * COLS, tile.rows);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(PAIR, 1, 1)
    pairs_attend_kernel(const __grid_constant__ bl_cuda_attention a, const __grid_constant__ bl_cuda_tables tables,
                        const __grid_constant__ CUtensorMap map)
{
#ifdef BL_HOPPER
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ __align__(16) pair_state sh;
    const turn at = turn_of(blockIdx.x / PAIR, (int)((a.heads + HEADS - 1) / HEADS));
    const int rank = blockIdx.x % PAIR, blocks = (int)((attended(a) + SLOTS - 1) / SLOTS);
    const uint32_t base = (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN, p = base + (1 + RING) * HALF_BYTES;
    const pair_tiles tile = {base, base + HALF_BYTES, p, p + P_BYTES};
    uint8_t *behind = memory + (base - shared_address(memory)) + FIXED_BYTES - ALIGN;
    const slot_list list = {(const uint8_t **)behind + blocks, (uint64_t *)behind, blocks};
    if (threadIdx.x == THREADS - WARP) { /* of the warp with the least of the list */
        for (int i = 0; i < RING; i++) {
            barrier_init(shared_address(&sh.full[i]), 2 * GROUP / WARP);
            barrier_init(shared_address(&sh.empty[i]), MULTIPLIERS);
        }
        for (int i = 0; i < 2 * MULTIPLIERS; i++) {
            const uint32_t bar = shared_address(&sh.scored[i / MULTIPLIERS][i % MULTIPLIERS]);
            barrier_init(bar, 1);
            barrier_expect(bar, WARP_BYTES);
        }
        barrier_init(shared_address(&sh.query), 1);
        barrier_init_done();
        publish_shared(); /* to the copies that use one of them now */
        load_query(tile.query, &map, shared_address(&sh.query), at, a.heads, rank * HALF_CHUNKS, HALF_CHUNKS);
    }
    __syncwarp();
    cluster_arrive();
    if (threadIdx.x < a.R) sh.rotation[threadIdx.x] = a.rotation[at.token * a.R + threadIdx.x];
    fill_list(list, a, tables, at.token);
    __syncthreads();
    cluster_wait(); /* the other block's barriers are there */
    start_next();
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
    if (group < 2) {
        more_registers<184>();
        attend_list(sh, a, list, tile, at, rank, group);
    } else {
        fewer_registers<72>();
        decode_list(sh, list, (int)a.window, tile.rows, rank);
    }
    __syncthreads(); /* nobody leaves while others use barriers */
#endif
}

} // namespace bl

using namespace bl;

bool bl_cuda_attend_pairs(bl_cuda_stream s, const bl_cuda_attention *a)
{
    const int64_t T = a->t->tokens, turns = T * ((a->heads + HEADS - 1) / HEADS), blocks = (attended(*a) + SLOTS - 1) / SLOTS;
    const int64_t bytes = FIXED_BYTES + blocks * (1 + SLOTS) * 8; /* of at most BL_CUDA_MAX_SLOTS slots: 222,464 */
    if (a->d != D || T < BL_CUDA_PAIRS_ATTEND || a->R > D / 2 || !is_hopper() || PAIR * turns > processor_count()) return false;
    CUtensorMap map;
    if (!make_tile_map(&map, a->q, T * a->heads, D, D, HEADS)) return false;
    cudaFuncSetAttribute(pairs_attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_declared(PAIR, s, (unsigned)(PAIR * turns), THREADS, bytes, pairs_attend_kernel, *a, *a->t, map);
    return true;
}
