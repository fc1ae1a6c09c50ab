#include "runtime/sample.h"

#include "kernels/sampling_math.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

double bl_uniform(uint64_t seed, uint64_t position)
{
    return (double)bl_sampling_bits(seed, position) * 0x1p-53;
}

static int largest(const float *logits, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
}

static double total_weight(const float *logits, int n, float max, float temperature)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)bl_sampling_weight(logits[i], max, temperature);
    return sum;
}

static float log_weight(float logit, float max, float temperature)
{
    if (isnan(logit))
        return -INFINITY;
    return logit == max ? 0 : (logit - max) / temperature;
}

void bl_logprobs(const float *logits, int n, float temperature, const int32_t *tokens, int count, float *out)
{
    int best = largest(logits, n);
    float max = best < 0 ? 0 : logits[best], t = temperature < BL_GREEDY_BELOW ? 1 : temperature;
    double total = best < 0 ? 1 : log(total_weight(logits, n, max, t));
    for (int i = 0; i < count; i++)
        out[i] = (float)((double)log_weight(logits[tokens[i]], max, t) - total);
}

float bl_logprob(const float *logits, int n, float temperature, int token)
{
    float out;
    bl_logprobs(logits, n, temperature, &(int32_t){token}, 1, &out);
    return out;
}

/* ---- a heap of ids, the heaviest on top, ties to the lower id */
static bool before(const float *w, int32_t a, int32_t b)
{
    return w[a] > w[b] || (w[a] == w[b] && a < b);
}

static void sift_down(const float *w, int32_t *heap, int n, int i)
{
    int32_t v = heap[i];
    for (int c = 2 * i + 1; c < n; c = 2 * i + 1) {
        if (c + 1 < n && before(w, heap[c + 1], heap[c]))
            c++;
        if (!before(w, heap[c], v))
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = v;
}

/* Take the top out; it is left at heap[n - 1]. */
static int32_t pop(const float *w, int32_t *heap, int n)
{
    int32_t top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    if (n > 1)
        sift_down(w, heap, n - 1, 0);
    return top;
}

int bl_top_logits(const float *logits, int n, int k, int32_t *ids)
{
    /* Insertion into a short sorted list: k is small (20 in the API). */
    int count = 0;
    for (int i = 0; i < n && k > 0; i++) {
        if (isnan(logits[i]) || (count == k && !before(logits, i, ids[k - 1])))
            continue;
        int at = count < k ? count++ : k - 1;
        for (; at > 0 && before(logits, i, ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return count;
}

/* The ids that are not after last in order of falling weight; last < 0: all. Units of the kept add up to total. One draw among them. */
static int draw(const float *w, int n, int32_t last, uint64_t total, int scale, uint64_t bits)
{
    uint64_t target = bl_sampling_target(bits, total), sum = 0;
    int id = -1;
    for (int i = 0; i < n && sum <= target; i++) {
        const uint64_t units = bl_sampling_units(w[i], scale);
        if (units == 0 || (last >= 0 && i != last && !before(w, i, last)))
            continue;
        sum += units;
        id = i;
    }
    return id;
}

/* The last of the tokens that the filters leave, in order of falling weight, and their units. Each filter keeps a beginning of that
 * order, so the heap is popped only as far as needed; what was popped lies at its end, the heaviest last. */
static int32_t filter(const float *w, int n, uint64_t *total, int scale, const bl_sampling *s, int32_t *heap)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        if (w[i] > 0)
            heap[count++] = i;
    for (int i = count / 2; i-- > 0;)
        sift_down(w, heap, count, i);
    bool top_k = s->top_k > 0 && s->top_k < count;
    int limit = top_k ? s->top_k : count, popped = 0, kept = 0;
    if (top_k) /* top-p is a share of what top-k leaves */
        for (*total = 0; popped < limit; popped++)
            *total += bl_sampling_units(w[pop(w, heap, count - popped)], scale);
    const uint64_t need = bl_sampling_share(s->top_p, *total);
    uint64_t sum = 0;
    int32_t last = -1;
    while (kept < limit) {
        int32_t id = kept < popped ? heap[count - 1 - kept] : pop(w, heap, count - kept);
        if (kept > 0 && w[id] < s->min_p) /* the heaviest weighs 1 */
            break;
        sum += bl_sampling_units(w[id], scale);
        last = id;
        kept++;
        if (s->top_p < 1 && sum >= need)
            break;
    }
    *total = sum;
    return last;
}

int bl_sample(const float *logits, int n, const bl_sampling *s, uint64_t position, void *scratch, float *logprob)
{
    int token = largest(logits, n);
    if (token >= 0 && s->temperature >= BL_GREEDY_BELOW) {
        float max = logits[token], *w = scratch;
        const int scale = bl_sampling_scale(n);
        uint64_t total = 0;
        for (int i = 0; i < n; i++) {
            w[i] = bl_sampling_weight(logits[i], max, s->temperature);
            total += bl_sampling_units(w[i], scale);
        }
        int32_t last = -1;
        if (s->top_k > 0 || s->top_p < 1 || s->min_p > 0)
            last = filter(w, n, &total, scale, s, (int32_t *)scratch + n);
        token = draw(w, n, last, total, scale, bl_sampling_bits(s->seed, position));
        if (logprob)
            *logprob = bl_logprob(logits, n, s->temperature, token);
    } else if (token >= 0 && logprob) {
        *logprob = bl_logprob(logits, n, 1, token);
    }
    return token;
}
