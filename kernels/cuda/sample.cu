/* Drawing tokens: a cluster of blocks for each row of logits, each with a stretch of ids whose weights stay in its shared memory.
 * Everything that is summed is a whole number (kernels/sampling_math.h), so that the token is the one that runtime/sample.c draws. What
 * the filters keep is a beginning of the tokens in order of falling weight, ties by the lower id: all above a weight and the first few
 * of those that equal it, found digit by digit of the weight's bits. */
#include "kernels/cuda/device.cuh"
#include "kernels/sampling_math.h"

namespace bl {

enum {
    THREADS = 512, WARPS = THREADS / WARP, BLOCKS = 8 /* of a row */, BINS = 256, KEPT = 24576 /* weights in a block's shared memory */,
    HALF = 12 /* bits: pieces of 24 are added in two parts of 32 bits */, EXCHANGES = 5, CROWD = 8 /* lanes that are added at once */
};
static_assert(BL_CUDA_MAX_DRAWN <= (int64_t)BLOCKS << (32 - HALF), "halves of pieces add up in 32 bits");

/* The tokens of a beginning: keys above key, and the first ties that equal it. A key is the bits of a weight; 0 is never kept. */
struct beginning {
    uint32_t key;
    int64_t ties;
};

struct shared_memory {
    unsigned part[2][2][BINS];             /* by turn: low and high halves of what is added up in a bin */
    unsigned long long amount[BINS];       /* of all blocks */
    unsigned long long out[EXCHANGES][2];  /* a block's contributions, each place used once */
    unsigned long long in[BLOCKS][2];
    unsigned long long warp_sum[WARPS], warp_ties[WARPS];
    float best[WARPS];
    int at[WARPS], nans[WARPS];
    unsigned long long above; /* of what a digit settles */
    int bin;
};

/* A row's stretch, and what the blocks of the row have in common. */
struct choice {
    shared_memory &sh;
    uint32_t *keys; /* [count], of the ids from `first` on */
    int first, count, scale;
    int exchanges, turn; /* so far */
};

__device__ __forceinline__ bool shorter(const beginning &a, const beginning &b)
{
    return a.key > b.key || (a.key == b.key && a.ties < b.ties);
}

__device__ __forceinline__ unsigned long long warp_sum(unsigned long long x)
{
    for (int d = WARP / 2; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

__device__ __forceinline__ unsigned long long remote_word(const unsigned long long *p, unsigned rank)
{
    const int *half = (const int *)p;
    return (uint32_t)remote(half, rank) | (unsigned long long)(uint32_t)remote(half + 1, rank) << 32;
}

/* sh.in[b] = what thread 0 of block b gave. */
__device__ __forceinline__ void exchange(choice &c, unsigned long long x, unsigned long long y)
{
    unsigned long long *const mine = c.sh.out[c.exchanges++];
    if (threadIdx.x == 0) mine[0] = x, mine[1] = y;
    cluster_sync();
    if (threadIdx.x < 2 * BLOCKS) c.sh.in[threadIdx.x / 2][threadIdx.x % 2] = remote_word(mine + threadIdx.x % 2, threadIdx.x / 2);
    __syncthreads();
}

/* Sums over the row; every thread gets them. */
__device__ __forceinline__ void row_sums(choice &c, unsigned long long &x, unsigned long long &y)
{
    const int warp = threadIdx.x / WARP;
    x = warp_sum(x);
    y = warp_sum(y);
    if (threadIdx.x % WARP == 0) c.sh.warp_sum[warp] = x, c.sh.warp_ties[warp] = y;
    __syncthreads();
    x = y = 0;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) x += c.sh.warp_sum[w], y += c.sh.warp_ties[w];
    exchange(c, x, y);
    x = y = 0;
#pragma unroll 1
    for (int b = 0; b < BLOCKS; b++) x += c.sh.in[b][0], y += c.sh.in[b][1];
}

struct largest {
    float best;
    int at, nans; /* at -1: all are NaN */
    __device__ __forceinline__ void take(float v, int i)
    {
        if (i >= 0 && (at < 0 || v > best || (v == best && i < at))) best = v, at = i;
    }
};

/* The largest logit, lowest id on ties, and how many NaN there are. */
__device__ __forceinline__ largest find_largest(choice &c, const float *logits)
{
    largest l = {0, -1, 0};
#pragma unroll 8
    for (int i = threadIdx.x; i < c.count; i += THREADS) {
        const float v = logits[i];
        if (v != v) l.nans++;
        else l.take(v, c.first + i);
    }
    for (int d = WARP / 2; d; d /= 2) {
        const float v = __shfl_xor_sync(~0u, l.best, d);
        const int i = __shfl_xor_sync(~0u, l.at, d);
        l.nans += __shfl_xor_sync(~0u, l.nans, d);
        l.take(v, i);
    }
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) c.sh.best[warp] = l.best, c.sh.at[warp] = l.at, c.sh.nans[warp] = l.nans;
    __syncthreads();
    l = {0, -1, 0};
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) {
        l.take(c.sh.best[w], c.sh.at[w]);
        l.nans += c.sh.nans[w];
    }
    exchange(c, __float_as_uint(l.best) | (unsigned long long)(uint32_t)l.at << 32, (unsigned long long)l.nans);
    l = {0, -1, 0};
#pragma unroll 1
    for (int b = 0; b < BLOCKS; b++) {
        l.take(__uint_as_float((uint32_t)c.sh.in[b][0]), (int)(c.sh.in[b][0] >> 32));
        l.nans += (int)c.sh.in[b][1];
    }
    return l;
}

