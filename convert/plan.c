#include "convert/plan.h"

#include "verify/stream.h"
#include "verify/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKED_ALIGN 4096u
#define ENGRAM_ALIGN (2u << 20)

typedef struct planner {
    const bl_checkpoint *c;
    const bl_binding *b;
    const bl_plan_options *o;
    bl_arena *arena;
    bl_plan *out;
    bl_action *actions;
    bl_plan_tensor *stack[3][2]; /* the stacked tensors of the layer being planned: w1..w3, codes and scale */
} planner;

static bl_status nomem(const planner *p, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, p->c->path, NULL, -1, "out of memory for the plan");
}

const char *bl_action_name(bl_action a)
{
    static const char *const names[] = {"none", "copy", "cast", "consume", "stack", "unstack", "drop"};
    return a < BL_ACTIONS ? names[a] : "none";
}

/* ---- which tensors come out */

static void act(planner *p, const bl_tensor *t, bl_action a)
{
    p->actions[t - p->c->tensors] = a;
}

static bool is_dropped(const planner *p, const bl_slot *s)
{
    if ((s->group == BL_GROUP_DSPARK && (p->out->dropped & BL_DROP_DSPARK)) ||
        (s->group == BL_GROUP_VISION && (p->out->dropped & BL_DROP_VISION))) {
        return true;
    }
    bool backbone = s->group == BL_GROUP_MODEL && s->layer >= 0;
    return backbone && p->out->present && !p->out->present[s->layer];
}

/* A new output tensor with room for members; NULL when out of memory. */
static bl_plan_tensor *add(planner *p, const char *name, bl_dtype dtype, uint32_t ndim, size_t members)
{
    bl_plan_tensor *t = &p->out->tensors[p->out->tensor_count];
    uint64_t *shape = bl_arena_array(p->arena, 3, sizeof *shape);
    t->members = bl_arena_array(p->arena, members, sizeof *t->members);
    char *copy = bl_arena_strndup(p->arena, name, strlen(name));
    if (!shape || !t->members || !copy) {
        return NULL;
    }
    t->tensor = (bl_tensor){.name = copy, .dtype = dtype, .ndim = ndim, .shape = shape};
    p->out->tensor_count++;
    return t;
}

static uint64_t *shape_of(bl_plan_tensor *t)
{
    return (uint64_t *)(uintptr_t)t->tensor.shape; /* ours until the plan is done */
}

/* Shape of a weight (or its scale) as it comes out, without a leading number of experts. Returns ndim. */
static uint32_t out_shape(const bl_weight *w, bool scale, bool cast, uint64_t shape[2])
{
    if (scale) {
        shape[0] = bl_weight_scale_rows(w);
        shape[1] = bl_weight_scale_row_bytes(w);
        return 2;
    }
    shape[0] = w->slot->shape[0];
    shape[1] = w->form == BL_FORM_FP4 && !cast ? w->slot->shape[1] / 2 : w->slot->shape[1];
    return w->slot->ndim;
}

static bl_dtype out_dtype(const bl_weight *w, bool scale, bool cast)
{
    return cast ? BL_DT_BF16 : scale ? w->scale->dtype : w->tensor->dtype;
}

static bl_status add_single(planner *p, const bl_weight *w, bool scale, bool cast, bl_error *err)
{
    char name[192];
    if (scale) {
        bl_scale_name(name, sizeof name, w->slot->name);
    }
    bl_plan_tensor *t = add(p, scale ? name : w->slot->name, out_dtype(w, scale, cast), w->slot->ndim, 1);
    if (!t) {
        return nomem(p, err);
    }
    t->scale = scale;
    t->cast = cast;
    t->members[t->member_count++] = w;
    out_shape(w, scale, cast, shape_of(t));
    return BL_OK;
}

