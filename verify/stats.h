/* Statistics of one tensor's values, decoded with its scales where it has any. */
#ifndef BL_VERIFY_STATS_H
#define BL_VERIFY_STATS_H

#include "verify/exponents.h"

/* Over all elements. min, max, mean, rms are of the finite ones; a tensor without any has min > max. */
typedef struct bl_stats {
    uint64_t elements; /* decoded: twice the bytes for packed fp4 */
    uint64_t zeros, negative_zeros, nans, infinities, negatives;
    uint64_t zero_rows; /* rows (all but the last dimension) whose every element is zero */
    uint64_t rows;
    double min, max, mean, rms;
    const bl_tensor *scale;     /* the scale tensor that was applied, NULL for none */
    int64_t block_rows, block_cols; /* elements one scale covers */
    unsigned scale_min, scale_max;  /* smallest and largest scale byte; of the tensor's own bytes when it is F8_E8M0 */
    double scale_low, scale_high;   /* smallest and largest F32 scale; low > high without any */
    bl_exponents exponents;         /* of those scales; of the tensor's own bytes when it is F8_E8M0 */
} bl_stats;

/* Read tensor t of c in tiles (memory is bounded) and fill *out. A weight of F8_E4M3 or I8 is decoded with its
 * scale (bl_pair_scale), of which there must be one, with a grid that fits (BL_E_INPUT otherwise); I8 without scale counts as
 * integers. Types that hold no numbers this
 * knows (F4, F6, C64) are refused with BL_E_INPUT. */
bl_status bl_tensor_stats(const bl_checkpoint *c, const bl_tensor *t, bl_stats *out, bl_error *err);

#endif
