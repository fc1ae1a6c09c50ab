/* A part of a weight, wherever its bytes are: what a conversion writes for one rank, what a merge puts together from several. */
#ifndef BL_VERIFY_VIEW_H
#define BL_VERIFY_VIEW_H

#include "verify/bind.h"

/* Rows [row, row + rows), bytes [col, col + cols) of each, of the codes or the scale grid of a whole slot as stored in one form; pitch
 * bytes from one of the rows to the next. */
typedef struct bl_stored {
    uint64_t row, rows, col, cols, pitch;
} bl_stored;

typedef struct bl_view {
    bl_weight w;             /* slot, form and part of the view; tensor and scale are the first piece's: their dtype counts */
    const bl_weight *pieces; /* [count] of that slot, adjacent in a binding; together, replicas aside, they hold the part */
    size_t count;
} bl_view;

/* All that w holds. */
bl_view bl_view_of(const bl_weight *w);
/* A part of what count pieces of one slot hold. Packed codes begin at multiples of 32; fp8 codes may begin inside a block: their
 * scales are then those of all blocks that the part lies in. */
bl_view bl_view_cut(const bl_weight *pieces, size_t count, bl_rect part);

/* Weights of b that share the slot of weight i, from i on. */
size_t bl_view_pieces(const bl_binding *b, size_t i);

/* What w covers of its slot as stored. */
bl_stored bl_weight_stored(const bl_weight *w, bool scale);

/* Where byte offset of the view is: the tensor, and the offset in its file (-1 when no piece has it). */
int64_t bl_view_place(const bl_view *v, bool scale, uint64_t offset, const bl_tensor **t);

/* The tensor that holds n bytes of the view, from offset on, one after the other: *place is where they begin in its file. NULL
 * when they are scattered. */
const bl_tensor *bl_view_plain(const bl_view *v, bool scale, uint64_t offset, uint64_t n, uint64_t *place);

#endif
