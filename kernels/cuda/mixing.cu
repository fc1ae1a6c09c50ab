/* Coefficients of the streams' mixing (ops_streams.c): 24 products with float32 weights and a sum of squares over all streams of a
 * token, then sigmoids and Sinkhorn. For few tokens the products are those of linear.cu and mixing.cuh adds their segments; for many one
 * kernel reads the streams once for both: sm90/mixing.cu, or the one here, whose block has 64 tokens and whose warps take stretches of 512
 * elements in turn. */
#include "kernels/cuda/mixing_many.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

__global__ void __launch_bounds__(MIX_THREADS) mix_kernel(mix_args a)
{
    mix_token(a, blockIdx.x);
}

/* ---- many tokens */

enum {
    SPLITS = 4, GROUPS = 2 /* of 32 tokens: a warp has one of each */, THREADS = SPLITS * GROUPS * WARP,
    PIECE = 64 /* elements of a warp's stretch that are copied at a time */, PIECES = ROW_PART / PIECE, STAGES = 3,
    H_BYTES = TOKENS * PIECE * 2, FN_BYTES = MIX * PIECE * 4, STAGE = SPLITS * (H_BYTES + FN_BYTES), /* streams first */
    SUMS = TOKENS * MIX, /* of a segment */
    SUM_FLOATS = SPLITS * 2 * SUMS, SHARED_BYTES = STAGES * STAGE + (SUM_FLOATS + SPLITS * TOKENS) * 4
};

/* What a thread copies of each piece: rows of 128 and 256 bytes, the sixteens of a row permuted so that reading fragments meets no
 * bank twice. */
struct fetcher {
    const uint16_t *h[2]; /* rows 32 apart, of every stretch */
    const float *fn;      /* every fourth row of one stretch */
    uint32_t h_to, fn_to;
    int fn_k, n;
    __device__ __forceinline__ fetcher(const mix_args &a, const float *weights, int64_t token)
    {
        const int ch = threadIdx.x % 8, row = threadIdx.x / 8, at = threadIdx.x % 16, split = threadIdx.x / 16 % SPLITS;
        for (int i = 0; i < 2; i++) {
            const int64_t t = token + row + 32 * i < a.T ? token + row + 32 * i : a.T - 1;
            h[i] = a.H + t * a.n + ch * 8;
        }
        n = (int)a.n;
        h_to = row * 128 + (ch ^ row % 8) * 16;
        fn_k = split * ROW_PART;
        fn = weights + (int64_t)(threadIdx.x / 64) * n + fn_k + at * 4;
        fn_to = SPLITS * H_BYTES + split * FN_BYTES + threadIdx.x / 64 * 256 + (at ^ threadIdx.x / 64 << 1) * 16;
    }
    /* Piece p of every stretch, of round p / PIECES; zeros behind the end. */
    __device__ __forceinline__ void fetch(uint32_t to, int p) const
    {
        const int k = p / PIECES * SPLITS * ROW_PART + p % PIECES * PIECE;
#pragma unroll
        for (int split = 0; split < SPLITS; split++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                copy_sixteen(to + h_to + split * H_BYTES + i * 32 * 128, h[i] + k + split * ROW_PART, k + split * ROW_PART < n);
        const float *w = fn + k;
#pragma unroll
        for (int i = 0; i < MIX / 4; i++, w += 4 * n) copy_sixteen(to + fn_to + i * 4 * 256, w, k + fn_k < n);
    }
};
static_assert(THREADS == 8 * WARP && TOKENS == 64, "what fetcher is made for");

/* Of a warp's 32 tokens: products of a segment with the 24 rows, and squares by lane of the row sums. */
struct sums_of_warp {
    float c[2][3][4], q[2][2][4];
};

/* A piece of a warp's stretch; h: its 32 rows, fn: the weights, in shared memory. */
__device__ __forceinline__ void add_piece(sums_of_warp &s, const uint8_t *h, const uint8_t *fn)
{
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t row = shared_address(h) + lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16;
    const uint8_t *const column = fn + g * 256;
    const int at = t * 8 ^ (g & 3) << 5;
#pragma unroll
    for (int step = 0; step < PIECE / BL_DOT_STEP; step++) {
        const fragment_a a[2] = {load_fragment(row ^ step * 32), load_fragment((row ^ step * 32) + 16 * 128)};
        uint2 b[3][3];
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float2 low = *(const float2 *)(column + j * 8 * 256 + (at ^ step * 64));
            float2 high = *(const float2 *)(column + j * 8 * 256 + (at ^ step * 64 ^ 32));
#pragma unroll
            for (int p = 0; p < 3; p++) b[p][j] = make_uint2(leading_pair(low.x, low.y), leading_pair(high.x, high.y));
        }
#pragma unroll
        for (int p = 2; p >= 0; p--)
#pragma unroll
            for (int j = 0; j < 3; j++)
#pragma unroll
                for (int m = 0; m < 2; m++) mma(s.c[m][j], a[m], b[p][j]);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) add_squares(s.q[m][half], a[m].r[half], a[m].r[half + 2]);
    }
}