static bl_status add_stacked(planner *p, const bl_weight *w, bool scale, bl_error *err)
{
    bl_plan_tensor **open = &p->stack[w->slot->part - 1][scale];
    if (w->slot->expert == 0) {
        char name[192];
        int experts = w->slot->group == BL_GROUP_DSPARK ? p->c->config.dspark_n_routed_experts : p->c->config.n_routed_experts;
        bl_stacked_name(name, sizeof name, &p->b->slots, w->slot, scale);
        bl_plan_tensor *t = add(p, name, out_dtype(w, scale, false), 3, (size_t)experts);
        if (!t) {
            return nomem(p, err);
        }
        t->scale = scale;
        t->stacked = true;
        shape_of(t)[0] = (uint64_t)experts;
        out_shape(w, scale, false, shape_of(t) + 1);
        *open = t;
    }
    bl_plan_tensor *t = *open;
    if (t->member_count && t->members[0]->form != w->form) {
        return bl_fail(err, BL_E_INPUT, p->c->path, w->slot->name, -1, "has dtype %s, expert 0 of its layer has %s: cannot be stacked",
                       bl_dtype_name(w->tensor->dtype), bl_dtype_name(t->members[0]->tensor->dtype));
    }
    t->members[t->member_count++] = w;
    return BL_OK;
}

static bl_status plan_bf16(planner *p, const bl_weight *w, bl_error *err)
{
    bool cast = w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4;
    bool stacked = w->tensor->ndim > w->slot->ndim;
    act(p, w->tensor, stacked ? BL_ACT_UNSTACK : cast ? BL_ACT_CAST : BL_ACT_COPY);
    if (w->scale) {
        act(p, w->scale, cast ? BL_ACT_CONSUME : BL_ACT_COPY);
    }
    BL_TRY(add_single(p, w, false, cast, err));
    return w->scale && !cast ? add_single(p, w, true, false, err) : BL_OK;
}

static bl_status plan_packed(planner *p, const bl_weight *w, bl_error *err)
{
    bool expert = w->slot->expert >= 0, whole = w->tensor->ndim > w->slot->ndim;
    bl_action a = expert && !whole ? BL_ACT_STACK : BL_ACT_COPY;
    act(p, w->tensor, a);
    BL_TRY(expert ? add_stacked(p, w, false, err) : add_single(p, w, false, false, err));
    if (w->scale) {
        act(p, w->scale, a);
        BL_TRY(expert ? add_stacked(p, w, true, err) : add_single(p, w, true, false, err));
    }
    return BL_OK;
}

static bl_status check_width(const planner *p, const bl_weight *w, bl_error *err)
{
    bool codes = w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4;
    if ((codes && bl_weight_cols(w) > BL_VALUE_MAX_COLS) ||
        (w->form == BL_FORM_TABLE && bl_weight_row_bytes(w) > BL_STREAM_TILE)) {
        return bl_fail(err, BL_E_INPUT, p->c->path, w->tensor->name, -1, "rows of %llu elements are too wide, the most is %d",
                       (unsigned long long)bl_weight_cols(w), BL_VALUE_MAX_COLS);
    }
    return BL_OK;
}

static bl_status plan_tensors(planner *p, bl_error *err)
{
    for (size_t i = 0; i < p->b->count; i++) {
        const bl_weight *w = &p->b->weights[i];
        if (is_dropped(p, w->slot)) {
            act(p, w->tensor, BL_ACT_DROP);
            if (w->scale) {
                act(p, w->scale, BL_ACT_DROP);
            }
            continue;
        }
        BL_TRY(check_width(p, w, err));
        BL_TRY(p->o->target == BL_TO_BF16 ? plan_bf16(p, w, err) : plan_packed(p, w, err));
    }
    for (size_t i = 0; i < p->c->tensor_count; i++) {
        if (p->actions[i] == BL_ACT_NONE) {
            return bl_fail(err, BL_E_INTERNAL, p->c->path, p->c->tensors[i].name, -1, "no action was planned for this tensor");
        }
        p->out->action_count[p->actions[i]]++;
    }
    return BL_OK;
}

