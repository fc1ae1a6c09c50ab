/* Which part of each tensor a rank of a packed model holds: the one rule that planning and binding agree on.
 *
 * rank = stage * W + r with W = max(tp, ep). The tensor-parallel coordinate is r mod tp (dense weights repeat over W / tp groups),
 * the experts' r * ep / W; an expert is never cut. Embedding and vision are on the first stage (the embedding also on the last,
 * when draft layers are kept), norm, head and mtp.* on the last, everything else with its layer. Heads, output groups, the inner
 * width of shared experts and the vocabulary are cut over tp into equal parts, Engram tables by row over all W ranks of their
 * stage: ceil(rows / W) each, the last ones padded.
 *
 * Parts of codes and of what multiplies them begin at whole scale blocks. Where equal parts do not, the layout's split says what is
 * done (bl_layout_remedy): the inner width of shared experts is padded to tp times whole blocks, in w1, w2 and w3 alike, or parts
 * stay equal and codes cut inside a block of rows get a scale for every row, others become BF16. */
#ifndef BL_VERIFY_SHARE_H
#define BL_VERIFY_SHARE_H

#include "verify/bind.h"

/* A rank's part of one slot. */
typedef struct bl_share {
    bl_rect part;        /* what it holds of the slot */
    uint64_t start;      /* row (of a cut vector: element) where its part would begin: beyond the slot when it is all padding */
    uint64_t rows;       /* rows (likewise) with padding at the end */
    uint64_t all_rows;   /* of all ranks, with padding */
    uint64_t start_col, cols, all_cols; /* of a matrix: the same for its columns */
    int first_expert, experts, all_experts; /* of a stacked tensor */
    int owner;           /* the rank in whose folder it lies: the rank itself, or where a shared table is */
} bl_share;

/* Does rank hold a part of slot s? drafts: the model has mtp.*. */
bool bl_share_of(const bl_config *c, const bl_layout *l, bool drafts, const bl_slot *s, int rank, bl_share *out);

/* What is done to a weight that the layout cuts inside a scale block. Its stored form decides whether there is anything to do. */
typedef enum bl_remedy {
    BL_REMEDY_NONE = 0, /* it is not */
    BL_REMEDY_PAD,
    BL_REMEDY_EXPAND, /* a scale for every row and 32 columns */
    BL_REMEDY_BF16
} bl_remedy;

bl_remedy bl_layout_remedy(const bl_layout *l, const bl_slot *s);
/* How often the 32 rows and columns of a value digest's tile are halved so that no part begins inside one. */
void bl_layout_fine(const bl_layout *l, const bl_slot *s, uint8_t *rows, uint8_t *cols);

/* One rank that holds everything. */
extern const bl_layout bl_layout_single;

/* Backbone layers of each of pp stages as even as can be, the last stages the longer ones: out [pp]. */
void bl_layout_even(int layers, int pp, int *out);

/* The stage of a backbone layer. */
int bl_layout_stage(const bl_layout *l, int layer);

/* Refuse (BL_E_USAGE) what the shapes do not allow: heads, groups or experts that a degree does not divide, a cut inside a 32x32
 * scale block or value tile for which the layout's split has no remedy, stages that do not add up. The message names the tensor and
 * lists the degrees that are possible and the splits that would do. path names the model. */
bl_status bl_layout_check(const bl_config *c, const bl_layout *l, const bl_slots *slots, const char *path, bl_error *err);

/* Does any slot need the layout's split? */
bool bl_layout_splits(const bl_layout *l, const bl_slots *slots);

#endif
