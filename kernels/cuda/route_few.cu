/* Routing and sorting of a few tokens, which a step waits for: one block. Nothing that another thread has written to global memory is
 * read, and no thread walks a list that a warp can look at together. Other blocks make the coefficients of the mixing meanwhile. */
#include "kernels/cuda/choice.cuh"
#include "kernels/cuda/mixing.cuh"

namespace bl {

enum {
    THREADS = MIX_THREADS, WARPS = THREADS / WARP, TOKENS = BL_CUDA_FEW, MOST_EXPERTS = 384, EACH = MOST_EXPERTS / WARP /* of a lane */,
    SCORES = TOKENS * MOST_EXPERTS / THREADS /* of a thread */,
    MOST_CHOICES = TOKENS * BL_CUDA_MAX_CHOICES, TURNS = MOST_CHOICES / WARPS /* choices that a warp places */
};
static_assert((int)TURNS <= (int)WARP, "a lane keeps each turn's result");

struct few_routing {
    bl_cuda_groups g;
    int32_t *ids;
    float *gates;
    const float *logits, *bias;
    int T, E, k, first, count; /* of the experts here */
    bool norm_topk;
    float route_scale;
};

struct route_shared {
    float score[TOKENS][MOST_EXPERTS], gate[MOST_CHOICES];
    int32_t here[MOST_CHOICES];  /* number of the choice's expert among those here, or AWAY */
    int32_t heads[MOST_CHOICES]; /* the same for the first choice of an expert, AWAY for others */
};
enum { AWAY = 0x7fffffff };

/* A warp: lane i gets the i-th best of the keys, ties to the lower id. Lane l has those of experts l, l + 32, ... */
__device__ __forceinline__ int choose(uint32_t key[EACH], int k)
{
    const int lane = threadIdx.x % WARP;
    int mine = 0;
    for (int i = 0; i < k; i++) {
        uint32_t best = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) best = max(best, key[e]);
        best = __reduce_max_sync(~0u, best);
        unsigned found = 0; /* a bit for each that is as good */
#pragma unroll
        for (int e = 0; e < EACH; e++) found |= key[e] == best ? 1u << e : 0;
        const unsigned id = __reduce_min_sync(~0u, found ? (__ffs((int)found) - 1) * WARP + lane : ~0u);
        if (lane == i) mine = (int)id;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (id == (unsigned)(e * WARP + lane)) key[e] = 0;
    }
    return mine;
}

/* Token t's choices and gates, by a warp. bias: that of the lane's experts. */
__device__ __forceinline__ void route_token(route_shared &s, const few_routing &r, int t, const float bias[EACH])
{
    const int lane = threadIdx.x % WARP;
    uint32_t key[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) key[e] = e * WARP + lane < r.E ? choice_key(s.score[t][e * WARP + lane] + bias[e]) : 0;
    const int id = choose(key, r.k), at = t * r.k + lane;
    const float score = lane < r.k ? s.score[t][id] : 0;
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < r.k; i++) sum += __shfl_sync(~0u, score, i);
    if (lane >= r.k) return;
    const float gate = (r.norm_topk && r.k > 1 ? score / (sum + 1e-20f) : score) * r.route_scale;
    s.here[at] = id >= r.first && id < r.first + r.count ? id - r.first : AWAY;
    s.gate[at] = gate;
    r.ids[at] = id;
    r.gates[at] = gate;
}

/* Where a choice lies among all: choices of lower experts, and of its own; those of them that come earlier; its rank in its token. */
struct place {
    int lower, same, earlier, rank;
};

/* Fields of what lanes add up: at most 255, TOKENS, TOKENS - 1 and 31. */
enum { SAME = 1 << 8, EARLIER = 1 << 12, RANK = 1 << 16 };

__device__ __forceinline__ int place_of(const route_shared &s, int i, int n, int k)
{
    const int id = s.here[i], from = i / k * k;
    int sum = 0;
    for (int j = threadIdx.x % WARP; j < n; j += WARP) {
        const int other = s.here[j];
        const bool before = other < id, alike = other == id, earlier = alike && j < i;
        if (id != AWAY) sum += (before ? 1 : 0) + (alike ? SAME : 0) + (earlier ? EARLIER : 0);
        if (j >= from && j < from + k && (before || earlier)) sum += RANK;
    }
    return __reduce_add_sync(~0u, sum);
}

