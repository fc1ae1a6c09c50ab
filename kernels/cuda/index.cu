/* The indexer's scores of packed keys on the tensor cores, to the bit those of kernels/ops.h. */
#include "kernels/cuda/index.cuh"

namespace bl {

enum {
    WARPS = 4, KEYS = 32 /* of a warp's tile */, TILE_KEYS = WARPS * KEYS, MOST_TILES = 16 /* of a block */,
    WAVE = 3 /* blocks that a multiprocessor runs at a time */,
    GROUPS = BL_CUDA_MAX_INDEX_DIM / 32
};

/* Four bytes at any address. */
__device__ __forceinline__ uint32_t load4(const uint8_t *p)
{
    if (((uintptr_t)p & 3) == 0) return *(const uint32_t *)p;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Eight e2m1 codes as fp16 that are their values times 2^-14: the codes' bits in their place. Codes 0, 2; 1, 3; 4, 6; 5, 7. */
__device__ __forceinline__ uint4 place_codes(uint32_t w)
{
    const uint32_t even = (w << 4 & 0x80808080) | (w << 1 & 0x0e0e0e0e), odd = (w & 0x80808080) | (w >> 3 & 0x0e0e0e0e);
    return make_uint4(__byte_perm(even, 0, 0x1404), __byte_perm(odd, 0, 0x1404), __byte_perm(even, 0, 0x3424), __byte_perm(odd, 0, 0x3424));
}

/* What a lane loads of keys g, g + 8, g + 16 and g + 24 of a tile: eight codes of each group, and the groups' scale bytes. */
struct key_rows {
    uint32_t codes[4][GROUPS], scale[4];
};

/* Eight codes of a group that the lane has, and a row's scale bytes, where groups are missing those of 1. */
__device__ __forceinline__ uint32_t group_codes(const uint8_t *row, int k, int t, int groups)
{
    return k < groups ? load4(row + 16 * k + 4 * t) : 0;
}

__device__ __forceinline__ uint32_t scale_bytes(const uint8_t *row, int groups)
{
    uint32_t v = 0;
#pragma unroll
    for (int k = 0; k < GROUPS; k++) v |= (k < groups ? (uint32_t)row[16 * groups + k] : 0x7fu) << 8 * k;
    return v;
}

__device__ __forceinline__ void load_keys(key_rows &r, const bl_cuda_selection &a, const bl_cuda_page *pages, int64_t token, int base,
                                          int n, int groups)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, bytes = (int)index_bytes(a.width);
    const int last = n - 1 - base < KEYS ? n - 1 - base : KEYS - 1;
    const uint8_t *key[4];
    if (a.filtered) {
#pragma unroll
        for (int h = 0; h < 4; h++) {
            const int64_t e = entry_at(a, token, base + min(g + 8 * h, last));
            key[h] = pages[e / PAGE].keys + e % PAGE * bytes;
        }
    } else { /* a tile is of one page */
        const uint8_t *first = pages[(unsigned)base / PAGE].keys + (unsigned)base % PAGE * bytes;
#pragma unroll
        for (int h = 0; h < 4; h++) key[h] = first + min(g + 8 * h, last) * bytes;
    }
    if (groups == GROUPS) { /* rows of a multiple of four bytes */
#pragma unroll
        for (int h = 0; h < 4; h++) {
#pragma unroll
            for (int k = 0; k < GROUPS; k++) r.codes[h][k] = ((const uint32_t *)key[h])[4 * k + t];
            r.scale[h] = ((const uint32_t *)key[h])[4 * GROUPS];
        }
    } else {
#pragma unroll
        for (int h = 0; h < 4; h++) {
#pragma unroll
            for (int k = 0; k < GROUPS; k++) r.codes[h][k] = group_codes(key[h], k, t, groups);
            r.scale[h] = scale_bytes(key[h], groups);
        }
    }
}

/* Bits of bytes that are not of 2^-31 to 2^32: products and sums of scales like these are exact, in whatever order they are applied. */
__device__ __forceinline__ uint32_t far_bytes(uint32_t w)
{
    const uint32_t x = ~w, y = w << 1, z = w << 2; /* the upper three bits are 011 or 100 */
    return ((x ^ y) | (x ^ z)) & 0x80808080;
}

/* A token's queries: NT tiles of 8 heads. A head's groups have their codes times 2^(13 - down), by how much their scale is below the head's
 * largest; weights of heads that fold have that one in them. */
template <int NT> struct query_tables {
    uint4 codes[GROUPS][NT][WARP];
    float scale[GROUPS][NT * 8], up[GROUPS][NT * 8]; /* scale / 4, and 8 * 2^down: what is left for those that do not fold */
    float weight[2][NT * 8];                         /* as it is, and folded */
    uint8_t down[GROUPS][NT * 8];
};
enum { MOST_DOWN = 26 };

/* Returns whether the calling thread's heads fold. */
template <int NT>
__device__ __forceinline__ bool make_scales(query_tables<NT> &q, const bl_cuda_selection &a, int64_t token, int groups)
{
    bool folds = true;
    for (int head = threadIdx.x; head < NT * 8; head += blockDim.x) {
        const bool there = head < a.heads;
        const uint32_t bytes = there ? scale_bytes(a.queries + (token * a.heads + head) * index_bytes(a.width), groups) : 0x7f7f7f7f;
        const float weight = there ? a.weights[token * a.heads + head] : 0;
        int most = 0;
#pragma unroll
        for (int k = 0; k < GROUPS; k++) most = max(most, k < groups ? (int)(bytes >> 8 * k & 255) : 0);
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            const int byte = bytes >> 8 * k & 255, below = k < groups ? most - byte : 0, down = below < MOST_DOWN ? below : MOST_DOWN;
            folds = folds && below <= MOST_DOWN;
            q.down[k][head] = (uint8_t)down;
            q.up[k][head] = __uint_as_float((uint32_t)(127 + 3 + down) << 23);
            q.scale[k][head] = there ? 0.25f * e8m0((uint8_t)byte) : 0;
        }
        folds = folds && far_bytes(bytes) == 0;
        q.weight[0][head] = weight;
        q.weight[1][head] = weight * (2 * e8m0((uint8_t)most));
    }
    return folds;
}

