/* baleen bucket: weight-sync buckets of a checkpoint. */
#include "convert/bucket.h"
#include "tools/cli.h"
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
    "DST appears complete or not at all; 'baleen verify DST' proves it.\n";

/* "engram,dspark" -> BL_HOST_ bits; false on anything else. */
static bool parse_host(const char *text, unsigned *bits)
{
    static const struct {
        const char *name;
        unsigned bit;
    } kinds[] = {{"engram", BL_HOST_ENGRAM}, {"dspark", BL_HOST_DSPARK}, {"vision", BL_HOST_VISION}};
    *bits = 0;
    if (!strcmp(text, "none")) {
        return true;
    }
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ","), i = 0;
        while (i < 3 && (strlen(kinds[i].name) != n || strncmp(p, kinds[i].name, n) != 0)) {
            i++;
        }
        if (i == 3) {
            return false;
        }
        *bits |= kinds[i].bit;
        p += n;
        if (!*p) {
            return true;
        }
    }
}

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
        printf("%s  %12llu bytes  %5zu tensors  %s%s\n", k->name, (unsigned long long)k->nbytes, k->count, k->tensors[0].tensor.name,
               ends == k->count ? "" : " ...");
    }
    for (size_t i = 0; i < b->host_count; i++) {
        printf("kept by the receiver  %12llu bytes  %s\n", (unsigned long long)b->host[i].tensor.nbytes, b->host[i].tensor.name);
    }
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
    return receipt_print("baleen bucket", j);
}

static void print_text(const char *dst, const bl_bucket_options *o, const bl_bucket_report *r)
{
    printf("%s%s: %zu tensors in %zu groups in %zu buckets, %.3f GB, the largest %.1f MiB", o->dry_run ? "would write " : "", dst,
           r->tensors, r->groups, r->buckets, (double)r->tensor_bytes * 1e-9, (double)r->largest / 1048576);
    if (r->oversize) {
        printf(", %zu above --size", r->oversize);
    }
    if (r->sliced) {
        printf(", %zu tensors in slices", r->sliced);
    }
    if (!o->dry_run) {
        printf(", %.1f s, %.2f GB/s", r->seconds, (double)r->file_bytes * 1e-9 / (r->seconds > 0 ? r->seconds : 1));
    }
    printf("\n");
    if (r->host_tensors) {
        printf("%zu tensors kept by the receiver, %.3f GB, %zu value digests\n", r->host_tensors, (double)r->host_bytes * 1e-9,
               o->dry_run ? 0 : r->host_digests);
    }
}

static void on_note(const char *text)
{
    fprintf(stderr, "baleen bucket: note: %s\n", text);
}

int cmd_bucket(int argc, char **argv)
{
    const char *cpu = NULL, *oversize = NULL, *host = NULL, *args[2];
    int64_t jobs = 0;
    bool json = false;
    int count;
    bl_bucket_options o = {.size = (uint64_t)512 << 20, .align = 256, .host = BL_HOST_ENGRAM, .note = on_note,
                           .cancelled = cli_interrupted};
    const cli_option options[] = {
        {"size", CLI_SIZE, &o.size, "SIZE", "most bytes of a bucket (default 512MiB)"},
        {"align", CLI_SIZE, &o.align, "BYTES", "of every tensor in its bucket: a power of two up to 4096 (default 256; 1: no padding)"},
        {"oversize", CLI_STRING, &oversize, "HOW", "tensors larger than a bucket: alone (default) or slice (by rows)"},
        {"host-owned", CLI_STRING, &host, "LIST", "what is not sent: engram (default), dspark, vision, or none"},
        {"no-host-digests", CLI_FLAG, &o.no_host_digests, NULL, "do not read what is not sent for its value digests"},
        {"jobs", CLI_INT, &jobs, "N", "threads (default: twice the CPUs)"},
        {"cpu", CLI_STRING, &cpu, "LEVEL", "highest instruction set to use (default: native)"},
        {"no-sha256", CLI_FLAG, &o.no_sha256, NULL, "leave the SHA-256 of the buckets out"},
        {"dry-run", CLI_FLAG, &o.dry_run, NULL, "print the plan and check the free space, write nothing"},
        {"json", CLI_FLAG, &json, NULL, "print a receipt as JSON"},
        {NULL, 0, NULL, NULL, NULL}};
    const cli_command c = {"baleen bucket", "SRC DST [options]",
                           "Deal a checkpoint (HF folder, packed model, or an archive of one) to weight-sync buckets.", details, options,
                           2, 2};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0 || (rc = cli_cpu(&c, cpu, &o.cpu)) != 0) {
        return rc;
    }
    if (o.size == 0 || o.size > (uint64_t)1 << 50) {
        return cli_usage_error(&c, "--size takes 1 to 2^50 bytes");
    }
    if (o.align == 0 || o.align > BL_BUCKETS_MAX_ALIGN || (o.align & (o.align - 1)) != 0) {
        return cli_usage_error(&c, "--align takes a power of two up to %u", BL_BUCKETS_MAX_ALIGN);
    }
    if (oversize && strcmp(oversize, "alone") && strcmp(oversize, "slice")) {
        return cli_usage_error(&c, "--oversize takes alone or slice, not '%.40s'", oversize);
    }
    if (host && !parse_host(host, &o.host)) {
        return cli_usage_error(&c, "--host-owned takes some of engram, dspark, vision, or none, not '%.60s'", host);
    }
    if (jobs < 0 || jobs > 1024) {
        return cli_usage_error(&c, "--jobs takes 1 to 1024");
    }
    o.slice = oversize && !strcmp(oversize, "slice");
    o.jobs = (int)jobs;
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin("dealing", json);
    o.progress = cli_progress_update;
    o.progress_arg = progress;
    plan_output plan = {.json = json};
    o.on_plan = on_plan;
    o.plan_arg = &plan;
    bl_bucket_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = bl_bucket_write(args[0], args[1], &o, &report, &err);
    cli_progress_end(&progress);
    if (s == BL_OK && json) {
        return print_json(args[0], args[1], &o, &report, plan.plan);
    }
    json_decref(plan.plan);
    if (s == BL_OK) {
        print_text(args[1], &o, &report);
    }
    return cli_report(c.program, s, &err);
}
