#include "verify/share.h"

#include <stdio.h>

const bl_layout bl_layout_single = {.tp = 1, .ep = 1, .pp = 1, .ranks = 1};

static int width(const bl_layout *l)
{
    return l->tp > l->ep ? l->tp : l->ep;
}

void bl_layout_even(int layers, int pp, int *out)
{
    for (int i = 0; i < pp; i++) {
        out[i] = layers / pp + (pp - i <= layers % pp);
    }
}

int bl_layout_stage(const bl_layout *l, int layer)
{
    int stage = 0;
    for (int end = 0; l->stage_layers && stage + 1 < l->pp; stage++) {
        end += l->stage_layers[stage];
        if (layer < end) {
            break;
        }
    }
    return stage;
}

static bool on_stage(const bl_config *c, const bl_layout *l, bool drafts, const bl_slot *s, int stage)
{
    bool first = stage == 0, last = stage == l->pp - 1;
    if (s->group != BL_GROUP_MODEL) {
        return s->group == BL_GROUP_VISION ? first : last;
    }
    if (s->layer >= 0 && s->layer < c->num_hidden_layers) {
        return bl_layout_stage(l, s->layer) == stage;
    }
    bool embedding = s->order == 0;
    return embedding ? first || (last && drafts) : last;
}

/* Part number of parts equal parts of n rows, each rows long with padding. */
static void cut_rows(bl_share *out, uint64_t n, uint64_t rows, uint64_t parts, uint64_t number)
{
    out->start = number * rows;
    out->rows = rows;
    out->all_rows = parts * rows;
    out->part.row = out->start < n ? out->start : n;
    out->part.rows = n - out->part.row < rows ? n - out->part.row : rows;
}

static void cut_cols(bl_share *out, uint64_t parts, uint64_t number)
{
    out->part.cols /= parts;
    out->part.col = number * out->part.cols;
}

static bool take_expert(const bl_layout *l, const bl_slot *s, int r, int experts, bl_share *out)
{
    out->all_experts = experts;
    out->experts = experts / l->ep;
    out->first_expert = r * l->ep / width(l) * out->experts;
    return s->expert >= out->first_expert && s->expert < out->first_expert + out->experts;
}

static void take_table(const bl_layout *l, const bl_slot *s, int r, bl_share *out)
{
    uint64_t w = (uint64_t)width(l), n = s->shape[0];
    if (l->engram_shared) {
        out->owner -= r;
    } else {
        cut_rows(out, n, bl_pieces(n, w), w, (uint64_t)r);
    }
}

bool bl_share_of(const bl_config *c, const bl_layout *l, bool drafts, const bl_slot *s, int rank, bl_share *out)
{
    int r = rank % width(l);
    uint64_t tp = (uint64_t)l->tp, t = (uint64_t)(r % l->tp), n = s->shape[0];
    bool vector = s->ndim == 1;
    *out = (bl_share){.part = bl_slot_rect(s), .rows = n, .all_rows = n, .owner = rank};
    if (l->ranks > 1 && !on_stage(c, l, drafts, s, rank / width(l))) {
        return false;
    }
    switch (s->cut) {
    case BL_CUT_NONE:
        return true;
    case BL_CUT_HEADS:
    case BL_CUT_GROUPS:
    case BL_CUT_INNER:
        if (vector) {
            cut_cols(out, tp, t);
            out->start = out->part.col;
            out->rows = out->part.cols;
        } else {
            cut_rows(out, n, n / tp, tp, t);
        }
        return true;
    case BL_CUT_GROUP_COLS:
    case BL_CUT_INNER_COLS:
        cut_cols(out, tp, t);
        return true;
    case BL_CUT_VOCAB:
        cut_rows(out, n, (l->vocab_rows ? l->vocab_rows : n) / tp, tp, t);
        return true;
    case BL_CUT_EXPERTS:
        return take_expert(l, s, r, s->group == BL_GROUP_DSPARK ? c->dspark_n_routed_experts : c->n_routed_experts, out) || l->ranks == 1;
    case BL_CUT_TABLE:
        take_table(l, s, r, out);
        return true;
    }
    return false;
}

/* ---- what the shapes allow */

/* What stands in the way of cutting s over tp; NULL when nothing does. */
static const char *obstacle(const bl_config *c, const bl_layout *l, const bl_slot *s, uint64_t tp)
{
    uint64_t n = s->shape[0], heads = (uint64_t)c->num_attention_heads, groups = (uint64_t)c->o_groups;
    switch (s->cut) {
    case BL_CUT_HEADS:
        return heads % tp ? "its heads cannot be dealt evenly" : s->ndim == 2 && n % (32 * tp) ? "the cut falls inside a block of 32 rows" : NULL;
    case BL_CUT_GROUPS:
        return groups % tp ? "its output groups cannot be dealt evenly" : n % (32 * tp) ? "the cut falls inside a block of 32 rows" : NULL;
    case BL_CUT_GROUP_COLS:
        return groups % tp           ? "its output groups cannot be dealt evenly"
               : s->shape[1] % (32 * tp) ? "the cut falls inside a block of 32 columns"
                                         : NULL;
    case BL_CUT_INNER:
        return n % (32 * tp) ? "the cut falls inside a block of 32 rows" : NULL;
    case BL_CUT_INNER_COLS:
        return s->shape[1] % (32 * tp) ? "the cut falls inside a block of 32 columns" : NULL;
    case BL_CUT_VOCAB:
        n = l->vocab_rows ? l->vocab_rows : n;
        return tp > 1 && n % (32 * tp) ? "the cut falls inside a block of 32 rows" : NULL;
    default:
        return NULL;
    }
}

