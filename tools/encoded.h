/* What became of encoded weights, for people and for receipts. */
#ifndef BL_TOOLS_ENCODED_H
#define BL_TOOLS_ENCODED_H

#include "convert/convert.h"

#include <jansson.h>

/* A list of one object per class that has weights. */
json_t *encoded_json(const bl_convert_report *r);
/* A table with a line per class; nothing when nothing was encoded. */
void encoded_print(const bl_convert_report *r);

#endif
