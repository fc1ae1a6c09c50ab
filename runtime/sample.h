/* From logits to a token. */
#ifndef BL_RUNTIME_SAMPLE_H
#define BL_RUNTIME_SAMPLE_H

#include <stdint.h>

typedef struct bl_sampling {
    float temperature; /* < 1e-6 = greedy */
    int top_k;         /* <= 0 = off */
    float top_p;       /* 1 = off */
    float min_p;       /* 0 = off */
    uint64_t seed;
} bl_sampling;

/* The token for the given position. Greedy: the largest logit, lowest id on ties. Else: logits / temperature, softmax, top-k, then
 * top-p over what is left, then min-p, then one draw by a counter-based generator of (seed, position), so that a sequence
 * gives the same text whatever else runs. Ties by lower id. scratch: 2 * n int32-sized words. logits [n] are not changed. NaN logits never win; returns -1
 * when every logit is NaN. *logprob (may be NULL) = log softmax(logits / temperature) of the token (temperature 1 when greedy). */
int bl_sample(const float *logits, int n, const bl_sampling *s, uint64_t position, void *scratch, float *logprob);

#endif
