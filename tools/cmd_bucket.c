/* baleen bucket: weight-sync buckets of a checkpoint. */
#include "convert/bucket.h"
#include "kernels/cpu.h"
#include "tools/class_table.h"
#include "tools/cli.h"
#include "tools/memory_pass.h"
#include "tools/receipt.h"

#include <string.h>

static const char details[] =
    "DST gets bucket-00001.safetensors ..., each a buffer of at most --size bytes, to be sent and loaded one by one, with\n"
    "  buckets.json             every tensor: bucket, offset, group, XXH3-128; what is not sent, with value digests\n"
    "  flattened.bytes.json     the same as flattened-bucket metadata, one uint8 buffer a bucket, indices in bytes\n"
    "  flattened.elements.json  the same for older readers, one buffer for each dtype of a bucket, indices in elements\n"
    "  config.json, SHA256SUMS\n"
    "\n"
    "The data of a file, from data_offset to its end, is the buffer. Tensors begin at multiples of --align in it; behind one of\n"
    "another size lies a tensor of zeros named __pad__.N, since safetensors has no holes. What an engine fuses while it loads is\n"
    "never parted: a weight and its scale, wq_a and wkv, a compressor's wkv and wgate, an indexer's compressor. Tensors are sent\n"
    "as SRC has them: a BF16 cast gives BF16 buckets, a release or a packed model its codes with raw scales.\n"
    "Engram tables stay with the receiver, unless --host-owned none: buckets.json has their value digests, which are those of\n"
    "packed models, so that the receiver can prove what it holds. Each tensor of the model is sent or kept, or nothing is written.\n"
    "\n"
    "--base BASE: DST gets what turns the buckets in BASE, an older state of the same model, into those of SRC: a stream for each\n"
    "tensor that has changed, the exclusive or of old and new bytes or the ranges of rows that changed, in zstd (auto: the\n"
    "shorter one of both, for each tensor); target.json, the new buckets.json; delta.json. Buckets have the size, the alignment and the tensors of BASE.\n"
    "--apply DELTA BASE DST makes the new state in DST, byte for byte what 'baleen bucket SRC' writes. BASE must be the state that\n"
    "DELTA was made for, by its digests, and is left alone: applied twice, an exclusive or gives the old bytes again, so that a run\n"
    "that died in place would leave something that nobody could tell. --link spends no room on buckets that stay the same.\n"
    "\n"
    "DST appears complete or not at all: an interrupted run leaves nothing that counts, and there is no --resume, the same command\n"
    "begins anew. SRC, BASE, DELTA and DST may be archives (.tar, .tar.gz, .tar.zst, .zip; see 'baleen convert --help'). 'baleen verify'\n"
    "proves buckets and deltas, 'baleen inspect' says what is in them.\n";

static json_t *plan_json(const bl_buckets *b)
{
    json_t *list = json_array();
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket *k = &b->buckets[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:s, s:s}", "name", k->name, "nbytes", (json_int_t)k->nbytes, "tensors",
                                              (json_int_t)k->count, "first", k->tensors[0].tensor.name, "last",
                                              k->tensors[k->count - 1].tensor.name));
    }
    return list;
}

/* What becomes of the plan of a dry run: text at once, JSON into the receipt. */
typedef struct plan_output {
    bool json;
    json_t *plan;
} plan_output;

static void on_plan(void *arg, const bl_buckets *b)
{
    plan_output *out = arg;
    if (out->json) {
        out->plan = plan_json(b);
        return;
    }
    for (size_t i = 0; i < b->count; i++) {
        const bl_bucket *k = &b->buckets[i];
        size_t ends = 1;
        while (ends < k->count && k->tensors[ends].group == k->tensors[0].group) {
            ends++;
        }
        printf("%s  %12llu bytes  %5zu %-7s  %s%s\n", k->name, (unsigned long long)k->nbytes, k->count, k->count == 1 ? "tensor" : "tensors",
               k->tensors[0].tensor.name, ends == k->count ? "" : " ...");
    }
    for (size_t i = 0; i < b->host_count; i++) {
        printf("kept by the receiver  %12llu bytes  %s\n", (unsigned long long)b->host[i].tensor.nbytes, b->host[i].tensor.name);
    }
}

