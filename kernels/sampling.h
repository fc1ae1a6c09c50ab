/* How a token is drawn from logits. */
#ifndef BL_KERNELS_SAMPLING_H
#define BL_KERNELS_SAMPLING_H

#include <stdint.h>

typedef struct bl_sampling {
    float temperature; /* < 1e-6 = greedy */
    int top_k;         /* <= 0 = off */
    float top_p;       /* 1 = off */
    float min_p;       /* 0 = off */
    uint64_t seed;
} bl_sampling;

#endif
