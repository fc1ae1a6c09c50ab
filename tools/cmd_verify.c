/* baleen verify: prove a folder, or compare two. */
#include "kernels/cpu.h"
#include "runtime/engram.h"
#include "tools/cli.h"
#include "tools/receipt.h"
#include "verify/verify.h"

#include <inttypes.h>

#define CACHE_NOTE "not read: proven earlier, size, inode and times are the same. A cache cannot see bit rot"

static const char details[] =
    "levels, each including the ones before:\n"
    "  0  names: every tensor in exactly the file that the index or manifest says, nothing missing, doubled or stray\n"
    "  1  structure: strict safetensors headers, sizes, manifests that agree with the files\n"
    "  2  semantic: tensors and manifests against the config, scales, NaN codes, infinities\n"
    "  3  content: SHA-256 of every file with a recorded one (SHA256SUMS, Hugging Face cache), CRC-32 of others in a .zip, every\n"
    "     8 MiB chunk of a packed model, every tensor of weight-sync buckets\n"
    "  4  trust: with --key PUB, and before anything else: SHA256SUMS.sig is the Ed25519 signature of SHA256SUMS, which must list\n"
    "     every file (what git and the Hugging Face client keep for themselves aside: .git*, .cache)\n"
    "\n"
    "--sign KEY signs a folder in which all of level 3 holds. SHA256SUMS is written where a checkpoint has none, and completed for a\n"
    "model packed with --no-sha256. Keys are PEM files, unencrypted: openssl genpkey -algorithm ed25519 -out KEY; openssl pkey -in KEY\n"
    "-pubout -out PUB. Without baleen, in the folder:\n"
    "  sha256sum -c SHA256SUMS\n"
    "  openssl pkeyutl -verify -pubin -inkey PUB -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig\n"
    "\n"
    "--hub compares every file with the object that the Hugging Face client recorded for it (links of its cache, .cache/huggingface of\n"
    "a download into a folder), and names the files that it has no record of. Without it the records count where SHA256SUMS is silent.\n"
    "A record that is damaged is a problem of its own.\n"
    "\n"
    "--cache FILE|DIR remembers files whose SHA-256 was proven, and does not read them again while size, inode and times are the same\n"
    "and nothing else of the model has changed (a folder takes a file for each model). That is quick and no proof: a cache cannot see\n"
    "bit rot, and is as good as who may write it; the receipt counts what came from it. Files changed in the last two seconds are\n"
    "left out. The cache cannot lie in PATH.\n"
    "\n"
    "Every problem is one line on stderr with file, tensor and byte range; the exit status is then 1. --against compares values:\n"
    "a checkpoint, its BF16 cast and its packed model are equal; what one side records as dropped may be absent there.\n"
    "\n"
    "PATH may be weight-sync buckets or a delta of them, and any of these a .tar, .tar.gz, .tar.zst, .tar.xz or .zip: see\n"
    "'baleen convert --help'.\n"
    "\n"
    "Folders of earlier generations (V3, R1, V3.1, V3.2, V4) too: their configs call for no tensors by name, so that every tensor's\n"
    "role comes from its dtype, its shape and the scale beside it, and experts and layers must be without gaps. Float32 scales\n"
    "that are no powers of two are a problem only where the config calls them ue8m0; values are then compared as a cast rounds them.\n";

