/* Products of up to eight tokens, where reading the weight is all there is to do: one block on each multiprocessor walks over tiles of 16
 * rows. A warp has its segment of K for good, with that part of x in registers, and a ring of stages in shared memory that asynchronous
 * copies fill ahead. Segment sums go to shared memory, where they are added ascending (dot.h: the order). Where K has more segments than
 * a block has warps, two blocks share a tile: what the first has added up the second goes on from. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/few.h"
#include "kernels/cuda/few_stages.cuh"

namespace bl {

enum {
    WARPS = 20, THREADS = WARPS * WARP, PITCH = ROWS + 1, BATCH = 64 /* tiles whose descriptions are in shared memory */,
    SUMS = 3 << 10 /* of a round at most; there is room for two */, DEEP = 8
};

struct few_args {
    int cols, segments, across, at_once; /* warps of a block that share a tile; tiles at a time */
    int64_t ldx;
};

/* ---- the kernels */

/* What a block has between tiles. */
struct few_block {
    few_tile tile[BATCH];
    int widest;      /* tokens of a tile of the batch */
    int first, last; /* of the list, from the batch on */
};

/* Two blocks that share tiles: the second's place for what the first has added up, in two rounds. Alone: rank 0 of one. */
struct few_pair {
    enum { MOST = SUMS * ROWS / (WARPS / 2 * PITCH) };
    float total[2][MOST];
};

/* Adds up a round's sums, of tiles from base to before end; each round other warps begin. In a pair the first block sends on what it has. */
template <bool PAIR>
__device__ __forceinline__ void add_sums(const few_args &p, const few_block &block, const float *sums, int base, int end, int units, int n,
                                         int rank, few_pair &pair)
{
    const int round = end - base, results = block.widest * ROWS * round, warps = blockDim.x / WARP;
    const int segments = p.segments - rank * p.across < p.across ? p.segments - rank * p.across : p.across;
    int i = (int)threadIdx.x - n % warps * WARP;
    for (i = i < 0 ? i + (int)blockDim.x : i; i < results; i += blockDim.x) {
        const int token = i / ROWS / round, tile = i / ROWS % round, row = i % ROWS;
        const few_tile &here = block.tile[base + tile];
        if (token >= here.tokens || row >= here.rows) continue;
        const float *from = sums + (token * units + tile * p.across) * PITCH + row;
        float total = PAIR && rank ? pair.total[n % 2][i] : 0;
#pragma unroll 4
        for (int k = 0; k < segments; k++) total += from[k * PITCH];
        if (PAIR && rank == 0) set_remote((int *)&pair.total[n % 2][i], 1, __float_as_int(total));
        else if (here.y16) here.y16[(int64_t)token * here.ld + row] = to_bf16(total);
        else here.y32[(int64_t)token * here.ld + row] = total;
    }
}

