/* The codes that the product of many tokens needs next, asked for in portions between the steps of the present panel: all at
 * once they would fill every line buffer and hold up the loads of the arithmetic. */
#ifndef BL_KERNELS_X86_LINEAR_PANEL_H
#define BL_KERNELS_X86_LINEAR_PANEL_H

#include "kernels/linear_variants.h"

typedef struct panel_ahead {
    const char *codes; /* of the first row */
    int64_t row_bytes, lines; /* from row to row; cache lines of a row's chunk */
    int64_t asked, parts, part;
} panel_ahead;

enum { PANEL_LINE = 64, PANEL_ROWS = 8 };

/* After the panel of rows from row on and the chunk at element k comes the next chunk of these rows, or the first of the next
 * rows; both may lie beyond the matrix, which a prefetch does not mind. parts: how often panel_ask will be called. */
static inline panel_ahead panel_ask_for(const bl_matrix *w, int64_t row, int64_t k, int64_t chunk, int64_t parts)
{
    const int64_t row_bytes = bl_matrix_row_bytes(w), block_bytes = row_bytes / (w->cols / BL_BLOCK);
    const int64_t next = k + chunk < w->cols ? k + chunk : 0, left = w->cols - next < chunk ? w->cols - next : chunk;
    const uint8_t *codes = bl_matrix_row(w, next ? row : row + PANEL_ROWS) + next / BL_BLOCK * block_bytes;
    return (panel_ahead){.codes = (const char *)codes, .row_bytes = row_bytes, .parts = parts,
                         .lines = (left / BL_BLOCK * block_bytes + PANEL_LINE - 1) / PANEL_LINE};
}

static inline void panel_ask(panel_ahead *a)
{
    const int64_t all = PANEL_ROWS * a->lines, end = all * ++a->part / a->parts;
    for (; a->asked < end; a->asked++)
        __builtin_prefetch(a->codes + a->asked / a->lines * a->row_bytes + a->asked % a->lines * PANEL_LINE, 0, 2);
}

#endif
