/* Attention over packed rows: positions, window rows, the sparse product.
 *
 * The sparse product's order: list and blocks of 64 slots as in kernels/ops.h; a score is a product of dot.h over d, times scale; the
 * denominator of a block is ops.h's; the value product continues the accumulator (faded first) through the block's four k16 steps,
 * slots ascending. Holes are rows of zeros with p = 0. */
#include "kernels/cuda/mixing.cuh"
#include "kernels/cuda/slots.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/sm90/many.h"
#include "kernels/cuda/window.cuh"

namespace bl {

enum {
    THREADS = 256, HEADS = BL_CUDA_HEAD_TILE, SLOTS = BL_ATTN_BLOCK, PAD = 8, VALUE_THREADS = HEADS * WARP,
    NARROW = 32 /* columns of a slice for a few tokens */, MOST_SHARED = 200 << 10, AHEAD = 5 /* blocks whose scores are loaded together */,
    TILES = BL_CUDA_MAX_HEAD_DIM / 8 / HEADS /* of 8 columns a warp of values_kernel has at most */
};

__global__ void rotations_kernel(bl_cuda_tables t, const float *frequency, int half)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= t.tokens * half) return;
    for (int k = 0; k < 2; k++) ((float2 *)t.rotation[k])[i] = rotation_of(t.position[i / half], frequency[k * half + i % half]);
}