static void print_archive(uint64_t bytes)
{
    char size[32];
    if (bytes) {
        printf(", archive of %s", class_bytes(bytes, size, sizeof size));
    }
}

/* What was written in what time, beside copying in memory, which nothing that copies from files to files can surpass. */
static void print_rate(uint64_t bytes, double seconds, int jobs)
{
    int threads;
    const double rate = (double)bytes / (seconds > 0 ? seconds : 1), copy = memory_copy_rate(jobs, &threads);
    printf(", %.1f s, %.2f GB/s", seconds, rate * 1e-9);
    if (copy > 0) {
        printf(", %.1f%% of what %d thread%s cop%s in memory (%.2f GB/s)", 100 * rate / copy, threads, bl_plural((uint64_t)threads),
               threads == 1 ? "ies" : "y", copy * 1e-9);
    }
    printf("\n");
}

/* The receipt, with the size of the archive where one was written, and where files were, by how many jobs, the rate of copying. */
static int print_receipt(json_t *j, uint64_t archive_bytes, const int *jobs)
{
    int threads = 0;
    const double copy = j && jobs ? memory_copy_rate(*jobs, &threads) : 0;
    if (j && archive_bytes) {
        json_object_set_new(j, "archive_bytes", json_integer((json_int_t)archive_bytes));
    }
    if (copy > 0) {
        json_object_set_new(j, "copy_bytes_per_second", json_real(copy));
        json_object_set_new(j, "copy_threads", json_integer(threads));
    }
    return receipt_print("baleen bucket", j);
}

static int print_json(const char *src, const char *dst, const bl_bucket_options *o, const bl_bucket_report *r, json_t *plan)
{
    json_t *j = json_pack("{s:s, s:o, s:o, s:b, s:I, s:I, s:s, s:I, s:I}", "command", "bucket", "source", receipt_text(src), "destination",
                          receipt_text(dst), "dry_run", o->dry_run, "size", (json_int_t)o->size, "align", (json_int_t)o->align, "oversize",
                          o->slice ? "slice" : "alone", "source_tensors", (json_int_t)r->source_tensors, "source_bytes",
                          (json_int_t)r->source_bytes);
    json_object_update_new(
        j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "buckets", (json_int_t)r->buckets, "groups", (json_int_t)r->groups,
                     "tensors", (json_int_t)r->tensors, "tensor_bytes", (json_int_t)r->tensor_bytes, "padding_bytes",
                     (json_int_t)r->padding_bytes, "file_bytes", (json_int_t)r->file_bytes, "largest_bucket", (json_int_t)r->largest,
                     "oversize_buckets", (json_int_t)r->oversize, "sliced_tensors", (json_int_t)r->sliced));
    json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:b, s:f}", "host_owned_tensors", (json_int_t)r->host_tensors, "host_owned_bytes",
                                        (json_int_t)r->host_bytes, "host_owned_digests", (json_int_t)r->host_digests, "sha256",
                                        !o->no_sha256, "seconds", r->seconds));
    if (plan) {
        json_object_set_new(j, "plan", plan);
    }
    return print_receipt(j, r->archive_bytes, o->dry_run ? NULL : &o->jobs);
}

