/* The k best scores in linear time. One pass collects what beats the best k so far, and cuts the collection back to k whenever
 * it is full; nearly every score of a long list fails one comparison. The key of the k-th best is then found digit by digit
 * from histograms, and one ascending pass takes what is at least that. */
#include "kernels/fmath.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <string.h>

enum {
    BINS = 1 << 11,
    STRIDE = 16,    /* scores that are passed over at once */
    COLLECT = 4096, /* scores collected, at the least, before they are cut back */
    LEAST_KEY = 0x00800000 /* of -FLT_MAX */
};

/* Order-preserving key of a score, 0 for what may never be selected. The two zeros are one value. */
static uint32_t score_key(float score)
{
    uint32_t u = bl_float_bits(score + 0.0f); /* -0 + 0 is +0 */
    if ((u & 0x7f800000) == 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

static float key_score(uint32_t key)
{
    return bl_bits_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

/* The bin that holds the *k-th best, counted from the top; *k becomes its rank inside the bin. -1: fewer than *k. */
static int find_bin(const uint32_t count[BINS], int64_t *k)
{
    for (int b = BINS - 1; b >= 0; b--) {
        if (count[b] >= *k) return b;
        *k -= count[b];
    }
    return -1;
}

/* Key of the k-th best of n scores; *ties becomes how many of the scores equal to it belong to the best k. 0 when fewer than k
 * may be selected. */
static uint32_t kth_key(const float *scores, int64_t n, int64_t k, int64_t *ties)
{
    static const int shifts[3] = {21, 10, 0}; /* the last digit overlaps the one before by a bit that is settled by then */
    static const uint32_t settled[3] = {0, 0xffe00000, 0xfffffc00};
    uint32_t count[BINS], key = 0;
    for (int d = 0; d < 3; d++) {
        memset(count, 0, sizeof count);
        for (int64_t i = 0; i < n; i++) {
            uint32_t x = score_key(scores[i]);
            if (x != 0 && ((x ^ key) & settled[d]) == 0) count[x >> shifts[d] & (BINS - 1)]++;
        }
        int b = find_bin(count, &k);
        if (b < 0) return 0;
        key |= (uint32_t)b << shifts[d];
    }
    *ties = k;
    return key;
}

/* Keep the k best of n scores, in any order. There are at least k. */
static void keep_best(float *scores, int64_t n, int64_t k, float *least)
{
    int64_t ties = 0, kept = 0;
    uint32_t key = kth_key(scores, n, k, &ties);
    for (int64_t i = 0; i < n; i++) {
        uint32_t x = score_key(scores[i]);
        if (x > key || (x == key && ties-- > 0)) scores[kept++] = scores[i];
    }
    *least = key_score(key);
}

static bool any_above(const float *x, float least)
{
    int found = 0;
    for (int i = 0; i < STRIDE; i++) found |= x[i] > least;
    return found != 0;
}

/* Collects into out scores of which the k best are those of all n; returns how many. out holds n floats. */
static int64_t collect(float *out, const float *scores, int64_t n, int64_t k)
{
    int64_t kept = 0, room = 4 * k > COLLECT ? 4 * k : COLLECT;
    float least = -INFINITY;
    for (int64_t i = 0; i < n; i += STRIDE) {
        int64_t end = i + STRIDE <= n ? i + STRIDE : n;
        if (end == i + STRIDE && !any_above(scores + i, least)) continue;
        for (int64_t j = i; j < end; j++)
            if (scores[j] > least && scores[j] < INFINITY) out[kept++] = scores[j];
        if (kept > room) {
            keep_best(out, kept, k, &least);
            kept = k;
        }
    }
    return kept;
}

static bool any_at_least(const float *x, float least)
{
    int found = 0;
    for (int i = 0; i < STRIDE; i++) found |= x[i] >= least;
    return found != 0;
}

/* kth_key of all n scores; the least key of all when no more than k may be selected. */
static uint32_t threshold(const float *scores, int64_t n, int64_t k, int64_t *ties, float *scratch)
{
    uint32_t key = kth_key(scratch, collect(scratch, scores, n, k), k, ties);
    if (key != 0) return key;
    *ties = k;
    return LEAST_KEY;
}

int64_t bl_select_top(int32_t *index, const float *scores, int64_t n, int64_t k, float *scratch)
{
    int64_t ties, taken = 0;
    if (k <= 0) return 0;
    uint32_t key = threshold(scores, n, k, &ties, scratch);
    for (int64_t i = 0; i < n && taken < k; i += STRIDE) {
        int64_t end = i + STRIDE <= n ? i + STRIDE : n;
        if (end == i + STRIDE && !any_at_least(scores + i, key_score(key))) continue;
        for (int64_t j = i; j < end && taken < k; j++) {
            uint32_t x = score_key(scores[j]);
            if (x > key || (x == key && ties-- > 0)) index[taken++] = (int32_t)j;
        }
    }
    return taken;
}

/* Largest finite score of [from, to), -infinity when there is none. */
static float block_best(const float *scores, int64_t from, int64_t to)
{
    float best = -INFINITY;
    for (int64_t i = from; i < to; i++) { /* without branches, which random scores mispredict */
        float s = scores[i] < INFINITY ? scores[i] : -INFINITY;
        best = s > best ? s : best;
    }
    return best;
}

void bl_select_candidates(uint8_t *keep, const float *scores, int64_t n, int64_t visible, int64_t blocks, int64_t size,
                          float *scratch)
{
    int64_t count = (n + size - 1) / size, forced = visible > 0 ? (visible - 1) / size : -1, ties = 0;
    float *best = scratch;
    for (int64_t b = 0; b < count; b++) best[b] = block_best(scores, b * size, (b + 1) * size < n ? (b + 1) * size : n);
    if (forced >= 0 && forced < count) {
        best[forced] = -INFINITY; /* it has its place already */
        blocks--;
    }
    uint32_t key = blocks > 0 ? threshold(best, count, blocks, &ties, scratch + count) : ~0u;
    for (int64_t b = 0; b < count; b++) {
        uint32_t x = score_key(best[b]);
        int64_t end = (b + 1) * size < n ? (b + 1) * size : n;
        bool kept = b == forced || x > key || (x == key && ties-- > 0);
        memset(keep + b * size, kept, (size_t)(end - b * size));
    }
}
