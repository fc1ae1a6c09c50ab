#include "verify/share.h"

#include <stdio.h>

const bl_layout bl_layout_single = {.tp = 1, .ep = 1, .pp = 1, .ranks = 1};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

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

/* ---- cuts inside blocks */

static bool cuts_cols(const bl_slot *s)
{
    return s->cut == BL_CUT_GROUP_COLS || s->cut == BL_CUT_INNER_COLS;
}

/* What tp cuts into equal parts; 0 for a slot that is not cut so. */
static uint64_t length_of(const bl_slot *s)
{
    bool rows = s->cut == BL_CUT_GROUPS || s->cut == BL_CUT_INNER; /* heads are whole blocks */
    return rows ? s->shape[0] : cuts_cols(s) ? s->shape[1] : 0;
}

bl_remedy bl_layout_remedy(const bl_layout *l, const bl_slot *s)
{
    if (l->tp == 1 || !l->split || length_of(s) % (BL_BLOCK * (uint64_t)l->tp) == 0) {
        return BL_REMEDY_NONE;
    }
    return l->split == BL_SPLIT_PAD ? BL_REMEDY_PAD : l->split == BL_SPLIT_EXPAND && !cuts_cols(s) ? BL_REMEDY_EXPAND : BL_REMEDY_BF16;
}

void bl_layout_fine(const bl_layout *l, const bl_slot *s, uint8_t *rows, uint8_t *cols)
{
    bl_remedy r = bl_layout_remedy(l, s);
    uint8_t n = 0;
    if (r == BL_REMEDY_EXPAND || r == BL_REMEDY_BF16) {
        for (uint64_t part = length_of(s) / (uint64_t)l->tp; part % (BL_BLOCK >> n) != 0;) {
            n++;
        }
    }
    *rows = cuts_cols(s) ? 0 : n;
    *cols = cuts_cols(s) ? n : 0;
}

bool bl_layout_splits(const bl_layout *l, const bl_slots *slots)
{
    for (size_t i = 0; i < slots->count; i++) {
        if (bl_layout_remedy(l, &slots->slots[i])) {
            return true;
        }
    }
    return false;
}

/* Rows or columns that a rank gets of n, with padding. */
static uint64_t part_of(const bl_layout *l, const bl_slot *s, uint64_t n)
{
    uint64_t tp = (uint64_t)l->tp;
    return bl_layout_remedy(l, s) == BL_REMEDY_PAD ? BL_BLOCK * bl_pieces(n, BL_BLOCK * tp) : n / tp;
}

/* ---- shares */

/* Part number of parts equal parts of n rows, each rows long with padding. */
static void cut_rows(bl_share *out, uint64_t n, uint64_t rows, uint64_t parts, uint64_t number)
{
    out->start = number * rows;
    out->rows = rows;
    out->all_rows = parts * rows;
    out->part.row = least(out->start, n);
    out->part.rows = least(rows, n - out->part.row);
}

/* The same of columns. */
static void cut_cols(bl_share *out, uint64_t n, uint64_t cols, uint64_t parts, uint64_t number)
{
    out->start_col = number * cols;
    out->cols = cols;
    out->all_cols = parts * cols;
    out->part.col = least(out->start_col, n);
    out->part.cols = least(cols, n - out->part.col);
}

/* Elements [start, start + n) of a vector. */
static void cut_vector(bl_share *out, uint64_t n, uint64_t number)
{
    out->start = out->part.col = number * n;
    out->rows = out->cols = out->part.cols = n;
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
    out->cols = out->all_cols = out->part.cols;
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
            cut_vector(out, n / tp, t);
        } else {
            cut_rows(out, n, part_of(l, s, n), tp, t);
        }
        return true;
    case BL_CUT_GROUP_COLS:
    case BL_CUT_INNER_COLS:
        cut_cols(out, s->shape[1], part_of(l, s, s->shape[1]), tp, t);
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