/* ---- which file each goes to */

/* Bytes of an output tensor before layout. */
static uint64_t bytes_of(const bl_plan_tensor *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->member_count; i++) {
        n += bl_plan_member_bytes(t, i);
    }
    return n;
}

/* Fill shards in model order up to the cap. Returns their number. */
static size_t deal_shards(planner *p)
{
    uint64_t filled = 0;
    size_t shard = 0;
    for (size_t i = 0; i < p->out->tensor_count; i++) {
        bl_plan_tensor *t = &p->out->tensors[i];
        uint64_t n = bytes_of(t);
        if (filled && filled + n > p->o->shard_size) {
            shard++;
            filled = 0;
        }
        t->tensor.file = (uint32_t)shard;
        filled += n;
    }
    return shard + 1;
}

/* Packed: the number of a tensor's file among backbone layers, then draft stages, then Engram tables by layer, then the rest. */
static uint32_t packed_key(const planner *p, const bl_plan_tensor *t)
{
    const bl_weight *w = t->members[0];
    uint32_t layers = (uint32_t)(p->c->config.num_hidden_layers + p->c->config.num_nextn_predict_layers);
    if (w->form == BL_FORM_TABLE) {
        return layers + (uint32_t)w->slot->layer;
    }
    return w->slot->layer >= 0 ? (uint32_t)w->slot->layer : 2 * layers;
}

static int by_file(const void *a, const void *b)
{
    const bl_plan_tensor *s = a, *t = b;
    if (s->tensor.file != t->tensor.file) {
        return s->tensor.file < t->tensor.file ? -1 : 1;
    }
    return s->tensor.offset != t->tensor.offset ? (s->tensor.offset < t->tensor.offset ? -1 : 1)
                                                : strcmp(s->tensor.name, t->tensor.name);
}

/* Give the packed files consecutive numbers; leaves the tensors sorted by file. Returns the number of files. */
static size_t deal_packed(planner *p)
{
    bl_plan *out = p->out;
    for (size_t i = 0; i < out->tensor_count; i++) {
        out->tensors[i].tensor.file = packed_key(p, &out->tensors[i]);
    }
    qsort(out->tensors, out->tensor_count, sizeof *out->tensors, by_file);
    uint32_t file = 0;
    for (size_t i = 0; i < out->tensor_count;) {
        uint32_t key = out->tensors[i].tensor.file;
        for (; i < out->tensor_count && out->tensors[i].tensor.file == key; i++) {
            out->tensors[i].tensor.file = file;
        }
        file++;
    }
    return file;
}

static char *file_name(const planner *p, const bl_plan_tensor *first, size_t index)
{
    char name[64];
    const bl_weight *w = first->members[0];
    int layers = p->c->config.num_hidden_layers;
    if (p->o->target == BL_TO_BF16) {
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, p->out->file_count);
    } else if (w->form == BL_FORM_TABLE) {
        snprintf(name, sizeof name, "rank-0000/engram-%02d.safetensors", w->slot->layer);
    } else if (w->slot->layer < 0) {
        snprintf(name, sizeof name, "rank-0000/rest.safetensors");
    } else if (w->slot->layer < layers) {
        snprintf(name, sizeof name, "rank-0000/layer-%02d.safetensors", w->slot->layer);
    } else {
        snprintf(name, sizeof name, "rank-0000/mtp-%02d.safetensors", w->slot->layer - layers);
    }
    return bl_arena_strndup(p->arena, name, strlen(name));
}

/* ---- places */

