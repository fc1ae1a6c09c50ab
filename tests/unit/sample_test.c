#include "runtime/sample.h"

#include "kernels/sampling_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 12
static int32_t scratch[2 * N];
static const bl_sampling plain = {.temperature = 1, .top_p = 1};

/* Probabilities 1/64, 2/64 ... as logits, in a shuffled order. */
static const int order[8] = {5, 2, 7, 0, 3, 6, 1, 4};
static const float share[8] = {20, 14, 11, 8, 5, 3, 2, 1}; /* of 64, by rank */

static void eight(float *logits)
{
    for (int i = 0; i < 8; i++)
        logits[order[i]] = logf(share[i] / 64);
}

/* How often each of n tokens comes in many draws. */
static void count_draws(const float *logits, int n, const bl_sampling *s, int draws, int *counts)
{
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int i = 0; i < draws; i++) {
        int t = bl_sample(logits, n, s, (uint64_t)i, scratch, NULL);
        assert_in_range(t, 0, n - 1);
        counts[t]++;
    }
}

static void test_greedy(void **state)
{
    const float logits[5] = {1, 3, NAN, 3, 2};
    bl_sampling s = {.temperature = 0, .top_p = 1};
    float lp;
    assert_int_equal(bl_sample(logits, 5, &s, 0, scratch, &lp), 1); /* lowest of equals */
    float want = 3 - logf(expf(1) + 2 * expf(3) + expf(2));
    assert_true(fabsf(lp - want) < 1e-6f);
    const float odd[3] = {NAN, -INFINITY, NAN}, none[2] = {NAN, NAN};
    assert_int_equal(bl_sample(odd, 3, &s, 0, scratch, NULL), 1);
    assert_int_equal(bl_sample(none, 2, &s, 0, scratch, &lp), -1);
    assert_int_equal(bl_sample(none, 2, &plain, 0, scratch, &lp), -1);
}

/* Without filters the draws follow the softmax: chi-square of 64,000 draws, 7 degrees of freedom (24.3 is the 0.1% point; the draws
 * are fixed by the seed, so this passes or fails for good). */
static void test_distribution(void **state)
{
    float logits[8];
    int counts[8];
    eight(logits);
    for (uint64_t seed = 0; seed < 3; seed++) {
        bl_sampling s = plain;
        s.seed = seed;
        count_draws(logits, 8, &s, 64000, counts);
        double chi = 0;
        for (int i = 0; i < 8; i++) {
            double want = 1000.0 * (double)share[i], d = counts[order[i]] - want;
            chi += d * d / want;
        }
        assert_true(chi < 24.3);
    }
}

static void expect_kept(const bl_sampling *s, int kept)
{
    float logits[8];
    int counts[8];
    eight(logits);
    count_draws(logits, 8, s, 16000, counts);
    double total = 0, chi = 0;
    for (int i = 0; i < kept; i++)
        total += (double)share[i];
    for (int i = 0; i < 8; i++) {
        double want = i < kept ? 16000 * (double)share[i] / total : 0, d = counts[order[i]] - want;
        if (want == 0)
            assert_int_equal(counts[order[i]], 0);
        else
            chi += d * d / want;
    }
    assert_true(chi < 24.3);
}

static void test_filters(void **state)
{
    bl_sampling s = plain;
    s.top_k = 3;
    expect_kept(&s, 3);
    s.top_k = 1;
    expect_kept(&s, 1);
    s.top_k = 100;
    expect_kept(&s, 8);
    s.top_k = 0;
    s.top_p = 0.5f; /* 20 + 14 of 64 is the first sum above a half */
    expect_kept(&s, 2);
    s.top_p = 0.54f; /* 34.56 of 64 needs a third */
    expect_kept(&s, 3);
    s.top_p = 0;
    expect_kept(&s, 1);
    s.top_p = 1;
    s.min_p = 0.2f; /* of 20: 4 */
    expect_kept(&s, 5);
    s.min_p = 1;
    expect_kept(&s, 1);
    /* top-p is a share of what top-k leaves: 0.7 of 45 is 31.5, reached by the second; of 64 it would take the third. */
    s = (bl_sampling){.temperature = 1, .top_k = 3, .top_p = 0.7f};
    expect_kept(&s, 2);
    s = (bl_sampling){.temperature = 1, .top_k = 5, .top_p = 0.95f, .min_p = 0.5f};
    expect_kept(&s, 3);
}

static float falling[64];

static int by_weight(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return falling[x] != falling[y] ? (falling[x] < falling[y]) - (falling[x] > falling[y]) : x - y;
}

