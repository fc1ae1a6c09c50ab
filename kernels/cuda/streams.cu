/* Residual streams, norms, roundings, Engram: a block for each row. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum {
    THREADS = 256, WIDE = 1024 /* threads of a block that has a whole row */, MOST_PARTS = 8 /* blocks of a cluster */, MIX = S * (2 + S),
    PART = BL_DOT_SEGMENT
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

/* ---- mixing: see ops_streams.c. One thread for each of the 16 elements of comb. */

__device__ __forceinline__ float sum_row(float c)
{
    const int base = threadIdx.x & 12;
    return ((__shfl_sync(0xffff, c, base) + __shfl_sync(0xffff, c, base + 1)) + __shfl_sync(0xffff, c, base + 2)) +
           __shfl_sync(0xffff, c, base + 3);
}

__device__ __forceinline__ float sum_column(float c)
{
    const int base = threadIdx.x & 3;
    return ((__shfl_sync(0xffff, c, base) + __shfl_sync(0xffff, c, base + 4)) + __shfl_sync(0xffff, c, base + 8)) +
           __shfl_sync(0xffff, c, base + 12);
}

__device__ __forceinline__ float sinkhorn(float c, float eps, int iters)
{
    float most = __shfl_sync(0xffff, c, threadIdx.x & 12);
    for (int k = 1; k < S; k++) {
        const float x = __shfl_sync(0xffff, c, (threadIdx.x & 12) + k);
        if (x > most) most = x;
    }
    c = bl_exp(c - most);
    c = c / sum_row(c) + eps;
    c = c / (sum_column(c) + eps);
    for (int i = 1; i < iters; i++) {
        c = c / (sum_row(c) + eps);
        c = c / (sum_column(c) + eps);
    }
    return c;
}

__global__ void __launch_bounds__(WIDE) mix_kernel(float *pre, float *post, float *comb, const float *parts, const uint16_t *H,
                                                      const float *scale3, const float *base24, int64_t T, int64_t D, float eps_rms,
                                                      float eps, int iters)
{
    __shared__ float sums[ROW_SUMS], dots[MIX], part[BL_CUDA_MAX_ROW / 2 / PART][MIX];
    const int64_t t = blockIdx.x, n = S * D;
    const uint16_t *h = H + t * n;
    const int segments = (int)((n + PART - 1) / PART);
    for (int i = threadIdx.x; i < segments * MIX; i += blockDim.x) part[i / MIX][i % MIX] = parts[(i / MIX * T + t) * MIX + i % MIX];
    __syncthreads();
    if (threadIdx.x < MIX) {
        float m = 0;
#pragma unroll 8
        for (int k = 0; k < segments; k++) m += part[k][threadIdx.x];
        dots[threadIdx.x] = m;
    }
    const float sum = row_sum(sums, n, [&](int64_t i, float v) { return fmaf(from_bf16(h[i]), from_bf16(h[i]), v); });
    const float r = bl_rsqrt(sum / (float)n + eps_rms);
    if (threadIdx.x < 16) {
        const int i = threadIdx.x;
        comb[t * 16 + i] = sinkhorn(dots[2 * S + i] * r * scale3[2] + base24[2 * S + i], eps, iters);
    } else if (threadIdx.x >= WARP && threadIdx.x < WARP + S) {
        const int j = threadIdx.x - WARP;
        pre[t * S + j] = bl_sigmoid(dots[j] * r * scale3[0] + base24[j]) + eps;
        post[t * S + j] = 2.0f * bl_sigmoid(dots[S + j] * r * scale3[1] + base24[S + j]);
    }
}

/* y = rmsnorm of the n values in row (shared), and their fp8 rounding. Ends without a barrier. */
__device__ __forceinline__ void norm_row(uint16_t *y, uint16_t *rounded, const uint16_t *row, const uint16_t *w, int64_t n, float eps,
                                         float *sums)
{
    const float sum = row_sum(sums, n, [&](int64_t i, float v) { return fmaf(from_bf16(row[i]), from_bf16(row[i]), v); });
    const float r = bl_rsqrt(sum / (float)n + eps);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) { /* n is a multiple of 32: whole warps */
        const uint16_t v = to_bf16(from_bf16(w[i]) * (from_bf16(row[i]) * r));
        y[i] = v;
        if (rounded) rounded[i] = rounded_fp8(v);
    }
}

