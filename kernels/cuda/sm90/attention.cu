/* Sparse attention for many tokens, of heads of 512 dimensions: the order of ../attention.cu by wgmma. A block has a token's heads, 64 at
 * a time. Two warpgroups decode blocks of 64 rows to shared memory, where they are keys and values at once. Of the two that multiply,
 * the first makes scores and softmax for both; each has half of the output's columns. */
#include "kernels/cuda/slots.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/cuda/sm90/many.h"

namespace bl {

enum {
    D = BL_CUDA_MANY_HEAD_DIM, HEADS = 64, SLOTS = BL_ATTN_BLOCK, CHUNKS = D / TILE_K, CHUNK_BYTES = SLOTS * SWIZZLE,
    ROW_BYTES = CHUNKS * CHUNK_BYTES,
    BUFFERS = 2, THREADS = 4 * GROUP, PART = D / 4 /* columns that a thread decodes */, MOST_BLOCKS = BL_CUDA_MAX_SLOTS / SLOTS,
    P_BYTES = HEADS * SWIZZLE, ALIGN = 1024, SHARED_BYTES = (1 + BUFFERS) * ROW_BYTES + 2 * P_BYTES + ALIGN,
    READY = 1, DECODERS = 2 /* named barriers */
};

struct shared_state {
    uint64_t full[BUFFERS], empty[BUFFERS], query;
    const uint8_t *row[BL_CUDA_MAX_SLOTS];
    uint32_t there[2][2 * MOST_BLOCKS]; /* slots that are no holes; of this token and the next */
    float fade[2][HEADS], denominator[HEADS];
};

struct turn {
    int64_t token, head0;
};

__device__ __forceinline__ turn turn_of(int64_t i, int tiles)
{
    return {i / tiles, i % tiles * HEADS};
}

#ifdef BL_HOPPER

/* ---- decoding */

/* Addresses of a token's rows, and which there are. */
__device__ __forceinline__ void find_rows(shared_state &sh, const bl_cuda_attention &a, const bl_cuda_tables &tables, int64_t token,
                                          int parity, int slots, int padded)
{
    for (int i = threadIdx.x - 2 * GROUP; i < padded; i += 2 * GROUP) {
        const uint8_t *row = i < slots ? slot_row(a, tables, token, &tables.spans[tables.span_of[token]], i) : NULL;
        const uint32_t mask = __ballot_sync(~0u, row != NULL);
        sh.row[i] = row;
        if (i % WARP == 0) sh.there[parity][i / WARP] = mask;
    }
    named_sync(DECODERS, 2 * GROUP);
}

/* 16 bytes of a row of a chunk, swizzled. */
__device__ __forceinline__ void put(uint32_t to, int slot, int unit, const uint2 &a, const uint2 &b)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + ((unit ^ slot % 8) << 4)), "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y)
                 : "memory");
}

/* A thread's 128 columns: to is the slot's row in the first of two chunks. */
__device__ __forceinline__ void decode_window(uint32_t to, int slot, const uint8_t *row, int part)
{
    const uint4 *codes = (const uint4 *)(row + part * PART);
    const uint32_t scales = *(const uint32_t *)(row + D + part * (PART / 32));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = codes[4 * i + k];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t s = scale_bf16x2((uint8_t)(scales >> (2 * i + k / 2) * 8));
            put(to + i * CHUNK_BYTES, slot, 2 * k, decode_fp8(v[k].x, s), decode_fp8(v[k].y, s));
            put(to + i * CHUNK_BYTES, slot, 2 * k + 1, decode_fp8(v[k].z, s), decode_fp8(v[k].w, s));
        }
    }
}

struct latent_part {
    uint4 codes[4];
    uint2 scales;
};

