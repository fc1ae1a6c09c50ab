/* baleen convert: cast a checkpoint to BF16, encode it again, or pack it. */
#include "kernels/cpu.h"
#include "runtime/engram.h"
#include "tools/convert_options.h"
#include "tools/encoded.h"
#include "tools/outline.h"
#include "tools/receipt.h"

static const char details[] =
    "  --to bf16    an HF checkpoint for trainers: fp8 and fp4 weights decoded to BF16 exactly, Engram tables untouched in\n"
    "               fp8 with their scales, F32 as it is, config.json flattened. mtp.*, vision.*, aligner.* and image_* are\n"
    "               left out unless --keep names them.\n"
    "               Checkpoints of earlier generations too (V3, R1, V3.1, V3.2, V4; told by their tensors and shapes), kept whole:\n"
    "               blocks of any size with ue8m0 or float32 scales. Exact where scales are powers of two; other float32\n"
    "               scales (V3, R1) give values that BF16 does not hold: they are rounded, and the receipt says exact: false.\n"
    "  --to released\n"
    "               the way back: BF16 weights encoded to fp8 with a scale per 32x32 block, experts to fp4 with a scale per 1x32,\n"
    "               names and config.json as released. A block gets the smallest power of two under\n"
    "               which nothing in it saturates; under --scale-hints it keeps the scale it had wherever that loses nothing, so\n"
    "               that what was not trained returns byte for byte. NaN and infinity are refused, -0 keeps its sign, blocks\n"
    "               of zeros get the released quantisers' scale. --experts fp8 gives experts fp8 codes with a scale per 32x32 block\n"
    "               instead: from fp4 codes exactly or not at all, naming the block; so does --fp8-block with fp8 codes. What is not in SRC\n"
    "               (draft layers, vision) is left out and config.json says so. Casts of DeepSeek-V4 (Flash, Pro) go back too, to\n"
    "               fp8 in 128x128 blocks and fp4 experts; those of V3, R1, V3.1, V3.2 and V4 Base do not.\n"
    "  --to packed  a packed model for serving: codes as they are, one file a layer, experts stacked, manifests with\n"
    "               digests of every 8 MiB. Everything is kept unless --drop names it.\n"
    "               --tp, --ep and --pp spread it over ranks: pp stages of max(tp, ep) ranks, a folder for each. Every rank\n"
    "               holds its part of the heads, output groups, shared experts, vocabulary and Engram rows, its experts\n"
    "               whole, and all else; 'baleen merge' puts them together again, byte for byte.\n"
    "               A cut inside a 32x32 scale block is refused unless --split says what to do. pad: the inner width of shared\n"
    "               experts is padded to tp times whole blocks, the last ranks hold zeros. expand1x32: parts stay equal, rows cut\n"
    "               so keep their codes and get a scale each, columns cut so become BF16. bf16: all weights cut so become BF16.\n"
    "               Scales of what becomes BF16 are kept in DST/scales.source.st, merge puts them back.\n"
    "\n"
    "--save-scales keeps the scales of cast weights in DST/scales.source.st, which --to released finds by itself when it converts\n"
    "DST, and --scale-hints DST when it converts what a trainer wrote; readers of checkpoints do not see it.\n"
    "SRC may be a .tar, .tar.gz, .tar.zst, .tar.xz or .zip. Weights that are not compressed are read in place; in a .zip they are\n"
    "held against their CRC, in files of which at least half is wanted. Others are unpacked into a nameless file beside DST, all at\n"
    "once up to --spill and a quarter of the free space; a larger archive is read twice, first for headers.\n"
    "A DST called .tar, .tar.gz (.tgz), .tar.zst (.tzst) or .zip is an archive: written in one pass, the same bytes for the same\n"
    "job, no --resume. DST appears complete or not at all; it must not exist or be an empty folder, no link. It is made in\n"
    "DST.partial, which is removed on failure. With --resume it stays once a file is finished, and the next run with equal\n"
    "options goes on from those that it finds finished, once their digests prove them; what was made from a file of SRC that has\n"
    "changed since (size, times) is made again, and a SRC with another config or other headers is refused. Outputs have\n"
    "SHA256SUMS, which 'sha256sum -c' and 'baleen verify' check. A scale for which a weight has no exact BF16 value is refused.\n"
    "--layers keeps the named backbone layers and everything global; the result is marked in config.json as part of a\n"
    "model: verify knows what to expect, it is not served.\n";

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
                          "source", receipt_text(src), "destination", receipt_text(dst), "to", convert_target_name(o->target), "dry_run",
                          o->dry_run, "source_tensors", (json_int_t)r->source_tensors, "source_bytes",
                          (json_int_t)r->source_bytes, "actions", actions, "dropped", dropped, "tensors",
                          (json_int_t)r->tensors, "tensor_bytes", (json_int_t)r->tensor_bytes, "files", (json_int_t)r->files,
                          "file_bytes", (json_int_t)r->file_bytes, "ranks", r->ranks, "sha256", !o->no_sha256, "kept_files",
                          (json_int_t)r->kept_files, "kept_bytes", (json_int_t)r->kept_bytes, "seconds", r->seconds);
    if (o->target != BL_TO_RELEASED) {
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
    if (r->archive_bytes) {
        json_object_set_new(j, "archive_bytes", json_integer((json_int_t)r->archive_bytes));
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
    printf("%s%s: %zu tensor%s in %zu file%s, %.3f GB", o->dry_run ? "would write " : "", dst, r->tensors, bl_plural(r->tensors), r->files,
           bl_plural(r->files), (double)r->file_bytes * 1e-9);
    if (r->ranks > 1) {
        printf(", %d ranks", r->ranks);
    }
    printf(" (%zu source tensor%s", r->source_tensors, bl_plural(r->source_tensors));
    const char *comma = ": ";
    for (int a = BL_ACT_COPY; a < BL_ACTIONS; a++) {
        if (r->action_count[a]) {
            printf("%s%zu %s", comma, r->action_count[a], bl_action_name((bl_action)a));
            comma = ", ";
        }
    }
    printf(")");
    if (r->kept_files) {
        printf(", %zu file%s, %.3f GB, kept from an earlier run", r->kept_files, bl_plural(r->kept_files), (double)r->kept_bytes * 1e-9);
    }
    if (!o->dry_run) {
        printf(", %.1f s, %.2f GB/s", r->seconds, (double)(r->file_bytes - r->kept_bytes) * 1e-9 / (r->seconds > 0 ? r->seconds : 1));
    }
    if (r->archive_bytes) {
        printf(", archive of %.3f GB", (double)r->archive_bytes * 1e-9);
    }
    printf("\n");
    if (r->linked_files) {
        printf("%zu source file%s linked, %.3f GB\n", r->linked_files, bl_plural(r->linked_files), (double)r->linked_bytes * 1e-9);
    }
    if (r->scales_saved) {
        printf("%zu original scale%s kept in " BL_SCALES_NAME "\n", r->scales_saved, bl_plural(r->scales_saved));
    }
    if (r->hinted) {
        printf("scale hints for %zu of %zu weight%s\n", r->hinted_count, r->hinted_among, bl_plural(r->hinted_among));
    }
    encoded_print(r);
    if (r->scales.weights) {
        printf("%s: %llu weight%s with float32 scales, ", bl_generation_name(r->generation), (unsigned long long)r->scales.weights,
               bl_plural(r->scales.weights));
        if (r->scales.rounded_weights) {
            printf("NOT exact: %llu of them have scales that are no powers of two (%llu of %llu), their values are rounded to BF16\n",
                   (unsigned long long)r->scales.rounded_weights, (unsigned long long)r->scales.rounded_scales,
                   (unsigned long long)r->scales.scales);
        } else {
            printf("all powers of two: the cast is exact\n");
        }
    }
}

/* Convert as o says, tell how it goes and what came of it; the exit status. */
static int run(const cli_command *c, const char *src, const char *dst, bl_convert_options *o, bool json)
{
    bl_convert_report report;
    bl_error err;
    bl_error_clear(&err);
    cli_catch_signals();
    outline_output outline = {.json = json};
    cli_progress *progress = cli_progress_begin(o->target == BL_TO_BF16 ? "casting" : o->target == BL_TO_PACKED ? "packing" : "encoding", json);
    o->progress = cli_progress_update;
    o->progress_arg = progress;
    o->on_outline = on_outline;
    o->outline_arg = &outline;
    bl_status s = bl_convert(src, dst, o, &report, &err);
    cli_progress_end(&progress);
    if (s == BL_OK && json) {
        return print_json(src, dst, o, &report, outline.plan);
    }
    json_decref(outline.plan);
    if (s == BL_OK) {
        print_text(dst, o, &report);
    }
    return cli_report(c->program, s, &err);
}

int cmd_convert(int argc, char **argv)
{
    const char *args[2];
    convert_arguments a = CONVERT_ARGUMENTS;
    bool json = false;
    int count;
    bl_convert_options o = {.cpu = bl_cpu_detect(), .shard_size = CLI_UNSET_SIZE, .spill_max = BL_SPILL_MAX,
                            .engram_multipliers = bl_engram_multipliers, .cancelled = cli_interrupted, .note = on_note};
    const cli_option options[] = {
        {"to", CLI_WORD(convert_targets), &a.to, "FORM", "bf16, released or packed"},
        {"keep", CLI_WORDS(convert_classes), &a.keep, "LIST", "bf16: keep dspark, vision or dspark,vision, which are left out otherwise"},
        {"drop", CLI_WORDS(convert_classes), &a.drop, "LIST",
         "packed, released: leave out dspark, vision or dspark,vision, which are kept otherwise"},
        {"tp", CLI_INT(1, BL_MAX_RANKS), &a.tp, "N", "packed: cut dense weights over N ranks"},
        {"ep", CLI_INT(1, BL_MAX_RANKS), &a.ep, "N", "packed: deal experts over N ranks (default 1: all of them on every rank of a stage)"},
        {"pp", CLI_INT(1, BL_MAX_RANKS), &a.pp, "N", "packed: deal layers over N stages"},
        {"pp-layers", CLI_STRING, &a.stages, "LIST", "packed: layers of each stage, for example 20,20 (default: even)"},
        {"pad-vocab", CLI_INT(1, 1 << 20), &a.pad_vocab, "N", "packed: pad the vocabulary to a multiple of N times --tp"},
        {"split", CLI_WORD(convert_splits), &a.split, "HOW",
         "packed: what to do where --tp cuts inside scale blocks: pad, expand1x32 or bf16 (default: refuse)"},
        {"engram", CLI_WORD(convert_engrams), &a.engram, "HOW",
         "packed: split (default: each rank some rows) or shared (one copy a stage)"},
        {"link", CLI_FLAG, &o.link, NULL, "packed: hard-link the source's files with Engram tables where a rank has them whole"},
        {"layers", CLI_STRING, &a.layers, "LIST", "keep these backbone layers only, for example 0-3,7"},
        {"shard-size", CLI_SIZE(1, CLI_SIZE_MOST), &o.shard_size, "SIZE", "bf16, released: most bytes of tensors in a file (default 5GB)"},
        {"save-scales", CLI_FLAG, &o.save_scales, NULL, "bf16: keep the original scales beside the cast, for --to released"},
        {"experts", CLI_WORD(convert_experts), &a.experts, "FORM",
         "released: experts in fp4 or fp8 (default: codes as they are, BF16 to fp4)"},
        {"fp8-block", CLI_WORD(convert_blocks), &a.block, "SHAPE",
         "released: values that share an fp8 scale, 32x32 or 1x32 (default: as SRC has or had it)"},
        {"scale-hints", CLI_STRING, &o.scale_hints, "DIR", "released: the checkpoint whose scales to keep where that is exact, or 'none'"},
        {"fp4-ties", CLI_WORD(convert_ties), &a.ties, "RULE",
         "released: halves between fp4 codes go to the even one (even) or towards zero (down)"},
        {"canonical-zero", CLI_FLAG, &o.canonical_zero, NULL, "released: write -0 as +0"},
        {"spill", CLI_SIZE(0, CLI_SIZE_MOST), &o.spill_max, "SIZE", "compressed archives: most bytes to unpack as a whole (default 4GiB)"},
        {"jobs", CLI_INT(1, CLI_JOBS_MAX), &a.jobs, "N", "threads (default: twice the CPUs)"},
        {"device", CLI_WORD(convert_devices), &a.device, "NAME", "bf16: what casts: cpu (default), or cuda, which gives the same bytes"},
        {"cpu", CLI_CPU, &o.cpu, "LEVEL", "highest instruction set to use (default: native)"},
        {"no-sha256", CLI_FLAG, &o.no_sha256, NULL, "leave the SHA-256 of large files out"},
        {"resume", CLI_FLAG, &o.resume, NULL, "go on from what an interrupted run left, and leave what is done when interrupted"},
        {"dry-run", CLI_FLAG, &o.dry_run, NULL, "plan and check the free space, write nothing; packed: print the plan"},
        {"json", CLI_FLAG, &json, NULL, "print a receipt as JSON"},
        CLI_END};
    const cli_command c = {"baleen convert", "SRC DST --to bf16|released|packed [options]",
                           "Convert a checkpoint (HF folder, packed model, or an archive of one).", details, options, 2, 2};
    int rc = cli_parse(&c, argc, argv, args, &count);
    if (rc >= 0) {
        return rc;
    }
    rc = convert_options_read(&c, &a, &o);
    rc = rc < 0 ? convert_device_open(&c, &a, &o) : rc;
    rc = rc < 0 ? run(&c, args[0], args[1], &o, json) : rc;
    convert_options_free(&o);
    return rc;
}
