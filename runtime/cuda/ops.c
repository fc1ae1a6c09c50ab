/* The operations but attention: streams, experts, Engram, head. */
#include "runtime/cuda/cuda.h"

static int64_t hidden(const bl_cuda *c)
{
    return c->config.hidden_size;
}

void bl_cuda_linear_on(bl_cuda *c, bl_cuda_stream s, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T,
                       uint16_t *y16, float *y32)
{
    if (cuda_quantised(w) && !rounded) {
        bl_cuda_round_fp8(s, c->rounded, x, w->cols, T, w->cols);
        rounded = c->rounded;
    }
    const bl_cuda_product p = {.w = *w, .rows = w->rows, .x = cuda_quantised(w) ? rounded : x, .ldx = w->cols, .tokens = T, .y16 = y16,
                               .y32 = y32, .ld = w->rows, .wide = s == c->side ? c->side_wide : c->wide,
                               .wide_elements = s == c->side ? CUDA_SIDE_WIDE : CUDA_WIDE,
                               .early = s == c->stream}; /* there a kernel goes before each */
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

/* Beside the sublayer: its coefficients are for the expansion after it. */
static void start_mixing(bl_cuda *c, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb)
{
    const bl_config *f = &c->config;
    const bl_cuda_product dots = {.w = m->fn, .rows = m->fn.rows, .x = H, .ldx = m->fn.cols, .tokens = p->tokens};
    bl_cuda_fork(c);
    bl_cuda_multiply_parts(c->side, &dots, c->parts);
    bl_cuda_mix(c->side, pre, post, comb, c->parts, H, m->scale.codes, m->base.codes, p->tokens, hidden(c), f->rms_norm_eps, f->hc_eps,
                f->hc_sinkhorn_iters);
}

/* In a plain pass it waits for the collapse, which may have to expand first. */
static void mix(bl_backend *b, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb)
{
    bl_cuda *c = cuda_of(b);
    if (!p->plain) {
        start_mixing(c, p, m, H, pre, post, comb);
        return;
    }
    c->later.mix = true;
    c->later.mixing = m;
    c->later.pre = pre;
    c->later.post = post;
    c->later.comb = comb;
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
    if (c->later.mix) start_mixing(c, p, c->later.mixing, H, c->later.pre, c->later.post, c->later.comb);
    c->later.mix = false;
}

static void expand(bl_backend *b, const bl_pass *p, uint16_t *H, const uint16_t *y, const float *post, const float *comb)
{
    bl_cuda *c = cuda_of(b);
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

static void route(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, int32_t *ids, float *gates)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    const int64_t E = f->n_routed_experts, k = f->num_experts_per_tok;
    bl_cuda_linear(c, &l->gate, x, NULL, p->tokens, NULL, c->router);
    c->sorted = p->plain && bl_cuda_routes_few(p->tokens, E, k);
    if (c->sorted) {
        bl_cuda_route_few(c->stream, &c->groups, ids, gates, c->router, l->gate_bias.codes, p->tokens, E, k, f->norm_topk_prob,
                          f->routed_scaling_factor, c->shard.experts.first, c->shard.experts.count);
        return;
    }
    bl_cuda_route(c->stream, ids, gates, c->router, l->gate_bias.codes, p->tokens, E, k,
                  f->norm_topk_prob, f->routed_scaling_factor);
}

static void routed(bl_cuda *c, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates)
{
    const bl_config *f = &c->config;
    const int64_t k = f->num_experts_per_tok, E = c->shard.experts.count, inter = f->moe_intermediate_size, D = hidden(c), T = p->tokens;
    const bl_expert *first = &l->experts[0];
    const bool many = bl_cuda_many_experts(T, first->w1.kind, inter, D) && bl_cuda_many_experts(T, first->w2.kind, D, inter);
    if (!c->sorted) bl_cuda_sort(c->stream, &c->groups, ids, gates, T, k, c->shard.experts.first, E, many);
    bl_cuda_expert_product up = {.experts = c->experts + (l->index - c->shard.layers.first) * E, .groups = &c->groups,
                                 .kind = first->w1.kind, .rows = inter, .cols = D, .which = {0, 1}, .count = 2,
                                 .x = cuda_quantised(&first->w1) ? c->x_rounded : x,
                                 .by_token = true, .y = {c->gate, c->up}, .T = T, .k = k, .E = E, .many = many,
                                 .grouped = c->out}; /* free until the products' results */
    bl_cuda_multiply_experts(c->stream, &up);
    bl_cuda_swiglu(c->stream, c->act, c->gate, c->up, c->groups.gate, T * k, inter, f->swiglu_limit, cuda_quantised(&first->w2),
                   many);
    bl_cuda_expert_product down = up;
    down.kind = first->w2.kind;
    down.rows = D;
    down.cols = inter;
    down.which[0] = 2;
    down.count = 1;
    down.x = c->act;
    down.by_token = false;
    down.y[0] = c->out;
    bl_cuda_multiply_experts(c->stream, &down);
}

/* Beside the routed ones. */
static void shared(bl_cuda *c, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    const bl_config *f = &c->config;
    const bl_expert *e = &l->shared;
    const int64_t inter = f->moe_intermediate_size;
    bl_cuda_linear_on(c, c->side, &e->w1, x, c->x_rounded, p->tokens, c->shared_gate, NULL);
    bl_cuda_linear_on(c, c->side, &e->w3, x, c->x_rounded, p->tokens, c->shared_up, NULL);
    bl_cuda_swiglu(c->side, c->shared_act, c->shared_gate, c->shared_up, NULL, p->tokens, inter, f->swiglu_limit, cuda_quantised(&e->w2),
                   false);
    bl_cuda_linear_on(c, c->side, &e->w2, c->shared_act, c->shared_act, p->tokens, c->shared_out, NULL);
}

static void experts(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates,
                    float *partial)
{
    bl_cuda *c = cuda_of(b);
    if (!c->x_is_rounded) bl_cuda_round_fp8(c->stream, c->x_rounded, x, hidden(c), p->tokens, hidden(c));
    bl_cuda_fork(c);
    if (c->shard.shared) shared(c, p, l, x);
    routed(c, p, l, x, ids, gates);
    bl_cuda_join(c);
    const uint16_t *beside = c->shard.shared ? c->shared_out : NULL;
    const int64_t k = c->config.num_experts_per_tok;
    bl_cuda_put_off_sum(c, partial, !p->plain);
    c->later.advance.out = c->out;
    c->later.advance.shared = beside;
    c->later.advance.slot_of = c->groups.slot_of;
    c->later.advance.k = (int)k;
    if (!p->plain) bl_cuda_sum_experts(c->stream, partial, c->out, c->groups.slot_of, beside, p->tokens, k, hidden(c));
}

/* ---- Engram */

static void engram_rows(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *e)
{
    bl_cuda *c = cuda_of(b);
    const int64_t width = l->engram.table.cols, count = p->tokens * p->engram_columns;
    const uint8_t *codes = c->device_rows + cuda_row_offset(c, l);
    if (cuda_gathers(c)) {
        const int64_t *rows = (const int64_t *)(const void *)(c->device_tables + c->layout.engram);
        bl_cuda_engram_gather(c->stream, e, l->engram.table.codes, l->engram.table.scale, rows + l->engram_slot * count, count, width);
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
