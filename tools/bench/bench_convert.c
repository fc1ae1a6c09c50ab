/* Whole conversions and a verification, beside what the disk takes from a program that only writes and what the CPUs hash. */
#include "tools/bench.h"

#include "convert/convert.h"
#include "convert/synth.h"
#include "runtime/engram.h"
#include "verify/verify.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDE_FIXED 1.65e9 /* bytes of the preset "wide" that are no routed experts */
#define WIDE_EXPERT 0.075e9 /* bytes of one expert in all of its layers */

typedef struct convert_bench {
    const char *folder; /* everything is written below it */
    char source[4096], out[4096];
    uint64_t source_bytes;
} convert_bench;

typedef struct conversion {
    const convert_bench *cb;
    bl_convert_options o;
    bl_verify_options v;
    char packed[4096]; /* what a verification reads */
} conversion;

static bl_status token_classes(const char *text, size_t n, int *classes, bl_error *err)
{
    bl_tokenizer *t;
    int32_t *map = NULL;
    BL_TRY(bl_tokenizer_parse(&t, text, n, "tokenizer.json", err));
    bl_status s = bl_engram_token_map(t, &map, classes, err);
    free(map);
    bl_tokenizer_close(&t);
    return s;
}

/* Remove an output folder, with one level of folders in it. */
static void remove_folder(const char *path)
{
    char name[4400];
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (unlink(name)) remove_folder(name);
    }
    if (d) closedir(d);
    rmdir(path);
}

/* Read the source through the page cache once: every round then finds it there, or not, alike. */
static void warm(const char *path, void *buf, size_t cap)
{
    char name[4400];
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        while (fd >= 0 && read(fd, buf, cap) > 0) {
        }
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
}

static void remove_output(void *arg)
{
    conversion *c = arg;
    remove_folder(c->cb->out);
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
    return bl_verify(c->packed, &c->v, &report, err);
}

static bl_status make_source(bench *b, convert_bench *cb, uint64_t bytes, bl_error *err)
{
    char experts[64];
    double wanted = ((double)bytes - WIDE_FIXED) / WIDE_EXPERT;
    snprintf(experts, sizeof experts, "n_routed_experts=%d", wanted < 8 ? 8 : wanted > 384 ? 384 : (int)wanted);
    const char *overrides[] = {experts};
    bl_synth_options o = {.preset = "wide", .overrides = overrides, .override_count = 1, .seed = 1, .shards = 4,
                          .token_classes = token_classes, .cancelled = cli_interrupted};
    bl_synth_report report;
    BL_TRY(bl_synth(cb->source, &o, &report, err));
    cb->source_bytes = report.file_bytes;
    return BL_OK;
}

/* Bytes that a conversion writes. */
static bl_status output_bytes(const convert_bench *cb, bl_convert_options o, double *gigabytes, bl_error *err)
{
    bl_convert_report report;
    o.dry_run = true;
    BL_TRY(bl_convert(cb->source, cb->out, &o, &report, err));
    *gigabytes = 1e-9 * (double)report.file_bytes;
    return BL_OK;
}

enum { WRITER, HASHER, FIRST };

static bl_status add(bench *b, const convert_bench *cb, bench_subject *s, int *n, const char *name, bl_target target, bool sha256,
                     bool digests, bl_error *err)
{
    conversion *c = bench_record(b, sizeof *c);
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    c->cb = cb;
    c->o = (bl_convert_options){.target = target, .shard_size = 5000000000u, .cpu = b->cpu, .no_sha256 = !sha256, .no_digests = !digests,
                                .engram_multipliers = bl_engram_multipliers, .cancelled = cli_interrupted};
    double work = 0;
    BL_TRY(output_bytes(cb, c->o, &work, err));
    s[*n] = (bench_subject){.name = name, .run = run_convert, .reset = remove_output, .arg = c, .work = work, .unit = "GB",
                            .ceiling = {{WRITER, work}, {HASHER, work}}, .ceilings = sha256 ? 2 : 1};
    ++*n;
    return BL_OK;
}

