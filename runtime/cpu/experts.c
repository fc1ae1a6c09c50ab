/* Router and experts. Tokens are grouped by expert, in token order; every (token, expert) result is rounded to bf16 on its own and
 * summed by ascending expert, so that a token's result does not depend on its group. The shared expert is one more group. */
#include "runtime/cpu/cpu.h"

#include <string.h>

enum { TOKENS = 8, UP_ROWS = 32 /* rows of an up tile come in these: a scale group of the activation between */ };

/* One group: rows [first, first + count) of the slot arrays, and its place in the three dispatches. */
typedef struct group {
    const bl_expert *w;
    int64_t first, count;
    cpu_packed x, a;
    int64_t up_tile, down_tile;
    int64_t pack_item, up_item, down_item; /* its first item */
} group;

struct cpu_experts {
    group *groups; /* [experts + 1], only those with tokens */
    int64_t group_count;
    int64_t *start;   /* [experts + 1] first slot of an expert */
    int64_t *next;    /* [experts] */
    int32_t *token;   /* [slots] of a slot: max_tokens * k routed ones, then max_tokens of the shared expert */
    float *gate;      /* [slots] */
    int32_t *slot_of; /* [max_tokens * k] routed slots of a token, ascending by expert, then -1 */
    int64_t shared;   /* first slot of the shared expert */
    uint16_t *x;      /* [slots, D] gathered rows */
    uint16_t *a;      /* [slots, intermediate] */
    uint16_t *y;      /* [slots, D] */
    uint8_t *x_pack, *a_pack;
};

/* Bytes that groups of together n tokens pack into, however they are cut: the dearest block for each token, and what even blocks add
 * (3 tokens for each block of at least 48). */
static uint64_t group_pack_bytes(const bl_cpu *c, int64_t n, int64_t cols)
{
    size_t most = 0;
    for (int64_t t = 1; t <= CPU_BLOCK; t++) {
        const size_t each = (bl_cpu_blocks(c, NULL, t, cols).stride + (size_t)t - 1) / (size_t)t;
        if (each > most) most = each;
    }
    return (uint64_t)(n + n / 16 + 16) * most;
}

bl_status bl_cpu_experts_init(bl_cpu *c, bl_error *err)
{
    const bl_config *f = &c->config;
    const uint64_t T = (uint64_t)c->max_tokens, k = (uint64_t)f->num_experts_per_tok, slots = T * (k + 1);
    const uint64_t D = (uint64_t)f->hidden_size, inter = (uint64_t)f->moe_intermediate_size, E = (uint64_t)c->shard.experts.count;
    struct cpu_experts *e = bl_cpu_keep(c, sizeof *e);
    if (e) {
        *e = (struct cpu_experts){
            .groups = bl_cpu_keep(c, (E + 1) * sizeof *e->groups),
            .start = bl_cpu_keep(c, (E + 1) * sizeof *e->start),
            .next = bl_cpu_keep(c, E * sizeof *e->next),
            .token = bl_cpu_keep(c, slots * sizeof *e->token),
            .gate = bl_cpu_keep(c, slots * sizeof *e->gate),
            .slot_of = bl_cpu_keep(c, T * k * sizeof *e->slot_of),
            .shared = (int64_t)(T * k),
            .x = bl_cpu_keep(c, slots * D * sizeof *e->x),
            .a = bl_cpu_keep(c, slots * inter * sizeof *e->a),
            .y = bl_cpu_keep(c, slots * D * sizeof *e->y),
            .x_pack = bl_cpu_keep(c, group_pack_bytes(c, (int64_t)slots, f->hidden_size)),
            .a_pack = bl_cpu_keep(c, group_pack_bytes(c, (int64_t)slots, f->moe_intermediate_size)),
        };
    }
    c->experts = e;
    if (!e || !e->groups || !e->start || !e->next || !e->token || !e->gate || !e->slot_of || !e->x || !e->a || !e->y || !e->x_pack ||
        !e->a_pack)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the experts' working buffers");
    return BL_OK;
}

/* ---- router */

typedef struct expert_job {
    bl_cpu *c;
    const bl_pass *p;
    const bl_layer *l;
    int32_t *ids;
    float *gates, *partial;
    const uint16_t *x;
} expert_job;

static void route_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const expert_job *j = arg;
    const bl_config *f = &c->config;
    const int64_t E = f->n_routed_experts, k = f->num_experts_per_tok;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        c->ops.route(j->ids + t * k, j->gates + t * k, c->router + t * E, j->l->gate_bias.codes, E, k, f->norm_topk_prob,
                     f->routed_scaling_factor);
}

void bl_cpu_route(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, int32_t *ids, float *gates)
{
    bl_cpu *c = cpu_of(b);
    expert_job j = {.p = p, .l = l, .ids = ids, .gates = gates};
    const int64_t D = c->config.hidden_size;
    const cpu_packed packed = bl_cpu_pack(c, x, D, p->tokens, D, false);
    cpu_product logits = cpu_whole(&l->gate, &packed, NULL, c->router);
    bl_cpu_products(c, &logits, 1);
    bl_cpu_tokens(c, p->tokens, TOKENS, route_tokens, &j);
}