__device__ __forceinline__ void load_latent(latent_part &l, const uint8_t *row, int part)
{
#pragma unroll
    for (int k = 0; k < 4; k++) l.codes[k] = row ? ((const uint4 *)(row + part * (PART / 2)))[k] : make_uint4(0, 0, 0, 0);
    l.scales = row ? *(const uint2 *)(row + D / 2 + part * (PART / 16)) : make_uint2(0, 0);
}

/* An e4m3 scale, which is a bf16 too, twice. */
__device__ __forceinline__ uint32_t latent_scale(uint32_t code)
{
    const uint32_t bits = (code & 0x80) << 8 | (code & 0x7f) << 4; /* times 2^-120 */
    return (code & 0x7f) == 0x7f ? 0x7fc07fc0 : mul_bf16x2(bits * 0x10001u, 0x7b807b80);
}

__device__ __forceinline__ void decode_latent(uint32_t to, int slot, const latent_part &l)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t w[4] = {l.codes[k].x, l.codes[k].y, l.codes[k].z, l.codes[k].w};
#pragma unroll
        for (int h = 0; h < 2; h++) { /* 16 columns of a scale */
            const int group = 2 * k + h;
            const uint32_t s = latent_scale((uint8_t)((group < 4 ? l.scales.x : l.scales.y) >> group % 4 * 8));
            const uint32_t at = to + k / 2 * CHUNK_BYTES;
            put(at, slot, 4 * (k % 2) + 2 * h, decode_fp4(w[2 * h], s), decode_fp4(w[2 * h] >> 16, s));
            put(at, slot, 4 * (k % 2) + 2 * h + 1, decode_fp4(w[2 * h + 1], s), decode_fp4(w[2 * h + 1] >> 16, s));
        }
    }
}

__device__ __forceinline__ void clear_part(uint32_t to, int slot)
{
#pragma unroll
    for (int i = 0; i < 16; i++) put(to + i / 8 * CHUNK_BYTES, slot, i % 8, make_uint2(0, 0), make_uint2(0, 0));
}

/* Whether a slot of the block can be a window row: such blocks load as they decode. */
__device__ __forceinline__ void decode_tokens(shared_state &sh, const bl_cuda_attention &a, const bl_cuda_tables &tables, uint32_t rows,
                                              int64_t turns, int tiles, int slots)
{
    const int thread = threadIdx.x - 2 * GROUP, blocks = (slots + SLOTS - 1) / SLOTS;
    const int slot = thread / WARP * 8 + thread % 8, part = thread % WARP / 8; /* eight lanes that store together have eight slots */
    const int window_blocks = (int)((a.window + SLOTS - 1) / SLOTS);
    int n = 0, buffer = 0, phase = 0;
    for (int64_t i = blockIdx.x; i < turns; i += gridDim.x, n++) {
        named_sync(DECODERS, 2 * GROUP); /* all are done with the addresses of the last one */
        find_rows(sh, a, tables, turn_of(i, tiles).token, n % 2, slots, blocks * SLOTS);
        latent_part ahead;
        if (window_blocks < blocks) load_latent(ahead, sh.row[window_blocks * SLOTS + slot], part);
        for (int b = 0; b < blocks; b++) {
            const uint8_t *row = sh.row[b * SLOTS + slot];
            const uint32_t to = rows + buffer * ROW_BYTES + 2 * part * CHUNK_BYTES + slot * SWIZZLE;
            const bool any = sh.there[n % 2][2 * b] | sh.there[n % 2][2 * b + 1];
            barrier_wait(shared_address(&sh.empty[buffer]), phase ^ 1);
            if (any && b >= window_blocks) {
                decode_latent(to, slot, ahead);
            } else if (any) {
                latent_part l;
                if (!row) clear_part(to, slot);
                else if (b * SLOTS + slot < a.window) decode_window(to, slot, row, part);
                else load_latent(l, row, part), decode_latent(to, slot, l);
            }
            if (b >= window_blocks && b + 1 < blocks) load_latent(ahead, sh.row[(b + 1) * SLOTS + slot], part);
            publish_shared();
            __syncwarp();
            if (threadIdx.x % WARP == 0) barrier_arrive(shared_address(&sh.full[buffer]));
            if (++buffer == BUFFERS) buffer = 0, phase ^= 1;
        }
    }
}

