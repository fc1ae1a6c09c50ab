/* Steps of the forward pass at the released widths: decode beside the read rate, prefill beside the multiply-add peak. */
#include "kernels/cpu.h"
#include "tools/bench/slice.h"

#include <stdio.h>
#include <string.h>

typedef struct step_run {
    slice *s;
    int64_t tokens, length, sequences;
    bool restart;
} step_run;

/* What is measured. */
typedef struct plan {
    const char *what, *roles;
    bl_device device;
    uint64_t expert_bytes;
    int vocab;
    int64_t tokens, length, sequences; /* tokens of each sequence */
    bool decode;
    slice_table table;
} plan;

static bl_status run_step(void *arg, bl_error *err)
{
    const step_run *r = arg;
    return slice_run(r->s, r->tokens, err);
}

/* Prefill begins anew each time; decode goes on, one position further. */
static void reset_step(void *arg)
{
    const step_run *r = arg;
    if (r->restart) (void)slice_start(r->s, r->length, r->sequences, NULL);
}

/* Which of the two arithmetic ceilings stands above the other depends on the CPU: prefill is held against the one whose
 * instructions its kernels are made of. */
static bl_status ceilings(bench *b, const plan *p, bench_subject *set, int *n, int *bound, bl_error *err)
{
    *bound = 0;
    if (p->device == BL_DEVICE_CUDA && !p->decode) return bench_device_product_ceiling(b, &set[(*n)++], err);
    if (p->device == BL_DEVICE_CUDA) return bench_device_copy_ceiling(b, &set[(*n)++], err);
    if (p->decode) return bench_read_ceiling(b, &set[(*n)++], err);
    BL_TRY(bench_fma_ceiling(b, &set[(*n)++], err));
    *bound = (b->cpu & BL_CPU_AVX512BF16) && bl_cpu_fast_dot();
    return bench_dot_ceiling(b, &set[(*n)++], err);
}

static void say_launches(const bench *b, const slice *s)
{
    bl_launches l;
    if (b->json || !slice_launches(s, &l)) return;
    if (l.recorded)
        printf("  a step: one launch of a graph of %lld kernels, %.1f a layer; the host waits %lld time%s\n", (long long)l.kernels,
               (double)l.kernels / slice_layers(s), (long long)l.waits, l.waits == 1 ? "" : "s");
    else printf("  a step: launched kernel by kernel; the host waits %lld time%s\n", (long long)l.waits, l.waits == 1 ? "" : "s");
}

/* What a layer of each role takes at the least, at the rate that the step's share is of. */
static void say_floors(const bench *b, const slice *s, const plan *p, int bound)
{
    const double rate = bench_rate(b, bound);
    const char *between = "";
    if (b->json || rate <= 0) return;
    printf("  floor of a layer at that rate:");
    for (int i = -1; i < slice_layers(s); i++) {
        const char role[] = {i < 0 ? 0 : p->roles[i], 0};
        if (i >= 0 && strchr(p->roles, *role) != p->roles + i) continue; /* there was one */
        const slice_cost cost = slice_layer_cost(s, i, p->tokens * p->sequences);
        const double work = p->decode ? 1e-6 * cost.bytes : 1e-9 * cost.flop;
        printf("%s %s %.1f us (%.1f %s)", between, i < 0 ? "norm and head" : role, (p->decode ? 1e3 : 1e6) * work / rate, work,
               p->decode ? "MB" : "GFLOP");
        between = ",";
    }
    printf("\n");
}

static void say_table(const slice *s, const plan *p)
{
    uint64_t huge;
    printf("  Engram table of %.2f GiB (%s", (double)p->table.bytes / (double)(1 << 30), cli_engram_places[p->table.place]);
    if (slice_huge_pages(s, &huge)) printf(", %.0f MiB of it in huge pages", (double)huge / (1 << 20));
    printf("): on the host it leaves room for %lld tokens of cache more\n", (long long)slice_tokens_in(s, p->table.bytes));
}

static bl_status measure(bench *b, slice *s, const plan *p, bl_error *err)
{
    char title[200], name[60];
    const int64_t all = p->tokens * p->sequences;
    step_run r = {s, p->tokens, p->length, p->sequences, !p->decode};
    bench_subject set[3];
    int n = 0, bound;
    snprintf(name, sizeof name, "%lld token%s, %d layer%s", (long long)all, all > 1 ? "s" : "", slice_layers(s),
             slice_layers(s) > 1 ? "s" : "");
    snprintf(title, sizeof title, "%s at position %lld; 384 experts with %d sets of weights", p->what, (long long)p->length,
             slice_expert_sets(s));
    BL_TRY(slice_start(s, p->length, p->sequences, err));
    const slice_cost cost = slice_step_cost(s, all);
    BL_TRY(ceilings(b, p, set, &n, &bound, err));
    set[n] = (bench_subject){.name = name, .run = run_step, .reset = reset_step, .arg = &r, .work = (double)all, .unit = "token"};
    set[n].ceiling[0].subject = bound;
    set[n].ceiling[0].work = 1e-9 * (p->decode ? cost.bytes : cost.flop);
    set[n].ceilings = 1;
    BL_TRY(bench_run(b, title, set, n + 1, err));
    say_floors(b, s, p, bound);
    say_launches(b, s);
    if (!b->json && p->device == BL_DEVICE_CUDA && p->decode && strchr(p->roles, 'e')) say_table(s, p);
    return BL_OK;
}

