/* Products of grouped tokens with fp4 experts by wgmma. The weight is the operand in registers, decoded there, the tokens of a unit are
 * the columns. A block has 128 rows of one expert's weight and a unit's tokens; a warp loads the tokens, half a segment at a time;
 * two warpgroups multiply 64 rows each: chain and sum of segments as in linear.cu. */
#include "kernels/cuda/fp4_tiles.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    TILE_M = 128, STAGE_K = 128, STAGES = 4, THREADS = 3 * GROUP, MOST = BL_CUDA_MANY_SLOTS, BOX = 16 /* tokens that are loaded at once */,
    HALF_BYTES = MOST * SWIZZLE, STAGE_BYTES = HALF_BYTES * (STAGE_K / TILE_K), ALIGN = 1024, SHARED_BYTES = STAGES * STAGE_BYTES + ALIGN,
    SEGMENT = 256, BATCH = 4 /* steps decoded and multiplied together */
};

struct many_args {
    const bl_cuda_expert *experts;
    const int32_t *units, *classes;
    int64_t rows, cols;
    int which[2], count;
    uint16_t *y[2];
};

/* One of the block's pieces of work. */
struct work {
    int expert, slot, tokens, which, row;
};

__device__ __forceinline__ work work_of(const many_args &p, int i, int tiles)
{
    const int32_t *unit = p.units + 3 * (i / tiles);
    const int tile = i % tiles;
    return {unit[0], unit[1], unit[2], tile % p.count, tile / p.count * TILE_M};
}

#ifdef BL_HOPPER

struct pipeline {
    uint32_t full, empty, data;
    int stage, phase;
    __device__ __forceinline__ void next(void)
    {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

template <int N>
__device__ __forceinline__ void produce(const many_args &p, const CUtensorMap *x, pipeline q, int begin, int end, int tiles)
{
    for (int i = begin; i < end; i += gridDim.x) {
        const work w = work_of(p, i, tiles);
        for (int k = 0; k < p.cols; k += STAGE_K) {
            const uint32_t full = q.full + 8 * q.stage, to = q.data + q.stage * STAGE_BYTES;
            barrier_wait(q.empty + 8 * q.stage, q.phase ^ 1);
            barrier_expect(full, N * SWIZZLE * 2);
            for (int h = 0; h < 2; h++)
                for (int n = 0; n < N; n += BOX)
                    load_tile(to + h * HALF_BYTES + n * SWIZZLE, x, full, k + h * TILE_K, w.slot + n);
            q.next();
        }
    }
}

/* A thread's codes of half a segment, in the order of fp4_tiles.h: BATCH steps each. */
struct codes {
    uint4 v[STAGE_K / 16 / BATCH];
    uint2 scales;
};

struct weight_tile {
    const uint8_t *codes, *scales; /* the lane's first; NULL behind the last row */
};

__device__ __forceinline__ void load_codes(codes &c, const weight_tile &w, int k, int cols)
{
    const bool there = w.codes && k < cols;
#pragma unroll
    for (int i = 0; i < STAGE_K / 16 / BATCH; i++)
        c.v[i] = there ? __ldg((const uint4 *)(w.codes + k / STAGE_K * (BL_TILE_CODES / 2)) + i * WARP) : make_uint4(0, 0, 0, 0);
    c.scales = there ? __ldg((const uint2 *)(w.scales + k / SEGMENT * BL_TILE_SCALES + k % SEGMENT / STAGE_K * 8)) : make_uint2(0, 0);
}

template <int N> __device__ __forceinline__ void store_tile(const many_args &p, const float (&total)[N / 2], const work &w)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, row = w.row + (threadIdx.x - GROUP) / WARP * 16 + 4 * t;
    uint16_t *y = (w.which ? p.y[1] : p.y[0]) + w.slot * p.rows + row;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        uint2 v;
        const uint32_t low = pack_bf16(total[4 * j], total[4 * j + 1]), high = pack_bf16(total[4 * j + 2], total[4 * j + 3]);
        v.x = transpose_matrix(low);
        v.y = transpose_matrix(high);
        if (8 * j + g < w.tokens && row < p.rows) *(uint2 *)(y + (8 * j + g) * p.rows) = v;
    }
}

