/* The operations but attention: streams, experts, Engram, head. */
#include "runtime/cuda/cuda.h"

static int64_t hidden(const bl_cuda *c)
{
    return c->config.hidden_size;
}

bl_cuda_product bl_cuda_product_of(bl_cuda *c, bl_cuda_stream s, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T,
                                   uint16_t *y16, float *y32)
{
    if (cuda_quantised(w) && !rounded) {
        bl_cuda_round_fp8(s, c->rounded, x, w->cols, T, w->cols);
        rounded = c->rounded;
    }
    return (bl_cuda_product){.w = *w, .rows = w->rows, .x = cuda_quantised(w) ? rounded : x, .ldx = w->cols, .tokens = T, .y16 = y16,
                             .y32 = y32, .ld = w->rows, .wide = s == c->side ? c->side_wide : c->wide,
                             .wide_elements = s == c->side ? CUDA_SIDE_WIDE : CUDA_WIDE,
                             .early = s == c->stream}; /* there a kernel goes before each */
}

void bl_cuda_linear_on(bl_cuda *c, bl_cuda_stream s, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T,
                       uint16_t *y16, float *y32)
{
    const bl_cuda_product p = bl_cuda_product_of(c, s, w, x, rounded, T, y16, y32);
    bl_cuda_multiply(s, &p);
}

void bl_cuda_linear(bl_cuda *c, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T, uint16_t *y16, float *y32)
{
    bl_cuda_linear_on(c, c->stream, w, x, rounded, T, y16, y32);
}

/* ---- streams */

static void embed(bl_backend *b, const bl_pass *p, uint16_t *x)
{
    const bl_cuda *c = cuda_of(b);
    bl_cuda_embed(c->stream, x, p->weights->embed.codes, c->tables.ids, c->shard.vocab.first, c->shard.vocab.count, p->tokens, hidden(c));
}

static void fan_out(bl_backend *b, const bl_pass *p, uint16_t *H, float *pre, const uint16_t *x)
{
    bl_cuda_fan_out(cuda_of(b)->stream, H, pre, x, p->tokens, hidden(cuda_of(b)));
}

/* The products that the mixing's coefficients are made of. */
static bl_cuda_product mixing_dots(const bl_cuda *c, const bl_pass *p)
{
    const bl_matrix *fn = &c->later.mixing->fn;
    return (bl_cuda_product){.w = *fn, .rows = fn->rows, .x = c->later.streams, .ldx = fn->cols, .tokens = p->tokens};
}

bl_cuda_mixing bl_cuda_mixing_of(const bl_cuda *c, const bl_pass *p)
{
    if (!c->later.mixing) return (bl_cuda_mixing){0};
    const bl_config *f = &c->config;
    const bl_mixing *m = c->later.mixing;
    return (bl_cuda_mixing){.fn = m->fn.codes, .scale3 = m->scale.codes, .base24 = m->base.codes, .H = c->later.streams,
                            .pre = c->later.pre, .post = c->later.post, .comb = c->later.comb, .parts = c->parts, .T = p->tokens,
                            .D = hidden(c), .eps_rms = f->rms_norm_eps, .eps = f->hc_eps, .iters = f->hc_sinkhorn_iters};
}

/* From their parts, beside the sublayer: the coefficients are for the expansion after it. */
static void finish_mixing(bl_cuda *c, const bl_pass *p)
{
    const bl_cuda_mixing a = bl_cuda_mixing_of(c, p);
    bl_cuda_mix(c->side, &a);
    c->later.parts = false;
}

bl_cuda_product bl_cuda_take_parts(bl_cuda *c, const bl_pass *p)
{
    if (!c->later.mix) return (bl_cuda_product){0};
    c->later.mix = false;
    c->later.parts = true;
    return mixing_dots(c, p);
}

void bl_cuda_start_mixing(bl_cuda *c, const bl_pass *p)
{
    if (!c->later.mix) return;
    bl_cuda_mixing a = bl_cuda_mixing_of(c, p);
    if (bl_cuda_mix_many(c->side, &a)) {
        c->later.mix = false;
        return;
    }
    const bl_cuda_product dots = bl_cuda_take_parts(c, p);
    bl_cuda_multiply_parts(c->side, &dots, c->parts);
    finish_mixing(c, p);
}

