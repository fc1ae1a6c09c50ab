#include "runtime/fit.h"

#include "runtime/cache.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "verify/share.h"

#include <string.h>

/* How a weight of an earlier generation is cut: such models are not packed here, so that these are estimates by what servers do. */
enum { WHOLE, OVER_TP, OVER_EP };

enum { MOST_DEVICES = 64, MOST_STAGES = 4, MOST_TP = 8 };

static bl_status nomem(const bl_fit_model *m, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, m->path, NULL, -1, "out of memory");
}

/* ---- what there is */

static int divide_by_name(const char *name)
{
    static const char *const wide[] = {"embed", "head.weight", ".q_b_proj.", ".kv_b_proj.", ".o_proj.", ".wq_b.", ".wo_a.", ".wo_b.",
                                       ".gate_proj.", ".up_proj.", ".down_proj.", ".shared_experts."};
    if (strstr(name, ".experts.")) {
        return OVER_EP;
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide && !strstr(name, ".indexer."); i++) {
        if (strstr(name, wide[i])) {
            return OVER_TP;
        }
    }
    return WHOLE;
}

static void ignore(void *arg, const bl_error *problem)
{
    (void)arg;
    (void)problem;
}

static bl_status open_earlier(bl_fit_model *m, const bl_checkpoint *c, bl_arena *arena, bl_error *err)
{
    bl_binding b;
    if (c->unread_count || c->unread_unknown) {
        return bl_fail(err, BL_E_INPUT, m->path, NULL, -1,
                       "%zu tensors are in shards that are not here: of a generation before V4.1 only the shards' headers tell sizes",
                       c->unread_count);
    }
    BL_TRY(bl_bind(c, arena, NULL, NULL, &b, err));
    m->items = bl_arena_array(arena, b.count, sizeof *m->items);
    if (!m->items) {
        return nomem(m, err);
    }
    for (size_t i = 0; i < b.count; i++) {
        const char *name = b.weights[i].tensor->name;
        m->items[m->count++] = (bl_fit_item){.w = b.weights[i], .class = bl_class_of(m->config, name), .divide = divide_by_name(name)};
    }
    return BL_OK;
}

/* What a slot is stored as when nobody has seen its tensor. */
static bl_form declared_form(const bl_config *c, const bl_slot *s)
{
    switch (s->kind) {
    case BL_SLOT_F32:
        return BL_FORM_F32;
    case BL_SLOT_DENSE:
        return c->quantized ? BL_FORM_FP8 : BL_FORM_BF16;
    case BL_SLOT_EXPERT:
        return !c->quantized ? BL_FORM_BF16 : c->experts_fp4 ? BL_FORM_FP4 : BL_FORM_FP8;
    case BL_SLOT_TABLE:
        return BL_FORM_TABLE;
    default:
        return BL_FORM_BF16;
    }
}

static bl_status open_slots(bl_fit_model *m, const bl_checkpoint *c, bl_arena *arena, bl_error *err)
{
    bl_binding b;
    BL_TRY(bl_bind(c, arena, ignore, NULL, &b, err)); /* verify's business is what is wrong with the tensors */
    BL_TRY(bl_slots_build(m->config, m->path, arena, &m->slots, err));
    m->items = bl_arena_array(arena, m->slots.count, sizeof *m->items);
    if (!m->items) {
        return nomem(m, err);
    }
    for (size_t i = 0, k = 0; i < m->slots.count; i++) {
        const bl_slot *s = &m->slots.slots[i];
        if (m->slots.present && s->group == BL_GROUP_MODEL && s->layer >= 0 && !m->slots.present[s->layer]) {
            continue;
        }
        bl_fit_item *item = &m->items[m->count++];
        *item = (bl_fit_item){.w = {.slot = s}, .class = bl_class_of(m->config, s->name)};
        bl_weight_reform(&item->w, declared_form(m->config, s));
        if (item->w.form == BL_FORM_FP8) {
            item->w.block_rows = (uint32_t)m->config->fp8_block_rows;
        }
        while (k < b.count && b.weights[k].slot->order < s->order) {
            k++;
        }
        if (k < b.count && b.weights[k].slot->order == s->order) {
            item->w.form = b.weights[k].form;
            item->w.block_rows = b.weights[k].block_rows;
            item->w.block_cols = b.weights[k].block_cols;
        } else {
            m->assumed++;
        }
    }
    return BL_OK;
}

