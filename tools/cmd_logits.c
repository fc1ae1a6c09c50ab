/* baleen logits: what the model says at every position, for comparing implementations. */
#include "tools/cli.h"
#include "tools/logits.h"

#include "formats/arena.h"
#include "formats/file.h"
#include "kernels/cpu.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SEQUENCES = 2 * CLI_LIST_MAX };
#define MAX_IDS_BYTES ((uint64_t)256 << 20)

static const char *behind_space(const char *p)
{
    while (isspace((unsigned char)*p)) p++;
    return p;
}

/* Numbers between commas and white space; two commas have lost one. Returns the offending place, NULL when all is well. */
static const char *parse_ids(const char *text, logits_sequence *out)
{
    size_t capacity = 0;
    for (const char *p = text;;) {
        p = behind_space(p);
        if (*p == ',' && out->count > 0) p = behind_space(p + 1);
        if (!*p) return out->count ? NULL : p;
        char *end;
        errno = 0;
        const long v = strtol(p, &end, 10);
        if (!isdigit((unsigned char)*p) || errno || v > INT32_MAX || (*end && *end != ',' && !isspace((unsigned char)*end))) return p;
        int32_t *ids = bl_grow(out->ids, &capacity, (size_t)out->count, sizeof *ids);
        if (!ids) return p;
        out->ids = ids;
        out->ids[out->count++] = (int32_t)v;
        p = end;
    }
}

static int read_ids(const cli_command *c, const cli_list *lists, const cli_list *files, logits_sequence *out, int64_t *count)
{
    for (int i = 0; i < lists->count; i++) {
        const char *bad = parse_ids(lists->items[i], &out[(*count)++]);
        if (bad) return cli_usage_error(c, "--ids takes token ids such as 0,17,4, not '%.40s'", *bad ? bad : "nothing");
    }
    for (int i = 0; i < files->count; i++) {
        bl_error err = {0};
        char *text;
        bl_status s = bl_file_slurp(files->items[i], MAX_IDS_BYTES, &text, NULL, &err);
        if (s != BL_OK) return cli_report(c->program, s, &err);
        const char *bad = parse_ids(text, &out[(*count)++]);
        if (bad) s = bl_fail(&err, BL_E_INPUT, files->items[i], NULL, bad - text, "no token id (numbers, commas, white space)");
        free(text);
        if (bad) return cli_report(c->program, s, &err);
    }
    return 0;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(const cli_command *c, logits_job *j, logits_sequence *sequences, const cli_list *lists, const cli_list *files, bool json)
{
    bl_error err = {0};
    int64_t tokens = 0, nans = 0;
    j->sequences = sequences;
    int bad = read_ids(c, lists, files, sequences, &j->sequence_count);
    if (bad) return bad;
    if (j->sequence_count == 0) return cli_usage_error(c, "give --ids or --ids-file");
    if ((j->trace || j->inject) && j->sequence_count > 1) return cli_usage_error(c, "--trace and --inject take one sequence");
    if (j->trace && strcmp(j->trace, j->out) == 0) return cli_usage_error(c, "--trace and --out name the same file");
    cli_catch_signals();
    const double begin = seconds();
    bl_status s = logits_run(j, &nans, &err);
    if (s != BL_OK) return cli_report(c->program, s, &err);
    for (int64_t i = 0; i < j->sequence_count; i++) tokens += sequences[i].count;
    if (json)
        printf("{\"sequences\": %lld, \"tokens\": %lld, \"nans\": %lld, \"seconds\": %.3f}\n", (long long)j->sequence_count,
               (long long)tokens, (long long)nans, seconds() - begin);
    if (nans) s = bl_fail(&err, BL_E_FINDING, j->out, NULL, -1, "%lld of its logits are no numbers (NaN)", (long long)nans);
    return cli_report(c->program, s, &err);
}

int cmd_logits(int argc, char **argv)
{
    cli_list lists = {0}, files = {0};
    int device = BL_DEVICE_CPU, engram = BL_ENGRAM_AUTO;
    const char *args[1] = {cli_default_model()};
    int64_t threads = 0;
    bool json = false;
    logits_job j = {.options = {.cpu = bl_cpu_detect(), .check = BL_CHECK_FAST}};
    const cli_option options[] = {
        {"ids", CLI_LIST, &lists, "LIST", "token ids of a sequence, such as 0,17,4; repeat for a batch"},
        {"ids-file", CLI_LIST, &files, "FILE", "the same from a file: numbers between commas or white space"},
        {"out", CLI_STRING, &j.out, "FILE", "safetensors file to write (required)"},
        {"chunk", CLI_INT(1, INT64_MAX), &j.chunk, "N", "tokens of each sequence in a forward pass (default 512; all with --trace and --inject)"},
        {"trace", CLI_STRING, &j.trace, "FILE", "also write the intermediates, named as in golden files"},
        {"inject", CLI_STRING, &j.inject, "FILE", "take each layer's inputs and selections from this golden file"},
        {"threads", CLI_INT(1, BL_POOL_MAX_THREADS), &threads, "N", "worker threads (default: all CPUs)"},
        {"cpu", CLI_CPU, &j.options.cpu, "LEVEL", "highest instruction set used: c, avx2, ... (default native)"},
        {"device", CLI_WORD(cli_devices), &device, "NAME", "where to compute: cpu, cuda or auto (default cpu)"},
        {"engram", CLI_WORD(cli_engram_places), &engram, "WHERE",
         "on a GPU: Engram tables on the device, on the host, there shared by processes, or mapped (default auto)"},
        {"json", CLI_FLAG, &json, NULL, "print a receipt"},
        CLI_END,
    };
    const cli_command c = {
        .program = "baleen logits",
        .usage = "[MODEL] --ids LIST [--ids LIST ...] --out FILE [options]",
        .summary = "Write the logits of every position: tensor 'logits', or 'logits.0', 'logits.1', ... for several sequences.",
        .details = "All sequences run in one batch. The result does not depend, to the bit, on the batch, --chunk or --threads.\n"
                   "Logits that are no numbers (NaN) are written, counted and a finding: status 1.\n",
        .options = options,
        .max_args = 1,
    };
    int count, done = cli_parse(&c, argc, argv, args, &count);
    if (done >= 0) return done;
    if (!j.out) return cli_usage_error(&c, "--out is missing");
    if (device == BL_DEVICE_CPU && engram != BL_ENGRAM_AUTO) return cli_usage_error(&c, "--engram is for a GPU, not for --device cpu");
    j.model = args[0];
    j.options.threads = (int)threads;
    j.options.device = (bl_device)device;
    j.options.engram = (bl_engram_place)engram;
    j.cancelled = cli_interrupted;
    logits_sequence sequences[MAX_SEQUENCES] = {0};
    const int status = run(&c, &j, sequences, &lists, &files, json);
    for (int i = 0; i < MAX_SEQUENCES; i++) free(sequences[i].ids);
    return status;
}
