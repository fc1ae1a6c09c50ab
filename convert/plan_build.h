/* What the parts of planning share. Private to convert/. */
#ifndef BL_CONVERT_PLAN_BUILD_H
#define BL_CONVERT_PLAN_BUILD_H

#include "convert/plan.h"

typedef struct bl_planner {
    const bl_checkpoint *c;
    const bl_binding *b;
    const bl_plan_options *o;
    bl_arena *arena;
    bl_plan *out;
    bl_action *actions;
    bl_plan_tensor *stack[3][2]; /* the stacked tensors of the layer being planned: w1..w3, codes and scale */
} bl_planner;

bl_status bl_plan_nomem(const bl_planner *p, bl_error *err);

/* One weight of the source: the pieces that hold it. */
typedef struct bl_plan_source {
    const bl_weight *w; /* [count], adjacent in the binding */
    size_t count;
} bl_plan_source;

/* Add the output tensors of a weight, or of a rank's share of it: its codes, or their cast to BF16, and its scale, aside or nowhere
 * when the cast uses it up. */
bl_status bl_plan_single(bl_planner *p, bl_plan_source s, const bl_share *share, bool cast, bl_error *err);
/* Add the codes that a weight's values are encoded to, and their scale behind them. */
bl_status bl_plan_encoded(bl_planner *p, bl_plan_source s, const bl_share *share, bl_form form, bl_error *err);
/* Add the scale of a weight, all of it, to those kept aside. */
bl_status bl_plan_kept_scale(bl_planner *p, bl_plan_source s, bl_error *err);
/* As bl_plan_single, for an expert in a stacked tensor. A rank's experts come in model order. */
bl_status bl_plan_stacked(bl_planner *p, bl_plan_source s, const bl_share *share, bl_error *err);

/* Do the rows of w get scales of their own, because the layout cuts its blocks? */
bool bl_plan_expands(const bl_planner *p, const bl_weight *w);
/* Is a rank's share of w left in the source's file? */
bool bl_plan_links(const bl_planner *p, const bl_weight *w, const bl_share *share);

/* Deal the output tensors to files and lay those out. */
bl_status bl_plan_files(bl_planner *p, bl_error *err);

#endif
