/* The indexer: scores of packed keys on the integer tensor cores, to the bit those of kernels/ops.h, and the choice of the best. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum {
    WARPS = 4, KEYS = 16 /* of a warp's tile */, TILE_KEYS = WARPS * KEYS, MOST_TILES = 16 /* of a block */,
    WAVE = 768 /* blocks that run at a time, about */,
    SELECT_THREADS = 1024, SELECT_WARPS = SELECT_THREADS / WARP, BINS = 2048,
    GROUPS = BL_CUDA_MAX_INDEX_DIM / 32, MAGIC = 0x4b400000 /* 1.5 * 2^23 */,
    CLUSTER = 8, LONG = 8192, FEW_ROWS = 64, /* entries and rows at which a cluster chooses */
    KEPT = 20 << 10                          /* keys of a block in shared memory */
};
#define LEAST_KEY 0x00800000u /* of -FLT_MAX */

/* Twice the values of four e2m1 codes (low 16 bits) as signed bytes: positive and negative ones from tables, chosen by the codes' signs
 * (a byte permutation can spread a byte's sign). */
__device__ __forceinline__ uint32_t twice(uint32_t w)
{
    const uint32_t pick = w & 0x7777;
    uint32_t minus;
    asm("prmt.b32 %0, %1, %2, 0xd9c8;" : "=r"(minus) : "r"(w << 4), "r"(w)); /* what the intrinsic does not do */
    return (__byte_perm(0x03020100, 0x0c080604, pick) & ~minus) | (__byte_perm(0xfdfeff00, 0xf4f8fafc, pick) & minus);
}

/* Four bytes at any address. */
__device__ __forceinline__ uint32_t load4(const uint8_t *p)
{
    if (((uintptr_t)p & 3) == 0) return *(const uint32_t *)p;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

__device__ __forceinline__ void dot32(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Entries of the token's list: all visible ones, or those of its candidate blocks side by side. */
__device__ __forceinline__ int64_t visible(const bl_cuda_selection &a, const bl_cuda_tables &t, int64_t token)
{
    return (t.position[token] + 1) / a.ratio;
}

__device__ __forceinline__ int64_t list_length(const bl_cuda_selection &a, const bl_cuda_tables &t, int64_t token)
{
    const int64_t n = visible(a, t, token);
    if (!a.filtered) return n;
    const int32_t *blocks = a.candidates + token * a.blocks;
    int64_t low = 0, high = a.blocks; /* how many are listed: -1 fills the rest */
    while (low < high) {
        const int64_t mid = (low + high) / 2;
        if (blocks[mid] >= 0) low = mid + 1;
        else high = mid;
    }
    const int64_t over = low ? (blocks[low - 1] + 1) * a.size - n : 0; /* only the last block can be partial */
    return low * a.size - (over > 0 ? over : 0);
}

__device__ __forceinline__ int64_t entry_at(const bl_cuda_selection &a, int64_t token, int64_t i)
{
    return a.filtered ? a.candidates[token * a.blocks + i / a.size] * a.size + i % a.size : i;
}

/* What a lane loads of keys g and g + 8 of a tile: its codes of each group, and their scales. */
struct key_rows {
    uint32_t codes[2][GROUPS], scale[2];
};

__device__ __forceinline__ void load_keys(key_rows &r, const bl_cuda_selection &a, const bl_cuda_page *pages, int64_t token, int64_t base,
                                          int64_t n, int groups)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int64_t bytes = index_bytes(a.width);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t i = base + g + 8 * h < n ? base + g + 8 * h : n - 1, e = entry_at(a, token, i);
        const uint8_t *key = pages[e / PAGE].keys + e % PAGE * bytes;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) r.codes[h][k] = k < groups ? load4(key + 16 * k + 4 * t) : 0;
        if (groups == GROUPS) r.scale[h] = load4(key + a.width / 2);
        else {
            r.scale[h] = 0;
            for (int k = 0; k < groups; k++) r.scale[h] |= (uint32_t)key[a.width / 2 + k] << 8 * k;
        }
    }
}

