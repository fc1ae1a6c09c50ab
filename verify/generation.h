/* Which generation of DeepSeek model a checkpoint holds, told by its tensors and their shapes. The config's model_type has no say:
 * forks and casts carry any. */
#ifndef BL_VERIFY_GENERATION_H
#define BL_VERIFY_GENERATION_H

#include "formats/checkpoint.h"
#include "verify/slots.h"

typedef enum bl_generation {
    BL_GEN_NONE = 0, /* none that is known, or marks of several */
    BL_GEN_V3,       /* V3, R1, V3.1: latent attention. V3.1 differs in its scales alone (powers of two) */
    BL_GEN_V32,      /* V3.2: V3 with an indexer */
    BL_GEN_V4,       /* V4 Flash, Pro: residual streams with a learned collapse before the head, hash-routed layers */
    BL_GEN_V41       /* V4.1: residual streams without a learned collapse, 32x32 blocks, Engram tables */
} bl_generation;

/* "DeepSeek-V3" ...; "none" for BL_GEN_NONE. Stable: receipts carry it. */
const char *bl_generation_name(bl_generation g);

/* How the release of generation g stores the weight of this name, with "model." before it or not: BL_SLOT_DENSE (fp8) or BL_SLOT_EXPERT
 * (fp4, in V4 Flash and Pro); 0 when it has no codes or g is another than V4. For weights that no longer show it. */
bl_slot_kind bl_generation_codes(bl_generation g, const char *name);

/* What the tensors of c say, and in why which marks said so. block: edge of its fp8 blocks, 0 when there are none. */
bl_generation bl_generation_find(const bl_checkpoint *c, int block, char *why, size_t cap);

#endif
