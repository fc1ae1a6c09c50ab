/* Printing what a plan for several ranks comes to. */
#ifndef BL_TOOLS_OUTLINE_H
#define BL_TOOLS_OUTLINE_H

#include "convert/outline.h"

#include <jansson.h>

/* As text to stdout. */
void outline_print(const bl_config *c, const bl_plan *plan, const bl_outline *o);
/* {"tp", "ep", "pp", "ranks": [...], "classes": [...], "crossings": [...]}; the caller's. */
json_t *outline_json(const bl_plan *plan, const bl_outline *o);

#endif