/* Can all but the vocabulary be cut over tp? */
static bool tp_fits(const bl_config *c, const bl_layout *l, const bl_slots *slots, uint64_t tp)
{
    for (size_t i = 0; i < slots->count; i++) {
        const bl_slot *s = &slots->slots[i];
        if (s->cut != BL_CUT_VOCAB && obstacle(c, l, s, tp)) {
            return false;
        }
    }
    return true;
}

/* "1, 2, 4" into text. */
static void possible_tp(const bl_config *c, const bl_layout *l, const bl_slots *slots, char *text, size_t cap)
{
    size_t at = (size_t)snprintf(text, cap, "1");
    for (uint64_t tp = 2; tp <= (uint64_t)c->num_attention_heads && at < cap; tp++) {
        if (c->num_attention_heads % (int)tp == 0 && tp_fits(c, l, slots, tp)) {
            at += (size_t)snprintf(text + at, cap - at, ", %llu", (unsigned long long)tp);
        }
    }
}

static bl_status refuse_tp(const bl_config *c, const bl_layout *l, const bl_slots *slots, const bl_slot *s, const char *why,
                           const char *path, bl_error *err)
{
    char possible[160], shape[64];
    possible_tp(c, l, slots, possible, sizeof possible);
    bl_shape_text(shape, sizeof shape, s->shape, s->ndim);
    return bl_fail(err, BL_E_USAGE, path, s->name, -1, "%s over --tp %d: %s; --tp can be %s", shape, l->tp, why, possible);
}

static bl_status refuse_vocabulary(const bl_layout *l, const bl_slot *s, const char *why, const char *path, bl_error *err)
{
    uint64_t n = s->shape[0], unit = 32 * (uint64_t)l->tp;
    return bl_fail(err, BL_E_USAGE, path, s->name, -1, "%llu rows over --tp %d: %s; --pad-vocab 32 makes them %llu",
                   (unsigned long long)(l->vocab_rows ? l->vocab_rows : n), l->tp, why, (unsigned long long)(bl_pieces(n, unit) * unit));
}

/* The vocabulary last: it can be padded, the others leave a choice of degrees only. */
static bl_status check_tp(const bl_config *c, const bl_layout *l, const bl_slots *slots, const char *path, bl_error *err)
{
    for (int vocabulary = 0; l->tp > 1 && vocabulary < 2; vocabulary++) {
        for (size_t i = 0; i < slots->count; i++) {
            const bl_slot *s = &slots->slots[i];
            const char *why = (s->cut == BL_CUT_VOCAB) == (vocabulary != 0) ? obstacle(c, l, s, (uint64_t)l->tp) : NULL;
            if (why) {
                return vocabulary ? refuse_vocabulary(l, s, why, path, err) : refuse_tp(c, l, slots, s, why, path, err);
            }
        }
    }
    return BL_OK;
}

static bl_status check_ep(const char *path, int ep, const char *key, int experts, bl_error *err)
{
    if (experts % ep == 0) {
        return BL_OK;
    }
    char text[160];
    size_t at = (size_t)snprintf(text, sizeof text, "1");
    for (int e = 2; e <= experts && at < sizeof text; e++) {
        if (experts % e == 0) {
            at += (size_t)snprintf(text + at, sizeof text - at, ", %d", e);
        }
    }
    return bl_fail(err, BL_E_USAGE, path, key, -1, "%d experts cannot be dealt evenly over --ep %d; it can be %s", experts, ep, text);
}

static bl_status check_stages(const bl_config *c, const bl_layout *l, const char *path, bl_error *err)
{
    int layers = 0;
    if (l->pp > c->num_hidden_layers) {
        return bl_fail(err, BL_E_USAGE, path, NULL, -1, "--pp %d: there are only %d layers", l->pp, c->num_hidden_layers);
    }
    for (int i = 0; l->stage_layers && i < l->pp; i++) {
        if (l->stage_layers[i] < 1 || l->stage_layers[i] > c->num_hidden_layers) {
            return bl_fail(err, BL_E_USAGE, path, NULL, -1, "stage %d cannot have %d layers of %d", i, l->stage_layers[i],
                           c->num_hidden_layers);
        }
        layers += l->stage_layers[i];
    }
    if (l->stage_layers && layers != c->num_hidden_layers) {
        return bl_fail(err, BL_E_USAGE, path, NULL, -1, "the stages have %d layers, the model has %d", layers, c->num_hidden_layers);
    }
    return BL_OK;
}

bl_status bl_layout_check(const bl_config *c, const bl_layout *l, const bl_slots *slots, const char *path, bl_error *err)
{
    if (l->ranks == 1 && !l->vocab_rows) {
        return BL_OK;
    }
    if (l->tp % l->ep != 0 && l->ep % l->tp != 0) {
        return bl_fail(err, BL_E_USAGE, path, NULL, -1, "--tp %d and --ep %d: one must divide the other", l->tp, l->ep);
    }
    BL_TRY(check_stages(c, l, path, err));
    BL_TRY(check_ep(path, l->ep, "n_routed_experts", c->n_routed_experts, err));
    if (c->num_nextn_predict_layers) {
        BL_TRY(check_ep(path, l->ep, "dspark_n_routed_experts", c->dspark_n_routed_experts, err));
    }
    if (l->vocab_rows && (l->vocab_rows < (uint64_t)c->vocab_size || l->vocab_rows % (uint64_t)l->tp != 0)) {
        return bl_fail(err, BL_E_USAGE, path, "vocab_size", -1, "a vocabulary of %d cannot be padded to %llu rows over %d ranks",
                       c->vocab_size, (unsigned long long)l->vocab_rows, l->tp);
    }
    return check_tp(c, l, slots, path, err);
}
