/* Products for any number of tokens: y = x Wt on weights in their stored codes (dot.h: the order). A block takes 16 rows of the
 * weight and up to 32 tokens; its warps take segments of K in turn, straight from global memory into tensor core fragments, and
 * the block adds the segments' sums ascending. Nothing of that depends on how many tokens there are. */
#include "kernels/cuda/few.h"
#include "kernels/cuda/fp4_tiles.cuh"
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    MANY = 5,  /* warps of a block where there are many blocks: K of 1280, 2304 and 5120 leave few of them idle */
    FEW = 20,  /* where there are few: a segment of K = 5120 for each */
    FEW_BLOCKS = 200,
    BESIDE = 10 /* with parts beside: two segments of K = 5120 for each, whose weights are in registers */
};

/* One step with each of the token tiles; k is the thread's first element. */
template <int NT>
__device__ __forceinline__ void step(float c[NT][4], const fragment_a &a, const uint16_t *const x[NT], int k, int cols)
{
    for (int n = 0; n < NT; n++) mma(c[n], a, load_x(x[n], k, cols));
}

/* The scale bytes of a segment's blocks, zeros behind the end. */
__device__ __forceinline__ uint2 load_scales(const uint8_t *scale, int64_t k, int64_t cols)
{
    const uint8_t *first = scale + k / 32;
    uint2 v = make_uint2(0, 0);
    if (scale && k + SEGMENT <= cols && ((uintptr_t)first & 7) == 0) return __ldg((const uint2 *)first);
    for (int b = 0; b < 8; b++)
        if (scale && k + 32 * b < cols) (b < 4 ? v.x : v.y) |= (uint32_t)__ldg(first + b) << b % 4 * 8;
    return v;
}

/* What a thread loads of a segment: codes and scales of rows g and g + 8, sixteen bytes at a time. Other kinds load as they go. */
template <bl_weight_kind KIND> struct raw {
    enum { CODED = KIND == BL_W_FP8 || KIND == BL_W_FP4, EACH = KIND == BL_W_FP4 ? 32 : 16 /* elements of a load */,
           LOADS = CODED ? SEGMENT / 4 / EACH : 1 };
    uint4 codes[2][LOADS];
    uint2 scale[2];
    __device__ __forceinline__ void load(const weight_rows &w, int64_t k0)
    {
        if constexpr (CODED) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
#pragma unroll
                for (int j = 0; j < LOADS; j++) {
                    const int64_t k = k0 + EACH * (4 * j + threadIdx.x % 4);
                    codes[h][j] = load16(w.codes[h] + row_bytes(KIND, k), w.codes[h] && k < w.cols);
                }
                scale[h] = load_scales(w.scale[h], k0, w.cols);
            }
        }
    }
};

template <> struct raw<TILED> {
    uint4 codes[STEPS / 4], scales;
    __device__ __forceinline__ void load(const weight_rows &w, int64_t k0)
    {
#pragma unroll
        for (int j = 0; j < STEPS / 4; j++) codes[j] = __ldg((const uint4 *)(w.codes[0] + k0 / SEGMENT * BL_TILE_CODES) + j * WARP);
        scales = __ldg((const uint4 *)(w.scale[0] + k0 / SEGMENT * BL_TILE_SCALES));
    }
};

/* The chains of one segment that begins at k0. */
template <int NT, bool SMALL>
__device__ __forceinline__ void segment_fp8(float c[NT][4], const raw<BL_W_FP8> &w, const uint16_t *const x[NT], int k0, int cols)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t words[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            words[h][0] = w.codes[h][j].x, words[h][1] = w.codes[h][j].y, words[h][2] = w.codes[h][j].z, words[h][3] = w.codes[h][j].w;
            transpose4(words[h]);
        }
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const int b = 2 * j + s / 2;
            const uint2 low = block_fp8<SMALL>(words[0][s], w.scale[0], b), high = block_fp8<SMALL>(words[1][s], w.scale[1], b);
            const fragment_a a = {{low.x, high.x, low.y, high.y}};
            step<NT>(c, a, x, k0 + 64 * j + 16 * s + 4 * (threadIdx.x % 4), cols);
        }
    }
}