/* In a plain pass it waits: for the collapse, which may have to expand first, and for what is needed sooner. */
static void mix(bl_backend *b, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb)
{
    bl_cuda *c = cuda_of(b);
    c->later.mix = true;
    c->later.mixing = m;
    c->later.streams = H;
    c->later.pre = pre;
    c->later.post = post;
    c->later.comb = comb;
    if (p->plain) return;
    bl_cuda_fork(c);
    bl_cuda_start_mixing(c, p);
}

static void collapse(bl_backend *b, const bl_pass *p, const bl_matrix *norm, uint16_t *x, const uint16_t *H, const float *pre)
{
    bl_cuda *c = cuda_of(b);
    const float eps = c->config.rms_norm_eps;
    if (c->later.expand) {
        bl_cuda_advance *a = &c->later.advance;
        a->pre = pre;
        a->norm = norm->codes;
        a->x = x;
        a->rounded = c->x_rounded;
        a->eps = eps;
        bl_cuda_advance_streams(c->stream, a);
        c->later.expand = false;
    } else {
        bl_cuda_collapse(c->stream, x, p->plain ? c->x_rounded : NULL, H, pre, norm->codes, NULL, p->tokens, hidden(c), eps);
    }
    c->x_is_rounded = p->plain;
}

static void expand(bl_backend *b, const bl_pass *p, uint16_t *H, const uint16_t *y, const float *post, const float *comb)
{
    bl_cuda *c = cuda_of(b);
    const bool apart = c->apart;
    bl_cuda_join(c);
    if (!p->plain) {
        bl_cuda_expand(c->stream, H, y, post, comb, p->tokens, hidden(c));
        return;
    }
    c->later.expand = true;
    c->later.advance.H = H;
    c->later.advance.post = post;
    c->later.advance.comb = comb;
    c->later.advance.T = p->tokens;
    c->later.advance.D = hidden(c);
    c->later.advance.early = !apart && !c->later.close; /* else the coefficients are new */
}

/* The expansion that was put off, for what needs the streams as they are. */
static void expand_now(bl_cuda *c)
{
    const bl_cuda_advance *a = &c->later.advance;
    if (!c->later.expand) return;
    c->later.expand = false;
    if (!a->partial) bl_cuda_sum_experts(c->stream, c->later.partial, a->out, a->slot_of, a->shared, a->T, a->k, a->D);
    bl_cuda_to_bf16(c->stream, c->later.y, c->later.partial, a->T * a->D);
    bl_cuda_expand(c->stream, a->H, c->later.y, a->post, a->comb, a->T, a->D);
}

static void round_sum(bl_backend *b, const bl_pass *p, uint16_t *y, const float *partial)
{
    bl_cuda *c = cuda_of(b);
    if (!p->plain) bl_cuda_to_bf16(c->stream, y, partial, p->tokens * hidden(c));
    c->later.y = y;
}

void bl_cuda_put_off_sum(bl_cuda *c, float *partial, bool done)
{
    c->later.partial = partial;
    c->later.advance.partial = done ? partial : NULL;
    c->later.close = false;
}

static void head(bl_backend *b, const bl_pass *p, const uint16_t *H, const float *pre)
{
    bl_cuda *c = cuda_of(b);
    expand_now(c);
    const int64_t *wanted = (const int64_t *)(const void *)(c->device_tables + c->layout.wanted);
    bl_cuda_collapse(c->stream, c->head_x, NULL, H, pre, p->weights->norm.codes, wanted, p->wanted_count, hidden(c),
                     c->config.rms_norm_eps);
    bl_cuda_linear(c, &p->weights->head, c->head_x, NULL, p->wanted_count, NULL, c->device_logits);
}

static void sample(bl_backend *b, const bl_pass *p)
{
    bl_cuda *c = cuda_of(b);
    uint8_t *at = c->device_tables;
    const bl_cuda_draw *draws = (const bl_cuda_draw *)(const void *)(at + c->layout.draws);
    bl_cuda_sample(c->stream, (bl_cuda_drawn *)(void *)(at + c->layout.drawn), c->device_logits, draws, p->wanted_count,
                   c->shard.vocab.count);
}

/* ---- experts */