/* Adds the parts of all lanes that are in; where many share a bin, one lane adds theirs. Whole warps. */
__device__ __forceinline__ void add_parts(unsigned (*part)[BINS], bool in, int bin, unsigned low, unsigned high)
{
    const unsigned all = __ballot_sync(~0u, in);
    if (all == 0) return;
    const int leader = __ffs(all) - 1, lane = threadIdx.x % WARP;
    const int first = __shfl_sync(~0u, bin, leader); /* all lanes take part in what follows */
    const bool with = in && bin == first;
    if (__popc(__ballot_sync(~0u, with)) > CROWD) {
        const unsigned l = __reduce_add_sync(~0u, with ? low : 0), h = __reduce_add_sync(~0u, with ? high : 0);
        if (lane == leader) low = l, high = h;
        else in = in && !with;
    }
    if (!in) return;
    atomicAdd(&part[0][bin], low);
    if (high) atomicAdd(&part[1][bin], high);
}

/* The bin at which the amounts from the top reach wanted, and what lies above it; one warp. */
__device__ __forceinline__ void find_bin(shared_memory &sh, unsigned long long wanted)
{
    const int lane = threadIdx.x, each = BINS / WARP, top = BINS - 1 - lane * each; /* lane 0 has the highest bins */
    unsigned long long sum = 0;
    for (int i = 0; i < each; i++) sum += sh.amount[top - i];
    unsigned long long through = warp_scan(sum);
    unsigned long long above = through - sum;
    if (above >= wanted || through < wanted) return;
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        const unsigned long long a = sh.amount[top - i];
        if (above + a >= wanted) {
            sh.bin = top - i;
            sh.above = above;
            return;
        }
        above += a;
    }
}

/* The row's amounts by a digit of the keys that equal b.key above it: tokens, or their units. The first digit is the exponent, so that
 * units of a bin are pieces of one shift. */
__device__ __forceinline__ void count_digit(choice &c, const beginning &b, int d, bool by_sum)
{
    const int shift = d == 0 ? 23 : d == 1 ? 15 : d == 2 ? 7 : 0, bits = d == 3 ? 7 : 8;
    const uint32_t settled = d == 0 ? 0 : ~0u << (shift + bits);
    unsigned (*const part)[BINS] = c.sh.part[c.turn++ % 2]; /* the other one may still be read by other blocks */
    for (int i = threadIdx.x; i < 2 * BINS; i += THREADS) part[i / BINS][i % BINS] = 0;
    __syncthreads();
#pragma unroll 2
    for (int i = threadIdx.x; i - (int)threadIdx.x % WARP < c.count; i += THREADS) {
        const uint32_t x = i < c.count ? c.keys[i] : 0;
        int up;
        const uint32_t piece = by_sum ? bl_sampling_piece(bl_bits_float(x), c.scale, &up) : 1;
        add_parts(part, x != 0 && ((x ^ b.key) & settled) == 0, x >> shift & ((1 << bits) - 1), piece & ((1 << HALF) - 1), piece >> HALF);
    }
    cluster_sync();
    if (threadIdx.x < BINS) {
        unsigned long long sum = 0;
        int up = 0;
        for (int r = 0; r < BLOCKS; r++)
            sum += (uint32_t)remote((const int *)&part[0][threadIdx.x], r) +
                   ((unsigned long long)(uint32_t)remote((const int *)&part[1][threadIdx.x], r) << HALF);
        if (by_sum) bl_sampling_piece(bl_bits_float(d == 0 ? threadIdx.x << 23 : b.key), c.scale, &up);
        c.sh.amount[threadIdx.x] = sum ? sum << up : 0;
    }
    __syncthreads();
}

