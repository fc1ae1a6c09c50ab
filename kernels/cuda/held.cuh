/* Segments of products of up to eight tokens, for kernels that begin early: a warp has the weights of its segments in registers when it
 * begins to wait for the kernel before, and takes x of a whole segment at once behind that. Tiles of eight rows, the upper half of what
 * a tensor core step takes: half the registers, and twice the multiprocessors that read. */
#ifndef BL_KERNELS_CUDA_HELD_CUH
#define BL_KERNELS_CUDA_HELD_CUH

#include "kernels/cuda/segments.cuh"

namespace bl {

enum {
    HELD_ROWS = 8,
    PART_WARPS = 4 /* warps of a block that take segments of parts: one for each scheduler, as splitting weights keeps it busy */
};

static inline int64_t part_count(int64_t rows, int64_t cols) { return blocks_of(rows, HELD_ROWS) * (int64_t)blocks_of(cols, SEGMENT); }
static inline unsigned part_blocks(int64_t rows, int64_t cols) { return blocks_of(part_count(rows, cols), PART_WARPS); }

/* A lane's elements of each step of a segment, the first of them at `from`, `left` columns before the row's end: zeros behind that. All
 * loads are under way at once. */
template <class V> __device__ __forceinline__ void load_steps(V v[STEPS], const V *from, int left)
{
    if (left > BL_DOT_STEP * (STEPS - 1)) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) v[s] = from[4 * s];
    } else {
#pragma unroll
        for (int s = 0; s < STEPS; s++) v[s] = BL_DOT_STEP * s < left ? from[4 * s] : V{};
    }
}

/* This lane's rows: g of a tile of weights, g of the tokens. Where there is none the last one stands in, for results that nobody takes. */
__device__ __forceinline__ int64_t held_row(const dense_args &p, int64_t row)
{
    const int64_t r = row + threadIdx.x % WARP / 4;
    return p.row0 + (r < p.rows ? r : p.rows - 1);
}

__device__ __forceinline__ const uint16_t *held_token(const dense_args &p)
{
    const int64_t i = threadIdx.x % WARP / 4;
    return p.x + (i < p.tokens ? i : p.tokens - 1) * p.ldx;
}

/* c of row g and tokens 2 t, 2 t + 1: one step of float32 weights. */
__device__ __forceinline__ void held_step(float c[4], const uint4 &w, uint2 x)
{
    float f[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
    fragment_a a[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const uint32_t low = split_pair(f[0], f[1]), high = split_pair(f[2], f[3]);
        a[i] = {{low, 0, high, 0}};
    }
#pragma unroll
    for (int i = 2; i >= 0; i--) mma(c, a[i], x);
}

/* ... of bf16 weights. */
__device__ __forceinline__ void held_step(float c[4], uint2 w, uint2 x)
{
    const fragment_a a = {{w.x, 0, w.y, 0}};
    mma(c, a, x);
}

/* A warp's segment of float32 weights, its sums as they are: number `unit` of part_count, or none beyond. Waits for the kernel before. */
__device__ __forceinline__ void part_of(const dense_args &p, float *parts, int unit)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, across = (int)((p.rows + HELD_ROWS - 1) / HELD_ROWS);
    const int64_t row = unit % across * HELD_ROWS, segment = unit / across, k = segment * SEGMENT + 4 * t;
    const int left = (int)(p.w.cols - k);
    uint4 w[STEPS];
    uint2 x[STEPS];
    load_steps(w, (const uint4 *)((const float *)p.w.codes + held_row(p, row) * p.w.cols + k), left);
    take_over();
    load_steps(x, (const uint2 *)(held_token(p) + k), left);
    float c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < STEPS; s++) held_step(c, w[s], x[s]);
    for (int i = 0; i < 2; i++)
        if (segment * SEGMENT < p.w.cols && row + g < p.rows && 2 * t + i < p.tokens)
            parts[(segment * p.tokens + 2 * t + i) * p.rows + row + g] = c[i];
}

/* The tile of bf16 weights from `row` on, by a block of W warps with two segments each at a time. Waits for the kernel before. */
template <int W> __device__ __forceinline__ void held_tile(const dense_args &p, int64_t row)
{
    enum { EACH = 2, RESULTS = BL_CUDA_FEW * HELD_ROWS };
    __shared__ float sums[EACH * W][RESULTS];
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, cols = (int)p.w.cols;
    const uint16_t *const weights = (const uint16_t *)p.w.codes + held_row(p, row) * p.w.cols + 4 * t;
    const uint16_t *const tokens = held_token(p) + 4 * t;
    uint2 w[EACH][STEPS], x[EACH][STEPS];
    float total = 0;
    for (int base = 0; base < cols; base += EACH * W * SEGMENT) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int k = base + (e * W + warp) * SEGMENT;
            load_steps(w[e], (const uint2 *)(weights + k), cols - k - 4 * t);
        }
        if (base == 0) take_over();
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int k = base + (e * W + warp) * SEGMENT;
            load_steps(x[e], (const uint2 *)(tokens + k), cols - k - 4 * t);
        }
        float c[EACH][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            for (int e = 0; e < EACH; e++) held_step(c[e], w[e][s], x[e][s]);
        for (int e = 0; e < EACH; e++)
            for (int i = 0; i < 2; i++) sums[e * W + warp][(2 * t + i) * HELD_ROWS + g] = c[e][i];
        __syncthreads();
        if (threadIdx.x < RESULTS)
#pragma unroll
            for (int k = 0; k < EACH * W; k++) total += sums[k][threadIdx.x]; /* those behind the end are +0 */
        __syncthreads();
    }
    const int64_t at = threadIdx.x / HELD_ROWS, r = row + threadIdx.x % HELD_ROWS;
    if (threadIdx.x >= RESULTS || at >= p.tokens || r >= p.rows) return;
    if (p.y16) p.y16[at * p.ld + r] = to_bf16(total);
    else p.y32[at * p.ld + r] = total;
}

} // namespace bl

#endif