/* Tiles of one kind, a batch of them described in shared memory. Each warp fetches its segment of its tiles. */
template <bl_weight_kind KIND, class TILES> struct few_list {
    typedef stage_of<KIND> is;
    const TILES &source;
    few_block &block;
    int tiles, ahead, part; /* of the batch, and which of them is fetched next, or what part of it */

    /* Those from first to before last. */
    __device__ __forceinline__ void begin(const few_args &p, int first, int last)
    {
        if (threadIdx.x == 0) block.first = first, block.last = last, block.widest = 1;
        tiles = last - first < BATCH ? last - first : BATCH;
        ahead = (int)threadIdx.x / WARP / p.across;
        part = 0;
        __syncthreads();
        if ((int)threadIdx.x < tiles) {
            const few_tile tile = source.template at<KIND>(first + (int)threadIdx.x);
            block.tile[threadIdx.x] = tile;
            atomicMax(&block.widest, tile.tokens);
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool more(void) const { return block.first + BATCH < block.last; }

    /* The next batch, with nothing under way. */
    __device__ __forceinline__ void go_on(const few_args &p)
    {
        const int first = block.first + BATCH, last = block.last;
        copies_wait_for<0>();
        __syncthreads();
        begin(p, first, last);
    }

    __device__ __forceinline__ void fetch(const few_args &p, uint32_t to, int segment)
    {
        if (ahead < tiles && segment < p.segments) bl::fetch<KIND>(to, block.tile[ahead], segment, part, p.cols);
        part = (part + 1) % is::PARTS;
        if (part == 0) ahead += p.at_once;
        copies_end_group();
    }
};

/* What follows a list in the ring: nothing. */
struct few_end {
    enum { TAKES = 0 };
    static __device__ __forceinline__ bool early(void) { return false; }
    __device__ __forceinline__ void begin(const few_args &) {}
    __device__ __forceinline__ void fetch(const few_args &, uint32_t, int) {}
};

/* Where the walk over one list ends and that over the next begins. */
struct few_walk {
    int place, round; /* of the ring; of sums */
    bool wait;        /* for the kernel before, before x is read */
};

/* All of a list's tiles. Its ring is filled when it waits for the kernel before, if it has to: until then it touches weights only. Behind
 * its last tiles come the first of what follows, fetched ahead alike. filled: so it was with this list. */
template <bl_weight_kind KIND, bool PAIR, class TILES, class NEXT>
__device__ __forceinline__ void walk(const few_args &p, few_list<KIND, TILES> list, NEXT &next, few_walk &at, bool filled, uint8_t *memory,
                                     few_pair &pair)
{
    typedef stage_of<KIND> is;
    static_assert(is::PARTS == 1 || NEXT::TAKES == 0, "what follows has a stage for each turn");
    enum { SECOND = few_rows<KIND>::SECOND, FOLLOWS = NEXT::TAKES > 0, GROUPS = FOLLOWS ? is::TAKES / (NEXT::TAKES + !FOLLOWS) : 1 };
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int rank = PAIR ? (int)cluster_rank() : 0, in = warp / p.across, segment = rank * p.across + warp % p.across;
    const uint32_t ring = shared_address(memory) + warp * RING;
    float *const sums = (float *)(memory + warps * RING);
    const few_block &block = list.block;
    uint2 x[STEPS];
    for (;; list.go_on(p)) {
        const bool final = FOLLOWS && !list.more();
        const int tiles = list.tiles, turns = (tiles + p.at_once - 1) / p.at_once;
        /* What turn i takes; its groups are as many as those of what may follow. */
        const auto fetch_for = [&](int i, int place) {
            const uint32_t to = ring + place * PLACE;
            if (final && i >= turns) {
                for (int n = 0; n < GROUPS; n++) next.fetch(p, to + n * NEXT::TAKES * PLACE, segment);
                return;
            }
            list.fetch(p, to, segment);
            for (int n = 1; n < GROUPS; n++) copies_end_group();
        };
        const auto following = [&](int place) { return (place + is::TAKES) % PLACES; };
        if (!filled) {
            const bool both = final && (turns < is::COUNT || next.early());
            for (int i = 0, place = at.place; i < is::COUNT; i++, place = following(place))
                if (!final || i < turns) fetch_for(i, place);
            if (both) next.begin(p);
            for (int i = 0, place = at.place; i < is::COUNT; i++, place = following(place))
                if (final && i >= turns) fetch_for(i, place);
        }
        if (PAIR) cluster_sync(); /* the other block is there */
        if (at.wait) wait_for_last(); /* until here: weights only */
        at.wait = filled = false;
        const int fit = SUMS / (block.widest * p.at_once * p.across * PITCH), deep = fit < DEEP ? fit : DEEP;
        const int per_round = deep * p.at_once, units = per_round * p.across;
        const int put = (2 * t * units + warp) * PITCH + few_rows<KIND>::first(g); /* this lane's first sum of a round */
        int held = -1;
        for (int base = 0, turn = 0; base < tiles; base += per_round, at.round++) {
            const int end = base + per_round < tiles ? base + per_round : tiles;
            float *to = sums + at.round % 2 * SUMS + put; /* read before the round behind the next writes there again */
            for (int tile = base + in; tile < end + in; tile += p.at_once, to += warps * PITCH, turn++) {
                const few_tile &here = block.tile[tile];
                const bool mine = tile < end && segment < p.segments;
                if (mine && here.input != held) {
                    held = here.input;
                    load_x<KIND>(x, here.x + here.row[g] * p.ldx + segment * SEGMENT + (KIND == BL_W_BF16 ? 2 * t : 4 * t));
                }
                float c[4];
#pragma unroll
                for (int part = 0; part < is::PARTS; part++) {
                    copies_wait_for<(is::COUNT - 1) * GROUPS>();
                    __syncwarp();
                    if (mine) {
                        const int tokens = part < is::PARTS - 1 ? 0 : here.tokens - 2 * t; /* from this lane's first on, when c has them */
                        if (part == 0) c[0] = c[1] = c[2] = c[3] = 0;
                        chain<KIND>(c, ring + at.place * PLACE, x + part * (STEPS / is::PARTS));
                        if (tokens > 0) to[0] = c[0], to[SECOND] = c[2];
                        if (tokens > 1) to[units * PITCH] = c[1], to[units * PITCH + SECOND] = c[3];
                    }
                    __syncwarp();
                    if (final && turn == turns - is::COUNT && !next.early()) next.begin(p);
                    fetch_for(turn + is::COUNT, at.place);
                    at.place = following(at.place);
                }
            }
            __syncthreads();
            if (!PAIR || rank == 0) add_sums<PAIR>(p, block, sums + at.round % 2 * SUMS, base, end, units, at.round, rank, pair);
            if (!PAIR) continue;
            cluster_sync();
            if (rank) add_sums<PAIR>(p, block, sums + at.round % 2 * SUMS, base, end, units, at.round, rank, pair);
        }
        if (!list.more()) return;
    }
}

/* What block b of n gets of so many: from here on. */
__device__ __forceinline__ int share_of(int all, int b, int n)
{
    return (int)((int64_t)all * b / n);
}

template <bl_weight_kind KIND, bool PAIR> __global__ void __launch_bounds__(THREADS, 1) few_kernel(few_args p, dense_tiles tiles)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    __shared__ few_block block;
    __shared__ few_pair pair;
    const int each = PAIR ? 2 : 1, b = blockIdx.x / each, n = gridDim.x / each, all = tiles.count();
    start_next();
    few_end end;
    few_walk at = {0, 0, true};
    few_list<KIND, dense_tiles> list = {tiles, block, 0, 0, 0};
    list.begin(p, share_of(all, b, n), share_of(all, b + 1, n));
    walk<KIND, PAIR>(p, list, end, at, false, memory, pair);
}

/* Where block b's tiles of the shared expert begin: as many as its warps take at a time, or a multiple. */
__device__ __forceinline__ int shared_share(int shared, int at_once, int b, int n)
{
    const int first = share_of((shared + at_once - 1) / at_once, b, n) * at_once;
    return first < shared ? first : shared;
}

/* Where those of routed experts begin: the shared one's, which take twice the bytes where routed ones are fp4, are dealt already, and with
 * all of both each block has as much to read. */
template <bl_weight_kind KIND> __device__ __forceinline__ int routed_share(int routed, int shared, int at_once, int b, int n)
{
    enum { WEIGHT = KIND == BL_W_FP4 ? 2 : 1 };
    const int most = ((shared + at_once - 1) / at_once + n - 1) / n * at_once; /* of the shared one's, in a block */
    if ((WEIGHT * shared + routed) / n < WEIGHT * most) return share_of(routed, b, n);
    return share_of(WEIGHT * shared + routed, b, n) - WEIGHT * shared_share(shared, at_once, b, n);
}

/* Routed experts' tiles of a block, behind the shared one's. */
template <bl_weight_kind KIND> struct few_routed {
    enum { TAKES = stage_of<KIND>::TAKES };
    few_list<KIND, expert_tiles> list;
    int shared;
    /* Are they known before the kernel before has ended? */
    __device__ __forceinline__ bool early(void) const { return list.source.again; }
    __device__ __forceinline__ void begin(const few_args &p)
    {
        if (!early()) wait_for_last();
        const int b = blockIdx.x, n = gridDim.x, all = list.source.count();
        list.begin(p, routed_share<KIND>(all, shared, p.at_once, b, n), routed_share<KIND>(all, shared, p.at_once, b + 1, n));
    }
    __device__ __forceinline__ void fetch(const few_args &p, uint32_t to, int segment) { list.fetch(p, to, segment); }
};

/* The shared expert, where it takes part, and routed ones. The former's weights, and for the first product its input too, are there before
 * the kernel before has ended; for the second it is the groups. */
template <bl_weight_kind KIND>
__global__ void __launch_bounds__(THREADS, 1) few_experts_kernel(few_args p, expert_tiles routed, dense_tiles shared)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    __shared__ few_block blocks[2];
    __shared__ few_pair alone;
    const int b = blockIdx.x, n = gridDim.x, with = shared.count();
    start_next();
    few_end end;
    few_walk at = {0, 0, routed.again};
    few_routed<KIND> next = {{routed, blocks[1], 0, 0, 0}, with};
    few_list<BL_W_FP8, dense_tiles> list = {shared, blocks[0], 0, 0, 0};
    list.begin(p, shared_share(with, p.at_once, b, n), shared_share(with, p.at_once, b + 1, n));
    walk<BL_W_FP8, false>(p, list, next, at, false, memory, alone);
    walk<KIND, false>(p, next.list, end, at, true, memory, alone);
}

