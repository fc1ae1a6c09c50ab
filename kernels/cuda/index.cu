/* The indexer: scores of packed keys on the integer tensor cores, to the bit those of kernels/ops.h, and the choice of the best. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum {
    WARPS = 4, KEYS = 16 /* of a warp's tile */, TILES = 4 /* of a warp */, BLOCK_KEYS = WARPS * KEYS * TILES,
    SELECT_THREADS = 1024, SELECT_WARPS = SELECT_THREADS / WARP, BINS = 2048,
    GROUPS = BL_CUDA_MAX_INDEX_DIM / 32
};
#define LEAST_KEY 0x00800000u /* of -FLT_MAX */

/* Twice the values of four e2m1 codes (low 16 bits) as signed bytes. */
__device__ __forceinline__ uint32_t twice(uint32_t w)
{
    const uint32_t m = __byte_perm(0x03020100, 0x0c080604, w & 0x7777);
    uint32_t minus = 0;
    minus |= w & 0x8 ? 0x000000ffu : 0;
    minus |= w & 0x80 ? 0x0000ff00u : 0;
    minus |= w & 0x800 ? 0x00ff0000u : 0;
    minus |= w & 0x8000 ? 0xff000000u : 0;
    return __vsub4(m ^ minus, minus);
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

/* NT tiles of 8 heads, padded to a power of two of at least 2. */
template <int NT> __global__ void __launch_bounds__(WARPS * WARP) scores_kernel(bl_cuda_selection a, bl_cuda_tables tables)
{
    __shared__ uint32_t query[GROUPS][NT][WARP][2];
    __shared__ float scale[GROUPS][NT * 8], weight[NT * 8];
    const int64_t token = a.first + blockIdx.y, n = list_length(a, tables, token), first = (int64_t)blockIdx.x * BLOCK_KEYS;
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
    for (int tile = 0; tile < TILES; tile++) {
        const int64_t base = first + (int64_t)(tile * WARPS + warp) * KEYS;
        if (base >= n) return;
        const uint8_t *key[2];
        for (int h = 0; h < 2; h++) {
            const int64_t i = base + g + 8 * h < n ? base + g + 8 * h : n - 1, e = entry_at(a, token, i);
            key[h] = pages[e / PAGE].keys + e % PAGE * bytes;
        }
        float acc[NT][4] = {};
        for (int k = 0; k < groups; k++) {
            const uint32_t low = load4(key[0] + 16 * k + 4 * t), high = load4(key[1] + 16 * k + 4 * t);
            const uint32_t a0 = twice(low), a1 = twice(high), a2 = twice(low >> 16), a3 = twice(high >> 16);
            const float s0 = e8m0(key[0][a.width / 2 + k]), s1 = e8m0(key[1][a.width / 2 + k]);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                int c[4] = {0, 0, 0, 0};
                dot32(c, a0, a1, a2, a3, query[k][nt][lane][0], query[k][nt][lane][1]);
                const float q0 = scale[k][8 * nt + 2 * t], q1 = scale[k][8 * nt + 2 * t + 1];
                acc[nt][0] = fmaf((float)c[0], q0 * s0, acc[nt][0]);
                acc[nt][1] = fmaf((float)c[1], q1 * s0, acc[nt][1]);
                acc[nt][2] = fmaf((float)c[2], q0 * s1, acc[nt][2]);
                acc[nt][3] = fmaf((float)c[3], q1 * s1, acc[nt][3]);
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
    int count[BINS], bin, rank, greater[SELECT_WARPS], equal[SELECT_WARPS];
};

/* The bin that holds the k-th from the top, and its rank in there; -1 when there are fewer. A whole block. */
__device__ void find_bin(select_shared &sh, int k)
{
    const int lane = threadIdx.x % WARP;
    if (threadIdx.x < WARP) {
        int above = 0, each = BINS / WARP, sum = 0;
        const int top = BINS - 1 - lane * each; /* lane 0 has the highest bins */
        for (int i = 0; i < each; i++) sum += sh.count[top - i];
        int through = sum;
        for (int d = 1; d < WARP; d *= 2) {
            const int y = __shfl_up_sync(~0u, through, d);
            if (lane >= d) through += y;
        }
        above = through - sum;
        if (lane == WARP - 1 && through < k) sh.bin = -1;
        if (above < k && through >= k)
            for (int i = 0; i < each; i++) {
                const int c = sh.count[top - i];
                if (above + c >= k) {
                    sh.bin = top - i;
                    sh.rank = k - above;
                    break;
                }
                above += c;
            }
    }
    __syncthreads();
}

/* Key of the k-th best of n keys and how many equal ones belong to the best; the least key and k when there are not so many. */
template <class F> __device__ uint32_t threshold(select_shared &sh, F key_at, int64_t n, int k, int *ties)
{
    const int shifts[3] = {21, 10, 0};
    const uint32_t settled[3] = {0, 0xffe00000u, 0xfffffc00u};
    uint32_t key = 0;
    int rank = k;
    for (int d = 0; d < 3; d++) {
        for (int i = threadIdx.x; i < BINS; i += blockDim.x) sh.count[i] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            const uint32_t x = key_at(i);
            if (x != 0 && ((x ^ key) & settled[d]) == 0) atomicAdd(&sh.count[x >> shifts[d] & (BINS - 1)], 1);
        }
        __syncthreads();
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
    const int64_t each = (n + SELECT_THREADS - 1) / SELECT_THREADS * WARP, from = warp * each, to = from + each < n ? from + each : n;
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
    __syncthreads();
    for (int64_t i = from + lane; i - lane < to; i += WARP) {
        const uint32_t x = i < to ? key_at(i) : 0;
        const bool above = i < to && (x > key || i == forced), level = i < to && x == key && i != forced;
        const unsigned more_mask = __ballot_sync(~0u, above), same_mask = __ballot_sync(~0u, level);
        const int before = same + __popc(same_mask & below), taken = before < ties ? before : ties;
        if (above || (level && before < ties)) emit(more + __popc(more_mask & below) + taken, i);
        more += __popc(more_mask);
        same += __popc(same_mask);
    }
    return all + (all_same < ties ? all_same : ties);
}

__device__ void publish(select_shared &sh, const bl_cuda_selection &a, int64_t row, int64_t token, int64_t n)
{
    const float *scores = a.scores + row * a.longest;
    uint32_t *best = a.best + row * ((a.longest + a.size - 1) / a.size);
    int32_t *out = a.candidates + token * a.blocks;
    const int64_t count = (n + a.size - 1) / a.size, forced = n > 0 ? (n - 1) / a.size : -1;
    for (int64_t b = threadIdx.x; b < count; b += blockDim.x) {
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
    for (int64_t i = kept + threadIdx.x; i < a.blocks; i += blockDim.x) out[i] = -1;
}

__global__ void __launch_bounds__(SELECT_THREADS) select_kernel(bl_cuda_selection a, bl_cuda_tables tables)
{
    __shared__ select_shared sh;
    const int64_t row = blockIdx.x, token = a.first + row, n = list_length(a, tables, token);
    const float *scores = a.scores + row * a.longest;
    int32_t *out = a.selected + token * a.topk;
    if (a.publish) publish(sh, a, row, token, n);
    const auto key_at = [&](int64_t i) { return score_key(scores[i]); };
    int ties = 0;
    const uint32_t key = threshold(sh, key_at, n, (int)a.topk, &ties);
    const int kept = choose(sh, key_at, n, key, ties, -1, [&](int at, int64_t i) { out[at] = (int32_t)entry_at(a, token, i); });
    for (int64_t i = kept + threadIdx.x; i < a.topk; i += blockDim.x) out[i] = -1;
}

} // namespace bl

using namespace bl;

void bl_cuda_select(bl_cuda_stream s, const bl_cuda_selection *a)
{
    int64_t longest = a->longest;
    if (a->filtered && a->blocks * a->size < longest) longest = a->blocks * a->size;
    const dim3 grid((unsigned)((longest + BLOCK_KEYS - 1) / BLOCK_KEYS), (unsigned)a->rows);
    if (a->heads <= 16) scores_kernel<2><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t);
    else if (a->heads <= 32) scores_kernel<4><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t);
    else scores_kernel<8><<<grid, WARPS * WARP, 0, s>>>(*a, *a->t);
    select_kernel<<<(unsigned)a->rows, SELECT_THREADS, 0, s>>>(*a, *a->t);
}