/* NT tiles of 8 heads, padded to a power of two of at least 2. */
template <int NT>
__global__ void __launch_bounds__(WARPS * WARP) scores_kernel(bl_cuda_selection a, bl_cuda_tables tables, int tiles)
{
    __shared__ __align__(8) uint32_t query[GROUPS][NT][WARP][2];
    __shared__ __align__(8) float scale[GROUPS][NT * 8];
    __shared__ float weight[NT * 8];
    const int64_t token = a.first + blockIdx.y, n = list_length(a, tables, token), first = (int64_t)blockIdx.x * TILE_KEYS * tiles;
    if (first >= n) return;
    const int groups = (int)(a.width / 32), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int64_t bytes = index_bytes(a.width);
    for (int i = threadIdx.x; i < groups * NT * WARP; i += blockDim.x) {
        const int l = i % WARP, nt = i / WARP % NT, k = i / WARP / NT, head = 8 * nt + l / 4;
        const uint32_t w = head < a.heads ? load4(a.queries + (token * a.heads + head) * bytes + 16 * k + 4 * (l % 4)) : 0;
        query[k][nt][l][0] = twice(w);
        query[k][nt][l][1] = twice(w >> 16);
    }
    for (int i = threadIdx.x; i < groups * NT * 8; i += blockDim.x) {
        const int head = i % (NT * 8), k = i / (NT * 8);
        scale[k][head] = head < a.heads ? 0.25f * e8m0(a.queries[(token * a.heads + head) * bytes + a.width / 2 + k]) : 0;
    }
    for (int i = threadIdx.x; i < NT * 8; i += blockDim.x) weight[i] = i < a.heads ? a.weights[token * a.heads + i] : 0;
    __syncthreads();
    const int64_t span = tables.span_of[token];
    const bl_cuda_page *pages = tables.pages + tables.spans[span].pages + tables.source_pages[span * tables.sources + a.source];
    key_rows ahead;
    load_keys(ahead, a, pages, token, first + warp * KEYS, n, groups);
    for (int tile = 0; tile < tiles; tile++) {
        const int64_t base = first + (int64_t)(tile * WARPS + warp) * KEYS;
        if (base >= n) return;
        const key_rows key = ahead;
        if (tile + 1 < tiles) load_keys(ahead, a, pages, token, base + WARPS * KEYS, n, groups);
        float acc[NT][4] = {};
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            if (k >= groups) break;
            const uint32_t a0 = twice(key.codes[0][k]), a1 = twice(key.codes[1][k]);
            const uint32_t a2 = twice(key.codes[0][k] >> 16), a3 = twice(key.codes[1][k] >> 16);
            const float s0 = e8m0((uint8_t)(key.scale[0] >> 8 * k)), s1 = e8m0((uint8_t)(key.scale[1] >> 8 * k));
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                int c[4] = {MAGIC, MAGIC, MAGIC, MAGIC}; /* integers up to 2^22 added to its bits are added to its value */
                const uint2 q = *(const uint2 *)query[k][nt][lane];
                const float2 scales = *(const float2 *)&scale[k][8 * nt + 2 * t];
                dot32(c, a0, a1, a2, a3, q.x, q.y);
                acc[nt][0] = fmaf(__int_as_float(c[0]) - __int_as_float(MAGIC), scales.x * s0, acc[nt][0]);
                acc[nt][1] = fmaf(__int_as_float(c[1]) - __int_as_float(MAGIC), scales.y * s0, acc[nt][1]);
                acc[nt][2] = fmaf(__int_as_float(c[2]) - __int_as_float(MAGIC), scales.x * s1, acc[nt][2]);
                acc[nt][3] = fmaf(__int_as_float(c[3]) - __int_as_float(MAGIC), scales.y * s1, acc[nt][3]);
            }
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            for (int i = 0; i < 4; i++) {
                const int head = 8 * nt + 2 * t + i % 2;
                const float v = acc[nt][i] > 0 ? acc[nt][i] : 0;
                acc[nt][i] = head < a.heads ? v * weight[head] : 0.0f;
            }
#pragma unroll
        for (int half = NT / 2; half; half /= 2)
            for (int nt = 0; nt < half; nt++)
                for (int i = 0; i < 4; i++) acc[nt][i] += acc[nt + half][i];
        for (int m = 2; m; m /= 2)
            for (int i = 0; i < 4; i++) acc[0][i] += __shfl_xor_sync(~0u, acc[0][i], m);
        if (t == 0) {
            float *out = a.scores + (int64_t)blockIdx.y * a.longest + base;
            if (base + g < n) out[g] = acc[0][0] + acc[0][1];
            if (base + g + 8 < n) out[g + 8] = acc[0][2] + acc[0][3];
        }
    }
}