template <int NT>
__device__ __forceinline__ void segment_fp4(float c[NT][4], const raw<BL_W_FP4> &w, const uint16_t *const x[NT], int k0, int cols)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t words[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* two steps: their quarters are paired, so that a word holds both of one lane */
            const uint4 v = w.codes[h][j];
            words[h][0] = __byte_perm(v.x, v.z, 0x5410);
            words[h][1] = __byte_perm(v.x, v.z, 0x7632);
            words[h][2] = __byte_perm(v.y, v.w, 0x5410);
            words[h][3] = __byte_perm(v.y, v.w, 0x7632);
            transpose4(words[h]);
        }
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const int shift = s % 2 * 16, b = 4 * j + s / 2;
            const uint2 low = decode_fp4(words[0][s / 2] >> shift, block_scale(w.scale[0], b));
            const uint2 high = decode_fp4(words[1][s / 2] >> shift, block_scale(w.scale[1], b));
            const fragment_a a = {{low.x, high.x, low.y, high.y}};
            step<NT>(c, a, x, k0 + 128 * j + 16 * s + 4 * (threadIdx.x % 4), cols);
        }
    }
}

template <int NT, bool SMALL>
__device__ __forceinline__ void segment_tiled(float c[NT][4], const raw<TILED> &w, const uint16_t *const x[NT], int k0, int cols)
{
    const uint32_t scales[4] = {w.scales.x, w.scales.y, w.scales.z, w.scales.w};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint4 &v = w.codes[s / 4];
        const uint32_t word = s % 4 == 0 ? v.x : s % 4 == 1 ? v.y : s % 4 == 2 ? v.z : v.w;
        step<NT>(c, tile_step<SMALL>(word, tile_scale<SMALL>(scales[s / 4], s / 2)), x, k0 + 16 * s + 4 * (threadIdx.x % 4), cols);
    }
}

template <int NT> __device__ __forceinline__ void segment_bf16(float c[NT][4], const weight_rows &w, const uint16_t *const x[NT], int64_t k0)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int k = (int)k0 + 16 * s + 4 * t;
        const uint2 low = load_x((const uint16_t *)w.codes[0], k, (int)w.cols), high = load_x((const uint16_t *)w.codes[1], k, (int)w.cols);
        const fragment_a a = {{low.x, high.x, low.y, high.y}};
        step<NT>(c, a, x, k, (int)w.cols);
    }
}

/* By kind of weights; `loaded` holds the segment's codes where the kind has any to hold. */
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_FP8> &loaded, const weight_rows &w, const uint16_t *const x[NT],
                                        int64_t k0)
{
    const bool small = __all_sync(~0u, all_small(loaded.scale[0]) && all_small(loaded.scale[1]));
    if (small) segment_fp8<NT, true>(c, loaded, x, (int)k0, (int)w.cols);
    else segment_fp8<NT, false>(c, loaded, x, (int)k0, (int)w.cols);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_FP4> &loaded, const weight_rows &w, const uint16_t *const x[NT],
                                        int64_t k0)
{
    segment_fp4<NT>(c, loaded, x, (int)k0, (int)w.cols);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<TILED> &loaded, const weight_rows &w, const uint16_t *const x[NT], int64_t k0)
{
    const bool small = __all_sync(~0u, bl_fp4_tile_small(loaded.scales.x | loaded.scales.y | loaded.scales.z | loaded.scales.w));
    if (small) segment_tiled<NT, true>(c, loaded, x, (int)k0, (int)w.cols);
    else segment_tiled<NT, false>(c, loaded, x, (int)k0, (int)w.cols);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_BF16> &, const weight_rows &w, const uint16_t *const x[NT], int64_t k0)
{
    segment_bf16<NT>(c, w, x, k0);
}
template <int NT>
__device__ __forceinline__ void segment(float c[NT][4], const raw<BL_W_F32> &, const weight_rows &w, const uint16_t *const x[NT], int64_t k0)
{
    segment_f32<NT>(c, w, x, k0);
}

