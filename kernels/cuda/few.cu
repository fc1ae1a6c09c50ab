/* Products of up to eight tokens, where reading the weight is all there is to do: one or two blocks on each multiprocessor walk over tiles
 * of 16 rows; a warp has its own ring of stages in shared memory, filled ahead by asynchronous copies, so that reading never waits for
 * arithmetic or for the end of a tile. Segment sums go to shared memory and are added there ascending (dot.h: the order). */
#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/few.h"
#include "kernels/cuda/few_tiles.cuh"

namespace bl {

enum {
    ROWS = FEW_ROWS, SEGMENT = 256, STEPS = SEGMENT / 16, WARPS = 16, THREADS = WARPS * WARP,
    BATCH = 64 /* tiles whose descriptions are in shared memory */, PITCH = ROWS + 1,
    SUM_BYTES = 24 << 10 /* of segment sums: two rounds of them, or one */,
    STAGE_ROW = 128 /* bytes of a row: a segment of fp4, half of one of fp8 */, STRIDE = STAGE_ROW + 16 /* rows begin in different banks */,
    STAGE = ROWS * STRIDE + ROWS * 8 /* scales */, MOST_COLS = 64 * SEGMENT
};

/* Blocks of a kernel on a multiprocessor, and what each has: decoding fp4 wants many warps, fp8 leaves room for other streams. */
template <int BLOCKS> struct ring {
    enum { STAGES = BLOCKS == 1 ? 4 : 2, BYTES = WARPS * STAGES * STAGE, ALL_BYTES = BYTES + SUM_BYTES };
};

/* Stages of a segment. */
template <bl_weight_kind KIND> struct parts_of {
    enum { COUNT = KIND == BL_W_FP8 ? 2 : 1 };
};

struct few_args {
    int segments, cols, magic; /* u * magic >> 16 = u / segments */
    uint2 rounds; /* bytes: tiles summed together where none has more than 1, 2, ... tokens */
    int64_t ldx;
};

/* ---- filling the ring */

template <int N> __device__ __forceinline__ void copy_async(uint32_t to, const uint8_t *from)
{
    if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/* A warp's next pieces of work. */
struct cursor {
    int base, unit, part; /* first tile of the round; a unit is a segment of one of its tiles; stage of the segment */
};

/* To the first unit at or behind c that exists; false at the end of the batch. */
__device__ __forceinline__ bool settle_on(cursor &c, int segments, int per_round, int tiles)
{
    while (c.base < tiles) {
        const int left = tiles - c.base, here = (left < per_round ? left : per_round) * segments;
        if (c.unit < here) return true;
        c.base += per_round;
        c.unit = threadIdx.x / WARP;
    }
    return false;
}

template <bl_weight_kind KIND> __device__ __forceinline__ void fetch(uint32_t to, const few_tile &t, int segment, int part, int cols)
{
    enum { CHUNKS = STAGE_ROW / 16, STEP = WARP / CHUNKS };
    const int lane = threadIdx.x % WARP, pitch = KIND == BL_W_FP8 ? cols : cols / 2;
    const uint8_t *from = t.codes + (segment * parts_of<KIND>::COUNT + part) * STAGE_ROW + lane % CHUNKS * 16;
    const uint32_t at = to + lane % CHUNKS * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
        const int row = r + lane / CHUNKS, there = row < t.rows ? row : t.rows - 1;
        copy_async<16>(at + row * STRIDE, from + (int64_t)there * pitch);
    }
    const uint32_t scales = to + ROWS * STRIDE;
    if (KIND == BL_W_FP8) {
        if (lane == 0) copy_async<8>(scales, t.scale + segment * 8);
    } else if (lane < ROWS) {
        copy_async<8>(scales + lane * 8, t.scale + (int64_t)(lane < t.rows ? lane : t.rows - 1) * (cols / 32) + segment * 8);
    }
}

/* ---- a segment's chain: c of rows g, g + 8 and tokens 2 t, 2 t + 1 */

__device__ __forceinline__ uint32_t shared_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 shared_pair(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 x_at(const uint16_t *x, int step)
{
    return *(const uint2 *)(x + 16 * step);
}

/* Byte b of a word in the lower byte of both halves. */
__device__ __forceinline__ uint32_t both(uint32_t word, int b)
{
    return __byte_perm(word, 0, 0x4040 | b << 8 | b);
}

/* What values times 2^-UP are multiplied with, from a scale byte in both halves; for small scales with 2^UP in it. */
template <bool SMALL, int UP> __device__ __forceinline__ uint32_t scale_by(uint32_t byte)
{
    const uint32_t s = byte << 7;
    if (SMALL) return s + (UP << 7) * 0x00010001u;
    return s > 0x00400040u ? s : 0x00400040u;
}

/* Codes' values times 2^-UP in v, times 2^UP and the scale: for small scales one multiplication does it. */
template <bool SMALL, int UP> __device__ __forceinline__ uint32_t scaled_codes(uint32_t v, uint32_t by)
{
    if (SMALL) return mul_bf16x2(v, by);
    return mul_bf16x2(mul_bf16x2(v, ((UP + 127) << 7) * 0x00010001u), by);
}

/* Two e4m3 codes in the lower bytes of halves as bf16 that are their values times 2^-120: the codes' bits in their place. A sum moves
 * the sign, so that multipliers share the work with logic. */
__device__ __forceinline__ uint32_t place_pair(uint32_t codes)
{
    return codes * 16 + (codes & 0x00800080) * 240;
}

enum { UP_FP8 = 120, UP_FP4 = 126, SMALL_FP4 = 128 /* scales up to here leave room for the factor 2^126 */ };

template <bool SMALL> __device__ __forceinline__ void chain_fp8(float c[4], uint32_t codes, uint32_t scales, const uint16_t *x)
{
#pragma unroll
    for (int s = 0; s < STEPS / 2; s++) {
        const uint32_t low = shared_word(codes + 16 * s), high = shared_word(codes + 8 * STRIDE + 16 * s);
        const uint32_t by = scale_by<SMALL, UP_FP8>(both(scales, s / 2));
        const uint32_t v[4] = {__byte_perm(low, 0, 0x4140), __byte_perm(high, 0, 0x4140), __byte_perm(low, 0, 0x4342),
                               __byte_perm(high, 0, 0x4342)};
        fragment_a f;
#pragma unroll
        for (int i = 0; i < 4; i++) f.r[i] = scaled_codes<SMALL, UP_FP8>(place_pair(v[i]), by);
        mma(c, f, x_at(x, s));
    }
}

/* A lane's four codes of two steps, one above the other in each half, as four pairs of bf16 (first and third, second and fourth element
 * of a step) that are their values times 2^-126: the codes' bits in their place. */
__device__ __forceinline__ void place_fp4(uint32_t v[4], uint32_t w)
{
    const uint32_t next = w >> 8;
    v[0] = (w & 0x000f000f) * 0x1040 & 0x81c081c0; /* once for the sign, once for the rest */
    v[1] = (w & 0x00f000f0) * 0x0104 & 0x81c081c0;
    v[2] = (next & 0x000f000f) * 0x1040 & 0x81c081c0;
    v[3] = (next & 0x00f000f0) * 0x0104 & 0x81c081c0;
}

template <bool SMALL>
__device__ __forceinline__ void chain_fp4(float c[4], uint32_t codes, const uint2 scale[2], const uint16_t *x)
{
    const uint32_t pick = threadIdx.x & 1 ? 0x7362 : 0x5140;
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        uint32_t v[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t at = codes + 8 * h * STRIDE + 8 * s;
            const uint32_t by = scale_by<SMALL, UP_FP4>(both(s < 8 ? scale[h].x : scale[h].y, s / 2 % 4));
            place_fp4(v[h], __byte_perm(shared_word(at), shared_word(at + 8), pick));
#pragma unroll
            for (int i = 0; i < 4; i++) v[h][i] = scaled_codes<SMALL, UP_FP4>(v[h][i], by);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 b = x_at(x, s + i);
            const fragment_a f = {{v[0][2 * i], v[1][2 * i], v[0][2 * i + 1], v[1][2 * i + 1]}};
            mma(c, f, make_uint2(__byte_perm(b.x, b.y, 0x5410), __byte_perm(b.x, b.y, 0x7632)));
        }
    }
}

__device__ __forceinline__ bool at_most(uint32_t v, uint32_t most)
{
    return __vcmpgtu4(v, most * 0x01010101u) == 0;
}

/* What a stage holds of a segment: all steps, or for fp8 those of one half. */
template <bl_weight_kind KIND> __device__ __forceinline__ void chain(float c[4], uint32_t stage, const uint16_t *x, int part)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint32_t scales = stage + ROWS * STRIDE;
    if (KIND == BL_W_FP8) {
        const uint32_t scale = shared_word(scales + 4 * part), codes = stage + g * STRIDE + 4 * t;
        if (at_most(scale, SMALL_SCALE)) chain_fp8<true>(c, codes, scale, x + part * SEGMENT / 2);
        else chain_fp8<false>(c, codes, scale, x + part * SEGMENT / 2);
    } else {
        const uint2 scale[2] = {shared_pair(scales + 8 * g), shared_pair(scales + 8 * (g + 8))};
        const uint32_t codes = stage + g * STRIDE + t / 2 * 4;
        const bool small = at_most(scale[0].x, SMALL_FP4) && at_most(scale[0].y, SMALL_FP4) && at_most(scale[1].x, SMALL_FP4) &&
                           at_most(scale[1].y, SMALL_FP4);
        if (__all_sync(~0u, small)) chain_fp4<true>(c, codes, scale, x);
        else chain_fp4<false>(c, codes, scale, x);
    }
}