template <int NT>
__device__ __forceinline__ void make_codes(query_tables<NT> &q, const bl_cuda_selection &a, int64_t token, int groups)
{
    for (int i = threadIdx.x; i < GROUPS * NT * WARP; i += blockDim.x) {
        const int l = i % WARP, nt = i / WARP % NT, k = i / WARP / NT, head = 8 * nt + l / 4;
        const uint8_t *row = a.queries + (token * a.heads + head) * index_bytes(a.width);
        const uint4 v = place_codes(head < a.heads ? group_codes(row, k, l % 4, groups) : 0);
        const uint32_t one = 0x74007400, down = (28u - q.down[k][head]) * 0x04000400u; /* 2^14 and 2^(13 - down) */
        q.codes[k][nt][l] = make_uint4(mul_f16x2(mul_f16x2(v.x, one), down), mul_f16x2(mul_f16x2(v.y, one), down),
                                       mul_f16x2(mul_f16x2(v.z, one), down), mul_f16x2(mul_f16x2(v.w, one), down));
    }
}

/* Dot products of the warp's keys with all heads: acc[m][nt][i] of key g + 16 m + 8 (i / 2) and head 8 nt + 2 t + i % 2. A group's sum is
 * exact; groups are added ascending. FOLDED: less the heads' scales, whose place is then in the weights. */
template <int NT, bool FOLDED>
__device__ __forceinline__ void multiply_keys(float (&acc)[2][NT][4], const key_rows &key, const query_tables<NT> &q)
{
    const int lane = threadIdx.x % WARP, t = lane % 4;
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        uint4 v[4];
        float s[4];
#pragma unroll
        for (int h = 0; h < 4; h++) {
            v[h] = place_codes(key.codes[h][k]);
            const uint32_t byte = key.scale[h] >> 8 * k & 255;
            s[h] = FOLDED ? __uint_as_float(byte << 23) : e8m0((uint8_t)byte);
        }
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            const uint4 b = q.codes[k][nt][lane];
            const float2 scale = *(const float2 *)&q.scale[k][8 * nt + 2 * t], up = *(const float2 *)&q.up[k][8 * nt + 2 * t];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float c[4];
                mma_f16(c, v[2 * m].x, v[2 * m + 1].x, v[2 * m].y, v[2 * m + 1].y, b.x, b.y, 0, 0, 0, 0);
                mma_f16(c, v[2 * m].z, v[2 * m + 1].z, v[2 * m].w, v[2 * m + 1].w, b.z, b.w, c[0], c[1], c[2], c[3]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float before = k ? acc[m][nt][i] : 0, mine = s[2 * m + i / 2];
                    acc[m][nt][i] = FOLDED ? fmaf(c[i], mine, before)
                                           : fmaf(c[i] * (i % 2 ? up.y : up.x), (i % 2 ? scale.y : scale.x) * mine, before);
                }
            }
        }
    }
}