static void print_text(const char *dst, const bl_bucket_options *o, const bl_bucket_report *r)
{
    printf("%s%s: %zu tensor%s in %zu group%s in %zu bucket%s, %.3f GB, the largest %.1f MiB", o->dry_run ? "would write " : "", dst,
           r->tensors, bl_plural(r->tensors), r->groups, bl_plural(r->groups), r->buckets, bl_plural(r->buckets),
           (double)r->tensor_bytes * 1e-9, (double)r->largest / 1048576);
    if (r->oversize) {
        printf(", %zu above --size", r->oversize);
    }
    if (r->sliced) {
        printf(", %zu tensor%s in slices", r->sliced, bl_plural(r->sliced));
    }
    print_archive(r->archive_bytes);
    if (o->dry_run) {
        printf("\n");
    } else {
        print_rate(r->file_bytes, r->seconds, o->jobs);
    }
    if (r->host_tensors) {
        size_t digests = o->dry_run ? 0 : r->host_digests;
        printf("%zu tensor%s kept by the receiver, %.3f GB, %zu value digest%s\n", r->host_tensors, bl_plural(r->host_tensors),
               (double)r->host_bytes * 1e-9, digests, bl_plural(digests));
    }
}

static void on_note(const char *text)
{
    fprintf(stderr, "baleen bucket: note: %s\n", text);
}

/* ---- deltas */

static int print_delta_json(const char *src, const char *dst, const bl_bucket_options *o, const bl_bucket_report *r)
{
    return print_receipt(json_pack("{s:s, s:o, s:o, s:o, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f}", "command", "bucket",
                                   "source", receipt_text(src), "base", receipt_text(o->base), "destination", receipt_text(dst), "dry_run",
                                   o->dry_run, "encoding", bl_delta_encoding_name(o->encoding), "buckets", (json_int_t)r->buckets,
                                   "tensors", (json_int_t)r->tensors, "tensor_bytes", (json_int_t)r->tensor_bytes, "changed_buckets",
                                   (json_int_t)r->changed_buckets, "changed_tensors", (json_int_t)r->changed, "changed_bytes",
                                   (json_int_t)r->changed_bytes, "delta_bytes", (json_int_t)r->delta_bytes, "changed_host_tensors",
                                   (json_int_t)r->host_changed, "sha256", !o->no_sha256, "seconds", r->seconds),
                         r->archive_bytes, NULL);
}

static void print_delta_text(const char *dst, const bl_bucket_options *o, const bl_bucket_report *r)
{
    char changed[32], delta[32];
    if (o->dry_run) {
        printf("would write %s: %zu tensor%s in %zu bucket%s, %.3f GB, to be compared with %s\n", dst, r->tensors, bl_plural(r->tensors),
               r->buckets, bl_plural(r->buckets), (double)r->tensor_bytes * 1e-9, o->base);
        return;
    }
    printf("%s: %zu tensor%s (or slices) in %zu of %zu bucket%s changed, %s, as %s", dst, r->changed, bl_plural(r->changed), r->changed_buckets,
           r->buckets, bl_plural(r->buckets), class_bytes(r->changed_bytes, changed, sizeof changed),
           class_bytes(r->delta_bytes, delta, sizeof delta));
    print_archive(r->archive_bytes);
    printf(", %.1f s, %.2f GB/s compared\n", r->seconds, (double)r->tensor_bytes * 1e-9 / (r->seconds > 0 ? r->seconds : 1));
    if (r->host_changed) {
        printf("%zu of the tensors kept by the receiver changed too: the delta does not have %s\n", r->host_changed,
               r->host_changed == 1 ? "it" : "them");
    }
}