/* Results that a thread of a block of W warps has. */
template <int NT, int W> struct share {
    enum { COUNT = (NT * 8 * ROWS + W * WARP - 1) / (W * WARP) };
};

/* Sums of the block's tile over all segments, ascending: thread i gets elements i, i + 32 W, ... of [NT * 8 tokens][16 rows]. */
template <bl_weight_kind KIND, int NT, int WARPS>
__device__ __forceinline__ void tile_sums(float total[share<NT, WARPS>::COUNT], const weight_rows &w, const uint16_t *const x[NT])
{
    enum { COUNT = share<NT, WARPS>::COUNT };
    __shared__ float sums[WARPS][NT * 8][ROWS + 1];
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int segments = (int)((w.cols + SEGMENT - 1) / SEGMENT);
    for (int i = 0; i < COUNT; i++) total[i] = 0;
    for (int base = 0; base < segments; base += WARPS) {
        if (base + warp < segments) {
            float c[NT][4];
            const int64_t k0 = (int64_t)(base + warp) * SEGMENT;
            raw<KIND> loaded; /* loading the next one ahead takes more in registers than it gives */
            loaded.load(w, k0);
            zero(c[0], NT * 4);
            segment<NT>(c, loaded, w, x, k0);
            for (int n = 0; n < NT; n++)
                for (int i = 0; i < 4; i++)
                    sums[warp][8 * n + 2 * t + i % 2][lane_rows<KIND>::first(g) + i / 2 * lane_rows<KIND>::SECOND] = c[n][i];
        }
        __syncthreads();
        const int count = segments - base < WARPS ? segments - base : WARPS;
        for (int i = 0; i < COUNT; i++) {
            const int at = threadIdx.x + WARPS * WARP * i;
            if (at < NT * 8 * ROWS)
                for (int k = 0; k < count; k++) total[i] += sums[k][at / ROWS][at % ROWS];
        }
        __syncthreads();
    }
}

/* Rows from `row` and tokens from `token` on. */
template <bl_weight_kind KIND, int NT, int W>
__device__ __forceinline__ void dense_tile(const dense_args &p, int64_t row, int64_t token, int64_t group)
{
    const int64_t begin = p.row0 + group * p.row_step;
    const weight_rows w = tile_rows<KIND>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, begin + row, begin + p.rows);
    const uint16_t *x[NT];
    for (int n = 0; n < NT; n++) {
        const int64_t i = token + 8 * n + threadIdx.x % WARP / 4;
        x[n] = i < p.tokens ? p.x + group * p.x_step + i * p.ldx : NULL;
    }
    float total[share<NT, W>::COUNT];
    tile_sums<KIND, NT, W>(total, w, x);
    for (int i = 0; i < share<NT, W>::COUNT; i++) {
        const int at = threadIdx.x + W * WARP * i;
        const int64_t t = token + at / ROWS, r = row + at % ROWS;
        if (at >= NT * 8 * ROWS || t >= p.tokens || r >= p.rows) continue;
        const int64_t y = group * p.y_step + t * p.ld + r;
        if (p.y16) p.y16[y] = to_bf16(total[i]);
        else p.y32[y] = total[i];
    }
}

/* Has a warp's segment of a tile's rows, each of `bytes` bytes, brought to the L2 cache. */
__device__ __forceinline__ void call_in(const weight_rows &w, int64_t at, int bytes)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        for (int i = threadIdx.x % 4 * 128; w.codes[h] && i < bytes; i += 4 * 128)
            prefetch(w.codes[h] + at + i);
}

template <bl_weight_kind KIND> __device__ __forceinline__ void call_segment(const dense_args &p, int64_t row, int64_t segment)
{
    const int64_t from = segment * SEGMENT, left = p.w.cols - from;
    if (left <= 0) return;
    const weight_rows w = tile_rows<KIND>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, p.row0 + row, p.row0 + p.rows);
    call_in(w, row_bytes(KIND, from), (int)row_bytes(KIND, left < SEGMENT ? left : SEGMENT));
}