bl_status bl_fit_open(bl_fit_model *m, const bl_checkpoint *c, bl_arena *arena, bl_error *err)
{
    *m = (bl_fit_model){.config = &c->config, .path = c->name, .serves = !c->config.earlier};
    if (!c->has_config) {
        return bl_fail(err, BL_E_INPUT, c->name, NULL, -1, "has no config.json: nothing says how its tensors would be dealt");
    }
    return m->serves ? open_slots(m, c, arena, err) : open_earlier(m, c, arena, err);
}

/* ---- dealing it */

static bool is_dropped(const bl_fit_options *o, const bl_slot *s)
{
    return (s->group == BL_GROUP_DSPARK && (o->drop & BL_DROP_DSPARK)) || (s->group == BL_GROUP_VISION && (o->drop & BL_DROP_VISION));
}

/* Bytes of a weight with these rows and columns, and of its scales. */
static uint64_t bytes_of(const bl_fit_item *item, uint64_t rows, uint64_t cols)
{
    bl_weight w = item->w;
    w.part = (bl_rect){.rows = rows, .cols = cols};
    bool scaled = w.block_rows != 0;
    return rows * bl_weight_row_bytes(&w) + (scaled ? bl_weight_scale_rows(&w) * bl_weight_scale_row_bytes(&w) : 0);
}

/* Bytes that the first rank of a stage holds of an item. */
static uint64_t share_of(const bl_fit_model *m, const bl_fit_options *o, const bl_layout *l, int stage, const bl_fit_item *item)
{
    const bl_slot *s = item->w.slot;
    bl_share share;
    bool drafts = m->config->num_nextn_predict_layers > 0 && !(o->drop & BL_DROP_DSPARK);
    if (!bl_share_of(m->config, l, drafts, s, stage * (l->ranks / l->pp), &share)) {
        return 0;
    }
    return s->ndim == 1 ? bytes_of(item, 1, share.part.cols) : bytes_of(item, share.rows, share.part.cols);
}

static uint64_t share_of_earlier(const bl_fit_model *m, const bl_layout *l, int stage, const bl_fit_item *item)
{
    const bl_slot *s = item->w.slot;
    int at = s->layer >= m->config->num_hidden_layers ? l->pp - 1
             : s->layer >= 0                          ? bl_layout_stage(l, s->layer)
             : item->class == BL_CLASS_EMBEDDING && strstr(s->name, "embed") ? 0
                                                                             : l->pp - 1;
    uint64_t parts = item->divide == OVER_TP ? (uint64_t)l->tp : item->divide == OVER_EP ? (uint64_t)l->ep : 1;
    return at == stage ? bl_pieces(item->w.nbytes + item->w.scale_nbytes, parts) : 0;
}

static void deal(const bl_fit_model *m, const bl_fit_options *o, bl_fit *f)
{
    const bl_layout *l = &f->layout;
    for (size_t i = 0; i < m->count; i++) {
        const bl_fit_item *item = &m->items[i];
        for (int stage = 0; stage < l->pp && !is_dropped(o, item->w.slot); stage++) {
            uint64_t n = m->serves ? share_of(m, o, l, stage, item) : share_of_earlier(m, l, stage, item);
            if (item->class == BL_CLASS_ENGRAM_TABLES && !o->engram_device) {
                f->host += n;
            } else {
                f->stages[stage].classes[item->class] += n;
                f->stages[stage].weights += n;
            }
        }
    }
}

/* What a rank of a stage takes on a GPU beside weights and cache. */
static uint64_t scratch_of(const bl_fit_model *m, const bl_fit_options *o, const bl_layout *l, bl_range layers)
{
    const bl_config *c = m->config;
    uint64_t vocab = l->vocab_rows ? l->vocab_rows : (uint64_t)c->vocab_size;
    const bl_shard shard = {.ranks = l->ranks,
                            .layers = layers,
                            .heads = {0, c->num_attention_heads / l->tp},
                            .groups = {0, c->o_groups / l->tp},
                            .experts = {0, c->n_routed_experts / l->ep},
                            .vocab = {0, (int)(vocab / (uint64_t)l->tp)},
                            .engram_parts = 1, /* no buffer depends on them */
                            .shared = true};
    const bl_memory_request request = {.device = BL_DEVICE_CUDA,
                                       .max_tokens = bl_pass_tokens(c, BL_DEVICE_CUDA),
                                       .cache = {.sequences = (int)o->batch, .context = o->context, .tokens = o->batch * o->context}};
    const bl_weights none = {0};
    bl_memory_plan plan;
    bl_memory_plan_make(&plan, &request, c, &shard, &none, NULL); /* without a limit it cannot fail */
    return plan.total[BL_MEMORY_DEVICE] + plan.reserve - plan.cache_bytes;
}

