#include "convert/plan_build.h"

#include "verify/stream.h"
#include "verify/values.h"

#include <stdio.h>

bl_status bl_plan_nomem(const bl_planner *p, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, p->c->path, NULL, -1, "out of memory for the plan");
}

const char *bl_action_name(bl_action a)
{
    static const char *const names[] = {"none", "copy", "cast", "encode", "recast", "consume", "stack", "unstack", "split", "link", "join", "drop"};
    return a < BL_ACTIONS ? names[a] : "none";
}

static void act(bl_planner *p, const bl_tensor *t, bl_action a)
{
    p->actions[t - p->c->tensors] = a;
}

static bool is_dropped(const bl_planner *p, const bl_slot *s)
{
    if ((s->group == BL_GROUP_DSPARK && (p->out->dropped & BL_DROP_DSPARK)) ||
        (s->group == BL_GROUP_VISION && (p->out->dropped & BL_DROP_VISION))) {
        return true;
    }
    bool backbone = s->group == BL_GROUP_MODEL && s->layer >= 0;
    return backbone && p->out->present && !p->out->present[s->layer];
}

/* The same for all pieces of a weight, and their scales. */
static void act_all(bl_planner *p, bl_plan_source s, bl_action codes, bl_action scale)
{
    for (size_t i = 0; i < s.count; i++) {
        act(p, s.w[i].tensor, codes);
        if (s.w[i].scale) {
            act(p, s.w[i].scale, scale);
        }
    }
}

static bl_status plan_bf16(bl_planner *p, bl_plan_source s, const bl_share *whole, bl_error *err)
{
    bool cast = s.w->form == BL_FORM_FP8 || s.w->form == BL_FORM_FP4;
    bool stacked = s.w->tensor->ndim > s.w->slot->ndim;
    act_all(p, s, stacked ? BL_ACT_UNSTACK : cast ? BL_ACT_CAST : BL_ACT_COPY, cast && !p->o->save_scales ? BL_ACT_CONSUME : BL_ACT_COPY);
    return bl_plan_single(p, s, whole, cast, err);
}

static bl_status plan_packed(bl_planner *p, bl_plan_source s, const bl_share *share, bl_error *err)
{
    bool expert = s.w->slot->expert >= 0, stacked = s.w->tensor->ndim > s.w->slot->ndim;
    bool cut = share->rows != share->all_rows || share->cols != share->all_cols;
    bool link = bl_plan_links(p, s.w, share);
    bool cast = s.w->form == BL_FORM_FP8 && bl_layout_remedy(p->out->layout, s.w->slot) == BL_REMEDY_BF16;
    bool first = p->actions[s.w->tensor - p->c->tensors] == BL_ACT_NONE;
    bl_action a = link ? BL_ACT_LINK : cast ? BL_ACT_CAST : expert && !stacked ? BL_ACT_STACK : cut ? BL_ACT_SPLIT : BL_ACT_COPY;
    act_all(p, s, a, cast ? BL_ACT_COPY : a);
    if (cast && first) {
        BL_TRY(bl_plan_kept_scale(p, s, err));
    }
    return expert ? bl_plan_stacked(p, s, share, err) : bl_plan_single(p, s, share, cast, err);
}

/* The form to encode a weight to; 0 when it comes out as it is: BF16 and F32 of the release, and codes of the right kind. */
static bl_form encoded_form(const bl_planner *p, const bl_weight *w)
{
    bl_form form = w->form == BL_FORM_BF16 ? BL_FORM_FP4 : w->form;
    bool regrouped = w->form == BL_FORM_FP8 && (int)w->block_rows != p->o->fp8_block_rows;
    switch (w->slot->kind) {
    case BL_SLOT_DENSE:
        return w->form == BL_FORM_BF16 || regrouped ? BL_FORM_FP8 : 0;
    case BL_SLOT_EXPERT:
        form = p->o->experts ? p->o->experts : form;
        return form == w->form && !regrouped ? 0 : form;
    default:
        return 0;
    }
}

static bl_status plan_released(bl_planner *p, bl_plan_source s, const bl_share *whole, bl_error *err)
{
    bl_form form = encoded_form(p, s.w);
    bool stacked = s.w->tensor->ndim > s.w->slot->ndim;
    bl_action a = form ? (s.w->form == BL_FORM_BF16 ? BL_ACT_ENCODE : BL_ACT_RECAST) : stacked ? BL_ACT_UNSTACK : BL_ACT_COPY;
    act_all(p, s, a, a);
    p->out->fp8 += (form ? form : s.w->form) == BL_FORM_FP8;
    p->out->fp4 += (form ? form : s.w->form) == BL_FORM_FP4;
    return form ? bl_plan_encoded(p, s, whole, form, err) : bl_plan_single(p, s, whole, false, err);
}

