/* Weight-sync buckets of a checkpoint, beside copying the same bytes in memory and what the disk takes. */
#include "tools/bench.h"
#include "tools/bench/folders.h"

#include "convert/bucket.h"
#include "verify/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct bucket_bench {
    bench *b;
    const char *folder; /* everything is written below it */
    char source[4096], out[4096];
    uint64_t bucket_bytes;
    bl_bucket_report planned;
    void *piece;
} bucket_bench;

typedef struct bucket_run {
    const bucket_bench *bb;
    bl_bucket_options o;
} bucket_run;

static bl_status run_bucket(void *arg, bl_error *err)
{
    bucket_run *r = arg;
    bl_bucket_report report;
    return bl_bucket_write(r->bb->source, r->bb->out, &r->o, &report, err);
}

static bl_status run_verify(void *arg, bl_error *err)
{
    bucket_run *r = arg;
    const bl_verify_options o = {.level = 3, .cpu = r->o.cpu, .cancelled = cli_interrupted};
    bl_verify_report report;
    return bl_verify(r->bb->out, &o, &report, err);
}

static void prepare_source(void *arg)
{
    const bucket_bench *bb = ((bucket_run *)arg)->bb;
    bench_settle(bb->folder);
    bench_folder_warm(bb->source, false, bb->piece);
}

static void remove_output(void *arg)
{
    const bucket_bench *bb = ((bucket_run *)arg)->bb;
    bench_folder_remove(bb->out);
    bench_settle(bb->folder);
}

static void cool_output(void *arg)
{
    bench_folder_warm(((bucket_run *)arg)->bb->out, true, NULL);
}

static bl_status new_run(const bucket_bench *bb, bool sha256, bucket_run **out, bl_error *err)
{
    bucket_run *r = *out = bench_record(bb->b, sizeof *r);
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    r->bb = bb;
    r->o = (bl_bucket_options){.size = bb->bucket_bytes, .align = 256, .host = BL_HOST_ENGRAM, .no_host_digests = true, .cpu = bb->b->cpu,
                               .no_sha256 = !sha256, .cancelled = cli_interrupted};
    return BL_OK;
}

/* A copy reads and writes every byte, and both count. */
static bench_subject subject(const char *name, bucket_run *r, double gigabytes)
{
    return (bench_subject){.name = name, .run = run_bucket, .reset = prepare_source, .after = remove_output, .arg = r, .work = gigabytes,
                           .unit = "GB", .ceiling = {{0, 2 * gigabytes}, {1, gigabytes}}, .ceilings = 2};
}

static bl_status measure(bucket_bench *bb, bl_error *err)
{
    bench_subject s[5];
    bucket_run *plain, *hashed;
    char title[400];
    BL_TRY(new_run(bb, false, &plain, err));
    BL_TRY(new_run(bb, true, &hashed, err));
    bl_bucket_options dry = plain->o;
    dry.dry_run = true;
    BL_TRY(bl_bucket_write(bb->source, bb->out, &dry, &bb->planned, err));
    double gigabytes = 1e-9 * (double)bb->planned.file_bytes;
    BL_TRY(bench_copy_ceiling(bb->b, &s[0], err));
    BL_TRY(bench_disk_ceiling(bb->b, &s[1], bb->folder, bb->planned.file_bytes, true, err));
    BL_TRY(bench_sha256_ceiling(bb->b, &s[2], err));
    s[3] = subject("bucket --no-sha256", plain, gigabytes);
    s[4] = subject("bucket", hashed, gigabytes);
    s[4].ceiling[s[4].ceilings].subject = 2;
    s[4].ceiling[s[4].ceilings++].work = gigabytes;
    s[4].beside = 1 + 3;
    bench_folder_warm(bb->source, false, bb->piece);
    snprintf(title, sizeof title,
             "%zu tensors in %zu groups to %zu buckets, %.2f GB, of a source of which %.0f%% is in the page cache before each run",
             bb->planned.tensors, bb->planned.groups, bb->planned.buckets, gigabytes, 100 * bench_folder_cached(bb->source));
    return bench_run(bb->b, title, s, 5, err);
}

static bl_status measure_verify(bucket_bench *bb, bl_error *err)
{
    bench_subject s[2];
    bucket_run *r;
    bl_bucket_report report;
    BL_TRY(new_run(bb, true, &r, err));
    BL_TRY(bl_bucket_write(bb->source, bb->out, &r->o, &report, err));
    double gigabytes = 1e-9 * (double)report.file_bytes;
    BL_TRY(bench_sha256_ceiling(bb->b, &s[0], err));
    s[1] = (bench_subject){.name = "verify --level 3", .run = run_verify, .reset = cool_output, .arg = r, .work = gigabytes, .unit = "GB",
                           .ceiling = {{0, gigabytes}}, .ceilings = 1};
    return bench_run(bb->b, "verifying the buckets, read past the page cache", s, 2, err);
}

static bl_status body(bucket_bench *bb, const char *source, uint64_t bytes, bl_error *err)
{
    int counts[2];
    int n = snprintf(bb->out, sizeof bb->out, "%s/baleen-bench-%ld-out", bb->folder, (long)getpid());
    if (source) n = snprintf(bb->source, sizeof bb->source, "%s", source);
    else snprintf(bb->source, sizeof bb->source, "%s/baleen-bench-%ld-source", bb->folder, (long)getpid());
    if (n < 0 || n >= (int)sizeof bb->out) return bl_fail(err, BL_E_USAGE, bb->folder, NULL, -1, "the path is too long");
    BL_TRY(bench_memory(bb->b, BENCH_FOLDER_PIECE, &bb->piece, err));
    BL_TRY(bench_threads(bb->b, counts[bench_thread_counts(bb->b, counts) - 1], err));
    bl_status s = source ? BL_OK : bench_source(bb->source, bytes, err);
    s = s == BL_OK ? measure(bb, err) : s;
    s = s == BL_OK ? measure_verify(bb, err) : s;
    if (!source) bench_folder_remove(bb->source);
    bench_folder_remove(bb->out);
    return s;
}

int bench_bucket(int argc, char **argv)
{
    bench b = {.rounds = 3, .no_warmup = true, .cpu_time = true};
    bucket_bench *bb = calloc(1, sizeof *bb);
    const char *args[8], *source = NULL;
    uint64_t bytes = 3000000000u;
    int count;
    if (!bb) return cli_report("baleen bench bucket", bl_fail(NULL, BL_E_NOMEM, NULL, NULL, -1, "out of memory"), NULL);
    *bb = (bucket_bench){.b = &b, .bucket_bytes = (uint64_t)512 << 20};
    const cli_option own[] = {
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &bytes, "SIZE",
         "of the checkpoint, made with synth --preset wide (default 3GB; not below 2.3)"},
        {"source", CLI_STRING, &source, "PATH", "use this checkpoint instead"},
        {"bucket-size", CLI_SIZE(1, CLI_SIZE_MOST), &bb->bucket_bytes, "SIZE", "of the buckets (default 512MiB)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench bucket", .usage = "DIR [options]", .min_args = 1, .max_args = 1,
                     .summary = "Deals a checkpoint to weight-sync buckets in DIR (/dev/shm: what the CPUs allow), beside copying in memory."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done < 0) {
        bl_error err = {0};
        bb->folder = args[0];
        cli_catch_signals();
        done = bench_end(&b, body(bb, source, bytes, &err), &err);
    }
    free(bb);
    return done;
}
