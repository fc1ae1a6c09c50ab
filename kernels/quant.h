/* Encoders of weights: bf16 values to e4m3 or e2m1 codes under e8m0 scales, the way back from the casts of cast.h, and the
 * comparison of values with what their codes give. Formats: kernels/README.md ("Numbers"); rules: there too ("Encoding"). */
#ifndef BL_KERNELS_QUANT_H
#define BL_KERNELS_QUANT_H

#include <stdint.h>

/* What to do with a value halfway between two e2m1 codes. */
typedef enum bl_fp4_ties {
    BL_FP4_TIES_EVEN = 0, /* to the even code: .25 .75 1.25 1.75 2.5 3.5 5 become 0 1 1 2 2 4 4 */
    BL_FP4_TIES_DOWN      /* towards zero: 0 .5 1 1.5 2 3 4, as quantisers that compare with > do */
} bl_fp4_ties;

/* Scale bytes of blocks that are all zero: what the released quantisers write. */
enum { BL_FP8_SCALE_ZERO = 105, BL_FP4_SCALE_ZERO = 1 };

/* Scale bytes for n blocks whose largest magnitudes are amax (bf16 bits without sign, finite): the smallest byte under which
 * amax does not exceed the format's largest value (448; 6), kept inside the range where codes cast back exactly (3..246; 0..252).
 * That is the ceiling of the exponent of amax * fl(1/448) (fl(1/6)) read from its bits, without a floor under amax. Blocks of
 * zeros get the bytes above. Only amax above 448 * 2^119 (6 * 2^125) then saturates. */
void bl_fp8_scales(uint8_t *scale, const uint16_t *amax, int64_t n);
void bl_fp4_scales(uint8_t *scale, const uint16_t *amax, int64_t n);

/* Sums over compared values. Value i of a row adds to lane i % 16, in order, so that every variant gives the same bits. */
typedef struct bl_quant_sums {
    double error2[16], value2[16]; /* squares of x - back and of x */
    float error;                   /* largest |x - back| */
} bl_quant_sums;

/* All rows have any alignment of their element; out never overlaps in. */
typedef struct bl_quant_kernels {
    const char *name;
    /* amax[i] = largest bits of |x| in columns 32 * i .. of all rows. x [rows, cols] bf16, contiguous; the last block may be
     * narrower. A block with a NaN gets more than 0x7F80, one with an infinity and no NaN exactly that. rows >= 1. */
    void (*amax_rows)(uint16_t *amax, const uint16_t *x, int64_t rows, int64_t cols);
    /* One row: x[i] * 2^(127 - scale[i / 32]) to the nearest code, ties to even (fp4: as ties says), saturating. The sign of
     * zero is kept. Scale bytes 0..254. Infinity saturates, and so does NaN: refuse it before. */
    void (*fp8_row)(uint8_t *codes, const uint16_t *x, const uint8_t *scale, int64_t cols);
    /* cols is even; two codes a byte, the even element in the low nibble. */
    void (*fp4_row)(uint8_t *packed, const uint16_t *x, const uint8_t *scale, int64_t cols, bl_fp4_ties ties);
    /* One row of values, and the bf16 values that their codes give: adds to sums, and sets differs[i / 32] to 1 where x[i] and
     * back[i] are different numbers (the two zeros are one). Both finite. */
    void (*compare_row)(bl_quant_sums *sums, uint8_t *differs, const uint16_t *x, const uint16_t *back, int64_t cols);
} bl_quant_kernels;

void bl_quant_init(bl_quant_kernels *t, unsigned cpu);

#endif
