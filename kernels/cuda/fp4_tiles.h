/* The order in device memory of fp4 weights that the experts' kernels take: what a thread needs for a tensor core step is one word, and
 * a tile's segment is one piece. Plain C, for the host's side and for tests; fp4_tiles.cuh reads it.
 *
 * A weight [rows, cols] keeps its place and size: every 16 rows are a tile, whose bytes stay together, codes and scales each.
 *   codes   [tile][segment of 256 columns][4 groups of 4 steps][32 lanes][4 steps] words of 32 bits
 *   scales  [tile][segment][8 pairs of rows][4 pairs of blocks of 32 columns][2 rows][2 blocks] bytes
 * Pair g of rows is 4 (g / 2) + g % 2 and the one two further: what a thread of wgmma has when its results are neighbours. Lane 4 g + t
 * has of each step the elements 4 t .. 4 t + 3 of both rows; bl_fp4_tile_word says where their bits lie. Any bytes come back as they were. */
#ifndef BL_KERNELS_CUDA_FP4_TILES_H
#define BL_KERNELS_CUDA_FP4_TILES_H

#include "kernels/linear.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define BL_HOST_DEVICE __host__ __device__
#else
#define BL_HOST_DEVICE
#endif

enum {
    BL_TILE_ROWS = 16,
    BL_TILE_COLS = 256,
    BL_TILE_CODES = BL_TILE_ROWS * BL_TILE_COLS / 2,   /* bytes of a tile's segment */
    BL_TILE_SCALES = BL_TILE_ROWS * BL_TILE_COLS / 32, /* ... of its scales */
    BL_TILE_MOST_COLS = 16384                          /* a tile is laid out in shared memory */
};

/* Whether an expert's weight is kept so: where the experts' kernels take one, and nowhere else. */
static inline bool bl_fp4_tiled(bl_weight_kind kind, int64_t rows, int64_t cols)
{
    return kind == BL_W_FP4 && rows % BL_TILE_ROWS == 0 && cols % BL_TILE_COLS == 0 && cols <= BL_TILE_MOST_COLS;
}

/* First row of pair g, and the second one's distance. */
enum { BL_TILE_SECOND = 2 };
BL_HOST_DEVICE static inline int bl_fp4_tile_row(int g)
{
    return g / 2 * 4 + g % 2;
}

/* The operand of a step from its word: the pair's first row's codes 1 and 2, the second row's, the first row's 3 and 4, the second row's, one
 * in each half. A code's sign is in bit 15, the rest in bits 8 .. 6, which as bf16 is its value times 2^-126. */
BL_HOST_DEVICE static inline void bl_fp4_tile_place(uint32_t v[4], uint32_t word)
{
    const uint32_t bits = 0x81c081c0;
    v[0] = word & bits;
    v[1] = (word >> 3 | word << 29) & bits;
    v[2] = (word >> 6 | word << 26) & bits;
    v[3] = (word & 0x001b001b) * 0x4108 & bits; /* no two bits fall on one: what the other three leave, to its places */
}

/* The word of four codes of each of a pair's rows, given as they are stored: the first one in the lowest nibble. */
BL_HOST_DEVICE static inline uint32_t bl_fp4_tile_word(uint32_t first, uint32_t second)
{
    const uint32_t value = 0x00070007, sign = 0x00080008; /* of a code in each half */
    const uint32_t a = (first & 0xf) | (first & 0xf0) << 12, b = (second & 0xf) | (second & 0xf0) << 12;
    const uint32_t c = (first >> 8 & 0xf) | (first & 0xf000) << 4, d = (second >> 8 & 0xf) | (second & 0xf000) << 4;
    const uint32_t x = (a & value) << 6 | (a & sign) << 12, y = (b & value) << 6 | (b & sign) << 12, z = (c & value) << 6 | (c & sign) << 12;
    return x | (y << 3 | y >> 29) | (z << 6 | z >> 26) | (d & 0x00030003) << 3 | (d & 0x000c000c) >> 2;
}

/* The inverse of bl_fp4_tile_word. */
BL_HOST_DEVICE static inline void bl_fp4_tile_codes(uint32_t word, uint32_t *first, uint32_t *second)
{
    uint32_t v[4];
    bl_fp4_tile_place(v, word);
    for (int i = 0; i < 4; i++) v[i] = (v[i] >> 6 & 0x00070007) | (v[i] >> 12 & 0x00080008);
    *first = (v[0] & 0xf) | (v[0] >> 12 & 0xf0) | (v[2] & 0xf) << 8 | (v[2] >> 4 & 0xf000);
    *second = (v[1] & 0xf) | (v[1] >> 12 & 0xf0) | (v[3] & 0xf) << 8 | (v[3] >> 4 & 0xf000);
}

/* Of a pair's scales (a word: two blocks) those of one block, where bf16 has its exponent: the first row's in the low half. */
BL_HOST_DEVICE static inline uint32_t bl_fp4_tile_scales(uint32_t scales, int block)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(scales, 0, block % 2 ? 0x4341 : 0x4240) << 7;
#else
    return (scales >> block % 2 * 8 & 0x00ff00ff) << 7;
#endif
}

/* Small scales, below 128, leave room for 2^126: this added, one multiplication makes values of what bl_fp4_tile_place gives. */
enum { BL_TILE_UP = 126 << 7 | 126 << 23 };
BL_HOST_DEVICE static inline bool bl_fp4_tile_small(uint32_t scales)
{
    return (scales & 0x80808080) == 0;
}

/* Where in a tile as stored (rows of cols / 2 bytes) the two bytes of a pair's first row begin that are in word i. */
BL_HOST_DEVICE static inline int bl_fp4_tile_from(int i, int cols)
{
    enum { WORDS = BL_TILE_CODES / 4 };
    const int in = i % WORDS, step = in / 128 * 4 + in % 4, lane = in / 4 % 32;
    return bl_fp4_tile_row(lane / 4) * (cols / 2) + i / WORDS * (BL_TILE_COLS / 2) + step * 8 + lane % 4 * 2;
}

/* Where in a tile's scales as stored (rows of cols / 32 bytes) its byte i is. */
BL_HOST_DEVICE static inline int bl_fp4_tile_scale_from(int i, int cols)
{
    const int in = i % BL_TILE_SCALES, row = bl_fp4_tile_row(in / 16) + in / 2 % 2 * BL_TILE_SECOND;
    return row * (cols / 32) + i / BL_TILE_SCALES * (BL_TILE_COLS / 32) + in / 4 % 4 * 2 + in % 2;
}

#ifdef __cplusplus
}
#endif

#endif
