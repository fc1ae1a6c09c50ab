/* Drawing tokens: a block for each row of logits. Everything that is summed is a whole number (kernels/sampling_math.h), so that the token
 * is the one that runtime/sample.c draws. What the filters keep is a beginning of the tokens in order of falling weight, ties by the
 * lower id: all above a weight and the first few of those that equal it, found digit by digit of the weight's bits. */
#include "kernels/cuda/device.cuh"
#include "kernels/sampling_math.h"

namespace bl {

enum { THREADS = 512, WARPS = THREADS / WARP, BINS = 2048 };

/* The tokens of a beginning: keys above key, and the first ties that equal it. A key is the bits of a weight; 0 is never kept. */
struct beginning {
    uint32_t key;
    int64_t ties;
};

struct shared_memory {
    unsigned long long sum[BINS];
    unsigned count[BINS];
    unsigned long long warp_sum[WARPS];
    int64_t warp_ties[WARPS], before[WARPS];
    float best[WARPS];
    int at[WARPS], nans[WARPS];
    unsigned long long total, above; /* of what a digit settles */
    int64_t rank, ties;
    int bin, warp, token;
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

/* Every thread gets the sum. */
__device__ unsigned long long block_sum(shared_memory &sh, unsigned long long x)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) sh.warp_sum[threadIdx.x / WARP] = x;
    __syncthreads();
    unsigned long long all = 0;
#pragma unroll 1
    for (int w = 0; w < WARPS; w++) all += sh.warp_sum[w];
    return all;
}

/* The largest logit, lowest id on ties (at[0] -1: all are NaN), and how many NaN there are. */
__device__ void find_largest(shared_memory &sh, const float *row, int n)
{
    float best = 0;
    int at = -1, nans = 0;
    const auto take = [&](float v, int i) {
        if (i >= 0 && (at < 0 || v > best || (v == best && i < at))) best = v, at = i;
    };
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const float v = row[i];
        if (v != v) nans++;
        else take(v, i);
    }
    for (int d = WARP / 2; d; d /= 2) {
        const float v = __shfl_xor_sync(~0u, best, d);
        const int i = __shfl_xor_sync(~0u, at, d);
        nans += __shfl_xor_sync(~0u, nans, d);
        take(v, i);
    }
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0) sh.best[warp] = best, sh.at[warp] = at, sh.nans[warp] = nans;
    __syncthreads();
    if (threadIdx.x == 0)
#pragma unroll 1
        for (int w = 1; w < WARPS; w++) {
            take(sh.best[w], sh.at[w]);
            nans += sh.nans[w];
        }
    __syncthreads();
    if (threadIdx.x == 0) sh.best[0] = best, sh.at[0] = at, sh.nans[0] = nans;
    __syncthreads();
}

/* The bin at which the amounts from the top reach wanted, and what lies above it; one warp. amount(bin). */
template <class F> __device__ void find_bin(shared_memory &sh, F amount, unsigned long long wanted)
{
    const int lane = threadIdx.x, each = BINS / WARP, top = BINS - 1 - lane * each; /* lane 0 has the highest bins */
    unsigned long long sum = 0;
#pragma unroll 1
    for (int i = 0; i < each; i++) sum += amount(top - i);
    unsigned long long through = sum;
    for (int d = 1; d < WARP; d *= 2) {
        const unsigned long long y = __shfl_up_sync(~0u, through, d);
        if (lane >= d) through += y;
    }
    unsigned long long above = through - sum;
    if (above >= wanted || through < wanted) return;
#pragma unroll 1
    for (int i = 0; i < each; i++) {
        const unsigned long long a = amount(top - i);
        if (above + a >= wanted) {
            sh.bin = top - i;
            sh.above = above;
            return;
        }
        above += a;
    }
}

/* The shortest beginning whose amount reaches wanted: how many tokens (by_sum false), or their units. There is one. */
__device__ beginning reach(shared_memory &sh, const uint32_t *keys, int n, unsigned long long wanted, bool by_sum, double one)
{
    const int shifts[3] = {21, 10, 0};
    const uint32_t settled[3] = {0, 0xffe00000u, 0xfffffc00u};
    beginning b = {0, 0};
    for (int d = 0; d < 3; d++) {
        for (int i = threadIdx.x; i < BINS; i += THREADS) sh.count[i] = 0, sh.sum[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const uint32_t x = keys[i];
            if (x == 0 || ((x ^ b.key) & settled[d]) != 0) continue;
            const int bin = x >> shifts[d] & (BINS - 1);
            if (!by_sum) {
                atomicAdd(&sh.count[bin], 1u);
                continue;
            }
            const uint64_t units = bl_sampling_units(bl_bits_float(x), one);
            if (units) atomicAdd(&sh.sum[bin], (unsigned long long)units);
        }
        __syncthreads();
        if (threadIdx.x < WARP) {
            if (by_sum) find_bin(sh, [&](int i) { return sh.sum[i]; }, wanted);
            else find_bin(sh, [&](int i) { return (unsigned long long)sh.count[i]; }, wanted);
        }
        __syncthreads();
        b.key |= (uint32_t)sh.bin << shifts[d];
        wanted -= sh.above;
        __syncthreads();
    }
    const unsigned long long each = by_sum ? bl_sampling_units(bl_bits_float(b.key), one) : 1;
    b.ties = (int64_t)((wanted + each - 1) / each);
    return b;
}

