/* Products of up to eight tokens, where reading the weight is all there is to do: one block on each multiprocessor walks over tiles of a
 * few rows. A warp has its segments of K for good, with their part of x in registers, and a ring of stages in shared memory that
 * asynchronous copies fill ahead. Segment sums go to shared memory, where they are added ascending (dot.h: the order). */
#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/few.h"
#include "kernels/cuda/few_tiles.cuh"

namespace bl {

enum {
    SEGMENT = 256, STEPS = SEGMENT / 16, SLOT = 9728 /* bytes: a warp's ring */, BATCH = 64 /* tiles whose descriptions are in shared memory */,
    MOST_SEGMENTS = 32, MOST_DEEP = 8
};

/* Warps of a block at most, by the segments of a warp, as its part of x takes 32 registers for each; and how many sums a round may have,
 * for which there is room twice. */
template <int SEGS> struct block_of {
    enum { WARPS = SEGS == 1 ? 20 : 16, THREADS = WARPS * WARP, SUMS = SEGS == 1 ? 3 << 10 : 9 << 9 };
};

/* A stage of the ring: a segment of a tile's rows, which begin in different banks, and its scales. */
template <bl_weight_kind KIND, int ROWS> struct stage_of {
    enum {
        ROW = KIND == BL_W_FP8 ? SEGMENT : SEGMENT / 2, STRIDE = ROW + 16, SCALES = ROWS * STRIDE,
        BYTES = SCALES + (KIND == BL_W_FP8 ? 16 : 8 * ROWS), COUNT = SLOT / BYTES
    };
    static_assert((COUNT & (COUNT - 1)) == 0 && COUNT > 1, "stages");
};

struct few_args {
    int cols, segments, across, at_once; /* warps that share a tile; tiles at a time */
    int64_t ldx;
};

/* ---- filling the ring */

template <int N> __device__ __forceinline__ void copy_async(uint32_t to, const uint8_t *from)
{
    if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

template <bl_weight_kind KIND, int ROWS>
__device__ __forceinline__ void fetch(uint32_t to, const few_tile &t, int segment, int cols)
{
    typedef stage_of<KIND, ROWS> is;
    enum { CHUNKS = is::ROW / 16, STEP = WARP / CHUNKS };
    const int lane = threadIdx.x % WARP, first = lane / CHUNKS, pitch = KIND == BL_W_FP8 ? cols : cols / 2;
    const uint8_t *from = t.codes + (segment * is::ROW + lane % CHUNKS * 16 + first * pitch);
    const uint32_t at = to + first * is::STRIDE + lane % CHUNKS * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
        if (r + first < t.rows) copy_async<16>(at + r * is::STRIDE, from); /* other rows have no results */
        from += STEP * pitch;
    }
    if (lane < (KIND == BL_W_FP8 ? 1 : t.rows)) copy_async<8>(to + is::SCALES + lane * 8, t.scale + (lane * (cols / 32) + segment * 8));
}

/* ---- a segment's chain: c of rows g, g + 8 and tokens 2 t, 2 t + 1; in tiles of 8 rows, of rows g */

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

/* Four e4m3 codes as bf16 that are their values times 2^-120: the codes' bits in their place; first and third, second and fourth. */
__device__ __forceinline__ uint2 place_codes(uint32_t w)
{
    return make_uint2((w * 256 & 0x80008000) | (w * 16 & 0x07f007f0), (w & 0x80008000) | (w >> 4 & 0x07f007f0));
}

enum { UP_FP8 = 120, UP_FP4 = 126 };

/* Codes of 64 columns, in tiles of 16 rows of 32: four words of a lane, those of a step side by side. */
__device__ __forceinline__ void shared_codes(uint32_t w[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at));
}

template <bool SMALL> __device__ __forceinline__ uint2 values_fp8(uint32_t w, uint32_t by)
{
    const uint2 v = place_codes(w);
    return make_uint2(scaled_codes<SMALL, UP_FP8>(v.x, by), scaled_codes<SMALL, UP_FP8>(v.y, by));
}

