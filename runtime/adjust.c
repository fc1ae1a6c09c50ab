#include "runtime/adjust.h"

static bool repeats(const bl_adjust *a)
{
    return a->repetition != 0 && a->repetition != 1;
}

bool bl_adjust_looks_back(const bl_adjust *a)
{
    return repeats(a) || a->presence != 0 || a->frequency != 0;
}

void bl_seen_prompt(uint32_t *seen, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        seen[ids[i]] |= 1;
}

void bl_seen_output(uint32_t *seen, int32_t id)
{
    seen[id] += 2;
}

static void penalise(float *logits, int n, const bl_adjust *a, const uint32_t *seen)
{
    for (int i = 0; i < n; i++) {
        if (seen[i] == 0)
            continue;
        if (repeats(a))
            logits[i] = logits[i] > 0 ? logits[i] / a->repetition : logits[i] * a->repetition;
        if (seen[i] > 1)
            logits[i] -= a->presence + a->frequency * (float)(seen[i] / 2);
    }
}

void bl_adjust_logits(float *logits, int n, const bl_adjust *a, const uint32_t *seen)
{
    if (bl_adjust_looks_back(a))
        penalise(logits, n, a, seen);
    for (int i = 0; a->bias && i < n; i++)
        logits[i] += a->bias[i];
}
