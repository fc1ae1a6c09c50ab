/* Coefficients of a token's mixing from the products of its segments: by a block, of a kernel of its own or of one that has blocks to
 * spare. Sinkhorn is a chain of 40 divisions, so everything before it is read at once. */
#ifndef BL_KERNELS_CUDA_MIXING_CUH
#define BL_KERNELS_CUDA_MIXING_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

enum { MIX = S * (2 + S), SEGMENT = BL_DOT_SEGMENT, ROW_PART = BL_CUDA_ROW_SEGMENT, MIX_THREADS = 512 };

struct mix_args {
    float *pre, *post, *comb;
    const uint16_t *H;
    const float *scale3, *base24, *parts;
    int64_t T, n; /* n = 4 D */
    float eps_rms, eps;
    int iters;
};

static inline mix_args args_of(const bl_cuda_mixing *m)
{
    return {m->pre, m->post, m->comb, m->H, m->scale3, m->base24, m->parts, m->T, S * m->D, m->eps_rms, m->eps, m->iters};
}

/* ---- Sinkhorn: 16 lanes have the elements of a comb, half a warp each of the same token or of two. N tokens at once. */

__device__ __forceinline__ float sum_row(float c)
{
    const int base = threadIdx.x & 28;
    return ((__shfl_sync(~0u, c, base) + __shfl_sync(~0u, c, base + 1)) + __shfl_sync(~0u, c, base + 2)) + __shfl_sync(~0u, c, base + 3);
}

__device__ __forceinline__ float sum_column(float c)
{
    const int base = threadIdx.x & 19;
    return ((__shfl_sync(~0u, c, base) + __shfl_sync(~0u, c, base + 4)) + __shfl_sync(~0u, c, base + 8)) + __shfl_sync(~0u, c, base + 12);
}

/* x / y for plain x and y, rounded as division rounds, without its test and branch. The approximation is within 2 ulp; two steps make it
 * the reciprocal to the bit (for all mantissas of y that plain ones have), by which two steps make the quotient exact. */
__device__ __forceinline__ float divide_plain(float x, float y)
{
    float r = approximate_reciprocal(y);
    r = fmaf(r, fmaf(-y, r, 1.0f), r);
    float q = x * r;
    r = fmaf(r, fmaf(-y, r, 1.0f), r); /* meanwhile */
    q = fmaf(fmaf(-y, q, x), r, q);
    return fmaf(fmaf(-y, q, x), r, q);
}

/* Far from the ends of the range, and not of the mantissa whose reciprocal takes another step. */
__device__ __forceinline__ bool is_plain(float x)
{
    return (x >= 0x1p-60f) & (x <= 0x1p60f) & ((__float_as_uint(x) & 0x7fffff) != 0x7fffff);
}

/* Both normalisations, so often; false where PLAIN and some number was not: c is then of no use. */
template <bool PLAIN, int N> __device__ __forceinline__ bool normalise(float c[N], float eps, int times)
{
    bool plain = true;
    const auto divide = [&](float x, float y) {
        if (!PLAIN) return x / y;
        plain &= is_plain(x) & is_plain(y);
        return divide_plain(x, y);
    };
#pragma unroll 1
    for (int i = 0; i < times; i++) {
#pragma unroll
        for (int n = 0; n < N; n++) c[n] = divide(c[n], sum_row(c[n]) + eps);
#pragma unroll
        for (int n = 0; n < N; n++) c[n] = divide(c[n], sum_column(c[n]) + eps);
    }
    return !PLAIN || __all_sync(~0u, plain);
}

template <int N> __device__ __forceinline__ void sinkhorn(float c[N], float eps, int iters)
{
    float start[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        float most = __shfl_sync(~0u, c[n], threadIdx.x & 28);
        for (int k = 1; k < S; k++) {
            const float x = __shfl_sync(~0u, c[n], (threadIdx.x & 28) + k);
            if (x > most) most = x;
        }
        c[n] = bl_exp(c[n] - most);
        c[n] = c[n] / sum_row(c[n]) + eps;
        c[n] = c[n] / (sum_column(c[n]) + eps);
        start[n] = c[n];
    }
    if (normalise<true, N>(c, eps, iters - 1)) return;
#pragma unroll
    for (int n = 0; n < N; n++) c[n] = start[n];
    normalise<false, N>(c, eps, iters - 1);
}

