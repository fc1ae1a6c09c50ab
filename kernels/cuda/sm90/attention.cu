/* Sparse attention for many tokens, of heads of 512 dimensions: the order of ../attention.cu by wgmma. A block has a token's heads, 64 at
 * a time, and all of the output's columns or, where tokens are few, a part. Two warpgroups decode blocks of 64 rows to shared memory, where
 * they are keys and values at once. The two that multiply share the rest: each makes the chain of one half of the dimensions for all
 * scores, then has every other eight slots of the softmax, then a half of the block's columns. */
#include "kernels/cuda/sm90/attention_output.cuh"
#include "kernels/cuda/sm90/attention_rows.cuh"

namespace bl {

#ifdef BL_HOPPER

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
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at ^ (2 * k << 4)), "r"(pair_of<true>(e[0], e[1])) : "memory");
        }
    }
}

/* One chain, of 256 dimensions from the operands' first on, of the block's scores. */
__device__ __forceinline__ void make_chain(float (&s)[SLOTS / 2], uint32_t query, uint32_t rows)
{
    const uint64_t q = operand_by_rows(query), k = operand_by_rows(rows);
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < CHUNKS / 2; c++)
#pragma unroll
        for (int j = 0; j < TILE_K / 16; j++) {
            const uint64_t at = c * (CHUNK_BYTES >> 4) + 2 * j;
            wgmma_ss<SLOTS, 0>::run(s, q + at, k + at, c + j > 0);
        }
    wgmma_commit();
    wgmma_wait<0>();
    settle(s);
}

/* The other chain from the warpgroup that made it: x = scores of slots 16 k + 8 half + 2 t and + 1, rows as the products have them. */
__device__ __forceinline__ void swap_chains(float (&x)[MINE], float (&s)[SLOTS / 2], uint32_t swap, int half)
{
    const uint32_t to = swap + threadIdx.x * 16, from = swap + (threadIdx.x ^ GROUP) * 16, step = 2 * GROUP * 16;
#pragma unroll
    for (int k = 0; k < MINE / 4; k++) {
        float give[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[4 * k + i] = half ? s[8 * k + 4 + i] : s[8 * k + i];
            give[i] = half ? s[8 * k + i] : s[8 * k + 4 + i];
        }
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + k * step), "f"(give[0]), "f"(give[1]), "f"(give[2]), "f"(give[3])
                     : "memory");
    }
    named_sync(SCORED, 2 * GROUP);
#pragma unroll
    for (int k = 0; k < MINE / 4; k++) {
        float y[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3]) : "r"(from + k * step)
                     : "memory");
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float mine = x[4 * k + i];
            x[4 * k + i] = (0.0f + (half ? y[i] : mine)) + (half ? mine : y[i]);
        }
    }
}

/* A block's softmax step; fade: what accumulators fade by. */
__device__ __forceinline__ void softmax_block(shared_state &sh, softmax_rows &r, float (&fade)[2], float (&lanes)[2][2], float (&x)[MINE],
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

/* Columns of an instruction: more than the registers of a kernel's start cannot be one's. */
template <int COLS> struct columns {
    enum { WIDE = COLS < D / 4 ? COLS : D / 4, COUNT = COLS / WIDE };
};

__device__ __forceinline__ void load_query(shared_state &sh, const CUtensorMap *map, uint32_t to, const turn &at, int64_t heads)
{
    const uint32_t bar = shared_address(&sh.query);
    barrier_expect(bar, ROW_BYTES);
    for (int c = 0; c < CHUNKS; c++) load_tile(to + c * CHUNK_BYTES, map, bar, c * TILE_K, (int)(at.token * heads + at.head0));
}

/* Whether a slot that was read ahead is filled: a window's by the token's position. */
__device__ __forceinline__ bool filled(const bl_cuda_attention &a, int64_t position, int slot, int entry)
{
    return slot < a.window ? slot <= position : entry >= 0;
}

/* half: the warpgroup's of the dimensions, of the slots by eights and of the block's columns, of which it has COLS from col0 on. */
template <int COLS>
__device__ __forceinline__ void attend_tokens(shared_state &sh, const bl_cuda_attention &a, const bl_cuda_tables &tables,
                                              const CUtensorMap *map, const tiles_at &tile, const turns &all, int col0, int half)
{
    enum { WIDE = columns<COLS>::WIDE, N = columns<COLS>::COUNT };
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % GROUP / WARP, g = lane / 4, t = lane % 4;
    int n = 0, buffer = 0, phase = 0;
    if (half == 0 && threadIdx.x == 0) load_query(sh, map, tile.query, turn_of(all.first, all.tiles), a.heads);
    for (int i = all.first; i < all.count; i += all.step, n++) {
        const turn at = turn_of(i, all.tiles);
        softmax_rows r = {{-1e30f, -1e30f}, {0, 0}};
        float acc[N][WIDE / 2];
#pragma unroll
        for (int k = 0; k < COLS / 2; k++) acc[k % N][k / N] = 0;
        const int64_t position = tables.position[at.token];
        int low = selected_entry(a, at.token, lane), high = selected_entry(a, at.token, lane + WARP);
        barrier_wait(shared_address(&sh.query), n % 2);
        for (int b = 0; b < all.blocks; b++) {
            const uint32_t block = tile.rows + buffer * ROW_BYTES;
            const unsigned low_there = __ballot_sync(~0u, filled(a, position, b * SLOTS + lane, low));
            const uint64_t there = low_there | (uint64_t)__ballot_sync(~0u, filled(a, position, b * SLOTS + lane + WARP, high)) << 32;
            low = selected_entry(a, at.token, (b + 1) * SLOTS + lane);
            high = selected_entry(a, at.token, (b + 1) * SLOTS + lane + WARP);
            barrier_wait(shared_address(&sh.full[buffer]), phase);
            if (there) {
                float s[SLOTS / 2], x[MINE], fade[2], lanes[2][2];
                make_chain(s, tile.query + half * (ROW_BYTES / 2), block + half * (ROW_BYTES / 2));
                swap_chains(x, s, tile.swap, half);
                softmax_block(sh, r, fade, lanes, x, tile.p, there, a.scale, half);
                if (half == 1) sh.sums[threadIdx.x % GROUP] = make_float4(lanes[0][0], lanes[0][1], lanes[1][0], lanes[1][1]);
#pragma unroll
                for (int k = 0; k < COLS / 2; k++) acc[k % N][k / N] *= fade[k / N % 4 / 2];
                publish_shared();
                named_sync(WEIGHED, 2 * GROUP);
                const uint64_t w = operand_by_rows(tile.p);
                const uint64_t v = operand_by_columns(block + col0 / TILE_K * CHUNK_BYTES, 1024, CHUNK_BYTES);
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < SLOTS / 16; k++)
#pragma unroll
                    for (int m = 0; m < N; m++)
                        wgmma_ss<WIDE, 1>::run(acc[m], w + 2 * k, v + m * (WIDE / TILE_K * CHUNK_BYTES >> 4) + k * (2 * 1024 >> 4), 1);
                wgmma_commit();
                if (half == 0) add_sums(r, fade, lanes, sh.sums[threadIdx.x]);
                wgmma_wait<0>();
#pragma unroll
                for (int m = 0; m < N; m++) settle(acc[m]);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&sh.empty[buffer]));
            if (++buffer == BUFFERS) buffer = 0, phase ^= 1;
        }
        if (half == 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = 16 * warp + g + 8 * h, head = at.head0 + row;
                if (t == 0) sh.denominator[row] = head < a.heads ? r.total[h] + bl_exp(a.sink[head] - r.peak[h]) : 1;
            }
        }
        named_sync(DONE, 2 * GROUP); /* also: nobody reads the query any more */
        const int next = i + all.step;
        if (half == 0 && threadIdx.x == 0 && next < all.count) load_query(sh, map, tile.query, turn_of(next, all.tiles), a.heads);
        store_output(a, sh, acc, at, col0, tile.swap);
    }
}