/* ---- the kernels */

/* What a block has between tiles. */
struct few_block {
    few_tile tile[BATCH];
    int widest; /* tokens of a tile of the batch */
};

/* A block's share of the tiles, the first of which is number `turn`. Waits for the kernel before, if it has to, when its ring is full:
 * until then it touches weights only. */
template <bl_weight_kind KIND, int BLOCKS, class TILES>
__device__ __forceinline__ void walk(const few_args &p, const TILES &source, int turn, few_block &block, uint8_t *memory, bool wait)
{
    enum { STAGES = ring<BLOCKS>::STAGES };
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t stages = (uint32_t)__cvta_generic_to_shared(memory) + warp * STAGES * STAGE;
    float *const sums = (float *)(memory + ring<BLOCKS>::BYTES);
    const int all = source.count(), mine = all > turn ? (all - 1 - turn) / (int)gridDim.x + 1 : 0;
    for (int first = 0; first < mine; first += BATCH) {
        const int tiles = mine - first < BATCH ? mine - first : BATCH;
        if (threadIdx.x == 0) block.widest = 1;
        __syncthreads();
        if ((int)threadIdx.x < tiles) {
            const few_tile own = source.template at<KIND>(turn + (first + (int)threadIdx.x) * (int)gridDim.x);
            block.tile[threadIdx.x] = own;
            atomicMax(&block.widest, own.tokens);
        }
        __syncthreads();
        const int per_round = block_byte(p.rounds, block.widest - 1);
        const int other = per_round * p.segments * block.widest * PITCH <= SUM_BYTES / 8 ? SUM_BYTES / 8 : 0; /* room of a second round */
        cursor ahead = {0, warp, 0};
        const auto fetch_next = [&](int stage) {
            if (settle_on(ahead, p.segments, per_round, tiles)) {
                const int in = ahead.unit * p.magic >> 16;
                fetch<KIND>(stages + stage * STAGE, block.tile[ahead.base + in], ahead.unit - in * p.segments, ahead.part, p.cols);
                if (++ahead.part == parts_of<KIND>::COUNT) ahead.part = 0, ahead.unit += WARPS;
            }
            copies_end_group();
        };
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) fetch_next(i);
        if (wait && first == 0) wait_for_last(); /* until here: weights only */
        int stage = 0, room = 0;
        for (int base = 0; base < tiles; base += per_round, room = other - room) {
            const int left = tiles - base, round = left < per_round ? left : per_round;
            float *const out = sums + room;
            for (int u = warp; u < round * p.segments; u += WARPS) {
                const int in = u * p.magic >> 16, segment = u - in * p.segments;
                const few_tile &here = block.tile[base + in];
                const uint16_t *x = here.x + here.row[g] * p.ldx + segment * SEGMENT + 4 * t;
                float c[4] = {0, 0, 0, 0};
#pragma unroll
                for (int part = 0; part < parts_of<KIND>::COUNT; part++) {
                    fetch_next(stage == 0 ? STAGES - 1 : stage - 1);
                    copies_wait_for<STAGES - 1>();
                    __syncwarp();
                    chain<KIND>(c, stages + stage * STAGE, x, part);
                    __syncwarp();
                    if (++stage == STAGES) stage = 0;
                }
                for (int i = 0; i < 4; i++)
                    if (2 * t + i % 2 < here.tokens) out[((2 * t + i % 2) * per_round * p.segments + u) * PITCH + g + i / 2 * 8] = c[i];
            }
            const int results = block.widest * ROWS * round; /* read before the next batch may change it */
            __syncthreads();
            for (int i = threadIdx.x; i < results; i += THREADS) {
                const int token = i / (ROWS * round), in = i / ROWS % round, row = i % ROWS;
                const few_tile &here = block.tile[base + in];
                if (token >= here.tokens || row >= here.rows) continue;
                const float *from = out + (token * per_round * p.segments + in * p.segments) * PITCH + row;
                float total = 0;
#pragma unroll 4
                for (int k = 0; k < p.segments; k++) total += from[k * PITCH];
                if (here.y16) here.y16[(int64_t)token * here.ld + row] = to_bf16(total);
                else here.y32[(int64_t)token * here.ld + row] = total;
            }
            if (!other) __syncthreads();
        }
        copies_wait_for<0>();
    }
    if (wait && mine == 0) wait_for_last();
}

