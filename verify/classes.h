/* What kind of weight a tensor is, by its name: how people read a list of sizes. */
#ifndef BL_VERIFY_CLASSES_H
#define BL_VERIFY_CLASSES_H

#include "formats/config.h"

typedef enum bl_class {
    BL_CLASS_EXPERTS = 0,
    BL_CLASS_ENGRAM_TABLES,
    BL_CLASS_ENGRAM,
    BL_CLASS_ATTENTION,
    BL_CLASS_SHARED,
    BL_CLASS_DENSE,
    BL_CLASS_ROUTER,
    BL_CLASS_MIXING,
    BL_CLASS_NORMS,
    BL_CLASS_EMBEDDING,
    BL_CLASS_DSPARK, /* draft layers, with everything in them */
    BL_CLASS_VISION,
    BL_CLASS_OTHER,
    BL_CLASSES
} bl_class;

/* "routed experts" ... Stable: receipts carry it. */
const char *bl_class_name(bl_class k);

/* The class of a tensor, of any generation, with or without the prefix "model.". config may be NULL: it tells which layers of an
 * earlier generation are draft layers. */
bl_class bl_class_of(const bl_config *config, const char *name);

#endif
