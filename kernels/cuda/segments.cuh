/* Segments of products in tiles of 16 rows, straight from global memory: what kernels of more than one file take of them. */
#ifndef BL_KERNELS_CUDA_SEGMENTS_CUH
#define BL_KERNELS_CUDA_SEGMENTS_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp4_tiles.h"

namespace bl {

enum { ROWS = 16, SEGMENT = BL_DOT_SEGMENT, STEPS = SEGMENT / BL_DOT_STEP };

constexpr bl_weight_kind TILED = (bl_weight_kind)(BL_W_F32 + 1); /* fp4 in the order of fp4_tiles.h */

/* A thread's rows of a tile: the first, and how far the second is from it. */
template <bl_weight_kind KIND> struct lane_rows {
    enum { SECOND = KIND == TILED ? BL_TILE_SECOND : 8 };
    static __device__ __forceinline__ int first(int g) { return KIND == TILED ? bl_fp4_tile_row(g) : g; }
};

struct weight_rows {
    const uint8_t *codes[2], *scale[2]; /* of those two rows; NULL behind the last row. Tiled: the lane's first of the tile */
    int64_t cols;
};

__device__ __forceinline__ int64_t row_bytes(bl_weight_kind kind, int64_t cols)
{
    return kind == BL_W_FP4 ? cols / 2 : kind == BL_W_FP8 ? cols : kind == BL_W_BF16 ? cols * 2 : cols * 4;
}

template <bl_weight_kind KIND>
__device__ __forceinline__ weight_rows tile_rows(const uint8_t *codes, const uint8_t *scale, int64_t cols, int64_t row, int64_t end)
{
    const int lane = threadIdx.x % WARP;
    weight_rows w;
    w.cols = cols;
    if constexpr (KIND == TILED) {
        w.codes[0] = codes + row * (cols / 2) + lane * 16;
        w.scale[0] = scale + row * (cols / 32) + lane / 4 * 16;
    } else {
        for (int h = 0; h < 2; h++) {
            const int64_t r = row + lane / 4 + 8 * h;
            w.codes[h] = r < end ? codes + r * row_bytes(KIND, cols) : NULL;
            w.scale[h] = r >= end ? NULL : KIND == BL_W_FP8 ? scale + r / 32 * (cols / 32) : KIND == BL_W_FP4 ? scale + r * (cols / 32) : NULL;
        }
    }
    return w;
}

__device__ __forceinline__ uint4 load16(const uint8_t *p, bool there)
{
    return there ? __ldg((const uint4 *)p) : make_uint4(0, 0, 0, 0);
}

/* No __ldg: in a kernel that begins early it could move above the wait. */
__device__ __forceinline__ uint2 load_x(const uint16_t *x, int k, int cols)
{
    return x && k < cols ? *(const uint2 *)(x + k) : make_uint2(0, 0);
}

/* The leading 16 bits of two floats, cut; both become what is left. */
__device__ __forceinline__ uint32_t split_pair(float &a, float &b)
{
    const uint32_t u = __float_as_uint(a) & 0xffff0000, v = __float_as_uint(b) & 0xffff0000;
    a -= __uint_as_float(u);
    b -= __uint_as_float(v);
    return u >> 16 | v;
}

template <int NT> __device__ __forceinline__ void segment_f32(float c[NT][4], const weight_rows &w, const uint16_t *const x[NT], int64_t k0)
{
    enum { AHEAD = NT == 1 ? 4 : 2 /* steps whose loads are under way together */ };
    const int t = threadIdx.x % 4;
#pragma unroll 2
    for (int s0 = 0; s0 < STEPS; s0 += AHEAD) {
        uint4 v[AHEAD][2];
        uint2 b[AHEAD][NT];
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            const int64_t k = k0 + 16 * (s0 + s) + 4 * t;
            for (int h = 0; h < 2; h++) v[s][h] = load16(w.codes[h] + 4 * k, w.codes[h] && k < w.cols);
            for (int n = 0; n < NT; n++) b[s][n] = load_x(x[n], (int)k, (int)w.cols);
        }
#pragma unroll
        for (int s = 0; s < AHEAD; s++) {
            fragment_a a[3];
            for (int h = 0; h < 2; h++) {
                float f[4] = {__uint_as_float(v[s][h].x), __uint_as_float(v[s][h].y), __uint_as_float(v[s][h].z),
                              __uint_as_float(v[s][h].w)};
                for (int p = 0; p < 3; p++) {
                    a[p].r[h] = split_pair(f[0], f[1]);
                    a[p].r[h + 2] = split_pair(f[2], f[3]);
                }
            }
            for (int n = 0; n < NT; n++)
                for (int p = 2; p >= 0; p--) mma(c[n], a[p], b[s][n]);
        }
    }
}

__device__ __forceinline__ void zero(float *c, int n)
{
    for (int i = 0; i < n; i++) c[i] = 0;
}

struct dense_args {
    bl_matrix w;
    int64_t row0, rows, ldx, tokens, ld, x_step, row_step, y_step;
    const uint16_t *x;
    uint16_t *y16;
    float *y32;
};

static dense_args dense_of(const bl_cuda_product *p)
{
    return {p->w, p->row0, p->rows, p->ldx, p->tokens, p->ld, p->x_step, p->row_step, p->y_step, p->x, p->y16, p->y32};
}

/* A warp's segment of float32 weights: its sums as they are. */
template <int NT>
__device__ __forceinline__ void segment_parts(const dense_args &p, float *parts, int64_t row, int64_t token, int64_t index)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const weight_rows w = tile_rows<BL_W_F32>((const uint8_t *)p.w.codes, p.w.scale, p.w.cols, p.row0 + row, p.row0 + p.rows);
    const uint16_t *x[NT];
    float c[NT][4];
    for (int n = 0; n < NT; n++) x[n] = token + 8 * n + g < p.tokens ? p.x + (token + 8 * n + g) * p.ldx : NULL;
    zero(c[0], NT * 4);
    segment_f32<NT>(c, w, x, index * SEGMENT);
    for (int n = 0; n < NT; n++)
        for (int i = 0; i < 4; i++) {
            const int64_t at = token + 8 * n + 2 * t + i % 2, r = row + g + i / 2 * 8;
            if (at < p.tokens && r < p.rows) parts[(index * p.tokens + at) * p.rows + r] = c[n][i];
        }
}

} // namespace bl

#endif
