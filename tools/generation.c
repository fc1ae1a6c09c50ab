#include "tools/generation.h"

#include <stdio.h>
#include <string.h>

#define LOOKED_AT 256 /* weights with float32 scales: V3 has 45,000, and as many places to read */

static void count_problem(void *arg, const bl_error *problem)
{
    (void)problem;
    ++*(size_t *)arg;
}

bl_status generation_find(const bl_checkpoint *c, generation_facts *f, bl_error *err)
{
    int block = c->config.quantized ? 32 : 0;
    *f = (generation_facts){0};
    if (c->config.earlier) {
        BL_TRY(bl_bind(c, &f->arena, count_problem, &f->problems, &f->binding, err));
        BL_TRY(bl_bind_forms(c, &f->binding, count_problem, &f->problems, err));
        BL_TRY(bl_scales_survey(c, &f->binding, LOOKED_AT, &f->scales, err));
        BL_TRY(bl_scales_claim(c, &f->scales, count_problem, &f->problems, err));
        f->problems += f->scales.first_bad.weight != NULL;
        block = f->binding.fp8 ? f->binding.block : 0;
    }
    f->generation = bl_generation_find(c, block, f->why, sizeof f->why);
    return BL_OK;
}

void generation_role(const bl_checkpoint *c, const generation_facts *f, int layer, char *buf, size_t cap)
{
    static const struct { const char *part, *says; } parts[] = {
        {".experts.", "experts"}, {".tid2eid", "hash-routed"}, {".compressor.", "compresses"}, {".indexer.", "selects"}};
    bool has[4] = {false}, any = false;
    for (size_t i = 0; i < f->binding.count; i++) {
        const bl_slot *s = f->binding.weights[i].slot;
        if (s->layer == layer) {
            any = true;
            for (int k = 0; k < 4; k++) has[k] = has[k] || strstr(s->name, parts[k].part);
        }
    }
    size_t n = (size_t)snprintf(buf, cap, "%s%s", layer >= c->config.num_hidden_layers ? "draft layer, " : "",
                                !any ? "absent" : has[0] ? parts[0].says : "dense");
    for (int k = 1; k < 4; k++)
        if (has[k]) n += (size_t)snprintf(buf + n, cap - n, ", %s", parts[k].says);
}

static void print_scales(const bl_scale_survey *s)
{
    const unsigned long long scales = s->scales, odd = s->rounded_scales, weights = s->weights, rounded = s->rounded_weights;
    const bool some = s->weights < s->all_weights;
    if (odd)
        printf("            %llu float32 scale%s, %llu of them no powers of two, as in V3 and R1: a cast to BF16 rounds %llu of %llu "
               "weight%s\n", scales, bl_plural(scales), odd, rounded, weights, bl_plural(weights));
    else
        printf("            %llu float32 scale%s, all powers of two, as from V3.1 on: a cast to BF16 is exact%s\n", scales, bl_plural(scales),
               some ? " if they all are" : "");
    if (some)
        printf("            looked at: %llu of %llu weight%s with such scales; --scales reads all\n", weights,
               (unsigned long long)s->all_weights, bl_plural(s->all_weights));
}

void generation_print(const generation_facts *f)
{
    printf("generation: %s%s%s%s\n", bl_generation_name(f->generation), f->why[0] ? " (" : "", f->why, f->why[0] ? ")" : "");
    const bl_scale_survey *s = &f->scales;
    if (s->weights) print_scales(s);
    if (f->problems)
        printf("            %zu problem%s: baleen verify names them\n", f->problems, bl_plural(f->problems));
}

void generation_json(const generation_facts *f, json_t *j)
{
    const bl_scale_survey *s = &f->scales;
    json_object_update_new(j, json_pack("{s:s, s:s, s:I}", "generation", bl_generation_name(f->generation), "generation_why", f->why,
                                        "problems", (json_int_t)f->problems));
    if (s->weights)
        json_object_set_new(j, "float32_scales",
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "all_weights", (json_int_t)s->all_weights, "weights",
                                      (json_int_t)s->weights, "scales", (json_int_t)s->scales, "rounded_weights",
                                      (json_int_t)s->rounded_weights, "rounded_scales", (json_int_t)s->rounded_scales));
}

static const char *plural(int n)
{
    return bl_plural((uint64_t)n);
}

void generation_model(const bl_config *c)
{
    if (c->earlier) {
        printf("model: %d layer%s, %d draft layer%s, %d expert%s, model_type %s\n", c->num_hidden_layers, plural(c->num_hidden_layers),
               c->num_nextn_predict_layers, plural(c->num_nextn_predict_layers), c->n_routed_experts, plural(c->n_routed_experts),
               c->model_type);
    } else {
        printf("model: %d layer%s, hidden %d, %d head%s of %d, %d expert%s (%d per token) of %d, vocabulary %d, context %lld\n",
               c->num_hidden_layers, plural(c->num_hidden_layers), c->hidden_size, c->num_attention_heads, plural(c->num_attention_heads),
               c->head_dim, c->n_routed_experts, plural(c->n_routed_experts), c->num_experts_per_tok, c->moe_intermediate_size,
               c->vocab_size, (long long)c->max_position_embeddings);
        printf("       window %d, top %d of compressed entries, %d draft layer%s%s\n", c->sliding_window, c->index_topk,
               c->num_nextn_predict_layers, plural(c->num_nextn_predict_layers), c->has_vision ? ", vision" : "");
    }
}
