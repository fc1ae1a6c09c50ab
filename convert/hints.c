#include "convert/hints.h"

#include "formats/names.h"
#include "verify/values.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bl_hints {
    bl_checkpoint *c;
    bl_binding binding;      /* empty for a file of scales alone */
    const bl_weight **order; /* [order_count] the first piece of each slot that has a scale, by name */
    size_t order_count;
    bl_view *views; /* [plan sum_count]; without pieces where there is no hint */
    bl_values values;
    bl_arena arena;
};

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the scale hints");
}

static int by_name(const void *a, const void *b)
{
    const bl_weight *const *v = a, *const *w = b;
    return strcmp((*v)->slot->name, (*w)->slot->name);
}

static bl_status index_weights(bl_hints *h, bl_error *err)
{
    const bl_binding *b = &h->binding;
    h->order = bl_arena_array(&h->arena, b->count, sizeof *h->order);
    if (!h->order) {
        return nomem(err);
    }
    for (size_t i = 0; i < b->count; i += bl_view_pieces(b, i)) {
        if (b->weights[i].scale) {
            h->order[h->order_count++] = &b->weights[i];
        }
    }
    qsort(h->order, h->order_count, sizeof *h->order, by_name);
    return BL_OK;
}

static bl_status open_hints(bl_hints *h, const char *path, bl_error *err)
{
    const char *kept = bl_path_join(&h->arena, path, BL_SCALES_NAME), *packed = bl_path_join(&h->arena, path, "manifest.json");
    if (!kept || !packed) {
        return nomem(err);
    }
    bool file = access(kept, F_OK) == 0 && access(packed, F_OK) != 0; /* what a packed model kept is not all that it has */
    const bl_checkpoint_options any = {.any_generation = true};
    BL_TRY(bl_checkpoint_open(&h->c, file ? kept : path, &any, err));
    if (h->c->kind != BL_SOURCE_FILE) {
        BL_TRY(bl_plan_released_scales(h->c, err));
        BL_TRY(bl_bind(h->c, &h->arena, NULL, NULL, &h->binding, err));
        BL_TRY(index_weights(h, err));
    }
    return bl_values_open(&h->values, h->c, &h->binding, 0, &h->arena, err);
}

bl_status bl_hints_open(bl_hints **out, const char *path, bl_error *err)
{
    bl_hints *h = *out = calloc(1, sizeof *h);
    if (!h) {
        return nomem(err);
    }
    bl_status s = open_hints(h, path, err);
    if (s != BL_OK) {
        bl_hints_close(out);
    }
    return s;
}

void bl_hints_close(bl_hints **hp)
{
    bl_hints *h = *hp;
    if (h) {
        bl_values_close(&h->values);
        bl_checkpoint_close(&h->c);
        bl_arena_reset(&h->arena);
        free(h);
        *hp = NULL;
    }
}

static bl_status wrong(const bl_hints *h, const bl_tensor *t, const bl_slot *s, const char *what, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(h->c, t)->path, t->name, -1, "is no hint for '%s': %s", s->name, what);
}

/* What is to become codes of another kind than the release has, on request, finds no scale of that kind there. */
static bool on_request(const bl_weight *want)
{
    return want->form == BL_FORM_FP8 && (want->slot->kind == BL_SLOT_EXPERT || want->block_rows == 1);
}

/* From a file of scales alone: by name and shape. */
static bl_status find_tensor(bl_hints *h, const bl_weight *want, bl_view *out, bl_error *err)
{
    char name[192];
    const bl_tensor *t = bl_scale_name(name, sizeof name, want->slot->name) ? bl_checkpoint_find(h->c, name) : NULL;
    if (!t) {
        return BL_OK;
    }
    bl_stored grid = bl_weight_stored(want, true);
    if (t->dtype != BL_DT_F8_E8M0 || t->ndim != 2 || t->shape[0] != grid.rows || t->shape[1] != grid.cols) {
        return on_request(want) ? BL_OK : wrong(h, t, want->slot, "an F8_E8M0 grid of another shape is needed", err);
    }
    bl_weight *w = bl_arena_array(&h->arena, 1, sizeof *w);
    if (!w) {
        return nomem(err);
    }
    *w = *want;
    w->tensor = w->scale = t;
    w->scale_offset = t->offset;
    w->scale_nbytes = t->nbytes;
    *out = bl_view_of(w);
    return BL_OK;
}

/* From a checkpoint: any rank's pieces of the same slot. */
static bl_status find_weight(bl_hints *h, const bl_weight *want, bl_view *out, bl_error *err)
{
    const bl_weight **at = bsearch(&want, h->order, h->order_count, sizeof *h->order, by_name);
    if (!at) {
        return BL_OK;
    }
    const bl_weight *w = *at;
    if (w->slot->shape[0] != want->slot->shape[0] || w->slot->shape[1] != want->slot->shape[1]) {
        return wrong(h, w->scale, want->slot, "its weight has another shape", err);
    }
    if (w->form != want->form || w->block_rows != want->block_rows) {
        return on_request(want) ? BL_OK : wrong(h, w->scale, want->slot, "it belongs to codes of another kind than are to be made", err);
    }
    *out = bl_view_cut(w, bl_view_pieces(&h->binding, (size_t)(w - h->binding.weights)), bl_slot_rect(w->slot));
    return BL_OK;
}

const bl_checkpoint *bl_hints_source(const bl_hints *h)
{
    return h->c;
}

bl_status bl_hints_bind(bl_hints *h, const bl_plan *plan, size_t *found, size_t *weights, bl_error *err)
{
    *found = *weights = 0;
    h->views = bl_arena_array(&h->arena, plan->sum_count, sizeof *h->views);
    if (!h->views) {
        return nomem(err);
    }
    size_t expected = 0;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        if (!t->encode || t->scale) {
            continue;
        }
        bl_view want = bl_plan_made(t, 0);
        bl_view *view = &h->views[t->members[0].sum];
        BL_TRY(h->order ? find_weight(h, &want.w, view, err) : find_tensor(h, &want.w, view, err));
        expected += !on_request(&want.w);
        *found += view->count != 0;
        ++*weights;
    }
    if (expected && *found == 0) {
        return bl_fail(err, BL_E_INPUT, h->c->path, NULL, -1, "has no scale of the %zu weight%s to encode", expected, bl_plural(expected));
    }
    return BL_OK;
}

uint64_t bl_hints_scratch(const bl_hints *h, uint64_t n)
{
    return BL_READ_ROOM(n) + 2 * (uint64_t)BL_IO_ALIGN + bl_values_scratch(&h->values, 0);
}

bl_status bl_hints_read(bl_hints *h, size_t sum, uint64_t offset, uint64_t n, uint8_t *scratch, const uint8_t **data, bl_error *err)
{
    uint64_t room = BL_READ_ROOM(n);
    room += (BL_IO_ALIGN - room % BL_IO_ALIGN) % BL_IO_ALIGN;
    *data = NULL;
    return h->views[sum].count ? bl_values_read(&h->values, &h->views[sum], true, offset, n, scratch, scratch + room, data, err) : BL_OK;
}