template <bl_weight_kind KIND> __global__ void __launch_bounds__(THREADS, 1) few_kernel(few_args p, dense_tiles tiles)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ few_block block;
    start_next();
    walk<KIND, 1>(p, tiles, blockIdx.x, block, memory, true);
}

/* Routed experts, behind the shared one where it takes part: its weights, and for the first product its input too, are there before the
 * kernel before has ended; for the second it is the groups. */
template <bl_weight_kind KIND>
__global__ void __launch_bounds__(THREADS, 2) few_experts_kernel(few_args p, expert_tiles routed, dense_tiles shared)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ few_block block;
    const int grid = (int)gridDim.x;
    const auto turn = [&](void) { return ((int)blockIdx.x + grid - shared.count() % grid) % grid; }; /* go on where the shared one ends */
    start_next();
    if (shared.count()) walk<BL_W_FP8, 2>(p, shared, blockIdx.x, block, memory, routed.again);
    if (!routed.again) wait_for_last();
    walk<KIND, 2>(p, routed, turn(), block, memory, routed.again && !shared.count());
}

/* ---- host */

/* Tiles of a round: enough that warps share its segments evenly, where sums of two rounds find room. */
static int round_tiles(int segments, int64_t tokens)
{
    const int most = (int)(SUM_BYTES / 2 / (tokens * PITCH * sizeof(float)) / segments);
    int best = 1, best_left = WARPS;
    for (int r = 1; r <= most && r <= BATCH; r++) {
        const int left = (WARPS - r * segments % WARPS) % WARPS; /* idle in the last turn, of r * segments */
        if (left * best < best_left * r) best = r, best_left = left;
    }
    return best;
}

