#include "verify/derive.h"

#include "formats/names.h"
#include "verify/pairs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor that is no scale. */
typedef struct item {
    const bl_tensor *t, *scale, *second;
    bl_slot slot;
} item;

typedef struct deriver {
    const bl_checkpoint *c;
    bl_binding *out;
    bl_problem_fn on_problem;
    void *arg;
    bl_error *err;
    item *items;
    size_t count;
} deriver;

/* What is wrong with tensor t. */
static bl_status problem(const deriver *d, const bl_tensor *t, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static bl_status problem(const deriver *d, const bl_tensor *t, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bl_problem(d->on_problem, d->arg, d->err, bl_checkpoint_file(d->c, t)->path, t->name, "%s", text);
}

/* ---- names */

static const char *without_model(const char *name)
{
    return strncmp(name, "model.", 6) ? name : name + 6;
}

/* The number in "PREFIX.n." at the start of name; -1 when it is not there. */
static int number_after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9') {
        return -1;
    }
    char *end;
    long v = strtol(name + n, &end, 10);
    return *end == '.' && end - (name + n) <= 6 ? (int)v : -1;
}

/* Layer and group of a tensor; layers behind the last one are draft layers, called mtp.k or by their number. */
static void place(const bl_config *c, const char *name, bl_slot *s)
{
    const char *rest = without_model(name);
    int layer = number_after(rest, "layers."), draft = number_after(rest, "mtp.");
    s->layer = layer >= 0 ? layer : draft >= 0 ? c->num_hidden_layers + draft : -1;
    s->group = s->layer >= c->num_hidden_layers ? BL_GROUP_DSPARK : BL_GROUP_MODEL;
    s->expert = -1;
}

/* How many digits s begins with. strspn would set up a table for every character of every name. */
static size_t digits(const char *s)
{
    size_t n = 0;
    while (s[n] >= '0' && s[n] <= '9') {
        n++;
    }
    return n;
}

/* Numbers within names by value. */
static int natural(const char *a, const char *b)
{
    while (*a && *b) {
        size_t m = digits(a), n = digits(b);
        if (m && n) {
            int order = m != n ? (m < n ? -1 : 1) : memcmp(a, b, m);
            if (order) {
                return order;
            }
            a += m;
            b += n;
        } else if (*a != *b) {
            break;
        } else {
            a++;
            b++;
        }
    }
    return (unsigned char)*a < (unsigned char)*b ? -1 : *a != *b;
}

/* Embeddings, layers, the rest. */
static int section(const item *i)
{
    return i->slot.layer >= 0 ? 1 : strstr(i->t->name, "embed") ? 0 : 2;
}

static int by_model_order(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (section(x) != section(y)) {
        return section(x) - section(y);
    }
    return x->slot.layer != y->slot.layer ? x->slot.layer - y->slot.layer : natural(x->t->name, y->t->name);
}

static bl_status collect(deriver *d)
{
    const bl_checkpoint *c = d->c;
    char weight[BL_MAX_NAME + 32];
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i];
        if (!bl_pair_is_scale(t->name, weight, sizeof weight)) {
            item *it = &d->items[d->count++];
            it->t = t;
            it->scale = bl_pair_scale(c, t->name, &it->second);
            it->slot = (bl_slot){.name = t->name, .ndim = t->ndim};
            place(&c->config, t->name, &it->slot);
        }
    }
    if (d->count) {
        qsort(d->items, d->count, sizeof *d->items, by_model_order);
    }
    for (size_t i = 0; i < d->count; i++) {
        d->items[i].slot.order = (uint32_t)i;
    }
    return BL_OK;
}

/* ---- blocks */

static bool has_grid(const item *i)
{
    return i->t->dtype == BL_DT_F8_E4M3 && i->t->ndim == 2 && i->scale && !i->second && i->scale->ndim == 2;
}

/* The edge that fits the most grids, and how many. Where two edges fit a grid alike it has one row or column in which they
 * mean the same, so a draw decides nothing: the declared edge wins it, else 128. */
static int choose_block(const deriver *d, size_t *fits)
{
    int best = 0;
    *fits = 0;
    for (size_t e = 0; e < BL_BLOCK_EDGES; e++) {
        size_t n = 0;
        int edge = (int)bl_block_edges[e];
        for (size_t i = 0; i < d->count; i++) {
            const item *it = &d->items[i];
            n += has_grid(it) && bl_grid_fits(it->scale->shape, it->t->shape, bl_block_edges[e]);
        }
        if (n > *fits || (n && n == *fits && edge == d->c->config.block[0])) {
            best = edge;
            *fits = n;
        }
    }
    return best;
}