/* The definition, said another way: sort, cut, add up in order of ids. */
static int plainly(const float *logits, int n, const bl_sampling *s, uint64_t position)
{
    const int scale = bl_sampling_scale(n);
    int order_[64], count = 0;
    float max = -INFINITY;
    for (int i = 0; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (int i = 0; i < n; i++) {
        falling[i] = bl_sampling_weight(logits[i], max, s->temperature);
        if (falling[i] > 0) order_[count++] = i;
    }
    qsort(order_, (size_t)count, sizeof *order_, by_weight);
    if (s->top_k > 0 && s->top_k < count) count = s->top_k;
    uint64_t total = 0, sum = 0;
    for (int i = 0; i < count; i++) total += bl_sampling_units(falling[order_[i]], scale);
    int kept = 0;
    while (kept < count && (kept == 0 || falling[order_[kept]] >= s->min_p)) {
        sum += bl_sampling_units(falling[order_[kept++]], scale);
        if (s->top_p < 1 && sum >= bl_sampling_share(s->top_p, total)) break;
    }
    bool in[64] = {false};
    for (int i = 0; i < kept; i++) in[order_[i]] = true;
    const uint64_t target = bl_sampling_target(bl_sampling_bits(s->seed, position), sum);
    sum = 0;
    for (int i = 0; i < n; i++)
        if (in[i] && (sum += bl_sampling_units(falling[i], scale)) > target) return i;
    return -1;
}

static void test_definition(void **state)
{
    int32_t space[128];
    uint64_t random = 1;
    for (int round = 0; round < 3000; round++) {
        float logits[64];
        const int n = 1 + (int)(bl_uniform(round, 0) * 64);
        for (int i = 0; i < n; i++) {
            const double u = bl_uniform(++random, 1);
            logits[i] = round % 3 ? (float)(20 * u * u) : (float)(int)(6 * u); /* with many ties */
        }
        const bl_sampling s = {.temperature = (float)(0.2 + 2 * bl_uniform(round, 2)),
                               .top_k = round % 2 ? (int)(70 * bl_uniform(round, 3)) : 0,
                               .top_p = round % 5 ? (float)bl_uniform(round, 4) : 1,
                               .min_p = round % 7 ? 0 : (float)(0.6 * bl_uniform(round, 5)),
                               .seed = (uint64_t)round};
        for (uint64_t p = 0; p < 4; p++)
            assert_int_equal(bl_sample(logits, n, &s, p, space, NULL), plainly(logits, n, &s, p));
    }
}

static void test_ties_and_odd_logits(void **state)
{
    const float equal[6] = {2, 2, 2, 2, 2, 2};
    int counts[8];
    bl_sampling s = plain;
    s.top_k = 2;
    count_draws(equal, 6, &s, 200, counts);
    assert_int_equal(counts[0] + counts[1], 200);
    assert_true(counts[0] > 50 && counts[1] > 50);
    const float odd[6] = {NAN, INFINITY, 3, INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        s.top_k = k;
        count_draws(odd, 6, &s, 200, counts);
        assert_int_equal(counts[1] + (k == 1 ? 0 : counts[3]), 200);
    }
    float lp;
    s = plain;
    s.temperature = 1e-5f; /* nearly greedy: no overflow on the way */
    const float wide[3] = {-1e30f, 1e30f, 0};
    assert_int_equal(bl_sample(wide, 3, &s, 1, scratch, &lp), 1);
    assert_true(lp == 0);
}

static void test_logprob(void **state)
{
    float logits[8], lp;
    eight(logits);
    bl_sampling s = plain;
    s.temperature = 2;
    double total = 0;
    for (int i = 0; i < 8; i++)
        total += sqrt((double)share[i]);
    for (uint64_t p = 0; p < 50; p++) {
        int t = bl_sample(logits, 8, &s, p, scratch, &lp), rank = 0;
        while (order[rank] != t)
            rank++;
        assert_true(fabs((double)lp - log(sqrt((double)share[rank]) / total)) < 1e-6);
        assert_true(lp == bl_logprob(logits, 8, 2, t));
    }
    const float odd[3] = {0, NAN, 0}, none[1] = {NAN};
    float out[3];
    bl_logprobs(odd, 3, 1, (const int32_t[]){2, 1, 0}, 3, out);
    assert_true(fabsf(out[0] + 0.6931472f) < 1e-6f && out[2] == out[0] && isinf(out[1]) && out[1] < 0);
    assert_true(isinf(bl_logprob(none, 1, 1, 0)));
}

static void test_top_logits(void **state)
{
    const float logits[7] = {1, NAN, 5, 5, -INFINITY, 2, 5};
    const int32_t want[6] = {2, 3, 6, 5, 0, 4};
    int32_t ids[7];
    for (int k = 0; k <= 7; k++) {
        int n = bl_top_logits(logits, 7, k, ids);
        assert_int_equal(n, k < 6 ? k : 6);
        assert_memory_equal(ids, want, (size_t)n * sizeof *ids);
    }
}

/* Fixed values: a sequence must give the same text in every release. */
static void test_generator(void **state)
{
    assert_true(bl_uniform(0, 0) != bl_uniform(0, 1));
    assert_true(bl_uniform(0, 1) != bl_uniform(1, 0));
    double mean = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        double a = bl_uniform(i, 3), b = bl_uniform(3, i);
        assert_true(a >= 0 && a < 1 && b >= 0 && b < 1);
        mean += a + b;
    }
    assert_true(fabs(mean / 20000 - 0.5) < 0.01);
    assert_true(bl_uniform(1234567, 0) == 0x1.0d7e40840c561p-1 && bl_uniform(UINT64_MAX, UINT64_MAX) == 0x1.8c2450f99e91ep-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),  cmocka_unit_test(test_distribution), cmocka_unit_test(test_filters),
        cmocka_unit_test(test_ties_and_odd_logits), cmocka_unit_test(test_logprob), cmocka_unit_test(test_top_logits),
        cmocka_unit_test(test_generator), cmocka_unit_test(test_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
