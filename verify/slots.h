/* Every tensor that a model's config calls for, under its released name: the one list that binding, planning, verifying and
 * synthesising agree on. Names and shapes: arch.md section 2. */
#ifndef BL_VERIFY_SLOTS_H
#define BL_VERIFY_SLOTS_H

#include "formats/config.h"

/* How a tensor may be stored. */
typedef enum bl_slot_kind {
    BL_SLOT_F32 = 1, /* F32 */
    BL_SLOT_BF16,    /* BF16 */
    BL_SLOT_DENSE,   /* F8_E4M3 with a scale per 32x32 block, or BF16 after a cast */
    BL_SLOT_EXPERT,  /* I8 packed fp4 with a scale per 1x32, F8_E4M3 as DENSE, or BF16 after a cast */
    BL_SLOT_TABLE,   /* Engram table: F8_E4M3 with a scale per 1x32, always */
    BL_SLOT_OTHER    /* integers of an earlier generation, as they are */
} bl_slot_kind;

/* How the ranks of a packed model share a tensor (shard.h). */
typedef enum bl_cut {
    BL_CUT_NONE = 0,   /* every rank that needs it has all of it */
    BL_CUT_HEADS,      /* rows (a vector's elements), by attention head */
    BL_CUT_GROUPS,     /* rows, by output group */
    BL_CUT_GROUP_COLS, /* columns, by output group */
    BL_CUT_INNER,      /* rows, along the inner width of a shared expert */
    BL_CUT_INNER_COLS, /* columns, likewise */
    BL_CUT_VOCAB,      /* rows, by token */
    BL_CUT_EXPERTS,    /* whole experts */
    BL_CUT_TABLE       /* rows of an Engram table */
} bl_cut;

/* What a checkpoint may leave out. */
typedef enum bl_slot_group {
    BL_GROUP_MODEL = 0,
    BL_GROUP_DSPARK, /* draft layers: mtp.*, and what an earlier generation has behind its last layer */
    BL_GROUP_VISION  /* vision.*, aligner.*, image_* */
} bl_slot_group;

typedef struct bl_slot {
    const char *name; /* of the weight; its scale, where it has one, is the name with ".scale" for ".weight" */
    bl_slot_kind kind;
    bl_slot_group group;
    bl_cut cut;
    int layer;  /* backbone layer, or layers + k for mtp.k; -1 for the rest */
    int expert; /* -1 when none */
    int part;   /* 1, 2, 3 for an expert's w1, w2, w3 */
    uint32_t order; /* position in model order: embedding, layers, norm, head, draft stages, vision */
    uint32_t ndim;  /* 1 or 2 */
    uint64_t shape[2]; /* of the decoded tensor, in elements: [out, in] */
} bl_slot;

typedef struct bl_slots {
    bl_slot *slots; /* [count], in model order */
    size_t count;
    int layers;          /* of the backbone */
    const bool *present; /* [layers] which backbone layers the folder holds; NULL = all. See BL_LAYERS_KEY */
} bl_slots;

/* Key of config.json that a folder made with a selection of layers carries: ascending layer numbers. Such a folder is for
 * inspection and for work on parts; it is no whole model and is not served. */
#define BL_LAYERS_KEY "baleen_layers"

/* List the tensors of a model. Everything lives in arena. Errors: a vision_config that lacks a needed key or a bad
 * BL_LAYERS_KEY (BL_E_INPUT). path names the config in errors. */
bl_status bl_slots_build(const bl_config *c, const char *path, bl_arena *arena, bl_slots *out, bl_error *err);

/* out->present from the config's BL_LAYERS_KEY, where it has one. Errors and path as above. */
bl_status bl_slots_selection(const bl_config *c, const char *path, bl_arena *arena, bl_slots *out, bl_error *err);

/* Name of the scale of weight name into buf; false when the name does not end in ".weight" or does not fit. */
bool bl_scale_name(char *buf, size_t cap, const char *weight);
/* Name of the stacked tensor that expert slot s belongs to ("layers.3.ffn.experts.w1.weight", or ".scale") into buf. */
void bl_stacked_name(char *buf, size_t cap, const bl_slots *slots, const bl_slot *s, bool scale);

#endif
