/* What does not look like a trained weight: pure functions over a piece of one. Every limit is far outside of what sound weights
 * show, so that a healthy model has no oddity at all; what is smaller than that is not found.
 *
 * A piece is looked at in groups of whole rows (bl_odd_group), so that what is found does not depend on how the bytes were cut. */
#ifndef BL_VERIFY_ODDITY_H
#define BL_VERIFY_ODDITY_H

#include "kernels/cast.h"
#include "verify/bind.h"

typedef enum bl_oddity {
    /* what no sound weight has */
    BL_ODD_FLAW = 0,      /* flaw.h: NaN codes, values that are not finite */
    BL_ODD_SCALE_FLAW,    /* flaw.h: NaN scales, scales without exact BF16 values */
    BL_ODD_EMPTY,         /* a matrix of nothing but zeros */
    /* what a sound weight hardly has */
    BL_ODD_ZERO_ROWS,
    BL_ODD_CONSTANT_ROWS, /* the same value all through, not zero */
    BL_ODD_REPEATED_ROWS, /* equal to the row before, in a group of BL_ODD_ROWS */
    BL_ODD_SCALE_ENDS,    /* scale bytes 0 and 254 */
    BL_ODD_SCALE_FAR,     /* scales 2^BL_ODD_SCALE_ABOVE above or 2^BL_ODD_SCALE_BELOW below the median of their group */
    BL_ODD_LARGE,         /* values 2^BL_ODD_LARGE_ABOVE times the median magnitude of their group */
    BL_ODD_UNSCALED,      /* rows of BF16 values that all are e4m3 codes, the largest 448: codes taken for values, their scale left out */
    BL_ODD_EQUAL,         /* two weights with the same codes */
    BL_ODDITIES
} bl_oddity;

enum {
    BL_ODD_ROWS = 32,          /* rows of a group of values */
    BL_ODD_SCALES = 4096,      /* scales of a group, about */
    BL_ODD_LEAST_ROWS = 16,    /* matrices with fewer rows are gains and the like: their rows may be alike */
    BL_ODD_SCALE_ABOVE = 12,   /* powers of two */
    BL_ODD_SCALE_BELOW = 24,
    BL_ODD_LARGE_ABOVE = 20
};

/* How often, and where first: a row, an element or a scale of the weight. first is meaningless when count is 0. */
typedef struct bl_odd_count {
    uint64_t count, first;
} bl_odd_count;

/* Whole rows that are looked at together, in bytes, of w's codes or scales: pieces begin at multiples of it. 0: the rows of w are too
 * long for that, and only flaws are looked for. */
uint64_t bl_odd_group(const bl_weight *w, bool scale);

/* Do equal, constant and zero rows of w mean anything? */
bool bl_odd_has_rows(const bl_weight *w);

/* Look at n bytes at offset of w's codes, or of its scales, and add to out [BL_ODDITIES] all but BL_ODD_EMPTY and BL_ODD_EQUAL. *what
 * (of out[BL_ODD_FLAW] or out[BL_ODD_SCALE_FLAW]) is set when there is a flaw. */
void bl_odd_look(const bl_cast_kernels *k, const bl_weight *w, bool scale, uint64_t offset, uint64_t n, const uint8_t *data,
                 bl_odd_count out[BL_ODDITIES], const char **what);

/* Add more to into. */
void bl_odd_add(bl_odd_count *into, bl_odd_count more);

#endif
