/* Tensors by class: how many, how many bytes, in which dtypes. */
#ifndef BL_TOOLS_CLASS_TABLE_H
#define BL_TOOLS_CLASS_TABLE_H

#include "formats/safetensors.h"
#include "verify/classes.h"

#include <jansson.h>

typedef struct class_row {
    uint64_t tensors, bytes;
    uint64_t by_dtype[BL_DT_COUNT]; /* bytes */
} class_row;

typedef struct class_table {
    bool names_only; /* no dtype is known, and bytes only where they are not 0 */
    class_row rows[BL_CLASSES];
} class_table;

/* Count a tensor, or a further part of one that was counted. config may be NULL (bl_class_of). */
void class_table_add(class_table *k, const bl_config *config, const char *name, bl_dtype dtype, uint64_t nbytes, bool further);
/* A line for each class that is there. */
void class_table_print(const class_table *k);
json_t *class_table_json(const class_table *k);

/* "8.428 MB" into buf; returns buf. */
const char *class_bytes(uint64_t bytes, char *buf, size_t cap);

#endif
