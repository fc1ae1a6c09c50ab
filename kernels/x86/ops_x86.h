/* What the x86 variants of the model's operations share: vectors, and what each file has for the table and for the others. */
#ifndef BL_KERNELS_X86_OPS_X86_H
#define BL_KERNELS_X86_OPS_X86_H

#include "kernels/ops_variants.h"
#include "kernels/x86/vec.h"

/* Each overlays its entries. */
void BL_LEVEL(bl_op_rows_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_norm_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_streams_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_attention_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_index_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_experts_init)(bl_op_kernels *t);
void BL_LEVEL(bl_op_engram_init)(bl_op_kernels *t);
void bl_op_round_init_avx2(bl_op_kernels *t);

/* ops_norm.c: sum of squares of n bf16, n a multiple of 16. */
float BL_LEVEL(bl_sum_squares)(const uint16_t *x, int64_t n);

/* ops_rows.c: packed rows as floats, what attention multiplies. */
void BL_LEVEL(bl_window_row_f32)(float *x, const uint8_t *row, int64_t d);
void BL_LEVEL(bl_latent_row_f32)(float *x, const uint8_t *row, int64_t d);

#endif
