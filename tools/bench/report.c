/* Sets as a table or as JSON. */
#include "tools/bench/state.h"

#include "kernels/cpu.h"

#include <stdio.h>
#include <string.h>

enum { LINE = 256 };

/* The first line of a file that begins with key, or, with a key, what follows its colon. */
static void first_line(const char *path, const char *key, char out[LINE])
{
    char line[LINE];
    FILE *f = fopen(path, "r");
    snprintf(out, LINE, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *value = *key ? strchr(line, ':') : line;
        if (!value) break;
        value += *key ? strspn(value, ": ") : 0;
        snprintf(out, LINE, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f) fclose(f);
}

static void load_average(char buf[LINE])
{
    first_line("/proc/loadavg", "", buf);
    int spaces = 0; /* the three averages, without the process counts behind them */
    for (char *p = buf; *p; p++)
        if (*p == ' ' && ++spaces == 3) *p = 0;
}

static void print_row(const bench *b, const bench_subject *s, int i, const bench_result *r, int rounds)
{
    char range[48], unit[32];
    if (r->runs == 0) {
        printf("  %-34s not run\n", s[i].name);
        return;
    }
    snprintf(range, sizeof range, "%.4g..%.4g", r->rate.p10, r->rate.p90);
    snprintf(unit, sizeof unit, "%s/s", s[i].unit);
    printf("  %-34s %10.4g %-9s %-17s", s[i].name, r->rate.median, unit, range);
    if (b->cpu_time) printf(" %6.3f", r->cpu);
    if (r->share.median >= 0)
        printf(" %.1f%% (%.1f..%.1f) of %s", 100 * r->share.median, 100 * r->share.p10, 100 * r->share.p90, s[r->bound].name);
    if (r->beside.median >= 0)
        printf("%s %.1f%% (%.1f..%.1f) of %s", r->share.median >= 0 ? "," : "", 100 * r->beside.median, 100 * r->beside.p10,
               100 * r->beside.p90, s[s[i].beside - 1].name);
    if (r->runs < rounds) printf(" (%d run%s)", r->runs, r->runs == 1 ? "" : "s");
    printf("\n");
}

static void print_table(bench *b, const char *title, const bench_subject *s, const bench_result *r, int n, int rounds)
{
    char model[LINE], load[LINE];
    load_average(load);
    if (!b->state->begun) {
        first_line("/proc/cpuinfo", "model name", model);
        printf("%s: %s, level %s%s%s\n", b->program, model, bl_cpu_name(b->cpu), *b->gpu ? ", " : "", b->gpu);
        b->state->begun = true;
    }
    int threads = bl_pool_threads(b->pool);
    printf("\n%s; %d thread%s, %d rounds, load %s\n", title, threads, threads == 1 ? "" : "s", rounds, load);
    printf("  %-34s %10s %-9s %-17s%s %s\n", "", "median", "", "p10..p90", b->cpu_time ? "  CPU s" : "", "share of its ceiling");
    for (int i = 0; i < n; i++) print_row(b, s, i, &r[i], rounds);
    fflush(stdout);
}

static json_t *spread_json(const bench_spread *s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s->median, "p10", s->p10, "p90", s->p90);
}

static json_t *figure_json(const bench *b, const bench_subject *s, const bench_result *r, int i)
{
    json_t *figure = json_pack("{s:s, s:s+, s:i, s:o}", "name", s[i].name, "unit", s[i].unit, "/s", "runs", r[i].runs, "rate",
                               spread_json(&r[i].rate));
    if (figure && r[i].runs && b->cpu_time) json_object_set_new(figure, "cpu_seconds", json_real(r[i].cpu));
    if (figure && r[i].beside.median >= 0) {
        json_object_set_new(figure, "beside", json_string(s[s[i].beside - 1].name));
        json_object_set_new(figure, "beside_share", spread_json(&r[i].beside));
    }
    if (figure && r[i].share.median >= 0) {
        json_object_set_new(figure, "ceiling", json_string(s[r[i].bound].name));
        json_object_set_new(figure, "share", spread_json(&r[i].share));
    }
    return figure;
}

bl_status bench_report(bench *b, const char *title, const bench_subject *s, const bench_result *r, int n, int rounds,
                       bl_error *err)
{
    if (!b->json) {
        print_table(b, title, s, r, n, rounds);
        return BL_OK;
    }
    char model[LINE], load[LINE];
    load_average(load);
    first_line("/proc/cpuinfo", "model name", model);
    json_t *figures = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(figures, figure_json(b, s, r, i));
    json_t *set = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "title", title, "cpu_model", model, "loadavg", load, "threads",
                            bl_pool_threads(b->pool), "rounds", rounds, "figures", figures);
    if (set && *b->gpu) json_object_set_new(set, "gpu", json_string(b->gpu));
    if (!b->state->sets) b->state->sets = json_array();
    if (!set || json_array_append_new(b->state->sets, set))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the JSON document");
    return BL_OK;
}