/* ---- the k best: see ops_select.c */

__device__ __forceinline__ uint32_t score_key(float score)
{
    const uint32_t u = __float_as_uint(score + 0.0f);
    if ((u & 0x7f800000) == 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

struct select_shared {
    int count[BINS], total[BINS], bin, rank, greater[SELECT_WARPS], equal[SELECT_WARPS], mine[2];
};

/* Blocks of a cluster share a row: each has a stretch of the list. Alone, a block is a cluster of one. */
struct stretch {
    int64_t from, to;
};

/* This block's part of n, whole warps. */
__device__ __forceinline__ stretch stretch_of(int64_t n)
{
    const int64_t each = (n + cluster_size() * WARP - 1) / (cluster_size() * WARP) * WARP, from = cluster_rank() * each;
    return {from < n ? from : n, from + each < n ? from + each : n};
}

/* The bin that holds the k-th from the top, and its rank in there; -1 when there are fewer. A whole block, two bins a thread. */
__device__ void find_bin(select_shared &sh, int k)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, top = BINS - 1 - 2 * threadIdx.x; /* thread 0 has the highest */
    const int first = sh.total[top], second = sh.total[top - 1];
    int through = first + second;
    if (threadIdx.x == 0) sh.bin = -1;
    for (int d = 1; d < WARP; d *= 2) {
        const int y = __shfl_up_sync(~0u, through, d);
        if (lane >= d) through += y;
    }
    if (lane == WARP - 1) sh.greater[warp] = through;
    __syncthreads();
    int before = lane < warp ? sh.greater[lane] : 0;
    for (int m = WARP / 2; m; m /= 2) before += __shfl_xor_sync(~0u, before, m);
    through += before;
    const int above = through - first - second;
    if (above < k && through >= k) {
        const bool in_first = above + first >= k;
        sh.bin = in_first ? top : top - 1;
        sh.rank = k - above - (in_first ? 0 : first);
    }
    __syncthreads();
}

/* Keys often share a bin: lanes that do count as one. */
__device__ __forceinline__ void count_key(select_shared &sh, bool counts, int bin)
{
    const unsigned same = __match_any_sync(~0u, counts ? bin : -1);
    if (counts && (same & ((1u << threadIdx.x % WARP) - 1)) == 0) atomicAdd(&sh.count[bin], __popc(same));
}

/* Key of the k-th best of n keys and how many equal ones belong to the best; the least key and k when there are not so many. */
template <class F> __device__ uint32_t threshold(select_shared &sh, F key_at, int64_t n, int k, int *ties)
{
    const int shifts[3] = {21, 10, 0};
    const uint32_t settled[3] = {0, 0xffe00000u, 0xfffffc00u};
    const stretch s = stretch_of(n);
    uint32_t key = 0;
    int rank = k;
    for (int d = 0; d < 3; d++) {
        for (int i = threadIdx.x; i < BINS; i += blockDim.x) sh.count[i] = 0;
        __syncthreads();
        for (int64_t i = s.from + threadIdx.x; i - threadIdx.x % WARP < s.to; i += blockDim.x) {
            const uint32_t x = i < s.to ? key_at(i) : 0;
            const bool counts = x != 0 && ((x ^ key) & settled[d]) == 0;
            const int bin = x >> shifts[d] & (BINS - 1);
            if (d == 0) count_key(sh, counts, bin);
            else if (counts) atomicAdd(&sh.count[bin], 1); /* few are left, of many bins */
        }
        cluster_sync();
        for (int i = threadIdx.x; i < BINS; i += blockDim.x) {
            int sum = 0;
#pragma unroll
            for (unsigned r = 0; r < CLUSTER; r++)
                if (r < cluster_size()) sum += remote(&sh.count[i], r);
            sh.total[i] = sum;
        }
        cluster_sync(); /* all have read before anybody counts again */
        find_bin(sh, rank);
        if (sh.bin < 0) {
            *ties = k;
            return LEAST_KEY;
        }
        key |= (uint32_t)sh.bin << shifts[d];
        rank = sh.rank;
        __syncthreads();
    }
    *ties = rank;
    return key;
}

/* emit(rank, i) for the chosen i, ascending; returns how many. forced (or -1) is chosen besides. Each warp has a stretch. */
template <class F, class G>
__device__ int choose(select_shared &sh, F key_at, int64_t n, uint32_t key, int ties, int64_t forced, G emit)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const stretch s = stretch_of(n);
    const int64_t each = (s.to - s.from + SELECT_THREADS - 1) / SELECT_THREADS * WARP, from = s.from + warp * each;
    const int64_t to = from + each < s.to ? from + each : s.to;
    const unsigned below = (1u << lane) - 1;
    int greater = 0, equal = 0;
    for (int64_t i = from + lane; i - lane < to; i += WARP) {
        const uint32_t x = i < to ? key_at(i) : 0;
        greater += __popc(__ballot_sync(~0u, i < to && (x > key || i == forced)));
        equal += __popc(__ballot_sync(~0u, i < to && x == key && i != forced));
    }
    if (lane == 0) sh.greater[warp] = greater, sh.equal[warp] = equal;
    __syncthreads();
    int more = 0, same = 0, all = 0, all_same = 0;
    for (int w = 0; w < SELECT_WARPS; w++) {
        if (w < warp) more += sh.greater[w], same += sh.equal[w];
        all += sh.greater[w], all_same += sh.equal[w];
    }
    if (threadIdx.x == 0) sh.mine[0] = all, sh.mine[1] = all_same;
    cluster_sync();
    for (unsigned r = 0; r < cluster_size(); r++) {
        if (r == cluster_rank()) continue;
        const int theirs = remote(&sh.mine[0], r), their_same = remote(&sh.mine[1], r);
        if (r < cluster_rank()) more += theirs, same += their_same;
        all += theirs, all_same += their_same;
    }
    for (int64_t i = from + lane; i - lane < to; i += WARP) {
        const uint32_t x = i < to ? key_at(i) : 0;
        const bool above = i < to && (x > key || i == forced), level = i < to && x == key && i != forced;
        const unsigned more_mask = __ballot_sync(~0u, above), same_mask = __ballot_sync(~0u, level);
        const int before = same + __popc(same_mask & below), taken = before < ties ? before : ties;
        if (above || (level && before < ties)) emit(more + __popc(more_mask & below) + taken, i);
        more += __popc(more_mask);
        same += __popc(same_mask);
    }
    cluster_sync(); /* all have read what the next call changes */
    return all + (all_same < ties ? all_same : ties);
}