/* A segment's products to sums [TOKENS][MIX], from tokens `first` on. */
__device__ __forceinline__ void put_products(float *sums, sums_of_warp &s, int first)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float *c = s.c[m][j], *to = sums + (first + 16 * m + g) * MIX + 8 * j + 2 * t;
            *(float2 *)to = make_float2(c[0], c[1]);
            *(float2 *)(to + 8 * MIX) = make_float2(c[2], c[3]);
            c[0] = c[1] = c[2] = c[3] = 0;
        }
}

__device__ __forceinline__ void put_squares(float *sums, sums_of_warp &s, int first)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *q = s.q[m][half];
            const float total = sum_of_squares(q);
            if (t == 0) sums[first + 16 * m + 8 * half + g] = total;
            q[0] = q[1] = q[2] = q[3] = 0;
        }
}

__global__ void __launch_bounds__(THREADS, 1) mix_many_kernel(mix_args a, const float *fn)
{
    enum { COUNT = SUMS / THREADS };
    BL_DYNAMIC_SHARED(uint8_t, memory, 128);
    float *const sums = (float *)(memory + STAGES * STAGE), *const squares = sums + SUM_FLOATS;
    const int64_t token = (int64_t)blockIdx.x * TOKENS;
    const int split = threadIdx.x / WARP / GROUPS, first = threadIdx.x / WARP % GROUPS * 32;
    const int pieces = (int)((a.n + SPLITS * ROW_PART - 1) / (SPLITS * ROW_PART)) * PIECES;
    sums_of_warp s = {};
    float dots[COUNT] = {}, square = 0;
    const auto add_round = [&] { /* segments ascending */
#pragma unroll 2
        for (int h = 0; h < 2 * SPLITS; h++)
#pragma unroll
            for (int i = 0; i < COUNT; i++) dots[i] += sums[h * SUMS + i * THREADS + threadIdx.x];
        for (int h = 0; h < SPLITS && threadIdx.x < TOKENS; h++) square += squares[h * TOKENS + threadIdx.x];
    };
    const fetcher copies(a, fn, token);
    for (int p = 0; p < STAGES - 1; p++) {
        copies.fetch(shared_address(memory + p * STAGE), p);
        copies_end_group();
    }
    for (int p = 0, stage = 0; p < pieces; p++, stage = stage == STAGES - 1 ? 0 : stage + 1) {
        copies_wait_for<STAGES - 2>();
        __syncthreads(); /* the piece is there, and the stage before it is free */
        if (p + STAGES - 1 < pieces) copies.fetch(shared_address(memory + (stage ? stage - 1 : STAGES - 1) * STAGE), p + STAGES - 1);
        copies_end_group();
        if (p > 0 && p % PIECES == 0) add_round();
        const uint8_t *h = memory + stage * STAGE;
        add_piece(s, h + split * H_BYTES + first * 128, h + SPLITS * H_BYTES + split * FN_BYTES);
        if (p % PIECES == PIECES / 2 - 1) put_products(sums + 2 * split * SUMS, s, first);
        if (p % PIECES == PIECES - 1) {
            put_products(sums + (2 * split + 1) * SUMS, s, first);
            put_squares(squares + split * TOKENS, s, first);
        }
    }
    __syncthreads();
    add_round();
    __syncthreads();
    for (int i = 0; i < COUNT; i++) sums[i * THREADS + threadIdx.x] = dots[i];
    if (threadIdx.x < TOKENS) squares[threadIdx.x] = square;
    __syncthreads();
    finish<THREADS>(a, token, sums, squares);
}

} // namespace bl

using namespace bl;

void bl_cuda_mix(bl_cuda_stream s, const bl_cuda_mixing *m)
{
    launch_plain(s, (unsigned)m->T, MIX_THREADS, 0, mix_kernel, args_of(m));
}

bool bl_cuda_mix_many(bl_cuda_stream s, const bl_cuda_mixing *m)
{
    if (m->T < BL_CUDA_MIX_MANY) return false;
    if (bl_cuda_mix_tiles(s, m)) return true;
    cudaFuncSetAttribute(mix_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    launch_plain(s, blocks_of(m->T, TOKENS), THREADS, SHARED_BYTES, mix_many_kernel, args_of(m), m->fn);
    return true;
}
