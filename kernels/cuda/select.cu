/* The choice of the best of index scores: selected entries, and the publisher's candidate blocks. See ops_select.c. */
#include "kernels/cuda/index.cuh"

namespace bl {

enum {
    SELECT_THREADS = 1024, SELECT_WARPS = SELECT_THREADS / WARP, BINS = 2048,
    CLUSTER = 8, LONG = 8192, FEW_ROWS = 64, /* entries and rows at which a cluster chooses */
    HELD = LONG, EACH = HELD / SELECT_THREADS, /* keys that a block has in shared memory; that a thread loads of them */
    PEAKS = CLUSTER * SELECT_THREADS / 4, MOST_CANDIDATES = 2048
};
#define LEAST_KEY 0x00800000u /* of -FLT_MAX */

__device__ __forceinline__ uint32_t score_key(float score)
{
    const uint32_t u = __float_as_uint(score + 0.0f);
    if ((u & 0x7f800000) == 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

struct select_shared {
    int count[BINS], total[BINS], bin, rank, greater[SELECT_WARPS], equal[SELECT_WARPS], mine[2];
};

/* What is left of a long list, in order: no fewer than the best of it. Of the cluster's first block. */
struct candidate_list {
    uint32_t peak[PEAKS / CLUSTER], peaks[PEAKS]; /* largest keys of parts of the list: a block's, all */
    uint32_t key[MOST_CANDIDATES];
    int at[MOST_CANDIDATES];
};

struct select_memory {
    select_shared sh;
    union {
        candidate_list c;
        uint32_t key[HELD]; /* a short list's */
    };
};

/* Blocks that share a row: a cluster's, or one. */
struct team {
    unsigned rank, size;
};

__device__ __forceinline__ void team_sync(const team &t)
{
    if (t.size > 1) cluster_sync();
    else __syncthreads();
}

/* Each block of a team has a stretch of the list. */
struct stretch {
    int64_t from, to;
};

/* This block's part of n, whole warps. */
__device__ __forceinline__ stretch stretch_of(const team &t, int64_t n)
{
    const int64_t each = (n + t.size * WARP - 1) / (t.size * WARP) * WARP, from = t.rank * each;
    return {from < n ? from : n, from + each < n ? from + each : n};
}

/* Threads before this one's warp and all of the block: sums of what warps left in shared memory. */
struct place {
    int before, all;
};

__device__ __forceinline__ place place_of(const int *of_warps)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, x = of_warps[lane];
    return {__reduce_add_sync(~0u, lane < warp ? x : 0), __reduce_add_sync(~0u, x)};
}

/* The bin that holds the k-th from the top, and its rank in there; -1 when there are fewer. A whole block, two bins a thread. */
__device__ void find_bin(select_shared &sh, int k)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, top = BINS - 1 - 2 * threadIdx.x; /* thread 0 has the highest */
    const int first = sh.total[top], second = sh.total[top - 1];
    if (threadIdx.x == 0) sh.bin = -1;
    int through = warp_scan(first + second);
    if (lane == WARP - 1) sh.greater[warp] = through;
    __syncthreads();
    through += place_of(sh.greater).before;
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
template <class F> __device__ uint32_t threshold(select_shared &sh, const team &t, F key_at, int64_t n, int k, int *ties)
{
    *ties = k;
    if (n <= k) return LEAST_KEY;
    const int shifts[3] = {21, 10, 0};
    const uint32_t settled[3] = {0, 0xffe00000u, 0xfffffc00u};
    const stretch s = stretch_of(t, n);
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
        team_sync(t);
        for (int i = threadIdx.x; i < BINS; i += blockDim.x) {
            int sum = t.size > 1 ? 0 : sh.count[i];
            if (t.size > 1) {
#pragma unroll
                for (unsigned r = 0; r < CLUSTER; r++) sum += remote(&sh.count[i], r);
            }
            sh.total[i] = sum;
        }
        team_sync(t); /* all have read before anybody counts again */
        find_bin(sh, rank);
        if (sh.bin < 0) return LEAST_KEY;
        key |= (uint32_t)sh.bin << shifts[d];
        rank = sh.rank;
        __syncthreads();
    }
    *ties = rank;
    return key;
}

/* emit(rank, i) for the chosen i, ascending; returns how many. forced (or -1) is chosen besides. Each warp has a stretch. */
template <class F, class G>
__device__ int choose(select_shared &sh, const team &t, F key_at, int64_t n, uint32_t key, int ties, int64_t forced, G emit)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const stretch s = stretch_of(t, n);
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
    const place above_here = place_of(sh.greater), level_here = place_of(sh.equal);
    int more = above_here.before, same = level_here.before, all = above_here.all, all_same = level_here.all;
    if (threadIdx.x == 0) sh.mine[0] = all, sh.mine[1] = all_same;
    team_sync(t);
    for (unsigned r = 0; r < t.size; r++) {
        if (r == t.rank) continue;
        const int theirs = remote(&sh.mine[0], r), their_same = remote(&sh.mine[1], r);
        if (r < t.rank) more += theirs, same += their_same;
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
    team_sync(t); /* all have read what the next call changes */
    return all + (all_same < ties ? all_same : ties);
}

/* Keys of four scores from i on, 0 behind the end. */
__device__ __forceinline__ uint4 four_keys(const float *scores, int64_t i, int64_t n, bool aligned)
{
    if (aligned && i + 4 <= n) {
        const float4 v = *(const float4 *)(scores + i);
        return make_uint4(score_key(v.x), score_key(v.y), score_key(v.z), score_key(v.w));
    }
    return make_uint4(i < n ? score_key(scores[i]) : 0, i + 1 < n ? score_key(scores[i + 1]) : 0, i + 2 < n ? score_key(scores[i + 2]) : 0,
                      i + 3 < n ? score_key(scores[i + 3]) : 0);
}

/* A cluster's blocks narrow a list to those of its best k and few others, in the first one's c. Each of the k parts of the list, of 2048,
 * that have the largest keys holds one of the best at least: what is below the k-th of these keys is none. Returns, in every block, how
 * many there are; more than MOST_CANDIDATES are not listed. */
__device__ int narrow(select_shared &sh, candidate_list &c, const team &t, const float *scores, int64_t n, int k)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t each = (n + t.size * SELECT_THREADS * 4 - 1) / (t.size * SELECT_THREADS * 4) * WARP * 4;
    const int64_t from = (t.rank * SELECT_WARPS + warp) * each + 4 * lane, to = from - 4 * lane + each < n ? from - 4 * lane + each : n;
    const bool aligned = ((uintptr_t)scores & 15) == 0;
    uint32_t most = 0;
#pragma unroll 4
    for (int64_t i = from; i < to; i += WARP * 4) {
        const uint4 x = four_keys(scores, i, to, aligned);
        most = max(most, max(max(x.x, x.y), max(x.z, x.w)));
    }
    for (int m = 1; m < 4; m *= 2) most = max(most, __shfl_xor_sync(~0u, most, m));
    if (lane % 4 == 0) c.peak[threadIdx.x / 4] = most;
    team_sync(t);
    for (int i = threadIdx.x; i < PEAKS; i += SELECT_THREADS)
        c.peaks[i] = (uint32_t)remote((const int *)&c.peak[i % (PEAKS / CLUSTER)], i / (PEAKS / CLUSTER));
    __syncthreads();
    int ties = 0, mine = 0;
    const uint32_t least = threshold(sh, team{0, 1}, [&](int64_t i) { return c.peaks[i]; }, PEAKS, k, &ties);
#pragma unroll 4
    for (int64_t i = from; i < to; i += WARP * 4) {
        const uint4 x = four_keys(scores, i, to, aligned);
        mine += (x.x >= least) + (x.y >= least) + (x.z >= least) + (x.w >= least);
    }
    mine = __reduce_add_sync(~0u, mine);
    if (lane == 0) sh.greater[warp] = mine;
    __syncthreads();
    const place here = place_of(sh.greater);
    int at = here.before, all = 0;
    if (threadIdx.x == 0) sh.mine[0] = here.all;
    team_sync(t);
    for (unsigned r = 0; r < t.size; r++) {
        const int theirs = remote(&sh.mine[0], r);
        all += theirs;
        at += r < t.rank ? theirs : 0;
    }
    for (int64_t i = from; mine != 0 && all <= MOST_CANDIDATES && i - 4 * lane < to; i += WARP * 4) {
        const uint4 v = i < to ? four_keys(scores, i, to, aligned) : make_uint4(0, 0, 0, 0);
        const uint32_t x[4] = {v.x, v.y, v.z, v.w};
        const int count = (x[0] >= least) + (x[1] >= least) + (x[2] >= least) + (x[3] >= least);
        if (!__any_sync(~0u, count != 0)) continue;
        int through = warp_scan(count);
        int to_next = at + through - count;
        at += __shfl_sync(~0u, through, WARP - 1);
#pragma unroll
        for (int b = 0; b < 4; b++) {
            if (x[b] < least) continue;
            set_remote((int *)&c.key[to_next], 0, (int)x[b]);
            set_remote(&c.at[to_next++], 0, (int)i + b);
        }
    }
    team_sync(t);
    return all;
}

