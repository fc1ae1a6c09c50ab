/* What a plan for several ranks comes to, for people who choose a layout: bytes by rank, tensors by the rule that deals them, and
 * what one pipeline stage needs from another. */
#ifndef BL_CONVERT_OUTLINE_H
#define BL_CONVERT_OUTLINE_H

#include "convert/plan.h"

typedef struct bl_outline_rank {
    int stage, first_layer, layers; /* backbone layers of its stage, by number */
    int first_expert, experts;      /* of each backbone layer */
    size_t files, tensors;          /* in its own folder */
    uint64_t file_bytes;
    uint64_t shared_bytes; /* of files that it reads in another rank's folder */
} bl_outline_rank;

/* Tensors that one rule deals to the ranks. */
typedef struct bl_outline_class {
    const char *rule; /* "by head" ... */
    size_t tensors;   /* on all ranks */
    uint64_t bytes;
} bl_outline_class;

/* Tensors that one remedy for cuts inside scale blocks makes other than the release has them. */
typedef struct bl_outline_split {
    const char *what; /* "padded to whole blocks" ... */
    size_t tensors;   /* on all ranks; a weight and its scale are two */
    uint64_t bytes, source_bytes; /* as they come out, and what of the source is in them */
} bl_outline_split;

/* A tensor cut by rows that get padding behind the last one: an Engram table, the embedding or the head. Its scale has the same. */
typedef struct bl_outline_padding {
    const char *name;
    uint64_t rows, rank_rows, padding; /* of the tensor; of each rank's part, with padding; of padding on all ranks */
} bl_outline_padding;

/* Something that a layer makes and layers of a later stage use. */
typedef struct bl_crossing {
    const char *what; /* "compressed latents" ... */
    int layer, stage; /* where it is made */
    int to_stage, first_user, last_user, users; /* layers of that stage */
} bl_crossing;

typedef struct bl_outline {
    bl_outline_rank *ranks; /* [layout ranks] */
    bl_outline_class classes[BL_CUT_TABLE + 1]; /* by bl_cut; tensors 0: there are none */
    bl_outline_split split[BL_REMEDY_BF16 + 1]; /* by bl_remedy; tensors 0: there are none */
    bl_outline_padding *padding; /* [padding_count], in the order of the plan */
    size_t padding_count;
    bl_crossing *crossings; /* [crossing_count] */
    size_t crossing_count;
} bl_outline;

/* Arrays live in arena. Only failure: BL_E_NOMEM. */
bl_status bl_outline_make(const bl_config *c, const bl_plan *plan, bl_arena *arena, bl_outline *out, bl_error *err);

#endif