/* The score of the tile's key g + 8 t: weights, and the heads' tree, whose last steps leave each lane one key. */
template <int NT> __device__ __forceinline__ float sum_heads(float (&acc)[2][NT][4], const float *weight)
{
    const int t = threadIdx.x % 4;
    const bool high = t & 2, odd = t & 1;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const float2 w = *(const float2 *)&weight[8 * nt + 2 * t];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][nt][i] = (acc[m][nt][i] > 0 ? acc[m][nt][i] : 0) * (i % 2 ? w.y : w.x);
    }
#pragma unroll
    for (int half = NT / 2; half; half /= 2)
#pragma unroll
        for (int nt = 0; nt < half; nt++)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[m][nt][i] += acc[m][nt + half][i];
    float two[2][2], one[2]; /* [key g + 16 high + 8 h][head's parity] */
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const float low_key = acc[0][0][2 * h + p], high_key = acc[1][0][2 * h + p];
            two[h][p] = (high ? high_key : low_key) + __shfl_xor_sync(~0u, high ? low_key : high_key, 2);
        }
#pragma unroll
    for (int p = 0; p < 2; p++) one[p] = (odd ? two[1][p] : two[0][p]) + __shfl_xor_sync(~0u, odd ? two[0][p] : two[1][p], 1);
    return one[0] + one[1];
}

/* NT tiles of 8 heads, padded to a power of two of at least 2. */
template <int NT>
__global__ void __launch_bounds__(WARPS * WARP, NT == 8 ? 2 : WAVE) scores_kernel(bl_cuda_selection a, bl_cuda_tables tables, int tiles)
{
    __shared__ __align__(16) query_tables<NT> query;
    const int64_t token = a.first + blockIdx.y, span = tables.span_of[token];
    const int n = (int)list_length(a, tables, token), first = (int)blockIdx.x * TILE_KEYS * tiles; /* positions are below 2^31 */
    const int groups = (int)(a.width / 32), warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int from = first + warp * KEYS;
    const bl_cuda_page *pages = tables.pages + tables.spans[span].pages + tables.source_pages[span * tables.sources + a.source];
    const int64_t old = tables.spans[span].start / a.ratio; /* entries that were there before the pass */
    const bool early = from < n && entry_at(a, token, min(from + KEYS, n) - 1) < old;
    if (!early) take_over();
    key_rows ahead;
    if (from < n) load_keys(ahead, a, pages, token, from, n, groups);
    if (early) take_over(); /* until here what is older than the pass */
    if (first >= n) return;
    const bool folds = __syncthreads_and(make_scales(query, a, token, groups));
    make_codes(query, a, token, groups);
    __syncthreads();
    for (int tile = 0; tile < tiles; tile++) {
        const int base = first + (tile * WARPS + warp) * KEYS;
        if (base >= n) return;
        const key_rows key = ahead;
        if (tile + 1 < tiles && base + WARPS * KEYS < n) load_keys(ahead, a, pages, token, base + WARPS * KEYS, n, groups);
        const uint32_t far = far_bytes(key.scale[0]) | far_bytes(key.scale[1]) | far_bytes(key.scale[2]) | far_bytes(key.scale[3]);
        const bool folded = __all_sync(~0u, folds && far == 0);
        float acc[2][NT][4];
        if (folded) multiply_keys<NT, true>(acc, key, query);
        else multiply_keys<NT, false>(acc, key, query);
        const float score = sum_heads<NT>(acc, query.weight[folded]);
        if (base + g + 8 * t < n) a.scores[(int64_t)blockIdx.y * a.longest + base + g + 8 * t] = score;
    }
}

} // namespace bl

using namespace bl;

void bl_cuda_select(bl_cuda_stream s, const bl_cuda_selection *a)
{
    int64_t longest = a->longest;
    if (a->filtered && a->blocks * a->size < longest) longest = a->blocks * a->size;
    const int64_t all = (longest + TILE_KEYS - 1) / TILE_KEYS, wave = WAVE * processor_count();
    const int64_t wanted = (all * a->rows + wave - 1) / wave;
    const int tiles = (int)(wanted < 1 ? 1 : wanted > MOST_TILES ? MOST_TILES : wanted);
    const dim3 grid((unsigned)((all + tiles - 1) / tiles), (unsigned)a->rows);
    if (a->heads <= 16) launch_early(true, s, grid, WARPS * WARP, 0, scores_kernel<2>, *a, *a->t, tiles);
    else if (a->heads <= 32) launch_early(true, s, grid, WARPS * WARP, 0, scores_kernel<4>, *a, *a->t, tiles);
    else launch_early(true, s, grid, WARPS * WARP, 0, scores_kernel<8>, *a, *a->t, tiles);
    launch_choice(s, a, longest);
}
