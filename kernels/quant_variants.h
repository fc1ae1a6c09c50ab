/* What quant.c and the variants of its family share. Not for callers: they use the table of quant.h. */
#ifndef BL_KERNELS_QUANT_VARIANTS_H
#define BL_KERNELS_QUANT_VARIANTS_H

#include "kernels/quant.h"

/* The reference rows: for scales and values that a variant has no fast path for, and for a last block of fewer than 32. */
void bl_fp8_encode_c(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols);
void bl_fp4_encode_c(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties);
void bl_amax_rows_c(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols);
/* Columns from first on, a multiple of 16, of a row of cols. */
void bl_compare_tail_c(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t first, int64_t cols);

/* Magnitude bits of bf16, moved so that a block's scale is 1, are codes but for their width; the vectors work on them in 16-bit
 * lanes. That holds for scale bytes under which a subnormal bf16 gives code 0 or takes the reference's way. */
enum { BL_FP8_ENCODE_MIN = 8, BL_FP8_ENCODE_MAX = 246, BL_FP4_ENCODE_MIN = 3, BL_FP4_ENCODE_MAX = 252 };

/* bf16 bits of the thresholds between e2m1 codes, less one where a tie goes to the code above: a value gets code i when its
 * bits exceed the i first. Indexed by bl_fp4_ties. */
extern const int16_t bl_fp4_threshold[2][7];

/* Each overlays the entries it has on a table filled for the level below it. */
void bl_quant_init_avx2(bl_quant_kernels *t);
void bl_quant_init_avx512(bl_quant_kernels *t);
void bl_quant_init_neon(bl_quant_kernels *t);

#endif