__device__ __forceinline__ void release(const pipeline &q, int stage)
{
    if (threadIdx.x % WARP == 0) barrier_arrive(q.empty + 8 * stage);
}

/* Steps BATCH * b ... of half a segment. */
template <bool SMALL> __device__ __forceinline__ void decode(fragment_a f[BATCH], const codes &c, int b)
{
    const uint32_t words[BATCH] = {c.v[b].x, c.v[b].y, c.v[b].z, c.v[b].w}, scales = b ? c.scales.y : c.scales.x;
#pragma unroll
    for (int i = 0; i < BATCH; i++) f[i] = tile_step<SMALL>(words[i], tile_scale<SMALL>(scales, i / 2));
}

template <int N> __device__ __forceinline__ void add_chain(float (&total)[N / 2], float (&chain)[N / 2])
{
    wgmma_wait<0>();
    settle(chain);
#pragma unroll
    for (int n = 0; n < N / 2; n++) total[n] += chain[n];
}

template <int N> __device__ __forceinline__ void multiply_unit(const many_args &p, pipeline &q, const work &w)
{
    enum { DEPTH = N > 128 ? 1 : 2 }; /* halves of segments loaded ahead */
    const bl_cuda_expert *e = p.experts + w.expert;
    const int which = w.which ? p.which[1] : p.which[0], cols = (int)p.cols;
    const uint8_t *const all = (const uint8_t *)e->codes[which], *const scales = e->scale[which];
    const int lane = threadIdx.x % WARP;
    const int64_t row = w.row + (threadIdx.x - GROUP) / WARP * BL_TILE_ROWS;
    const bool there = row < p.rows;
    const weight_tile tile = {there ? all + row * (cols / 2) + lane * 16 : NULL, there ? scales + row * (cols / 32) + lane / 4 * 16 : NULL};
    float total[N / 2], chain[N / 2] = {};
    fragment_a f[2][BATCH];
    codes ahead[DEPTH];
#pragma unroll
    for (int n = 0; n < N / 2; n++) total[n] = 0;
#pragma unroll
    for (int i = 0; i < DEPTH; i++) load_codes(ahead[i], tile, i * STAGE_K, cols);
    int held = 0; /* stage before the current one */
    for (int k0 = 0; k0 < cols; k0 += SEGMENT) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const codes c = ahead[half % DEPTH];
            const bool small = __all_sync(~0u, bl_fp4_tile_small(c.scales.x | c.scales.y));
            load_codes(ahead[half % DEPTH], tile, k0 + (half + DEPTH) * STAGE_K, cols);
#pragma unroll
            for (int b = 0; b < 2; b++) {
                wgmma_wait<1>(); /* all but the newest batch are done: their fragments are free */
                if (small) decode<true>(f[b], c, b);
                else decode<false>(f[b], c, b);
                if (half == 0 && b == 0 && k0) {
                    add_chain<N>(total, chain);
                    release(q, held);
                }
                if (half == 1 && b == 1) release(q, held);
                if (b == 0) barrier_wait(q.full + 8 * q.stage, q.phase);
                wgmma_begin();
                const uint64_t x = operand_by_rows(q.data + q.stage * STAGE_BYTES + b * HALF_BYTES);
#pragma unroll
                for (int i = 0; i < BATCH; i++) wgmma_rs<N>::run(chain, f[b][i], x + 2 * i, half + b + i > 0);
                wgmma_commit();
            }
            held = q.stage;
            q.next();
        }
    }
    add_chain<N>(total, chain);
    release(q, held);
    store_tile<N>(p, total, w);
}

