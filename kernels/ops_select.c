/* The k best scores in linear time: the key of the k-th best is found digit by digit from histograms, then one ascending
 * pass takes what is at least that. */
#include "kernels/fmath.h"
#include "kernels/ops.h"

enum { BINS = 1 << 11 };

/* Order-preserving key of a score, 0 for what may never be selected. The two zeros are one value. */
static uint32_t score_key(float score)
{
    uint32_t u = bl_float_bits(score + 0.0f); /* -0 + 0 is +0 */
    if ((u & 0x7f800000) == 0x7f800000) return 0;
    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* Histogram of the 11 bits of the keys from shift up. Two tables by the parity of the index, because neighbouring scores
 * often share a bin and an increment waits for the one before it. */
static void histogram(uint32_t count[BINS], const float *scores, int64_t n, int shift)
{
    uint32_t odd[BINS] = {0};
    for (int b = 0; b < BINS; b++) count[b] = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = score_key(scores[i]), *table = i & 1 ? odd : count;
        table[key >> shift & (BINS - 1)] += key != 0;
    }
    for (int b = 0; b < BINS; b++) count[b] += odd[b];
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

/* Keep in out the scores whose key has bits b from shift up. out may be scores. */
static int64_t keep_bin(float *out, const float *scores, int64_t n, int shift, uint32_t b)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if ((score_key(scores[i]) >> shift & (BINS - 1)) == b) out[kept++] = scores[i];
    return kept;
}

/* Key of the k-th best of n scores; *ties becomes how many of the scores equal to it belong to the best k, in index order.
 * With fewer than k finite scores the least key of all: every finite score is selected. */
static uint32_t kth_key(const float *scores, int64_t n, int64_t k, int64_t *ties, float *scratch)
{
    static const int shifts[3] = {21, 10, 0}; /* the last digit overlaps the one before by a bit that is settled by then */
    uint32_t count[BINS], key = 0;
    for (int d = 0; d < 3; d++) {
        histogram(count, scores, n, shifts[d]);
        int b = find_bin(count, &k);
        if (b < 0) return 0;
        key |= (uint32_t)b << shifts[d];
        if (d < 2) n = keep_bin(scratch, scores, n, shifts[d], (uint32_t)b);
        scores = scratch;
    }
    *ties = k;
    return key;
}

int64_t bl_select_top(int32_t *index, const float *scores, int64_t n, int64_t k, float *scratch)
{
    int64_t ties = 0, taken = 0;
    if (k <= 0) return 0;
    uint32_t least = kth_key(scores, n, k, &ties, scratch);
    for (int64_t i = 0; i < n && taken < k; i++) {
        uint32_t key = score_key(scores[i]);
        if (key == 0 || key < least || (key == least && ties-- <= 0)) continue;
        index[taken++] = (int32_t)i;
    }
    return taken;
}

/* Largest finite score of [from, to), -infinity when there is none. */
static float block_best(const float *scores, int64_t from, int64_t to)
{
    float best = -INFINITY;
    for (int64_t i = from; i < to; i++)
        if (scores[i] > best && scores[i] < INFINITY) best = scores[i];
    return best;
}

void bl_select_candidates(uint8_t *keep, const float *scores, int64_t n, int64_t visible, int64_t blocks, int64_t size,
                          float *scratch)
{
    int64_t count = (n + size - 1) / size, forced = visible > 0 ? (visible - 1) / size : -1, ties = 0;
    float *best = scratch;
    for (int64_t b = 0; b < count; b++) {
        int64_t end = (b + 1) * size < n ? (b + 1) * size : n;
        best[b] = b == forced ? -INFINITY : block_best(scores, b * size, end);
    }
    int64_t free_blocks = blocks - (forced >= 0 && forced < count);
    uint32_t least = free_blocks > 0 ? kth_key(best, count, free_blocks, &ties, scratch + count) : ~0u;
    for (int64_t b = 0; b < count; b++) {
        uint32_t key = score_key(best[b]);
        int kept = b == forced || (key > least && key != 0) || (key == least && key != 0 && ties-- > 0);
        int64_t end = (b + 1) * size < n ? (b + 1) * size : n;
        for (int64_t i = b * size; i < end; i++) keep[i] = (uint8_t)kept;
    }
}
