/* Scale hints: the scales that weights had before they were cast to BF16. Under them an untouched block gets its old codes back. */
#ifndef BL_CONVERT_HINTS_H
#define BL_CONVERT_HINTS_H

#include "convert/plan.h"

typedef struct bl_hints bl_hints;

/* Open the hints at path: a BL_SCALES_NAME file, a folder that has one, or any checkpoint with scales (released or packed,
 * not with a split that gave some weights other ones: BL_E_USAGE). */
bl_status bl_hints_open(bl_hints **out, const char *path, bl_error *err);
/* Nulls *h; NULL is fine. */
void bl_hints_close(bl_hints **h);

/* What they come from; borrowed. */
const bl_checkpoint *bl_hints_source(const bl_hints *h);

/* Look up the scale of every weight that plan encodes. A scale of another shape or for another kind of codes than the plan's is
 * BL_E_INPUT, naming both; so are hints that know none of the weights. *found: how many of the *weights have one. */
bl_status bl_hints_bind(bl_hints *h, const bl_plan *plan, size_t *found, size_t *weights, bl_error *err);

/* Bytes of scratch of bl_hints_read for n bytes. */
uint64_t bl_hints_scratch(const bl_hints *h, uint64_t n);
/* n bytes at offset of the scale grid of the weight with this sum (bl_plan_member); *data is NULL when there is no hint for it.
 * scratch is aligned to BL_IO_ALIGN. Thread-safe. Errors as bl_file_read, naming the tensor. */
bl_status bl_hints_read(bl_hints *h, size_t sum, uint64_t offset, uint64_t n, uint8_t *scratch, const uint8_t **data, bl_error *err);

#endif