static bl_status wrong_grid(const deriver *d, const item *i, size_t fits)
{
    char have[256], shape[256], blocks[96];
    snprintf(blocks, sizeof blocks, "blocks of %dx%d (as %zu other weights have)", d->out->block, d->out->block, fits);
    return problem(d, i->scale, "scale grid %s does not fit its weight '%.300s' %s with %s",
                   bl_shape_text(have, sizeof have, i->scale->shape, i->scale->ndim), i->t->name,
                   bl_shape_text(shape, sizeof shape, i->t->shape, i->t->ndim), d->out->block ? blocks : "square blocks of any size");
}

/* ---- roles */

/* The scale of codes: one, of a fitting dtype and grid. *w is left without scale when it is not. */
static bl_status judge_scale(const deriver *d, const item *i, size_t fits, bl_weight *w)
{
    const bl_tensor *s = i->scale;
    bool fp8 = w->form == BL_FORM_FP8;
    if (!s) {
        char stem[BL_MAX_NAME + 32];
        size_t n = bl_stem(i->t->name, ".weight");
        snprintf(stem, sizeof stem, "%.*s", (int)(n ? n : strlen(i->t->name)), i->t->name);
        return d->c->unread_count || d->c->unread_unknown
                   ? BL_OK
                   : problem(d, i->t, "%s codes without their scale '%.300s.weight_scale_inv' or '%.300s.scale'",
                             bl_dtype_name(i->t->dtype), stem, stem);
    }
    if (i->second) {
        return problem(d, i->t, "has two scales, '%.300s' and '%.300s'", s->name, i->second->name);
    }
    bool f32 = fp8 && d->out->block != 32; /* none has F32 scales of so small blocks */
    if (s->dtype != BL_DT_F8_E8M0 && !(f32 && s->dtype == BL_DT_F32)) {
        return problem(d, s, "scale of '%.300s' has dtype %s, %s is needed", i->t->name, bl_dtype_name(s->dtype),
                       f32 ? "F32 or F8_E8M0" : "F8_E8M0");
    }
    if (fp8 && (s->ndim != 2 || !d->out->block || !bl_grid_fits(s->shape, i->t->shape, (uint64_t)d->out->block))) {
        return wrong_grid(d, i, fits);
    }
    if (!fp8 && (s->ndim != 2 || s->shape[0] != i->t->shape[0] || s->shape[1] * 16 != i->t->shape[1])) {
        char have[256], shape[256];
        return problem(d, s, "scale grid %s does not fit its packed fp4 weight '%.300s' %s: one for each 16 bytes of a row is needed",
                       bl_shape_text(have, sizeof have, s->shape, s->ndim), i->t->name,
                       bl_shape_text(shape, sizeof shape, i->t->shape, i->t->ndim));
    }
    w->scale = s;
    w->scale_offset = s->offset;
    w->scale_nbytes = s->nbytes;
    w->block_rows = fp8 ? (uint32_t)d->out->block : 1;
    w->block_cols = fp8 ? (uint32_t)d->out->block : 32;
    return BL_OK;
}

static bl_form form_of(bl_dtype t, bl_slot_kind *kind)
{
    static const struct { bl_dtype dtype; bl_form form; bl_slot_kind kind; } roles[] = {
        {BL_DT_F32, BL_FORM_F32, BL_SLOT_F32},         {BL_DT_BF16, BL_FORM_BF16, BL_SLOT_BF16},
        {BL_DT_F8_E4M3, BL_FORM_FP8, BL_SLOT_DENSE},   {BL_DT_I8, BL_FORM_FP4, BL_SLOT_EXPERT},
        {BL_DT_I32, BL_FORM_OTHER, BL_SLOT_OTHER},     {BL_DT_I64, BL_FORM_OTHER, BL_SLOT_OTHER}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (roles[i].dtype == t) {
            *kind = roles[i].kind;
            return roles[i].form;
        }
    }
    return 0;
}