/* ---- host */

static few_args args_of(int64_t cols, int64_t ldx)
{
    const int segments = (int)(cols / SEGMENT), across = segments <= WARPS ? segments : (segments + 1) / 2;
    return {(int)cols, segments, across, WARPS / across, ldx};
}

/* each: blocks that share a tile. */
template <class... P, class... A>
static void launch(cudaStream_t s, void (*kernel)(P...), const few_args &p, int64_t tiles, unsigned each, int spare, bool early, A... args)
{
    const int64_t most = (processor_count() - spare) / each, warps = (int64_t)p.across * p.at_once;
    const int64_t bytes = warps * RING + 2 * SUMS * (int64_t)sizeof(float);
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {each, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    launch_with(each > 1 ? attributes : attributes + 1, (each > 1) + early, s, dim3((unsigned)(tiles < most ? tiles : most) * each),
                (int)warps * WARP, bytes, kernel, p, args...);
}

/* Whole segments, and rows whose vectors are aligned. */
static bool fits(int64_t cols, int64_t tokens, int blocks)
{
    return cols % SEGMENT == 0 && cols / SEGMENT <= blocks * WARPS && tokens <= TOKENS;
}

static bool fits_dense(const bl_cuda_product *p)
{
    return (p->w.kind == BL_W_FP8 || p->w.kind == BL_W_BF16) && fits(p->w.cols, p->tokens, 2) && p->row0 % ROWS == 0 && (p->groups <= 1 || p->row_step % ROWS == 0);
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

template <bl_weight_kind KIND> static void multiply_tiles(cudaStream_t s, const bl_cuda_product *p, const bl_cuda_product *also)
{
    const few_args a = args_of(p->w.cols, p->ldx);
    const dense_tiles t = tiles_of(p, also);
    const int64_t all = (int64_t)t.tiles * t.groups + t.more;
    if (a.segments > WARPS) launch(s, few_kernel<KIND, true>, a, all, 2, 0, p->early, t);
    else launch(s, few_kernel<KIND, false>, a, all, 1, 0, p->early, t);
}

static void multiply_few(cudaStream_t s, const bl_cuda_product *p, const bl_cuda_product *also)
{
    if (p->w.kind == BL_W_FP8) multiply_tiles<BL_W_FP8>(s, p, also);
    else multiply_tiles<BL_W_BF16>(s, p, also);
}

static bool fits_experts(const bl_cuda_expert_product *p)
{
    return (p->kind == BL_W_FP8 || bl_fp4_tiled(p->kind, p->rows, p->cols)) && fits(p->cols, p->T, 1);
}

} // namespace bl

using namespace bl;

bool bl_cuda_multiply_few(bl_cuda_stream s, const bl_cuda_product *p)
{
    if (!fits_dense(p)) return false;
    multiply_few(s, p, NULL);
    return true;
}

void bl_cuda_multiply_two(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q)
{
    if (fit_together(p, q)) {
        multiply_few(s, p, q);
        return;
    }
    bl_cuda_multiply(s, p);
    bl_cuda_multiply(s, q);
}

bool bl_cuda_joins_experts(const bl_cuda_expert_product *p, const bl_cuda_product *shared)
{
    return fits_experts(p) && fits_dense(shared) && shared->w.kind == BL_W_FP8 && shared->groups <= 1 && shared->w.cols == p->cols && shared->ldx == p->cols;
}

bool bl_cuda_multiply_experts_few(bl_cuda_stream s, const bl_cuda_expert_product *p)
{
    if (!fits_experts(p)) return false;
    const int64_t tiles = blocks_of(p->rows, ROWS);
    const few_args a = args_of(p->cols, p->cols);
    const expert_tiles t = {p->experts, p->groups->units, p->groups->count, p->groups->token, p->x, {p->y[0], p->y[1]},
                            {p->which[0], p->which[1]}, p->count, (int)tiles, p->rows, p->cols, p->by_token, p->again};
    const dense_tiles with = p->shared_count ? tiles_of(&p->shared[0], p->shared_count > 1 ? &p->shared[1] : NULL) : dense_tiles();
    const int64_t all = tiles * p->count * bl_cuda_max_units(p->T, p->k, p->E, false) + with.tiles * with.groups + with.more;
    if (p->kind == BL_W_FP8) launch(s, few_experts_kernel<BL_W_FP8>, a, all, 1, p->spare, true, t, with);
    else launch(s, few_experts_kernel<BL_W_FP4>, a, all, 1, p->spare, true, t, with);
    return true;
}
