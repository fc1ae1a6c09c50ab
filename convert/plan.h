/* The plan of a conversion: which tensors come out, in which files, at which places, made from what. Pure: descriptions in,
 * descriptions out. Every source tensor gets exactly one action, or the plan is refused with the tensor's name. */
#ifndef BL_CONVERT_PLAN_H
#define BL_CONVERT_PLAN_H

#include "verify/scales.h"
#include "verify/share.h"
#include "verify/view.h"

typedef enum bl_target {
    BL_TO_BF16 = 1, /* HF checkpoint: fp8 and fp4 weights cast to BF16, Engram tables as they are */
    BL_TO_PACKED,   /* packed model: codes as they are, experts stacked, every rank its part */
    BL_TO_RELEASED, /* HF checkpoint: BF16 weights encoded to fp8 and fp4 where the release has these, codes as they are */
    BL_TO_MERGED    /* HF checkpoint: a packed model's tensors put together again, as they are */
} bl_target;

typedef struct bl_plan_options {
    bl_target target;
    unsigned drop;       /* BL_DROP_ bits; checkpoints of earlier generations are kept whole */
    uint64_t shard_size; /* HF checkpoints: most bytes of tensors in a file; a larger tensor gets a file of its own */
    bl_form experts;     /* BL_TO_RELEASED: BL_FORM_FP4 or BL_FORM_FP8; 0 = codes as they are, BF16 to fp4 */
    int fp8_block_rows;  /* BL_TO_RELEASED: rows that share an fp8 scale, 32 or 1; of an earlier generation the edge of its blocks */
    bool save_scales;    /* BL_TO_BF16: keep the scales that casts use up in a file beside the checkpoint */
    const bl_layout *layout; /* BL_TO_PACKED: the ranks; NULL = one */
    bool link;           /* BL_TO_PACKED: source files with Engram tables that a rank has whole become files of the output */
    const bl_checkpoint *kept; /* BL_TO_MERGED: the scales that packing kept of weights that it decoded; NULL = none */
    const bool *layers;  /* [layers of the config] backbone layers to keep; NULL = all. Everything global is kept */
} bl_plan_options;

/* What happens to a source tensor. */
typedef enum bl_action {
    BL_ACT_NONE = 0,
    BL_ACT_COPY,    /* bytes as they are, same name */
    BL_ACT_CAST,    /* decoded to BF16, same name */
    BL_ACT_ENCODE,  /* BF16 to codes of the same name and a scale */
    BL_ACT_RECAST,  /* codes to codes of another kind with another scale, every value the same */
    BL_ACT_CONSUME, /* a scale that a cast uses up */
    BL_ACT_STACK,   /* bytes as they are, one expert's part of a stacked tensor */
    BL_ACT_UNSTACK, /* a stacked tensor that comes out as single experts, cast or copied */
    BL_ACT_SPLIT,   /* bytes as they are, cut into ranks' parts */
    BL_ACT_LINK,    /* stays where it is, in a file that the output links */
    BL_ACT_JOIN,    /* ranks' parts put together, or one of their copies */
    BL_ACT_DROP,    /* left out on purpose */
    BL_ACTIONS
} bl_action;

const char *bl_action_name(bl_action a); /* "copy" ... */

/* A weight, or a part of one, inside an output tensor. */
typedef struct bl_plan_member {
    const bl_weight *pieces; /* [piece_count] adjacent in the binding: what holds it in the source */
    size_t piece_count;
    bl_rect part;
    size_t sum; /* which of the plan's sum_count value digests it adds to; its codes and its scale have the same */
} bl_plan_member;