template <bool SMALL, int ROWS> __device__ __forceinline__ void chain_fp8(float c[4], uint32_t codes, uint2 scales, const uint2 *x)
{
    enum { EACH = 32 / ROWS /* steps of four words */ };
#pragma unroll
    for (int s = 0; s < STEPS; s += EACH) {
        uint32_t w[4];
        shared_codes(w, codes + 16 * s);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int block = (s + i) / 2;
            const uint32_t by = scale_by<SMALL, UP_FP8>(both(block < 4 ? scales.x : scales.y, block % 4));
            const uint2 low = values_fp8<SMALL>(w[ROWS == 8 ? i : 2 * i], by);
            const uint2 high = ROWS == 8 ? make_uint2(0, 0) : values_fp8<SMALL>(w[ROWS == 8 ? i : 2 * i + 1], by);
            const fragment_a f = {{low.x, high.x, low.y, high.y}};
            mma(c, f, x[s + i]);
        }
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

template <bool SMALL> __device__ __forceinline__ void chain_fp4(float c[4], uint32_t codes, const uint2 scale[2], const uint2 *x)
{
    enum { STRIDE = stage_of<BL_W_FP4, 16>::STRIDE };
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
            const fragment_a f = {{v[0][2 * i], v[1][2 * i], v[0][2 * i + 1], v[1][2 * i + 1]}};
            mma(c, f, x[s + i]);
        }
    }
}

/* Do scales leave room for the factors 2^UP? */
__device__ __forceinline__ bool small(uint2 v)
{
    return ((v.x | v.y) & 0x80808080) == 0;
}

/* What a stage holds, with its x. */
template <bl_weight_kind KIND, int ROWS> __device__ __forceinline__ void chain(float c[4], uint32_t stage, const uint2 *x)
{
    typedef stage_of<KIND, ROWS> is;
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t scales = stage + is::SCALES;
    if (KIND == BL_W_FP8) {
        const uint2 scale = shared_pair(scales);
        const uint32_t codes = stage + lane % ROWS * is::STRIDE + lane / ROWS * 16;
        if (small(scale)) chain_fp8<true, ROWS>(c, codes, scale, x);
        else chain_fp8<false, ROWS>(c, codes, scale, x);
    } else {
        const uint2 scale[2] = {shared_pair(scales + 8 * g), shared_pair(scales + 8 * (g + 8))};
        const uint32_t codes = stage + g * is::STRIDE + t / 2 * 4;
        if (__all_sync(~0u, small(scale[0]) && small(scale[1]))) chain_fp4<true>(c, codes, scale, x);
        else chain_fp4<false>(c, codes, scale, x);
    }
}

/* ---- the kernels */

/* What a block has between tiles. */
struct few_block {
    few_tile tile[BATCH];
    int widest; /* tokens of a tile of the batch */
};

/* Not to be moved above a wait for what writes it. */
__device__ __forceinline__ uint2 global_pair(const uint16_t *from)
{
    uint2 v;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

/* A lane's part of a segment of x: of each step four elements of the row of token g, first and third, second and
 * fourth. */
__device__ __forceinline__ void load_x(uint2 x[STEPS], const uint16_t *from)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const uint2 v = global_pair(from + 16 * s);
        x[s] = make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632));
    }
}

/* Adds up a round's sums, of tiles from base to before end; each round other warps begin. */
template <int ROWS>
__device__ __forceinline__ void add_sums(const few_args &p, const few_block &block, const float *sums, int base, int end, int units, int duty)
{
    enum { PITCH = ROWS + 1 };
    const int round = end - base, results = block.widest * ROWS * round;
    int i = (int)threadIdx.x - duty * WARP;
    for (i = i < 0 ? i + (int)blockDim.x : i; i < results; i += blockDim.x) {
        const int token = i / ROWS / round, tile = i / ROWS % round, row = i % ROWS;
        const few_tile &here = block.tile[base + tile];
        if (token >= here.tokens || row >= here.rows) continue;
        const float *from = sums + (token * units + tile * p.segments) * PITCH + row;
        float total = 0;
#pragma unroll 4
        for (int k = 0; k < p.segments; k++) total += from[k * PITCH];
        if (here.y16) here.y16[(int64_t)token * here.ld + row] = to_bf16(total);
        else here.y32[(int64_t)token * here.ld + row] = total;
    }
}