__global__ void __launch_bounds__(WIDE) collapse_kernel(uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre,
                                                           const uint16_t *norm, const int64_t *tokens, int64_t D, float eps)
{
    extern __shared__ uint16_t row[];
    __shared__ float sums[ROW_SUMS];
    const int64_t i = blockIdx.x, t = tokens ? tokens[i] : i;
    start_next();
    const uint16_t *h = H + t * S * D;
    float p[S];
    for (int j = 0; j < S; j++) p[j] = pre[t * S + j];
#pragma unroll 4
    for (int64_t k = threadIdx.x; k < D; k += blockDim.x) {
        float v = p[0] * from_bf16(h[k]);
        for (int j = 1; j < S; j++) v = fmaf(p[j], from_bf16(h[j * D + k]), v);
        row[k] = to_bf16(v);
    }
    __syncthreads();
    norm_row(x + i * D, rounded ? rounded + i * D : NULL, row, norm, D, eps, sums);
}

/* Four neighbours of a row of bf16. */
struct four {
    float v[4];
};

__device__ __forceinline__ four load_four(const uint16_t *p)
{
    const uint2 w = *(const uint2 *)p;
    return {{from_bf16((uint16_t)w.x), from_bf16((uint16_t)(w.x >> 16)), from_bf16((uint16_t)w.y), from_bf16((uint16_t)(w.y >> 16))}};
}