/* -1 behind the chosen ones. */
__device__ __forceinline__ void fill_rest(int32_t *out, const team &t, int kept, int64_t n)
{
    for (int64_t i = kept + t.rank * blockDim.x + threadIdx.x; i < n; i += t.size * blockDim.x) out[i] = -1;
}

/* key_at(i): of the row's scores. */
template <class F>
__device__ void publish(select_shared &sh, const team &t, const bl_cuda_selection &a, F key_at, int64_t row, int64_t token, int64_t n)
{
    uint32_t *best = a.best + row * ((a.longest + a.size - 1) / a.size);
    int32_t *out = a.candidates + token * a.blocks;
    const int64_t count = (n + a.size - 1) / a.size, forced = n > 0 ? (n - 1) / a.size : -1;
    const stretch s = stretch_of(t, count);
    for (int64_t b = s.from + threadIdx.x; b < s.to; b += blockDim.x) {
        uint32_t most = 0;
        const int64_t end = (b + 1) * a.size < n ? (b + 1) * a.size : n;
        for (int64_t i = b * a.size; i < end; i++) most = max(most, key_at(i));
        best[b] = b == forced ? 0 : most;
    }
    __syncthreads();
    const auto best_at = [&](int64_t i) { return best[i]; };
    int ties = 0;
    const int k = (int)a.blocks - (forced >= 0);
    const uint32_t key = k > 0 ? threshold(sh, t, best_at, count, k, &ties) : ~0u;
    const int kept = choose(sh, t, best_at, count, key, ties, forced, [&](int at, int64_t i) { out[at] = (int32_t)i; });
    fill_rest(out, t, kept, a.blocks);
}

