/* baleen convert: cast a checkpoint to BF16, encode it again, or pack it. */
#include "convert/convert.h"
#include "runtime/engram.h"
#include "tools/cli.h"
#include "tools/outline.h"
#include "tools/encoded.h"
#include "tools/receipt.h"

#include <stdlib.h>
#include <string.h>

static const char details[] =
    "  --to bf16    an HF checkpoint for trainers: fp8 and fp4 weights decoded to BF16 exactly, Engram tables untouched in\n"
    "               fp8 with their scales, F32 as it is, config.json flattened. mtp.*, vision.*, aligner.* and image_* are\n"
    "               left out unless --keep names them.\n"
    "               Checkpoints of earlier generations too (V3, R1, V3.1, V3.2, V4; told by their tensors and shapes), kept whole:\n"
    "               blocks of any size with ue8m0 or float32 scales. Exact where scales are powers of two; other float32\n"
    "               scales (V3, R1) give values that BF16 does not hold: they are rounded, and the receipt says exact: false.\n"
    "  --to released\n"
    "               the way back: BF16 weights encoded to fp8 with a scale per 32x32 block, experts to fp4 with a scale per 1x32,\n"
    "               names, shards and config.json as released. A block gets the smallest power of two under which nothing in it\n"
    "               saturates; under --scale-hints it keeps the scale it had wherever that loses nothing, so that what was not\n"
    "               trained returns byte for byte. NaN and infinity are refused, -0 keeps its sign, blocks of zeros get the\n"
    "               released quantisers' scale. --experts fp8 gives experts fp8 codes with a scale per 32x32 block instead: from\n"
    "               fp4 codes exactly or not at all, naming the block; so does --fp8-block with fp8 codes. What is not in SRC\n"
    "               (draft layers, vision) is left out and config.json says so.\n"
    "  --to packed  a packed model for serving: codes as they are, one file a layer, experts stacked, manifests with\n"
    "               digests of every 8 MiB. Everything is kept unless --drop names it.\n"
    "               --tp, --ep and --pp spread it over ranks: pp stages of max(tp, ep) ranks, a folder for each. Every rank\n"
    "               holds its part of the heads, output groups, shared experts, vocabulary and Engram rows, its experts\n"
    "               whole, and all else; 'baleen merge' puts them together again, byte for byte.\n"
    "\n"
    "--save-scales keeps the scales of cast weights in DST/scales.source.st, which --to released finds by itself when it converts\n"
    "DST, and --scale-hints DST when it converts what a trainer wrote; readers of checkpoints do not see it.\n"
    "DST appears complete or not at all; it must not exist or be an empty folder. It is made in DST.partial, which is removed\n"
    "on failure. With --resume it stays, and the next run with --resume and the same options goes on from the files that it\n"
    "finds finished, once it has proven them by their digests; a changed source is refused. Outputs carry SHA256SUMS, which\n"
    "'sha256sum -c' and 'baleen verify' check. A scale for which a weight has no exact BF16 value is refused.\n"
    "--layers keeps the named backbone layers and everything global; the result is marked in its config.json as a part of a\n"
    "model: verify knows what to expect of it, and it is not served.\n";

/* "dspark,vision" -> BL_DROP_ bits; false on anything else. */
static bool parse_classes(const char *text, unsigned *bits)
{
    *bits = 0;
    while (*text) {
        size_t n = strcspn(text, ",");
        if (n == 6 && !strncmp(text, "dspark", n)) {
            *bits |= BL_DROP_DSPARK;
        } else if (n == 6 && !strncmp(text, "vision", n)) {
            *bits |= BL_DROP_VISION;
        } else {
            return false;
        }
        text += n;
        if (*text == ',' && !*++text) {
            return false;
        }
    }
    return *bits != 0;
}

/* "0-3,7" -> layer numbers, malloc'd; false on anything else. */
static bool parse_layers(const char *text, int **layers, size_t *count)
{
    *layers = malloc(BL_MAX_LAYERS * sizeof **layers);
    *count = 0;
    for (const char *p = text; *layers;) {
        char *end;
        if (*p < '0' || *p > '9') {
            return false;
        }
        long first = strtol(p, &end, 10), last = first;
        if (*end == '-' && end[1] >= '0' && end[1] <= '9') {
            last = strtol(end + 1, &end, 10);
        }
        if (first > last || last >= BL_MAX_LAYERS) {
            return false;
        }
        for (long l = first; l <= last; l++) {
            if (*count == BL_MAX_LAYERS) {
                return false;
            }
            (*layers)[(*count)++] = (int)l;
        }
        if (!*end) {
            return true;
        }
        if (*end != ',') {
            return false;
        }
        p = end + 1;
    }
    return false;
}