/* Tiles from first to before last. Waits for the kernel before, if it has to, when its ring is full: until then it touches weights
 * only. */
template <bl_weight_kind KIND, int ROWS, int SEGS, class TILES>
__device__ __forceinline__ void walk(const few_args &p, const TILES &source, int first, int last, few_block &block, uint8_t *memory,
                                     bool wait)
{
    typedef stage_of<KIND, ROWS> is;
    enum { PITCH = ROWS + 1, ROOM = block_of<SEGS>::SUMS };
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int in = warp / p.across, segment = warp % p.across * SEGS, own = p.segments - segment < SEGS ? p.segments - segment : SEGS;
    const uint32_t stages = (uint32_t)__cvta_generic_to_shared(memory) + warp * SLOT;
    float *const sums = (float *)(memory + warps * SLOT);
    uint2 x[SEGS][STEPS];
    for (; first < last; first += BATCH) {
        const int tiles = last - first < BATCH ? last - first : BATCH;
        if (threadIdx.x == 0) block.widest = 1;
        __syncthreads();
        if ((int)threadIdx.x < tiles) {
            const few_tile mine = source.template at<KIND>(first + (int)threadIdx.x);
            block.tile[threadIdx.x] = mine;
            atomicMax(&block.widest, mine.tokens);
        }
        __syncthreads();
        int ahead = in, segment_ahead = segment; /* what is fetched next */
        const auto fetch_next = [&](unsigned stage) {
            if (ahead < tiles) {
                fetch<KIND, ROWS>(stages + stage * is::BYTES, block.tile[ahead], segment_ahead, p.cols);
                if (SEGS == 1 || ++segment_ahead == segment + own) segment_ahead = segment, ahead += p.at_once;
            }
            copies_end_group();
        };
#pragma unroll
        for (int i = 0; i < is::COUNT - 1; i++) fetch_next(i);
        if (wait) wait_for_last(); /* until here: weights only */
        wait = false;
        const int fit = ROOM / (block.widest * p.at_once * p.segments * PITCH), deep = fit < MOST_DEEP ? fit : MOST_DEEP;
        const int per_round = deep * p.at_once, units = per_round * p.segments;
        const int put = (2 * t * units + in * p.segments + segment) * PITCH + g; /* this lane's first sum of a round */
        unsigned stage = 0;
        int held = -1;
        for (int base = 0, n = 0; base < tiles; base += per_round, n++) {
            const int end = base + per_round < tiles ? base + per_round : tiles;
            float *to = sums + n % 2 * ROOM + put; /* read before the round behind the next writes there again */
            for (int tile = base + in; tile < end; tile += p.at_once, to += p.at_once * p.segments * PITCH) {
                const few_tile &here = block.tile[tile];
                if (here.input != held) {
                    held = here.input;
                    const uint16_t *from = here.x + here.row[g] * p.ldx + segment * SEGMENT + 4 * t;
#pragma unroll
                    for (int i = 0; i < SEGS; i++)
                        if (i < own) load_x(x[i], from + i * SEGMENT);
                }
                const int tokens = here.tokens - 2 * t; /* from this lane's first on */
#pragma unroll
                for (int i = 0; i < SEGS; i++) {
                    if (i >= own) break;
                    float c[4] = {0, 0, 0, 0};
                    fetch_next((stage + is::COUNT - 1) % is::COUNT);
                    copies_wait_for<is::COUNT - 1>();
                    __syncwarp();
                    chain<KIND, ROWS>(c, stages + stage * is::BYTES, x[i]);
                    __syncwarp();
                    stage = (stage + 1) % is::COUNT;
                    if (tokens > 0) to[i * PITCH] = c[0];
                    if (tokens > 1) to[i * PITCH + units * PITCH] = c[1];
                    if (ROWS == 16 && tokens > 0) to[i * PITCH + 8] = c[2];
                    if (ROWS == 16 && tokens > 1) to[i * PITCH + units * PITCH + 8] = c[3];
                }
            }
            __syncthreads();
            add_sums<ROWS>(p, block, sums + n % 2 * ROOM, base, end, units, n % warps);
        }
        copies_wait_for<0>();
        __syncthreads();
    }
    if (wait) wait_for_last();
}

