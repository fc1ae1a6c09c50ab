#include "runtime/adjust.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N 6

/* In the prompt: 0, 1. In the output: 1 once, 2 three times. Nowhere: 3, 4, 5. */
static void fill(float *logits, uint32_t *seen)
{
    static const float values[N] = {2, -3, 0.5f, 4, -1, 0};
    static const int32_t prompt[3] = {0, 1, 0}, output[4] = {2, 1, 2, 2};
    memcpy(logits, values, sizeof values);
    memset(seen, 0, N * sizeof *seen);
    bl_seen_prompt(seen, prompt, 3);
    for (int i = 0; i < 4; i++)
        bl_seen_output(seen, output[i]);
}

static void expect(const bl_adjust *a, const float *want)
{
    float logits[N];
    uint32_t seen[N];
    fill(logits, seen);
    bl_adjust_logits(logits, N, a, seen);
    for (int i = 0; i < N; i++)
        if (logits[i] != want[i])
            fail_msg("logit %d is %g, not %g", i, (double)logits[i], (double)want[i]);
}

static void test_nothing(void **state)
{
    const bl_adjust none = {0}, one = {.repetition = 1};
    const float want[N] = {2, -3, 0.5f, 4, -1, 0};
    assert_false(bl_adjust_looks_back(&none) || bl_adjust_looks_back(&one));
    expect(&none, want);
    expect(&one, want);
    float logits[1] = {7};
    bl_adjust_logits(logits, 1, &none, NULL);
    assert_true(logits[0] == 7);
}

/* Presence and frequency count the output alone, each as documented: logit - frequency * count - presence * (count > 0). */
static void test_penalties(void **state)
{
    expect(&(bl_adjust){.presence = 1.5f}, (const float[N]){2, -4.5f, -1, 4, -1, 0});
    expect(&(bl_adjust){.frequency = 0.5f}, (const float[N]){2, -3.5f, -1, 4, -1, 0});
    expect(&(bl_adjust){.presence = -2, .frequency = 0.25f}, (const float[N]){2, -1.25f, 1.75f, 4, -1, 0});
}

/* Repetition counts prompt and output, whatever the number. */
static void test_repetition(void **state)
{
    expect(&(bl_adjust){.repetition = 2}, (const float[N]){1, -6, 0.25f, 4, -1, 0});
    expect(&(bl_adjust){.repetition = 0.5f}, (const float[N]){4, -1.5f, 1, 4, -1, 0});
}

static void test_bias_and_order(void **state)
{
    const float bias[N] = {0, 0, 100, -100, 1, 0};
    expect(&(bl_adjust){.bias = bias}, (const float[N]){2, -3, 100.5f, -96, 0, 0});
    expect(&(bl_adjust){.repetition = 2, .presence = 1, .frequency = 1, .bias = bias}, (const float[N]){1, -8, 96.25f, -96, 0, 0});
}

static void test_odd_logits(void **state)
{
    float logits[4] = {NAN, INFINITY, -INFINITY, -INFINITY};
    const uint32_t seen[4] = {3, 3, 3, 0};
    bl_adjust_logits(logits, 4, &(bl_adjust){.repetition = 2, .presence = 1}, seen);
    assert_true(isnan(logits[0]) && logits[1] == INFINITY && logits[2] == -INFINITY && logits[3] == -INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),        cmocka_unit_test(test_penalties),  cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_bias_and_order), cmocka_unit_test(test_odd_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
