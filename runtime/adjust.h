/* What a request changes about the logits before a token is chosen: penalties and biases. */
#ifndef BL_RUNTIME_ADJUST_H
#define BL_RUNTIME_ADJUST_H

#include <stdbool.h>
#include <stdint.h>

/* All zero = nothing. */
typedef struct bl_adjust {
    float repetition; /* tokens of prompt and output: a positive logit is divided by it, another one multiplied; 0 and 1 = off */
    float presence;   /* subtracted from the logit of a token that is in the output */
    float frequency;  /* the same, times how often it is there */
    const float *bias; /* [n], added; NULL = none */
} bl_adjust;

/* Does it look at what a sequence holds? */
bool bl_adjust_looks_back(const bl_adjust *a);

/* What a sequence holds, for each token: twice how often it is in the output, plus one when it is in the prompt. */
void bl_seen_prompt(uint32_t *seen, const int32_t *ids, int64_t count);
void bl_seen_output(uint32_t *seen, int32_t id);

/* Change logits [n] in place, in the order of the fields. seen [n] may be NULL when nothing looks back. NaN stays NaN. */
void bl_adjust_logits(float *logits, int n, const bl_adjust *a, const uint32_t *seen);

#endif