static int apply(const cli_command *c, const char *delta, const char *base, const char *dst, const bl_apply_options *given, bool json)
{
    bl_apply_options o = *given;
    bl_apply_report r;
    bl_error err;
    bl_error_clear(&err);
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin("applying", json);
    o.progress = cli_progress_update;
    o.progress_arg = progress;
    bl_status s = bl_bucket_apply(delta, base, dst, &o, &r, &err);
    cli_progress_end(&progress);
    if (s == BL_OK && json) {
        json_t *j = json_pack("{s:s, s:o, s:o, s:o, s:b, s:f}", "command", "bucket", "delta", receipt_text(delta), "base",
                              receipt_text(base), "destination", receipt_text(dst), "sha256", !o.no_sha256, "seconds", r.seconds);
        json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "buckets", (json_int_t)r.buckets, "tensors",
                                            (json_int_t)r.tensors, "changed_buckets", (json_int_t)r.changed_buckets, "changed_tensors",
                                            (json_int_t)r.changed, "delta_bytes", (json_int_t)r.delta_bytes, "file_bytes",
                                            (json_int_t)r.file_bytes, "linked_buckets", (json_int_t)r.linked, "linked_bytes",
                                            (json_int_t)r.linked_bytes));
        return print_receipt(j, r.archive_bytes, &o.jobs);
    }
    if (s == BL_OK) {
        printf("%s: %zu tensor%s (or slices) in %zu of %zu bucket%s changed, %.3f GB, %zu bucket%s linked", dst, r.changed,
               bl_plural(r.changed), r.changed_buckets, r.buckets, bl_plural(r.buckets), (double)r.file_bytes * 1e-9, r.linked,
               bl_plural(r.linked));
        print_archive(r.archive_bytes);
        print_rate(r.file_bytes, r.seconds, o.jobs);
    }
    return cli_report(c->program, s, &err);
}

/* ---- the command */

/* Words of options, each at its value; -1 (0 for --host-owned, ~0 for --cpu) is "not given". */
static const char *const oversizes[] = {"alone", "slice", NULL};
static const char *const encodings[] = {[BL_DELTA_XOR] = "xor", [BL_DELTA_RANGES] = "ranges", [BL_DELTA_AUTO] = "auto", NULL};
static const char *const owned[] = {"engram", "dspark", "vision", "none", NULL}; /* bits of BL_HOST_, and HOST_NONE */
#define HOST_NONE 8u

typedef struct given {
    const char *apply;
    int oversize, encoding;
    unsigned host, cpu;
    int64_t jobs, level;
    bool link, json;
} given;

/* -1, or the exit status of what does not go together. */
static int check_options(const cli_command *c, const given *g, bl_bucket_options *o)
{
    bool layout = o->size != CLI_UNSET_SIZE || o->align != CLI_UNSET_SIZE || g->oversize >= 0 || g->host;
    bool delta = g->encoding >= 0 || g->level != CLI_UNSET;
    if (g->apply && (layout || o->base || delta || o->dry_run || g->cpu != ~0u || o->no_host_digests)) {
        return cli_usage_error(c, "with --apply go --link, --spill, --jobs, --no-sha256 and --json");
    }
    if (o->base && layout) {
        return cli_usage_error(c, "--size, --align, --oversize and --host-owned are those of --base");
    }
    if (delta && !o->base) {
        return cli_usage_error(c, "--encoding and --level go with --base");
    }
    if (g->link && !g->apply) {
        return cli_usage_error(c, "--link goes with --apply");
    }
    if (g->host > HOST_NONE) {
        return cli_usage_error(c, "--host-owned takes none or some of the others, not both");
    }
    o->host = g->host ? g->host & ~HOST_NONE : BL_HOST_ENGRAM;
    o->size = o->size != CLI_UNSET_SIZE ? o->size : (uint64_t)512 << 20;
    o->align = o->align != CLI_UNSET_SIZE ? o->align : 256;
    o->slice = g->oversize == 1;
    o->encoding = g->encoding >= 0 ? (bl_delta_encoding)g->encoding : BL_DELTA_XOR;
    o->level = g->level != CLI_UNSET ? (int)g->level : 1;
    o->jobs = (int)g->jobs;
    o->cpu = g->cpu & bl_cpu_detect();
    if ((o->align & (o->align - 1)) != 0) {
        return cli_usage_error(c, "--align takes a power of two up to %u, not %llu", BL_BUCKETS_MAX_ALIGN, (unsigned long long)o->align);
    }
    return -1;
}