/* The shortest beginning whose amount reaches wanted: how many tokens (by_sum false), or their units. There is one. */
__device__ __forceinline__ beginning reach(choice &c, unsigned long long wanted, bool by_sum)
{
    beginning b = {0, 0};
#pragma unroll 1
    for (int d = 0; d < 4; d++) {
        count_digit(c, b, d, by_sum);
        if (threadIdx.x < WARP) find_bin(c.sh, wanted);
        __syncthreads();
        b.key |= (uint32_t)c.sh.bin << (d == 0 ? 23 : d == 1 ? 15 : d == 2 ? 7 : 0);
        wanted -= c.sh.above;
    }
    const unsigned long long each = by_sum ? bl_sampling_units(bl_bits_float(b.key), c.scale) : 1;
    b.ties = (int64_t)((wanted + each - 1) / each);
    return b;
}

__device__ __forceinline__ int stretch_of(const choice &c)
{
    return (c.count + THREADS - 1) / THREADS * WARP; /* of a warp */
}

/* How many of so many ties are kept behind those seen. */
__device__ __forceinline__ unsigned long long kept_ties(const beginning &b, unsigned long long seen, unsigned long long ties)
{
    const unsigned long long left = (unsigned long long)b.ties > seen ? (unsigned long long)b.ties - seen : 0;
    return left < ties ? left : ties;
}

/* Units of a beginning; sh.in: of each block those above the key, and ties; sh.warp_sum, warp_ties: of each warp here. */
__device__ __forceinline__ unsigned long long measure(choice &c, const beginning &b)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, stretch = stretch_of(c), from = warp * stretch;
    const int to = from + stretch < c.count ? from + stretch : c.count;
    unsigned long long above = 0, ties = 0;
#pragma unroll 4
    for (int i = from + lane; i < to; i += WARP) {
        const uint32_t x = c.keys[i];
        if (x > b.key) above += bl_sampling_units(bl_bits_float(x), c.scale);
        ties += x == b.key;
    }
    row_sums(c, above, ties);
    const unsigned long long each = bl_sampling_units(bl_bits_float(b.key), c.scale);
    return above + kept_ties(b, 0, ties) * each;
}

/* The first id whose units, with those of all kept before it, exceed target, given by the block that has it; after measure. */
__device__ __forceinline__ void pick(choice &c, const beginning &b, unsigned long long target, bl_cuda_drawn *drawn, int nans)
{
    const unsigned long long each = bl_sampling_units(bl_bits_float(b.key), c.scale);
    unsigned long long seen = 0;
    int block = 0, warp = 0;
#pragma unroll 1
    for (; block < BLOCKS - 1; block++) {
        const unsigned long long units = c.sh.in[block][0] + kept_ties(b, seen, c.sh.in[block][1]) * each;
        if (target < units) break;
        target -= units;
        seen += c.sh.in[block][1];
    }
    if (block != (int)cluster_rank()) return;
#pragma unroll 1
    for (; warp < WARPS - 1; warp++) {
        const unsigned long long units = c.sh.warp_sum[warp] + kept_ties(b, seen, c.sh.warp_ties[warp]) * each;
        if (target < units) break;
        target -= units;
        seen += c.sh.warp_ties[warp];
    }
    if ((int)threadIdx.x / WARP != warp) return;
    const int lane = threadIdx.x % WARP, stretch = stretch_of(c), from = warp * stretch;
    const int to = from + stretch < c.count ? from + stretch : c.count;
    unsigned long long before = 0;
    for (int i = from + lane; i - lane < to; i += WARP) {
        const uint32_t x = i < to ? c.keys[i] : 0;
        const bool tie = i < to && x == b.key;
        const unsigned mask = __ballot_sync(~0u, tie);
        const bool kept = i < to && (x > b.key || (tie && seen + __popc(mask & ((1u << lane) - 1)) < (unsigned long long)b.ties));
        unsigned long long through = warp_scan<unsigned long long>(kept ? bl_sampling_units(bl_bits_float(x), c.scale) : 0);
        const unsigned hit = __ballot_sync(~0u, before + through > target);
        if (hit) {
            if (lane == 0) *drawn = bl_cuda_drawn{c.first + i + __ffs(hit) - 1, nans};
            return;
        }
        before += __shfl_sync(~0u, through, WARP - 1);
        seen += __popc(mask);
    }
}

