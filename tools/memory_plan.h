/* Printing a memory plan. */
#ifndef BL_TOOLS_MEMORY_PLAN_H
#define BL_TOOLS_MEMORY_PLAN_H

#include "runtime/memory_plan.h"

#include <stdbool.h>

void plan_print(const bl_memory_plan *p, const char *model);
void plan_print_json(const bl_memory_plan *p);

#endif
