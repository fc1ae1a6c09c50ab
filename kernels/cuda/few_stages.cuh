/* Stages of the kernels for few tokens: a warp's ring in shared memory, copies that fill it, and chains of tensor core steps from it. */
#ifndef BL_KERNELS_CUDA_FEW_STAGES_CUH
#define BL_KERNELS_CUDA_FEW_STAGES_CUH

#include "kernels/cuda/few_tiles.cuh"
#include "kernels/cuda/fp4_tiles.cuh"

namespace bl {

enum { SEGMENT = 256, STEPS = SEGMENT / 16, PLACE = 2192 /* bytes of a place of a warp's ring */, PLACES = 4, RING = PLACE * PLACES };

/* A stage of the ring: a segment of a tile, or of bf16 half of one, and its scales. fp8 and bf16 have rows of 256 bytes, which begin in
 * different banks; fp4 has what fp4_tiles.h says. */
template <bl_weight_kind KIND> struct stage_of {
    enum {
        ROW = 256, STRIDE = ROW + 16, SCALES = KIND == BL_W_FP4 ? BL_TILE_CODES : ROWS * STRIDE, TAKES = KIND == BL_W_FP4 ? 1 : 2 /* places */,
        COUNT = PLACES / TAKES, PARTS = KIND == BL_W_BF16 ? 2 : 1 /* stages of a segment */
    };
    static_assert((int)SCALES + (KIND == BL_W_FP4 ? BL_TILE_SCALES : 8) <= TAKES * PLACE && PLACE % 16 == 0, "a stage fits");
};

/* ---- filling the ring */

/* 256 bytes of each row, which are `pitch` bytes apart, from `offset` on. */
__device__ __forceinline__ void fetch_rows(uint32_t to, const few_tile &t, int offset, int pitch)
{
    typedef stage_of<BL_W_FP8> is;
    enum { CHUNKS = is::ROW / 16, STEP = WARP / CHUNKS };
    const int lane = threadIdx.x % WARP, first = lane / CHUNKS, rows = t.rows;
    const uint8_t *from = t.codes + (offset + lane % CHUNKS * 16 + first * pitch);
    const uint32_t at = to + first * is::STRIDE + lane % CHUNKS * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP) {
        if (r + first < rows) copy_async<16>(at + r * is::STRIDE, from); /* other rows have no results */
        from += STEP * pitch;
    }
}

__device__ __forceinline__ void fetch_fp4(uint32_t to, const few_tile &t, int segment)
{
    enum { EACH = WARP * 16 };
    const int lane = threadIdx.x % WARP;
    const uint8_t *from = t.codes + (segment * BL_TILE_CODES + lane * 16), *scales = t.scale + (segment * BL_TILE_SCALES + lane * 4);
#pragma unroll
    for (int i = 0; i < BL_TILE_CODES; i += EACH) copy_async<16>(to + lane * 16 + i, from + i);
    copy_async<4>(to + stage_of<BL_W_FP4>::SCALES + lane * 4, scales);
}

template <bl_weight_kind KIND> __device__ __forceinline__ void fetch(uint32_t to, const few_tile &t, int segment, int part, int cols)
{
    typedef stage_of<KIND> is;
    if (KIND == BL_W_FP4) {
        fetch_fp4(to, t, segment);
        return;
    }
    const uint8_t *const scale = t.scale + segment * 8;
    fetch_rows(to, t, (segment * is::PARTS + part) * is::ROW, cols * is::PARTS);
    if (KIND == BL_W_FP8 && threadIdx.x % WARP == 0) copy_async<8>(to + is::SCALES, scale);
}

/* ---- a segment's chain: c of two rows of the tile (few_rows) and tokens 2 t, 2 t + 1 */

template <bl_weight_kind KIND> struct few_rows {
    enum { SECOND = KIND == BL_W_FP4 ? BL_TILE_SECOND : 8 };
    static __device__ __forceinline__ int first(int g) { return KIND == BL_W_FP4 ? bl_fp4_tile_row(g) : g; }
};

/* Byte b of a word in the lower byte of both halves. */
__device__ __forceinline__ uint32_t both(uint32_t word, int b)
{
    return __byte_perm(word, 0, 0x4040 | b << 8 | b);
}

enum { UP_FP8 = 120 };

/* What values times 2^-120 are multiplied with, from a scale byte in both halves; for small scales with 2^120 in it. */
template <bool SMALL> __device__ __forceinline__ uint32_t scale_by(uint32_t byte)
{
    const uint32_t s = byte << 7;
    if (SMALL) return s + (UP_FP8 << 7) * 0x00010001u;
    return s > 0x00400040u ? s : 0x00400040u;
}

