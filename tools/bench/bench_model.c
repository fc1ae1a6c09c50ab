/* Steps of the forward pass at the released widths: decode beside the read rate, prefill beside the multiply-add peak. */
#include "kernels/cpu.h"
#include "tools/bench/slice.h"

#include <stdio.h>

typedef struct step_run {
    slice *s;
    int64_t tokens, length;
    bool restart;
} step_run;

static bl_status run_step(void *arg, bl_error *err)
{
    const step_run *r = arg;
    return slice_run(r->s, r->tokens, err);
}

/* Prefill begins anew each time; decode goes on, one position further. */
static void reset_step(void *arg)
{
    const step_run *r = arg;
    if (r->restart) (void)slice_start(r->s, r->length, NULL);
}

/* Which of the two arithmetic ceilings stands above the other depends on the CPU: prefill is held against the one whose
 * instructions its kernels are made of. */
static bl_status measure(bench *b, slice *s, const char *what, int64_t tokens, int64_t length, bool bound_by_reading, bl_error *err)
{
    char title[200], name[60];
    step_run r = {s, tokens, length, !bound_by_reading};
    const slice_cost cost = slice_token_cost(s);
    bench_subject set[3];
    int n = 0, bound = 0;
    snprintf(name, sizeof name, "%lld token%s, %d layers", (long long)tokens, tokens > 1 ? "s" : "", slice_layers(s));
    snprintf(title, sizeof title, "%s at position %lld; 384 experts with %d sets of weights", what, (long long)length, slice_expert_sets(s));
    BL_TRY(slice_start(s, length, err));
    if (bound_by_reading) {
        BL_TRY(bench_read_ceiling(b, &set[n++], err));
    } else {
        BL_TRY(bench_fma_ceiling(b, &set[n++], err));
        BL_TRY(bench_dot_ceiling(b, &set[n++], err));
        bound = (b->cpu & BL_CPU_AVX512BF16) && bl_cpu_fast_dot();
    }
    set[n] = (bench_subject){.name = name, .run = run_step, .reset = reset_step, .arg = &r, .work = (double)tokens, .unit = "token"};
    set[n].ceiling[0].subject = bound;
    set[n].ceiling[0].work = bound_by_reading ? 1e-9 * cost.bytes : 1e-9 * cost.flop * (double)tokens;
    set[n].ceilings = 1;
    return bench_run(b, title, set, n + 1, err);
}

static bl_status body(bench *b, const char *roles, uint64_t size, int vocab, const char *what, int64_t tokens, int64_t length,
                      bool bound_by_reading, bl_error *err)
{
    int counts[2], n = bench_thread_counts(b, counts);
    slice *s;
    BL_TRY(bench_threads(b, counts[n - 1], err));
    BL_TRY(slice_create(&s, b, roles, size, vocab, err));
    bl_status status = measure(b, s, what, tokens, length, bound_by_reading, err);
    slice_destroy(&s);
    return status;
}

int bench_decode(int argc, char **argv)
{
    bench b = {.rounds = 21};
    uint64_t size = (uint64_t)3 << 30;
    int64_t tokens = 1, length = 4096;
    const char *args[8], *roles = "wepqsrf";
    int count;
    const cli_option own[] = {
        {"experts", CLI_SIZE, &size, "SIZE", "memory of routed experts (default 3GiB)"},
        {"length", CLI_INT, &length, "N", "tokens in the cache, 0 to 1000000 (default 4096)"},
        {"roles", CLI_STRING, &roles, "LETTERS", "layers: w e p q s r f (default wepqsrf: one of each)"},
        {NULL, 0, NULL, NULL, NULL},
    };
    cli_command c = {.program = "baleen bench decode", .usage = "[options]",
                     .summary = "One token through layers of the released widths, beside the read rate.",
                     .details = "Roles: w window only, e with Engram, p source of pairs, q its reader, s source of single tokens and\n"
                                "candidates, r its reader, f filtered index source. Routed experts share their memory over layers.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    bl_status s = length < 0 || length > 1000000 ? bl_fail(&err, BL_E_USAGE, NULL, "--length", -1, "takes 0 to 1000000")
                                                 : body(&b, roles, size, 4096, "decode", tokens, length, true, &err);
    return bench_end(&b, s, &err);
}

int bench_prefill(int argc, char **argv)
{
    bench b = {.rounds = 3};
    uint64_t size = (uint64_t)3 << 30;
    int64_t tokens = 512, length = 0;
    const char *args[8], *roles = "pq";
    int count;
    const cli_option own[] = {
        {"experts", CLI_SIZE, &size, "SIZE", "memory of routed experts (default 3GiB)"},
        {"tokens", CLI_INT, &tokens, "N", "of the prompt, 1 to 512 (default 512)"},
        {"length", CLI_INT, &length, "N", "tokens in the cache before, 0 to 1000000 (default 0)"},
        {"roles", CLI_STRING, &roles, "LETTERS", "layers: w e p q s r f, see bench decode (default pq)"},
        {NULL, 0, NULL, NULL, NULL},
    };
    cli_command c = {.program = "baleen bench prefill", .usage = "[options]",
                     .summary = "A prompt through layers of the released widths, beside the multiply-add peak.",
                     .details = "Work counts the products with weights only, neither attention nor index scores.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    bl_status s = tokens < 1 || tokens > BL_PASS_TOKENS || length < 0 || length > 1000000
                      ? bl_fail(&err, BL_E_USAGE, NULL, "--tokens", -1, "takes 1 to %d, --length 0 to 1000000", BL_PASS_TOKENS)
                      : body(&b, roles, size, 4096, "prefill", tokens, length, false, &err);
    return bench_end(&b, s, &err);
}
