#include "tools/outline.h"

#include "tools/cli.h"

static const char *range(char *buf, size_t cap, int first, int count)
{
    snprintf(buf, cap, count > 1 ? "%d-%d" : "%d", first, first + count - 1);
    return buf;
}

static void print_ranks(const bl_plan *plan, const bl_outline *o)
{
    printf("  rank  stage  layers   experts   tensors  files  GB\n");
    for (int i = 0; i < plan->layout->ranks; i++) {
        const bl_outline_rank *r = &o->ranks[i];
        char layers[24], experts[24];
        printf("  %-4d  %-5d  %-7s  %-8s  %-7zu  %-5zu  %.3f", i, r->stage, range(layers, sizeof layers, r->first_layer, r->layers),
               range(experts, sizeof experts, r->first_expert, r->experts), r->tensors, r->files, (double)r->file_bytes * 1e-9);
        if (r->shared_bytes) {
            printf(" + %.3f shared", (double)r->shared_bytes * 1e-9);
        }
        printf("\n");
    }
}

static void print_crossings(const bl_config *c, const bl_plan *plan, const bl_outline *o)
{
    const bl_layout *l = plan->layout;
    if (l->pp == 1) {
        return;
    }
    printf("  between stages: the %d residual streams after %s", BL_HC_MULT, l->pp == 2 ? "layer" : "layers");
    for (int stage = 1, layer = 0; stage < l->pp; stage++) {
        layer += l->stage_layers[stage - 1];
        printf("%s %d", stage > 1 ? "," : "", layer - 1);
    }
    printf("\n");
    for (size_t i = 0; i < o->crossing_count; i++) {
        const bl_crossing *x = &o->crossings[i];
        printf("    %s of layer %d (stage %d) for ", x->what, x->layer, x->stage);
        if (x->users == 1) {
            printf("layer %d (stage %d)\n", x->first_user, x->to_stage);
        } else {
            printf("%d layers from %d to %d (stage %d)\n", x->users, x->first_user, x->last_user, x->to_stage);
        }
    }
    for (int i = 0; i < c->engram_count; i++) {
        if (plan->present && !plan->present[c->engram_layer_ids[i]]) {
            continue;
        }
        printf("    Engram tables of layer %d: %lld rows on stage %d\n", c->engram_layer_ids[i], (long long)c->engram_num_embeddings[i],
               bl_layout_stage(l, c->engram_layer_ids[i]));
    }
}

static void print_split(const bl_plan *plan, const bl_outline *o)
{
    for (int i = BL_REMEDY_PAD; plan->layout->split && i <= BL_REMEDY_BF16; i++) {
        const bl_outline_split *k = &o->split[i];
        if (k->tensors) {
            printf("  cut inside scale blocks (--split %s): %zu tensor%s %s, %.6f GB in place of %.6f GB\n",
                   bl_split_name(plan->layout->split), k->tensors, bl_plural(k->tensors), k->what, (double)k->bytes * 1e-9,
                   (double)k->source_bytes * 1e-9);
        }
    }
}

void outline_print(const bl_config *c, const bl_plan *plan, const bl_outline *o)
{
    const bl_layout *l = plan->layout;
    printf("%d rank%s: %d stage%s of %d (tp %d, ep %d)\n", l->ranks, bl_plural((uint64_t)l->ranks), l->pp, bl_plural((uint64_t)l->pp),
           l->ranks / l->pp, l->tp, l->ep);
    print_ranks(plan, o);
    printf("  tensors of all ranks, by how they are dealt:\n");
    for (int i = 0; i <= BL_CUT_TABLE; i++) {
        const bl_outline_class *k = &o->classes[i];
        if (k->tensors) {
            printf("    %-34s %7zu tensors %12.6f GB\n", k->rule, k->tensors, (double)k->bytes * 1e-9);
        }
    }
    print_split(plan, o);
    for (size_t i = 0; i < o->padding_count; i++) {
        const bl_outline_padding *p = &o->padding[i];
        printf("  padding: %s has %llu rows, every part %llu, so that %llu row%s of padding follow%s\n", p->name, (unsigned long long)p->rows,
               (unsigned long long)p->rank_rows, (unsigned long long)p->padding, bl_plural(p->padding), p->padding == 1 ? "s" : "");
    }
    print_crossings(c, plan, o);
}

json_t *outline_json(const bl_plan *plan, const bl_outline *o)
{
    const bl_layout *l = plan->layout;
    json_t *ranks = json_array(), *classes = json_array(), *crossings = json_array(), *split = json_array(),
           *padding = json_array();
    for (int i = 0; i < l->ranks; i++) {
        const bl_outline_rank *r = &o->ranks[i];
        json_array_append_new(ranks, json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "rank", i, "stage", r->stage,
                                               "first_layer", r->first_layer, "layers", r->layers, "first_expert", r->first_expert,
                                               "experts", r->experts, "tensors", (json_int_t)r->tensors, "files", (json_int_t)r->files,
                                               "file_bytes", (json_int_t)r->file_bytes, "shared_bytes", (json_int_t)r->shared_bytes));
    }
    for (int i = 0; i <= BL_CUT_TABLE; i++) {
        const bl_outline_class *k = &o->classes[i];
        if (k->tensors) {
            json_array_append_new(classes, json_pack("{s:s, s:I, s:I}", "rule", k->rule, "tensors", (json_int_t)k->tensors, "bytes",
                                                     (json_int_t)k->bytes));
        }
    }
    for (int i = BL_REMEDY_PAD; i <= BL_REMEDY_BF16; i++) {
        const bl_outline_split *k = &o->split[i];
        if (k->tensors) {
            json_array_append_new(split, json_pack("{s:s, s:I, s:I, s:I}", "what", k->what, "tensors", (json_int_t)k->tensors, "bytes",
                                                   (json_int_t)k->bytes, "source_bytes", (json_int_t)k->source_bytes));
        }
    }
    for (size_t i = 0; i < o->padding_count; i++) {
        const bl_outline_padding *p = &o->padding[i];
        json_array_append_new(padding, json_pack("{s:s, s:I, s:I, s:I}", "tensor", p->name, "rows", (json_int_t)p->rows, "rank_rows",
                                                 (json_int_t)p->rank_rows, "padding_rows", (json_int_t)p->padding));
    }
    for (size_t i = 0; i < o->crossing_count; i++) {
        const bl_crossing *x = &o->crossings[i];
        json_array_append_new(crossings, json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "what", x->what, "layer", x->layer, "stage",
                                                   x->stage, "to_stage", x->to_stage, "first_user", x->first_user, "last_user",
                                                   x->last_user, "users", x->users));
    }
    return json_pack("{s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o, s:o}", "tp", l->tp, "ep", l->ep, "pp", l->pp, "split", bl_split_name(l->split),
                     "split_tensors", split, "padding", padding, "ranks", ranks, "classes", classes, "crossings", crossings);
}