/* Give one tensor its role, or say why it has none. */
static bl_status judge(deriver *d, item *i, size_t fits)
{
    const bl_tensor *t = i->t;
    char text[256];
    bl_weight w = {.slot = &i->slot, .tensor = t, .offset = t->offset, .nbytes = t->nbytes};
    w.form = form_of(t->dtype, &i->slot.kind);
    if (!w.form) {
        return problem(d, t, "has dtype %s: no generation known here has such weights", bl_dtype_name(t->dtype));
    }
    if (w.form == BL_FORM_OTHER && !strstr(t->name, ".tid2eid")) {
        return problem(d, t, "has dtype %s: of integers the generations known here have the experts of tokens (tid2eid) alone",
                       bl_dtype_name(t->dtype));
    }
    bl_slot_kind kind = bl_generation_codes(d->out->generation, t->name);
    i->slot.kind = kind && i->slot.kind != BL_SLOT_F32 ? kind : i->slot.kind;
    bool codes = w.form == BL_FORM_FP8 || w.form == BL_FORM_FP4;
    if (!t->nbytes || t->ndim > 2 || t->ndim < (codes ? 2u : 1u)) {
        return problem(d, t, "has shape %s: %s is needed", bl_shape_text(text, sizeof text, t->shape, t->ndim),
                       codes ? "a matrix" : "a vector or a matrix");
    }
    i->slot.shape[0] = t->shape[0];
    i->slot.shape[1] = t->ndim == 2 ? t->shape[1] * (w.form == BL_FORM_FP4 ? 2 : 1) : 1;
    w.part = bl_slot_rect(&i->slot);
    if (codes) {
        BL_TRY(judge_scale(d, i, fits, &w));
        if (!w.scale) {
            return BL_OK;
        }
    }
    bl_binding *b = d->out;
    b->fp8 += w.form == BL_FORM_FP8;
    b->fp4 += w.form == BL_FORM_FP4;
    b->weights[b->count++] = w;
    return BL_OK;
}

/* Scales whose weight is not there, or takes none. */
static bl_status orphans(const deriver *d)
{
    char weight[BL_MAX_NAME + 32];
    for (size_t i = 0; i < d->c->tensor_count; i++) {
        const bl_tensor *s = &d->c->tensors[i];
        if (!bl_pair_is_scale(s->name, weight, sizeof weight)) {
            continue;
        }
        const bl_tensor *t = weight[0] ? bl_checkpoint_find(d->c, weight) : NULL;
        if (!weight[0]) {
            BL_TRY(problem(d, s, "is a scale of a kind that no generation known here has"));
        } else if (!t && !bl_checkpoint_unread(d->c, weight)) {
            BL_TRY(problem(d, s, "orphan scale: there is no weight '%.300s'", weight));
        } else if (t && t->dtype != BL_DT_F8_E4M3 && t->dtype != BL_DT_I8) {
            BL_TRY(problem(d, s, "orphan scale: its weight '%.300s' has dtype %s, which takes none", weight, bl_dtype_name(t->dtype)));
        }
    }
    return BL_OK;
}

/* ---- what is missing */

/* name with another expert's number; at is where its digits are. */
static const bl_tensor *sibling(const deriver *d, const char *name, const char *at, int expert, char *buf, size_t cap)
{
    snprintf(buf, cap, "%.*s%d%s", (int)(at - name), name, expert, at + digits(at));
    return bl_checkpoint_find(d->c, buf);
}

static bl_status lacks(const deriver *d, const char *name, const char *beside)
{
    return bl_checkpoint_unread(d->c, name) ? BL_OK
                                            : bl_problem(d->on_problem, d->arg, d->err, d->c->path, name, "is missing: '%.300s' is there", beside);
}

/* Experts are numbered from 0 without a gap; the first of every gap is named. */
static bl_status check_expert(const deriver *d, const bl_tensor *t)
{
    const char *at = strstr(t->name, ".experts.");
    int experts = d->c->config.n_routed_experts, e = at ? number_after(at, ".experts.") : -1;
    char name[BL_MAX_NAME + 32], before[BL_MAX_NAME + 32];
    if (e < 0 || !experts) {
        return BL_OK;
    }
    at += strlen(".experts.");
    if (e >= experts) {
        return problem(d, t, "is an expert beyond the n_routed_experts %d of the config", experts);
    }
    if (e + 1 < experts && !sibling(d, t->name, at, e + 1, name, sizeof name)) {
        BL_TRY(lacks(d, name, t->name));
    }
    bool gap = e > 0 && !sibling(d, t->name, at, e - 1, name, sizeof name);
    if (gap && (e == 1 || !sibling(d, t->name, at, e - 2, before, sizeof before))) {
        return lacks(d, name, t->name);
    }
    return BL_OK;
}