static bl_status lay_out(planner *p, bl_plan_file *f, bl_plan_tensor *tensors, bl_tensor *scratch, bl_error *err)
{
    uint32_t align = tensors[0].members[0]->form == BL_FORM_TABLE && p->o->target == BL_TO_PACKED ? ENGRAM_ALIGN : PACKED_ALIGN;
    for (size_t i = 0; i < f->count; i++) {
        scratch[i] = tensors[i].tensor;
    }
    BL_TRY(bl_st_layout(scratch, f->count, bl_st_metadata, 1, align, 0, p->arena, &f->header, &f->header_bytes, &f->file_bytes, err));
    for (size_t i = 0; i < f->count; i++) {
        if (scratch[i].nbytes != bytes_of(&tensors[i])) {
            return bl_fail(err, BL_E_INTERNAL, f->name, scratch[i].name, -1, "planned bytes and shape disagree");
        }
        tensors[i].tensor = scratch[i];
        p->out->tensor_bytes += scratch[i].nbytes;
    }
    qsort(tensors, f->count, sizeof *tensors, by_file);
    f->tensors = tensors;
    p->out->file_bytes += f->file_bytes;
    return BL_OK;
}

static bl_status plan_files(planner *p, bl_error *err)
{
    bl_plan *out = p->out;
    out->file_count = p->o->target == BL_TO_BF16 ? deal_shards(p) : deal_packed(p);
    out->files = bl_arena_array(p->arena, out->file_count, sizeof *out->files);
    bl_tensor *scratch = calloc(out->tensor_count + 1, sizeof *scratch);
    bl_status s = out->files && scratch ? BL_OK : nomem(p, err);
    for (size_t i = 0, file = 0; s == BL_OK && i < out->tensor_count; file++) {
        bl_plan_file *f = &out->files[file];
        while (i + f->count < out->tensor_count && out->tensors[i + f->count].tensor.file == file) {
            f->count++;
        }
        f->name = file_name(p, &out->tensors[i], file);
        s = f->name ? lay_out(p, f, &out->tensors[i], scratch, err) : nomem(p, err);
        i += f->count;
    }
    free(scratch);
    return s;
}

/* The backbone layers of the output: those asked for among those there. */
static bl_status choose_layers(planner *p, bl_error *err)
{
    const bool *have = p->b->slots.present, *want = p->o->layers;
    p->out->present = have;
    if (!want) {
        return BL_OK;
    }
    size_t layers = (size_t)p->c->config.num_hidden_layers, kept = 0;
    bool *both = bl_arena_array(p->arena, layers, sizeof *both);
    if (!both) {
        return nomem(p, err);
    }
    for (size_t i = 0; i < layers; i++) {
        both[i] = want[i] && (!have || have[i]);
        kept += both[i];
    }
    if (kept == 0) {
        return bl_fail(err, BL_E_USAGE, p->c->path, "--layers", -1, "names no layer that is there");
    }
    p->out->present = kept == layers ? NULL : both;
    return BL_OK;
}

bl_status bl_plan_make(const bl_checkpoint *c, const bl_binding *b, const bl_plan_options *o, bl_arena *arena, bl_plan *out,
                       bl_error *err)
{
    *out = (bl_plan){.target = o->target, .dropped = o->drop};
    planner p = {.c = c, .b = b, .o = o, .arena = arena, .out = out};
    p.actions = bl_arena_array(arena, c->tensor_count, sizeof *p.actions);
    out->tensors = bl_arena_array(arena, 2 * b->count, sizeof *out->tensors);
    out->actions = p.actions;
    if (!p.actions || !out->tensors) {
        return nomem(&p, err);
    }
    BL_TRY(choose_layers(&p, err));
    BL_TRY(plan_tensors(&p, err));
    return plan_files(&p, err);
}

uint64_t bl_plan_member_bytes(const bl_plan_tensor *t, size_t i)
{
    const bl_weight *w = t->members[i];
    if (t->cast) {
        return 2 * bl_weight_rows(w) * bl_weight_cols(w);
    }
    return t->scale ? w->scale_nbytes : w->nbytes;
}

uint64_t bl_plan_granule(const bl_plan_tensor *t, size_t i)
{
    const bl_weight *w = t->members[i];
    return t->cast ? BL_VALUE_TILE * 2 * bl_weight_cols(w) : bl_values_granule(w, t->scale);
}
