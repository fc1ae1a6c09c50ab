#include "runtime/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define GREEDY_BELOW 1e-6f

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

double bl_uniform(uint64_t seed, uint64_t position)
{
    return (double)(splitmix64(splitmix64(seed) ^ position) >> 11) * 0x1p-53;
}

static int largest(const float *logits, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
            best = i;
    return best;
}

/* exp((logit - max) / temperature); 1 for the largest even when it is infinite, 0 for NaN. */
static float weight(float logit, float max, float temperature)
{
    if (logit == max)
        return 1;
    return isnan(logit) ? 0 : expf((logit - max) / temperature);
}

static double total_weight(const float *logits, int n, float max, float temperature)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)weight(logits[i], max, temperature);
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
    float max = best < 0 ? 0 : logits[best], t = temperature < GREEDY_BELOW ? 1 : temperature;
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

/* One draw among the weights in id order. */
static int draw_all(const float *w, int n, double total, double u)
{
    double target = u * total, sum = 0;
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (w[i] == 0)
            continue;
        sum += (double)w[i];
        last = i;
        if (sum > target)
            break;
    }
    return last;
}

/* One draw among the tokens that the filters leave, in order of falling weight. Each filter keeps a beginning of that order, so the
 * heap is popped only as far as needed; what was popped lies at its end, the heaviest last. */
static int draw_filtered(const float *w, int n, double total, const bl_sampling *s, int32_t *heap, double u)
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
        for (total = 0; popped < limit; popped++)
            total += (double)w[pop(w, heap, count - popped)];
    double sum = 0, seen = 0;
    while (kept < limit) {
        int32_t id = kept < popped ? heap[count - 1 - kept] : pop(w, heap, count - kept);
        if (kept > 0 && w[id] < s->min_p) /* the heaviest weighs 1 */
            break;
        sum += (double)w[id];
        kept++;
        if (s->top_p < 1 && sum >= (double)s->top_p * total)
            break;
    }
    int i = 0;
    for (; i + 1 < kept; i++) {
        seen += (double)w[heap[count - 1 - i]];
        if (seen > u * sum)
            break;
    }
    return heap[count - 1 - i];
}

int bl_sample(const float *logits, int n, const bl_sampling *s, uint64_t position, void *scratch, float *logprob)
{
    int token = largest(logits, n);
    if (token >= 0 && s->temperature >= GREEDY_BELOW) {
        float max = logits[token], *w = scratch;
        double total = 0;
        for (int i = 0; i < n; i++) {
            w[i] = weight(logits[i], max, s->temperature);
            total += (double)w[i];
        }
        double u = bl_uniform(s->seed, position);
        bool filtered = s->top_k > 0 || s->top_p < 1 || s->min_p > 0;
        token = filtered ? draw_filtered(w, n, total, s, (int32_t *)scratch + n, u) : draw_all(w, n, total, u);
        if (logprob)
            *logprob = (float)((double)log_weight(logits[token], max, s->temperature) - log(total));
    } else if (token >= 0 && logprob) {
        *logprob = bl_logprob(logits, n, 1, token);
    }
    return token;
}
