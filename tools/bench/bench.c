/* baleen bench: the table of benchmarks, and what each begins and ends with. */
#include "tools/bench/state.h"

#include "kernels/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} benches[] = {
    {"bucket", bench_bucket, "weight-sync buckets, beside copying and writing"},
    {"cast", bench_cast, "fp4 and fp8 weights to bf16 in memory, beside the copy rate"},
    {"ceilings", bench_ceilings, "what this machine can do: copy, read, hash, multiply-add, write"},
    {"convert", bench_convert, "whole conversions, beside what the disk takes and the CPUs hash"},
    {"decode", bench_decode, "one token through layers of the released widths, beside the read rate"},
    {"device", bench_device, "kernels of the GPU backend, beside its copy rate and its products"},
    {"hash", bench_hash, "chunk and value digests in memory"},
    {"linear", bench_linear, "products on stored weights, beside the read rate and the multiply-add peak"},
    {"load", bench_load, "weights from files to the GPU, beside what its bus takes"},
    {"ops", bench_ops, "attention, index scores, residual streams and selections"},
    {"prefill", bench_prefill, "a prompt through the same, beside the multiply-add peak"},
    {"scan", bench_scan, "the headers and the index of a whole model, beside reading their bytes"},
    {"start", bench_start, "from nothing to the first token over HTTP"},
};
enum { BENCHES = sizeof benches / sizeof benches[0] };

static int print_benches(void)
{
    printf("usage: baleen bench WHAT [options]\n\nMeasures a hot path beside the floor that the machine sets for it.\n\n");
    for (int i = 0; i < BENCHES; i++) printf("  %-10s %s\n", benches[i].name, benches[i].summary);
    printf("\n'baleen bench WHAT --help' documents each.\n");
    return 0;
}

int cmd_bench(int argc, char **argv)
{
    static const cli_command command = {.program = "baleen bench"};
    if (argc < 2) return cli_usage_error(&command, "nothing named to measure");
    if (!strcmp(argv[1], "--help")) return print_benches();
    for (int i = 0; i < BENCHES; i++)
        if (!strcmp(argv[1], benches[i].name)) return benches[i].run(argc - 1, argv + 1);
    return cli_usage_error(&command, "unknown benchmark '%.40s'", argv[1]);
}

int bench_begin(bench *b, cli_command *c, const cli_option *own, int argc, char **argv, const char **args, int *count)
{
    b->state = calloc(1, sizeof *b->state);
    if (!b->state) return cli_report(c->program, bl_fail(NULL, BL_E_NOMEM, NULL, NULL, -1, "out of memory"), NULL);
    b->program = c->program;
    b->cpu = bl_cpu_detect();
    b->rounds = b->rounds ? b->rounds : 21;
    const cli_option common[] = {
        {"threads", CLI_INT(1, BL_POOL_MAX_THREADS), &b->threads, "N", "threads (default: one, then all CPUs of this process)"},
        {"rounds", CLI_INT(1, 10000), &b->rounds, "N", "rounds in which all subjects take turns"},
        {"cpu", CLI_CPU, &b->cpu, "LEVEL", "kernels up to c, avx2, avx512, avx512bf16, neon (default: native)"},
        {"json", CLI_FLAG, &b->json, NULL, "print one JSON document"},
        CLI_END,
    };
    int n = 0;
    for (; own && own[n].name; n++) b->state->options[n] = own[n];
    memcpy(b->state->options + n, common, sizeof common);
    c->options = b->state->options;
    int done = cli_parse(c, argc, argv, args, count);
    if (done < 0) return -1;
    free(b->state);
    b->state = NULL;
    return done;
}

int bench_end(bench *b, bl_status s, const bl_error *err)
{
    bl_pool_destroy(&b->pool);
    struct bench_state *st = b->state;
    for (int i = 0; i < st->count; i++) {
        if (st->blocks[i].bytes) munmap(st->blocks[i].p, st->blocks[i].bytes);
        else free(st->blocks[i].p);
    }
    if ((s == BL_OK || s == BL_E_CANCELLED) && b->json && st->sets) {
        json_t *doc = json_pack("{s:s, s:s, s:s, s:O}", "bench", b->program, "version", BL_VERSION, "cpu", bl_cpu_name(b->cpu),
                                "sets", st->sets);
        if (doc) {
            json_dumpf(doc, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
            printf("\n");
        }
        json_decref(doc);
    }
    json_decref(st->sets);
    free(st);
    b->state = NULL;
    return cli_report(b->program, s, err);
}

int bench_thread_counts(const bench *b, int counts[2])
{
    if (b->threads) {
        counts[0] = (int)b->threads;
        return 1;
    }
    bl_pool *all = NULL;
    counts[0] = 1;
    if (bl_pool_create(&all, 0, NULL) != BL_OK) return 1;
    counts[1] = bl_pool_threads(all);
    bl_pool_destroy(&all);
    return counts[1] > 1 ? 2 : 1;
}

bl_status bench_threads(bench *b, int threads, bl_error *err)
{
    bl_pool_destroy(&b->pool);
    return bl_pool_create(&b->pool, threads, err);
}

static bl_status keep(bench *b, void *p, size_t bytes, bl_error *err)
{
    struct bench_state *st = b->state;
    if (st->count == BENCH_BLOCKS) return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "more than %d buffers", BENCH_BLOCKS);
    st->blocks[st->count++] = (bench_block){p, bytes};
    return BL_OK;
}

bl_status bench_memory(bench *b, size_t bytes, void **out, bl_error *err)
{
    if (bytes == 0) bytes = 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for a buffer of %zu bytes", bytes);
    memset(p, 0x5a, bytes);
    *out = p;
    return keep(b, p, bytes, err);
}

void *bench_record(bench *b, size_t bytes)
{
    void *p = calloc(1, bytes);
    if (p && keep(b, p, 0, NULL) == BL_OK) return p;
    free(p);
    return NULL;
}