/* Logits of the experts, and the products of the mixing in the same launch where that can be: both want little, and at once. */
static void score_experts(bl_cuda *c, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    const bl_cuda_product gate = bl_cuda_product_of(c, c->stream, &l->gate, x, NULL, p->tokens, NULL, c->router);
    if (c->later.mix) {
        const bl_cuda_product dots = mixing_dots(c, p);
        if (bl_cuda_multiply_with_parts(c->stream, &gate, &dots, c->parts)) {
            c->later.mix = false;
            c->later.parts = true;
            return;
        }
    }
    bl_cuda_multiply(c->stream, &gate);
    bl_cuda_fork(c);
    bl_cuda_start_mixing(c, p);
}

static void route(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, int32_t *ids, float *gates)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    const int64_t E = f->n_routed_experts, k = f->num_experts_per_tok;
    score_experts(c, p, l, x);
    c->sorted = p->plain && bl_cuda_routes_few(p->tokens, E, k);
    if (c->sorted) {
        const bl_cuda_mixing mixing = bl_cuda_mixing_of(c, p);
        bl_cuda_route_few(c->stream, &c->groups, ids, gates, c->router, l->gate_bias.codes, p->tokens, E, k, f->norm_topk_prob,
                          f->routed_scaling_factor, c->shard.experts.first, c->shard.experts.count, c->later.parts ? &mixing : NULL);
        c->later.parts = false;
        return;
    }
    if (c->later.parts) {
        bl_cuda_fork(c);
        finish_mixing(c, p);
    }
    bl_cuda_route(c->stream, ids, gates, c->router, l->gate_bias.codes, p->tokens, E, k,
                  f->norm_topk_prob, f->routed_scaling_factor);
}

/* What the products of a layer's experts take: of the routed ones, and of the shared one. */
typedef struct expert_products {
    bl_cuda_expert_product up, down;
    bl_cuda_product shared_up[2], shared_down;
} expert_products;

static void describe_routed(expert_products *e, const bl_cuda *c, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    const int64_t k = c->config.num_experts_per_tok, E = c->shard.experts.count, T = p->tokens;
    const int64_t inter = c->config.moe_intermediate_size, D = hidden(c);
    const bl_expert *first = &l->experts[0];
    const bool many = bl_cuda_many_experts(T, first->w1.kind, inter, D) && bl_cuda_many_experts(T, first->w2.kind, D, inter);
    e->up = (bl_cuda_expert_product){.experts = c->experts + (l->index - c->shard.layers.first) * E, .groups = &c->groups,
                                     .kind = first->w1.kind, .rows = inter, .cols = D, .which = {0, 1}, .count = 2,
                                     .x = cuda_quantised(&first->w1) ? c->x_rounded : x, .by_token = true, .y = {c->gate, c->up}, .T = T,
                                     .k = k, .E = E, .many = many, .grouped = c->out, /* free until the products' results */
                                     .spare = (int)T / 2 + 1 /* for routing and mixing, which go on: two blocks on each */};
    e->down = e->up;
    e->down.kind = first->w2.kind;
    e->down.rows = D;
    e->down.cols = inter;
    e->down.which[0] = 2;
    e->down.count = 1;
    e->down.x = c->act;
    e->down.by_token = false;
    e->down.y[0] = c->out;
    e->down.again = true;
    e->down.spare = 0;
}

/* Its rows lie behind those of the slots. */
static void describe_shared(expert_products *e, bl_cuda *c, bl_cuda_stream s, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    const int64_t at = p->tokens * c->config.num_experts_per_tok * c->config.moe_intermediate_size;
    const uint16_t *act = c->act + at;
    e->shared_up[0] = bl_cuda_product_of(c, s, &l->shared.w1, x, c->x_rounded, p->tokens, c->gate + at, NULL);
    e->shared_up[1] = bl_cuda_product_of(c, s, &l->shared.w3, x, c->x_rounded, p->tokens, c->up + at, NULL);
    e->shared_down = bl_cuda_product_of(c, s, &l->shared.w2, act, act, p->tokens, c->shared_out, NULL);
}

/* The shared expert's products in the launches of the routed ones, if all of them can be. */
static bool join_products(expert_products *e, const bl_layer *l)
{
    if (cuda_quantised(&l->shared.w2) != cuda_quantised(&l->experts[0].w2) || !bl_cuda_joins_experts(&e->up, &e->shared_up[0]) ||
        !bl_cuda_joins_experts(&e->up, &e->shared_up[1]) || !bl_cuda_joins_experts(&e->down, &e->shared_down))
        return false;
    e->up.shared = e->shared_up;
    e->up.shared_count = 2;
    e->down.shared = &e->shared_down;
    e->down.shared_count = 1;
    return true;
}