/* An output tensor: the bytes of its members, one after the other. Padding is zero codes and values, and scale bytes 127. */
typedef struct bl_plan_tensor {
    bl_tensor tensor; /* file indexes the plan's files; offset and nbytes are final */
    const bl_plan_member *members;
    size_t member_count; /* 0: zeros, nothing of the source */
    bool scale;   /* made of the members' scales, not their codes */
    bool cast;    /* codes decoded to BF16 */
    bool expand;  /* the scale of a block of rows is that of each of them: codes are as they are, the scale has their rows */
    bl_form encode; /* BL_FORM_FP8 or BL_FORM_FP4: made of values, codes or (scale) what goes with them; 0 = not encoded */
    int encode_rows, encode_cols; /* rows and columns that share a scale then */
    bool aside;   /* kept beside the checkpoint or the ranks, not a part of them */
    bool stacked; /* members are experts of one layer, a rank's */
    bool linked;  /* at its place in a source file */
    int rank;     /* BL_TO_PACKED: in whose folder it is */
    uint64_t rows; /* rows of each member as it comes out: padding, if any, follows its part */
    uint64_t pad_cols; /* columns of padding behind those of its part */
    uint8_t fine_rows, fine_cols; /* of its value digests: bl_weight */
    const uint64_t *start, *global_shape; /* [ndim] as the rank manifest has them */
} bl_plan_tensor;

typedef struct bl_plan_file {
    const char *name; /* relative to the output folder */
    bool aside;       /* BL_SCALES_NAME: not in the index */
    const bl_plan_tensor *tensors; /* [count], in data order */
    size_t count;
    bl_st_head head;    /* the safetensors header, and the bytes of the whole file; no header of a linked file */
    bool linked;        /* a file of the source as it is, with whatever else it holds */
    size_t source;      /* which */
} bl_plan_file;

typedef struct bl_plan {
    bl_target target;
    unsigned dropped;     /* BL_DROP_ bits in effect */
    const bl_layout *layout;
    const bool *present;  /* [layers] backbone layers in the output; NULL = all */
    bl_plan_file *files;
    size_t file_count;
    bl_plan_tensor *tensors;
    size_t tensor_count;
    size_t sum_count;
    int fp8_block_rows; /* of the options */
    size_t fp8, fp4; /* BL_TO_RELEASED: weights (tables aside) that come out in these forms */
    size_t aside_count; /* of the tensors: kept aside */
    uint64_t tensor_bytes, file_bytes; /* tensor_bytes without those */
    const bl_action *actions; /* [tensor_count of the source] */
    size_t action_count[BL_ACTIONS];
} bl_plan;

/* Plan the conversion of c, whose binding is b. All lives in arena and borrows from c and b. Refusals (BL_E_INPUT unless said):
 * a generation before V4.1 for anything but BF16 and copies as they are (BL_TO_MERGED), a layer selection without any layer (BL_E_USAGE), a layout that the shapes do
 * not allow (bl_layout_check), experts of one layer in different forms (packed), rows too wide to cast or encode. */
bl_status bl_plan_make(const bl_checkpoint *c, const bl_binding *b, const bl_plan_options *o, bl_arena *arena, bl_plan *out,
                       bl_error *err);

/* Refuse (BL_E_USAGE) a model packed with a split that gave weights other scales than they had, or none. */
bl_status bl_plan_released_scales(const bl_checkpoint *c, bl_error *err);

/* Member i of t as the source has it, with the padding and the digest's tiles of what comes out. */
bl_view bl_plan_view(const bl_plan_tensor *t, size_t i);
/* The same in the form that comes out: only its w has a meaning. */
bl_view bl_plan_made(const bl_plan_tensor *t, size_t i);
/* Bytes of a row of member i of t in the output. */
uint64_t bl_plan_row_bytes(const bl_plan_tensor *t, size_t i);
/* Bytes of member i of t in the output. */
uint64_t bl_plan_member_bytes(const bl_plan_tensor *t, size_t i);
/* At which multiples of bytes a member may be cut so that no value-digest unit and no row is split. */
uint64_t bl_plan_granule(const bl_plan_tensor *t, size_t i);

/* Does rank's manifest name t: is it in the rank's folder, or shared with it? Not what is kept aside. */
bool bl_plan_names(const bl_plan *p, const bl_plan_tensor *t, int rank);

#endif