/* What block b of n gets of so many: from here on. */
__device__ __forceinline__ int share_of(int all, int b, int n)
{
    return (int)((int64_t)all * b / n);
}

template <bl_weight_kind KIND, int ROWS, int SEGS>
__global__ void __launch_bounds__(block_of<SEGS>::THREADS, 1) few_kernel(few_args p, dense_tiles tiles)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ few_block block;
    const int b = blockIdx.x, n = gridDim.x, all = tiles.count();
    start_next();
    walk<KIND, ROWS, SEGS>(p, tiles, share_of(all, b, n), share_of(all, b + 1, n), block, memory, true);
}

/* Where block b's tiles of routed experts begin: those of the shared one, which take twice the bytes where routed ones are fp4, are dealt
 * already, and with all of both each block has as much to read. */
template <bl_weight_kind KIND> __device__ __forceinline__ int routed_share(int routed, int shared, int b, int n)
{
    enum { WEIGHT = KIND == BL_W_FP4 ? 2 : 1 };
    if (routed < (WEIGHT + 1) * n) return share_of(routed, b, n);
    return share_of(WEIGHT * shared + routed, b, n) - WEIGHT * share_of(shared, b, n);
}

/* Routed experts, behind the shared one where it takes part: its weights, and for the first product its input too, are there before the
 * kernel before has ended; for the second it is the groups. */
template <bl_weight_kind KIND>
__global__ void __launch_bounds__(block_of<1>::THREADS, 1) few_experts_kernel(few_args p, expert_tiles routed, dense_tiles shared)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ few_block block;
    const int b = blockIdx.x, n = gridDim.x, with = shared.count();
    start_next();
    if (with) walk<BL_W_FP8, 16, 1>(p, shared, share_of(with, b, n), share_of(with, b + 1, n), block, memory, routed.again);
    if (!routed.again) wait_for_last();
    const int all = routed.count();
    walk<KIND, 16, 1>(p, routed, routed_share<KIND>(all, with, b, n), routed_share<KIND>(all, with, b + 1, n), block, memory,
                      routed.again && !with);
}

/* ---- host */

static few_args args_of(int64_t cols, int64_t ldx)
{
    const int segments = (int)(cols / SEGMENT), most = block_of<1>::WARPS;
    const bool one = segments <= most; /* segment of a warp */
    return {(int)cols, segments, one ? segments : (segments + 1) / 2, one ? most / segments : 1, ldx};
}

template <class... P, class... A>
static void launch(cudaStream_t s, void (*kernel)(P...), const few_args &p, int64_t tiles, int spare, bool early, A... args)
{
    const int64_t most = processor_count() - spare, warps = (int64_t)p.across * p.at_once;
    const int64_t sums = p.across == p.segments ? (int64_t)block_of<1>::SUMS : (int64_t)block_of<2>::SUMS;
    const int64_t bytes = warps * SLOT + 2 * sums * (int64_t)sizeof(float);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_early(early, s, dim3((unsigned)(tiles < most ? tiles : most)), (int)warps * WARP, bytes, kernel, p, args...);
}

/* Whole segments, and rows whose vectors are aligned. */
static bool fits(bl_weight_kind kind, int64_t cols, int64_t tokens)
{
    return (kind == BL_W_FP8 || kind == BL_W_FP4) && cols % SEGMENT == 0 && cols / SEGMENT <= MOST_SEGMENTS && tokens <= TOKENS;
}

