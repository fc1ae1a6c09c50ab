#include "verify/bind.h"

#include "formats/names.h"
#include "verify/derive.h"
#include "verify/records.h"
#include "verify/share.h"
#include "verify/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct binder {
    const bl_checkpoint *c;
    bl_binding *out;
    const bl_layout *layout;
    bool *used; /* [tensor_count] */
    size_t calls;   /* for tensors, by the slots and the ranks that were opened */
    bl_problem_fn on_problem;
    void *arg;
} binder;

/* A problem of a tensor that the checkpoint has (t) or lacks (name only). */
static bl_status problem(binder *b, bl_error *err, const bl_tensor *t, const char *name, const char *text)
{
    return bl_problem(b->on_problem, b->arg, err, t ? bl_checkpoint_file(b->c, t)->path : b->c->path, name, "%s", text);
}

static const bl_tensor *use(binder *b, const char *name, int rank)
{
    const bl_tensor *t = bl_checkpoint_find_rank(b->c, name, rank);
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

/* Stored shape of a share in a form, and of its scale. Returns the scale's ndim (0 = none). */
static uint32_t stored_shapes(const bl_slot *s, const bl_share *share, bl_form form, uint64_t block_rows, uint64_t shape[2],
                              uint64_t grid[2])
{
    uint64_t cols = share->cols;
    shape[0] = share->rows;
    shape[1] = form == BL_FORM_FP4 ? cols / 2 : cols;
    grid[0] = bl_pieces(share->rows, block_rows);
    grid[1] = bl_pieces(cols, BL_BLOCK);
    if (s->ndim == 1) {
        shape[1] = 1;
    }
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

/* What a packed model records of w, or of its scale. */
static bl_status check_records(binder *b, const bl_weight *w, const bl_share *share, bool scale, bool stacked, bool *ok, bl_error *err)
{
    char text[768];
    const bl_tensor *t = scale ? w->scale : w->tensor;
    if (bl_records_agree(b->c, w, share, scale, stacked, text, sizeof text)) {
        return BL_OK;
    }
    *ok = false;
    return problem(b, err, t, t->name, text);
}

static bl_status bind_scale(binder *b, const char *name, int rank, uint64_t experts, const uint64_t grid[2], bl_weight *w, bool *ok,
                            bl_error *err)
{
    char scale[256], text[512];
    bl_scale_name(scale, sizeof scale, name);
    w->scale = use(b, scale, rank);
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
static void excuse_scale(binder *b, const char *weight, int rank)
{
    char scale[256];
    if (bl_scale_name(scale, sizeof scale, weight)) {
        use(b, scale, rank);
    }
}

/* Where the bytes of the part are. A stacked tensor has one slice for each of its experts. */
static void place(bl_weight *w, const bl_share *share, bool stacked)
{
    uint64_t parts = stacked ? (uint64_t)share->experts : 1, slice = stacked ? (uint64_t)(w->slot->expert - share->first_expert) : 0;
    bl_stored codes = bl_weight_stored(w, false);
    w->nbytes = codes.rows * codes.pitch;
    w->offset = w->tensor->offset + slice * (w->tensor->nbytes / parts);
    if (w->scale) {
        bl_stored grid = bl_weight_stored(w, true);
        w->scale_nbytes = grid.rows * grid.pitch;
        w->scale_offset = w->scale->offset + slice * (w->scale->nbytes / parts);
    }
}

/* Earlier pieces of the same slot are the last ones added. */
static bool is_replica(const binder *b, const bl_weight *w)
{
    for (size_t i = b->out->count; i > 0 && b->out->weights[i - 1].slot == w->slot; i--) {
        if (memcmp(&b->out->weights[i - 1].part, &w->part, sizeof w->part) == 0) {
            return true;
        }
    }
    return false;
}

/* stacked: slot s is one slice of t. */
static bl_status bind_slot(binder *b, const bl_slot *s, const bl_share *share, int rank, const bl_tensor *t, bool stacked, bl_error *err)
{
    bl_weight w = {.slot = s, .tensor = t, .part = share->part};
    bool ok = true;
    bl_weight_reform(&w, form_of(s->kind, t->dtype));
    if (!w.form) {
        char text[160];
        excuse_scale(b, t->name, rank);
        snprintf(text, sizeof text, "has dtype %s, %s is needed", bl_dtype_name(t->dtype), dtypes_of(s->kind));
        return problem(b, err, t, t->name, text);
    }
    uint64_t shape[2], grid[2], experts = stacked ? (uint64_t)share->experts : 0;
    bl_remedy remedy = bl_layout_remedy(b->layout, s);
    if (w.form == BL_FORM_FP8) {
        w.block_rows = remedy == BL_REMEDY_EXPAND ? 1 : (uint32_t)b->c->config.fp8_block_rows;
    }
    if (w.form == BL_FORM_FP8 && remedy == BL_REMEDY_BF16) {
        return problem(b, err, t, t->name, "has dtype F8_E4M3, but the layout cuts it inside a scale block: BF16 is needed");
    }
    w.pad_cols = share->cols - share->part.cols;
    bl_layout_fine(b->layout, s, &w.fine_rows, &w.fine_cols);
    uint32_t scale_dims = stored_shapes(s, share, w.form, w.block_rows ? w.block_rows : 1, shape, grid);
    if (w.form == BL_FORM_FP4 && s->shape[1] % 32 != 0) {
        return problem(b, err, t, t->name, "packed fp4 needs an input width that is a multiple of 32");
    }
    BL_TRY(check_shape(b, err, t, experts, shape, s->ndim, NULL, &ok));
    if (ok) {
        BL_TRY(check_records(b, &w, share, false, stacked, &ok, err));
    }
    if (scale_dims) {
        BL_TRY(bind_scale(b, t->name, rank, experts, grid, &w, &ok, err));
    }
    if (ok && scale_dims) {
        BL_TRY(check_records(b, &w, share, true, stacked, &ok, err));
    }
    if (!ok) {
        return BL_OK;
    }
    place(&w, share, stacked);
    w.replica = is_replica(b, &w);
    b->out->fp8 += w.form == BL_FORM_FP8;
    b->out->fp4 += w.form == BL_FORM_FP4;
    b->out->weights[b->out->count++] = w;
    return BL_OK;
}

static uint64_t experts_of(const bl_checkpoint *c, const bl_slot *s)
{
    return (uint64_t)(s->group == BL_GROUP_DSPARK ? c->config.dspark_n_routed_experts : c->config.n_routed_experts);
}

/* rank < 0: any. */
static bool name_excused(const bl_checkpoint *c, const char *name, int rank)
{
    return bl_checkpoint_unread(c, name) || (rank < 0 ? bl_checkpoint_find(c, name) : bl_checkpoint_find_rank(c, name, rank)) != NULL;
}

static bool excused(const bl_checkpoint *c, const bl_slots *slots, const bl_slot *s, int rank)
{
    char stacked[160];
    if (s->expert >= 0) {
        bl_stacked_name(stacked, sizeof stacked, slots, s, false);
    }
    return name_excused(c, s->name, rank) || (s->expert >= 0 && name_excused(c, stacked, rank));
}

bool bl_slot_excused(const bl_checkpoint *c, const bl_slots *slots, const bl_slot *s)
{
    return excused(c, slots, s, -1);
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
static bl_status lacking(binder *b, const bl_slot *s, int rank, bl_error *err)
{
    if (excused(b->c, &b->out->slots, s, rank)) {
        char stacked[160];
        excuse_scale(b, s->name, rank);
        if (s->expert >= 0) {
            bl_stacked_name(stacked, sizeof stacked, &b->out->slots, s, false);
            excuse_scale(b, stacked, rank);
        }
        return BL_OK;
    }
    if (s->expert >= 0 && experts_in_doubt(b, s)) {
        excuse_scale(b, s->name, rank);
        return BL_OK;
    }
    char text[80];
    snprintf(text, sizeof text, "is missing on rank %d: the config calls for it", rank);
    return problem(b, err, NULL, s->name, b->layout->ranks > 1 ? text : "is missing: the config calls for it");
}

static bool opened(const bl_checkpoint *c, int rank)
{
    for (size_t i = 0; i < c->rank_count; i++) {
        if (c->ranks[i].rank == rank) {
            return true;
        }
    }
    return false;
}

/* The i-th rank that was opened; a checkpoint without ranks counts as one. False when it holds nothing of s that is not another's. */
static bool share_of(const binder *b, const bl_slot *s, size_t i, int *rank, bl_share *share)
{
    *rank = b->c->rank_count ? b->c->ranks[i].rank : 0;
    return bl_share_of(&b->c->config, b->layout, b->c->config.num_nextn_predict_layers > 0, s, *rank, share) &&
           (share->owner == *rank || !opened(b->c, share->owner));
}

static bl_status bind_all(binder *b, bl_error *err)
{
    const bl_slots *slots = &b->out->slots;
    size_t ranks = b->c->rank_count ? b->c->rank_count : 1;
    for (size_t i = 0; i < slots->count; i++) {
        const bl_slot *s = &slots->slots[i];
        for (size_t k = 0; k < ranks; k++) {
            int rank;
            bl_share share;
            if (!share_of(b, s, k, &rank, &share)) {
                continue;
            }
            const bl_tensor *t = use(b, s->name, rank);
            bool stacked = !t && s->expert >= 0;
            if (stacked) {
                char name[160];
                bl_stacked_name(name, sizeof name, slots, s, false);
                t = use(b, name, rank);
            }
            BL_TRY(t ? bind_slot(b, s, &share, rank, t, stacked, err) : lacking(b, s, rank, err));
        }
    }
    b->out->missing = b->calls - b->out->count;
    return BL_OK;
}

/* Room for every weight that bind_all may add. */
static bl_status make_room(binder *b, bl_arena *arena, bl_error *err)
{
    const bl_slots *slots = &b->out->slots;
    for (size_t k = 0; k < (b->c->rank_count ? b->c->rank_count : 1); k++) {
        for (size_t i = 0; i < slots->count; i++) {
            int rank;
            bl_share share;
            b->calls += share_of(b, &slots->slots[i], k, &rank, &share);
        }
    }
    b->out->weights = bl_arena_array(arena, b->calls, sizeof *b->out->weights);
    return b->out->weights ? BL_OK : bl_fail(err, BL_E_NOMEM, b->c->path, NULL, -1, "out of memory");
}

static bl_status unused(binder *b, bl_error *err)
{
    for (size_t i = 0; i < b->c->tensor_count; i++) {
        const bl_tensor *t = &b->c->tensors[i];
        if (b->used[i]) {
            continue;
        }
        size_t stem = bl_stem(t->name, ".scale");
        char text[512];
        if (stem) {
            snprintf(text, sizeof text, "orphan scale: no fp8 or fp4 weight '%.*s.weight' goes with it", (int)(stem < 300 ? stem : 300),
                     t->name);
        } else {
            const bl_rank_manifest *r = b->layout->ranks > 1 ? bl_checkpoint_file(b->c, t)->rank : NULL;
            size_t at = (size_t)snprintf(text, sizeof text, "unknown tensor: nothing in the config calls for it");
            if (r) {
                snprintf(text + at, sizeof text - at, " on rank %d", r->rank);
            }
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
    binder b = {.c = c, .out = out, .layout = &bl_layout_single, .on_problem = on_problem, .arg = arg};
    bl_status s;
    if (c->rank_count) {
        bl_error e;
        bl_error_clear(&e);
        b.layout = &c->manifest->layout;
        s = bl_layout_check(&c->config, b.layout, &out->slots, c->path, &e);
        if (s != BL_OK) {
            out->missing = 1;
            return bl_problem(on_problem, arg, err, c->path, "layout", "%s", e.message);
        }
    }
    b.used = calloc(c->tensor_count + 1, sizeof *b.used);
    s = b.used ? make_room(&b, arena, err) : bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
    if (s == BL_OK) {
        s = bind_all(&b, err);
    }
    if (s == BL_OK) {
        s = unused(&b, err);
    }
    free(b.used);
    return s;
}