__device__ __forceinline__ place unpack(int sum)
{
    return {sum & 255, sum / SAME % 16, sum / EARLIER % 16, sum / RANK};
}

/* The groups of what is chosen: each warp places every so many of the choices. */
__device__ __forceinline__ void group_choices(route_shared &s, const few_routing &r)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = r.T * r.k;
    const bl_cuda_groups &g = r.g;
    int mine = 0; /* of the turn that has the lane's number */
    for (int i = warp, turn = 0; i < n; i += WARPS, turn++) {
        const int sum = place_of(s, i, n, r.k);
        if (lane == turn) mine = sum;
    }
    const int i = warp + lane * WARPS, id = i < n ? s.here[i] : AWAY;
    const place p = unpack(mine);
    const int slot = p.lower + p.earlier;
    const bool head = id != AWAY && p.earlier == 0;
    if (i < n) {
        s.heads[i] = head ? id : AWAY;
        g.slot_of[i / r.k * r.k + p.rank] = id != AWAY ? slot : -1;
    }
    if (id != AWAY) {
        g.token[slot] = i / r.k;
        g.gate[slot] = s.gate[i];
    }
    const int units = __syncthreads_count(head);
    if (threadIdx.x == 0) *g.count = units;
    for (unsigned heads = __ballot_sync(~0u, head); heads; heads &= heads - 1) {
        const int turn = __ffs((int)heads) - 1, expert = __shfl_sync(~0u, id, turn);
        int lower = 0;
        for (int j = lane; j < n; j += WARP) lower += s.heads[j] < expert;
        lower = __reduce_add_sync(~0u, lower);
        if (lane == turn) g.units[3 * lower] = expert, g.units[3 * lower + 1] = slot, g.units[3 * lower + 2] = p.same;
    }
}

/* The first block routes; one for each token mixes, where there are more. */
__global__ void __launch_bounds__(THREADS) route_few_kernel(few_routing r, mix_args mixing)
{
    __shared__ route_shared s;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (blockIdx.x > 0) {
        mix_token(mixing, blockIdx.x - 1);
        return;
    }
    float bias[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) bias[e] = warp < r.T && e * WARP + lane < r.E ? r.bias[e * WARP + lane] : 0;
    take_over();
    float logit[SCORES];
#pragma unroll
    for (int e = 0; e < SCORES; e++) logit[e] = (int)threadIdx.x + e * THREADS < r.T * r.E ? r.logits[threadIdx.x + e * THREADS] : 0;
#pragma unroll
    for (int e = 0; e < SCORES; e++) {
        const int i = threadIdx.x + e * THREADS, t = i / r.E;
        if (i < r.T * r.E) s.score[t][i - t * r.E] = bl_sqrt_softplus(logit[e]);
    }
    __syncthreads();
    if (warp < r.T) route_token(s, r, warp, bias);
    __syncthreads();
    group_choices(s, r);
}

} // namespace bl

using namespace bl;

bool bl_cuda_routes_few(int64_t T, int64_t E, int64_t k)
{
    return T <= TOKENS && E <= MOST_EXPERTS && k <= BL_CUDA_MAX_CHOICES;
}

void bl_cuda_route_few(bl_cuda_stream s, const bl_cuda_groups *g, int32_t *ids, float *gates, const float *logits, const float *bias,
                       int64_t T, int64_t E, int64_t k, bool norm_topk, float route_scale, int64_t first, int64_t count,
                       const bl_cuda_mixing *mixing)
{
    const few_routing r = {*g, ids, gates, logits, bias, (int)T, (int)E, (int)k, (int)first, (int)count, norm_topk, route_scale};
    const mix_args beside = mixing ? args_of(mixing) : mix_args{};
    launch_early(true, s, dim3(mixing ? 1 + (unsigned)mixing->T : 1), THREADS, 0, route_few_kernel, r, beside);
}
