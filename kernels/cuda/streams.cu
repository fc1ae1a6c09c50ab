/* Residual streams, norms, roundings, Engram: a block for each row. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/norm.cuh"

namespace bl {

enum {
    THREADS = 256, MOST_PARTS = 8 /* blocks of a cluster */,
    MANY = 256 /* tokens from which each is a block's */
};

__global__ void embed_kernel(uint16_t *x, const uint16_t *table, const int32_t *ids, int64_t first, int64_t count, int64_t D)
{
    const int64_t t = blockIdx.x, row = ids[t] - first;
    const bool here = row >= 0 && row < count;
    for (int64_t i = threadIdx.x; i < D / 8; i += blockDim.x)
        ((uint4 *)(x + t * D))[i] = here ? ((const uint4 *)(table + row * D))[i] : make_uint4(0, 0, 0, 0);
}

__global__ void fan_out_kernel(uint16_t *H, float *pre, const uint16_t *x, int64_t D)
{
    const int64_t t = blockIdx.x;
    for (int64_t i = threadIdx.x; i < D / 8; i += blockDim.x) {
        const uint4 v = ((const uint4 *)(x + t * D))[i];
        for (int j = 0; j < S; j++) ((uint4 *)(H + (t * S + j) * D))[i] = v;
    }
    if (threadIdx.x < S) pre[t * S + threadIdx.x] = threadIdx.x == 0;
}

enum { COLLAPSE = 640 /* threads: four columns of 2560 at a time */ };

__global__ void __launch_bounds__(COLLAPSE) collapse_kernel(uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre,
                                                            const uint16_t *norm, const int64_t *tokens, int64_t D, float eps)
{
    BL_DYNAMIC_SHARED(uint16_t, row, 16);
    __shared__ float sums[ROW_SUMS];
    const int64_t i = blockIdx.x, t = tokens ? tokens[i] : i;
    start_next();
    const uint16_t *h = H + t * S * D;
    float p[S];
    for (int j = 0; j < S; j++) p[j] = pre[t * S + j];
#pragma unroll 2
    for (int64_t k = 4 * threadIdx.x; k < D; k += 4 * COLLAPSE) {
        four from[S], v;
        for (int j = 0; j < S; j++) from[j] = load_four(h + j * D + k);
        for (int e = 0; e < 4; e++) {
            v.v[e] = p[0] * from[0].v[e];
            for (int j = 1; j < S; j++) v.v[e] = fmaf(p[j], from[j].v[e], v.v[e]);
        }
        *(uint2 *)(row + k) = pack_four(v.v);
    }
    __syncthreads();
    norm_row(x + i * D, rounded ? rounded + i * D : NULL, row, norm, D, eps, sums);
}

/* The sublayer's result before rounding: what is there of it already, or the sum of the experts' rows. */
__device__ __forceinline__ four sublayer_sum(const bl_cuda_advance &a, int64_t t, int64_t i)
{
    four sum = {{0, 0, 0, 0}};
    if (a.partial) {
        const float4 v = *(const float4 *)(a.partial + t * a.D + i);
        return {{v.x, v.y, v.z, v.w}};
    }
#pragma unroll 6
    for (int j = 0; j < a.k; j++) {
        const int32_t slot = a.slot_of[t * a.k + j];
        if (slot < 0) continue;
        const four y = load_four(a.out + slot * a.D + i);
        for (int e = 0; e < 4; e++) sum.v[e] += y.v[e];
    }
    if (a.shared) {
        const four y = load_four(a.shared + t * a.D + i);
        for (int e = 0; e < 4; e++) sum.v[e] += y.v[e];
    }
    return sum;
}