static bl_status check_place(const deriver *d, const item *i)
{
    const bl_config *c = &d->c->config;
    int layer = i->slot.layer, last = c->num_hidden_layers + c->num_nextn_predict_layers;
    const bool *present = d->out->slots.present;
    if (layer >= last) {
        return problem(d, i->t, "is in layer %d, but the config has %d layer%s and %d draft layer%s", layer, c->num_hidden_layers,
                       bl_plural((uint64_t)c->num_hidden_layers), c->num_nextn_predict_layers,
                       bl_plural((uint64_t)c->num_nextn_predict_layers));
    }
    if (layer >= 0 && layer < c->num_hidden_layers && present && !present[layer]) {
        return problem(d, i->t, "is in layer %d, which " BL_LAYERS_KEY " leaves out", layer);
    }
    char other[BL_MAX_NAME + 32];
    snprintf(other, sizeof other, "model.%s", i->t->name);
    if (bl_checkpoint_find(d->c, other)) {
        return problem(d, i->t, "is there also as '%.300s'", other);
    }
    return check_expert(d, i->t);
}

static bl_status check_layers(const deriver *d)
{
    int layers = d->c->config.num_hidden_layers;
    bool seen[BL_MAX_LAYERS] = {false};
    for (size_t i = 0; i < d->count; i++) {
        if (d->items[i].slot.layer >= 0 && d->items[i].slot.layer < layers) {
            seen[d->items[i].slot.layer] = true;
        }
    }
    bool unread = d->c->unread_count || d->c->unread_unknown;
    for (int i = 0; i < layers && !unread; i++) {
        if (!seen[i] && (!d->out->slots.present || d->out->slots.present[i])) {
            BL_TRY(bl_problem(d->on_problem, d->arg, d->err, d->c->path, NULL, "has no tensors of layer %d, of %d that the config calls for",
                              i, layers));
        }
    }
    return BL_OK;
}

/* ---- the whole */

/* Is this something that may be bound without a table? */
static bl_status check_generation(deriver *d, bool *go)
{
    char why[512];
    const bl_config *c = &d->c->config;
    d->out->generation = bl_generation_find(d->c, d->out->block, why, sizeof why);
    bool unread = d->c->unread_count || d->c->unread_unknown;
    *go = true;
    if (d->out->generation == BL_GEN_V41) {
        *go = false;
        return bl_problem(d->on_problem, d->arg, d->err, d->c->path, NULL,
                          "model_type is '%s', but the tensors are those of DeepSeek-V4.1 (%s), which needs its own config.json",
                          c->model_type, why);
    }
    if (d->out->generation == BL_GEN_NONE && !unread) {
        *go = false;
        return bl_problem(d->on_problem, d->arg, d->err, d->c->path, NULL,
                          "model_type is '%s', and the tensors are not those of one DeepSeek generation from V3 on (marks: %s)", c->model_type,
                          why[0] ? why : "none");
    }
    return BL_OK;
}

static bl_status run(deriver *d)
{
    bool go;
    size_t fits;
    BL_TRY(collect(d));
    d->out->block = choose_block(d, &fits);
    BL_TRY(check_generation(d, &go));
    if (!go) {
        d->out->missing = 1;
        return BL_OK;
    }
    BL_TRY(orphans(d));
    for (size_t i = 0; i < d->count; i++) {
        BL_TRY(judge(d, &d->items[i], fits));
        BL_TRY(check_place(d, &d->items[i]));
    }
    d->out->missing = d->count - d->out->count;
    return check_layers(d);
}

bl_status bl_derive(const bl_checkpoint *c, bl_arena *arena, bl_problem_fn on_problem, void *arg, bl_binding *out, bl_error *err)
{
    char path[4096];
    deriver d = {.c = c, .out = out, .on_problem = on_problem, .arg = arg, .err = err};
    snprintf(path, sizeof path, "%s/config.json", c->path);
    out->slots.layers = c->config.num_hidden_layers;
    d.items = bl_arena_array(arena, c->tensor_count, sizeof *d.items);
    out->weights = bl_arena_array(arena, c->tensor_count, sizeof *out->weights);
    if (!d.items || !out->weights) {
        return bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
    }
    bl_error e;
    bl_error_clear(&e);
    bl_status s = bl_slots_selection(&c->config, path, arena, &out->slots, &e);
    if (s == BL_E_INPUT && on_problem) {
        on_problem(arg, &e);
        out->missing = 1;
        return BL_OK;
    }
    if (s != BL_OK) {
        if (err && err->code == BL_OK) {
            *err = e;
        }
        return s;
    }
    return run(&d);
}
