/* Numbers of synthetic weights: a function of (seed, tensor, place), so that tiles can be made in any order. Private to convert/. */
#ifndef BL_CONVERT_SYNTH_FILL_H
#define BL_CONVERT_SYNTH_FILL_H

#include "verify/bind.h"

#define BL_SYNTH_GRANULE 4096 /* tiles begin at multiples of this many bytes of a tensor */
#define BL_SYNTH_LEVELS 4096

/* Quantiles of the standard normal distribution, in plain arithmetic so that they are equal everywhere. */
typedef struct bl_synth_normal {
    float level[BL_SYNTH_LEVELS];
} bl_synth_normal;
void bl_synth_normal_init(bl_synth_normal *n);

/* How a tensor's values are distributed and stored. */
typedef struct bl_synth_source {
    const bl_slot *slot;
    bool scale;        /* these are the scale bytes of slot's weight */
    float mean, sigma; /* of the values */
    int exponent;      /* smaller one of the two scale bytes in use */
    uint64_t key;      /* random stream; equal for a weight and its scale */
} bl_synth_source;

/* Distribution of a slot's values: as a trained model's, so that gates, routers and choices vary from token to token. index is
 * the slot's number. */
bl_synth_source bl_synth_source_of(const bl_slot *s, bool scale, uint64_t seed, uint64_t index);

/* Bytes [offset, offset + n) of the tensor; offset a multiple of BL_SYNTH_GRANULE. */
void bl_synth_fill(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst);

#endif
