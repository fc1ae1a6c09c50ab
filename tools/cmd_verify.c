/* baleen verify: prove a folder, or compare two. */
#include "tools/cli.h"
#include "tools/receipt.h"
#include "verify/verify.h"

#include <inttypes.h>

static const char details[] =
    "levels, each including the ones before:\n"
    "  0  names: every tensor in exactly the file that the index or manifest says, nothing missing, doubled or stray\n"
    "  1  structure: strict safetensors headers, sizes, manifests that agree with the files\n"
    "  2  semantic: tensors against the config, scales, NaN codes, infinities\n"
    "  3  content: SHA-256 of every file with a recorded one (SHA256SUMS, Hugging Face cache), every 8 MiB chunk of a packed\n"
    "     model\n"
    "\n"
    "Every problem is one line on stderr with file, tensor and byte range; the exit status is then 1. --against compares values:\n"
    "a checkpoint, its BF16 cast and its packed model are equal; what one side records as dropped may be absent there.\n"
    "\n"
    "Folders of earlier generations (V3, R1, V3.1, V3.2, V4) too: their configs call for no tensors by name, so that every tensor's\n"
    "role comes from its dtype, its shape and the scale beside it, and experts and layers must be without gaps. Float32 scales\n"
    "that are no powers of two are a problem only where the config calls them ue8m0; values are then compared as a cast rounds them.\n";

typedef struct output {
    bool json;
    json_t *findings;
    cli_progress *progress;
} output;

static void add_json(output *out, const bl_finding *f)
{
    json_t *j = json_pack("{s:o, s:o, s:o}", "level", f->level < 0 ? json_null() : json_integer(f->level), "file", receipt_text(f->path),
                          "message", receipt_text(f->message));
    if (j && f->tensor[0]) {
        json_object_set_new(j, "tensor", receipt_text(f->tensor));
    }
    if (j && f->begin >= 0) {
        json_object_set_new(j, "begin", json_integer(f->begin));
        json_object_set_new(j, "end", json_integer(f->end));
    }
    json_array_append_new(out->findings, j);
}

static void on_finding(void *arg, const bl_finding *f)
{
    output *out = arg;
    char line[2400], shown[2600]; /* a bl_error's strings and more */
    bl_error e = {.code = BL_E_FINDING, .offset = -1};
    snprintf(e.path, sizeof e.path, "%s", f->path);
    snprintf(e.tensor, sizeof e.tensor, "%s", f->tensor);
    snprintf(e.message, sizeof e.message, "%s", f->message);
    bl_error_line(&e, line, sizeof line);
    if (f->begin >= 0 && f->end > f->begin) {
        snprintf(shown, sizeof shown, "baleen verify: %s (bytes %" PRId64 "..%" PRId64 ")", line, f->begin, f->end - 1);
    } else {
        snprintf(shown, sizeof shown, "baleen verify: %s", line);
    }
    cli_progress_line(out->progress, shown);
    if (out->json) {
        add_json(out, f);
    }
}

static const char *kind_name(bl_source_kind k)
{
    return k == BL_SOURCE_FILE ? "file" : k == BL_SOURCE_PACKED ? "packed" : "hf";
}

static int print_json(output *out, const char *path, const bl_verify_options *o, const bl_verify_report *r, bl_status s)
{
    json_t *j = json_pack("{s:s, s:o, s:s, s:i, s:b, s:O, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "command", "verify", "path", receipt_text(path), "kind",
                          kind_name(r->kind), "level", o->level, "ok", s == BL_OK, "findings", out->findings, "files",
                          (json_int_t)r->files, "tensors", (json_int_t)r->tensors, "files_hashed", (json_int_t)r->files_hashed,
                          "files_unproven", (json_int_t)r->files_unproven, "chunks", (json_int_t)r->chunks, "bytes",
                          (json_int_t)r->bytes, "seconds", r->seconds);
    if (j && o->against) {
        json_object_set_new(j, "against", receipt_text(o->against));
        json_object_set_new(j, "compared_equal", json_integer((json_int_t)r->compared));
    }
    return receipt_print("baleen verify", j);
}

