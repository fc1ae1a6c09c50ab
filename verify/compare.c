#include "verify/compare.h"

#include "verify/share.h"
#include "verify/view.h"

#include <stdlib.h>
#include <string.h>

/* The weights of one slot: one, or the parts that ranks hold. */
typedef struct whole {
    const bl_weight *w; /* the first of count */
    size_t count;
} whole;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const whole *)a)->w->slot->name, ((const whole *)b)->w->slot->name);
}

/* The slots of a binding, sorted by name; NULL when out of memory. */
static whole *sorted(const bl_binding *b, size_t *count)
{
    whole *list = malloc((b->count + 1) * sizeof *list);
    *count = 0;
    for (size_t i = 0, n; list && i < b->count; i += n) {
        n = bl_view_pieces(b, i);
        list[(*count)++] = (whole){.w = &b->weights[i], .count = n};
    }
    if (list && *count) {
        qsort(list, *count, sizeof *list, by_name);
    }
    return list;
}

bool bl_compare_refine(const bl_scan *s, bl_weight *w)
{
    uint8_t rows = 0, cols = 0;
    if (s->beside) {
        bl_layout_fine(s->beside, w->slot, &rows, &cols);
    }
    bool finer = rows > w->fine_rows || cols > w->fine_cols;
    w->fine_rows = rows > w->fine_rows ? rows : w->fine_rows;
    w->fine_cols = cols > w->fine_cols ? cols : w->fine_cols;
    return finer;
}

/* The value digest of a weight with those tiles. */
static bl_sum sum_of(const bl_scan *s, size_t weight)
{
    bl_weight w = s->binding->weights[weight];
    return bl_compare_refine(s, &w) ? s->shared[weight] : s->sums[weight];
}

/* The digest of a whole is the sum of its parts', each counted once. */
static bl_digest digest_of(const bl_scan *s, const whole *v)
{
    bl_sum sum = {0};
    for (size_t i = 0; i < v->count; i++) {
        if (!v->w[i].replica) {
            bl_sum_add(&sum, sum_of(s, (size_t)(&v->w[i] - s->binding->weights)));
        }
    }
    return bl_sum_digest(sum);
}

/* Is some part without a digest, or not there? Both have been said. */
static bool is_broken(const bl_scan *s, const whole *v)
{
    bl_rect all = bl_slot_rect(v->w->slot);
    uint64_t missing = all.rows * all.cols;
    for (size_t i = 0; i < v->count; i++) {
        if (s->broken[&v->w[i] - s->binding->weights]) {
            return true;
        }
        missing -= v->w[i].replica ? 0 : v->w[i].part.rows * v->w[i].part.cols;
    }
    return missing != 0;
}

/* Is it on record that the model of s was made without this slot? */
static bool left_out(const bl_scan *s, const bl_slot *slot)
{
    const bl_config *c = &s->c->config;
    unsigned dropped = s->c->manifest ? s->c->manifest->dropped : 0;
    if (slot->group == BL_GROUP_DSPARK) {
        return (dropped & BL_DROP_DSPARK) || c->num_nextn_predict_layers == 0;
    }
    if (slot->group == BL_GROUP_VISION) {
        return (dropped & BL_DROP_VISION) || !c->has_vision;
    }
    const bl_slots *slots = &s->binding->slots;
    return slot->layer >= 0 && slot->layer < slots->layers && slots->present && !slots->present[slot->layer];
}

static void one_sided(bl_finder *f, const bl_scan *has, const bl_scan *lacks, const bl_weight *w)
{
    if (!left_out(lacks, w->slot) && !bl_slot_excused(lacks->c, &lacks->binding->slots, w->slot)) {
        bl_find(f, -1, lacks->c->path, w->slot->name, -1, -1, "is in %s only, and nothing records that it was left out",
                has->c->path);
    }
}

/* Equal class, shape and digest? */
static bool compare_pair(bl_finder *f, const bl_scan *a, const whole *x, const bl_scan *b, const whole *y)
{
    const bl_weight *v = x->w, *w = y->w;
    const char *path = x->count > 1 ? a->c->path : bl_checkpoint_file(a->c, v->tensor)->path;
    int64_t begin = x->count > 1 ? -1 : (int64_t)v->offset, end = x->count > 1 ? -1 : (int64_t)(v->offset + v->nbytes);
    if (is_broken(a, x) || is_broken(b, y)) {
        return false; /* said when it was read */
    }
    bl_digest have = digest_of(a, x), other = digest_of(b, y);
    bool shape = v->slot->ndim == w->slot->ndim && !memcmp(v->slot->shape, w->slot->shape, v->slot->ndim * sizeof *v->slot->shape);
    if (!shape || bl_weight_class(v) != bl_weight_class(w)) {
        bl_find(f, -1, path, v->slot->name, begin, end, "its shape differs from that in %s", b->c->path);
        return false;
    }
    if (!bl_digest_equal(&have, &other)) {
        char have_text[33], other_text[33];
        bl_find(f, -1, path, v->slot->name, begin, end, "its values differ from those in %s (value digest %s, there %s)", b->c->path,
                bl_hex_encode(have_text, have.b, sizeof have.b), bl_hex_encode(other_text, other.b, sizeof other.b));
        return false;
    }
    return true;
}

size_t bl_compare(bl_finder *f, const bl_scan *a, const bl_scan *b)
{
    size_t i = 0, k = 0, equal = 0, count_a = 0, count_b = 0;
    whole *v = sorted(a->binding, &count_a), *w = sorted(b->binding, &count_b);
    while (v && w && (i < count_a || k < count_b)) {
        int order = i == count_a ? 1 : k == count_b ? -1 : by_name(&v[i], &w[k]);
        if (order < 0) {
            one_sided(f, a, b, v[i++].w);
        } else if (order > 0) {
            one_sided(f, b, a, w[k++].w);
        } else {
            equal += compare_pair(f, a, &v[i++], b, &w[k++]);
        }
    }
    if (!v || !w) {
        bl_find(f, -1, a->c->path, NULL, -1, -1, "out of memory: the comparison was not made");
    }
    free(v);
    free(w);
    return equal;
}
