/* Tiles of the kernels for few tokens: rows of a weight, what they are multiplied with, where results go. */
#ifndef BL_KERNELS_CUDA_FEW_TILES_CUH
#define BL_KERNELS_CUDA_FEW_TILES_CUH

#include "kernels/cuda/device.cuh"

namespace bl {

enum { ROWS = 16 /* of a tile */, TOKENS = BL_CUDA_FEW };

struct few_tile {
    const uint8_t *codes, *scale;
    const uint16_t *x;
    uint16_t *y16;
    float *y32;
    int rows, tokens, ld;
    int input; /* tiles with the same number have the same rows of x */
    int row[TOKENS]; /* of x */
};

struct few_weight {
    const uint8_t *codes, *scale;
    uint16_t *y16;
    float *y32;
    int64_t rows, ld;
};

/* Which tiles there are: of one weight, by groups of its rows, or of two weights for the same x. */
struct dense_tiles {
    few_weight w, also;
    const uint16_t *x;
    int64_t cols, row0, x_step, row_step, y_step;
    int tokens, tiles, groups, more; /* tiles of a group; tiles of the second weight */
    __device__ __forceinline__ int count(void) const { return tiles * groups + more; }
    template <bl_weight_kind KIND> __device__ __forceinline__ few_tile at(int i) const
    {
        const bool second = i >= tiles * groups;
        const int64_t group = second ? 0 : i / tiles, in = (int64_t)(second ? i - tiles * groups : i % tiles) * ROWS;
        const int64_t row = row0 + group * row_step + in;
        const few_weight &m = second ? also : w;
        few_tile t;
        t.codes = m.codes + (KIND == BL_W_FP8 ? row * cols : row * cols * 2); /* fp8 or bf16 */
        t.scale = KIND == BL_W_FP8 ? m.scale + row / 32 * (cols / 32) : NULL;
        t.x = x + group * x_step;
        t.y16 = m.y16 ? m.y16 + group * y_step + in : NULL;
        t.y32 = m.y32 ? m.y32 + group * y_step + in : NULL;
        t.rows = (int)(m.rows - in < ROWS ? m.rows - in : ROWS);
        t.input = (int)group;
        t.tokens = tokens;
        t.ld = (int)m.ld;
        for (int n = 0; n < TOKENS; n++) t.row[n] = n < tokens ? n : 0;
        return t;
    }
};

struct expert_tiles {
    const bl_cuda_expert *experts;
    const int32_t *units, *unit_count, *token;
    const uint16_t *x;
    uint16_t *y[2];
    int which[2], weights, tiles;
    int64_t rows, cols;
    bool by_token;
    bool again; /* groups are older than the kernel before */
    __device__ __forceinline__ int count(void) const { return *unit_count * tiles * weights; }
    template <bl_weight_kind KIND> __device__ __forceinline__ few_tile at(int i) const
    {
        const int32_t *unit = units + 3 * (i / (tiles * weights));
        const int second = i / tiles % weights, k = second ? which[1] : which[0];
        const int64_t row = (int64_t)(i % tiles) * ROWS, slot = unit[1];
        const bl_cuda_expert *e = experts + unit[0];
        few_tile t;
        t.codes = (const uint8_t *)e->codes[k] + (KIND == BL_W_FP8 ? row * cols : row * cols / 2);
        t.scale = e->scale[k] + (KIND == BL_W_FP8 ? row / 32 : row) * (cols / 32);
        t.x = x;
        t.y16 = (second ? y[1] : y[0]) + slot * rows + row;
        t.y32 = NULL;
        t.rows = (int)(rows - row < ROWS ? rows - row : ROWS);
        t.input = (int)slot;
        t.tokens = unit[2];
        t.ld = (int)rows;
        for (int n = 0; n < TOKENS; n++) {
            const int64_t s = slot + (n < unit[2] ? n : 0);
            t.row[n] = by_token ? token[s] : (int)s;
        }
        return t;
    }
};

} // namespace bl

#endif
