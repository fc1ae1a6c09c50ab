/* baleen synth: write a random checkpoint in the released layout. */
#include "convert/synth.h"
#include "runtime/engram.h"
#include "tools/cli.h"
#include "tools/receipt.h"

#define MAX_ARGS 65

static int print_report(const char *dst, const bl_synth_report *r, bool json)
{
    if (!json) {
        printf("%s: %zu tensor%s, %llu bytes\n", dst, r->tensors, bl_plural(r->tensors), (unsigned long long)r->tensor_bytes);
        return 0;
    }
    json_t *j = json_pack("{s:s, s:o, s:I, s:I, s:I}", "command", "synth", "destination", receipt_text(dst), "tensors", (json_int_t)r->tensors,
                          "tensor_bytes", (json_int_t)r->tensor_bytes, "file_bytes", (json_int_t)r->file_bytes);
    return receipt_print("baleen synth", j);
}

int cmd_synth(int argc, char **argv)
{
    const char *args[MAX_ARGS];
    int64_t seed = 1, shards = 3, jobs = 0;
    bool json = false;
    int count;
    char details[2048];
    snprintf(details, sizeof details,
             "presets:\n%s\nkey=value sets any field of text_config to a JSON value, for example n_routed_experts=384; original= and\n"
             "factor= set rope_scaling. With num_hidden_layers= alone the lists of layers are chosen to fit. A tokenizer.json of\n"
             "vocab_size entries comes with it. The same preset, fields and seed give the same bytes everywhere.\n",
             bl_synth_presets());
    bl_synth_options o = {.preset = "tiny", .token_classes = bl_engram_token_classes, .cancelled = cli_interrupted};
    const cli_option options[] = {{"preset", CLI_STRING, &o.preset, "NAME", "shape to start from (default tiny)"},
                                  {"seed", CLI_INT(0, INT64_MAX), &seed, "N", "random seed (default 1)"},
                                  {"shards", CLI_INT(1, 99999), &shards, "N", "files (default 3)"},
                                  {"headers", CLI_FLAG, &o.headers, NULL, "headers alone, with holes for the weights: needs little room"},
                                  {"jobs", CLI_INT(1, CLI_JOBS_MAX), &jobs, "N", "threads (default: twice the CPUs)"},
                                  {"json", CLI_FLAG, &json, NULL, "print a receipt as JSON"},
                                  CLI_END};
    const cli_command c = {"baleen synth", "DST [key=value ...] [options]",
                           "Write a random checkpoint in the released layout, of any shape.", details, options, 1, MAX_ARGS};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0) {
        return rc;
    }
    o.overrides = args + 1;
    o.override_count = (size_t)count - 1;
    o.seed = (uint64_t)seed;
    o.shards = (int)shards;
    o.jobs = (int)jobs;
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin("writing", json);
    o.progress = cli_progress_update;
    o.progress_arg = progress;
    bl_synth_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = bl_synth(args[0], &o, &report, &err);
    cli_progress_end(&progress);
    if (s == BL_OK) {
        return print_report(args[0], &report, json);
    }
    return cli_report(c.program, s, &err);
}