static const char *target_name(bl_target t)
{
    return t == BL_TO_BF16 ? "bf16" : t == BL_TO_PACKED ? "packed" : "released";
}

static bool parse_target(const char *text, bl_target *t)
{
    for (*t = BL_TO_BF16; *t <= BL_TO_RELEASED; ++*t) {
        if (!strcmp(text, target_name(*t))) {
            return true;
        }
    }
    return false;
}

/* "20,20" -> numbers, malloc'd; false on anything else. */
static bool parse_stages(const char *text, int **layers, size_t *count)
{
    *layers = malloc(BL_MAX_LAYERS * sizeof **layers);
    *count = 0;
    for (const char *p = text; *layers && *count < BL_MAX_LAYERS; p++) {
        char *end;
        if (*p < '0' || *p > '9') {
            return false;
        }
        long n = strtol(p, &end, 10);
        (*layers)[(*count)++] = n <= BL_MAX_LAYERS ? (int)n : BL_MAX_LAYERS;
        if (!*end) {
            return true;
        }
        if (*end != ',') {
            return false;
        }
        p = end;
    }
    return false;
}

/* The options that spread a packed model over ranks. */
typedef struct rank_options {
    int64_t tp, ep, pp, pad_vocab;
    const char *stages, *engram;
    int *stage_layers; /* malloc'd */
} rank_options;

/* -1, or the exit status of a wrong one. */
static int read_rank_options(const cli_command *c, rank_options *r, bl_convert_options *o)
{
    bool any = o->link || r->tp || r->ep || r->pp || r->pad_vocab || r->stages || r->engram;
    size_t count = 0;
    if (any && o->target != BL_TO_PACKED) {
        return cli_usage_error(c, "--tp, --ep, --pp, --pp-layers, --pad-vocab, --engram and --link go with --to packed");
    }
    if (r->tp < 0 || r->ep < 0 || r->pp < 0 || r->tp > BL_MAX_RANKS || r->ep > BL_MAX_RANKS || r->pp > BL_MAX_RANKS) {
        return cli_usage_error(c, "--tp, --ep and --pp take 1 to %d", BL_MAX_RANKS);
    }
    if (r->pad_vocab < 0 || r->pad_vocab > 1 << 20) {
        return cli_usage_error(c, "--pad-vocab takes 1 to %d", 1 << 20);
    }
    if (r->engram && strcmp(r->engram, "split") && strcmp(r->engram, "shared")) {
        return cli_usage_error(c, "--engram takes split or shared, not '%.40s'", r->engram);
    }
    if (r->stages && !parse_stages(r->stages, &r->stage_layers, &count)) {
        return cli_usage_error(c, "--pp-layers takes numbers of layers such as 20,20");
    }
    if (r->stages && r->pp && count != (size_t)r->pp) {
        return cli_usage_error(c, "--pp-layers has %zu stages, --pp %d", count, (int)r->pp);
    }
    o->layout = (bl_layout){.tp = (int)r->tp,
                            .ep = (int)r->ep,
                            .pp = r->stages ? (int)count : (int)r->pp,
                            .stage_layers = r->stage_layers,
                            .engram_shared = r->engram && !strcmp(r->engram, "shared")};
    o->pad_vocab = (int)r->pad_vocab;
    return -1;
}

/* What becomes of the outline of a dry run: text at once, JSON (plan) into the receipt. */
typedef struct outline_output {
    bool json;
    json_t *plan;
} outline_output;

static void on_outline(void *arg, const bl_config *c, const bl_plan *plan, const bl_outline *o)
{
    outline_output *out = arg;
    if (out->json) {
        out->plan = outline_json(plan, o);
    } else {
        outline_print(c, plan, o);
    }
}