/* What packing did to w, to be undone. */
static bl_remedy remedy_of(const bl_planner *p, const bl_weight *w)
{
    char name[192];
    bl_remedy r = p->c->manifest ? bl_layout_remedy(&p->c->manifest->layout, w->slot) : BL_REMEDY_NONE;
    bool expanded = r == BL_REMEDY_EXPAND && w->form == BL_FORM_FP8 && (int)w->block_rows != p->c->config.fp8_block_rows;
    bool decoded = r == BL_REMEDY_BF16 && w->form == BL_FORM_BF16 && p->o->kept &&
                   bl_scale_name(name, sizeof name, w->slot->name) && bl_checkpoint_find(p->o->kept, name);
    return expanded || decoded ? r : BL_REMEDY_NONE;
}

static bl_status plan_merged(bl_planner *p, bl_plan_source s, const bl_share *whole, bl_error *err)
{
    bl_remedy remedy = remedy_of(p, s.w);
    if (remedy) {
        bl_action back = remedy == BL_REMEDY_EXPAND ? BL_ACT_RECAST : BL_ACT_ENCODE;
        act_all(p, s, back, back);
        return bl_plan_encoded(p, s, whole, BL_FORM_FP8, err);
    }
    bl_action a = s.w->tensor->ndim > s.w->slot->ndim ? BL_ACT_UNSTACK : s.count > 1 ? BL_ACT_JOIN : BL_ACT_COPY;
    act_all(p, s, a, a);
    return bl_plan_single(p, s, whole, false, err);
}

static bl_status plan_weight(bl_planner *p, bl_plan_source s, const bl_share *share, bl_error *err)
{
    switch (p->o->target) {
    case BL_TO_BF16:
        return plan_bf16(p, s, share, err);
    case BL_TO_RELEASED:
        return plan_released(p, s, share, err);
    case BL_TO_MERGED:
        return plan_merged(p, s, share, err);
    case BL_TO_PACKED:
        break;
    }
    return plan_packed(p, s, share, err);
}

static bl_status check_width(const bl_planner *p, const bl_weight *w, bl_error *err)
{
    const bl_config *c = &p->c->config;
    bool codes = w->form == BL_FORM_FP8 || w->form == BL_FORM_FP4 || (p->o->target == BL_TO_RELEASED && encoded_form(p, w));
    bool stripes = c->earlier && p->o->target == BL_TO_RELEASED; /* of a block's rows, held whole */
    uint64_t most = stripes ? BL_STREAM_TILE / (uint64_t)p->o->fp8_block_rows : BL_VALUE_MAX_COLS;
    if (codes && bl_weight_cols(w) > most) {
        return bl_fail(err, BL_E_INPUT, p->c->path, w->tensor->name, -1, "rows of %llu elements are too wide, the most is %llu",
                       (unsigned long long)bl_weight_cols(w), (unsigned long long)most);
    }
    if (w->form == BL_FORM_TABLE && bl_weight_row_bytes(w) > BL_STREAM_TILE) { /* rows are dealt and hashed whole */
        return bl_fail(err, BL_E_INPUT, p->c->path, w->tensor->name, -1, "rows of %llu bytes are too wide, the most is %llu",
                       (unsigned long long)bl_weight_row_bytes(w), (unsigned long long)BL_STREAM_TILE);
    }
    return BL_OK;
}

/* What rank gets of a slot; false when nothing. What its stage shares is planned with the rank that has it. */
static bool share_of(const bl_planner *p, const bl_slot *s, int rank, bl_share *share)
{
    const bl_config *c = &p->c->config;
    bool drafts = c->num_nextn_predict_layers > 0 && !(p->out->dropped & BL_DROP_DSPARK);
    return !is_dropped(p, s) && bl_share_of(c, p->out->layout, drafts, s, rank, share) && share->owner == rank;
}