/* Buckets, or with base a delta. */
static int deal(const cli_command *c, const char *src, const char *dst, bl_bucket_options *o, bool json)
{
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin(o->base ? "comparing" : "dealing", json);
    o->progress = cli_progress_update;
    o->progress_arg = progress;
    plan_output plan = {.json = json};
    o->on_plan = on_plan;
    o->plan_arg = &plan;
    bl_bucket_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = o->base ? bl_bucket_delta(src, dst, o, &report, &err) : bl_bucket_write(src, dst, o, &report, &err);
    cli_progress_end(&progress);
    if (s == BL_OK && json) {
        return o->base ? print_delta_json(src, dst, o, &report) : print_json(src, dst, o, &report, plan.plan);
    }
    json_decref(plan.plan);
    if (s == BL_OK && o->base) {
        print_delta_text(dst, o, &report);
    } else if (s == BL_OK) {
        print_text(dst, o, &report);
    }
    return cli_report(c->program, s, &err);
}

int cmd_bucket(int argc, char **argv)
{
    const char *args[2];
    given g = {.oversize = -1, .encoding = -1, .cpu = ~0u, .level = CLI_UNSET};
    int count;
    bl_bucket_options o = {.size = CLI_UNSET_SIZE, .align = CLI_UNSET_SIZE, .spill_max = BL_SPILL_MAX, .note = on_note,
                           .cancelled = cli_interrupted};
    const cli_option options[] = {
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &o.size, "SIZE", "most bytes of a bucket (default 512MiB)"},
        {"align", CLI_SIZE(1, BL_BUCKETS_MAX_ALIGN), &o.align, "BYTES",
         "of every tensor in its bucket: a power of two up to 4096 (default 256; 1: no padding)"},
        {"oversize", CLI_WORD(oversizes), &g.oversize, "HOW", "tensors larger than a bucket: alone (default) or slice (by rows)"},
        {"host-owned", CLI_WORDS(owned), &g.host, "LIST", "what is not sent: engram (default), dspark, vision, or none"},
        {"no-host-digests", CLI_FLAG, &o.no_host_digests, NULL, "do not read what is not sent for its value digests"},
        {"base", CLI_STRING, &o.base, "BASE", "write what has changed since the buckets in BASE"},
        {"encoding", CLI_WORD(encodings), &g.encoding, "HOW", "base: xor (default), ranges (rows that changed) or auto"},
        {"level", CLI_INT(1, 9), &g.level, "N", "base: of zstd, 1 (default) to 9"},
        {"apply", CLI_STRING, &g.apply, "DELTA", "make the new state in DST of the buckets in SRC and DELTA"},
        {"link", CLI_FLAG, &g.link, NULL, "apply: hard-link buckets that stay the same"},
        {"spill", CLI_SIZE(0, CLI_SIZE_MOST), &o.spill_max, "SIZE", "compressed archives: bytes to unpack as a whole (default 4GiB)"},
        {"jobs", CLI_INT(1, CLI_JOBS_MAX), &g.jobs, "N", "threads (default: twice the CPUs)"},
        {"cpu", CLI_CPU, &g.cpu, "LEVEL", "highest instruction set to use (default: native)"},
        {"no-sha256", CLI_FLAG, &o.no_sha256, NULL, "leave the SHA-256 of the buckets out"},
        {"dry-run", CLI_FLAG, &o.dry_run, NULL, "print the plan and check the free space, write nothing"},
        {"json", CLI_FLAG, &g.json, NULL, "print a receipt as JSON"},
        CLI_END};
    const cli_command c = {"baleen bucket", "SRC DST [options]",
                           "Deal a checkpoint (HF folder, packed model, or an archive of one) to weight-sync buckets.", details, options,
                           2, 2};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0 || (rc = check_options(&c, &g, &o)) >= 0) {
        return rc;
    }
    if (g.apply) {
        const bl_apply_options a = {.link = g.link, .jobs = o.jobs, .spill_max = o.spill_max, .no_sha256 = o.no_sha256, .note = on_note,
                                    .cancelled = cli_interrupted};
        return apply(&c, g.apply, args[0], args[1], &a, g.json);
    }
    return deal(&c, args[0], args[1], &o, g.json);
}