#endif

/* COLS: of a warpgroup. */
template <int COLS>
__global__ void __launch_bounds__(THREADS, 1) many_attend_kernel(const __grid_constant__ bl_cuda_attention a,
                                                                 const __grid_constant__ bl_cuda_tables tables,
                                                                 const __grid_constant__ CUtensorMap map)
{
#ifdef BL_HOPPER
    extern __shared__ uint8_t memory[];
    __shared__ __align__(16) shared_state sh;
    enum { PARTS = D / 2 / COLS };
    const int tiles = (int)((a.heads + HEADS - 1) / HEADS), blocks = (int)((attended(a) + SLOTS - 1) / SLOTS);
    const turns all = {(int)tables.tokens * tiles, (int)blockIdx.x / PARTS, (int)gridDim.x / PARTS, tiles, blocks};
    const int col0 = blockIdx.x % PARTS * 2 * COLS;
    const uint32_t base = (shared_address(memory) + ALIGN - 1) / ALIGN * ALIGN;
    const tiles_at tile = {base, base + ROW_BYTES, base + (1 + BUFFERS) * ROW_BYTES, base + (1 + BUFFERS) * ROW_BYTES + P_BYTES};
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
    if (group < 2) {
        more_registers<184>();
        attend_tokens<COLS>(sh, a, tables, &map, tile, all, col0 + group * COLS, group);
    } else {
        fewer_registers<72>();
        decode_tokens(sh, a, tables, tile.rows, all);
    }
    __syncthreads(); /* nobody leaves while others use barriers */
#endif
}

template <int COLS> static void launch_attend(cudaStream_t s, const bl_cuda_attention *a, const CUtensorMap &map, int64_t count)
{
    const int64_t parts = D / 2 / COLS, room = processor_count() / parts;
    cudaFuncSetAttribute(many_attend_kernel<COLS>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    many_attend_kernel<COLS><<<(unsigned)((count < room ? count : room) * parts), THREADS, SHARED_BYTES, s>>>(*a, *a->t, map);
}

} // namespace bl

using namespace bl;

/* Columns are divided between blocks where tokens do not fill the device. */
bool bl_cuda_attend_many(bl_cuda_stream s, const bl_cuda_attention *a)
{
    if (a->d != D || a->t->tokens < BL_CUDA_MANY_ATTEND || a->R > D / 2 || !is_hopper()) return false;
    const int64_t turns = a->t->tokens * ((a->heads + HEADS - 1) / HEADS);
    CUtensorMap map;
    if (!make_tile_map(&map, a->q, a->t->tokens * a->heads, D, D, HEADS)) return false;
    if (2 * turns <= processor_count()) launch_attend<D / 4>(s, a, map, turns);
    else launch_attend<D / 2>(s, a, map, turns);
    return true;
}
