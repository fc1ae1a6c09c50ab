/* The product y = x Wt that carries nearly all of the model's work, on weights in their stored codes.
 *
 * Contract (every variant gives these bits; there is one order of summation, whatever the number of tokens):
 *   x is bf16; W decodes exactly to bf16 (fp8 and fp4 times their power-of-two scale) or is fp32.
 *   For an output element: 16 float32 lanes start at +0; K is walked in blocks of 32 ascending; in each block lane l does
 *       acc[l] = fma(x[2l+1], w[2l+1], acc[l]); acc[l] = fma(x[2l], w[2l], acc[l]);
 *   then lanes are added as a tree: l + (l+8), l + (l+4), l + (l+2), l + (l+1).
 *   That is what vdpbf16ps does with 16 lanes of pairs, and what AVX2 does with two halves of eight.
 *   fp32 weights take the same order with float32 operands. K must be a multiple of 32.
 *   All results equal the reference's to the bit wherever they are finite, for all legal codes and scales (cast.h) and any bf16
 *   x, subnormal or not. (vdpbf16ps flushes subnormals; its variant proves beforehand that none can occur and otherwise takes
 *   the float32 path: README.)
 *
 * Sizes: tokens >= 1, rows and cols any, no threads inside. A call costs well under a microsecond beside the product, so
 * grouped experts are one call an expert (pack its tokens once, then w1, w3 by row ranges) and threads split rows. */
#ifndef BL_KERNELS_LINEAR_H
#define BL_KERNELS_LINEAR_H

#include <stddef.h>
#include <stdint.h>

typedef enum bl_weight_kind {
    BL_W_BF16 = 1, /* codes: uint16 [rows, cols]; no scale */
    BL_W_FP8,      /* codes: e4m3 uint8 [rows, cols]; scale: e8m0 [ceil(rows/32), ceil(cols/32)] per 32x32 block */
    BL_W_FP4,      /* codes: packed e2m1 uint8 [rows, cols/2], even element in the low nibble; scale: e8m0 [rows, cols/32] */
    BL_W_F32       /* codes: float [rows, cols]; no scale */
} bl_weight_kind;

/* A view of a weight as stored. Borrowed pointers; codes need no alignment beyond their element's. */
typedef struct bl_matrix {
    bl_weight_kind kind;
    int64_t rows, cols; /* out, in */
    const void *codes;
    const uint8_t *scale;
} bl_matrix;

enum { BL_SCALE_ROWS = 32 /* rows that share a scale in BL_W_FP8 */ };

static inline int64_t bl_matrix_row_bytes(const bl_matrix *m)
{
    return m->kind == BL_W_BF16 ? 2 * m->cols : m->kind == BL_W_F32 ? 4 * m->cols : m->kind == BL_W_FP4 ? m->cols / 2 : m->cols;
}

static inline uint64_t bl_matrix_code_bytes(const bl_matrix *m)
{
    return (uint64_t)m->rows * (uint64_t)bl_matrix_row_bytes(m);
}

static inline uint64_t bl_matrix_scale_bytes(const bl_matrix *m)
{
    const uint64_t rows = (uint64_t)m->rows, blocks = ((uint64_t)m->cols + 31) / 32;
    if (m->kind == BL_W_FP4) return rows * blocks;
    return m->kind == BL_W_FP8 ? (rows + BL_SCALE_ROWS - 1) / BL_SCALE_ROWS * blocks : 0;
}

typedef struct bl_linear_kernels {
    const char *name;
    /* Bytes of a prepared activation for tokens x cols, and of the scratch one call of rows needs. */
    size_t (*packed_bytes)(int64_t tokens, int64_t cols);
    size_t (*scratch_bytes)(int64_t tokens, int64_t cols);
    /* Prepare x [tokens, cols] bf16 (row stride ldx elements) for any number of rows() calls, by any thread. Private layout. */
    void (*pack)(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols);
    /* y[t * ldy + (r - row0)] = fp32 product for r in [row0, row1), all tokens. scratch is private to the calling thread and
     * 64-byte aligned, as is packed. Nothing outside those elements of y is written. For BL_W_FP8, row0 is relative to the
     * matrix whose scale grid begins at scale (so a range may begin inside a block). */
    void (*rows)(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                 void *scratch);
} bl_linear_kernels;

/* Fill t for the capabilities in cpu (bl_cpu_detect() & mask). */
void bl_linear_init(bl_linear_kernels *t, unsigned cpu);

#endif