static int print_json(const char *src, const char *dst, const bl_convert_options *o, const bl_convert_report *r, json_t *plan)
{
    json_t *actions = json_object(), *dropped = json_array();
    for (int a = BL_ACT_COPY; a < BL_ACTIONS; a++) {
        json_object_set_new(actions, bl_action_name((bl_action)a), json_integer((json_int_t)r->action_count[a]));
    }
    if (r->dropped & BL_DROP_DSPARK) {
        json_array_append_new(dropped, json_string("dspark"));
    }
    if (r->dropped & BL_DROP_VISION) {
        json_array_append_new(dropped, json_string("vision"));
    }
    const bl_scale_survey *f = &r->scales;
    json_t *scales = json_pack("{s:I, s:I, s:I, s:I}", "weights", (json_int_t)f->weights, "scales", (json_int_t)f->scales,
                               "rounded_weights", (json_int_t)f->rounded_weights, "rounded_scales", (json_int_t)f->rounded_scales);
    json_t *j = json_pack("{s:s, s:o, s:o, s:s, s:b, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:i, s:b, s:I, s:I, s:f}", "command", "convert",
                          "source", receipt_text(src), "destination", receipt_text(dst), "to", target_name(o->target), "dry_run",
                          o->dry_run, "source_tensors", (json_int_t)r->source_tensors, "source_bytes",
                          (json_int_t)r->source_bytes, "actions", actions, "dropped", dropped, "tensors",
                          (json_int_t)r->tensors, "tensor_bytes", (json_int_t)r->tensor_bytes, "files", (json_int_t)r->files,
                          "file_bytes", (json_int_t)r->file_bytes, "ranks", r->ranks, "sha256", !o->no_sha256, "kept_files",
                          (json_int_t)r->kept_files, "kept_bytes", (json_int_t)r->kept_bytes, "seconds", r->seconds);
    if (o->target == BL_TO_BF16) {
        json_object_set_new(j, "scales_saved", json_integer((json_int_t)r->scales_saved));
    }
    if (o->target == BL_TO_RELEASED) {
        json_object_set_new(j, "encoded", encoded_json(r));
        json_object_set_new(j, "scale_hints", r->hinted ? json_integer((json_int_t)r->hinted_count) : json_null());
    }
    json_object_update_new(j, json_pack("{s:s, s:o}", "generation", bl_generation_name(r->generation), "float32_scales", scales));
    if (o->target == BL_TO_BF16) {
        json_object_set_new(j, "exact", json_boolean(f->rounded_weights == 0));
    }
    if (o->link) {
        json_object_update_new(j, json_pack("{s:I, s:I}", "linked_files", (json_int_t)r->linked_files, "linked_bytes",
                                            (json_int_t)r->linked_bytes));
    }
    if (plan) {
        json_object_set_new(j, "plan", plan);
    }
    return receipt_print("baleen convert", j);
}

static void on_note(const char *text)
{
    fprintf(stderr, "baleen convert: note: %s\n", text);
}

static void print_text(const char *dst, const bl_convert_options *o, const bl_convert_report *r)
{
    printf("%s%s: %zu tensors in %zu files, %.3f GB", o->dry_run ? "would write " : "", dst, r->tensors, r->files,
           (double)r->file_bytes * 1e-9);
    if (r->ranks > 1) {
        printf(", %d ranks", r->ranks);
    }
    printf(" (%zu source tensors", r->source_tensors);
    const char *comma = ": ";
    for (int a = BL_ACT_COPY; a < BL_ACTIONS; a++) {
        if (r->action_count[a]) {
            printf("%s%zu %s", comma, r->action_count[a], bl_action_name((bl_action)a));
            comma = ", ";
        }
    }
    printf(")");
    if (r->kept_files) {
        printf(", %zu files, %.3f GB, kept from an earlier run", r->kept_files, (double)r->kept_bytes * 1e-9);
    }
    if (!o->dry_run) {
        printf(", %.1f s, %.2f GB/s", r->seconds, (double)(r->file_bytes - r->kept_bytes) * 1e-9 / (r->seconds > 0 ? r->seconds : 1));
    }
    printf("\n");
    if (r->linked_files) {
        printf("%zu source files linked, %.3f GB\n", r->linked_files, (double)r->linked_bytes * 1e-9);
    }
    if (r->scales_saved) {
        printf("%zu original scales kept in " BL_SCALES_NAME "\n", r->scales_saved);
    }
    if (r->hinted) {
        printf("scale hints for %zu of %zu weights\n", r->hinted_count,
               r->action_count[BL_ACT_ENCODE] + r->action_count[BL_ACT_RECAST]);
    }
    encoded_print(r);
    if (r->scales.weights) {
        printf("%s: %llu weights with float32 scales, ", bl_generation_name(r->generation), (unsigned long long)r->scales.weights);
        if (r->scales.rounded_weights) {
            printf("NOT exact: %llu of them have scales that are no powers of two (%llu of %llu), their values are rounded to BF16\n",
                   (unsigned long long)r->scales.rounded_weights, (unsigned long long)r->scales.rounded_scales,
                   (unsigned long long)r->scales.scales);
        } else {
            printf("all powers of two: the cast is exact\n");
        }
    }
}