/* ---- groups */

/* Rank-local index of the i-th choice, -1 when another rank has that expert. */
static int64_t local_expert(const bl_cpu *c, const expert_job *j, int64_t i)
{
    const int64_t id = j->ids[i] - c->shard.experts.first;
    return id >= 0 && id < c->shard.experts.count ? id : -1;
}

/* Slots sorted by expert, then token. */
static void sort_slots(bl_cpu *c, const expert_job *j)
{
    struct cpu_experts *e = c->experts;
    const int64_t T = j->p->tokens, k = c->config.num_experts_per_tok, E = c->shard.experts.count;
    memset(e->start, 0, (size_t)(E + 1) * sizeof *e->start);
    for (int64_t i = 0; i < T * k; i++)
        if (local_expert(c, j, i) >= 0) e->start[local_expert(c, j, i) + 1]++;
    for (int64_t i = 0; i < E; i++) e->start[i + 1] += e->start[i];
    memcpy(e->next, e->start, (size_t)E * sizeof *e->next);
    for (int64_t t = 0; t < T; t++) {
        int32_t *of = e->slot_of + t * k;
        int64_t n = 0;
        for (int64_t i = t * k; i < (t + 1) * k; i++) {
            const int64_t id = local_expert(c, j, i);
            if (id < 0) continue;
            const int32_t slot = (int32_t)e->next[id]++;
            e->token[slot] = (int32_t)t;
            e->gate[slot] = j->gates[i];
            int64_t at = n++;
            for (; at > 0 && of[at - 1] > slot; at--) of[at] = of[at - 1];
            of[at] = slot;
        }
        while (n < k) of[n++] = -1;
    }
    for (int64_t t = 0; t < T; t++) {
        e->token[e->shared + t] = (int32_t)t;
        e->gate[e->shared + t] = 1;
    }
}

static int64_t tiles(int64_t rows, int64_t tile)
{
    return (rows + tile - 1) / tile;
}

typedef struct places {
    size_t x, a;                /* bytes of packed activations so far */
    int64_t packs, ups, downs;  /* items of the dispatches so far */
    int64_t work;               /* of the down products */
} places;

static void add_group(bl_cpu *c, places *at, const bl_expert *w, int64_t first, int64_t count)
{
    struct cpu_experts *e = c->experts;
    const int64_t D = c->config.hidden_size, inter = c->config.moe_intermediate_size;
    if (count == 0) return;
    group *g = &e->groups[e->group_count++];
    *g = (group){.w = w, .first = first, .count = count, .pack_item = at->packs, .up_item = at->ups, .down_item = at->downs};
    g->x = bl_cpu_blocks(c, e->x_pack + at->x, count, D);
    g->a = bl_cpu_blocks(c, e->a_pack + at->a, count, inter);
    g->up_tile = bl_cpu_tile_rows(c, &w->w1, inter, count, UP_ROWS);
    g->down_tile = bl_cpu_tile_rows(c, &w->w2, D, count, 8);
    at->x += g->x.stride * (size_t)g->x.blocks;
    at->a += g->a.stride * (size_t)g->a.blocks;
    at->work += bl_cpu_work(&w->w2, D, count);
    at->packs += g->x.blocks;
    at->ups += tiles(inter, g->up_tile) * g->x.blocks;
    at->downs += tiles(D, g->down_tile) * g->x.blocks;
}

static places form_groups(bl_cpu *c, const expert_job *j)
{
    struct cpu_experts *e = c->experts;
    places at = {0};
    e->group_count = 0;
    sort_slots(c, j);
    for (int64_t i = 0; i < c->shard.experts.count; i++)
        add_group(c, &at, &j->l->experts[i], e->start[i], e->start[i + 1] - e->start[i]);
    if (c->shard.shared) add_group(c, &at, &j->l->shared, e->shared, j->p->tokens);
    return at;
}

/* The group that item belongs to; first is the offset of the member that holds a group's first item. */
static const group *group_of(const struct cpu_experts *e, int64_t item, size_t first)
{
    int64_t low = 0, high = e->group_count - 1;
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        int64_t begins;
        memcpy(&begins, (const char *)&e->groups[mid] + first, sizeof begins);
        if (begins <= item) low = mid;
        else high = mid - 1;
    }
    return &e->groups[low];
}

/* ---- the three dispatches */

static int64_t block_count(const cpu_packed *x, int64_t block)
{
    const int64_t rest = x->tokens - block * x->block;
    return rest < x->block ? rest : x->block;
}

/* Gather a block's rows, round and pack them. */
static void pack_x(void *arg, int64_t item, int worker)
{
    const expert_job *j = arg;
    bl_cpu *c = j->c;
    struct cpu_experts *e = c->experts;
    const group *g = group_of(e, item, offsetof(group, pack_item));
    const int64_t block = item - g->pack_item, n = block_count(&g->x, block), D = c->config.hidden_size;
    const int64_t slot = g->first + block * g->x.block;
    (void)worker;
    for (int64_t i = slot; i < slot + n; i++) {
        const uint16_t *row = j->x + e->token[i] * D;
        if (cpu_quantised(&g->w->w1)) c->ops.round_fp8(e->x + i * D, row, D);
        else memcpy(e->x + i * D, row, (size_t)D * sizeof *row);
    }
    c->linear.pack(g->x.data + (size_t)block * g->x.stride, e->x + slot * D, D, n, D);
}