/* -1 behind the chosen ones. */
__device__ __forceinline__ void fill_rest(int32_t *out, int kept, int64_t n)
{
    for (int64_t i = kept + cluster_rank() * blockDim.x + threadIdx.x; i < n; i += cluster_size() * blockDim.x) out[i] = -1;
}

__device__ void publish(select_shared &sh, const bl_cuda_selection &a, int64_t row, int64_t token, int64_t n)
{
    const float *scores = a.scores + row * a.longest;
    uint32_t *best = a.best + row * ((a.longest + a.size - 1) / a.size);
    int32_t *out = a.candidates + token * a.blocks;
    const int64_t count = (n + a.size - 1) / a.size, forced = n > 0 ? (n - 1) / a.size : -1;
    const stretch s = stretch_of(count);
    for (int64_t b = s.from + threadIdx.x; b < s.to; b += blockDim.x) {
        uint32_t most = 0;
        const int64_t end = (b + 1) * a.size < n ? (b + 1) * a.size : n;
        for (int64_t i = b * a.size; i < end; i++) {
            const uint32_t x = score_key(scores[i]);
            most = x > most ? x : most;
        }
        best[b] = b == forced ? 0 : most;
    }
    __syncthreads();
    const auto key_at = [&](int64_t i) { return best[i]; };
    int ties = 0;
    const int k = (int)a.blocks - (forced >= 0);
    const uint32_t key = k > 0 ? threshold(sh, key_at, count, k, &ties) : ~0u;
    const int kept = choose(sh, key_at, count, key, ties, forced, [&](int at, int64_t i) { out[at] = (int32_t)i; });
    fill_rest(out, kept, a.blocks);
}

