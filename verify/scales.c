#include "verify/scales.h"

#include <stdlib.h>
#include <string.h>

#define PIECE ((uint64_t)1 << 20) /* bytes read at once */

static void note(bl_scale_place *p, const bl_weight *w, uint64_t first, const uint8_t *data, int64_t at)
{
    if (!p->weight) {
        *p = (bl_scale_place){.weight = w, .index = first + (uint64_t)at};
        memcpy(&p->value, data + 4 * at, 4);
    }
}

static uint64_t count_rounded(bl_scale_survey *s, const bl_weight *w, uint64_t first, const uint8_t *data, int64_t n)
{
    uint64_t rounded = 0;
    int64_t bad = bl_f32_scale_check(data, n);
    if (bad < n) {
        note(&s->first_bad, w, first, data, bad);
    }
    for (int64_t at = 0; at < n; at++) {
        at += bl_f32_scale_inexact(data + 4 * at, n - at);
        if (at < n) {
            note(&s->first_rounded, w, first, data, at);
            rounded++;
        }
    }
    return rounded;
}

/* Is the weight at place i of all among the `most` to look at? */
static bool chosen(uint64_t i, uint64_t all, uint64_t most)
{
    return all <= most || (i + 1) * most / all > i * most / all;
}

bl_status bl_scales_survey(const bl_checkpoint *c, const bl_binding *b, uint64_t most, bl_scale_survey *out, bl_error *err)
{
    uint64_t met = 0;
    *out = (bl_scale_survey){0};
    for (size_t i = 0; i < b->count; i++) {
        out->all_weights += bl_weight_f32_scaled(&b->weights[i]) && b->weights[i].scale_nbytes;
    }
    uint8_t *data = malloc(PIECE);
    bl_status s = data ? BL_OK : bl_fail(err, BL_E_NOMEM, c->path, NULL, -1, "out of memory");
    for (size_t i = 0; s == BL_OK && i < b->count; i++) {
        const bl_weight *w = &b->weights[i];
        uint64_t rounded = 0, total = bl_weight_f32_scaled(w) ? w->scale_nbytes : 0;
        if (!total || !chosen(met++, out->all_weights, most)) {
            continue;
        }
        for (uint64_t at = 0; s == BL_OK && at < total; at += PIECE) {
            uint64_t n = total - at < PIECE ? total - at : PIECE;
            s = bl_file_read(bl_checkpoint_file(c, w->scale)->file, data, n, w->scale_offset + at, err);
            if (s == BL_OK) {
                rounded += count_rounded(out, w, at / 4, data, (int64_t)(n / 4));
            }
        }
        out->weights++;
        out->scales += total / 4;
        out->rounded_weights += rounded > 0;
        out->rounded_scales += rounded;
    }
    free(data);
    return s;
}

bl_status bl_scales_claim(const bl_checkpoint *c, const bl_scale_survey *s, bl_problem_fn on_problem, void *arg, bl_error *err)
{
    const bl_scale_place *p = &s->first_rounded;
    if (!c->config.scale_ue8m0 || !p->weight) {
        return BL_OK;
    }
    uint64_t cols = bl_weight_scale_cols(p->weight);
    return bl_problem(on_problem, arg, err, bl_checkpoint_file(c, p->weight->scale)->path, p->weight->scale->name,
                      "scale %.9g at [%llu, %llu] is no power of two (%llu of %llu are none), but the config's "
                      "quantization_config.scale_fmt is ue8m0: without that key they are taken as they are",
                      (double)p->value, (unsigned long long)(p->index / cols), (unsigned long long)(p->index % cols),
                      (unsigned long long)s->rounded_scales, (unsigned long long)s->scales);
}

bl_status bl_scales_sound(const bl_checkpoint *c, const bl_scale_survey *s, bl_error *err)
{
    const bl_scale_place *p = &s->first_bad;
    if (!p->weight) {
        return BL_OK;
    }
    uint64_t cols = bl_weight_scale_cols(p->weight);
    return bl_fail(err, BL_E_INPUT, bl_checkpoint_file(c, p->weight->scale)->path, p->weight->scale->name,
                   (int64_t)(p->weight->scale_offset + 4 * p->index),
                   "scale %.9g at [%llu, %llu] of '%.300s' is outside 2^-124..2^119: no sound weight has it", (double)p->value,
                   (unsigned long long)(p->index / cols), (unsigned long long)(p->index % cols), p->weight->slot->name);
}
