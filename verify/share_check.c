/* Which layouts the shapes of a model allow. */
#include "verify/share.h"

#include <stdio.h>
#include <string.h>

static const char inside_rows[] = "the cut falls inside a block of 32 rows", inside_cols[] = "the cut falls inside a block of 32 columns";

/* What stands in the way of cutting n rows or columns over tp; NULL when nothing does. grouped: they belong to output groups. */
static const char *inside_block(const bl_layout *l, uint64_t n, uint64_t tp, bool grouped, const char *why)
{
    if (n % (BL_BLOCK * tp) == 0) {
        return NULL;
    }
    switch (l->split) {
    case BL_SPLIT_PAD:
        return grouped ? "an output group ends inside a block of 32, and padding cannot part the two" : NULL;
    case BL_SPLIT_EXPAND:
    case BL_SPLIT_BF16:
        return n % tp ? "they cannot be cut into equal parts" : NULL;
    default:
        return why;
    }
}

/* What stands in the way of cutting s over tp; NULL when nothing does. */
static const char *obstacle(const bl_config *c, const bl_layout *l, const bl_slot *s, uint64_t tp)
{
    uint64_t n = s->shape[0];
    bool groups = (uint64_t)c->o_groups % tp == 0;
    switch (s->cut) {
    case BL_CUT_HEADS: /* head_dim is a multiple of 32 */
        return (uint64_t)c->num_attention_heads % tp ? "its heads cannot be dealt evenly" : NULL;
    case BL_CUT_GROUPS:
        return groups ? inside_block(l, n, tp, true, inside_rows) : "its output groups cannot be dealt evenly";
    case BL_CUT_GROUP_COLS:
        return groups ? inside_block(l, s->shape[1], tp, true, inside_cols) : "its output groups cannot be dealt evenly";
    case BL_CUT_INNER:
        return inside_block(l, n, tp, false, inside_rows);
    case BL_CUT_INNER_COLS:
        return inside_block(l, s->shape[1], tp, false, inside_cols);
    case BL_CUT_VOCAB:
        n = l->vocab_rows ? l->vocab_rows : n;
        return tp > 1 && n % (BL_BLOCK * tp) ? inside_rows : NULL;
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

/* ", or --split pad, bf16 does it" into text: what would let tp be as it is. */
static void possible_split(const bl_config *c, const bl_layout *l, const bl_slots *slots, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = 0;
    for (int s = BL_SPLIT_PAD; s < BL_SPLITS; s++) {
        bl_layout other = *l;
        other.split = (bl_split)s;
        if (s != (int)l->split && tp_fits(c, &other, slots, (uint64_t)l->tp)) {
            at += (size_t)snprintf(text + at, cap - at, "%s%s", at ? " or " : ", or cut it with --split ", bl_split_name(other.split));
        }
    }
}

static bl_status refuse_tp(const bl_config *c, const bl_layout *l, const bl_slots *slots, const bl_slot *s, const char *why,
                           const char *path, bl_error *err)
{
    char possible[160], shape[64], split[96];
    possible_tp(c, l, slots, possible, sizeof possible);
    possible_split(c, l, slots, split, sizeof split);
    bl_shape_text(shape, sizeof shape, s->shape, s->ndim);
    return bl_fail(err, BL_E_USAGE, path, s->name, -1, "%s over --tp %d: %s; --tp can be %s%s", shape, l->tp, why, possible, split);
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
    return bl_fail(err, BL_E_USAGE, path, key, -1, "%d expert%s cannot be dealt evenly over --ep %d; it can be %s", experts,
                   bl_plural((uint64_t)experts), ep, text);
}

static bl_status check_stages(const bl_config *c, const bl_layout *l, const char *path, bl_error *err)
{
    int layers = 0;
    if (l->pp > c->num_hidden_layers) {
        return bl_fail(err, BL_E_USAGE, path, NULL, -1, "--pp %d: there %s only %d layer%s", l->pp, c->num_hidden_layers == 1 ? "is" : "are",
                       c->num_hidden_layers, bl_plural((uint64_t)c->num_hidden_layers));
    }
    for (int i = 0; l->stage_layers && i < l->pp; i++) {
        if (l->stage_layers[i] < 1 || l->stage_layers[i] > c->num_hidden_layers) {
            return bl_fail(err, BL_E_USAGE, path, NULL, -1, "stage %d cannot have %d layer%s of %d", i, l->stage_layers[i],
                           bl_plural((uint64_t)l->stage_layers[i]), c->num_hidden_layers);
        }
        layers += l->stage_layers[i];
    }
    if (l->stage_layers && layers != c->num_hidden_layers) {
        return bl_fail(err, BL_E_USAGE, path, NULL, -1, "the stages have %d layer%s, the model has %d", layers, bl_plural((uint64_t)layers),
                       c->num_hidden_layers);
    }
    return BL_OK;
}

bl_status bl_layout_check(const bl_config *c, const bl_layout *l, const bl_slots *slots, const char *path, bl_error *err)
{
    if (l->ranks == 1 && !l->vocab_rows) {
        return check_stages(c, l, path, err);
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
