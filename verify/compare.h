/* Comparing two models by the value digests of their weights. Private to verify/. */
#ifndef BL_VERIFY_COMPARE_H
#define BL_VERIFY_COMPARE_H

#include "verify/scan.h"

/* Compare after both were scanned with values set. Every weight that differs, or that only one side has without its being
 * recorded as left out on the other (dropped classes, a selection of layers), is a finding at level -1. Returns the number of
 * equal weights. */
size_t bl_compare(bl_finder *f, const bl_scan *a, const bl_scan *b);

/* Give w, a weight of s, the largest tiles that s and the model beside it both have. Are they smaller than its own? */
bool bl_compare_refine(const bl_scan *s, bl_weight *w);

#endif