/* ---- multiplying */

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

struct softmax_rows {
    float peak[2], total[2];
};

/* Scores of rows 16 w + g (h = 0) and + 8 (h = 1), already less their maximum, become p in shared memory; sums of their 16 lanes' trees. */
template <bool NORMAL> __device__ __forceinline__ void weigh_slots(float sum[2], const float (&s)[SLOTS / 2], uint32_t p)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + g + 8 * h;
        float lanes[2][2];
#pragma unroll
        for (int j = 0; j < SLOTS / 8; j++) {
            uint32_t pair;
            float e[2];
#pragma unroll
            for (int b = 0; b < 2; b++) {
                e[b] = exp_negative<NORMAL>(s[4 * j + 2 * h + b]);
                lanes[j % 2][b] = j < 2 ? e[b] : lanes[j % 2][b] + e[b];
            }
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(e[1]), "f"(e[0]));
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(p + row * SWIZZLE + ((j ^ row % 8) << 4) + 4 * t), "r"(pair) : "memory");
        }
        float x[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            x[b] = lanes[0][b] + lanes[1][b];
            for (int m = 2; m; m /= 2) x[b] = x[b] + __shfl_xor_sync(~0u, x[b], m);
        }
        sum[h] = x[0] + x[1];
    }
}

/* A block's softmax step; sh.fade: what accumulators fade by. */
__device__ __forceinline__ void softmax_block(shared_state &sh, softmax_rows &r, float (&s)[SLOTS / 2], uint32_t p, uint64_t there,
                                              float scale, int parity)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint64_t mine = there >> 2 * t; /* bits 8 j and 8 j + 1 */
    float most[2], sum[2];
    bool normal = true; /* not with a NaN */
#pragma unroll
    for (int i = 0; i < SLOTS / 2; i++) s[i] *= scale;
    if (there != ~0ull) {
#pragma unroll
        for (int i = 0; i < SLOTS / 2; i++)
            if (!(mine >> (i / 4 * 8 + i % 2) & 1)) s[i] = -INFINITY;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = r.peak[h];
#pragma unroll
        for (int i = 0; i < SLOTS / 4; i++) {
            const float v = s[4 * (i / 2) + 2 * h + i % 2];
            most[h] = v > most[h] ? v : most[h];
        }
        for (int m = 1; m < 4; m *= 2) {
            const float other = __shfl_xor_sync(~0u, most[h], m);
            most[h] = other > most[h] ? other : most[h];
        }
#pragma unroll
        for (int i = 0; i < SLOTS / 4; i++) {
            float &x = s[4 * (i / 2) + 2 * h + i % 2];
            x = x - most[h];
            normal = normal && x >= LEAST_NORMAL;
        }
    }
    if (__all_sync(~0u, normal)) weigh_slots<true>(sum, s, p);
    else weigh_slots<false>(sum, s, p);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float fade = bl_exp(r.peak[h] - most[h]);
        r.total[h] = r.total[h] * fade + sum[h];
        r.peak[h] = most[h];
        if (t == 0) sh.fade[parity][16 * warp + g + 8 * h] = fade;
    }
}

__device__ __forceinline__ void make_scores(float (&s)[SLOTS / 2], uint32_t query, uint32_t rows)
{
    float second[SLOTS / 2];
    const uint64_t q = operand_by_rows(query), k = operand_by_rows(rows);
#pragma unroll
    for (int i = 0; i < SLOTS / 2; i++) s[i] = second[i] = 0;
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int j = 0; j < TILE_K / 16; j++) {
            const uint64_t at = c * (CHUNK_BYTES >> 4) + 2 * j;
            if (c < CHUNKS / 2) wgmma_ss<SLOTS, 0>::run(s, q + at, k + at, 1);
            else wgmma_ss<SLOTS, 0>::run(second, q + at, k + at, 1);
        }
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
    settle(second);
