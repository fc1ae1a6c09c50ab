/* From logits to a token. */
#ifndef BL_RUNTIME_SAMPLE_H
#define BL_RUNTIME_SAMPLE_H

#include "kernels/sampling.h"

/* The token for the given position. Greedy: the largest logit, lowest id on ties. Else: logits / temperature, softmax, top-k, then
 * top-p over what is left, then min-p (relative to the most likely token), then one draw among those kept, in the order of ids, with
 * 53 bits that seed and position give, so that a sequence gives the same text whatever else runs, on a GPU too. Ties by lower id.
 * scratch: 2 * n int32-sized words. logits [n] are not changed. NaN logits never win; returns -1 when every logit is NaN. *logprob
 * (may be NULL) = log softmax(logits / temperature) of the token (temperature 1 when greedy). */
int bl_sample(const float *logits, int n, const bl_sampling *s, uint64_t position, void *scratch, float *logprob);

/* log softmax(logits / temperature) of some tokens (temperature below 1e-6 counts as 1), as bl_sample reports it; -INFINITY for a token
 * whose logit is NaN. One pass over the logits for all. */
void bl_logprobs(const float *logits, int n, float temperature, const int32_t *tokens, int count, float *out);
float bl_logprob(const float *logits, int n, float temperature, int token);

/* Ids of the k largest logits, largest first, ties by lower id, NaN left out; returns how many (at most k and n). */
int bl_top_logits(const float *logits, int n, int k, int32_t *ids);

/* The counter-based generator: a number in [0, 1) with 53 random bits, a function of its arguments alone. Two rounds of the SplitMix64
 * finaliser, seed first, so that neither seeds nor positions next to each other are related. */
double bl_uniform(uint64_t seed, uint64_t position);

#endif