static bool fits_experts(bl_weight_kind kind, int64_t cols, int64_t tokens)
{
    return fits(kind, cols, tokens) && cols / SEGMENT <= block_of<1>::WARPS;
}

static bool fits_dense(const bl_cuda_product *p)
{
    return fits(p->w.kind, p->w.cols, p->tokens) && p->row0 % 16 == 0 && (p->groups <= 1 || p->row_step % 16 == 0);
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
static dense_tiles tiles_of(const bl_cuda_product *p, const bl_cuda_product *also, int rows)
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
    t.tile_rows = rows;
    t.tiles = (int)blocks_of(p->rows, rows);
    t.groups = p->groups > 1 ? (int)p->groups : 1;
    if (!also) return t;
    t.also = weight_of(also);
    t.more = (int)blocks_of(also->rows, rows);
    return t;
}

template <bl_weight_kind KIND, int ROWS>
static void start(cudaStream_t s, const bl_cuda_product *p, const dense_tiles &t)
{
    const few_args a = args_of(p->w.cols, p->ldx);
    const int64_t all = (int64_t)t.tiles * t.groups + t.more;
    if (a.segments <= block_of<1>::WARPS) launch(s, few_kernel<KIND, ROWS, 1>, a, all, 0, p->early, t);
    else launch(s, few_kernel<KIND, ROWS, 2>, a, all, 0, p->early, t);
}

/* Rows that the busiest multiprocessor has to itself. */
static int64_t most_rows(const dense_tiles &t)
{
    return (int64_t)blocks_of((int64_t)t.tiles * t.groups + t.more, processor_count()) * t.tile_rows;
}

static void multiply_tiles(cudaStream_t s, const bl_cuda_product *p, const bl_cuda_product *also)
{
    const dense_tiles t = tiles_of(p, also, 16), halves = tiles_of(p, also, 8);
    if (p->w.kind == BL_W_FP4) start<BL_W_FP4, 16>(s, p, t);
    else if (most_rows(halves) < most_rows(t)) start<BL_W_FP8, 8>(s, p, halves); /* dealt more evenly */
    else start<BL_W_FP8, 16>(s, p, t);
}

} // namespace bl

using namespace bl;

bool bl_cuda_multiply_few(bl_cuda_stream s, const bl_cuda_product *p)
{
    if (!fits_dense(p)) return false;
    multiply_tiles(s, p, NULL);
    return true;
}

void bl_cuda_multiply_two(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q)
{
    if (fit_together(p, q)) {
        multiply_tiles(s, p, q);
        return;
    }
    bl_cuda_multiply(s, p);
    bl_cuda_multiply(s, q);
}

bool bl_cuda_joins_experts(const bl_cuda_expert_product *p, const bl_cuda_product *shared)
{
    return fits_experts(p->kind, p->cols, p->T) && fits_dense(shared) && shared->w.kind == BL_W_FP8 && shared->groups <= 1 &&
           shared->w.cols == p->cols && shared->ldx == p->cols;
}

bool bl_cuda_multiply_experts_few(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    if (!fits_experts(p->kind, p->cols, p->T)) return false;
    const int64_t tiles = blocks_of(p->rows, 16);
    const few_args a = args_of(p->cols, p->cols);
    const expert_tiles t = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->x, {p->y[0], p->y[1]},
                            {p->which[0], p->which[1]}, p->count, 16, (int)tiles, p->rows, p->cols, p->by_token, p->again};
    const dense_tiles with = p->shared_count ? tiles_of(&p->shared[0], p->shared_count > 1 ? &p->shared[1] : NULL, 16) : dense_tiles();
    const int64_t all = tiles * p->count * bl_cuda_max_units(p->T, p->k, p->E, false) + with.tiles * with.groups + with.more;
    if (p->kind == BL_W_FP8) launch(s, few_experts_kernel<BL_W_FP8>, a, all, p->spare, true, t, with);
    else launch(s, few_experts_kernel<BL_W_FP4>, a, all, p->spare, true, t, with);
    return true;
}