static void print_text(const char *path, const bl_verify_options *o, const bl_verify_report *r)
{
    printf("%s: ", path);
    if (r->findings) {
        printf("%zu %s", r->findings, r->findings == 1 ? "problem" : "problems");
    } else {
        printf("holds");
    }
    printf(" at level %d: %zu tensors in %zu files", o->level, r->tensors, r->files);
    if (o->level >= 3) {
        printf(", %zu files by SHA-256, %zu chunks", r->files_hashed, r->chunks);
    }
    if (r->files_unproven) {
        printf(", nothing recorded to prove %zu files by", r->files_unproven);
    }
    if (o->against) {
        printf(", %zu weights equal to %s", r->compared, o->against);
    }
    if (r->bytes) {
        printf(", %.3f GB in %.1f s", (double)r->bytes * 1e-9, r->seconds);
    }
    printf("\n");
}

int cmd_verify(int argc, char **argv)
{
    const char *args[1], *cpu = NULL;
    int64_t level = 3, jobs = 0, rank = -1;
    int count;
    output out = {0};
    bl_verify_options o = {.on_finding = on_finding, .arg = &out, .cancelled = cli_interrupted};
    const cli_option options[] = {{"level", CLI_INT, &level, "N", "0 to 3 (default 3)"},
                                  {"rank", CLI_INT, &rank, "N", "packed: only what rank N needs, on a node that holds no other"},
                                  {"against", CLI_STRING, &o.against, "OTHER", "compare values with another checkpoint or packed model"},
                                  {"jobs", CLI_INT, &jobs, "N", "threads (default: twice the CPUs)"},
                                  {"cpu", CLI_STRING, &cpu, "LEVEL", "highest instruction set to use (default: native)"},
                                  {"json", CLI_FLAG, &out.json, NULL, "print a receipt as JSON, findings included"},
                                  {NULL, 0, NULL, NULL, NULL}};
    const cli_command c = {"baleen verify", "[PATH] [options]",
                           "Prove a checkpoint folder, a packed model or one safetensors file (default: the built-in model).", details,
                           options, 0, 1};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0 || (rc = cli_cpu(&c, cpu, &o.cpu)) != 0) {
        return rc;
    }
    if (level < 0 || level > 3) {
        return cli_usage_error(&c, "--level takes 0 to 3");
    }
    if (rank < -1 || rank >= BL_MAX_RANKS) {
        return cli_usage_error(&c, "--rank takes 0 to %d", BL_MAX_RANKS - 1);
    }
    if (rank >= 0 && o.against) {
        return cli_usage_error(&c, "--rank and --against do not go together: one rank is not a whole model");
    }
    if (jobs < 0 || jobs > 1024) {
        return cli_usage_error(&c, "--jobs takes 1 to 1024");
    }
    const char *path = count ? args[0] : cli_default_model();
    o.level = (int)level;
    o.one_rank = rank >= 0;
    o.rank = (int)rank;
    o.jobs = (int)jobs;
    out.findings = json_array();
    cli_catch_signals();
    out.progress = cli_progress_begin("verifying", out.json);
    o.progress = cli_progress_update;
    o.progress_arg = out.progress;
    bl_verify_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = bl_verify(path, &o, &report, &err);
    cli_progress_end(&out.progress);
    rc = s == BL_E_FINDING ? bl_exit_code(s) : cli_report(c.program, s, &err);
    if ((s == BL_OK || s == BL_E_FINDING) && out.json) {
        int bad = print_json(&out, path, &o, &report, s);
        rc = bad ? bad : rc;
    } else if (s == BL_OK || s == BL_E_FINDING) {
        print_text(path, &o, &report);
    }
    json_decref(out.findings);
    return rc;
}
