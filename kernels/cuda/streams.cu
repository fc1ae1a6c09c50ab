/* Residual streams, norms, roundings, Engram: a block for each row. */
#include "kernels/cuda/copies.cuh"

namespace bl {

enum {
    THREADS = 256, WIDE = 1024 /* threads of a block that has a whole row */, MOST_PARTS = 8 /* blocks of a cluster */,
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

/* Four neighbours of a row of bf16. */
struct four {
    float v[4];
};

__device__ __forceinline__ four unpack_four(uint2 w)
{
    return {{__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000), __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000)}};
}

__device__ __forceinline__ four load_four(const uint16_t *p)
{
    return unpack_four(*(const uint2 *)p);
}

__device__ __forceinline__ uint2 pack_four(const float v[4])
{
    return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
}

/* The fp8 rounding of four of a group of 32 bf16, whose others the eight neighbouring lanes have: all of them here. */
__device__ __forceinline__ uint2 round_four(uint2 x)
{
    const unsigned group = 0xffu << threadIdx.x % WARP / 8 * 8;
    uint32_t most = __vmaxu2(x.x & 0x7fff7fff, x.y & 0x7fff7fff);
    for (int m = 4; m; m /= 2) most = __vmaxu2(most, __shfl_xor_sync(group, most, m));
    most = (most & 0xffff) > most >> 16 ? most & 0xffff : most >> 16;
    const uint8_t scale = scale_of(most, 1e-4f, 1.0f / 448.0f);
    if (scale == 255) return make_uint2(0x7fc07fc0, 0x7fc07fc0);
    const float inverse = e8m0(254 - scale); /* exact: a power of two */
    const four v = unpack_four(x);
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v.v[1] * inverse), "f"(v.v[0] * inverse));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v.v[3] * inverse), "f"(v.v[2] * inverse));
    return decode_fp8(low | (uint32_t)high << 16, scale_bf16x2(scale));
}

/* Four columns of y = w * (x * r), and their fp8 rounding (rounded NULL: none). */
__device__ __forceinline__ void norm_four(uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, float r)
{
    const four from = load_four(x), by = load_four(w);
    float v[4];
    for (int e = 0; e < 4; e++) v[e] = by.v[e] * (from.v[e] * r);
    const uint2 z = pack_four(v);
    *(uint2 *)y = z;
    if (rounded) *(uint2 *)rounded = round_four(z);
}

/* y = rmsnorm of the n values in row (shared), and their fp8 rounding (NULL: none). Ends without a barrier. */
__device__ __forceinline__ void norm_row(uint16_t *y, uint16_t *rounded, const uint16_t *row, const uint16_t *w, int64_t n, float eps,
                                         float *sums)
{
    const float sum = row_sum(sums, n, [&](int64_t i, float v) { return fmaf(from_bf16(row[i]), from_bf16(row[i]), v); });
    const float r = bl_rsqrt(sum / (float)n + eps);
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) norm_four(y + i, rounded ? rounded + i : NULL, row + i, w + i, r);
}

enum { COLLAPSE = 640 /* threads: four columns of 2560 at a time */ };

__global__ void __launch_bounds__(COLLAPSE) collapse_kernel(uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre,
                                                            const uint16_t *norm, const int64_t *tokens, int64_t D, float eps)
{
    extern __shared__ __align__(16) uint16_t row[];
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

/* Expands four columns of token t from i on; returns them collapsed. */
__device__ __forceinline__ uint2 expand_and_collapse(const bl_cuda_advance &a, int64_t t, int64_t i)
{
    uint16_t *h = a.H + t * S * a.D + i;
    four from[S];
#pragma unroll
    for (int j = 0; j < S; j++) from[j] = load_four(h + j * a.D);
    return expand_four(h, a.D, from, sublayer_sum(a, t, i), a.post + t * S, a.comb + t * S * S, a.pre + t * S);
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
    if (i < a.D) /* whole groups of 32 columns */
        norm_four(a.x + t * a.D + i, a.rounded + t * a.D + i, row + 4 * threadIdx.x, a.norm + i,
                  bl_rsqrt(total / (float)a.D + a.eps));
}

/* The same, a block for each token, whose streams come to shared memory first: many bytes under way in few registers. */
__global__ void __launch_bounds__(THREADS, 3) advance_many_kernel(bl_cuda_advance a)
{
    extern __shared__ __align__(16) uint16_t h[]; /* [S][D]; the collapsed row takes the place of the first stream's */
    __shared__ float sums[ROW_SUMS], post[S], comb[S * S], pre[S];
    const int64_t t = blockIdx.x, D = a.D;
    uint16_t *const out = a.H + t * S * D;
    for (int64_t i = 8 * threadIdx.x; i < S * D; i += 8 * THREADS) copy_sixteen(shared_at(h + i), out + i, true);
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
    extern __shared__ __align__(16) uint16_t row[];
    __shared__ float sums[ROW_SUMS];
    const int64_t t = blockIdx.x;
    take_over();
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[t * n + i];
    __syncthreads();
    norm_row(y + t * n, rounded ? rounded + t * n : NULL, row, w, n, eps, sums);
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

void bl_cuda_collapse(bl_cuda_stream s, uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre, const uint16_t *norm,
                      const int64_t *tokens, int64_t n, int64_t D, float eps)
{
    collapse_kernel<<<(unsigned)n, COLLAPSE, D * 2, s>>>(x, rounded, H, pre, norm, tokens, D, eps);
}

void bl_cuda_expand(bl_cuda_stream s, uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t T, int64_t D)
{
    expand_kernel<<<dim3(blocks_of(D, 4 * THREADS), (unsigned)T), THREADS, 0, s>>>(H, y, post, comb, D);
}

void bl_cuda_advance_streams(bl_cuda_stream s, const bl_cuda_advance *a)
{
    const unsigned parts = blocks_of(a->D, 4 * THREADS); /* MOST_PARTS at most: hidden sizes are limited */
    if (a->T >= MANY) {
        cudaFuncSetAttribute(advance_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(S * a->D * 2));
        advance_many_kernel<<<(unsigned)a->T, THREADS, S * a->D * 2, s>>>(*a);
        return;
    }
    launch_clusters(parts, s, (unsigned)a->T, THREADS, advance_kernel, *a);
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
