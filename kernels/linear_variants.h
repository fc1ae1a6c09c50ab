/* What linear.c and the variants of its family share. Not for callers: they use the table of linear.h. */
#ifndef BL_KERNELS_LINEAR_VARIANTS_H
#define BL_KERNELS_LINEAR_VARIANTS_H

#include "kernels/linear.h"

enum {
    BL_LANES = 16, /* float32 accumulators of an output element */
    BL_BLOCK = 32  /* elements of K that one step of all lanes takes, and what shares a scale */
};

/* First code of row r, and the scale bytes of its K blocks (NULL for the kinds without). */
static inline const uint8_t *bl_matrix_row(const bl_matrix *w, int64_t r)
{
    return (const uint8_t *)w->codes + r * bl_matrix_row_bytes(w);
}

static inline const uint8_t *bl_matrix_scale(const bl_matrix *w, int64_t r)
{
    if (w->kind == BL_W_FP8) return w->scale + r / BL_SCALE_ROWS * (w->cols / BL_BLOCK);
    return w->kind == BL_W_FP4 ? w->scale + r * (w->cols / BL_BLOCK) : (const uint8_t *)0;
}

/* The first two fill a whole table, as a packed activation is for one variant; the last overlays that of avx512. */
void bl_linear_init_avx2(bl_linear_kernels *t);
void bl_linear_init_avx512(bl_linear_kernels *t);
void bl_linear_init_avx512bf16(bl_linear_kernels *t);

#endif
