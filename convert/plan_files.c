/* Planning: which file each tensor goes to, and where in it. */
#include "convert/plan_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKED_ALIGN 4096u
#define ENGRAM_ALIGN (2u << 20)

/* Bytes of an output tensor before layout. */
static uint64_t bytes_of(const bl_plan_tensor *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->member_count; i++) {
        n += bl_plan_member_bytes(t, i);
    }
    return n;
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

/* Scales kept aside go to one file behind the shards; leaves the tensors sorted by file. Returns the number of files. */
static size_t deal_aside(bl_planner *p, size_t shards)
{
    bool any = false;
    for (size_t i = 0; i < p->out->tensor_count; i++) {
        bl_plan_tensor *t = &p->out->tensors[i];
        t->tensor.file = t->aside ? (uint32_t)shards : t->tensor.file;
        any |= t->aside;
    }
    if (any) {
        qsort(p->out->tensors, p->out->tensor_count, sizeof *p->out->tensors, by_file);
    }
    return shards + any;
}

/* Fill shards in model order up to the cap. Returns the number of files. */
static size_t deal_shards(bl_planner *p)
{
    uint64_t filled = 0;
    size_t shard = 0;
    for (size_t i = 0; i < p->out->tensor_count; i++) {
        bl_plan_tensor *t = &p->out->tensors[i];
        uint64_t n = t->aside ? 0 : bytes_of(t);
        bool bound = t->encode && t->scale; /* made with the tensor before it */
        if (filled && filled + n > p->o->shard_size && !bound) {
            shard++;
            filled = 0;
        }
        t->tensor.file = (uint32_t)shard;
        filled += n;
    }
    return deal_aside(p, shard + 1);
}

/* Where a linked tensor stays. */
static const bl_tensor *origin(const bl_plan_tensor *t)
{
    const bl_weight *w = t->members[0].pieces;
    return t->scale ? w->scale : w->tensor;
}

/* Packed: the number of a tensor's file: rank by rank the backbone layers, draft stages, Engram tables by layer, the rest, and what
 * is linked by file of the source. */
static uint32_t packed_key(const bl_planner *p, const bl_plan_tensor *t)
{
    const bl_weight *w = t->members[0].pieces;
    if (t->aside) {
        return UINT32_MAX; /* behind all ranks */
    }
    uint32_t layers = (uint32_t)(p->c->config.num_hidden_layers + p->c->config.num_nextn_predict_layers);
    uint32_t first = (uint32_t)t->rank * (2 * layers + 1 + (uint32_t)p->c->file_count);
    if (t->linked) {
        return first + 2 * layers + 1 + origin(t)->file;
    }
    if (w->form == BL_FORM_TABLE) {
        return first + layers + (uint32_t)w->slot->layer;
    }
    return first + (w->slot->layer >= 0 ? (uint32_t)w->slot->layer : 2 * layers);
}

/* Give the packed files consecutive numbers; leaves the tensors sorted by file. Returns the number of files. */
static size_t deal_packed(bl_planner *p)
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

/* shards: how many of the files are a part of the checkpoint. */
static char *file_name(const bl_planner *p, const bl_plan_tensor *first, size_t index, size_t shards)
{
    char name[320], folder[16];
    const bl_weight *w = first->members[0].pieces;
    int layers = p->c->config.num_hidden_layers;
    bl_rank_folder(folder, first->rank);
    if (first->aside) {
        snprintf(name, sizeof name, BL_SCALES_NAME);
    } else if (p->o->target != BL_TO_PACKED) {
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, shards);
    } else if (first->linked) {
        const char *source = bl_checkpoint_file(p->c, origin(first))->name, *slash = strrchr(source, '/');
        snprintf(name, sizeof name, "%s/%s", folder, slash ? slash + 1 : source);
    } else if (w->form == BL_FORM_TABLE) {
        snprintf(name, sizeof name, "%s/engram-%02d.safetensors", folder, w->slot->layer);
    } else if (w->slot->layer < 0) {
        snprintf(name, sizeof name, "%s/rest.safetensors", folder);
    } else if (w->slot->layer < layers) {
        snprintf(name, sizeof name, "%s/layer-%02d.safetensors", folder, w->slot->layer);
    } else {
        snprintf(name, sizeof name, "%s/mtp-%02d.safetensors", folder, w->slot->layer - layers);
    }
    return bl_arena_strndup(p->arena, name, strlen(name));
}