#endif

/* Units of N columns, of which fewer may be tokens. */
template <int N>
__global__ void __launch_bounds__(THREADS, 1)
    many_experts_kernel(const __grid_constant__ many_args p, const __grid_constant__ CUtensorMap x)
{
#ifdef BL_HOPPER
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    pipeline q = {shared_address(full), shared_address(empty), (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN, 0, 0};
    const int tiles = (int)((p.rows + TILE_M - 1) / TILE_M) * p.count, size = unit_class(N);
    const int begin = p.classes[size] * tiles + blockIdx.x, end = p.classes[size + 1] * tiles;
    if (begin >= end) return;
    if (threadIdx.x == 0) init_stages(q.full, q.empty, STAGES, 2 * GROUP / WARP);
    __syncthreads();
    if (threadIdx.x < GROUP) {
        fewer_registers<40>();
        if (threadIdx.x == 0) produce<N>(p, &x, q, begin, end, tiles);
        __syncwarp();
    } else {
        more_registers<232>();
        for (int i = begin; i < end; i += gridDim.x) multiply_unit<N>(p, q, work_of(p, i, tiles));
    }
#endif
}

/* Rows of x in the order of the slots; in each 16 elements those of a lane (four) go where the operands' layout has a lane's: 2 and 2. */
__global__ void gather_slots_kernel(uint16_t *y, const uint16_t *x, const int32_t *token, int64_t tokens, int parts)
{
    const int64_t slot = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = token[slot];
    if (i >= parts || t < 0 || t >= tokens) return; /* slots behind the last hold anything */
    const uint4 *from = (const uint4 *)x + 2 * (t * parts + i);
    const uint4 a = from[0], b = from[1];
    uint4 *to = (uint4 *)y + 2 * (slot * parts + i);
    to[0] = make_uint4(a.x, a.z, b.x, b.z);
    to[1] = make_uint4(a.y, a.w, b.y, b.w);
}

template <int N> static void launch(cudaStream_t s, const many_args &a, const CUtensorMap &x, unsigned grid)
{
    cudaFuncSetAttribute(many_experts_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    launch_plain(s, grid, THREADS, SHARED_BYTES, many_experts_kernel<N>, a, x);
}

} // namespace bl

using namespace bl;

bool bl_cuda_many_experts(int64_t T, bl_weight_kind kind, int64_t rows, int64_t cols)
{
    return T >= BL_CUDA_MANY && bl_fp4_tiled(kind, rows, cols) && is_hopper();
}

bool bl_cuda_multiply_experts_many(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    enum { GATHER = 128 };
    const many_args a = {p->experts, p->groups->units, p->groups->classes, p->rows, p->cols, {p->which[0], p->which[1]}, p->count,
                         {p->y[0], p->y[1]}};
    const int64_t slots = p->T * p->k, tiles = (p->rows + TILE_M - 1) / TILE_M * p->count;
    const int64_t most = tiles * bl_cuda_max_units(p->T, p->k, p->E, true);
    const uint16_t *x = p->by_token ? p->grouped : p->x;
    CUtensorMap map;
    if (!make_tile_map(&map, x, slots, p->cols, p->cols, BOX)) return false;
    if (p->by_token) {
        const int parts = (int)(p->cols / 16);
        launch_plain(s, dim3((unsigned)((parts + GATHER - 1) / GATHER), (unsigned)slots), GATHER, 0, gather_slots_kernel, p->grouped,
                     p->x, p->groups->token, p->T, parts);
    }
    const unsigned grid = (unsigned)(most < processor_count() ? most : processor_count());
    launch<16>(s, a, map, grid);
    launch<32>(s, a, map, grid);
    launch<64>(s, a, map, grid);
    launch<96>(s, a, map, grid);
    launch<128>(s, a, map, grid);
    launch<160>(s, a, map, grid);
    return true;
}
