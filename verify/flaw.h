/* Elements that no sound weight has: NaN codes, scale bytes without an exact value, floats that are not finite. */
#ifndef BL_VERIFY_FLAW_H
#define BL_VERIFY_FLAW_H

#include "kernels/cast.h"
#include "verify/bind.h"

/* Flaws among some elements. count 0: none. */
typedef struct bl_flaw {
    uint64_t count, first, last; /* elements */
    unsigned size;               /* bytes of one */
    const char *what;            /* "NaN codes" */
} bl_flaw;

/* Search n bytes of dtype at data. w: the weight whose codes (or, for an E8M0 or F32 tensor, whose scales) they are, NULL when
 * unknown: with it, scale bytes for which some code has no exact bf16 value are flaws too. Types that have no bad values (I8,
 * and those no model uses) never have any. Elements before the first flaw are searched at the speed of reading memory. */
bl_flaw bl_flaw_find(const bl_cast_kernels *k, bl_dtype dtype, const bl_weight *w, const uint8_t *data, uint64_t n);

#endif