__global__ void rope_kernel(uint16_t *q, const float *rotation, int64_t heads, int64_t d, int64_t R)
{
    take_over();
    rotate_query(q, rotation, heads, d, R, blockIdx.y, (int64_t)blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void __launch_bounds__(THREADS) window_rows_kernel(window_args w)
{
    make_window_row(w, blockIdx.x);
}

__global__ void store_window_kernel(bl_cuda_tables t, const uint8_t *kv, int64_t d, int64_t ring, int64_t layer_offset)
{
    const int64_t i = blockIdx.x, bytes = window_bytes(d);
    start_next();
    const bl_cuda_span *s = &t.spans[t.span_of[i]];
    if (i < s->first + s->count - ring) return; /* overwritten by a later token */
    uint8_t *out = ring_row(s, layer_offset, t.position[i], ring, d);
    for (int64_t k = threadIdx.x; k < bytes; k += blockDim.x) out[k] = kv[i * bytes + k];
}

/* ---- sparse product */

/* n bytes at any address, n 8 or 16; as one load where the address allows. */
template <int N> __device__ __forceinline__ void load_bytes(uint32_t w[N / 4], const uint8_t *p)
{
    if (((uintptr_t)p & (N - 1)) == 0) {
        if (N == 16) *(uint4 *)w = *(const uint4 *)p;
        else *(uint2 *)w = *(const uint2 *)p;
        return;
    }
    for (int i = 0; i < N / 4; i++, p += 4) w[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Sixteen elements of a packed row, which share a scale, as bf16: they lie in out, 16-byte aligned. A NULL row gives zeros. */
__device__ __forceinline__ void decode16(uint16_t *out, const uint8_t *row, bool window, int64_t i, int64_t d)
{
    uint32_t w[4] = {0, 0, 0, 0}, v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row && window) {
        const uint8_t byte = row[d + i / 32];
        const uint32_t s = scale_bf16x2(byte);
        load_bytes<16>(w, row + i);
        for (int k = 0; k < 4; k++) {
            const uint2 x = decode_fp8(w[k], s);
            v[2 * k] = x.x, v[2 * k + 1] = x.y;
        }
        if (byte == 255)
            for (int k = 0; k < 8; k++) v[k] = 0x7fc07fc0;
    } else if (row) {
        const float f = e4m3(row[d / 2 + i / 16]);
        const uint32_t s = to_bf16(f) * 0x10001u; /* an e4m3 value is a bf16 */
        load_bytes<8>(w, row + i / 2);
        for (int k = 0; k < 2; k++) {
            const uint2 x = decode_fp4(w[k], s), y = decode_fp4(w[k] >> 16, s);
            v[4 * k] = x.x, v[4 * k + 1] = x.y, v[4 * k + 2] = y.x, v[4 * k + 3] = y.y;
        }
        if (f != f)
            for (int k = 0; k < 8; k++) v[k] = 0x7fc07fc0;
    }
    ((uint4 *)out)[0] = make_uint4(v[0], v[1], v[2], v[3]);
    ((uint4 *)out)[1] = make_uint4(v[4], v[5], v[6], v[7]);
}

/* Scores of the warp's 8 slots with the block's 16 heads. */
__device__ __forceinline__ void score_slots(float total[4], const uint16_t *q, const uint16_t *rows, int64_t d)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, warp = threadIdx.x / WARP;
    const int64_t stride = d + PAD;
    for (int i = 0; i < 4; i++) total[i] = 0;
    for (int64_t k0 = 0; k0 < d; k0 += BL_DOT_SEGMENT) {
        float c[4] = {0, 0, 0, 0};
        const int64_t end = k0 + BL_DOT_SEGMENT < d ? k0 + BL_DOT_SEGMENT : d;
        for (int64_t k = k0 + 4 * t; k < end; k += 16) {
            const uint2 low = *(const uint2 *)(q + g * stride + k), high = *(const uint2 *)(q + (g + 8) * stride + k);
            const fragment_a a = {{low.x, high.x, low.y, high.y}};
            mma(c, a, *(const uint2 *)(rows + (8 * warp + g) * stride + k));
        }
        for (int i = 0; i < 4; i++) total[i] += c[i];
    }
}

/* Scores of a block of slots with tiles of 16 heads, to a.scores; also writes the slots' rows, for the values. */
__global__ void __launch_bounds__(THREADS) slot_scores_kernel(bl_cuda_attention a, bl_cuda_tables tables, int64_t first)
{
    BL_DYNAMIC_SHARED(uint16_t, shared, 16);
    __shared__ const uint8_t *row[SLOTS]; /* NULL: a hole */
    const int64_t d = a.d, stride = d + PAD, at = blockIdx.x, token = first + at, slots = attended(a), from = (int64_t)blockIdx.y * SLOTS;
    const int64_t padded = (slots + SLOTS - 1) / SLOTS * SLOTS, tiles = (a.heads + HEADS - 1) / HEADS;
    const int warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, parts = (int)(d / 16), vectors = (int)(d / 8);
    const bool late = a.fresh && from + SLOTS > a.window; /* which slots are taken is the kernel before's choice */
    uint16_t *q = shared, *rows = shared + HEADS * stride;
    if (late) wait_for_last();
    start_next(); /* the values then find the choice made */
    const uint8_t *mine = NULL;
    if (threadIdx.x < SLOTS) {
        if (from + threadIdx.x < slots) {
            const int slot = (int)from + threadIdx.x, entry = selected_entry(a, token, slot);
            mine = slot_row(a, rows_of(a, tables, token), slot, entry);
        }
        row[threadIdx.x] = mine;
    }
    const bool any = __syncthreads_or(mine != NULL);
#pragma unroll 4
    for (int i = threadIdx.x; any && i < SLOTS * parts; i += THREADS)
        decode16(rows + i / parts * stride + i % parts * 16, row[i / parts], from + i / parts < a.window, i % parts * 16, d);
    if (!late) wait_for_last(); /* until here all but the queries */
    if (!any) return;
    for (int64_t tile = blockIdx.z; tile < tiles; tile += gridDim.z) {
        const int64_t head0 = tile * HEADS;
#pragma unroll 4
        for (int i = threadIdx.x; i < HEADS * vectors; i += THREADS) {
            const uint4 *at = (const uint4 *)(a.q + (token * a.heads + head0) * d) + i;
            *(uint4 *)(q + i / vectors * stride + i % vectors * 8) = head0 + i / vectors < a.heads ? *at : make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
        float s[4];
        score_slots(s, q, rows, d);
        for (int h = 0; h < 2; h++) {
            const int slot = 8 * warp + 2 * t;
            float2 *out = (float2 *)(a.scores + (at * tiles * HEADS + head0 + g + 8 * h) * padded + from + slot);
            *out = make_float2(row[slot] ? s[2 * h] * a.scale : -INFINITY, row[slot + 1] ? s[2 * h + 1] * a.scale : -INFINITY);
        }
        __syncthreads();
    }
}

/* One head's softmax step over a block: s becomes p in bf16; returns what its accumulators fade by. A warp each. */
__device__ __forceinline__ float softmax_step(uint16_t *p, float low, float high, float &peak, float &total)
{
    const int lane = threadIdx.x % WARP;
    float most = low > high ? low : high;
    for (int m = WARP / 2; m; m /= 2) {
        const float other = __shfl_xor_sync(~0u, most, m);
        most = other > most ? other : most;
    }
    most = most > peak ? most : peak;
    const float fade = bl_exp(peak - most);
    low = bl_exp(low - most);
    high = bl_exp(high - most);
    const float low16 = __shfl_down_sync(~0u, low, 16), high16 = __shfl_down_sync(~0u, high, 16);
    const float sum = __shfl_sync(~0u, lane_tree(((low + low16) + high) + high16), 0);
    total = total * fade + sum;
    peak = most;
    p[lane] = to_bf16(low);
    p[lane + 32] = to_bf16(high);
    return fade;
}

/* Shared memory of values_kernel, in order: rows of two blocks (or of all), p of all slots, the slots' rows, fades, which blocks count. */
struct value_layout {
    int64_t p, rows, fade, any, bytes;
};

__host__ __device__ __forceinline__ value_layout lay_out_values(int64_t padded, int64_t slice, bool whole)
{
    value_layout l;
    l.p = (whole ? padded : 2 * SLOTS) * (slice + PAD) * 2;
    l.rows = l.p + HEADS * (padded + PAD) * 2;
    l.fade = l.rows + padded * 8;
    l.any = l.fade + padded / SLOTS * HEADS * 4;
    l.bytes = l.any + padded / SLOTS * 4;
    return l;
}

/* From scores to values: 16 heads of a token, a slice of their columns. Every slice repeats the softmax. It begins beside the scores, with
 * the rows: WHOLE decodes all of them, so that their loads are under way together. A slice more, where there is one, makes the coefficients of
 * the mixing. */
template <bool WHOLE>
__global__ void __launch_bounds__(VALUE_THREADS) values_kernel(bl_cuda_attention a, bl_cuda_tables tables, int64_t first, int64_t slice,
                                                               mix_args mixing)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    __shared__ float denominator[HEADS];
    if (blockIdx.z * slice >= a.d) {
        if (blockIdx.y == 0) mix_token(mixing, first + blockIdx.x);
        return;
    }
    const int64_t d = a.d, token = first + blockIdx.x, head0 = (int64_t)blockIdx.y * HEADS, col0 = (int64_t)blockIdx.z * slice;
    const int64_t padded = (attended(a) + SLOTS - 1) / SLOTS * SLOTS, stride = slice + PAD, pitch = padded + PAD;
    const int blocks = (int)(padded / SLOTS), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const value_layout l = lay_out_values(padded, slice, WHOLE);
    uint16_t *values = (uint16_t *)memory, *p = (uint16_t *)(memory + l.p);
    const uint8_t **row = (const uint8_t **)(memory + l.rows);
    float *fade = (float *)(memory + l.fade);
    int *any = (int *)(memory + l.any);
    for (int i = threadIdx.x; i < blocks; i += VALUE_THREADS) any[i] = 0;
    __syncthreads();
    const token_rows found = rows_of(a, tables, token);
    for (int i = threadIdx.x; i < padded; i += VALUE_THREADS) {
        row[i] = i < attended(a) ? slot_row(a, found, i, selected_entry(a, token, i)) : NULL;
        if (row[i]) atomicOr(&any[i / SLOTS], 1);
    }
    __syncthreads();
    const int width = (int)(col0 + slice < d ? slice : d - col0), parts = width / 16;
    const auto decode_rows = [&](uint16_t *out, int from, int n) {
#pragma unroll 4
        for (int i = threadIdx.x; i < n * parts; i += VALUE_THREADS) {
            const int slot = from + i / parts;
            decode16(out + i / parts * stride + i % parts * 16, row[slot], slot < a.window, col0 + i % parts * 16, d);
        }
    };
    const auto decode_block = [&](int b) { decode_rows(values + b % 2 * SLOTS * stride, b * SLOTS, SLOTS); };
    if (WHOLE) decode_rows(values, 0, (int)padded);
    else decode_block(0);
    take_over(); /* until here all but the scores, which are the kernel before's */
    const float *s = a.scores + ((int64_t)blockIdx.x * gridDim.y * HEADS + head0 + warp) * padded; /* a warp has one head */
    float peak = -1e30f, total = 0;
    for (int b0 = 0; b0 < blocks; b0 += AHEAD) {
        float low[AHEAD], high[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool there = b0 + i < blocks && any[b0 + i];
            low[i] = there ? s[(b0 + i) * SLOTS + lane] : 0;
            high[i] = there ? s[(b0 + i) * SLOTS + lane + 32] : 0;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int b = b0 + i;
            if (b >= blocks || !any[b]) continue;
            const float f = softmax_step(p + warp * pitch + b * SLOTS, low[i], high[i], peak, total);
            if (lane == 0) fade[b * HEADS + warp] = f;
        }
    }
    if (lane == 0) denominator[warp] = head0 + warp < a.heads ? total + bl_exp(a.sink[head0 + warp] - peak) : 1;
    float acc[TILES][4] = {};
    __syncthreads();
    for (int b = 0; b < blocks; b++) {
        if (!WHOLE && b + 1 < blocks && any[b + 1]) decode_block(b + 1);
        const float f0 = any[b] ? fade[b * HEADS + g] : 1, f1 = any[b] ? fade[b * HEADS + g + 8] : 1;
        const uint16_t *rows = values + (WHOLE ? b : b % 2) * SLOTS * stride;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const int col = 8 * (warp + VALUE_THREADS / WARP * n);
            if (col >= width || !any[b]) continue;
            acc[n][0] *= f0, acc[n][1] *= f0, acc[n][2] *= f1, acc[n][3] *= f1;
            for (int k = 0; k < SLOTS; k += 16) {
                const uint32_t *p0 = (const uint32_t *)(p + g * pitch + b * SLOTS + k + 2 * t);
                const uint32_t *p1 = (const uint32_t *)(p + (g + 8) * pitch + b * SLOTS + k + 2 * t);
                const fragment_a w = {{p0[0], p1[0], p0[4], p1[4]}};
                mma(acc[n], w, load_transposed(shared_address(rows + (k + lane % 16) * stride + col)));
            }
        }
        if (!WHOLE) __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
        for (int h = 0; h < 2; h++) {
            const int64_t at = 8 * (warp + VALUE_THREADS / WARP * n) + 2 * t, col = col0 + at, head = head0 + g + 8 * h;
            if (at >= width || head >= a.heads) continue;
            const float below = denominator[g + 8 * h];
            uint16_t x = to_bf16(acc[n][2 * h] / below), y = to_bf16(acc[n][2 * h + 1] / below);
            if (col >= d - a.R) { /* rotated back */
                const float *cs = a.rotation + token * a.R + (col - (d - a.R));
                rotate(x, y, cs[0], -cs[1]);
            }
            *(uint32_t *)(a.o + (token * a.heads + head) * d + col) = x | (uint32_t)y << 16;
        }
}

} // namespace bl

using namespace bl;

void bl_cuda_rotations(bl_cuda_stream s, const bl_cuda_tables *t, const float *frequency, int64_t R)
{
    launch_plain(s, blocks_of(t->tokens * (R / 2), THREADS), THREADS, 0, rotations_kernel, *t, frequency, (int)(R / 2));
}

void bl_cuda_rope(bl_cuda_stream s, uint16_t *q, const float *rotation, int64_t T, int64_t heads, int64_t d, int64_t R)
{
    launch_early(true, s, dim3(blocks_of(heads * (R / 2), THREADS), (unsigned)T), THREADS, 0, rope_kernel, q, rotation, heads, d, R);
}

void bl_cuda_window_rows(bl_cuda_stream s, const bl_cuda_window *w)
{
    launch_plain(s, (unsigned)w->t->tokens, THREADS, 0, window_rows_kernel, args_of(w));
}

template <bool WHOLE>
static void launch_values(cudaStream_t s, const bl_cuda_attention *a, int64_t first, dim3 grid, int64_t slice, int bytes)
{
    cudaFuncSetAttribute(values_kernel<WHOLE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const mix_args mixing = a->mixing ? args_of(a->mixing) : mix_args{};
    launch_early(true, s, grid, VALUE_THREADS, bytes, values_kernel<WHOLE>, *a, *a->t, first, slice, mixing);
}

/* Tiles of heads and slices of columns go to more blocks where tokens alone are too few; the bits are the same. */
void bl_cuda_attend(bl_cuda_stream s, const bl_cuda_attention *a)
{
    if (bl_cuda_attend_pairs(s, a) || bl_cuda_attend_many(s, a)) {
        if (a->mixing) bl_cuda_mix(s, a->mixing);
        return;
    }
    const int64_t T = a->t->tokens, padded = (attended(*a) + SLOTS - 1) / SLOTS * SLOTS, tiles = blocks_of(a->heads, HEADS);
    const bool whole = T <= 4 && a->d % NARROW == 0 && lay_out_values(padded, NARROW, true).bytes <= MOST_SHARED;
    const int64_t cuts = T <= 4 ? 4 : T <= 16 ? 2 : 1, slice = whole ? NARROW : (a->d / 16 + cuts - 1) / cuts * 16;
    const int score_bytes = (int)((HEADS + SLOTS) * (a->d + PAD) * 2), value_bytes = (int)lay_out_values(padded, slice, whole).bytes;
    cudaFuncSetAttribute(slot_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, score_bytes);
    for (int64_t first = 0; first < T; first += BL_CUDA_ATTEND_TOKENS) {
        const unsigned n = (unsigned)(T - first < BL_CUDA_ATTEND_TOKENS ? T - first : BL_CUDA_ATTEND_TOKENS);
        const dim3 grid(n, (unsigned)(padded / SLOTS), (unsigned)(T <= 16 ? tiles : 1));
        const dim3 values(n, (unsigned)tiles, blocks_of(a->d, slice) + (a->mixing ? 1 : 0));
        launch_early(a->early, s, grid, THREADS, score_bytes, slot_scores_kernel, *a, *a->t, first);
        if (whole) launch_values<true>(s, a, first, values, slice, value_bytes);
        else launch_values<false>(s, a, first, values, slice, value_bytes);
    }
}

void bl_cuda_store_window(bl_cuda_stream s, const bl_cuda_tables *t, const uint8_t *kv, int64_t d, int64_t ring, int64_t layer_offset)
{
    launch_plain(s, (unsigned)t->tokens, THREADS, 0, store_window_kernel, *t, kv, d, ring, layer_offset);
}
