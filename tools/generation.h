/* What baleen inspect says about the generation of a checkpoint and, for those before V4.1, about its layers and scales. */
#ifndef BL_TOOLS_GENERATION_H
#define BL_TOOLS_GENERATION_H

#include <jansson.h>

#include "verify/scales.h"

typedef struct generation_facts {
    bl_generation generation;
    char why[512];
    size_t problems; /* that binding the tensors of an earlier generation met */
    bl_binding binding; /* of an earlier generation; empty otherwise */
    bl_scale_survey scales;
    bl_arena arena;
} generation_facts;

/* Find the facts of c, which has a config. f->arena is to be reset, also after a failure. */
bl_status generation_find(const bl_checkpoint *c, generation_facts *f, bl_error *err);
/* "model: ...": layers and widths, by the config alone. */
void generation_model(const bl_config *c);
/* What layer of an earlier generation does, in a few words. */
void generation_role(const bl_checkpoint *c, const generation_facts *f, int layer, char *buf, size_t cap);
/* "generation: ..." and what is known of the scales, each on a line. */
void generation_print(const generation_facts *f);
/* Add "generation", "generation_why" and the scales to a receipt. */
void generation_json(const generation_facts *f, json_t *j);

#endif
