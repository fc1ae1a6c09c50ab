/* check_kernels [--cpu LEVEL] [--family NAME] [--seed N]: exit 0 all equal, 1 something differs, 2 usage, 77 nothing could run. */
#include "tests/check/check_state.h"

#include "kernels/cpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    void (*run)(check *c, unsigned cpu);
} families[] = {
    {"cast", check_cast},
    {"ops", check_ops},
    {"linear", check_linear},
    {"quant", check_quant},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static const char *const levels[] = {"c", "avx2", "avx512", "avx512bf16", "neon"};
enum { LEVELS = sizeof levels / sizeof levels[0] };

static check state;

/* A kernel touched the page behind a buffer: say which case it was. Only async-signal-safe calls. */
static void on_fault(int sig)
{
    const char *parts[] = {"FAIL ", state.family, "/", state.level, ": ", state.label, ": fault, read or write outside a buffer?\n"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (write(STDOUT_FILENO, parts[i], strlen(parts[i])) < 0) break;
    _exit(1);
}

static int usage(const char *what, const char *value)
{
    fprintf(stderr, "check_kernels: unknown %s '%s' (check_kernels [--cpu LEVEL] [--family NAME] [--seed N])\n", what, value);
    return 2;
}

static void run_family(int f, const char *level, unsigned mask, uint64_t seed)
{
    int64_t cases = state.cases, comparisons = state.comparisons, failures = state.failures;
    state.family = families[f].name;
    state.level = level;
    state.random = seed;
    families[f].run(&state, mask);
    check_end_case(&state);
    printf("%-4s %s/%s: %lld cases, %lld comparisons\n", state.failures == failures ? "ok" : "FAIL", families[f].name, level,
           (long long)(state.cases - cases), (long long)(state.comparisons - comparisons));
    fflush(stdout);
}

/* Runs the chosen families at one level; returns 0 when this CPU lacks it. */
static int run_level(const char *level, const char *family, uint64_t seed)
{
    unsigned mask, have = bl_cpu_detect();
    if (bl_cpu_parse(level, &mask)) return 0;
    if ((mask & have) != mask) {
        printf("SKIP level %s: this CPU has %s\n", level, bl_cpu_name(have));
        return 0;
    }
    for (int f = 0; f < FAMILIES; f++)
        if (!family || !strcmp(family, families[f].name)) run_family(f, level, mask, seed);
    return 1;
}

static int known_family(const char *name)
{
    for (int f = 0; f < FAMILIES; f++)
        if (!strcmp(name, families[f].name)) return 1;
    return 0;
}

int main(int argc, char **argv)
{
    const char *cpu = NULL, *family = NULL;
    uint64_t seed = 1;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return usage("argument", argv[i]);
        if (!strcmp(argv[i], "--cpu")) cpu = argv[i + 1];
        else if (!strcmp(argv[i], "--family")) family = argv[i + 1];
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
        else return usage("argument", argv[i]);
    }
    if (family && !known_family(family)) return usage("family", family);

    struct sigaction sa = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &sa, NULL);
    sigaction(SIGBUS, &sa, NULL);

    int ran = 0, skipped = 0, known = 0;
    for (int l = 0; l < LEVELS; l++) {
        if (cpu && strcmp(cpu, levels[l])) continue;
        known = 1;
        if (run_level(levels[l], family, seed)) ran++;
        else skipped++;
    }
    if (!known) return usage("level", cpu);
    printf("%lld cases, %lld comparisons, %lld failures; %d levels ran, %d skipped for want of the CPU\n", (long long)state.cases,
           (long long)state.comparisons, (long long)state.failures, ran, skipped);
    return state.failures ? 1 : ran ? 0 : 77;
}