template <int BLOCKS, class... P, class... A>
static void launch(cudaStream_t s, void (*kernel)(P...), int64_t tiles, int spare, bool early, A... args)
{
    const int64_t most = (processor_count() - spare) * BLOCKS; /* run at a time */
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ring<BLOCKS>::ALL_BYTES);
    launch_early(early, s, dim3((unsigned)(tiles < most ? tiles : most)), THREADS, ring<BLOCKS>::ALL_BYTES, kernel, args...);
}

static few_args args_of(int64_t cols, int64_t ldx)
{
    const int segments = (int)(cols / SEGMENT);
    few_args a = {segments, (int)cols, (65536 + segments - 1) / segments, {0, 0}, ldx};
    for (int n = 0; n < TOKENS; n++) (n < 4 ? a.rounds.x : a.rounds.y) |= (unsigned)round_tiles(segments, n + 1) << n % 4 * 8;
    return a;
}

/* Whole segments, and rows whose vectors are aligned. */
static bool fits(bl_weight_kind kind, int64_t cols, int64_t tokens)
{
    const int64_t segments = cols / SEGMENT;
    return (kind == BL_W_FP8 || kind == BL_W_FP4) && cols % SEGMENT == 0 && cols <= MOST_COLS && tokens <= TOKENS &&
           segments * tokens * PITCH * (int64_t)sizeof(float) <= SUM_BYTES;
}