#pragma unroll
    for (int i = 0; i < SLOTS / 2; i++) s[i] = (0.0f + s[i]) + second[i];
}

template <int HALF>
__device__ __forceinline__ void store_output(const bl_cuda_attention &a, const shared_state &sh, const float (&acc)[2][D / 8],
                                             const turn &at)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + g + 8 * h;
        const int64_t head = at.head0 + row;
        const float below = sh.denominator[row];
        uint16_t *o = a.o + (at.token * a.heads + head) * D + HALF * (D / 2);
#pragma unroll
        for (int j = 0; j < D / 16; j += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = pack_bf16(acc[j / 16][4 * (j % 16 + i) + 2 * h] / below, acc[j / 16][4 * (j % 16 + i) + 2 * h + 1] / below);
                const int col = HALF * (D / 2) + 8 * (j + i) + 2 * t;
                if (col >= D - a.R) { /* rotated back */
                    const float *cs = a.rotation + at.token * a.R + (col - (D - a.R));
                    uint16_t x = (uint16_t)v[i], y = (uint16_t)(v[i] >> 16);
                    rotate(x, y, cs[0], -cs[1]);
                    v[i] = x | (uint32_t)y << 16;
                }
            }
            transpose4(v);
            if (head < a.heads) *(uint4 *)(o + 8 * (j + t)) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

__device__ __forceinline__ void load_query(shared_state &sh, const CUtensorMap *map, uint32_t to, const turn &at, int64_t heads)
{
    const uint32_t bar = shared_address(&sh.query);
    barrier_expect(bar, ROW_BYTES);
    for (int c = 0; c < CHUNKS; c++) load_tile(to + c * CHUNK_BYTES, map, bar, c * TILE_K, (int)(at.token * heads + at.head0));
}

/* HALF: of the output's columns; the first also makes scores. */
template <int HALF>
__device__ __forceinline__ void attend_tokens(shared_state &sh, const bl_cuda_attention &a, const CUtensorMap *map, uint32_t query,
                                              uint32_t rows, uint32_t p, int64_t turns, int tiles, int blocks)
{
    const int warp = threadIdx.x % GROUP / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    int n = 0, buffer = 0, phase = 0, parity = 0;
    if (HALF == 0 && threadIdx.x == 0) load_query(sh, map, query, turn_of(blockIdx.x, tiles), a.heads);
    for (int64_t i = blockIdx.x; i < turns; i += gridDim.x, n++) {
        const turn at = turn_of(i, tiles);
        softmax_rows r = {{-1e30f, -1e30f}, {0, 0}};
        float acc[2][D / 8]; /* 128 columns each: more than the registers of a kernel's start cannot be one instruction's */
#pragma unroll
        for (int k = 0; k < D / 4; k++) acc[k % 2][k / 2] = 0;
        if (HALF == 0) barrier_wait(shared_address(&sh.query), n % 2);
        for (int b = 0; b < blocks; b++) {
            const uint32_t block = rows + buffer * ROW_BYTES;
            barrier_wait(shared_address(&sh.full[buffer]), phase);
            const uint64_t there = sh.there[n % 2][2 * b] | (uint64_t)sh.there[n % 2][2 * b + 1] << 32;
            if (there) {
                if (HALF == 0) {
                    float s[SLOTS / 2];
                    make_scores(s, query, block);
                    softmax_block(sh, r, s, p + parity * P_BYTES, there, a.scale, parity);
                    publish_shared();
                }
                named_sync(READY, 2 * GROUP);
                const float f0 = sh.fade[parity][16 * warp + g], f1 = sh.fade[parity][16 * warp + g + 8];
#pragma unroll
                for (int k = 0; k < D / 4; k++) acc[k % 2][k / 2] *= k / 2 % 4 < 2 ? f0 : f1;
                const uint64_t w = operand_by_rows(p + parity * P_BYTES);
                const uint64_t v = operand_by_columns(block + HALF * (ROW_BYTES / 2), 1024, CHUNK_BYTES);
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < SLOTS / 16; k++) {
                    wgmma_ss<D / 4, 1>::run(acc[0], w + 2 * k, v + k * (2 * 1024 >> 4), 1);
                    wgmma_ss<D / 4, 1>::run(acc[1], w + 2 * k, v + (2 * CHUNK_BYTES >> 4) + k * (2 * 1024 >> 4), 1);
                }
                wgmma_commit();
                wgmma_wait<0>();
                settle(acc[0]);
                settle(acc[1]);
                parity ^= 1;
            }
            if (threadIdx.x % WARP == 0) barrier_arrive(shared_address(&sh.empty[buffer]));
            if (++buffer == BUFFERS) buffer = 0, phase ^= 1;
        }
        if (HALF == 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * warp + g + 8 * h;
                const int64_t head = at.head0 + row;
                if (t == 0) sh.denominator[row] = head < a.heads ? r.total[h] + bl_exp(a.sink[head] - r.peak[h]) : 1;
            }
        }
        named_sync(READY, 2 * GROUP); /* also: nobody reads the query any more */
        if (HALF == 0 && threadIdx.x == 0 && i + gridDim.x < turns) load_query(sh, map, query, turn_of(i + gridDim.x, tiles), a.heads);
        store_output<HALF>(a, sh, acc, at);
    }
}