static void judge(const bl_fit_model *m, const bl_fit_options *o, bl_fit *f)
{
    f->fits = true;
    f->sequences = m->serves ? INT64_MAX : 0;
    for (int i = 0, first = 0; i < f->layout.pp; first += f->stages[i++].layers) {
        bl_fit_stage *s = &f->stages[i];
        s->first_layer = first;
        s->layers = f->layout.stage_layers ? f->layout.stage_layers[i] : m->config->num_hidden_layers;
        s->cache = m->serves ? bl_cache_stage_bytes(m->config, (bl_range){first, s->layers}, o->context) : 0;
        s->scratch = m->serves ? scratch_of(m, o, &f->layout, (bl_range){first, s->layers}) : 0;
        int64_t room = (int64_t)o->memory - (int64_t)o->reserve - (int64_t)s->weights - (int64_t)s->scratch;
        int64_t sequences = room < 0 || !s->cache ? 0 : room / (int64_t)s->cache;
        f->sequences = sequences < f->sequences ? sequences : f->sequences;
        s->remains = room - o->batch * (int64_t)s->cache;
        f->fits = f->fits && s->remains >= 0;
        f->fullest = s->remains < f->stages[f->fullest].remains ? i : f->fullest;
    }
}

/* ---- layouts */

static bool deals_experts(const bl_config *c, int ep)
{
    bool drafts = !c->earlier && c->num_nextn_predict_layers > 0;
    return c->n_routed_experts % ep == 0 && (!drafts || c->dspark_n_routed_experts % ep == 0);
}

static bl_status complete(const bl_fit_model *m, const bl_fit_options *o, int tp, int ep, int pp, bl_arena *arena, bl_layout *l,
                          bl_error *err)
{
    const bl_config *c = m->config;
    *l = (bl_layout){.tp = tp ? tp : 1, .ep = ep, .pp = pp ? pp : 1, .engram_shared = !o->engram_device};
    for (l->ep = ep ? ep : l->tp; !ep && (l->tp % l->ep || !deals_experts(c, l->ep)); l->ep--) {
    }
    int64_t ranks = (int64_t)l->pp * (l->tp > l->ep ? l->tp : l->ep);
    if (ranks > BL_MAX_RANKS) {
        return bl_fail(err, BL_E_USAGE, m->path, NULL, -1, "%lld ranks, the most is %d", (long long)ranks, BL_MAX_RANKS);
    }
    l->ranks = (int)ranks;
    if (l->pp > 1) {
        int *layers = bl_arena_array(arena, (size_t)l->pp, sizeof *layers);
        if (!layers) {
            return nomem(m, err);
        }
        bl_layout_even(c->num_hidden_layers, l->pp, layers);
        l->stage_layers = layers;
    }
    return BL_OK;
}

bl_status bl_fit_try(const bl_fit_model *m, const bl_fit_options *o, int tp, int ep, int pp, bl_arena *arena, bl_fit *out, bl_error *err)
{
    *out = (bl_fit){0};
    BL_TRY(complete(m, o, tp, ep, pp, arena, &out->layout, err));
    BL_TRY(bl_layout_check(m->config, &out->layout, &m->slots, m->path, err));
    out->stages = bl_arena_array(arena, (size_t)out->layout.pp, sizeof *out->stages);
    if (!out->stages) {
        return nomem(m, err);
    }
    deal(m, o, out);
    judge(m, o, out);
    return BL_OK;
}

bl_status bl_fit_search(const bl_fit_model *m, const bl_fit_options *o, bl_arena *arena, bl_fit **list, size_t *count, bl_error *err)
{
    *count = 0;
    *list = bl_arena_array(arena, 64, sizeof **list);
    if (!*list) {
        return nomem(m, err);
    }
    for (int devices = 1; devices <= MOST_DEVICES; devices *= 2) {
        for (int pp = 1; pp <= MOST_STAGES && pp <= devices; pp *= 2) {
            int width = devices / pp;
            bl_status s = BL_E_USAGE;
            for (int tp = width < MOST_TP ? width : MOST_TP; tp && s == BL_E_USAGE && deals_experts(m->config, width); tp /= 2) {
                s = bl_fit_try(m, o, tp, width, pp, arena, &(*list)[*count], NULL);
            }
            if (s == BL_OK) {
                ++*count;
            } else if (s != BL_E_USAGE) {
                return nomem(m, err);
            }
        }
    }
    return BL_OK;
}