/* Beside the routed ones. */
static void shared_beside(bl_cuda *c, const bl_pass *p, const bl_layer *l, const expert_products *e)
{
    const int64_t T = p->tokens, inter = c->config.moe_intermediate_size, at = T * c->config.num_experts_per_tok * inter;
    bl_cuda_multiply(c->side, &e->shared_up[0]);
    bl_cuda_multiply(c->side, &e->shared_up[1]);
    bl_cuda_swiglu(c->side, c->act + at, c->gate + at, c->up + at, NULL, 0, T, inter, c->config.swiglu_limit, cuda_quantised(&l->shared.w2),
                   false);
    bl_cuda_multiply(c->side, &e->shared_down);
}

static void experts(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates,
                    float *partial)
{
    bl_cuda *c = cuda_of(b);
    const int64_t T = p->tokens, k = c->config.num_experts_per_tok, inter = c->config.moe_intermediate_size;
    expert_products e;
    bool together = false;
    if (!c->x_is_rounded) bl_cuda_round_fp8(c->stream, c->x_rounded, x, hidden(c), T, hidden(c));
    describe_routed(&e, c, p, l, x);
    if (c->shard.shared) {
        describe_shared(&e, c, c->side, p, l, x);
        together = join_products(&e, l);
        if (!together) {
            bl_cuda_fork(c);
            shared_beside(c, p, l, &e);
        }
    }
    if (!c->sorted) bl_cuda_sort(c->stream, &c->groups, ids, gates, T, k, c->shard.experts.first, c->shard.experts.count, e.up.many);
    bl_cuda_multiply_experts(c->stream, &e.up);
    bl_cuda_swiglu(c->stream, c->act, c->gate, c->up, c->groups.gate, T * k, T * k + (together ? T : 0), inter, c->config.swiglu_limit,
                   cuda_quantised(&l->experts[0].w2), e.up.many);
    bl_cuda_multiply_experts(c->stream, &e.down);
    const uint16_t *beside = c->shard.shared ? c->shared_out : NULL;
    bl_cuda_put_off_sum(c, partial, !p->plain);
    c->later.advance.out = c->out;
    c->later.advance.shared = beside;
    c->later.advance.slot_of = c->groups.slot_of;
    c->later.advance.k = (int)k;
    if (p->plain) return;
    bl_cuda_join(c);
    bl_cuda_sum_experts(c->stream, partial, c->out, c->groups.slot_of, beside, T, k, hidden(c));
}

/* ---- Engram */

static void engram_rows(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *e)
{
    bl_cuda *c = cuda_of(b);
    const int64_t width = l->engram.table.cols, count = p->tokens * p->engram_columns;
    const uint8_t *codes = c->device_rows + cuda_row_offset(c, l);
    if (cuda_gathers(c)) {
        const int64_t *rows = (const int64_t *)(const void *)(c->device_tables + c->layout.engram);
        const bl_rows held = bl_cuda_held_rows(c, l);
        const bl_cuda_table table = {.codes = l->engram.table.codes, .scale = l->engram.table.scale, .width = width,
                                     .cut = c->shard.engram_parts > 1, .first = held.first, .rows = held.count};
        bl_cuda_engram_gather(c->stream, e, &table, rows + l->engram_slot * count, count);
        return;
    }
    bl_cuda_gather(c, l);
    bl_cuda_send_rows(c, l);
    bl_cuda_engram_rows(c->stream, e, codes, codes + count * width, count, width);
}

static void engram(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *H, const uint16_t *e)
{
    bl_cuda *c = cuda_of(b);
    expand_now(c);
    bl_cuda_linear(c, &l->engram.wkv, e, NULL, p->tokens, c->engram_kv, NULL);
    bl_cuda_engram_gate(c->stream, H, c->engram_kv, l->engram.qk, p->tokens, hidden(c), c->config.rms_norm_eps);
}

void bl_cuda_set_operations(bl_backend *t)
{
    t->embed = embed;
    t->fan_out = fan_out;
    t->mix = mix;
    t->collapse = collapse;
    t->expand = expand;
    t->round = round_sum;
    t->route = route;
    t->experts = experts;
    t->engram_rows = engram_rows;
    t->engram = engram;
    t->head = head;
    t->sample = sample;
}
