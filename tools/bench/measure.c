/* Rounds, and what is made of their times. */
#include "tools/bench/state.h"

#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v. */
static bench_spread spread(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return (bench_spread){median, v[(n - 1) / 10], v[n - 1 - (n - 1) / 10]};
}

/* Time that the ceilings leave a run of s at the least, from the times t of the same round; *bound is which one. */
static double floor_time(const bench_subject *all, const bench_subject *s, const double *t, int *bound)
{
    double most = 0;
    for (int i = 0; i < s->ceilings; i++) {
        int k = s->ceiling[i].subject;
        double time = s->ceiling[i].work * t[k] / all[k].work;
        if (time <= most) continue;
        most = time;
        *bound = k;
    }
    return most;
}

/* times [rounds][n]; v: scratch of rounds. */
static bench_result evaluate(const bench_subject *all, int i, const double *times, int n, int rounds, double *v)
{
    bench_result r = {.share = {-1, -1, -1}, .bound = -1};
    for (int k = 0; k < rounds; k++) v[k] = all[i].work / times[k * n + i];
    r.rate = spread(v, rounds);
    if (!all[i].ceilings) return r;
    for (int k = 0; k < rounds; k++) v[k] = floor_time(all, &all[i], times + (size_t)k * (size_t)n, &r.bound) / times[k * n + i];
    r.share = spread(v, rounds);
    return r;
}

static bl_status run_round(const bench_subject *s, int n, int round, double *times, bl_error *err)
{
    for (int j = 0; j < n; j++) {
        int i = (round + j) % n;
        if (s[i].reset) s[i].reset(s[i].arg);
        double t = now();
        BL_TRY(s[i].run(s[i].arg, err));
        times[i] = now() - t;
        if (cli_interrupted()) return bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    }
    return BL_OK;
}

bl_status bench_run(bench *b, const char *title, const bench_subject *s, int n, bl_error *err)
{
    int rounds = (int)b->rounds;
    bench_result results[BENCH_SUBJECTS];
    double *times = malloc(sizeof *times * (size_t)(n + 1) * (size_t)rounds);
    if (!times) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    bl_status status = run_round(s, n, 0, times, err); /* warm-up */
    for (int k = 0; k < rounds && status == BL_OK; k++) status = run_round(s, n, k, times + (size_t)k * (size_t)n, err);
    for (int i = 0; i < n && status == BL_OK; i++)
        results[i] = evaluate(s, i, times, n, rounds, times + (size_t)n * (size_t)rounds);
    free(times);
    BL_TRY(status);
    return bench_report(b, title, s, results, n, rounds, err);
}