__device__ __forceinline__ uint2 pack_four(const float v[4])
{
    return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
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

/* Expands four elements of the streams in place; returns them collapsed. */
__device__ __forceinline__ uint2 expand_and_collapse(const bl_cuda_advance &a, int64_t t, int64_t i)
{
    uint16_t *h = a.H + t * S * a.D + i;
    const float *post = a.post + t * S, *comb = a.comb + t * S * S, *pre = a.pre + t * S;
    four from[S], collapsed = {{0, 0, 0, 0}};
#pragma unroll
    for (int j = 0; j < S; j++) from[j] = load_four(h + j * a.D);
    const four sum = sublayer_sum(a, t, i);
#pragma unroll
    for (int k = 0; k < S; k++) {
        float now[4];
        for (int e = 0; e < 4; e++) {
            float v = comb[k] * from[0].v[e];
            for (int j = 1; j < S; j++) v = fmaf(comb[S * j + k], from[j].v[e], v);
            now[e] = from_bf16(to_bf16(fmaf(post[k], from_bf16(to_bf16(sum.v[e])), v)));
            collapsed.v[e] = k ? fmaf(pre[k], now[e], collapsed.v[e]) : pre[k] * now[e];
        }
        *(uint2 *)(h + k * a.D) = pack_four(now);
    }
    return pack_four(collapsed.v);
}

/* Expansion after a sublayer, collapse and norm before the next one: a cluster of blocks for each token, 1024 columns a block. */
__global__ void __launch_bounds__(THREADS) advance_kernel(bl_cuda_advance a)
{
    enum { SEGMENTS = 4 * THREADS / BL_CUDA_ROW_SEGMENT };
    __shared__ __align__(8) uint16_t row[4 * THREADS];
    __shared__ float mine[SEGMENTS], sums[SEGMENTS * MOST_PARTS];
    const unsigned parts = cluster_size(), rank = cluster_rank();
    const int64_t t = blockIdx.x / parts, i = (int64_t)rank * 4 * THREADS + 4 * threadIdx.x;
    const int segments = (int)((a.D + BL_CUDA_ROW_SEGMENT - 1) / BL_CUDA_ROW_SEGMENT), lane = threadIdx.x % 16;
    start_next();
    *(uint2 *)(row + 4 * threadIdx.x) = i < a.D ? expand_and_collapse(a, t, i) : make_uint2(0, 0);
    __syncthreads();
    if (threadIdx.x < 16 * SEGMENTS) { /* as row_sum; zeros behind the end add nothing */
        const uint16_t *from = row + threadIdx.x / 16 * BL_CUDA_ROW_SEGMENT;
        float v = 0;
#pragma unroll 8
        for (int k = lane; k < BL_CUDA_ROW_SEGMENT; k += 16) v = fmaf(from_bf16(from[k]), from_bf16(from[k]), v);
        v = lane_tree(v);
        if (lane == 0) mine[threadIdx.x / 16] = v;
    }
    cluster_sync();
    const int *const theirs = (const int *)&mine[threadIdx.x % SEGMENTS];
    if ((int)threadIdx.x < segments) sums[threadIdx.x] = __int_as_float(remote(theirs, threadIdx.x / SEGMENTS));
    cluster_sync(); /* no block ends while others read there */
    float total = 0;
    for (int k = 0; k < segments; k++) total += sums[k];
    if (i >= a.D) return; /* whole groups of 32 columns */
    const float r = bl_rsqrt(total / (float)a.D + a.eps);
    const four x = load_four(row + 4 * threadIdx.x), w = load_four(a.norm + i);
    uint16_t v[4], rounded[4];
    unsigned most = 0;
    for (int e = 0; e < 4; e++) {
        v[e] = to_bf16(w.v[e] * (x.v[e] * r));
        most = (v[e] & 0x7fffu) > most ? v[e] & 0x7fffu : most;
    }
    const unsigned group = 0xffu << threadIdx.x % WARP / 8 * 8; /* eight lanes have a group */
    for (int m = 4; m; m /= 2) {
        const unsigned y = __shfl_xor_sync(group, most, m);
        most = y > most ? y : most;
    }
    const float s = e8m0(scale_of(most, 1e-4f, 1.0f / 448.0f));
    for (int e = 0; e < 4; e++) rounded[e] = scaled(e4m3(to_e4m3(from_bf16(v[e]) / s)), s);
    *(uint2 *)(a.x + t * a.D + i) = make_uint2(v[0] | (uint32_t)v[1] << 16, v[2] | (uint32_t)v[3] << 16);
    *(uint2 *)(a.rounded + t * a.D + i) = make_uint2(rounded[0] | (uint32_t)rounded[1] << 16, rounded[2] | (uint32_t)rounded[3] << 16);
}

__global__ void __launch_bounds__(THREADS) rmsnorm_kernel(uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t n,
                                                          float eps)
{
    extern __shared__ uint16_t row[];
    __shared__ float sums[ROW_SUMS];
    const int64_t t = blockIdx.x;
    take_over();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[t * n + i];
    __syncthreads();
    norm_row(y + t * n, rounded ? rounded + t * n : NULL, row, w, n, eps, sums);
}

__global__ void expand_kernel(uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t D)
{
    const int64_t t = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= D) return;
    float h[S];
    const float v = from_bf16(y[t * D + i]);
    for (int j = 0; j < S; j++) h[j] = from_bf16(H[(t * S + j) * D + i]);
    for (int k = 0; k < S; k++) {
        float sum = comb[t * 16 + k] * h[0];
        for (int j = 1; j < S; j++) sum = fmaf(comb[t * 16 + S * j + k], h[j], sum);
        H[(t * S + k) * D + i] = to_bf16(fmaf(post[t * S + k], v, sum));
    }
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

__global__ void __launch_bounds__(WIDE) engram_gate_kernel(uint16_t *H, const uint16_t *kv, const float *qk, int64_t D, float eps)
{
    __shared__ float sums[ROW_SUMS];
    const int64_t t = blockIdx.x / S, j = blockIdx.x % S;
    uint16_t *h = H + (t * S + j) * D;
    const uint16_t *key = kv + (t * (S + 1) + j) * D, *value = kv + (t * (S + 1) + S) * D;
    const float *w = qk + j * D;
    const float hh = row_sum(sums, D, [&](int64_t i, float v) { return fmaf(from_bf16(h[i]), from_bf16(h[i]), v); });
    const float kk = row_sum(sums, D, [&](int64_t i, float v) { return fmaf(from_bf16(key[i]), from_bf16(key[i]), v); });
    const float dot = row_sum(sums, D, [&](int64_t i, float v) { return fmaf(from_bf16(h[i]) * w[i], from_bf16(key[i]), v); });
    const float r = bl_rsqrt(hh / (float)D + eps) * bl_rsqrt(kk / (float)D + eps);
    const float v = dot * r * (float)(1.0 / sqrt((double)D));
    const float size = fabsf(v) > 1e-6f ? fabsf(v) : 1e-6f;
    const float gate = bl_sigmoid(copysignf(sqrtf(size), v));
    for (int64_t i = threadIdx.x; i < D; i += blockDim.x) h[i] = to_bf16(from_bf16(h[i]) + gate * from_bf16(value[i]));
}

} // namespace bl