/* Units of a beginning, and for each warp's stretch of ids its own and how many ties lie before. */
__device__ unsigned long long measure(shared_memory &sh, const uint32_t *keys, int n, int stretch, const beginning &b, double one)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, from = warp * stretch, to = from + stretch < n ? from + stretch : n;
    unsigned long long above = 0, ties = 0;
    for (int i = from + lane; i < to; i += WARP) {
        const uint32_t x = keys[i];
        if (x > b.key) above += bl_sampling_units(bl_bits_float(x), one);
        ties += x == b.key;
    }
    above = warp_sum(above);
    ties = warp_sum(ties);
    __syncthreads();
    if (lane == 0) sh.warp_sum[warp] = above, sh.warp_ties[warp] = (int64_t)ties;
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned long long each = bl_sampling_units(bl_bits_float(b.key), one);
        int64_t seen = 0;
        sh.total = 0;
#pragma unroll 1
        for (int w = 0; w < WARPS; w++) {
            const int64_t left = b.ties - seen, kept = left < 0 ? 0 : left < sh.warp_ties[w] ? left : sh.warp_ties[w];
            sh.before[w] = seen;
            sh.warp_sum[w] += (unsigned long long)kept * each;
            sh.total += sh.warp_sum[w];
            seen += sh.warp_ties[w];
        }
    }
    __syncthreads();
    return sh.total;
}

/* The first id whose units, with those of all kept before it, exceed target; after measure. */
__device__ int pick(shared_memory &sh, const uint32_t *keys, int n, int stretch, const beginning &b, unsigned long long target, double one)
{
    if (threadIdx.x == 0) {
        int w = 0;
#pragma unroll 1
        for (; w < WARPS - 1 && target >= sh.warp_sum[w]; w++) target -= sh.warp_sum[w];
        sh.warp = w;
        sh.above = target;
    }
    __syncthreads();
    const int lane = threadIdx.x % WARP, from = sh.warp * stretch, to = from + stretch < n ? from + stretch : n;
    if (threadIdx.x / WARP == sh.warp) {
        unsigned long long before = 0;
        int64_t seen = sh.before[sh.warp];
        target = sh.above;
        for (int i = from + lane; i - lane < to; i += WARP) {
            const uint32_t x = i < to ? keys[i] : 0;
            const bool tie = i < to && x == b.key;
            const unsigned mask = __ballot_sync(~0u, tie);
            const bool kept = i < to && (x > b.key || (tie && seen + __popc(mask & ((1u << lane) - 1)) < b.ties));
            unsigned long long through = kept ? bl_sampling_units(bl_bits_float(x), one) : 0;
            for (int d = 1; d < WARP; d *= 2) {
                const unsigned long long y = __shfl_up_sync(~0u, through, d);
                if (lane >= d) through += y;
            }
            const unsigned hit = __ballot_sync(~0u, before + through > target);
            if (hit) {
                if (lane == 0) sh.token = i + __ffs(hit) - 1;
                break;
            }
            before += __shfl_sync(~0u, through, WARP - 1);
            seen += __popc(mask);
        }
    }
    __syncthreads();
    return sh.token;
}

/* What the filters keep of keys with so many above 0, whose units add up to total. */
__device__ beginning filter(shared_memory &sh, const uint32_t *keys, int n, int stretch, const bl_sampling &s, int64_t count,
                            unsigned long long total, double one)
{
    const uint32_t top = bl_float_bits(1.0f);
    beginning kept = {1, INT64_MAX};
    if (s.top_k > 0 && s.top_k < count) {
        kept = reach(sh, keys, n, (unsigned long long)s.top_k, false, one);
        total = measure(sh, keys, n, stretch, kept, one);
    }
    if (s.top_p < 1) { /* a share of what top-k leaves */
        const unsigned long long need = bl_sampling_share(s.top_p, total);
        const beginning b = need ? reach(sh, keys, n, need, true, one) : beginning{top, 1};
        if (shorter(b, kept)) kept = b;
    }
    if (s.min_p > 0) {
        const beginning b = s.min_p > 1 ? beginning{top, 1} : beginning{bl_float_bits(s.min_p), INT64_MAX};
        if (shorter(b, kept)) kept = b;
    }
    return kept;
}

__global__ void __launch_bounds__(THREADS, 2) sample_kernel(bl_cuda_drawn *drawn, float *logits, const bl_cuda_draw *draws, int n)
{
    __shared__ shared_memory sh;
    const bl_cuda_draw d = draws[blockIdx.x];
    float *row = logits + (int64_t)blockIdx.x * n;
    find_largest(sh, row, n);
    const float most = sh.best[0];
    int token = sh.at[0];
    const int nans = sh.nans[0];
    if (d.draw && token >= 0 && d.sampling.temperature >= BL_GREEDY_BELOW) {
        uint32_t *keys = (uint32_t *)row;
        const double one = bl_sampling_one(n);
        const int stretch = (n + THREADS - 1) / THREADS * WARP;
        unsigned long long units = 0, count = 0;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const float w = bl_sampling_weight(row[i], most, d.sampling.temperature);
            units += bl_sampling_units(w, one);
            count += w > 0;
            keys[i] = bl_float_bits(w);
        }
        const unsigned long long total = block_sum(sh, units);
        const int64_t positive = (int64_t)block_sum(sh, count);
        const beginning kept = filter(sh, keys, n, stretch, d.sampling, positive, total, one);
        const unsigned long long left = measure(sh, keys, n, stretch, kept, one);
        token = pick(sh, keys, n, stretch, kept, bl_sampling_target(bl_sampling_bits(d.sampling.seed, d.position), left), one);
    }
    if (threadIdx.x == 0) drawn[blockIdx.x] = bl_cuda_drawn{token, nans};
}

} // namespace bl

using namespace bl;

void bl_cuda_sample(bl_cuda_stream s, bl_cuda_drawn *drawn, float *logits, const bl_cuda_draw *draws, int64_t rows, int64_t n)
{
    if (rows > 0) sample_kernel<<<(unsigned)rows, THREADS, 0, s>>>(drawn, logits, draws, (int)n);
}
