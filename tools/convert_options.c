#include "tools/convert_options.h"

#include "kernels/cuda/host.h"

#include <stdlib.h>
#include <string.h>

#define SHARD_SIZE 5000000000u /* where none was given */

const char *const convert_targets[] = {"bf16", "packed", "released", NULL};
const char *const convert_classes[] = {"dspark", "vision", NULL};
const char *const convert_splits[] = {"pad", "expand1x32", "bf16", NULL};
const char *const convert_engrams[] = {"split", "shared", NULL};
const char *const convert_experts[] = {"fp4", "fp8", NULL};
const char *const convert_blocks[] = {"32x32", "1x32", NULL};
const char *const convert_devices[] = {"cpu", "cuda", NULL};
const char *const convert_ties[] = {[BL_FP4_TIES_EVEN] = "even", [BL_FP4_TIES_DOWN] = "down", NULL};

const char *convert_target_name(bl_target t)
{
    return convert_targets[t - 1];
}

/* A number below limit at *p, which moves behind it. */
static bool parse_number(const char **p, long limit, long *n)
{
    char *end;
    if (**p < '0' || **p > '9') {
        return false;
    }
    *n = strtol(*p, &end, 10);
    *p = end;
    return *n < limit;
}

/* "20,20", or with ranges "0-3,7": at most BL_MAX_LAYERS numbers below limit, malloc'd; false on anything else. */
static bool parse_numbers(const char *p, bool ranges, long limit, int **list, size_t *count)
{
    *list = malloc(BL_MAX_LAYERS * sizeof **list);
    *count = 0;
    while (*list) {
        long first, last;
        if (!parse_number(&p, limit, &first)) {
            return false;
        }
        last = first;
        if (ranges && *p == '-') {
            p++;
            if (!parse_number(&p, limit, &last) || first > last) {
                return false;
            }
        }
        if ((size_t)(last - first) >= BL_MAX_LAYERS - *count) {
            return false;
        }
        for (long n = first; n <= last; n++) {
            (*list)[(*count)++] = (int)n;
        }
        if (!*p) {
            return true;
        }
        if (*p++ != ',') {
            return false;
        }
    }
    return false;
}

static int read_target(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    if (a->to < 0) {
        return cli_usage_error(c, "--to bf16, released or packed is needed");
    }
    o->target = (bl_target)(a->to + 1);
    bool cast = o->target == BL_TO_BF16;
    if ((a->keep && !cast) || (a->drop && cast)) {
        return cli_usage_error(c, "--keep goes with --to bf16, --drop with the others");
    }
    if (o->save_scales && !cast) {
        return cli_usage_error(c, "--save-scales goes with --to bf16");
    }
    if (o->shard_size != CLI_UNSET_SIZE && o->target == BL_TO_PACKED) {
        return cli_usage_error(c, "--shard-size goes with --to bf16 and --to released");
    }
    o->shard_size = o->shard_size != CLI_UNSET_SIZE ? o->shard_size : SHARD_SIZE;
    o->drop = cast ? (BL_DROP_DSPARK | BL_DROP_VISION) & ~a->keep : a->drop;
    return -1;
}

/* How weights are encoded. */
static int read_encoding(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    if ((o->scale_hints || a->ties >= 0 || o->canonical_zero || a->experts >= 0 || a->block >= 0) && o->target != BL_TO_RELEASED) {
        return cli_usage_error(c, "--experts, --fp8-block, --scale-hints, --fp4-ties and --canonical-zero go with --to released");
    }
    o->fp8_block_rows = a->block < 0 ? 0 : a->block == 1 ? 1 : 32;
    o->experts = a->experts < 0 ? 0 : a->experts == 1 ? BL_FORM_FP8 : BL_FORM_FP4;
    o->fp4_ties = a->ties == BL_FP4_TIES_DOWN ? BL_FP4_TIES_DOWN : BL_FP4_TIES_EVEN;
    if (o->scale_hints && !strcmp(o->scale_hints, "none")) {
        o->scale_hints = NULL;
        o->no_hints = true;
    }
    return -1;
}

/* How a packed model is spread over ranks. */
static int read_layout(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    bool any = o->link || a->tp || a->ep || a->pp || a->pad_vocab || a->stages || a->engram >= 0 || a->split >= 0;
    int *stages = NULL;
    size_t count = 0;
    if (any && o->target != BL_TO_PACKED) {
        return cli_usage_error(c, "--tp, --ep, --pp, --pp-layers, --pad-vocab, --split, --engram and --link go with --to packed");
    }
    bool wrong = a->stages && !parse_numbers(a->stages, false, BL_MAX_LAYERS + 1, &stages, &count);
    o->layout = (bl_layout){.tp = (int)a->tp,
                            .ep = (int)a->ep,
                            .pp = a->stages ? (int)count : (int)a->pp,
                            .stage_layers = stages,
                            .split = a->split >= 0 ? (bl_split)(a->split + 1) : BL_SPLIT_NONE,
                            .engram_shared = a->engram == 1};
    o->pad_vocab = (int)a->pad_vocab;
    if (wrong) {
        return cli_usage_error(c, "--pp-layers takes numbers of layers such as 20,20, not '%.80s'", a->stages);
    }
    if (a->stages && a->pp && count != (size_t)a->pp) {
        return cli_usage_error(c, "--pp-layers has %zu stage%s, --pp %d", count, bl_plural(count), (int)a->pp);
    }
    return -1;
}

static int read_layers(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    int *layers = NULL;
    bool wrong = a->layers && !parse_numbers(a->layers, true, BL_MAX_LAYERS, &layers, &o->layer_count);
    o->layers = layers;
    return !wrong ? -1 : cli_usage_error(c, "--layers takes numbers up to %d and ranges such as 0-3,7, not '%.80s'", BL_MAX_LAYERS - 1,
                                         a->layers);
}

int convert_options_read(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    int rc = -1;
    int (*const steps[])(const cli_command *c, const convert_arguments *a, bl_convert_options *o) = {
        read_target, read_encoding, read_layout, read_layers};
    o->jobs = (int)a->jobs;
    for (size_t i = 0; rc < 0 && i < sizeof steps / sizeof *steps; i++) {
        rc = steps[i](c, a, o);
    }
    return rc;
}

int convert_device_open(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    bl_error err;
    bl_error_clear(&err);
    if (a->device >= 0 && o->target != BL_TO_BF16) {
        return cli_usage_error(c, "--device goes with --to bf16");
    }
    return a->device < 1 || o->dry_run || bl_cuda_cast_device(&o->caster, &err) == BL_OK ? -1 : cli_report(c->program, err.code, &err);
}

void convert_options_free(bl_convert_options *o)
{
    if (o->caster) {
        o->caster->destroy(o->caster);
        o->caster = NULL;
    }
    free((int *)(uintptr_t)o->layers); /* ours */
    free((int *)(uintptr_t)o->layout.stage_layers);
    o->layers = o->layout.stage_layers = NULL;
}