typedef struct output {
    bool json;
    json_t *findings, *unrecorded;
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

static void on_unrecorded(void *arg, const char *name)
{
    output *out = arg;
    json_array_append_new(out->unrecorded, receipt_text(name));
}

static void on_note(void *arg, const char *text)
{
    output *out = arg;
    char line[1600];
    snprintf(line, sizeof line, "baleen verify: note: %s", text);
    cli_progress_line(out->progress, line);
}

static const char *kind_name(bl_source_kind k)
{
    return k == BL_SOURCE_FILE ? "file" : k == BL_SOURCE_PACKED ? "packed" : k == BL_SOURCE_BUCKETS ? "buckets" : k == BL_SOURCE_DELTA ? "delta" : "hf";
}

static const char *trust_name(bl_trust t)
{
    return t == BL_TRUST_SIGNED ? "holds" : t == BL_TRUST_MADE ? "made" : "does not hold";
}

static int print_json(output *out, const char *path, const bl_verify_options *o, const bl_verify_report *r, bl_status s)
{
    json_t *j = json_pack("{s:s, s:o, s:s, s:i, s:b, s:O, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "command", "verify", "path", receipt_text(path), "kind",
                          kind_name(r->kind), "level", o->level, "ok", s == BL_OK, "findings", out->findings, "files",
                          (json_int_t)r->files, "tensors", (json_int_t)r->tensors, "files_hashed", (json_int_t)r->files_hashed,
                          "files_unproven", (json_int_t)r->files_unproven, "chunks", (json_int_t)r->chunks, "bytes",
                          (json_int_t)r->bytes, "seconds", r->seconds);
    if (j && r->files_crc) {
        json_object_set_new(j, "files_crc32", json_integer((json_int_t)r->files_crc));
    }
    if (j && o->cache) {
        json_object_set_new(j, "cache", json_pack("{s:I, s:I, s:s}", "files", (json_int_t)r->files_cached, "bytes",
                                                  (json_int_t)r->bytes_cached, "note", CACHE_NOTE));
    }
    if (j && o->hub) {
        json_object_set_new(j, "hub", json_pack("{s:I, s:O}", "files_proven", (json_int_t)r->files_hub, "no_record", out->unrecorded));
    }
    if (j && r->trust) {
        json_object_set_new(j, "signature", json_pack("{s:s, s:s, s:I}", "state", trust_name(r->trust), "key", r->signer, "files_listed",
                                                      (json_int_t)r->files_listed));
    }
    if (j && o->against) {
        json_object_set_new(j, "against", receipt_text(o->against));
        json_object_set_new(j, "compared_equal", json_integer((json_int_t)r->compared));
    }
    return receipt_print("baleen verify", j);
}

static void print_text(const output *out, const char *path, const bl_verify_options *o, const bl_verify_report *r)
{
    printf("%s: ", path);
    if (r->trust == BL_TRUST_UNSIGNED) {
        printf("not signed by %s; nothing else was looked at\n", r->signer);
        return;
    }
    if (r->findings) {
        printf("%zu problem%s", r->findings, bl_plural(r->findings));
    } else {
        printf("holds");
    }
    printf(" at level %d: %zu tensor%s in %zu file%s", o->level, r->tensors, bl_plural(r->tensors), r->files, bl_plural(r->files));
    if (o->level >= 3) {
        bool buckets = r->kind >= BL_SOURCE_BUCKETS;
        printf(", %zu file%s by SHA-256, %zu %s%s%s", r->files_hashed, bl_plural(r->files_hashed), r->chunks, buckets ? "tensor" : "chunk",
               bl_plural(r->chunks), buckets ? " by XXH3-128" : "");
    }
    if (r->files_crc) {
        printf(", %zu file%s by CRC-32", r->files_crc, bl_plural(r->files_crc));
    }
    if (r->files_hub) {
        printf(", %zu of them as Hugging Face records them", r->files_hub);
    }
    if (o->hub) {
        printf(", no record of %zu file%s", r->files_unrecorded, bl_plural(r->files_unrecorded));
    }
    if (r->files_unproven) {
        printf(", nothing recorded to prove %zu file%s by", r->files_unproven, bl_plural(r->files_unproven));
    }
    if (o->against) {
        printf(", %zu weight%s equal to %s", r->compared, bl_plural(r->compared), o->against);
    }
    if (r->bytes) {
        printf(", %.3f GB in %.1f s", (double)r->bytes * 1e-9, r->seconds);
    }
    if (r->trust == BL_TRUST_SIGNED) {
        printf(", signed by %s", r->signer);
    }
    printf("\n");
    if (o->cache) {
        printf("from the cache: %zu file%s, %.3f GB, " CACHE_NOTE "\n", r->files_cached, bl_plural(r->files_cached),
               (double)r->bytes_cached * 1e-9);
    }
    for (size_t i = 0; i < json_array_size(out->unrecorded); i++) {
        printf("no record: %s\n", json_string_value(json_array_get(out->unrecorded, i)));
    }
    if (r->files_listed) {
        printf("%zu file%s added to SHA256SUMS\n", r->files_listed, bl_plural(r->files_listed));
    }
    if (r->trust == BL_TRUST_MADE) {
        printf("signed: SHA256SUMS.sig by %s\n", r->signer);
    } else if (o->sign) {
        printf("not signed\n");
    }
}

int cmd_verify(int argc, char **argv)
{
    const char *args[1];
    int64_t level = CLI_UNSET, jobs = 0, rank = CLI_UNSET;
    int count;
    output out = {0};
    bl_verify_options o = {.cpu = bl_cpu_detect(), .spill_max = BL_SPILL_MAX,
                           .engram_multipliers = bl_engram_multipliers, .on_finding = on_finding, .on_unrecorded = on_unrecorded,
                           .note = on_note, .arg = &out, .cancelled = cli_interrupted};
    const cli_option options[] = {{"level", CLI_INT(0, 4), &level, "N", "0 to 4 (default 3, with --key 4)"},
                                  {"rank", CLI_INT(0, BL_MAX_RANKS - 1), &rank, "N",
                                   "packed: only what rank N needs, on a node that holds no other"},
                                  {"against", CLI_STRING, &o.against, "OTHER", "compare values with another checkpoint or packed model"},
                                  {"key", CLI_STRING, &o.key, "PUB", "level 4: check the signature with this public key first"},
                                  {"sign", CLI_STRING, &o.sign, "KEY", "sign the folder with this private key if all of it holds"},
                                  {"hub", CLI_FLAG, &o.hub, NULL, "compare every file with what the Hugging Face client recorded"},
                                  {"cache", CLI_STRING, &o.cache, "FILE|DIR", "do not read again what it knows to be proven (see above)"},
                                  {"spill", CLI_SIZE(0, CLI_SIZE_MOST), &o.spill_max, "SIZE",
                                   "compressed archives: bytes to unpack as a whole (default 4GiB)"},
                                  {"jobs", CLI_INT(1, CLI_JOBS_MAX), &jobs, "N", "threads (default: twice the CPUs)"},
                                  {"cpu", CLI_CPU, &o.cpu, "LEVEL", "highest instruction set to use (default: native)"},
                                  {"json", CLI_FLAG, &out.json, NULL, "print a receipt as JSON, findings included"},
                                  CLI_END};
    const cli_command c = {"baleen verify", "[PATH] [options]",
                           "Prove a checkpoint folder, a packed model or one safetensors file (default: the built-in model).", details,
                           options, 0, 1};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0) {
        return rc;
    }
    level = level != CLI_UNSET ? level : o.key ? 4 : 3;
    if ((level == 4) != (o.key != NULL)) {
        return cli_usage_error(&c, o.key ? "--key is level 4" : "--level 4 needs --key, the public key to check the signature with");
    }
    if ((o.sign || o.hub || o.cache) && level < 3) {
        return cli_usage_error(&c, "--sign, --hub and --cache need all of level 3");
    }
    if (o.cache && (o.sign || o.against)) {
        return cli_usage_error(&c, "--cache does not go with --%s, which reads everything", o.sign ? "sign" : "against");
    }
    if (o.sign && (o.key || rank != CLI_UNSET)) {
        return cli_usage_error(&c, o.key ? "--sign and --key do not go together: sign first, then check"
                                         : "--sign and --rank do not go together: a signature is for all ranks");
    }
    if (rank >= 0 && o.against) {
        return cli_usage_error(&c, "--rank and --against do not go together: one rank is not a whole model");
    }
    const char *path = count ? args[0] : cli_default_model();
    o.level = (int)level;
    o.one_rank = rank >= 0;
    o.rank = (int)rank;
    o.jobs = (int)jobs;
    out.findings = json_array();
    out.unrecorded = json_array();
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
        print_text(&out, path, &o, &report);
    }
    json_decref(out.findings);
    json_decref(out.unrecorded);
    return rc;
}
