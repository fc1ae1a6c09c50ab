/* A stripe: the rows of a weight that share a row of scales, from values to codes. Private to convert/. */
#ifndef BL_CONVERT_STRIPE_H
#define BL_CONVERT_STRIPE_H

#include "convert/encode.h"
#include "kernels/cast.h"

/* Scratch, for each block of 32 columns where nothing else is said. */
typedef struct bl_stripe_room {
    uint16_t *back; /* [cols]: decoded again */
    uint16_t *amax; /* largest magnitudes */
    uint8_t *differs; /* 1: a value has no code under the scale */
    uint8_t *chosen, *scale; /* scale bytes */
} bl_stripe_room;

typedef struct bl_stripe {
    const bl_quant_kernels *quant;
    const bl_cast_kernels *cast;
    const bl_encode_options *o;
    const bl_weight *w; /* in the form to make */
    const uint16_t *x;  /* [rows, cols] bf16 */
    uint64_t rows, cols;
    uint8_t *codes; /* [rows, code_bytes] */
    uint64_t code_bytes;
    uint8_t *scale;      /* [columns of the scale grid] out */
    const uint8_t *hint; /* likewise, or NULL */
    uint64_t each;       /* blocks of 32 columns that share a scale: kernels know no others, what is in r is for each of them */
    const bl_stripe_room *r;
} bl_stripe;

/* Blocks of 32 columns, the last partial. */
uint64_t bl_stripe_blocks(const bl_stripe *s);
/* Find the largest magnitudes, first; false when a value is no number or infinite. */
bool bl_stripe_measure(const bl_stripe *s);
/* Choose the scales and encode; what became of it is added to stats. A block keeps its hint when the hint loses nothing. */
void bl_stripe_encode(const bl_stripe *s, bl_encode_stats *stats);

#endif
