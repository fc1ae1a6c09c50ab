/* From a block's scores to its values, by two warpgroups: each makes the weights of every other eight slots, and has columns of its own. */
#ifndef BL_KERNELS_CUDA_SM90_ATTENTION_SOFTMAX_CUH
#define BL_KERNELS_CUDA_SM90_ATTENTION_SOFTMAX_CUH

#include "kernels/cuda/sm90/attention_output.cuh"

#ifdef BL_HOPPER
namespace bl {

/* bl_exp where x is at most 0; NORMAL: where the result is normal too, so that its last steps are one, the exponent's. */
template <bool NORMAL> __device__ __forceinline__ float exp_negative(float x)
{
    if (!NORMAL) x = BL_EXP_LOW > x ? BL_EXP_LOW : x;
    const float z = fmaf(x, BL_LOG2E, BL_ROUND_MAGIC), n = z - BL_ROUND_MAGIC;
    float r = fmaf(n, -BL_LN2, x);
    r = fmaf(n, -BL_LN2_REST, r);
    float p = fmaf(BL_EXP_C6, r, BL_EXP_C5);
    p = fmaf(p, r, BL_EXP_C4);
    p = fmaf(p, r, BL_EXP_C3);
    p = fmaf(p, r, BL_EXP_C2);
    p = fmaf(p, r * r, r) + 1.0f;
    if (NORMAL) return __uint_as_float(__float_as_uint(p) + (__float_as_uint(z) << 23));
    const int k = __float_as_int(z) - __float_as_int(BL_ROUND_MAGIC), half = k >> 1;
    return p * __uint_as_float((uint32_t)(half + 127) << 23) * __uint_as_float((uint32_t)(k - half + 127) << 23);
}
#define LEAST_NORMAL (-87.0f)

/* A thread's rows, 16 w + g (h = 0) and + 8 (h = 1). */
struct softmax_rows {
    float peak[2], total[2];
};

/* Scores less their maximum become p in shared memory; sums of the thread's two lanes of each row. */
template <bool NORMAL>
__device__ __forceinline__ void weigh_slots(float (&lanes)[2][2], const float (&x)[MINE], uint32_t p, int half)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + g + 8 * h;
        const uint32_t at = p + row * SWIZZLE + ((half ^ row % 8) << 4) + 4 * t;
#pragma unroll
        for (int k = 0; k < MINE / 4; k++) {
            float e[2];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                e[b] = exp_negative<NORMAL>(x[4 * k + 2 * h + b]);
                lanes[h][b] = k == 0 ? e[b] : lanes[h][b] + e[b];
            }
            put_word(at ^ (2 * k << 4), pair_of<true>(e[0], e[1]));
        }
    }
}

/* A block's softmax step; fade: what accumulators fade by. */
__device__ __forceinline__ void softmax_block(softmax_state &sh, softmax_rows &r, float (&fade)[2], float (&lanes)[2][2], float (&x)[MINE],
                                              uint32_t p, uint64_t there, float scale, int half)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint64_t mine = there >> (2 * t + 8 * half); /* bits 16 k and 16 k + 1 */
    float most[2];
    bool normal = true; /* not with a NaN */
#pragma unroll
    for (int i = 0; i < MINE; i++) x[i] *= scale;
    if (there != ~0ull) {
#pragma unroll
        for (int i = 0; i < MINE; i++)
            if (!(mine >> (i / 4 * 16 + i % 2) & 1)) x[i] = -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = r.peak[h];
#pragma unroll
        for (int i = 0; i < MINE / 2; i++) {
            const float v = x[4 * (i / 2) + 2 * h + i % 2];
            most[h] = v > most[h] ? v : most[h];
        }
        for (int m = 1; m < 4; m *= 2) {
            const float other = __shfl_xor_sync(~0u, most[h], m);
            most[h] = other > most[h] ? other : most[h];
        }
        if (t == 0) sh.peak[half][16 * warp + g + 8 * h] = most[h];
    }
    named_sync(PEAKED, 2 * GROUP);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float other = sh.peak[1 - half][16 * warp + g + 8 * h];
        most[h] = other > most[h] ? other : most[h];
#pragma unroll
        for (int i = 0; i < MINE / 2; i++) {
            float &v = x[4 * (i / 2) + 2 * h + i % 2];
            v = v - most[h];
            normal = normal && v >= LEAST_NORMAL;
        }
        fade[h] = bl_exp(r.peak[h] - most[h]);
        r.peak[h] = most[h];
    }
    if (__all_sync(~0u, normal)) weigh_slots<true>(lanes, x, p, half);
    else weigh_slots<false>(lanes, x, p, half);
}

/* The block's sums in the order of ops.h: the other warpgroup has lanes 8 to 15 of the tree. */
__device__ __forceinline__ void add_sums(softmax_rows &r, const float (&fade)[2], const float (&lanes)[2][2], const float4 &theirs)
{
    const float other[2][2] = {{theirs.x, theirs.y}, {theirs.z, theirs.w}};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            x[b] = lanes[h][b] + other[h][b];
            for (int m = 2; m; m /= 2) x[b] = x[b] + __shfl_xor_sync(~0u, x[b], m);
        }
        r.total[h] = r.total[h] * fade[h] + (x[0] + x[1]);
    }
}

/* acc += p times a warpgroup's columns of the block's rows, which lie from v on; started. */
template <int N, int M> __device__ __forceinline__ void start_values(float (&acc)[N][M], uint32_t p, uint32_t v)
{
    const uint64_t weights = operand_by_rows(p), values = operand_by_columns(v, 1024, CHUNK_BYTES);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < SLOTS / 16; k++)
#pragma unroll
        for (int m = 0; m < N; m++)
            wgmma_ss<2 * M, 1>::run(acc[m], weights + 2 * k, values + m * (2 * M / TILE_K * CHUNK_BYTES >> 4) + k * (2 * 1024 >> 4), 1);
    wgmma_commit();
}

template <int N, int M> __device__ __forceinline__ void fade_values(float (&acc)[N][M], const float (&fade)[2])
{
#pragma unroll
    for (int k = 0; k < N * M; k++) acc[k % N][k / N] *= fade[k / N % 4 / 2];
}

} // namespace bl
#endif

#endif
