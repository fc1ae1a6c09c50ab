/* Router, grouping of tokens by expert, the experts' elementwise parts. For few tokens the first two are route_few.cu. */
#include "kernels/cuda/choice.cuh"

namespace bl {

enum { THREADS = 256, SORT_THREADS = BL_CUDA_SORT_CHUNK, LIST = 4096 /* choices looked at together */,
       FEW_CHOICES = 512 /* sorted by one block */ };

/* The best key of those that a lane has, at its lowest id. */
__device__ __forceinline__ uint32_t best_key(const uint32_t *keys, int E, unsigned &at)
{
    uint32_t best = 0;
#pragma unroll 4
    for (int e = threadIdx.x % WARP; e < E; e += WARP)
        if (keys[e] > best) best = keys[e], at = e;
    return best;
}

/* A warp: chosen [k] = the best of keys [E], best first, ties to the lower id; what is chosen becomes 0. */
__device__ __forceinline__ void choose_experts(uint32_t *keys, int32_t *chosen, int E, int k)
{
    const int lane = threadIdx.x % WARP;
    unsigned at = 0;
    uint32_t best = best_key(keys, E, at);
    for (int i = 0; i < k; i++) {
        const uint32_t most = __reduce_max_sync(~0u, best);
        const unsigned id = __reduce_min_sync(~0u, best == most ? at : ~0u);
        if (lane == 0) chosen[i] = (int32_t)id;
        if ((int)(id % WARP) == lane) {
            keys[id] = 0;
            best = best_key(keys, E, at);
        }
    }
    __syncwarp();
}

/* The k best of biased scores, best first, ties to the lower id; a block for each token, of which one warp chooses. */
__global__ void route_kernel(int32_t *ids, float *gates, const float *logits, const float *bias, int64_t E, int64_t k, bool norm_topk,
                             float route_scale)
{
    BL_DYNAMIC_SHARED(uint32_t, keys, 4); /* [E] */
    const int64_t t = blockIdx.x;
    const int lane = threadIdx.x;
    const float *row = logits + t * E;
    __shared__ int32_t chosen[BL_CUDA_MAX_CHOICES];
    for (int64_t e = threadIdx.x; e < E; e += blockDim.x) keys[e] = choice_key(bl_sqrt_softplus(row[e]) + bias[e]);
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    choose_experts(keys, chosen, (int)E, (int)k);
    if (lane != 0) return;
    float score[BL_CUDA_MAX_CHOICES], sum = 0;
    for (int64_t i = 0; i < k; i++) {
        score[i] = bl_sqrt_softplus(row[chosen[i]]);
        sum += score[i];
    }
    for (int64_t i = 0; i < k; i++) {
        const float g = norm_topk && k > 1 ? score[i] / (sum + 1e-20f) : score[i];
        ids[t * k + i] = chosen[i];
        gates[t * k + i] = g * route_scale;
    }
}

/* Exclusive sums of value over the block's threads; total gets the sum of all. */
__device__ int block_scan(int value, int *total)
{
    __shared__ int warps[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int x = warp_scan(value);
    if (lane == WARP - 1) warps[warp] = x;
    __syncthreads();
    int before = 0, sum = 0;
    for (int w = 0; w < (int)blockDim.x / WARP; w++) {
        if (w < warp) before += warps[w];
        sum += warps[w];
    }
    __syncthreads();
    *total = sum;
    return before + x - value;
}

/* visit(i) for the choices i of expert e, ascending; a whole block, which reads the choices together. */
template <class F> __device__ __forceinline__ void each_choice(const int32_t *ids, int n, int e, F visit)
{
    __shared__ int32_t list[LIST];
    for (int base = 0; base < n; base += LIST) {
        const int count = n - base < LIST ? n - base : LIST;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += blockDim.x) list[i] = ids[base + i];
        __syncthreads();
        for (int i = 0; i < count; i++)
            if (list[i] == e) visit(base + i);
    }
}

/* An expert's slots from `at` in units of about equal size, from unit u on. */
__device__ __forceinline__ void write_units(const bl_cuda_groups &g, int u, int e, int at, int count, int unit)
{
    const int units = (count + unit - 1) / unit;
    for (int i = 0; i < units; i++) {
        const int from = (int)((int64_t)count * i / units), to = (int)((int64_t)count * (i + 1) / units);
        g.units[3 * (u + i)] = e;
        g.units[3 * (u + i) + 1] = at + from;
        g.units[3 * (u + i) + 2] = to - from;
    }
}

/* A token's slots ascending, -1 for choices that are dropped (they hold the largest number). */
__device__ __forceinline__ void order_slots(int32_t *of, int k)
{
    for (int i = 1; i < k; i++) {
        const int32_t x = of[i];
        int j = i;
        for (; j > 0 && of[j - 1] > x; j--) of[j] = of[j - 1];
        of[j] = x;
    }
    for (int i = 0; i < k; i++)
        if (of[i] == 0x7fffffff) of[i] = -1;
}

/* One block; a thread walks all choices for the experts it has. */
__global__ void __launch_bounds__(SORT_THREADS) sort_kernel(bl_cuda_groups g, const int32_t *ids, const float *gates, int T, int k,
                                                            int first, int E, int unit)
{
    int slots = 0, units = 0;
    start_next();
    for (int base = 0; base < E; base += blockDim.x) {
        const int e = base + threadIdx.x;
        int count = 0, total;
        const int id = e < E ? first + e : -1;
        each_choice(ids, T * k, id, [&](int) { count++; });
        int at = slots + block_scan(count, &total);
        slots += total;
        int u = units + block_scan((count + unit - 1) / unit, &total);
        units += total;
        write_units(g, u, e, at, count, unit);
        each_choice(ids, T * k, id, [&](int i) {
            g.token[at] = i / k;
            g.gate[at] = gates[i];
            g.slot_of[i] = at++;
        });
    }
    for (int i = threadIdx.x; i < T * k; i += blockDim.x)
        if (ids[i] < first || ids[i] >= first + E) g.slot_of[i] = 0x7fffffff;
    if (threadIdx.x == 0) *g.count = units;
    __syncthreads();
    for (int t = threadIdx.x; t < T; t += blockDim.x) order_slots(g.slot_of + t * k, k);
}

/* ---- sorting many choices: chunks of whole tokens counted, the counts summed, then each choice finds its slot */

__global__ void __launch_bounds__(SORT_THREADS) count_kernel(bl_cuda_groups g, const int32_t *ids, int n, int size, int first, int E)
{
    const int from = blockIdx.x * size, i = from + threadIdx.x;
    int32_t *counts = g.counts + (int64_t)blockIdx.x * E;
    for (int e = threadIdx.x; e < E; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    if ((int)threadIdx.x < size && i < n && ids[i] >= first && ids[i] < first + E) atomicAdd(&counts[ids[i] - first], 1);
}

__device__ __forceinline__ int choices_of(const bl_cuda_groups &g, int chunks, int E, int e)
{
    int count = 0;
    for (int c = 0; e < E && c < chunks; c++) count += g.counts[(int64_t)c * E + e];
    return count;
}

/* Size of an expert's units; all the same where nobody asks. */
__device__ __forceinline__ int size_of(int count, int units, bool many)
{
    return many && units ? unit_class((count + units - 1) / units) : 0;
}

/* One block: counts become each chunk's first slot of each expert; units lie by size, then expert. */
__global__ void __launch_bounds__(SORT_THREADS) offsets_kernel(bl_cuda_groups g, int chunks, int E, int unit, bool many)
{
    __shared__ int sizes[UNIT_CLASSES];
    if (threadIdx.x < UNIT_CLASSES) sizes[threadIdx.x] = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < E; e += blockDim.x) {
        const int count = choices_of(g, chunks, E, e), units = (count + unit - 1) / unit;
        atomicAdd(&sizes[size_of(count, units, many)], units);
    }
    __syncthreads();
    int before[UNIT_CLASSES], slots = 0, all = 0, total;
    for (int s = 0; s < UNIT_CLASSES; s++) {
        before[s] = all;
        all += sizes[s];
        if (threadIdx.x == 0) g.classes[s] = before[s];
    }
    if (threadIdx.x == 0) *g.count = g.classes[UNIT_CLASSES] = all;
    for (int base = 0; base < E; base += blockDim.x) {
        const int e = base + threadIdx.x, count = choices_of(g, chunks, E, e), units = (count + unit - 1) / unit;
        int at = slots + block_scan(count, &total), u = 0;
        slots += total;
        for (int s = 0; s < UNIT_CLASSES; s++) {
            const bool mine = size_of(count, units, many) == s;
            const int first = before[s] + block_scan(mine ? units : 0, &total);
            before[s] += total;
            if (mine) u = first;
        }
        write_units(g, u, e, at, count, unit);
        for (int c = 0; e < E && c < chunks; c++) {
            const int here = g.counts[(int64_t)c * E + e];
            g.counts[(int64_t)c * E + e] = at;
            at += here;
        }
    }
}

__global__ void __launch_bounds__(SORT_THREADS) slots_kernel(bl_cuda_groups g, const int32_t *ids, const float *gates, int n, int k,
                                                              int size, int first, int E)
{
    __shared__ int32_t list[SORT_THREADS];
    const int from = blockIdx.x * size, i = from + threadIdx.x;
    const bool mine = (int)threadIdx.x < size && i < n;
    const int id = mine ? ids[i] : -1;
    list[threadIdx.x] = id;
    __syncthreads();
    int rank = 0;
    for (int j = 0; j < (int)threadIdx.x; j++) rank += list[j] == id;
    if (mine && id >= first && id < first + E) {
        const int slot = g.counts[(int64_t)blockIdx.x * E + id - first] + rank;
        g.token[slot] = i / k;
        g.gate[slot] = gates[i];
        g.slot_of[i] = slot;
    } else if (mine) {
        g.slot_of[i] = 0x7fffffff;
    }
    __syncthreads();
    if (mine && i % k == 0) order_slots(g.slot_of + i, k);
}

__global__ void swiglu_kernel(uint16_t *a, const uint16_t *g, const uint16_t *u, const float *gate, int64_t gated, int64_t inter,
                              float limit, bool round, bool spread)
{
    const int64_t slot = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    take_over();
    if (i >= inter) return; /* whole warps */
    const float most = limit > 0 ? limit : INFINITY, w = slot < gated ? gate[slot] : 1.0f;
    float x = from_bf16(g[slot * inter + i]), y = from_bf16(u[slot * inter + i]);
    x = most < x ? most : x;
    y = most < y ? most : y;
    y = -most > y ? -most : y;
    const uint16_t v = to_bf16(w * (x * bl_sigmoid(x) * y));
    const int64_t to = spread ? i / 16 * 16 + i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8 : i;
    a[slot * inter + to] = round ? rounded_fp8(v) : v;
}

__global__ void sum_experts_kernel(float *partial, const uint16_t *y, const int32_t *slot_of, const uint16_t *shared, int64_t k, int64_t D)
{
    const int64_t t = blockIdx.y, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= D) return;
    float sum = 0;
    for (int64_t j = 0; j < k; j++) {
        const int32_t slot = slot_of[t * k + j];
        if (slot >= 0) sum += from_bf16(y[slot * D + i]);
    }
    if (shared) sum += from_bf16(shared[t * D + i]);
    partial[t * D + i] = sum;
}

} // namespace bl