/* ---- places */

/* Wide elements first, so that all are aligned; else in the order of planning, where a scale follows its codes: the offset holds
 * it until the layout is made. */
static int by_width(const void *a, const void *b)
{
    const bl_plan_tensor *s = a, *t = b;
    unsigned m = bl_dtype_bits(s->tensor.dtype), n = bl_dtype_bits(t->tensor.dtype);
    return m != n ? (m > n ? -1 : 1) : s->tensor.offset < t->tensor.offset ? -1 : s->tensor.offset > t->tensor.offset;
}

/* A file of the source: everything is where it is there. */
static void lay_out_linked(bl_planner *p, bl_plan_file *f, bl_plan_tensor *tensors)
{
    f->linked = true;
    f->source = origin(tensors)->file;
    f->head.file_bytes = p->c->files[f->source].file_bytes;
    for (size_t i = 0; i < f->count; i++) {
        tensors[i].tensor.offset = origin(&tensors[i])->offset;
        tensors[i].tensor.nbytes = origin(&tensors[i])->nbytes;
        p->out->tensor_bytes += tensors[i].tensor.nbytes;
    }
    qsort(tensors, f->count, sizeof *tensors, by_file);
    f->tensors = tensors;
}

static bl_status lay_out(bl_planner *p, bl_plan_file *f, bl_plan_tensor *tensors, bl_tensor *scratch, bl_error *err)
{
    if (tensors[0].linked) {
        lay_out_linked(p, f, tensors);
        return BL_OK;
    }
    uint32_t align = tensors[0].members[0].pieces->form == BL_FORM_TABLE && p->o->target == BL_TO_PACKED ? ENGRAM_ALIGN : PACKED_ALIGN;
    bool encodes = p->o->target == BL_TO_RELEASED;
    for (size_t i = 0; i < f->count; i++) {
        encodes |= tensors[i].encode != 0;
    }
    for (size_t i = 0; encodes && i < f->count; i++) {
        tensors[i].tensor.offset = i;
    }
    if (encodes) {
        qsort(tensors, f->count, sizeof *tensors, by_width);
    }
    for (size_t i = 0; i < f->count; i++) {
        scratch[i] = tensors[i].tensor;
    }
    BL_TRY(bl_st_layout(scratch, f->count, bl_st_metadata, 1, align, encodes, p->arena, &f->head, err));
    for (size_t i = 0; i < f->count; i++) {
        if (scratch[i].nbytes != bytes_of(&tensors[i])) {
            return bl_fail(err, BL_E_INTERNAL, f->name, scratch[i].name, -1, "planned bytes and shape disagree");
        }
        tensors[i].tensor = scratch[i];
        p->out->tensor_bytes += tensors[i].aside ? 0 : scratch[i].nbytes;
        p->out->aside_count += tensors[i].aside;
    }
    qsort(tensors, f->count, sizeof *tensors, by_file);
    f->tensors = tensors;
    p->out->file_bytes += f->head.file_bytes;
    return BL_OK;
}

bl_status bl_plan_files(bl_planner *p, bl_error *err)
{
    bl_plan *out = p->out;
    out->file_count = p->o->target != BL_TO_PACKED ? deal_shards(p) : deal_packed(p);
    out->files = bl_arena_array(p->arena, out->file_count, sizeof *out->files);
    const bl_plan_tensor *last = &out->tensors[out->tensor_count ? out->tensor_count - 1 : 0];
    bl_tensor *scratch = calloc(out->tensor_count + 1, sizeof *scratch);
    bl_status s = out->files && scratch ? BL_OK : bl_plan_nomem(p, err);
    for (size_t i = 0, file = 0; s == BL_OK && i < out->tensor_count; file++) {
        bl_plan_file *f = &out->files[file];
        while (i + f->count < out->tensor_count && out->tensors[i + f->count].tensor.file == file) {
            f->count++;
        }
        f->aside = out->tensors[i].aside;
        f->name = file_name(p, &out->tensors[i], file, out->file_count - (last->aside ? 1 : 0));
        s = f->name ? lay_out(p, f, &out->tensors[i], scratch, err) : bl_plan_nomem(p, err);
        i += f->count;
    }
    free(scratch);
    return s;
}