/* ---- sums */

__device__ __forceinline__ float scale_of_row(const mix_args &a, float squares)
{
    return bl_rsqrt(squares / (float)a.n + a.eps_rms);
}

/* Sum of squares of a row's stretch of ROW_PART elements, by eight lanes that have two of its sixteen sums each: as row_sum. */
__device__ __forceinline__ float squares_of_part(const uint16_t *h, int from, int n)
{
    enum { STEPS = ROW_PART / 16 };
    uint32_t w[STEPS];
    const int at = from + 2 * (threadIdx.x % 8);
#pragma unroll
    for (int i = 0; i < STEPS; i++) w[i] = at + 16 * i < n ? *(const uint32_t *)(h + at + 16 * i) : 0;
    float even = 0, odd = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const float x = __uint_as_float(w[i] << 16), y = __uint_as_float(w[i] & 0xffff0000);
        even = fmaf(x, x, even);
        odd = fmaf(y, y, odd);
    }
#pragma unroll
    for (int m = 4; m; m /= 2) {
        even = even + __shfl_xor_sync(~0u, even, m);
        odd = odd + __shfl_xor_sync(~0u, odd, m);
    }
    return even + odd;
}

/* ---- a token, by a block of MIX_THREADS */

enum { MIX_SEGMENTS = BL_CUDA_MAX_ROW / 2 / SEGMENT /* at most */, SQUARE_WARPS = 10 /* four stretches each at a time */ };

struct mix_shared {
    float part[MIX_SEGMENTS][MIX], squares[ROW_SUMS];
};

/* Warps from SQUARE_WARPS on: segments' products to shared memory. */
__device__ __forceinline__ void fetch_parts(mix_shared &s, const mix_args &a, int64_t t, int segments)
{
    enum { QUADS = MIX / 4, FETCHERS = MIX_THREADS - SQUARE_WARPS * WARP, EACH = 3 };
    for (int base = (int)threadIdx.x - SQUARE_WARPS * WARP; base < segments * QUADS; base += EACH * FETCHERS) {
        float4 v[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = base + e * FETCHERS;
            if (i < segments * QUADS) v[e] = *(const float4 *)(a.parts + (i / QUADS * a.T + t) * MIX + i % QUADS * 4);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = base + e * FETCHERS;
            if (i < segments * QUADS) *(float4 *)&s.part[i / QUADS][i % QUADS * 4] = v[e];
        }
    }
}

/* In a kernel that may begin early: waits for the one before. */
__device__ __forceinline__ void mix_token(const mix_args &a, int64_t t)
{
    __shared__ __align__(16) mix_shared s;
    const uint16_t *const h = a.H + t * a.n;
    const int segments = (int)((a.n + SEGMENT - 1) / SEGMENT), stretches = (int)((a.n + ROW_PART - 1) / ROW_PART);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = warp == 0 ? 2 * S + lane % 16 : lane % (2 * S); /* the first warp makes the comb, the second the gates */
    const float scale = a.scale3[row / S < 2 ? row / S : 2], base = a.base24[row];
    take_over();
    if (warp < SQUARE_WARPS) {
        for (int from = warp * 4; from < stretches; from += SQUARE_WARPS * 4) {
            const int mine = from + lane / 8;
            const float sum = squares_of_part(h, mine * ROW_PART, (int)a.n);
            if (lane % 8 == 0 && mine < stretches) s.squares[mine] = sum;
        }
    } else {
        fetch_parts(s, a, t, segments);
    }
    __syncthreads();
    if (warp >= 2) return;
    float dot = 0, total = 0;
#pragma unroll 16
    for (int k = 0; k < segments; k++) dot += s.part[k][row];
#pragma unroll 8
    for (int k = 0; k < stretches; k++) total += s.squares[k];
    const float x = dot * scale_of_row(a, total) * scale + base;
    if (warp == 1) {
        if (lane < S) a.pre[t * S + lane] = bl_sigmoid(x) + a.eps;
        else if (lane < 2 * S) a.post[t * S + lane - S] = 2.0f * bl_sigmoid(x);
        return;
    }
    float c[1] = {x}; /* the upper half does the same and writes nothing */
    sinkhorn<1>(c, a.eps, a.iters);
    if (lane < 16) a.comb[t * 16 + lane] = c[0];
}

} // namespace bl

#endif
