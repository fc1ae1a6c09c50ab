#include "tools/convert_options.h"

#include <stdlib.h>
#include <string.h>

const char *convert_target_name(bl_target t)
{
    return t == BL_TO_BF16 ? "bf16" : t == BL_TO_PACKED ? "packed" : "released";
}

static bool parse_target(const char *text, bl_target *t)
{
    for (*t = BL_TO_BF16; *t <= BL_TO_RELEASED; ++*t) {
        if (!strcmp(text, convert_target_name(*t))) {
            return true;
        }
    }
    return false;
}

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

static bool is_one_of(const char *text, const char *a, const char *b)
{
    return !text || !strcmp(text, a) || !strcmp(text, b);
}

static int read_target(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    if (!a->to || !parse_target(a->to, &o->target)) {
        return cli_usage_error(c, a->to ? "--to takes bf16, released or packed, not '%.40s'" : "--to bf16, released or packed is needed",
                               a->to);
    }
    bool cast = o->target == BL_TO_BF16;
    const char *classes = a->keep ? a->keep : a->drop;
    unsigned bits = 0;
    o->drop = cast ? BL_DROP_DSPARK | BL_DROP_VISION : 0;
    if ((a->keep && !cast) || (a->drop && cast)) {
        return cli_usage_error(c, "--keep goes with --to bf16, --drop with the others");
    }
    if (o->save_scales && !cast) {
        return cli_usage_error(c, "--save-scales goes with --to bf16");
    }
    if (classes && !parse_classes(classes, &bits)) {
        return cli_usage_error(c, "--%s takes dspark, vision or dspark,vision", a->keep ? "keep" : "drop");
    }
    o->drop = a->keep ? o->drop & ~bits : o->drop | bits;
    return -1;
}

/* How weights are encoded. */
static int read_encoding(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    if ((o->scale_hints || a->ties || o->canonical_zero || a->experts || a->block) && o->target != BL_TO_RELEASED) {
        return cli_usage_error(c, "--experts, --fp8-block, --scale-hints, --fp4-ties and --canonical-zero go with --to released");
    }
    if (!is_one_of(a->experts, "fp4", "fp8")) {
        return cli_usage_error(c, "--experts takes fp4 or fp8, not '%.40s'", a->experts);
    }
    if (!is_one_of(a->block, "32x32", "1x32")) {
        return cli_usage_error(c, "--fp8-block takes 32x32 or 1x32, not '%.40s'", a->block);
    }
    if (!is_one_of(a->ties, "even", "down")) {
        return cli_usage_error(c, "--fp4-ties takes even or down, not '%.40s'", a->ties);
    }
    o->fp8_block_rows = !a->block ? 0 : !strcmp(a->block, "1x32") ? 1 : 32;
    o->experts = !a->experts ? 0 : !strcmp(a->experts, "fp8") ? BL_FORM_FP8 : BL_FORM_FP4;
    o->fp4_ties = a->ties && !strcmp(a->ties, "down") ? BL_FP4_TIES_DOWN : BL_FP4_TIES_EVEN;
    if (o->scale_hints && !strcmp(o->scale_hints, "none")) {
        o->scale_hints = NULL;
        o->no_hints = true;
    }
    return -1;
}

static int read_sizes(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    if (a->jobs < 0 || a->jobs > 1024) {
        return cli_usage_error(c, "--jobs takes 1 to 1024");
    }
    if (o->shard_size == 0) {
        return cli_usage_error(c, "--shard-size must be above 0");
    }
    o->jobs = (int)a->jobs;
    return -1;
}

/* How a packed model is spread over ranks. */
static int read_layout(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    bool any = o->link || a->tp || a->ep || a->pp || a->pad_vocab || a->stages || a->engram || a->split;
    int *stages = NULL;
    size_t count = 0;
    if (any && o->target != BL_TO_PACKED) {
        return cli_usage_error(c, "--tp, --ep, --pp, --pp-layers, --pad-vocab, --split, --engram and --link go with --to packed");
    }
    if (a->tp < 0 || a->ep < 0 || a->pp < 0 || a->tp > BL_MAX_RANKS || a->ep > BL_MAX_RANKS || a->pp > BL_MAX_RANKS) {
        return cli_usage_error(c, "--tp, --ep and --pp take 1 to %d", BL_MAX_RANKS);
    }
    if (a->pad_vocab < 0 || a->pad_vocab > 1 << 20) {
        return cli_usage_error(c, "--pad-vocab takes 1 to %d", 1 << 20);
    }
    if (!is_one_of(a->engram, "split", "shared")) {
        return cli_usage_error(c, "--engram takes split or shared, not '%.40s'", a->engram);
    }
    bool wrong = a->stages && !parse_numbers(a->stages, false, BL_MAX_LAYERS + 1, &stages, &count);
    o->layout = (bl_layout){.tp = (int)a->tp,
                            .ep = (int)a->ep,
                            .pp = a->stages ? (int)count : (int)a->pp,
                            .stage_layers = stages,
                            .engram_shared = a->engram && !strcmp(a->engram, "shared")};
    o->pad_vocab = (int)a->pad_vocab;
    if (wrong) {
        return cli_usage_error(c, "--pp-layers takes numbers of layers such as 20,20");
    }
    if (a->stages && a->pp && count != (size_t)a->pp) {
        return cli_usage_error(c, "--pp-layers has %zu stages, --pp %d", count, (int)a->pp);
    }
    return -1;
}

static int read_split(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    for (int s = BL_SPLIT_PAD; a->split && s < BL_SPLITS; s++) {
        if (!strcmp(a->split, bl_split_name((bl_split)s))) {
            o->layout.split = (bl_split)s;
        }
    }
    return !a->split || o->layout.split ? -1 : cli_usage_error(c, "--split takes pad, expand1x32 or bf16, not '%.40s'", a->split);
}

static int read_layers(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    int *layers = NULL;
    bool wrong = a->layers && !parse_numbers(a->layers, true, BL_MAX_LAYERS, &layers, &o->layer_count);
    o->layers = layers;
    return wrong ? cli_usage_error(c, "--layers takes numbers and ranges such as 0-3,7") : -1;
}

int convert_options_read(const cli_command *c, const convert_arguments *a, bl_convert_options *o)
{
    int rc = cli_cpu(c, a->cpu, &o->cpu);
    int (*const steps[])(const cli_command *c, const convert_arguments *a, bl_convert_options *o) = {
        read_target, read_encoding, read_sizes, read_layout, read_split, read_layers};
    rc = rc ? rc : -1;
    for (size_t i = 0; rc < 0 && i < sizeof steps / sizeof *steps; i++) {
        rc = steps[i](c, a, o);
    }
    return rc;
}

void convert_options_free(bl_convert_options *o)
{
    free((int *)(uintptr_t)o->layers); /* ours */
    free((int *)(uintptr_t)o->layout.stage_layers);
    o->layers = o->layout.stage_layers = NULL;
}
