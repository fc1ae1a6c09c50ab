/* Coefficients of the streams' mixing for many tokens by wgmma. A small kernel splits the weights into their bf16 parts. Then a block has
 * 64 tokens and takes the streams in pieces of 64 elements: one warp loads, warpgroups multiply, each every GROUPS-th stretch of a row sum
 * from stages of its own, with the streams in registers, where they are squared too. Stretches are added to the sums of all in turn. Of the
 * weights the blocks of a cluster load a piece each for all of them. */
#include "kernels/cuda/mixing_many.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    CLUSTER = 2, GROUPS = 4, STAGES = 12, PIECE = TILE_K, STEPS = PIECE / 16,
    CHAIN = SEGMENT / PIECE, STRETCH = ROW_PART / PIECE /* pieces */, HALVES = ROW_PART / SEGMENT,
    CONSUMERS = GROUPS * GROUP, THREADS = CONSUMERS + WARP,
    PARTS = 3 /* last, middle, leading */, PART_BYTES = MIX * SWIZZLE, H_BYTES = TOKENS * SWIZZLE,
    STAGE_BYTES = H_BYTES + PARTS * PART_BYTES, ALIGN = 1024, SHARED_BYTES = STAGES * STAGE_BYTES + ALIGN, SPLIT_THREADS = 256
};
static_assert(STAGES % GROUPS == 0, "a stage is of one group: a wait by parity is right only behind one for the round before");
static_assert(STAGES <= GROUPS * STRETCH, "there are as many pieces");
static_assert(PART_BYTES % ALIGN == 0 && H_BYTES % ALIGN == 0, "tiles begin where their swizzle does");
static_assert(BL_CUDA_MIX_MANY * 4 >= PARTS * 2 * SEGMENT, "the split weights have room in the scratch of the smallest pass");

/* Named barriers: whose turn it is to add, by groups; all sums. */
enum { TURN = 1, ALL_SUMS = TURN + GROUPS };

/* The weights [MIX, n] as [PARTS, MIX, n]. */
__global__ void __launch_bounds__(SPLIT_THREADS) mix_split_kernel(uint2 *to, const float4 *fn, int quads)
{
    start_next();
    const int i = blockIdx.x * SPLIT_THREADS + threadIdx.x;
    if (i >= quads) return;
    float4 v = fn[i];
#pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
        const uint32_t low = leading_pair(v.x, v.y), high = leading_pair(v.z, v.w);
        to[(int64_t)part * quads + i] = make_uint2(low, high);
    }
}

#ifdef BL_HOPPER

struct pipeline {
    uint32_t full, empty, data; /* shared addresses of the first stage */
    int stretches;              /* a multiple of GROUPS */
};

/* Of piece p in the order of loading: every group's first, then every group's next. */
__device__ __forceinline__ int first_element(int p)
{
    const int i = p / GROUPS;
    return (i / STRETCH * GROUPS + p % GROUPS) * ROW_PART + i % STRETCH * PIECE;
}

