/* Whole conversions and a verification, beside what the disk takes from a program that only writes and what the CPUs hash. */
#include "tools/bench.h"
#include "tools/bench/folders.h"

#include "convert/convert.h"
#include "runtime/engram.h"
#include "verify/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


typedef struct convert_bench {
    bench *b;
    const char *folder; /* everything is written below it */
    const char *only;   /* --only, NULL for everything */
    char source[4096], out[4096];
    uint64_t source_bytes, writer_bytes;
    bool cold;
    void *piece; /* [BENCH_FOLDER_PIECE] */
} convert_bench;

typedef struct conversion {
    const convert_bench *cb;
    bl_convert_options o;
    bl_verify_options v;
} conversion;

static const struct subject_kind {
    const char *key, *name;
    bl_target target;
    bool sha256, digests;
    const char *beside; /* key of the one that does the same without XXH3 digests */
} kinds[] = {
    {"bf16", "convert --to bf16", BL_TO_BF16, true, true, NULL},
    {"bf16-nosha", "convert --to bf16 --no-sha256", BL_TO_BF16, false, true, NULL},
    {"packed-nodigests", "packed without XXH3 digests", BL_TO_PACKED, true, false, NULL},
    {"packed", "convert --to packed", BL_TO_PACKED, true, true, "packed-nodigests"},
    {"packed-bare", "packed without any hash", BL_TO_PACKED, false, false, NULL},
    {"packed-nosha", "convert --to packed --no-sha256", BL_TO_PACKED, false, true, "packed-bare"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Is key among the subjects asked for? */
static bool chosen(const convert_bench *cb, const char *key)
{
    size_t n = strlen(key);
    for (const char *p = cb->only; p && *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && !strncmp(p, key, n)) return true;
    return !cb->only;
}

/* Does every word of --only name a subject, and one of them more than a ceiling? */
static bool usable(const char *only)
{
    bool any = false;
    for (const char *p = only; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t n = strcspn(p, ",");
        bool found = n == 6 && !strncmp(p, "verify", n);
        for (int i = 0; i < KINDS; i++) found |= strlen(kinds[i].key) == n && !strncmp(p, kinds[i].key, n);
        if (!found && !(n == 6 && (!strncmp(p, "writer", n) || !strncmp(p, "sha256", n)))) return false;
        any |= found;
    }
    return any;
}

static void prepare_source(void *arg)
{
    const convert_bench *cb = ((conversion *)arg)->cb;
    bench_settle(cb->folder); /* the plain writer removed its file */
    bench_folder_warm(cb->source, cb->cold, cb->piece);
}

static void remove_output(void *arg)
{
    const convert_bench *cb = ((conversion *)arg)->cb;
    bench_folder_remove(cb->out);
    bench_settle(cb->folder);
}

static bl_status run_convert(void *arg, bl_error *err)
{
    conversion *c = arg;
    bl_convert_report report;
    return bl_convert(c->cb->source, c->cb->out, &c->o, &report, err);
}

static bl_status run_verify(void *arg, bl_error *err)
{
    conversion *c = arg;
    bl_verify_report report;
    return bl_verify(c->cb->out, &c->v, &report, err);
}

/* Each run past the page cache: what the conversion left there must not help. */
static void cool_output(void *arg)
{
    const convert_bench *cb = ((conversion *)arg)->cb;
    char rank[4200];
    snprintf(rank, sizeof rank, "%s/rank-0000", cb->out);
    bench_folder_warm(rank, true, NULL);
}

static bl_status new_conversion(const convert_bench *cb, const struct subject_kind *k, conversion **out, bl_convert_report *planned,
                                bl_error *err)
{
    conversion *c = *out = bench_record(cb->b, sizeof *c);
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    c->cb = cb;
    c->o = (bl_convert_options){.target = k->target, .shard_size = 5000000000u, .cpu = cb->b->cpu, .no_sha256 = !k->sha256,
                                .no_digests = !k->digests, .engram_multipliers = bl_engram_multipliers,
                                .cancelled = cli_interrupted};
    bl_convert_options dry = c->o;
    dry.dry_run = true;
    return bl_convert(cb->source, cb->out, &dry, planned, err);
}

/* The subjects of one set and where those that others refer to stand, -1 for none. */
typedef struct subject_set {
    bench_subject s[BENCH_SUBJECTS];
    int n, writer, sha256, of_kind[KINDS];
} subject_set;

static bl_status add_ceilings(const convert_bench *cb, subject_set *set, bl_error *err)
{
    *set = (subject_set){.writer = -1, .sha256 = -1};
    if (chosen(cb, "writer")) {
        set->writer = set->n;
        BL_TRY(bench_disk_ceiling(cb->b, &set->s[set->n++], cb->folder, cb->writer_bytes, true, err));
    }
    if (chosen(cb, "sha256")) {
        set->sha256 = set->n;
        BL_TRY(bench_sha256_ceiling(cb->b, &set->s[set->n++], err));
    }
    return BL_OK;
}

static bl_status add_kind(const convert_bench *cb, subject_set *set, int kind, uint64_t *source_bytes, bl_error *err)
{
    conversion *c;
    bl_convert_report planned;
    BL_TRY(new_conversion(cb, &kinds[kind], &c, &planned, err));
    *source_bytes = planned.source_bytes;
    double work = 1e-9 * (double)planned.file_bytes;
    bench_subject *s = &set->s[set->n];
    *s = (bench_subject){.name = kinds[kind].name, .run = run_convert, .reset = prepare_source, .after = remove_output, .arg = c,
                         .work = work, .unit = "GB"};
    if (set->writer >= 0) {
        s->ceiling[s->ceilings].subject = set->writer;
        s->ceiling[s->ceilings++].work = work;
    }
    if (set->sha256 >= 0 && kinds[kind].sha256) {
        s->ceiling[s->ceilings].subject = set->sha256;
        s->ceiling[s->ceilings++].work = work;
    }
    for (int i = 0; i < kind && kinds[kind].beside; i++)
        if (!strcmp(kinds[i].key, kinds[kind].beside)) s->beside = set->of_kind[i];
    set->of_kind[kind] = ++set->n;
    return BL_OK;
}

static bl_status measure(const convert_bench *cb, bl_target target, bl_error *err)
{
    subject_set set;
    char title[400];
    uint64_t source_bytes = 0;
    bool any = false;
    BL_TRY(add_ceilings(cb, &set, err));
    for (int i = 0; i < KINDS; i++) {
        if (kinds[i].target != target || !chosen(cb, kinds[i].key)) continue;
        BL_TRY(add_kind(cb, &set, i, &source_bytes, err));
        any = true;
    }
    if (!any) return BL_OK;
    bench_folder_warm(cb->source, cb->cold, cb->piece);
    snprintf(title, sizeof title,
             "converting %.2f GB, %.0f%% of them in the page cache before each run (%s), to new files with O_DIRECT and fsync;\n"
             "plain writer: %.2f GB to one new file with O_DIRECT and fsync, reads nothing",
             1e-9 * (double)source_bytes, 100 * bench_folder_cached(cb->source), cb->cold ? "cold: read from its disk" : "warm",
             1e-9 * (double)cb->writer_bytes);
    return bench_run(cb->b, title, set.s, set.n, err);
}

static bl_status measure_verify(const convert_bench *cb, bl_error *err)
{
    static const struct subject_kind packed = {.target = BL_TO_PACKED, .sha256 = true, .digests = true};
    conversion *c;
    bl_convert_report report;
    bench_subject s[2];
    if (!chosen(cb, "verify")) return BL_OK;
    BL_TRY(new_conversion(cb, &packed, &c, &report, err));
    BL_TRY(bl_convert(cb->source, cb->out, &c->o, &report, err));
    c->v = (bl_verify_options){.level = 3, .cpu = cb->b->cpu, .cancelled = cli_interrupted};
    double work = 1e-9 * (double)report.file_bytes;
    BL_TRY(bench_sha256_ceiling(cb->b, &s[0], err));
    s[1] = (bench_subject){.name = "verify --level 3", .run = run_verify, .reset = cool_output, .arg = c, .work = work, .unit = "GB",
                           .ceiling = {{0, work}}, .ceilings = 1};
    return bench_run(cb->b, "verifying the packed model, read past the page cache", s, 2, err);
}

static bl_status all_sets(convert_bench *cb, bl_error *err)
{
    int counts[2];
    BL_TRY(bench_threads(cb->b, counts[bench_thread_counts(cb->b, counts) - 1], err));
    BL_TRY(measure(cb, BL_TO_BF16, err));
    BL_TRY(measure(cb, BL_TO_PACKED, err));
    return measure_verify(cb, err);
}

static bl_status body(convert_bench *cb, const char *source, uint64_t bytes, bl_error *err)
{
    int n = snprintf(cb->out, sizeof cb->out, "%s/baleen-bench-%ld-out", cb->folder, (long)getpid());
    if (source) n = snprintf(cb->source, sizeof cb->source, "%s", source);
    else snprintf(cb->source, sizeof cb->source, "%s/baleen-bench-%ld-source", cb->folder, (long)getpid());
    if (n < 0 || n >= (int)sizeof cb->out) return bl_fail(err, BL_E_USAGE, cb->folder, NULL, -1, "the path is too long");
    BL_TRY(bench_memory(cb->b, BENCH_FOLDER_PIECE, &cb->piece, err));
    bl_status s = source ? BL_OK : bench_source(cb->source, bytes, err);
    if (s == BL_OK) {
        bench_settle(cb->folder); /* dirty pages cannot be dropped */
        s = all_sets(cb, err);
    }
    if (!source) bench_folder_remove(cb->source);
    bench_folder_remove(cb->out);
    return s;
}

static const char details[] =
    "--only names some of: writer, sha256 (the ceilings: a program that only writes, hashing in memory on all CPUs), bf16,\n"
    "bf16-nosha, packed, packed-nosha, packed-nodigests, packed-bare, verify. Each table is printed when its rounds are done;\n"
    "an interruption prints what there is. A DIR in memory (/dev/shm) shows what the CPUs allow.\n";

int bench_convert(int argc, char **argv)
{
    bench b = {.rounds = 3, .no_warmup = true, .cpu_time = true};
    convert_bench *cb = calloc(1, sizeof *cb);
    const char *args[8], *source = NULL;
    uint64_t bytes = 3000000000u;
    int count;
    if (!cb) return cli_report("baleen bench convert", bl_fail(NULL, BL_E_NOMEM, NULL, NULL, -1, "out of memory"), NULL);
    *cb = (convert_bench){.b = &b, .writer_bytes = 3000000000u};
    const cli_option own[] = {
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &bytes, "SIZE",
         "of the checkpoint, made with synth --preset wide (default 3GB; not below 2.3)"},
        {"source", CLI_STRING, &source, "PATH", "convert this checkpoint instead"},
        {"writer-size", CLI_SIZE(1, CLI_SIZE_MOST), &cb->writer_bytes, "SIZE", "what the plain writer writes (default 3GB)"},
        {"only", CLI_STRING, &cb->only, "LIST", "subjects to run, separated by commas (default: all)"},
        {"cold", CLI_FLAG, &cb->cold, NULL, "drop the source from the page cache before each run"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench convert", .usage = "DIR [options]", .min_args = 1, .max_args = 1, .details = details,
                     .summary = "Converts a checkpoint to DIR beside what its disk takes from a program that only writes."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done < 0 && cb->only && !usable(cb->only)) {
        bench_end(&b, BL_OK, NULL);
        done = cli_usage_error(&c, "--only '%.80s' names something unknown, or only ceilings", cb->only);
    }
    if (done < 0) {
        bl_error err = {0};
        cb->folder = args[0];
        cli_catch_signals();
        done = bench_end(&b, body(cb, source, bytes, &err), &err);
    }
    free(cb);
    return done;
}