#endif

__global__ void __launch_bounds__(THREADS, 1) many_attend_kernel(const __grid_constant__ bl_cuda_attention a,
                                                                 const __grid_constant__ bl_cuda_tables tables,
                                                                 const __grid_constant__ CUtensorMap map)
{
#ifdef BL_HOPPER
    extern __shared__ uint8_t memory[];
    __shared__ shared_state sh;
    const int tiles = (int)((a.heads + HEADS - 1) / HEADS), slots = (int)attended(a), blocks = (slots + SLOTS - 1) / SLOTS;
    const int64_t turns = tables.tokens * tiles;
    const uint32_t query = (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN, rows = query + ROW_BYTES, p = rows + BUFFERS * ROW_BYTES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < BUFFERS; i++) {
            barrier_init(shared_address(&sh.full[i]), 2 * GROUP / WARP);
            barrier_init(shared_address(&sh.empty[i]), 2 * GROUP / WARP);
        }
        barrier_init(shared_address(&sh.query), 1);
        barrier_init_done();
    }
    __syncthreads();
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
    if (group == 0) {
        more_registers<224>();
        attend_tokens<0>(sh, a, &map, query, rows, p, turns, tiles, blocks);
    } else if (group == 1) {
        more_registers<160>();
        attend_tokens<1>(sh, a, &map, query, rows, p, turns, tiles, blocks);
    } else {
        fewer_registers<64>();
        decode_tokens(sh, a, tables, rows, turns, tiles, slots);
    }
    __syncthreads(); /* nobody leaves while others use barriers */
#endif
}

} // namespace bl

using namespace bl;

bool bl_cuda_attend_many(bl_cuda_stream s, const bl_cuda_attention *a)
{
    if (a->d != D || a->t->tokens < BL_CUDA_MANY_ATTEND || a->R > D / 2 || !is_hopper()) return false;
    const int64_t turns = a->t->tokens * ((a->heads + HEADS - 1) / HEADS);
    CUtensorMap map;
    if (!make_tile_map(&map, a->q, a->t->tokens * a->heads, D, D, HEADS)) return false;
    cudaFuncSetAttribute(many_attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    many_attend_kernel<<<(unsigned)(turns < processor_count() ? turns : processor_count()), THREADS, SHARED_BYTES, s>>>(*a, *a->t, map);
    return true;
}