/* The number of tensors is not known before each rank's share of each weight is. */
static bl_status make_room(bl_planner *p, bl_error *err)
{
    size_t count = 0;
    bl_share share;
    for (int rank = 0; rank < p->out->layout->ranks; rank++) {
        for (size_t i = 0; i < p->b->count; i += bl_view_pieces(p->b, i)) {
            const bl_slot *s = p->b->weights[i].slot;
            count += share_of(p, s, rank, &share) &&
                     (p->o->target != BL_TO_PACKED || s->expert < 0 || s->expert == share.first_expert);
        }
    }
    p->out->tensors = bl_arena_array(p->arena, 2 * count, sizeof *p->out->tensors);
    return p->out->tensors ? BL_OK : bl_plan_nomem(p, err);
}

static bl_status plan_rank(bl_planner *p, int rank, bl_error *err)
{
    for (size_t i = 0, n; i < p->b->count; i += n) {
        bl_plan_source s = {.w = &p->b->weights[i], .count = n = bl_view_pieces(p->b, i)};
        bl_share share;
        if (is_dropped(p, s.w->slot)) {
            act_all(p, s, BL_ACT_DROP, BL_ACT_DROP);
        } else if (share_of(p, s.w->slot, rank, &share)) {
            BL_TRY(check_width(p, s.w, err));
            BL_TRY(plan_weight(p, s, &share, err));
        }
    }
    return BL_OK;
}

static bl_status plan_tensors(bl_planner *p, bl_error *err)
{
    BL_TRY(make_room(p, err));
    for (int rank = 0; rank < p->out->layout->ranks; rank++) {
        BL_TRY(plan_rank(p, rank, err));
    }
    for (size_t i = 0; i < p->c->tensor_count; i++) {
        if (p->actions[i] == BL_ACT_NONE) {
            return bl_fail(err, BL_E_INTERNAL, p->c->path, p->c->tensors[i].name, -1, "no action was planned for this tensor");
        }
        p->out->action_count[p->actions[i]]++;
    }
    return BL_OK;
}

/* The backbone layers of the output: those asked for among those there. */
static bl_status choose_layers(bl_planner *p, bl_error *err)
{
    const bool *have = p->b->slots.present, *want = p->o->layers;
    p->out->present = have;
    if (!want) {
        return BL_OK;
    }
    size_t layers = (size_t)p->c->config.num_hidden_layers, kept = 0;
    bool *both = bl_arena_array(p->arena, layers, sizeof *both);
    if (!both) {
        return bl_plan_nomem(p, err);
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

bl_status bl_plan_released_scales(const bl_checkpoint *c, bl_error *err)
{
    bl_split split = c->manifest ? c->manifest->layout.split : BL_SPLIT_NONE;
    return split != BL_SPLIT_EXPAND && split != BL_SPLIT_BF16
               ? BL_OK
               : bl_fail(err, BL_E_USAGE, c->path, NULL, -1, "was packed with --split %s, some of its scales are not those of the release: "
                         "'baleen merge' brings them back, take what it makes", bl_split_name(split));
}

bl_status bl_plan_make(const bl_checkpoint *c, const bl_binding *b, const bl_plan_options *o, bl_arena *arena, bl_plan *out,
                       bl_error *err)
{
    bool back = o->target == BL_TO_RELEASED && b->generation == BL_GEN_V4;
    if (c->config.earlier && o->target != BL_TO_BF16 && o->target != BL_TO_MERGED && !back) {
        return bl_fail(err, BL_E_INPUT, c->path, NULL, -1, "is a %s checkpoint: %s", bl_generation_name(b->generation),
                       o->target == BL_TO_PACKED ? "packed models are of DeepSeek-V4.1"
                                                 : "those are cast to BF16 only, back to codes go DeepSeek-V4 and V4.1");
    }
    *out = (bl_plan){.target = o->target, .fp8_block_rows = o->fp8_block_rows, .dropped = c->config.earlier ? 0 : o->drop,
                      .layout = o->layout ? o->layout : &bl_layout_single};
    bl_planner p = {.c = c, .b = b, .o = o, .arena = arena, .out = out};
    p.actions = bl_arena_array(arena, c->tensor_count, sizeof *p.actions);
    out->actions = p.actions;
    if (!p.actions) {
        return bl_plan_nomem(&p, err);
    }
    BL_TRY(bl_layout_check(&c->config, out->layout, &b->slots, c->path, err));
    BL_TRY(choose_layers(&p, err));
    BL_TRY(plan_tensors(&p, err));
    return bl_plan_files(&p, err);
}