/* What the filters keep of keys with so many above 0, whose units add up to total. */
__device__ __forceinline__ beginning filter(choice &c, const bl_sampling &s, unsigned long long count, unsigned long long total)
{
    const uint32_t top = bl_float_bits(1.0f);
    beginning kept = {1, INT64_MAX};
    if (s.top_k > 0 && (unsigned long long)s.top_k < count) {
        kept = reach(c, (unsigned long long)s.top_k, false);
        total = measure(c, kept);
    }
    if (s.top_p < 1) { /* a share of what top-k leaves */
        const unsigned long long need = bl_sampling_share(s.top_p, total);
        const beginning b = need ? reach(c, need, true) : beginning{top, 1};
        if (shorter(b, kept)) kept = b;
    }
    if (s.min_p > 0) {
        const beginning b = s.min_p > 1 ? beginning{top, 1} : beginning{bl_float_bits(s.min_p), INT64_MAX};
        if (shorter(b, kept)) kept = b;
    }
    return kept;
}

/* Weights of the stretch as keys; their units, and how many are above 0, of the row. */
__device__ __forceinline__ void weigh(choice &c, const float *logits, float most, float temperature, unsigned long long &units,
                                      unsigned long long &count)
{
    units = count = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < c.count; i += THREADS) {
        const float w = bl_sampling_weight(logits[i], most, temperature);
        units += bl_sampling_units(w, c.scale);
        count += w > 0;
        c.keys[i] = bl_float_bits(w);
    }
    row_sums(c, units, count);
}

__global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 2) sample_kernel(bl_cuda_drawn *drawn, float *logits,
                                                                                  const bl_cuda_draw *draws, int n)
{
    BL_DYNAMIC_SHARED(uint32_t, kept_keys, 4);
    __shared__ shared_memory sh;
    const int row = blockIdx.x / BLOCKS, each = (n + BLOCKS - 1) / BLOCKS, first = min((int)cluster_rank() * each, n);
    const bl_cuda_draw d = draws[row];
    float *const own = logits + (int64_t)row * n + first;
    choice c = {sh, each <= KEPT ? kept_keys : (uint32_t *)own, first, min(each, n - first), bl_sampling_scale(n), 0, 0};
    const largest l = find_largest(c, own);
    if (d.draw && l.at >= 0 && d.sampling.temperature >= BL_GREEDY_BELOW) {
        unsigned long long units, count;
        weigh(c, own, l.best, d.sampling.temperature, units, count);
        const beginning kept = filter(c, d.sampling, count, units);
        const unsigned long long left = measure(c, kept);
        pick(c, kept, bl_sampling_target(bl_sampling_bits(d.sampling.seed, d.position), left), drawn + row, l.nans);
    } else if (threadIdx.x == 0 && cluster_rank() == 0) {
        drawn[row] = bl_cuda_drawn{l.at, l.nans};
    }
    cluster_sync(); /* no block ends while others read there */
}

} // namespace bl

using namespace bl;

void bl_cuda_sample(bl_cuda_stream s, bl_cuda_drawn *drawn, float *logits, const bl_cuda_draw *draws, int64_t rows, int64_t n)
{
    const int64_t each = (n + BLOCKS - 1) / BLOCKS;
    if (rows <= 0) return;
    cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, KEPT * sizeof(uint32_t));
    const size_t kept = each <= KEPT ? (size_t)each * sizeof(uint32_t) : 0;
    launch_declared(BLOCKS, s, (unsigned)rows * BLOCKS, THREADS, kept, sample_kernel, drawn, logits, draws, (int)n);
}