static bl_status measure(bench *b, convert_bench *cb, uint64_t writer_bytes, bl_error *err)
{
    bench_subject s[8];
    int n = FIRST, counts[2];
    char title[256];
    BL_TRY(bench_threads(b, counts[bench_thread_counts(b, counts) - 1], err));
    BL_TRY(bench_disk_ceiling(b, &s[WRITER], cb->folder, writer_bytes, true, err));
    BL_TRY(bench_sha256_ceiling(b, &s[HASHER], err));
    BL_TRY(add(b, cb, s, &n, "convert --to bf16", BL_TO_BF16, true, true, err));
    BL_TRY(add(b, cb, s, &n, "convert --to bf16 --no-sha256", BL_TO_BF16, false, true, err));
    BL_TRY(add(b, cb, s, &n, "convert --to packed", BL_TO_PACKED, true, true, err));
    BL_TRY(add(b, cb, s, &n, "convert --to packed --no-sha256", BL_TO_PACKED, false, true, err));
    BL_TRY(add(b, cb, s, &n, "the same without XXH3 digests", BL_TO_PACKED, false, false, err));
    /* What the digests cost: the run without them bounds the run with them. */
    s[n - 2].ceiling[1].subject = n - 1;
    s[n - 2].ceiling[1].work = s[n - 1].work;
    s[n - 2].ceilings = 2;
    snprintf(title, sizeof title, "converting %.2f GB, source in the page cache, plain writer of %.2f GB", 1e-9 * (double)cb->source_bytes,
             1e-9 * (double)writer_bytes);
    return bench_run(b, title, s, n, err);
}

static bl_status measure_verify(bench *b, convert_bench *cb, bl_error *err)
{
    conversion *c = bench_record(b, sizeof *c);
    bl_convert_report report;
    bench_subject s[2];
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    remove_folder(cb->out);
    c->o = (bl_convert_options){.target = BL_TO_PACKED, .cpu = b->cpu, .engram_multipliers = bl_engram_multipliers};
    BL_TRY(bl_convert(cb->source, cb->out, &c->o, &report, err));
    snprintf(c->packed, sizeof c->packed, "%s", cb->out);
    c->v = (bl_verify_options){.level = 3, .cpu = b->cpu, .cancelled = cli_interrupted};
    double work = 1e-9 * (double)report.file_bytes;
    BL_TRY(bench_sha256_ceiling(b, &s[0], err));
    s[1] = (bench_subject){.name = "verify a packed model", .run = run_verify, .arg = c, .work = work, .unit = "GB",
                           .ceiling = {{0, work}}, .ceilings = 1};
    return bench_run(b, "verifying, read past the page cache", s, 2, err);
}

static bl_status body(bench *b, const char *folder, uint64_t bytes, uint64_t writer_bytes, bl_error *err)
{
    convert_bench *cb = bench_record(b, sizeof *cb);
    void *buf;
    if (!cb) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    cb->folder = folder;
    snprintf(cb->source, sizeof cb->source, "%s/baleen-bench-%ld-source", folder, (long)getpid());
    snprintf(cb->out, sizeof cb->out, "%s/baleen-bench-%ld-out", folder, (long)getpid());
    BL_TRY(bench_memory(b, 4 << 20, &buf, err));
    bl_status s = make_source(b, cb, bytes, err);
    if (s == BL_OK) {
        warm(cb->source, buf, 4 << 20);
        s = measure(b, cb, writer_bytes, err);
    }
    if (s == BL_OK) s = measure_verify(b, cb, err);
    remove_folder(cb->source);
    remove_folder(cb->out);
    return s;
}

int bench_convert(int argc, char **argv)
{
    bench b = {.rounds = 7};
    const char *args[8];
    uint64_t bytes = 3000000000u, writer_bytes = 4000000000u;
    int count;
    const cli_option own[] = {
        {"size", CLI_SIZE, &bytes, "SIZE", "of the checkpoint, made with synth --preset wide (default 3GB; not below 2.3)"},
        {"writer-size", CLI_SIZE, &writer_bytes, "SIZE", "what the plain writer writes (default 4GB)"},
        {NULL, 0, NULL, NULL, NULL},
    };
    cli_command c = {.program = "baleen bench convert", .usage = "DIR [options]", .min_args = 1, .max_args = 1,
                     .summary = "Converts a synthetic checkpoint in DIR beside what its disk takes from a program that only writes."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    cli_catch_signals();
    return bench_end(&b, body(&b, args[0], bytes, writer_bytes, &err), &err);
}