__global__ void __launch_bounds__(SELECT_THREADS) select_kernel(bl_cuda_selection a, bl_cuda_tables tables)
{
    extern __shared__ uint32_t kept_keys[];
    __shared__ select_shared sh;
    const int64_t row = blockIdx.x / cluster_size(), token = a.first + row, n = list_length(a, tables, token);
    const float *scores = a.scores + row * a.longest;
    int32_t *out = a.selected + token * a.topk;
    const stretch s = stretch_of(n);
    const bool keep = s.to - s.from <= KEPT && cluster_size() > 1;
    if (a.publish) publish(sh, a, row, token, n);
    if (keep) {
#pragma unroll 4
        for (int64_t i = s.from + threadIdx.x; i < s.to; i += blockDim.x) kept_keys[i - s.from] = score_key(scores[i]);
        __syncthreads();
    }
    const auto key_at = [&](int64_t i) { return keep ? kept_keys[i - s.from] : score_key(scores[i]); };
    int ties = 0;
    const uint32_t key = threshold(sh, key_at, n, (int)a.topk, &ties);
    const int kept = choose(sh, key_at, n, key, ties, -1, [&](int at, int64_t i) { out[at] = (int32_t)entry_at(a, token, i); });
    fill_rest(out, kept, a.topk);
}

static void launch_select(cudaStream_t s, const bl_cuda_selection *a, int64_t longest)
{
    const unsigned blocks = longest >= LONG && a->rows <= FEW_ROWS ? CLUSTER : 1;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)a->rows * blocks);
    config.blockDim = dim3(SELECT_THREADS);
    config.dynamicSmemBytes = blocks > 1 ? KEPT * sizeof(uint32_t) : 0;
    config.stream = s;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, KEPT * sizeof(uint32_t));
    cudaLaunchKernelEx(&config, select_kernel, *a, *a->t);
}

} // namespace bl

using namespace bl;

void bl_cuda_select(bl_cuda_stream s, const bl_cuda_selection *a)
{
    int64_t longest = a->longest;
    if (a->filtered && a->blocks * a->size < longest) longest = a->blocks * a->size;
    const int64_t all = (longest + TILE_KEYS - 1) / TILE_KEYS, wanted = (all * a->rows + WAVE - 1) / WAVE;
    const int tiles = (int)(wanted < 1 ? 1 : wanted > MOST_TILES ? MOST_TILES : wanted);
    const dim3 grid((unsigned)((all + tiles - 1) / tiles), (unsigned)a->rows);
    if (a->heads <= 16) scores_kernel<2><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t, tiles);
    else if (a->heads <= 32) scores_kernel<4><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t, tiles);
    else scores_kernel<8><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t, tiles);
    launch_select(s, a, longest);
}
