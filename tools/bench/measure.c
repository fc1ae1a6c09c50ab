/* Rounds, and what is made of their times. */
#include "tools/bench/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds that all threads of this process have computed. */
static double cpu_now(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What a run took; wall 0: it did not happen. */
typedef struct run_time {
    double wall, cpu;
} run_time;

/* Sorts v; nothing to sort is a median of -1. */
static bench_spread spread(double *v, int n)
{
    if (n == 0) return (bench_spread){-1, -1, -1};
    qsort(v, (size_t)n, sizeof *v, by_value);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return (bench_spread){median, v[(n - 1) / 10], v[n - 1 - (n - 1) / 10]};
}

/* Time that the ceilings leave a run of s at the least, from the times t of the same round; *bound is which one. 0 when one of
 * them did not run. */
static double floor_time(const bench_subject *all, const bench_subject *s, const run_time *t, int *bound)
{
    double most = 0;
    for (int i = 0; i < s->ceilings; i++) {
        int k = s->ceiling[i].subject;
        double time = s->ceiling[i].work * t[k].wall / all[k].work;
        if (time == 0) return 0;
        if (time <= most) continue;
        most = time;
        *bound = k;
    }
    return most;
}

/* times [rounds][n]; v: scratch of rounds. */
static bench_result evaluate(const bench_subject *all, int i, const run_time *times, int n, int rounds, double *v)
{
    const bench_subject *s = &all[i];
    bench_result r = {.bound = -1};
    int count = 0;
    for (int k = 0; k < rounds; k++)
        if (times[k * n + i].wall > 0) v[r.runs++] = s->work / times[k * n + i].wall;
    r.rate = spread(v, r.runs);
    for (int k = 0; k < rounds; k++)
        if (times[k * n + i].wall > 0) v[count++] = times[k * n + i].cpu / s->work;
    r.cpu = spread(v, count).median;
    count = 0;
    for (int k = 0; k < rounds; k++) {
        double least = floor_time(all, s, times + (size_t)k * (size_t)n, &r.bound), wall = times[k * n + i].wall;
        if (wall > 0 && least > 0) v[count++] = least / wall;
    }
    r.share = spread(v, count);
    count = 0;
    for (int k = 0; k < rounds && s->beside; k++) {
        double other = times[k * n + s->beside - 1].wall, wall = times[k * n + i].wall;
        if (wall > 0 && other > 0) v[count++] = other * s->work / (wall * all[s->beside - 1].work);
    }
    r.beside = spread(v, count);
    return r;
}

static bl_status run_round(const bench_subject *s, int n, int round, run_time *times, bl_error *err)
{
    for (int j = 0; j < n; j++) {
        int i = (round + j) % n;
        if (s[i].reset) s[i].reset(s[i].arg);
        double t = now(), cpu = cpu_now();
        bl_status status = s[i].run(s[i].arg, err);
        run_time took = {now() - t, cpu_now() - cpu};
        if (s[i].after) s[i].after(s[i].arg);
        BL_TRY(status);
        if (cli_interrupted()) return bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
        times[i] = took;
    }
    return BL_OK;
}

bl_status bench_run(bench *b, const char *title, const bench_subject *s, int n, bl_error *err)
{
    int rounds = (int)b->rounds;
    bench_result results[BENCH_SUBJECTS];
    size_t runs = (size_t)n * (size_t)rounds;
    run_time *times = calloc(runs + 1, sizeof *times);
    double *v = malloc(sizeof *v * (size_t)rounds);
    bl_status status = times && v ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (status == BL_OK && !b->no_warmup) {
        status = run_round(s, n, 0, times, err);
        memset(times, 0, (size_t)n * sizeof *times);
    }
    for (int k = 0; k < rounds && status == BL_OK; k++) status = run_round(s, n, k, times + (size_t)k * (size_t)n, err);
    if (status == BL_OK || status == BL_E_CANCELLED) {
        int any = 0;
        for (int i = 0; i < n; i++) {
            results[i] = evaluate(s, i, times, n, rounds, v);
            b->state->rates[i] = results[i].runs ? results[i].rate.median : 0;
            any |= results[i].runs;
        }
        bl_status printed = any ? bench_report(b, title, s, results, n, rounds, status == BL_OK ? err : NULL) : BL_OK;
        status = status == BL_OK ? printed : status;
    }
    free(times);
    free(v);
    return status;
}

double bench_rate(const bench *b, int subject)
{
    return b->state->rates[subject];
}
