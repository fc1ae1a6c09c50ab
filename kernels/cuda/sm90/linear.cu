/* Products for many tokens: y = x Wt by wgmma, weights expanded to bf16 beforehand. A cluster of two blocks has two tiles of 128
 * tokens and the same 192 rows of the weight, each loading half of those for both. In a block one warp loads, two warpgroups multiply
 * 64 tokens each: a chain of 16 steps in one set of registers, the sum of the segments in another (dot.h: the order). */
#include "kernels/cuda/sm90/many.h"
#include "kernels/cuda/sm90/hopper.cuh"

namespace bl {

enum {
    TILE_M = 128, TILE_N = 192, STAGES = 4, CLUSTER = 2, HALF_N = TILE_N / CLUSTER, CHAIN = 256 / TILE_K, THREADS = 3 * GROUP,
    A_BYTES = TILE_M * SWIZZLE, B_BYTES = TILE_N * SWIZZLE, STAGE_BYTES = A_BYTES + B_BYTES, ALIGN = 1024,
    SHARED_BYTES = STAGES * STAGE_BYTES + ALIGN,
    BAND = 8 /* clusters whose tokens are kept together while the rows of the weight go by, for the L2 cache */
};

struct many_args {
    int64_t rows, tokens, ld, y_step, row0, row_step, x_step;
    uint16_t *y16;
    float *y32;
    int k_tiles, pairs, columns, groups; /* pairs of token tiles, tiles of rows */
};

struct tile_at {
    int pair, column, group;
};

__device__ __forceinline__ tile_at tile_of(const many_args &p, int i)
{
    const int each = p.pairs * p.columns, group = i / each, in = i % each, band = in / (BAND * p.columns);
    const int wide = p.pairs - band * BAND < BAND ? p.pairs - band * BAND : BAND, rest = in - band * BAND * p.columns;
    return {band * BAND + rest % wide, rest / wide, group};
}

#ifdef BL_HOPPER

struct pipeline {
    uint32_t full, empty, data; /* shared addresses of the first stage */
};

__device__ __forceinline__ void produce(const many_args &p, const CUtensorMap *x, const CUtensorMap *w, const pipeline &q, int rank)
{
    int stage = 0, phase = 0;
    const int tiles = p.pairs * p.columns * p.groups;
    for (int i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const tile_at at = tile_of(p, i);
        const int token = (at.pair * CLUSTER + rank) * TILE_M, col = (int)(at.group * p.x_step);
        const int row = (int)(p.row0 + at.group * p.row_step) + at.column * TILE_N + rank * HALF_N;
        for (int k = 0; k < p.k_tiles; k++) {
            const uint32_t full = q.full + 8 * stage, to = q.data + stage * STAGE_BYTES;
            barrier_wait(q.empty + 8 * stage, phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
            load_tile(to, x, full, col + k * TILE_K, token);
            load_tile_to(to + A_BYTES + rank * HALF_N * SWIZZLE, w, full, k * TILE_K, row, (1 << CLUSTER) - 1);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

/* Rows g and g + 8 of the warp's 16 tokens. */
__device__ __forceinline__ void store_tile(const many_args &p, const float (&total)[TILE_N / 2], const tile_at &at, int64_t token)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int64_t row = (int64_t)at.column * TILE_N, base = at.group * p.y_step + row;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t y = (token + g + 8 * h) * p.ld + base;
        const bool there = token + g + 8 * h < p.tokens;
#pragma unroll
        for (int j = 0; j < TILE_N / 8; j += 4) {
            if (p.y16) { /* a lane gets 8 neighbours of its row */
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[i] = pack_bf16(total[4 * (j + i) + 2 * h], total[4 * (j + i) + 2 * h + 1]);
                transpose4(v);
                if (there && row + 8 * (j + t) < p.rows) *(uint4 *)(p.y16 + y + 8 * (j + t)) = make_uint4(v[0], v[1], v[2], v[3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (there && row + 8 * (j + i) < p.rows) {
                        const float *v = &total[4 * (j + i) + 2 * h];
                        *(float2 *)(p.y32 + y + 8 * (j + i) + 2 * t) = make_float2(v[0], v[1]);
                    }
            }
        }
    }
}

__device__ __forceinline__ void release(const pipeline &q, int stage)
{
    if (threadIdx.x % WARP < CLUSTER) barrier_arrive_at(q.empty + 8 * stage, threadIdx.x % WARP);
}

__device__ __forceinline__ void consume(const many_args &p, const pipeline &q, int rank)
{
    const int group = threadIdx.x / GROUP - 1, warp = threadIdx.x % GROUP / WARP, tiles = p.pairs * p.columns * p.groups;
    int stage = 0, phase = 0;
    float chain[TILE_N / 2] = {};
    for (int i = blockIdx.x / CLUSTER; i < tiles; i += gridDim.x / CLUSTER) {
        const tile_at at = tile_of(p, i);
        float total[TILE_N / 2];
#pragma unroll
        for (int n = 0; n < TILE_N / 2; n++) total[n] = 0;
        for (int k = 0; k < p.k_tiles; k += CHAIN) {
            int held = stage; /* of this segment, not yet given back */
#pragma unroll
            for (int s = 0; s < CHAIN; s++) {
                if (k + s >= p.k_tiles) break;
                const uint32_t data = q.data + stage * STAGE_BYTES;
                const uint64_t a = operand_by_rows(data + group * 64 * SWIZZLE), b = operand_by_rows(data + A_BYTES);
                barrier_wait(q.full + 8 * stage, phase);
                wgmma_begin();
#pragma unroll
                for (int j = 0; j < TILE_K / 16; j++) wgmma_ss<TILE_N, 0>::run(chain, a + 2 * j, b + 2 * j, s + j > 0);
                wgmma_commit();
                if (s > 0) {
                    wgmma_wait<1>();
                    release(q, held);
                    held = stage;
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            wgmma_wait<0>();
            settle(chain);
            release(q, held);
#pragma unroll
            for (int n = 0; n < TILE_N / 2; n++) total[n] += chain[n];
        }
        store_tile(p, total, at, (int64_t)(at.pair * CLUSTER + rank) * TILE_M + group * 64 + warp * 16);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1)
    many_kernel(const __grid_constant__ many_args p, const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w)
{
#ifdef BL_HOPPER
    BL_DYNAMIC_SHARED(uint8_t, memory, 1);
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const pipeline q = {shared_address(full), shared_address(empty), (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN};
    const int rank = (int)cluster_rank();
    if (threadIdx.x == 0) init_stages(q.full, q.empty, STAGES, 2 * GROUP / WARP * CLUSTER);
    cluster_sync();
    if (threadIdx.x < GROUP) {
        fewer_registers<40>();
        if (threadIdx.x == 0) produce(p, &x, &w, q, rank);
        __syncwarp();
    } else {
        more_registers<232>();
        consume(p, q, rank);
    }
    cluster_sync(); /* the other block may still write here */
#endif
}

/* ---- host */

bool is_hopper(void)
{
    int device, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major == 9;
}

int processor_count(void)
{
    int device = 0, n = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n;
}

bool make_tile_map(CUtensorMap *map, const uint16_t *x, int64_t rows, int64_t cols, int64_t stride, int box_rows)
{
    typedef CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                               CUtensorMapFloatOOBfill);
    static encode call; /* the same for all */
    if (!call) {
        void *p = NULL;
        cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return false;
        call = (encode)p;
    }
    const cuuint64_t size[2] = {(cuuint64_t)cols, (cuuint64_t)rows}, bytes[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[2] = {TILE_K, (cuuint32_t)box_rows}, step[2] = {1, 1};
    return call(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)x, size, bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* rows of the product from row on, with the weight's rows row0 + row ... at w. */
static bool launch(cudaStream_t s, const bl_cuda_product *p, const uint16_t *w, int64_t w_rows, int64_t row0, int64_t row,
                   int64_t rows)
{
    const int64_t groups = p->groups > 1 ? p->groups : 1;
    CUtensorMap x_map, w_map;
    if (!make_tile_map(&x_map, p->x, p->tokens, (groups - 1) * p->x_step + p->w.cols, p->ldx, TILE_M)) return false;
    if (!make_tile_map(&w_map, w, w_rows, p->w.cols, p->w.cols, HALF_N)) return false;
    const many_args a = {rows, p->tokens, p->ld, p->y_step, row0, p->row_step, p->x_step, p->y16 ? p->y16 + row : NULL,
                         p->y32 ? p->y32 + row : NULL, (int)(p->w.cols / TILE_K), (int)blocks_of(p->tokens, TILE_M * CLUSTER),
                         (int)blocks_of(rows, TILE_N), (int)groups};
    cudaFuncSetAttribute(many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    const int64_t tiles = (int64_t)a.pairs * a.columns * a.groups, most = processor_count() / CLUSTER;
    launch_declared(CLUSTER, s, (unsigned)((tiles < most ? tiles : most) * CLUSTER), THREADS, SHARED_BYTES, many_kernel, a, x_map, w_map);
    return true;
}

/* What the tiles and their vectors need. */
static bool fits(const bl_cuda_product *p)
{
    const int64_t groups = p->groups > 1 ? p->groups : 1;
    if (p->tokens < BL_CUDA_MANY || p->w.cols % TILE_K || p->rows % 8 || p->ld % 8 || p->ldx % 8 || p->w.kind == BL_W_F32) return false;
    if (groups > 1 && (p->x_step % 8 || p->y_step % 8)) return false;
    return p->row0 % 32 == 0 && is_hopper();
}

} // namespace bl

using namespace bl;

bool bl_cuda_multiply_many(bl_cuda_stream s, const bl_cuda_product *p)
{
    if (!fits(p)) return false;
    const int64_t groups = p->groups > 1 ? p->groups : 1, all = (groups - 1) * p->row_step + p->rows;
    if (p->w.kind == BL_W_BF16) return launch(s, p, (const uint16_t *)p->w.codes, p->w.rows, p->row0, 0, p->rows);
    int64_t most = p->wide_elements / p->w.cols / TILE_N * TILE_N; /* rows expanded together */
    if (all <= p->wide_elements / p->w.cols) most = all;
    if (most == 0 || (groups > 1 && most < all)) return false;
    for (int64_t row = 0; row < all; row += most) {
        const int64_t n = all - row < most ? all - row : most;
        bl_cuda_cast(s, p->wide, &p->w, p->row0 + row, n);
        if (!launch(s, p, p->wide, n, 0, row, groups > 1 ? p->rows : n)) return false;
    }
    return true;
}