/* Codes' values times 2^-120 in v, times 2^120 and the scale: for small scales one multiplication does it. */
template <bool SMALL> __device__ __forceinline__ uint32_t scaled_codes(uint32_t v, uint32_t by)
{
    if (SMALL) return mul_bf16x2(v, by);
    return mul_bf16x2(mul_bf16x2(v, ((UP_FP8 + 127) << 7) * 0x00010001u), by);
}

/* Four e4m3 codes as bf16 that are their values times 2^-120: the codes' bits in their place; first and third, second and fourth. */
__device__ __forceinline__ uint2 place_codes(uint32_t w)
{
    return make_uint2((w * 256 & 0x80008000) | (w * 16 & 0x07f007f0), (w & 0x80008000) | (w >> 4 & 0x07f007f0));
}

template <bool SMALL> __device__ __forceinline__ uint2 values_fp8(uint32_t w, uint32_t by)
{
    const uint2 v = place_codes(w);
    return make_uint2(scaled_codes<SMALL>(v.x, by), scaled_codes<SMALL>(v.y, by));
}

template <bool SMALL> __device__ __forceinline__ void chain_fp8(float c[4], uint32_t codes, uint2 scales, const uint2 *x)
{
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        uint32_t w[4];
        load_matrices(w, codes + 16 * s);
        const uint32_t by = scale_by<SMALL>(both(s < 8 ? scales.x : scales.y, s / 2 % 4));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint2 low = values_fp8<SMALL>(w[2 * i], by), high = values_fp8<SMALL>(w[2 * i + 1], by);
            const fragment_a f = {{low.x, high.x, low.y, high.y}};
            mma(c, f, x[s + i]);
        }
    }
}

template <bool SMALL> __device__ __forceinline__ void chain_fp4(float c[4], uint32_t codes, const uint32_t scales[4], const uint2 *x)
{
#pragma unroll
    for (int s = 0; s < STEPS; s += 4) {
        const uint4 v = shared_four(codes + s / 4 * WARP * 16);
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) mma(c, tile_step<SMALL>(w[i], tile_scale<SMALL>(scales[s / 4], i / 2)), x[s + i]);
    }
}

/* Half a segment's. */
__device__ __forceinline__ void chain_bf16(float c[4], uint32_t weights, const uint2 *x)
{
#pragma unroll
    for (int s = 0; s < STEPS / 2; s++) {
        fragment_a f;
        load_matrices(f.r, weights + 32 * s);
        mma(c, f, x[s]);
    }
}

/* Do scales leave room for the factor 2^120? */
__device__ __forceinline__ bool small(uint2 v)
{
    return ((v.x | v.y) & 0x80808080) == 0;
}

/* What a stage holds, with its x. */
template <bl_weight_kind KIND> __device__ __forceinline__ void chain(float c[4], uint32_t stage, const uint2 *x)
{
    typedef stage_of<KIND> is;
    const int lane = threadIdx.x % WARP;
    const uint32_t rows = stage + lane % ROWS * is::STRIDE + lane / ROWS * 16;
    if (KIND == BL_W_BF16) {
        chain_bf16(c, rows, x);
    } else if (KIND == BL_W_FP8) {
        const uint2 scale = shared_pair(stage + is::SCALES);
        if (small(scale)) chain_fp8<true>(c, rows, scale, x);
        else chain_fp8<false>(c, rows, scale, x);
    } else {
        const uint4 v = shared_four(stage + is::SCALES + lane / 4 * 16);
        const uint32_t scales[4] = {v.x, v.y, v.z, v.w}, codes = stage + lane * 16;
        if (__all_sync(~0u, bl_fp4_tile_small(v.x | v.y | v.z | v.w))) chain_fp4<true>(c, codes, scales, x);
        else chain_fp4<false>(c, codes, scales, x);
    }
}

/* A lane's part of a segment of x: of each step four elements of the row of token g, from 4 t on. Beside fp8 first and third, second and
 * fourth; beside bf16 2 t, 2 t + 1, and the same of the step's second half. */
template <bl_weight_kind KIND> __device__ __forceinline__ void load_x(uint2 x[STEPS], const uint16_t *from)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (KIND == BL_W_BF16) {
            x[s] = make_uint2(global_word(from + 16 * s), global_word(from + 16 * s + 8));
            continue;
        }
        const uint2 v = global_pair(from + 16 * s);
        x[s] = KIND == BL_W_FP8 ? make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632)) : v;
    }
}

} // namespace bl

#endif
