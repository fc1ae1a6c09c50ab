#include "verify/compare.h"

#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    const bl_weight *const *v = a, *const *w = b;
    return strcmp((*v)->slot->name, (*w)->slot->name);
}

/* Pointers to the weights of a binding, sorted by name; NULL when out of memory. */
static const bl_weight **sorted(const bl_binding *b)
{
    const bl_weight **list = malloc((b->count + 1) * sizeof *list);
    for (size_t i = 0; list && i < b->count; i++) {
        list[i] = &b->weights[i];
    }
    if (list) {
        qsort(list, b->count, sizeof *list, by_name);
    }
    return list;
}

static bl_digest digest_of(const bl_scan *s, const bl_weight *w)
{
    return bl_sum_digest(s->sums[w - s->binding->weights]);
}

static bool is_broken(const bl_scan *s, const bl_weight *w)
{
    return s->broken[w - s->binding->weights];
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
static bool compare_pair(bl_finder *f, const bl_scan *a, const bl_weight *v, const bl_scan *b, const bl_weight *w)
{
    const char *path = bl_checkpoint_file(a->c, v->tensor)->path;
    int64_t begin = (int64_t)v->offset, end = (int64_t)(v->offset + v->nbytes);
    bl_digest x = digest_of(a, v), y = digest_of(b, w);
    if (is_broken(a, v) || is_broken(b, w)) {
        return false; /* said when it was read */
    }
    bool shape = v->slot->ndim == w->slot->ndim && !memcmp(v->slot->shape, w->slot->shape, v->slot->ndim * sizeof *v->slot->shape);
    if (!shape || bl_weight_class(v) != bl_weight_class(w)) {
        bl_find(f, -1, path, v->slot->name, begin, end, "its shape differs from that in %s", b->c->path);
        return false;
    }
    if (!bl_digest_equal(&x, &y)) {
        char have[33], other[33];
        bl_find(f, -1, path, v->slot->name, begin, end, "its values differ from those in %s (value digest %s, there %s)", b->c->path,
                bl_hex_encode(have, x.b, sizeof x.b), bl_hex_encode(other, y.b, sizeof y.b));
        return false;
    }
    return true;
}

size_t bl_compare(bl_finder *f, const bl_scan *a, const bl_scan *b)
{
    const bl_weight **v = sorted(a->binding), **w = sorted(b->binding);
    size_t i = 0, k = 0, equal = 0;
    while (v && w && (i < a->binding->count || k < b->binding->count)) {
        int order = i == a->binding->count ? 1 : k == b->binding->count ? -1 : strcmp(v[i]->slot->name, w[k]->slot->name);
        if (order < 0) {
            one_sided(f, a, b, v[i++]);
        } else if (order > 0) {
            one_sided(f, b, a, w[k++]);
        } else {
            equal += compare_pair(f, a, v[i++], b, w[k++]);
        }
    }
    if (!v || !w) {
        bl_find(f, -1, a->c->path, NULL, -1, -1, "out of memory: the comparison was not made");
    }
    free(v);
    free(w);
    return equal;
}