using namespace bl;

void bl_cuda_embed(bl_cuda_stream s, uint16_t *x, const uint16_t *table, const int32_t *ids, int64_t first, int64_t count, int64_t T,
                   int64_t D)
{
    embed_kernel<<<(unsigned)T, THREADS, 0, s>>>(x, table, ids, first, count, D);
}

void bl_cuda_fan_out(bl_cuda_stream s, uint16_t *H, float *pre, const uint16_t *x, int64_t T, int64_t D)
{
    fan_out_kernel<<<(unsigned)T, THREADS, 0, s>>>(H, pre, x, D);
}

void bl_cuda_mix(bl_cuda_stream s, float *pre, float *post, float *comb, const float *parts, const uint16_t *H, const float *scale3,
                 const float *base24, int64_t T, int64_t D, float eps_rms, float eps, int iters)
{
    mix_kernel<<<(unsigned)T, WIDE, 0, s>>>(pre, post, comb, parts, H, scale3, base24, T, D, eps_rms, eps, iters);
}

void bl_cuda_collapse(bl_cuda_stream s, uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre, const uint16_t *norm,
                      const int64_t *tokens, int64_t n, int64_t D, float eps)
{
    collapse_kernel<<<(unsigned)n, WIDE, D * 2, s>>>(x, rounded, H, pre, norm, tokens, D, eps);
}

void bl_cuda_expand(bl_cuda_stream s, uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t T, int64_t D)
{
    expand_kernel<<<dim3(blocks_of(D, THREADS), (unsigned)T), THREADS, 0, s>>>(H, y, post, comb, D);
}

void bl_cuda_advance_streams(bl_cuda_stream s, const bl_cuda_advance *a)
{
    const unsigned parts = blocks_of(a->D, 4 * THREADS); /* MOST_PARTS at most: hidden sizes are limited */
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = parts;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)a->T * parts);
    config.blockDim = dim3(THREADS);
    config.stream = s;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, advance_kernel, *a);
}

void bl_cuda_to_bf16(bl_cuda_stream s, uint16_t *y, const float *x, int64_t n)
{
    to_bf16_kernel<<<blocks_of(n, 4 * THREADS), THREADS, 0, s>>>(y, x, n);
}

void bl_cuda_rmsnorm(bl_cuda_stream s, uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t rows, int64_t n,
                     float eps)
{
    launch_early(true, s, dim3((unsigned)rows), THREADS, n * 2, rmsnorm_kernel, y, rounded, x, w, n, eps);
}

void bl_cuda_round_fp8(bl_cuda_stream s, uint16_t *y, const uint16_t *x, int64_t ldx, int64_t rows, int64_t n)
{
    launch_early(true, s, dim3(blocks_of(n, THREADS), (unsigned)rows), THREADS, 0, round_kernel, y, x, ldx, n);
}

void bl_cuda_engram_rows(bl_cuda_stream s, uint16_t *e, const uint8_t *codes, const uint8_t *scale, int64_t rows, int64_t width)
{
    engram_rows_kernel<<<blocks_of(rows * width, THREADS), THREADS, 0, s>>>(e, codes, scale, rows * width);
}

void bl_cuda_engram_gate(bl_cuda_stream s, uint16_t *H, const uint16_t *kv, const float *qk, int64_t T, int64_t D, float eps)
{
    engram_gate_kernel<<<(unsigned)(T * S), WIDE, 0, s>>>(H, kv, qk, D, eps);
}
