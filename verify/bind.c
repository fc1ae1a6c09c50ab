#include "verify/bind.h"

#include "verify/derive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BL_BLOCK 32 /* edge of a V4.1 block */

typedef struct binder {
    const bl_checkpoint *c;
    bl_binding *out;
    bool *used; /* [tensor_count] */
    bl_problem_fn on_problem;
    void *arg;
} binder;

static uint64_t blocks(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

/* A problem of a tensor that the checkpoint has (t) or lacks (name only). */
static bl_status problem(binder *b, bl_error *err, const bl_tensor *t, const char *name, const char *text)
{
    return bl_problem(b->on_problem, b->arg, err, t ? bl_checkpoint_file(b->c, t)->path : b->c->path, name, "%s", text);
}

static const bl_tensor *use(binder *b, const char *name)
{
    const bl_tensor *t = bl_checkpoint_find(b->c, name);
    if (t) {
        b->used[t - b->c->tensors] = true;
    }
    return t;
}

static bool has_shape(const bl_tensor *t, const uint64_t *shape, uint32_t ndim)
{
    bool same = t->ndim == ndim;
    for (uint32_t i = 0; same && i < ndim; i++) {
        same = t->shape[i] == shape[i];
    }
    return same;
}

/* The form that dtype t gives a slot of this kind; 0 when it may not have that dtype. */
static bl_form form_of(bl_slot_kind kind, bl_dtype t)
{
    switch (kind) {
    case BL_SLOT_F32:
        return t == BL_DT_F32 ? BL_FORM_F32 : 0;
    case BL_SLOT_BF16:
        return t == BL_DT_BF16 ? BL_FORM_BF16 : 0;
    case BL_SLOT_DENSE:
        return t == BL_DT_F8_E4M3 ? BL_FORM_FP8 : t == BL_DT_BF16 ? BL_FORM_BF16 : 0;
    case BL_SLOT_EXPERT:
        return t == BL_DT_I8 ? BL_FORM_FP4 : t == BL_DT_F8_E4M3 ? BL_FORM_FP8 : t == BL_DT_BF16 ? BL_FORM_BF16 : 0;
    case BL_SLOT_TABLE:
        return t == BL_DT_F8_E4M3 ? BL_FORM_TABLE : 0;
    case BL_SLOT_OTHER:
        break; /* not in a V4.1 model */
    }
    return 0;
}

static const char *dtypes_of(bl_slot_kind kind)
{
    static const char *const names[] = {"", "F32", "BF16", "F8_E4M3 or BF16", "I8 (packed fp4), F8_E4M3 or BF16", "F8_E4M3", "any"};
    return names[kind];
}

/* Stored shape of a slot in a form, and of its scale. Returns the scale's ndim (0 = none). */
static uint32_t stored_shapes(const bl_slot *s, bl_form form, uint64_t shape[2], uint64_t grid[2])
{
    shape[0] = s->shape[0];
    shape[1] = form == BL_FORM_FP4 ? s->shape[1] / 2 : s->shape[1];
    grid[0] = form == BL_FORM_FP8 ? blocks(s->shape[0], BL_BLOCK) : s->shape[0];
    grid[1] = blocks(s->shape[1], BL_BLOCK);
    return form == BL_FORM_FP8 || form == BL_FORM_FP4 || form == BL_FORM_TABLE ? 2 : 0;
}

/* Check t against a stored shape, with a leading number of experts when it is stacked. */
static bl_status check_shape(binder *b, bl_error *err, const bl_tensor *t, uint64_t experts, const uint64_t *shape,
                             uint32_t ndim, const char *of, bool *ok)
{
    uint64_t full[3] = {experts, shape[0], shape[1]};
    const uint64_t *want = experts ? full : full + 1;
    uint32_t dims = experts ? ndim + 1 : ndim;
    if (has_shape(t, want, dims)) {
        return BL_OK;
    }
    char have_text[256], want_text[96], text[512];
    bl_shape_text(have_text, sizeof have_text, t->shape, t->ndim);
    bl_shape_text(want_text, sizeof want_text, want, dims);
    if (of) {
        snprintf(text, sizeof text, "scale grid %s, but its weight '%s' needs %s", have_text, of, want_text);
    } else {
        snprintf(text, sizeof text, "has shape %s, the config calls for %s", have_text, want_text);
    }
    *ok = false;
    return problem(b, err, t, t->name, text);
}

static bl_status bind_scale(binder *b, const char *name, uint64_t experts, const uint64_t grid[2], bl_weight *w, bool *ok,
                            bl_error *err)
{
    char scale[256], text[512];
    bl_scale_name(scale, sizeof scale, name);
    w->scale = use(b, scale);
    if (!w->scale) {
        *ok = false;
        if (bl_checkpoint_unread(b->c, scale)) {
            return BL_OK;
        }
        snprintf(text, sizeof text, "%s codes without their scale '%s'", bl_dtype_name(w->tensor->dtype), scale);
        return problem(b, err, w->tensor, name, text);
    }
    if (w->scale->dtype != BL_DT_F8_E8M0) {
        *ok = false;
        snprintf(text, sizeof text, "scale of '%s' has dtype %s, F8_E8M0 is needed", name, bl_dtype_name(w->scale->dtype));
        return problem(b, err, w->scale, scale, text);
    }
    return check_shape(b, err, w->scale, experts, grid, 2, name, ok);
}

/* The scale of a weight that is not judged: no orphan. */
static void excuse_scale(binder *b, const char *weight)
{
    char scale[256];
    if (bl_scale_name(scale, sizeof scale, weight)) {
        use(b, scale);
    }
}

/* experts > 0: slot s is slice s->expert of the stacked tensor name. */
static bl_status bind_slot(binder *b, const bl_slot *s, const bl_tensor *t, uint64_t experts, bl_error *err)
{
    bl_weight w = {.slot = s, .tensor = t, .part = bl_slot_rect(s)};
    bool ok = true;
    bl_weight_reform(&w, form_of(s->kind, t->dtype));
    if (!w.form) {
        char text[160];
        excuse_scale(b, t->name);
        snprintf(text, sizeof text, "has dtype %s, %s is needed", bl_dtype_name(t->dtype), dtypes_of(s->kind));
        return problem(b, err, t, t->name, text);
    }
    uint64_t shape[2], grid[2];
    uint32_t scale_dims = stored_shapes(s, w.form, shape, grid);
    if (w.form == BL_FORM_FP4 && s->shape[1] % 32 != 0) {
        return problem(b, err, t, t->name, "packed fp4 needs an input width that is a multiple of 32");
    }
    BL_TRY(check_shape(b, err, t, experts, shape, s->ndim, NULL, &ok));
    if (scale_dims) {
        BL_TRY(bind_scale(b, t->name, experts, grid, &w, &ok, err));
    }
    if (!ok) {
        return BL_OK;
    }
    uint64_t parts = experts ? experts : 1, slice = experts ? (uint64_t)s->expert : 0;
    w.nbytes = t->nbytes / parts;
    w.offset = t->offset + slice * w.nbytes;
    if (w.scale) {
        w.scale_nbytes = w.scale->nbytes / parts;
        w.scale_offset = w.scale->offset + slice * w.scale_nbytes;
    }
    b->out->fp8 += w.form == BL_FORM_FP8;
    b->out->fp4 += w.form == BL_FORM_FP4;
    b->out->weights[b->out->count++] = w;
    return BL_OK;
}

static uint64_t experts_of(const bl_checkpoint *c, const bl_slot *s)
{
    return (uint64_t)(s->group == BL_GROUP_DSPARK ? c->config.dspark_n_routed_experts : c->config.n_routed_experts);
}

static bool excused(const bl_checkpoint *c, const char *name)
{
    return bl_checkpoint_unread(c, name) || bl_checkpoint_find(c, name) != NULL;
}

bool bl_slot_excused(const bl_checkpoint *c, const bl_slots *slots, const bl_slot *s)
{
    char stacked[160];
    if (s->expert >= 0) {
        bl_stacked_name(stacked, sizeof stacked, slots, s, false);
    }
    return excused(c, s->name) || (s->expert >= 0 && excused(c, stacked));
}

/* Does the router of an expert's layer have rows for another number of experts? That is reported, once: a list of every expert
 * that the config invents says nothing more. */
static bool experts_in_doubt(const binder *b, const bl_slot *s)
{
    char name[160];
    const char *tail = strstr(s->name, "ffn.experts.");
    snprintf(name, sizeof name, "%.*sffn.gate.weight", (int)(tail - s->name), s->name);
    const bl_tensor *t = bl_checkpoint_find(b->c, name);
    return t && t->ndim == 2 && t->shape[0] != experts_of(b->c, s);
}

/* A slot that no tensor fills. */
static bl_status lacking(binder *b, const bl_slot *s, bl_error *err)
{
    if (bl_slot_excused(b->c, &b->out->slots, s)) {
        char stacked[160];
        excuse_scale(b, s->name);
        if (s->expert >= 0) {
            bl_stacked_name(stacked, sizeof stacked, &b->out->slots, s, false);
            excuse_scale(b, stacked);
        }
        return BL_OK;
    }
    if (s->expert >= 0 && experts_in_doubt(b, s)) {
        excuse_scale(b, s->name);
        return BL_OK;
    }
    return problem(b, err, NULL, s->name, "is missing: the config calls for it");
}

static bl_status bind_all(binder *b, bl_error *err)
{
    const bl_slots *slots = &b->out->slots;
    for (size_t i = 0; i < slots->count; i++) {
        const bl_slot *s = &slots->slots[i];
        const bl_tensor *t = use(b, s->name);
        uint64_t experts = 0;
        if (!t && s->expert >= 0) {
            char name[160];
            bl_stacked_name(name, sizeof name, slots, s, false);
            t = use(b, name);
            experts = experts_of(b->c, s);
        }
        BL_TRY(t ? bind_slot(b, s, t, experts, err) : lacking(b, s, err));
    }
    b->out->missing = slots->count - b->out->count;
    return BL_OK;
}

static bl_status unused(binder *b, bl_error *err)
{
    for (size_t i = 0; i < b->c->tensor_count; i++) {
        const bl_tensor *t = &b->c->tensors[i];
        if (b->used[i]) {
            continue;
        }
        size_t n = strlen(t->name), tail = strlen(".scale");
        char text[512];
        if (n > tail && !strcmp(t->name + n - tail, ".scale")) {
            snprintf(text, sizeof text, "orphan scale: no fp8 or fp4 weight '%.*s.weight' goes with it",
                     (int)(n - tail < 300 ? n - tail : 300), t->name);
        } else {
            snprintf(text, sizeof text, "unknown tensor: nothing in the config calls for it");
        }
        BL_TRY(problem(b, err, t, t->name, text));
    }
    return BL_OK;
}

/* A config that gives no list of slots leaves the binding empty, with something missing. */
static bl_status build_slots(const bl_checkpoint *c, bl_arena *arena, bl_problem_fn on_problem, void *arg, bl_binding *out,
                             bl_error *err)
{
    char path[4096];
    bl_error e;
    bl_error_clear(&e);
    snprintf(path, sizeof path, "%s/config.json", c->path);
    bl_status s = bl_slots_build(&c->config, path, arena, &out->slots, &e);
    if (s == BL_E_INPUT && on_problem) {
        on_problem(arg, &e);
        out->missing = 1;
        return BL_OK;
    }
    if (s != BL_OK && err && err->code == BL_OK) {
        *err = e;
    }
    return s;
}

bl_status bl_bind(const bl_checkpoint *c, bl_arena *arena, bl_problem_fn on_problem, void *arg, bl_binding *out, bl_error *err)
{
    *out = (bl_binding){0};
    if (!c->has_config) {
        return bl_fail(err, BL_E_INPUT, c->path, NULL, -1, "has no config.json");
    }
    if (c->config.earlier) {
        return bl_derive(c, arena, on_problem, arg, out, err);
    }
    out->generation = BL_GEN_V41;
    out->block = BL_BLOCK;
    BL_TRY(build_slots(c, arena, on_problem, arg, out, err));
    if (out->missing) {
        return BL_OK;
    }
    binder b = {.c = c, .out = out, .on_problem = on_problem, .arg = arg};
    b.used = calloc(c->tensor_count + 1, sizeof *b.used);
    out->weights = bl_arena_array(arena, out->slots.count, sizeof *out->weights);
    if (!b.used || !out->weights) {
        free(b.used);
        return bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
    }
    bl_status s = bind_all(&b, err);
    if (s == BL_OK) {
        s = unused(&b, err);
    }
    free(b.used);
    return s;
}

bl_status bl_bind_forms(const bl_checkpoint *c, const bl_binding *b, bl_problem_fn on_problem, void *arg, bl_error *err)
{
    static const char key[] = "quantization_config", expert_key[] = "quantization_config.expert_dtype",
                      block_key[] = "quantization_config.weight_block_size";
    bool quantised = c->config.quantized, packed = c->config.experts_fp4;
    char path[4096], text[160];
    snprintf(path, sizeof path, "%s/config.json", c->path);
    if (!quantised && b->fp8 + b->fp4 > 0) {
        snprintf(text, sizeof text, "is absent, but %zu weights are quantised", b->fp8 + b->fp4);
        BL_TRY(bl_problem(on_problem, arg, err, path, key, "%s", text));
    }
    if (quantised && !packed && b->fp4 > 0) {
        snprintf(text, sizeof text, "is not fp4, but %zu experts are packed fp4", b->fp4);
        BL_TRY(bl_problem(on_problem, arg, err, path, expert_key, "%s", text));
    }
    int declared_rows = c->config.block[0], declared_cols = c->config.block[1];
    if (declared_rows && b->fp8 && (declared_rows != b->block || declared_cols != b->block)) {
        snprintf(text, sizeof text, "is [%d, %d], but the scale grids are those of %dx%d blocks", declared_rows, declared_cols, b->block,
                 b->block);
        BL_TRY(bl_problem(on_problem, arg, err, path, block_key, "%s", text));
    }
    if (b->missing) {
        return BL_OK; /* the others may be among the missing */
    }
    if (quantised && b->fp8 + b->fp4 == 0) {
        BL_TRY(bl_problem(on_problem, arg, err, path, key, "is present, but no weight is quantised"));
    } else if (quantised && packed && b->fp4 == 0) {
        BL_TRY(bl_problem(on_problem, arg, err, path, expert_key, "is fp4, but no expert is packed fp4"));
    }
    return BL_OK;
}

bl_rect bl_slot_rect(const bl_slot *s)
{
    return s->ndim == 1 ? (bl_rect){.rows = 1, .cols = s->shape[0]} : (bl_rect){.rows = s->shape[0], .cols = s->shape[1]};
}

uint64_t bl_weight_cols(const bl_weight *w)
{
    return w->part.cols;
}

uint64_t bl_weight_rows(const bl_weight *w)
{
    return w->part.rows;
}

uint64_t bl_weight_row_bytes(const bl_weight *w)
{
    return bl_weight_stored_bytes(w, bl_weight_cols(w));
}

void bl_weight_reform(bl_weight *w, bl_form form)
{
    bool scaled = form == BL_FORM_FP8 || form == BL_FORM_FP4 || form == BL_FORM_TABLE;
    w->form = form;
    w->block_rows = !scaled ? 0 : form == BL_FORM_FP8 ? BL_BLOCK : 1;
    w->block_cols = scaled ? BL_BLOCK : 0;
}

uint64_t bl_weight_stored_bytes(const bl_weight *w, uint64_t n)
{
    switch (w->form) {
    case BL_FORM_F32:
        return 4 * n;
    case BL_FORM_BF16:
        return 2 * n;
    case BL_FORM_FP4:
        return n / 2;
    case BL_FORM_OTHER:
        return n * (bl_dtype_bits(w->tensor->dtype) / 8);
    default:
        return n;
    }
}

bool bl_weight_f32_scaled(const bl_weight *w)
{
    return w->form == BL_FORM_FP8 && w->scale && w->scale->dtype == BL_DT_F32;
}

uint64_t bl_weight_scale_cols(const bl_weight *w)
{
    return blocks(bl_weight_cols(w), w->block_cols);
}

uint64_t bl_weight_scale_row_bytes(const bl_weight *w)
{
    return bl_weight_scale_cols(w) * (bl_weight_f32_scaled(w) ? 4 : 1);
}

uint64_t bl_weight_scale_rows(const bl_weight *w)
{
    return blocks(bl_weight_rows(w), w->block_rows);
}

bl_value_class bl_weight_class(const bl_weight *w)
{
    if (w->form == BL_FORM_TABLE) {
        return BL_VALUE_ROWS;
    }
    if (w->slot->ndim == 1 && w->slot->cut == BL_CUT_HEADS) {
        return BL_VALUE_ELEMENTS;
    }
    bool bf16 = w->form == BL_FORM_BF16 || w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4;
    bool matrix = w->slot->ndim == 2 && bf16 && w->slot->shape[1] <= BL_VALUE_MAX_COLS;
    return matrix ? BL_VALUE_MATRIX : BL_VALUE_BYTES;
}