int cmd_convert(int argc, char **argv)
{
    const char *to = NULL, *keep = NULL, *drop = NULL, *layers = NULL, *cpu = NULL, *ties = NULL, *experts = NULL, *block = NULL, *args[2];
    int64_t jobs = 0;
    bool json = false;
    unsigned bits;
    int count, *list = NULL;
    rank_options ranks = {0};
    bl_convert_options o = {.shard_size = 5000000000u, .engram_multipliers = bl_engram_multipliers, .cancelled = cli_interrupted,
                            .note = on_note};
    const cli_option options[] = {
        {"to", CLI_STRING, &to, "FORM", "bf16, released or packed"},
        {"keep", CLI_STRING, &keep, "LIST", "bf16: keep dspark, vision or both (default: neither)"},
        {"drop", CLI_STRING, &drop, "LIST", "packed, released: drop dspark, vision or both (default: neither)"},
        {"tp", CLI_INT, &ranks.tp, "N", "packed: cut dense weights over N ranks"},
        {"ep", CLI_INT, &ranks.ep, "N", "packed: deal experts over N ranks (default 1: all of them on every rank of a stage)"},
        {"pp", CLI_INT, &ranks.pp, "N", "packed: deal layers over N stages"},
        {"pp-layers", CLI_STRING, &ranks.stages, "LIST", "packed: layers of each stage, for example 20,20 (default: even)"},
        {"pad-vocab", CLI_INT, &ranks.pad_vocab, "N", "packed: pad the vocabulary to a multiple of N times --tp"},
        {"engram", CLI_STRING, &ranks.engram, "HOW", "packed: split (default: each rank some rows) or shared (one copy a stage)"},
        {"link", CLI_FLAG, &o.link, NULL, "packed: hard-link the source's files with Engram tables where a rank has them whole"},
        {"layers", CLI_STRING, &layers, "LIST", "keep these backbone layers only, for example 0-3,7"},
        {"shard-size", CLI_SIZE, &o.shard_size, "SIZE", "bf16, released: most bytes of tensors in a file (default 5GB)"},
        {"save-scales", CLI_FLAG, &o.save_scales, NULL, "bf16: keep the original scales beside the cast, for --to released"},
        {"experts", CLI_STRING, &experts, "FORM", "released: experts in fp4 or fp8 (default: codes as they are, BF16 to fp4)"},
        {"fp8-block", CLI_STRING, &block, "SHAPE", "released: values that share an fp8 scale, 32x32 or 1x32 (default: as SRC has or had it)"},
        {"scale-hints", CLI_STRING, &o.scale_hints, "DIR", "released: the checkpoint whose scales to keep where that is exact, or 'none'"},
        {"fp4-ties", CLI_STRING, &ties, "RULE", "released: halves between fp4 codes go to the even one (even) or towards zero (down)"},
        {"canonical-zero", CLI_FLAG, &o.canonical_zero, NULL, "released: write -0 as +0"},
        {"jobs", CLI_INT, &jobs, "N", "threads (default: twice the CPUs)"},
        {"cpu", CLI_STRING, &cpu, "LEVEL", "highest instruction set to use (default: native)"},
        {"no-sha256", CLI_FLAG, &o.no_sha256, NULL, "leave the SHA-256 of large files out"},
        {"resume", CLI_FLAG, &o.resume, NULL, "go on from what an interrupted run left, and leave what is done when interrupted"},
        {"dry-run", CLI_FLAG, &o.dry_run, NULL, "plan and check the free space, write nothing; packed: print the plan"},
        {"json", CLI_FLAG, &json, NULL, "print a receipt as JSON"},
        {NULL, 0, NULL, NULL, NULL}};
    const cli_command c = {"baleen convert", "SRC DST --to bf16|released|packed [options]",
                           "Convert a checkpoint (HF folder, packed model, or an archive of one).", details, options, 2, 2};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0 || (rc = cli_cpu(&c, cpu, &o.cpu)) != 0) {
        return rc;
    }
    if (!to || !parse_target(to, &o.target)) {
        return cli_usage_error(&c, to ? "--to takes bf16, released or packed, not '%.40s'" : "--to bf16, released or packed is needed", to);
    }
    o.drop = o.target == BL_TO_BF16 ? BL_DROP_DSPARK | BL_DROP_VISION : 0;
    if ((keep && o.target != BL_TO_BF16) || (drop && o.target == BL_TO_BF16)) {
        return cli_usage_error(&c, "--keep goes with --to bf16, --drop with the others");
    }
    if (o.save_scales && o.target != BL_TO_BF16) {
        return cli_usage_error(&c, "--save-scales goes with --to bf16");
    }
    if ((o.scale_hints || ties || o.canonical_zero || experts || block) && o.target != BL_TO_RELEASED) {
        return cli_usage_error(&c, "--experts, --fp8-block, --scale-hints, --fp4-ties and --canonical-zero go with --to released");
    }
    if (experts && strcmp(experts, "fp4") && strcmp(experts, "fp8")) {
        return cli_usage_error(&c, "--experts takes fp4 or fp8, not '%.40s'", experts);
    }
    if (block && strcmp(block, "32x32") && strcmp(block, "1x32")) {
        return cli_usage_error(&c, "--fp8-block takes 32x32 or 1x32, not '%.40s'", block);
    }
    o.fp8_block_rows = !block ? 0 : !strcmp(block, "1x32") ? 1 : 32;
    o.experts = !experts ? 0 : !strcmp(experts, "fp8") ? BL_FORM_FP8 : BL_FORM_FP4;
    if (ties && strcmp(ties, "even") && strcmp(ties, "down")) {
        return cli_usage_error(&c, "--fp4-ties takes even or down, not '%.40s'", ties);
    }
    o.fp4_ties = ties && !strcmp(ties, "down") ? BL_FP4_TIES_DOWN : BL_FP4_TIES_EVEN;
    if (o.scale_hints && !strcmp(o.scale_hints, "none")) {
        o.scale_hints = NULL;
        o.no_hints = true;
    }
    if (keep || drop) {
        if (!parse_classes(keep ? keep : drop, &bits)) {
            return cli_usage_error(&c, "--%s takes dspark, vision or dspark,vision", keep ? "keep" : "drop");
        }
        o.drop = keep ? o.drop & ~bits : bits;
    }
    if (jobs < 0 || jobs > 1024) {
        return cli_usage_error(&c, "--jobs takes 1 to 1024");
    }
    if (o.shard_size == 0) {
        return cli_usage_error(&c, "--shard-size must be above 0");
    }
    if ((rc = read_rank_options(&c, &ranks, &o)) >= 0) {
        free(ranks.stage_layers);
        return rc;
    }
    if (layers && !parse_layers(layers, &list, &o.layer_count)) {
        free(list);
        free(ranks.stage_layers);
        return cli_usage_error(&c, "--layers takes numbers and ranges such as 0-3,7");
    }
    o.layers = list;
    o.jobs = (int)jobs;
    cli_catch_signals();
    cli_progress *progress = cli_progress_begin(o.target == BL_TO_BF16 ? "casting" : o.target == BL_TO_PACKED ? "packing" : "encoding", json);
    o.progress = cli_progress_update;
    o.progress_arg = progress;
    outline_output outline = {.json = json};
    o.on_outline = on_outline;
    o.outline_arg = &outline;
    bl_convert_report report;
    bl_error err;
    bl_error_clear(&err);
    bl_status s = bl_convert(args[0], args[1], &o, &report, &err);
    cli_progress_end(&progress);
    free(list);
    free(ranks.stage_layers);
    if (s == BL_OK && json) {
        return print_json(args[0], args[1], &o, &report, outline.plan);
    }
    json_decref(outline.plan);
    if (s == BL_OK) {
        print_text(args[1], &o, &report);
    }
    return cli_report(c.program, s, &err);
}