/* The best of what key_at has, n of it, the i-th of which is number at(i) of the token's list. */
template <class F, class G>
__device__ __forceinline__ void take_best(select_shared &sh, const team &t, const bl_cuda_selection &a, int64_t token, int64_t n, F key_at, G at)
{
    int32_t *out = a.selected + token * a.topk;
    int ties = 0;
    const uint32_t key = threshold(sh, t, key_at, n, (int)a.topk, &ties);
    const int kept = choose(sh, t, key_at, n, key, ties, -1, [&](int to, int64_t i) { out[to] = (int32_t)entry_at(a, token, at(i)); });
    fill_rest(out, t, kept, a.topk);
}

/* All n keys to shared memory, their loads under way together. */
__device__ __forceinline__ void hold_keys(uint32_t *key, const float *scores, int64_t n)
{
    float v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = i * SELECT_THREADS + threadIdx.x < n ? scores[i * SELECT_THREADS + threadIdx.x] : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i * SELECT_THREADS + threadIdx.x < n) key[i * SELECT_THREADS + threadIdx.x] = score_key(v[i]);
    __syncthreads();
}

__global__ void __launch_bounds__(SELECT_THREADS) select_kernel(bl_cuda_selection a, bl_cuda_tables tables)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    select_memory &m = *(select_memory *)memory;
    team t = {cluster_rank(), cluster_size()};
    const int64_t row = blockIdx.x / t.size, token = a.first + row, n = list_length(a, tables, token); /* older than the kernel before */
    const float *scores = a.scores + row * a.longest;
    const auto score_at = [&](int64_t i) { return score_key(scores[i]); };
    take_over();
    if (n <= HELD) { /* one block's */
        if (t.rank != 0) return;
        t.size = 1;
        hold_keys(m.key, scores, n);
        const auto held_at = [&](int64_t i) { return m.key[i]; };
        if (a.publish) publish(m.sh, t, a, held_at, row, token, n);
        take_best(m.sh, t, a, token, n, held_at, [](int64_t i) { return i; });
        return;
    }
    if (a.publish) publish(m.sh, t, a, score_at, row, token, n);
    if (t.size > 1 && a.topk <= PEAKS / 2) {
        const int candidates = narrow(m.sh, m.c, t, scores, n, (int)a.topk);
        if (candidates <= MOST_CANDIDATES) { /* the first block goes on alone */
            if (t.rank != 0) return;
            t.size = 1;
            take_best(m.sh, t, a, token, candidates, [&](int64_t i) { return m.c.key[i]; }, [&](int64_t i) { return (int64_t)m.c.at[i]; });
            return;
        }
    }
    take_best(m.sh, t, a, token, n, score_at, [](int64_t i) { return i; });
}

void launch_choice(cudaStream_t s, const bl_cuda_selection *a, int64_t longest)
{
    const unsigned blocks = longest >= LONG && a->rows <= FEW_ROWS ? CLUSTER : 1;
    cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(select_memory));
    launch_clusters(true, blocks, s, (unsigned)a->rows, SELECT_THREADS, sizeof(select_memory), select_kernel, *a, *a->t);
}

} // namespace bl