static bl_status body(bench *b, const plan *p, bl_error *err)
{
    int counts[2], n = bench_thread_counts(b, counts);
    slice *s;
    if (p->roles[strspn(p->roles, "wepqsrf")] || strlen(p->roles) > SLICE_ROLES)
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "--roles takes up to %d of the letters w e p q s r f, not '%.80s'", SLICE_ROLES,
                       p->roles);
    BL_TRY(bench_threads(b, counts[n - 1], err));
    BL_TRY(slice_create(&s, b, p->device, p->roles, p->expert_bytes, p->vocab, &p->table, err));
    bl_status status = measure(b, s, p, err);
    slice_destroy(&s);
    return status;
}

static bl_device settled(int device)
{
    return device != BL_DEVICE_AUTO ? (bl_device)device : bl_cuda_usable(NULL) ? BL_DEVICE_CUDA : BL_DEVICE_CPU;
}

int bench_decode(int argc, char **argv)
{
    bench b = {.rounds = 21};
    plan p = {.what = "decode", .roles = "wepqsrf", .expert_bytes = (uint64_t)3 << 30, .vocab = 4096, .tokens = 1, .length = 4096,
              .sequences = 1, .decode = true, .table = {26000000, BL_ENGRAM_AUTO}};
    const char *args[8];
    int count, device = BL_DEVICE_CPU, engram = BL_ENGRAM_MAPPED;
    const cli_option own[] = {
        {"experts", CLI_SIZE(1, CLI_SIZE_MOST), &p.expert_bytes, "SIZE", "memory of routed experts (default 3GiB)"},
        {"length", CLI_INT(0, 1000000), &p.length, "N", "tokens in the cache, 0 to 1000000 (default 4096)"},
        {"roles", CLI_STRING, &p.roles, "LETTERS", "layers: w e p q s r f (default wepqsrf: one of each)"},
        {"batch", CLI_INT(1, SLICE_SEQUENCES), &p.sequences, "N", "sequences, 1 to 64, a token each (default 1)"},
        {"device", CLI_WORD(cli_devices), &device, "NAME", "where to compute: cpu, cuda or auto (default cpu)"},
        {"table", CLI_SIZE(1, CLI_SIZE_MOST), &p.table.bytes, "SIZE", "of an Engram table (default 26MB)"},
        {"engram", CLI_WORD(cli_engram_places), &engram, "WHERE", "on a GPU: table on the device, host, shared or mapped (default mapped)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench decode", .usage = "[options]",
                     .summary = "One token through layers of the released widths, beside the read rate or a GPU's copy rate.",
                     .details = "Roles: w window only, e with Engram, p source of pairs, q its reader, s source of single tokens and\n"
                                "candidates, r its reader, f filtered index source. Routed experts share their memory over layers.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    p.device = settled(device);
    p.table.place = engram == BL_ENGRAM_AUTO ? BL_ENGRAM_MAPPED : (bl_engram_place)engram; /* there is no plan to choose by */
    return bench_end(&b, body(&b, &p, &err), &err);
}

int bench_prefill(int argc, char **argv)
{
    bench b = {.rounds = 3};
    plan p = {.what = "prefill", .roles = "pq", .expert_bytes = (uint64_t)3 << 30, .vocab = 4096, .tokens = 512, .sequences = 1,
              .table = {26000000, BL_ENGRAM_AUTO}};
    const char *args[8];
    int count, device = BL_DEVICE_CPU;
    const cli_option own[] = {
        {"experts", CLI_SIZE(1, CLI_SIZE_MOST), &p.expert_bytes, "SIZE", "memory of routed experts (default 3GiB)"},
        {"tokens", CLI_INT(1, BL_PASS_TOKENS_GPU), &p.tokens, "N", "of the prompt, 1 to 8192 (default 512)"},
        {"length", CLI_INT(0, 1000000), &p.length, "N", "tokens in the cache before, 0 to 1000000 (default 0)"},
        {"roles", CLI_STRING, &p.roles, "LETTERS", "layers: w e p q s r f, see bench decode (default pq)"},
        {"device", CLI_WORD(cli_devices), &device, "NAME", "where to compute: cpu, cuda or auto (default cpu)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench prefill", .usage = "[options]",
                     .summary = "A prompt through layers of the released widths, beside the multiply-add peak or a GPU's bf16 product.",
                     .details = "Work counts the products with weights only, neither attention nor index scores.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    p.device = settled(device);
    return bench_end(&b, body(&b, &p, &err), &err);
}