using namespace bl;

void bl_cuda_route(bl_cuda_stream s, int32_t *ids, float *gates, const float *logits, const float *bias, int64_t T, int64_t E, int64_t k,
                   bool norm_topk, float route_scale)
{
    launch_plain(s, (unsigned)T, THREADS, E * sizeof(uint32_t), route_kernel, ids, gates, logits, bias, E, k, norm_topk, route_scale);
}

void bl_cuda_sort(bl_cuda_stream s, const bl_cuda_groups *g, const int32_t *ids, const float *gates, int64_t T, int64_t k, int64_t first,
                  int64_t count, bool many)
{
    const int n = (int)(T * k), E = (int)count, unit = (int)bl_cuda_unit_slots(T, many);
    if (n <= FEW_CHOICES && !many) {
        launch_plain(s, 1, SORT_THREADS, 0, sort_kernel, *g, ids, gates, (int)T, (int)k, (int)first, E, unit);
        return;
    }
    const int size = (int)bl_cuda_sort_chunk(k);
    const unsigned chunks = blocks_of(n, size);
    launch_plain(s, chunks, SORT_THREADS, 0, count_kernel, *g, ids, n, size, (int)first, E);
    launch_plain(s, 1, SORT_THREADS, 0, offsets_kernel, *g, (int)chunks, E, unit, many);
    launch_plain(s, chunks, SORT_THREADS, 0, slots_kernel, *g, ids, gates, n, (int)k, size, (int)first, E);
}

void bl_cuda_swiglu(bl_cuda_stream s, uint16_t *a, const uint16_t *g, const uint16_t *u, const float *gate, int64_t gated, int64_t n,
                    int64_t inter, float limit, bool round, bool spread)
{
    launch_early(true, s, dim3(blocks_of(inter, THREADS), (unsigned)n), THREADS, 0, swiglu_kernel, a, g, u, gate, gated, inter, limit,
                 round, spread);
}

void bl_cuda_sum_experts(bl_cuda_stream s, float *partial, const uint16_t *y, const int32_t *slot_of, const uint16_t *shared, int64_t T,
                         int64_t k, int64_t D)
{
    launch_plain(s, dim3(blocks_of(D, THREADS), (unsigned)T), THREADS, 0, sum_experts_kernel, partial, y, slot_of, shared, k, D);
}