/* Worker memory of up_item: gate and up rows of a tile, then the tile's scratch. */
static int64_t up_values(void)
{
    const int64_t many = (int64_t)(CPU_BLOCK) * CPU_TILE, few = (int64_t)CPU_FEW * (CPU_TILE_MAX + UP_ROWS);
    return many > few ? many : few;
}

static size_t up_bytes(const bl_cpu *c)
{
    return (size_t)(2 * up_values()) * sizeof(uint16_t) + bl_cpu_tile_bytes(c, c->config.hidden_size);
}

size_t bl_cpu_expert_bytes(const bl_cpu *c)
{
    const size_t down = bl_cpu_tile_bytes(c, c->config.moe_intermediate_size), up = up_bytes(c);
    return up > down ? up : down;
}

/* A tile of gate and up rows, their SwiGLU, and its rounding: tiles are whole groups of 32. */
static void up_item(void *arg, int64_t item, int worker)
{
    const expert_job *j = arg;
    bl_cpu *c = j->c;
    struct cpu_experts *e = c->experts;
    const group *g = group_of(e, item, offsetof(group, up_item));
    const int64_t tile = (item - g->up_item) / g->x.blocks, block = (item - g->up_item) % g->x.blocks;
    const int64_t inter = c->config.moe_intermediate_size, row0 = tile * g->up_tile, slot = g->first + block * g->x.block;
    const int64_t rows = inter - row0 < g->up_tile ? inter - row0 : g->up_tile;
    uint16_t *gate = cpu_worker(c, worker), *up = gate + up_values();
    void *scratch = up + up_values();
    bl_cpu_tile(c, &g->w->w1, row0, row0 + rows, &g->x, block, gate, rows, scratch);
    bl_cpu_tile(c, &g->w->w3, row0, row0 + rows, &g->x, block, up, rows, scratch);
    for (int64_t i = 0; i < block_count(&g->x, block); i++) {
        uint16_t *a = e->a + (slot + i) * inter + row0;
        c->ops.swiglu(a, gate + i * rows, up + i * rows, e->gate[slot + i], c->config.swiglu_limit, rows);
        if (cpu_quantised(&g->w->w2)) c->ops.round_fp8(a, a, rows);
    }
}

static void pack_a(void *arg, int64_t item, int worker)
{
    const expert_job *j = arg;
    bl_cpu *c = j->c;
    const group *g = group_of(c->experts, item, offsetof(group, pack_item));
    const int64_t block = item - g->pack_item, inter = c->config.moe_intermediate_size;
    (void)worker;
    c->linear.pack(g->a.data + (size_t)block * g->a.stride, c->experts->a + (g->first + block * g->a.block) * inter, inter,
                   block_count(&g->a, block), inter);
}

static void down_item(void *arg, int64_t item, int worker)
{
    const expert_job *j = arg;
    bl_cpu *c = j->c;
    const group *g = group_of(c->experts, item, offsetof(group, down_item));
    const int64_t tile = (item - g->down_item) / g->a.blocks, block = (item - g->down_item) % g->a.blocks;
    const int64_t D = c->config.hidden_size, row0 = tile * g->down_tile;
    const int64_t row1 = row0 + g->down_tile < D ? row0 + g->down_tile : D;
    uint16_t *y = c->experts->y + (g->first + block * g->a.block) * D + row0;
    bl_cpu_tile(c, &g->w->w2, row0, row1, &g->a, block, y, D, cpu_worker(c, worker));
}

static void sum_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const expert_job *j = arg;
    const struct cpu_experts *e = c->experts;
    const int64_t D = c->config.hidden_size, k = c->config.num_experts_per_tok;
    (void)worker;
    for (int64_t t = from; t < to; t++) {
        float *sum = j->partial + t * D;
        memset(sum, 0, (size_t)D * sizeof *sum);
        for (int64_t i = 0; i < k && e->slot_of[t * k + i] >= 0; i++) c->ops.accumulate(sum, e->y + e->slot_of[t * k + i] * D, D);
        if (c->shard.shared) c->ops.accumulate(sum, e->y + (e->shared + t) * D, D);
    }
}

void bl_cpu_experts(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates,
                    float *partial)
{
    bl_cpu *c = cpu_of(b);
    expert_job j = {.c = c, .p = p, .l = l, .x = x, .ids = (int32_t *)ids, .gates = (float *)gates, .partial = partial};
    const places items = form_groups(c, &j);
    bl_cpu_run(c, (int64_t)items.x, items.packs, pack_x, &j);
    bl_cpu_run(c, 2 * items.work, items.ups, up_item, &j);
    bl_cpu_run(c, (int64_t)items.a, items.packs, pack_a, &j);
    bl_cpu_run(c, items.work, items.downs, down_item, &j);
    bl_cpu_tokens(c, p->tokens, TOKENS, sum_tokens, &j);
}