template <bl_weight_kind KIND, int NT, int W> __global__ void __launch_bounds__(W * WARP) dense_kernel(dense_args p)
{
    if (NT == 1) call_segment<KIND>(p, (int64_t)blockIdx.x * ROWS + blockIdx.z * p.row_step, threadIdx.x / WARP);
    take_over();
    dense_tile<KIND, NT, W>(p, (int64_t)blockIdx.x * ROWS, (int64_t)blockIdx.y * NT * 8, blockIdx.z);
}

template <int NT> __global__ void __launch_bounds__(WARP) parts_kernel(dense_args p, float *parts)
{
    segment_parts<NT>(p, parts, (int64_t)blockIdx.x * ROWS, (int64_t)blockIdx.y * NT * 8, blockIdx.z);
}

/* A tile of p for each of the first blocks, segments of q for the others. */
__global__ void __launch_bounds__(BESIDE *WARP) with_parts_kernel(dense_args p, dense_args q, float *parts, int tiles)
{
    const int warp = (int)threadIdx.x / WARP;
    if ((int)blockIdx.x < tiles) held_tile<BESIDE>(p, (int64_t)blockIdx.x * HELD_ROWS);
    else if (warp < PART_WARPS) part_of(q, parts, ((int)blockIdx.x - tiles) * PART_WARPS + warp);
}

struct expert_args {
    const bl_cuda_expert *experts;
    const int32_t *units, *unit_count, *token;
    int64_t rows, cols;
    int which[2];
    const uint16_t *x;
    bool by_token;
    uint16_t *y[2];
};

template <bl_weight_kind KIND, int NT, int W> __global__ void __launch_bounds__(W * WARP) expert_kernel(expert_args p)
{
    if ((int)blockIdx.y >= *p.unit_count) return;
    const int32_t *unit = p.units + 3 * blockIdx.y;
    const bl_cuda_expert *e = p.experts + unit[0];
    const int64_t slot = unit[1], count = unit[2], row = (int64_t)blockIdx.x * ROWS;
    const int which = blockIdx.z ? p.which[1] : p.which[0]; /* an index into the parameters would copy them to the stack */
    uint16_t *const y = blockIdx.z ? p.y[1] : p.y[0];
    const weight_rows w = tile_rows<KIND>((const uint8_t *)e->codes[which], e->scale[which], p.cols, row, p.rows);
    const uint16_t *x[NT];
    for (int n = 0; n < NT; n++) {
        const int64_t i = 8 * n + threadIdx.x % WARP / 4;
        x[n] = i < count ? p.x + (p.by_token ? p.token[slot + i] : slot + i) * p.cols : NULL;
    }
    float total[share<NT, W>::COUNT];
    tile_sums<KIND, NT, W>(total, w, x);
    for (int i = 0; i < share<NT, W>::COUNT; i++) {
        const int at = threadIdx.x + W * WARP * i;
        if (at < NT * 8 * ROWS && at / ROWS < count && row + at % ROWS < p.rows)
            y[(slot + at / ROWS) * p.rows + row + at % ROWS] = to_bf16(total[i]);
    }
}

/* Token tiles of a block, by the number of tokens: any choice gives the same bits. */
static int tiles_for(int64_t tokens)
{
    return tokens <= 8 ? 1 : tokens <= 16 ? 2 : 4;
}

template <int NT, int W> static void launch_dense_by(cudaStream_t s, bl_weight_kind kind, const dense_args &a, dim3 grid, bool early)
{
    if (kind == BL_W_FP8) launch_early(early, s, grid, W * WARP, 0, dense_kernel<BL_W_FP8, NT, W>, a);
    else if (kind == BL_W_FP4) launch_early(early, s, grid, W * WARP, 0, dense_kernel<BL_W_FP4, NT, W>, a);
    else if (kind == BL_W_BF16) launch_early(early, s, grid, W * WARP, 0, dense_kernel<BL_W_BF16, NT, W>, a);
    else launch_early(early, s, grid, W * WARP, 0, dense_kernel<BL_W_F32, NT, W>, a);
}

