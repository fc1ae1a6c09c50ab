/* baleen merge: the ranks of a packed model to one checkpoint. */
#include "convert/convert.h"
#include "kernels/cpu.h"
#include "tools/cli.h"
#include "tools/receipt.h"

static const char details[] =
    "Every tensor comes back under its released name, byte for byte: parts are put together, experts unstacked, padding of the\n"
    "vocabulary, of Engram tables and of shared experts left out, weights that --split gave other scales or decoded encoded as they\n"
    "were, under the scales kept in SRC/scales.source.st. config.json is that of the packed model, which is that of its source unless\n"
    "something was dropped. What several ranks hold is read from the first and held\n"
    "against its value digest; 'baleen verify SRC' proves that the others agree.\n"
    "All ranks must be there. SRC and DST may be archives, see 'baleen convert --help'. DST appears complete or not at all; it must\n"
    "not exist or be an empty folder, no link.\n";

static int print_json(const char *src, const char *dst, const bl_convert_options *o, const bl_convert_report *r)
{
    json_t *j = json_pack("{s:s, s:o, s:o, s:b, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f}", "command", "merge", "source",
                          receipt_text(src), "destination", receipt_text(dst), "dry_run", o->dry_run, "ranks", r->source_ranks,
                          "source_tensors", (json_int_t)r->source_tensors, "tensors", (json_int_t)r->tensors, "tensor_bytes",
                          (json_int_t)r->tensor_bytes, "files", (json_int_t)r->files, "file_bytes", (json_int_t)r->file_bytes,
                          "scales_restored", (json_int_t)r->hinted_count, "sha256", !o->no_sha256, "seconds", r->seconds);
    if (j && r->archive_bytes) {
        json_object_set_new(j, "archive_bytes", json_integer((json_int_t)r->archive_bytes));
    }
    return receipt_print("baleen merge", j);
}

static void print_text(const char *dst, const bl_convert_options *o, const bl_convert_report *r)
{
    printf("%s%s: %zu tensor%s in %zu file%s, %.3f GB, from %zu tensor%s of %d rank%s", o->dry_run ? "would write " : "", dst, r->tensors,
           bl_plural(r->tensors), r->files, bl_plural(r->files), (double)r->file_bytes * 1e-9, r->source_tensors,
           bl_plural(r->source_tensors), r->source_ranks, bl_plural((uint64_t)r->source_ranks));
    if (r->archive_bytes) {
        printf(", archive of %.3f GB", (double)r->archive_bytes * 1e-9);
    }
    if (!o->dry_run) {
        printf(", %.1f s, %.2f GB/s", r->seconds, (double)r->file_bytes * 1e-9 / (r->seconds > 0 ? r->seconds : 1));
    }
    printf("\n");
    if (r->hinted_count) {
        printf("%zu weight%s that packing decoded %s codes again, under the scales kept in " BL_SCALES_NAME "\n", r->hinted_count,
               bl_plural(r->hinted_count), o->dry_run ? "would get" : r->hinted_count == 1 ? "has" : "have");
    }
}

static void on_note(const char *text)
{
    fprintf(stderr, "baleen merge: note: %s\n", text);
}

int cmd_merge(int argc, char **argv)
{
    const char *args[2];
    int64_t jobs = 0;
    bool json = false;
    int count;
    bl_convert_options o = {.cpu = bl_cpu_detect(), .target = BL_TO_MERGED, .shard_size = 5000000000u, .spill_max = BL_SPILL_MAX,
                            .cancelled = cli_interrupted, .note = on_note};
    const cli_option options[] = {{"shard-size", CLI_SIZE(1, CLI_SIZE_MOST), &o.shard_size, "SIZE",
                                   "most bytes of tensors in a file (default 5GB)"},
                                  {"spill", CLI_SIZE(0, CLI_SIZE_MOST), &o.spill_max, "SIZE",
                                   "compressed archives: bytes to unpack as a whole (default 4GiB)"},
                                  {"jobs", CLI_INT(1, CLI_JOBS_MAX), &jobs, "N", "threads (default: twice the CPUs)"},
                                  {"cpu", CLI_CPU, &o.cpu, "LEVEL", "highest instruction set to use (default: native)"},
                                  {"no-sha256", CLI_FLAG, &o.no_sha256, NULL, "leave the SHA-256 of large files out"},
                                  {"resume", CLI_FLAG, &o.resume, NULL, "go on from what an interrupted run left"},
                                  {"dry-run", CLI_FLAG, &o.dry_run, NULL, "plan and check the free space, write nothing"},
                                  {"json", CLI_FLAG, &json, NULL, "print a receipt as JSON"},
                                  CLI_END};
    const cli_command c = {"baleen merge", "SRC DST [options]", "Put the ranks of a packed model together to one checkpoint.",
                           details, options, 2, 2};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0) {
        return rc;
    }
    o.jobs = (int)jobs;
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin("merging", json);
    o.progress = cli_progress_update;
    o.progress_arg = progress;
    bl_convert_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = bl_convert(args[0], args[1], &o, &report, &err);
    cli_progress_end(&progress);
    if (s == BL_OK && json) {
        return print_json(args[0], args[1], &o, &report);
    }
    if (s == BL_OK) {
        print_text(args[1], &o, &report);
    }
    return cli_report(c.program, s, &err);
}
