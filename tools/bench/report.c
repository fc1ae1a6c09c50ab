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

static void print_table(bench *b, const char *title, const bench_subject *s, const bench_result *r, int n, int rounds)
{
    char model[LINE], load[LINE];
    load_average(load);
    if (!b->state->begun) {
        first_line("/proc/cpuinfo", "model name", model);
        printf("%s: %s, level %s\n", b->program, model, bl_cpu_name(b->cpu));
        b->state->begun = true;
    }
    int threads = bl_pool_threads(b->pool);
    printf("\n%s; %d thread%s, %d rounds, load %s\n", title, threads, threads == 1 ? "" : "s", rounds, load);
    printf("  %-34s %10s %-9s %-17s %s\n", "", "median", "", "p10..p90", "share of its ceiling");
    for (int i = 0; i < n; i++) {
        char range[48], unit[32];
        snprintf(range, sizeof range, "%.4g..%.4g", r[i].rate.p10, r[i].rate.p90);
        snprintf(unit, sizeof unit, "%s/s", s[i].unit);
        printf("  %-34s %10.4g %-9s %-17s", s[i].name, r[i].rate.median, unit, range);
        if (r[i].bound >= 0)
            printf(" %.1f%% (%.1f..%.1f) of %s", 100 * r[i].share.median, 100 * r[i].share.p10, 100 * r[i].share.p90,
                   s[r[i].bound].name);
        printf("\n");
    }
    fflush(stdout);
}

static json_t *spread_json(const bench_spread *s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s->median, "p10", s->p10, "p90", s->p90);
}

static json_t *figure_json(const bench_subject *s, const bench_result *r, int i)
{
    json_t *figure = json_pack("{s:s, s:s+, s:o}", "name", s[i].name, "unit", s[i].unit, "/s", "rate", spread_json(&r[i].rate));
    if (figure && r[i].bound >= 0) {
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
    for (int i = 0; i < n; i++) json_array_append_new(figures, figure_json(s, r, i));
    json_t *set = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "title", title, "cpu_model", model, "loadavg", load, "threads",
                            bl_pool_threads(b->pool), "rounds", rounds, "figures", figures);
    if (!b->state->sets) b->state->sets = json_array();
    if (!set || json_array_append_new(b->state->sets, set))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the JSON document");
    return BL_OK;
}