template <int NT> static void launch_dense(cudaStream_t s, const bl_cuda_product *p)
{
    const dense_args a = dense_of(p);
    const dim3 grid(blocks_of(a.rows, ROWS), blocks_of(a.tokens, NT * 8), (unsigned)(p->groups > 1 ? p->groups : 1));
    const bool few = grid.x * grid.y * grid.z < FEW_BLOCKS && a.w.cols > MANY * SEGMENT;
    if (few && NT < 4) launch_dense_by<NT, NT < 4 ? FEW : MANY>(s, p->w.kind, a, grid, p->early); /* more tokens take too many registers */
    else launch_dense_by<NT, MANY>(s, p->w.kind, a, grid, p->early);
}

template <int NT> static void launch_experts(cudaStream_t s, bl_weight_kind kind, const expert_args &a, dim3 grid)
{
    if (bl_fp4_tiled(kind, a.rows, a.cols)) launch_plain(s, grid, MANY * WARP, 0, expert_kernel<TILED, NT, MANY>, a);
    else if (kind == BL_W_FP8) launch_plain(s, grid, MANY * WARP, 0, expert_kernel<BL_W_FP8, NT, MANY>, a);
    else if (kind == BL_W_FP4) launch_plain(s, grid, MANY * WARP, 0, expert_kernel<BL_W_FP4, NT, MANY>, a);
    else launch_plain(s, grid, MANY * WARP, 0, expert_kernel<BL_W_BF16, NT, MANY>, a);
}

} // namespace bl

using namespace bl;

void bl_cuda_multiply(bl_cuda_stream s, const bl_cuda_product *p)
{
    if (p->tokens <= 0 || p->rows <= 0 || bl_cuda_multiply_many(s, p) || bl_cuda_multiply_few(s, p)) return;
    switch (tiles_for(p->tokens)) {
    case 1: launch_dense<1>(s, p); break;
    case 2: launch_dense<2>(s, p); break;
    default: launch_dense<4>(s, p);
    }
}

void bl_cuda_multiply_parts(bl_cuda_stream s, const bl_cuda_product *p, float *parts)
{
    const dense_args a = dense_of(p);
    const int nt = tiles_for(p->tokens);
    const dim3 grid(blocks_of(p->rows, ROWS), blocks_of(p->tokens, 8 * nt), blocks_of(p->w.cols, SEGMENT));
    if (p->tokens <= 0) return;
    if (nt == 1) launch_plain(s, grid, WARP, 0, parts_kernel<1>, a, parts);
    else if (nt == 2) launch_plain(s, grid, WARP, 0, parts_kernel<2>, a, parts);
    else launch_plain(s, grid, WARP, 0, parts_kernel<4>, a, parts);
}

bool bl_cuda_multiply_with_parts(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q, float *parts)
{
    if (p->tokens < 1 || p->tokens != q->tokens || tiles_for(p->tokens) > 1 || p->w.kind != BL_W_BF16 || q->w.kind != BL_W_F32 ||
        p->groups > 1 || p->row0 > 0 || q->row0 > 0 || p->w.cols % 32 || q->w.cols % SEGMENT)
        return false;
    const unsigned tiles = blocks_of(p->rows, HELD_ROWS);
    launch_early(true, s, dim3(tiles + part_blocks(q->rows, q->w.cols)), BESIDE * WARP, 0, with_parts_kernel, dense_of(p), dense_of(q),
                 parts, (int)tiles);
    return true;
}

void bl_cuda_multiply_experts(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    const expert_args a = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->rows, p->cols,
                           {p->which[0], p->which[1]}, p->x, p->by_token, {p->y[0], p->y[1]}};
    const dim3 grid(blocks_of(p->rows, ROWS), (unsigned)bl_cuda_max_units(p->T, p->k, p->E, false), (unsigned)p->count);
    if (p->T <= 0) return;
    if (p->many) {
        bl_cuda_multiply_experts_many(s, p);
        return;
    }
    if (bl_cuda_multiply_experts_few(s, p)) return;
    switch (bl_cuda_unit_slots(p->T, false)) {
    case 8: launch_experts<1>(s, p->kind, a, grid); break;
    case 16: launch_experts<2>(s, p->kind, a, grid); break;
    default: launch_experts<4>(s, p->kind, a, grid);
    }
}