/* Streams `from` of four columns after the sublayer, and their sum weighted by pre. */
__device__ __forceinline__ uint2 expand_four(uint16_t *h, int64_t D, const four from[S], const four &sum, const float *post,
                                             const float *comb, const float *pre)
{
    const four y = unpack_four(pack_four(sum.v));
    four collapsed = {{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < S; k++) {
        float v[4];
        for (int e = 0; e < 4; e++) {
            v[e] = comb[k] * from[0].v[e];
            for (int j = 1; j < S; j++) v[e] = fmaf(comb[S * j + k], from[j].v[e], v[e]);
            v[e] = fmaf(post[k], y.v[e], v[e]);
        }
        const uint2 packed = pack_four(v);
        *(uint2 *)(h + k * D) = packed;
        const four now = unpack_four(packed);
        for (int e = 0; e < 4 && pre; e++) collapsed.v[e] = k ? fmaf(pre[k], now.v[e], collapsed.v[e]) : pre[k] * now.v[e];
    }
    return pack_four(collapsed.v);
}

/* A sum over a segment of a row, by half a warp: as row_sum. */
template <class F> __device__ __forceinline__ float segment_sum(F term)
{
    float v = 0;
#pragma unroll 8
    for (int i = threadIdx.x % 16; i < BL_CUDA_ROW_SEGMENT; i += 16) v = term(i, v);
    return lane_tree(v);
}

/* A token's coefficients. */
struct coefficients {
    float post[S], comb[S * S], pre[S];
};

__device__ __forceinline__ void load_floats(float *to, const float *from, int n)
{
#pragma unroll
    for (int i = 0; i < n; i += 4) {
        const float4 v = *(const float4 *)(from + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

/* Expansion after a sublayer, collapse and norm before the next one: a cluster of blocks for each token, 1024 columns a block. Before it
 * waits it reads all but the sublayer's result. */
__global__ void __launch_bounds__(THREADS) advance_kernel(bl_cuda_advance a)
{
    enum { SEGMENTS = 4 * THREADS / BL_CUDA_ROW_SEGMENT };
    __shared__ __align__(8) uint16_t row[4 * THREADS];
    __shared__ float mine[SEGMENTS], sums[SEGMENTS * MOST_PARTS];
    const unsigned parts = cluster_size(), rank = cluster_rank();
    const int64_t t = blockIdx.x / parts, i = (int64_t)rank * 4 * THREADS + 4 * threadIdx.x;
    const int segments = (int)((a.D + BL_CUDA_ROW_SEGMENT - 1) / BL_CUDA_ROW_SEGMENT);
    const bool there = i < a.D; /* whole groups of 32 columns */
    uint16_t *const h = a.H + t * S * a.D + i;
    coefficients c;
    four from[S] = {}, by = {};
    load_floats(c.post, a.post + t * S, S);
    load_floats(c.comb, a.comb + t * S * S, S * S);
    load_floats(c.pre, a.pre + t * S, S);
#pragma unroll
    for (int j = 0; j < S; j++)
        if (there) from[j] = load_four(h + j * a.D);
    if (there) by = load_four(a.norm + i);
    take_over();
    const uint2 mixed = there ? expand_four(h, a.D, from, sublayer_sum(a, t, i), c.post, c.comb, c.pre) : make_uint2(0, 0);
    *(uint2 *)(row + 4 * threadIdx.x) = mixed;
    __syncthreads();
    if (threadIdx.x < 16 * SEGMENTS) { /* zeros behind the end add nothing */
        const uint16_t *const x = row + threadIdx.x / 16 * BL_CUDA_ROW_SEGMENT;
        const float v = segment_sum([&](int k, float sum) { return fmaf(from_bf16(x[k]), from_bf16(x[k]), sum); });
        if (threadIdx.x % 16 == 0) mine[threadIdx.x / 16] = v;
    }
    cluster_sync();
    const int *const theirs = (const int *)&mine[threadIdx.x % SEGMENTS];
    if ((int)threadIdx.x < segments) sums[threadIdx.x] = __int_as_float(remote(theirs, threadIdx.x / SEGMENTS));
    cluster_sync(); /* no block ends while others read there */
    float total = 0;
#pragma unroll 2
    for (int k = 0; k < segments; k++) total += sums[k];
    if (there)
        norm_four(a.x + t * a.D + i, a.rounded + t * a.D + i, unpack_four(mixed), by, bl_rsqrt(total / (float)a.D + a.eps));
}

/* The same, a block for each token, whose streams come to shared memory first: many bytes under way in few registers. */
__global__ void __launch_bounds__(THREADS, 3) advance_many_kernel(bl_cuda_advance a)
{
    BL_DYNAMIC_SHARED(uint16_t, h, 16); /* [S][D]; the collapsed row takes the place of the first stream's */
    __shared__ float sums[ROW_SUMS], post[S], comb[S * S], pre[S];
    const int64_t t = blockIdx.x, D = a.D;
    uint16_t *const out = a.H + t * S * D;
    for (int64_t i = 8 * threadIdx.x; i < S * D; i += 8 * THREADS) copy_sixteen(shared_address(h + i), out + i, true);
    copies_end_group();
    if (threadIdx.x < S * S) comb[threadIdx.x] = a.comb[t * S * S + threadIdx.x];
    if (threadIdx.x < S) post[threadIdx.x] = a.post[t * S + threadIdx.x], pre[threadIdx.x] = a.pre[t * S + threadIdx.x];
    int64_t i = 4 * threadIdx.x;
    four sum = i < D ? sublayer_sum(a, t, i) : four{};
    copies_wait_for<0>();
    __syncthreads();
    for (; i < D; i += 4 * THREADS) {
        const four next = i + 4 * THREADS < D ? sublayer_sum(a, t, i + 4 * THREADS) : four{};
        four from[S];
#pragma unroll
        for (int j = 0; j < S; j++) from[j] = load_four(h + j * D + i);
        *(uint2 *)(h + i) = expand_four(out + i, D, from, sum, post, comb, pre);
        sum = next;
    }
    __syncthreads();
    norm_row(a.x + t * D, a.rounded + t * D, h, a.norm, D, a.eps, sums);
}

__global__ void __launch_bounds__(THREADS) rmsnorm_kernel(uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t n,
                                                          float eps)
{
    BL_DYNAMIC_SHARED(uint16_t, shared, 16); /* [2][n] */
    const int64_t t = blockIdx.x;
    norm_new_row<THREADS>(y + t * n, rounded ? rounded + t * n : NULL, x + t * n, w, n, eps, shared);
}

__global__ void __launch_bounds__(THREADS) expand_kernel(uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t D)
{
    const int64_t t = blockIdx.y, i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (i >= D) return;
    uint16_t *h = H + t * S * D + i;
    four from[S];
#pragma unroll
    for (int j = 0; j < S; j++) from[j] = load_four(h + j * D);
    expand_four(h, D, from, load_four(y + t * D + i), post + t * S, comb + t * S * S, NULL);
}

__global__ void to_bf16_kernel(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) y[i] = to_bf16(x[i]);
}

__global__ void round_kernel(uint16_t *y, const uint16_t *x, int64_t ldx, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    take_over();
    if (i < n) y[t * n + i] = rounded_fp8(x[t * ldx + i]);
}

/* ---- Engram */

__global__ void engram_rows_kernel(uint16_t *e, const uint8_t *codes, const uint8_t *scale, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint8_t c = codes[i];
    const float s = e8m0(scale[i / 32]), v = e4m3(c) * s; /* a float's range holds the product but for the largest: infinity */
    e[i] = v == v ? to_bf16(v) : (uint16_t)(0x7fc0 | (c & 0x80) << 8);
}

/* A cluster of blocks for each stream of a token, 1024 columns a block. scale = D^-1/2. */
__global__ void __launch_bounds__(THREADS) engram_gate_kernel(uint16_t *H, const uint16_t *kv, const float *qk, int64_t D, float eps,
                                                              float scale)
{
    enum { COLUMNS = 4 * THREADS, SEGMENTS = COLUMNS / BL_CUDA_ROW_SEGMENT, SUMS = 3 /* two of squares, and the product */ };
    __shared__ __align__(16) uint16_t h[COLUMNS], key[COLUMNS];
    __shared__ __align__(16) float weighted[COLUMNS];
    __shared__ float mine[SUMS * SEGMENTS], sums[SUMS][SEGMENTS * MOST_PARTS];
    const unsigned parts = cluster_size(), rank = cluster_rank();
    const int at = 4 * threadIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t t = blockIdx.x / parts / S, j = blockIdx.x / parts % S, i = (int64_t)rank * COLUMNS + at;
    const int segments = (int)((D + BL_CUDA_ROW_SEGMENT - 1) / BL_CUDA_ROW_SEGMENT);
    const bool there = i < D;
    uint16_t *const stream = H + (t * S + j) * D + i;
    const uint16_t *const row = kv + t * (S + 1) * D + i;
    const float4 w = there ? *(const float4 *)(qk + j * D + i) : make_float4(0, 0, 0, 0);
    take_over();
    const uint2 x = there ? *(const uint2 *)stream : make_uint2(0, 0), y = there ? *(const uint2 *)(row + j * D) : make_uint2(0, 0);
    const uint2 value = there ? *(const uint2 *)(row + S * D) : make_uint2(0, 0);
    four from = unpack_four(x);
    *(uint2 *)(h + at) = x;
    *(uint2 *)(key + at) = y;
    *(float4 *)(weighted + at) = make_float4(from.v[0] * w.x, from.v[1] * w.y, from.v[2] * w.z, from.v[3] * w.w);
    __syncthreads();
    if (warp < SUMS) { /* half a warp for each segment; zeros behind the end add nothing */
        const int segment = lane / 16, first = segment * BL_CUDA_ROW_SEGMENT;
        const uint16_t *const a = (warp == 0 ? h : key) + first;
        const float *const b = weighted + first;
        float v;
        if (warp < 2) v = segment_sum([&](int k, float sum) { return fmaf(from_bf16(a[k]), from_bf16(a[k]), sum); });
        else v = segment_sum([&](int k, float sum) { return fmaf(b[k], from_bf16(a[k]), sum); });
        if (lane % 16 == 0) mine[warp * SEGMENTS + segment] = v;
    }
    cluster_sync();
    if (warp < SUMS && lane < segments) {
        const int *const theirs = (const int *)&mine[warp * SEGMENTS + lane % SEGMENTS];
        sums[warp][lane] = __int_as_float(remote(theirs, lane / SEGMENTS));
    }
    cluster_sync(); /* no block ends while others read there */
    float hh = 0, kk = 0, dot = 0;
#pragma unroll 2
    for (int k = 0; k < segments; k++) hh += sums[0][k], kk += sums[1][k], dot += sums[2][k];
    const float r = bl_rsqrt(hh / (float)D + eps) * bl_rsqrt(kk / (float)D + eps), v = dot * r * scale;
    const float size = fabsf(v) > 1e-6f ? fabsf(v) : 1e-6f;
    const float gate = bl_sigmoid(copysignf(sqrtf(size), v));
    const four by = unpack_four(value);
    for (int e = 0; e < 4; e++) from.v[e] = from.v[e] + gate * by.v[e];
    if (there) *(uint2 *)stream = pack_four(from.v);
}

} // namespace bl

using namespace bl;

void bl_cuda_embed(bl_cuda_stream s, uint16_t *x, const uint16_t *table, const int32_t *ids, int64_t first, int64_t count, int64_t T,
                   int64_t D)
{
    launch_plain(s, (unsigned)T, THREADS, 0, embed_kernel, x, table, ids, first, count, D);
}

void bl_cuda_fan_out(bl_cuda_stream s, uint16_t *H, float *pre, const uint16_t *x, int64_t T, int64_t D)
{
    launch_plain(s, (unsigned)T, THREADS, 0, fan_out_kernel, H, pre, x, D);
}

void bl_cuda_collapse(bl_cuda_stream s, uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre, const uint16_t *norm,
                      const int64_t *tokens, int64_t n, int64_t D, float eps)
{
    launch_plain(s, (unsigned)n, COLLAPSE, D * 2, collapse_kernel, x, rounded, H, pre, norm, tokens, D, eps);
}

void bl_cuda_expand(bl_cuda_stream s, uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t T, int64_t D)
{
    launch_plain(s, dim3(blocks_of(D, 4 * THREADS), (unsigned)T), THREADS, 0, expand_kernel, H, y, post, comb, D);
}

void bl_cuda_advance_streams(bl_cuda_stream s, const bl_cuda_advance *a)
{
    const unsigned parts = blocks_of(a->D, 4 * THREADS); /* MOST_PARTS at most: hidden sizes are limited */
    if (a->T >= MANY) {
        cudaFuncSetAttribute(advance_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(S * a->D * 2));
        launch_plain(s, (unsigned)a->T, THREADS, S * a->D * 2, advance_many_kernel, *a);
        return;
    }
    launch_clusters(a->early, parts, s, (unsigned)a->T, THREADS, 0, advance_kernel, *a);
}

void bl_cuda_to_bf16(bl_cuda_stream s, uint16_t *y, const float *x, int64_t n)
{
    launch_plain(s, blocks_of(n, 4 * THREADS), THREADS, 0, to_bf16_kernel, y, x, n);
}

void bl_cuda_rmsnorm(bl_cuda_stream s, uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t rows, int64_t n,
                     float eps)
{
    cudaFuncSetAttribute(rmsnorm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(n * 4));
    launch_early(true, s, dim3((unsigned)rows), THREADS, n * 4, rmsnorm_kernel, y, rounded, x, w, n, eps);
}

void bl_cuda_round_fp8(bl_cuda_stream s, uint16_t *y, const uint16_t *x, int64_t ldx, int64_t rows, int64_t n)
{
    launch_early(true, s, dim3(blocks_of(n, THREADS), (unsigned)rows), THREADS, 0, round_kernel, y, x, ldx, n);
}

void bl_cuda_engram_rows(bl_cuda_stream s, uint16_t *e, const uint8_t *codes, const uint8_t *scale, int64_t rows, int64_t width)
{
    launch_plain(s, blocks_of(rows * width, THREADS), THREADS, 0, engram_rows_kernel, e, codes, scale, rows * width);
}

void bl_cuda_engram_gate(bl_cuda_stream s, uint16_t *H, const uint16_t *kv, const float *qk, int64_t T, int64_t D, float eps)
{
    launch_clusters(true, blocks_of(D, 4 * THREADS), s, (unsigned)(T * S), THREADS, 0, engram_gate_kernel, H, kv, qk, D, eps,
                    (float)(1.0 / sqrt((double)D)));
}