static bool fits_dense(const bl_cuda_product *p)
{
    return fits(p->w.kind, p->w.cols, p->tokens) && p->row0 % ROWS == 0 && (p->groups <= 1 || p->row_step % ROWS == 0);
}

/* Can both be done in one launch? */
static bool fit_together(const bl_cuda_product *p, const bl_cuda_product *q)
{
    return fits_dense(p) && p->groups <= 1 && q->groups <= 1 && p->row0 == 0 && q->row0 == 0 && p->x == q->x && p->ldx == q->ldx &&
           p->tokens == q->tokens && p->w.kind == q->w.kind && p->w.cols == q->w.cols;
}

static few_weight weight_of(const bl_cuda_product *p)
{
    return {(const uint8_t *)p->w.codes, p->w.scale, p->y16, p->y32, p->rows, p->ld};
}

/* also: NULL or a second product. */
static dense_tiles tiles_of(const bl_cuda_product *p, const bl_cuda_product *also)
{
    dense_tiles t = {};
    t.w = weight_of(p);
    t.x = p->x;
    t.cols = p->w.cols;
    t.row0 = p->row0;
    t.x_step = p->x_step;
    t.row_step = p->row_step;
    t.y_step = p->y_step;
    t.tokens = (int)p->tokens;
    t.tiles = (int)blocks_of(p->rows, ROWS);
    t.groups = p->groups > 1 ? (int)p->groups : 1;
    if (!also) return t;
    t.also = weight_of(also);
    t.more = (int)blocks_of(also->rows, ROWS);
    return t;
}

static void multiply_tiles(cudaStream_t s, const bl_cuda_product *p, const dense_tiles &t)
{
    const few_args a = args_of(p->w.cols, p->ldx);
    const int64_t all = (int64_t)t.tiles * t.groups + t.more;
    if (p->w.kind == BL_W_FP8) launch<1>(s, few_kernel<BL_W_FP8>, all, 0, p->early, a, t);
    else launch<1>(s, few_kernel<BL_W_FP4>, all, 0, p->early, a, t);
}

} // namespace bl

using namespace bl;

bool bl_cuda_multiply_few(bl_cuda_stream s, const bl_cuda_product *p)
{
    if (!fits_dense(p)) return false;
    multiply_tiles(s, p, tiles_of(p, NULL));
    return true;
}

void bl_cuda_multiply_two(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q)
{
    if (fit_together(p, q)) {
        multiply_tiles(s, p, tiles_of(p, q));
        return;
    }
    bl_cuda_multiply(s, p);
    bl_cuda_multiply(s, q);
}

bool bl_cuda_joins_experts(const bl_cuda_expert_product *p, const bl_cuda_product *shared)
{
    return p->T <= BL_CUDA_FEW && fits(p->kind, p->cols, p->T) && fits_dense(shared) && shared->w.kind == BL_W_FP8 && shared->groups <= 1 &&
           shared->w.cols == p->cols && shared->ldx == p->cols;
}

bool bl_cuda_multiply_experts_few(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    const int64_t tiles = blocks_of(p->rows, ROWS);
    if (p->T > BL_CUDA_FEW || !fits(p->kind, p->cols, p->T)) return false;
    const few_args a = args_of(p->cols, p->cols);
    const expert_tiles t = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->x, {p->y[0], p->y[1]},
                            {p->which[0], p->which[1]}, p->count, (int)tiles, p->rows, p->cols, p->by_token, p->again};
    const dense_tiles with = p->shared_count ? tiles_of(&p->shared[0], p->shared_count > 1 ? &p->shared[1] : NULL) : dense_tiles();
    const int64_t all = tiles * p->count * bl_cuda_max_units(p->T, p->k, p->E, false) + with.tiles * with.groups + with.more;
    if (p->kind == BL_W_FP8) launch<2>(s, few_experts_kernel<BL_W_FP8>, all, p->spare, true, a, t, with);
    else launch<2>(s, few_experts_kernel<BL_W_FP4>, all, p->spare, true, a, t, with);
    return true;
}
