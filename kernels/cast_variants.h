/* What cast.c and the variants of its family share. Not for callers: they use the table of cast.h. */
#ifndef BL_KERNELS_CAST_VARIANTS_H
#define BL_KERNELS_CAST_VARIANTS_H

#include "kernels/cast.h"

/* The reference rows. Variants hand them the blocks they have no fast path for: scales whose results are subnormal, infinite
 * or NaN, and a last block of fewer than 32. */
void bl_fp8_row_c(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);
void bl_fp4_row_c(uint16_t *out, const uint8_t *packed, const uint8_t *scale, int64_t cols);
void bl_fp8_f32_row_c(uint16_t *out, const uint8_t *codes, const void *scale, int64_t cols, int64_t block);
void bl_fp4_tiles_c(uint16_t *tiles, const uint8_t *packed, int64_t stride, const uint8_t *scale, int64_t scale_stride, int64_t rows,
                    int64_t count);
void bl_fp8_tiles_c(uint16_t *tiles, const uint8_t *codes, int64_t stride, const uint8_t *scale, int64_t rows, int64_t count);

/* Any codes and scales, as the reference: also what gathers Engram rows. */
void bl_fp8_row_avx2(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);
void bl_fp8_row_avx512(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);

/* Each overlays the entries it has on a table filled for the level below it. */
void bl_cast_init_avx2(bl_cast_kernels *t);
void bl_cast_init_avx512(bl_cast_kernels *t);
void bl_cast_init_neon(bl_cast_kernels *t);

#endif