/* The streams are older than the kernel before, which did not begin early; it makes the parts. */
__device__ __forceinline__ void produce(const pipeline &q, const CUtensorMap *h, const CUtensorMap *parts, int token, int rank)
{
    const auto load_streams = [&](int p, int stage) {
        barrier_expect(q.full + 8 * stage, STAGE_BYTES);
        load_tile(q.data + stage * STAGE_BYTES, h, q.full + 8 * stage, first_element(p), token);
    };
    int stage = 0, phase = 0;
    for (int p = 0; p < STAGES; p++) load_streams(p, p);
    wait_for_last();
    for (int p = 0; p < q.stretches * STRETCH; p++) {
        if (p >= STAGES) {
            barrier_wait(q.empty + 8 * stage, phase ^ 1);
            load_streams(p, stage);
        }
        if (p % CLUSTER == rank)
            load_tile_to(q.data + stage * STAGE_BYTES + H_BYTES, parts, q.full + 8 * stage, first_element(p), 0, (1 << CLUSTER) - 1);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    for (int i = 0; i < STAGES; i++) { /* whoever ends may no longer be told of released stages */
        barrier_wait(q.empty + 8 * stage, phase ^ 1);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

/* Adds a stretch's segments and squares to the sums of the thread's two tokens, row and row + 8. */
__device__ __forceinline__ void add_stretch(float *dots, float *squares, const float (&chain)[HALVES][MIX / 2], const float square[2],
                                            int row)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *const to = dots + (row + 8 * e) * MIX + 2 * t;
#pragma unroll
        for (int j = 0; j < MIX / 8; j++) {
            float2 sum = *(const float2 *)(to + 8 * j);
#pragma unroll
            for (int half = 0; half < HALVES; half++) sum.x += chain[half][4 * j + 2 * e], sum.y += chain[half][4 * j + 2 * e + 1];
            *(float2 *)(to + 8 * j) = sum;
        }
        if (t == 0) squares[row + 8 * e] += square[e];
    }
}

/* The stretches of a group. */
__device__ __forceinline__ void multiply(const pipeline &q, int group, float *dots, float *squares)
{
    const int lane = threadIdx.x % WARP, first = threadIdx.x % GROUP / WARP * 16, row = first + lane / 4;
    const uint32_t rows = q.data + (first + lane % 16) * SWIZZLE + (lane / 16 ^ lane % 8) * 16;
    const uint64_t weights = operand_by_rows(q.data + H_BYTES);
    int stage = group, phase = 0;
    for (int stretch = group; stretch < q.stretches; stretch += GROUPS) {
        float chain[HALVES][MIX / 2], lanes[2][4] = {}, square[2];
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll 1
            for (int i = 0; i < CHAIN; i++) {
                const uint64_t b = weights + stage * (STAGE_BYTES >> 4);
                fragment_a h[STEPS];
                barrier_wait(q.full + 8 * stage, phase);
#pragma unroll
                for (int step = 0; step < STEPS; step++) h[step] = load_fragment(rows + stage * STAGE_BYTES ^ step * 32);
                wgmma_begin();
#pragma unroll
                for (int step = 0; step < STEPS; step++)
#pragma unroll
                    for (int part = 0; part < PARTS; part++)
                        wgmma_rs<MIX>::run(chain[half], h[step], b + part * (PART_BYTES >> 4) + 2 * step, i + step + part > 0);
                wgmma_commit();
#pragma unroll
                for (int step = 0; step < STEPS; step++)
#pragma unroll
                    for (int e = 0; e < 2; e++) add_squares(lanes[e], h[step].r[e], h[step].r[e + 2]);
                wgmma_wait<0>();
                settle(chain[half]);
                if (lane < CLUSTER) barrier_arrive_at(q.empty + 8 * stage, lane);
                if ((stage += GROUPS) >= STAGES) stage -= STAGES, phase ^= 1;
            }
        for (int e = 0; e < 2; e++) square[e] = sum_of_squares(lanes[e]);
        if (stretch > 0) named_sync(TURN + group, 2 * GROUP);
        add_stretch(dots, squares, chain, square, row);
        if (stretch + 1 < q.stretches) named_arrive(TURN + (group + 1) % GROUPS, 2 * GROUP);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    mix_tiles_kernel(const __grid_constant__ mix_args a, const __grid_constant__ CUtensorMap h, const __grid_constant__ CUtensorMap parts)
{
#ifdef BL_HOPPER
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ __align__(16) float dots[TOKENS * MIX];
    __shared__ float squares[TOKENS];
    const pipeline q = {
        shared_address(full), shared_address(empty), (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN,
        (int)((a.n + GROUPS * ROW_PART - 1) / (GROUPS * ROW_PART)) * GROUPS, /* what is behind the end is loaded as zeros */
    };
    const int64_t token = (int64_t)blockIdx.x * TOKENS;
    if (threadIdx.x == 0) init_stages(q.full, q.empty, STAGES, GROUP / WARP * CLUSTER);
    for (int i = threadIdx.x; i < TOKENS * MIX; i += THREADS) dots[i] = 0;
    if (threadIdx.x < TOKENS) squares[threadIdx.x] = 0;
    cluster_sync();
    if (threadIdx.x < CONSUMERS) {
        multiply(q, __shfl_sync(~0u, threadIdx.x / GROUP, 0) /* known to be the warp's: addresses stay uniform */, dots, squares);
        named_sync(ALL_SUMS, CONSUMERS);
        finish<CONSUMERS>(a, token, dots, squares);
        __syncwarp();
    } else {
        if (threadIdx.x % WARP == 0) produce(q, &h, &parts, (int)token, (int)cluster_rank());
        __syncwarp();
    }
    cluster_sync(); /* the other blocks may still write here */
#endif
}

} // namespace bl

using namespace bl;

bool bl_cuda_mix_tiles(bl_cuda_stream s, const bl_cuda_mixing *m)
{
    const mix_args a = args_of(m);
    uint16_t *const split = (uint16_t *)m->parts;
    CUtensorMap h, parts;
    if (!split || a.n % 8 || a.n > INT32_MAX / MIX || !is_hopper()) return false;
    if (!make_tile_map(&h, a.H, a.T, a.n, a.n, TOKENS) || !make_tile_map(&parts, split, PARTS * MIX, a.n, a.n, PARTS * MIX)) return false;
    const int quads = (int)(MIX * a.n / 4);
    launch_plain(s, blocks_of(quads, SPLIT_THREADS), SPLIT_THREADS, 0, mix_split_kernel, (uint2 *)split, (const float4 *)m->fn, quads);
    cudaFuncSetAttribute(mix_tiles_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    launch_clusters(true, CLUSTER, s, blocks_of(a.T, TOKENS * CLUSTER), THREADS, SHARED_BYTES, mix_tiles_kernel, a, h, parts);
    return true;
}
