#include "convert/outline.h"

static const char *rule_of(bl_cut cut)
{
    static const char *const rules[] = {"whole on every rank that needs it",
                                        "by head",
                                        "by output group",
                                        "by output group (columns)",
                                        "by inner width",
                                        "by inner width (columns)",
                                        "by token",
                                        "whole experts",
                                        "Engram rows"};
    return rules[cut];
}

static void add_files(const bl_plan *plan, bl_outline *out)
{
    for (size_t i = 0; i < plan->file_count; i++) {
        const bl_plan_file *f = &plan->files[i];
        for (int rank = 0; rank < plan->layout->ranks; rank++) {
            if (f->aside) {
                continue;
            }
            if (rank == f->tensors->rank) {
                out->ranks[rank].files++;
                out->ranks[rank].tensors += f->count;
                out->ranks[rank].file_bytes += f->head.file_bytes;
            } else if (bl_plan_names(plan, f->tensors, rank)) {
                out->ranks[rank].shared_bytes += f->head.file_bytes;
            }
        }
    }
}

static void add_classes(const bl_plan *plan, bl_outline *out)
{
    for (int cut = 0; cut <= BL_CUT_TABLE; cut++) {
        out->classes[cut].rule = rule_of((bl_cut)cut);
    }
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        bl_outline_class *k = &out->classes[t->members[0].pieces->slot->cut];
        k->tensors += !t->aside;
        k->bytes += t->aside ? 0 : t->tensor.nbytes;
    }
}

/* Bytes of the source's codes or scales that t is made of. */
static uint64_t source_bytes(const bl_plan_tensor *t)
{
    bl_view v = bl_plan_view(t, 0);
    bl_stored s = bl_weight_stored(&v.w, t->scale);
    return s.rows * s.cols;
}

static void add_split(const bl_plan *plan, bl_outline *out)
{
    static const char *const names[] = {"", "padded to whole blocks", "with a scale for every row", "decoded to BF16"};
    for (int r = BL_REMEDY_PAD; r <= BL_REMEDY_BF16; r++) {
        out->split[r].what = names[r];
    }
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        bl_remedy r = bl_layout_remedy(plan->layout, t->members[0].pieces->slot);
        bool other = r == BL_REMEDY_PAD || (r == BL_REMEDY_EXPAND && t->expand) || (r == BL_REMEDY_BF16 && t->cast);
        if (other) {
            out->split[r].tensors++;
            out->split[r].bytes += t->tensor.nbytes;
            out->split[r].source_bytes += source_bytes(t);
        }
    }
}

/* Every rank's part says the same: a tensor is taken at its first. */
static void add_padding(const bl_plan *plan, bl_outline *out)
{
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const bl_plan_tensor *t = &plan->tensors[i];
        const bl_slot *s = t->members[0].pieces->slot;
        bool rows = (s->cut == BL_CUT_TABLE || s->cut == BL_CUT_VOCAB) && !t->scale && !t->aside;
        bool known = !rows || t->global_shape[0] <= s->shape[0];
        for (size_t k = 0; k < out->padding_count && !known; k++) {
            known = out->padding[k].name == s->name;
        }
        if (!known) {
            out->padding[out->padding_count++] = (bl_outline_padding){
                .name = s->name, .rows = s->shape[0], .rank_rows = t->tensor.shape[0], .padding = t->global_shape[0] - s->shape[0]};
        }
    }
}

static void describe_ranks(const bl_config *c, const bl_layout *l, bl_outline *out)
{
    int width = l->ranks / l->pp, experts = c->n_routed_experts / l->ep, first = 0;
    for (int stage = 0; stage < l->pp; stage++) {
        int layers = l->stage_layers ? l->stage_layers[stage] : c->num_hidden_layers;
        for (int r = 0; r < width; r++) {
            bl_outline_rank *k = &out->ranks[stage * width + r];
            k->stage = stage;
            k->first_layer = first;
            k->layers = layers;
            k->first_expert = r * l->ep / width * experts;
            k->experts = experts;
        }
        first += layers;
    }
}

typedef int (*source_fn)(const bl_config *c, int layer);

static int candidates_of(const bl_config *c, int layer)
{
    int source = c->candidate_source_layer_id;
    return source >= 0 && layer > source && bl_config_is_index_source(c, layer) ? source : -1;
}

/* Note a use by layer of what source made, if that is on another stage. Uses of one source come one after the other. */
static void cross(const bl_layout *l, bl_outline *out, const char *what, int source, int layer)
{
    int from = bl_layout_stage(l, source), to = bl_layout_stage(l, layer);
    if (from == to) {
        return;
    }
    for (size_t i = 0; i < out->crossing_count; i++) {
        bl_crossing *k = &out->crossings[i];
        if (k->what == what && k->layer == source && k->to_stage == to) {
            k->last_user = layer;
            k->users++;
            return;
        }
    }
    out->crossings[out->crossing_count++] = (bl_crossing){
        .what = what, .layer = source, .stage = from, .to_stage = to, .first_user = layer, .last_user = layer, .users = 1};
}

static void add_crossings(const bl_config *c, const bl_plan *plan, bl_outline *out)
{
    static const struct {
        const char *what;
        source_fn source;
    } kinds[] = {{"compressed latents and index keys", bl_config_kv_source},
                 {"selections", bl_config_index_source},
                 {"candidate blocks", candidates_of}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int layer = 0; layer < c->num_hidden_layers; layer++) {
            int source = kinds[k].source(c, layer);
            if (source >= 0 && (!plan->present || plan->present[layer])) {
                cross(plan->layout, out, kinds[k].what, source, layer);
            }
        }
    }
}

bl_status bl_outline_make(const bl_config *c, const bl_plan *plan, bl_arena *arena, bl_outline *out, bl_error *err)
{
    *out = (bl_outline){0};
    out->ranks = bl_arena_array(arena, (size_t)plan->layout->ranks, sizeof *out->ranks);
    out->crossings = bl_arena_array(arena, 3 * (size_t)c->num_hidden_layers, sizeof *out->crossings);
    out->padding = bl_arena_array(arena, (size_t)c->engram_count + 2, sizeof *out->padding);
    if (!out->ranks || !out->crossings || !out->padding) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the outline");
    }
    describe_ranks(c, plan->layout, out);
    add_files(plan, out);
    add_classes(plan, out);
    add_split(plan, out);
    add_padding(plan, out);
    add_crossings(c, plan, out);
    return BL_OK;
}
