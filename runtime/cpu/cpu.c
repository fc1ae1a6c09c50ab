/* The CPU backend: its memory, its passes, its table. */
#include "runtime/cpu/cpu.h"

#include "kernels/cpu.h"
#include "runtime/rope.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Rows of a larger table are asked for ahead of the layer that reads them: they may have to come from disk. */
#define PREFETCH_TABLE ((int64_t)64 << 20)

/* ---- memory */

static void *cpu_alloc(bl_backend *b, uint64_t bytes)
{
    (void)b;
    if (bytes > SIZE_MAX / 2) return NULL;
    return aligned_alloc(CPU_ALIGN, ((size_t)bytes + CPU_ALIGN) & ~(size_t)(CPU_ALIGN - 1));
}

static void cpu_release(bl_backend *b, void *p)
{
    (void)b;
    free(p);
}

static void cpu_copy_in(bl_backend *b, void *device, const void *host, uint64_t bytes)
{
    (void)b;
    memcpy(device, host, bytes);
}

static void cpu_copy_out(bl_backend *b, void *host, const void *device, uint64_t bytes)
{
    (void)b;
    memcpy(host, device, bytes);
}

void *bl_cpu_keep(bl_cpu *c, uint64_t bytes)
{
    /* the list's link sits in front, in a line of its own */
    if (bytes > SIZE_MAX / 2) return NULL;
    cpu_memory *m = cpu_alloc(&c->base, bytes + CPU_ALIGN);
    if (!m) return NULL;
    m->next = c->owned;
    c->owned = m;
    c->kept += bytes;
    return (uint8_t *)m + CPU_ALIGN;
}

static bl_status cpu_import(bl_backend *b, const void **device, const void *host, uint64_t bytes, size_t align, bl_error *err)
{
    *device = host;
    if ((uintptr_t)host % align == 0) return BL_OK;
    void *copy = bl_cpu_keep(cpu_of(b), bytes);
    if (!copy) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a weight that is not aligned in its file");
    memcpy(copy, host, bytes);
    *device = copy;
    return BL_OK;
}

/* ---- dispatch */

/* Below this a dispatch takes longer to hand out (about a microsecond) than to do. */
enum { SMALL_BYTES = 64 << 10 };

void bl_cpu_run(bl_cpu *c, int64_t bytes, int64_t items, void (*fn)(void *arg, int64_t item, int worker), void *arg)
{
    bl_pool_run(bytes < SMALL_BYTES ? NULL : c->pool, items, fn, arg);
}

typedef struct token_job {
    bl_cpu *c;
    cpu_token_fn *fn;
    void *arg;
    int64_t n, each;
} token_job;

static void token_item(void *arg, int64_t item, int worker)
{
    const token_job *j = arg;
    const int64_t from = item * j->each, to = from + j->each < j->n ? from + j->each : j->n;
    j->fn(j->c, j->arg, from, to, worker);
}

void bl_cpu_tokens(bl_cpu *c, int64_t n, int64_t most, cpu_token_fn *fn, void *arg)
{
    token_job j = {c, fn, arg, n, (n + c->threads - 1) / c->threads};
    if (n == 0) return;
    if (j.each > most) j.each = most;
    /* elementwise parts touch the streams about once */
    bl_cpu_run(c, n * BL_HC_MULT * c->config.hidden_size * (int64_t)sizeof(uint16_t), (n + j.each - 1) / j.each, token_item, &j);
}

/* ---- passes */

static void rotation_tokens(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker)
{
    const bl_pass *p = arg;
    const int R = c->config.qk_rope_head_dim;
    (void)worker;
    for (int64_t t = from; t < to; t++)
        for (int k = 0; k < 2; k++) bl_rope_rotation(c->rotation[k] + t * R, c->frequency[k], R / 2, p->position[t]);
}

static void prefetch(const uint8_t *at, int64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at / page * page;
    madvise((void *)from, (uintptr_t)at + (uintptr_t)bytes - from, MADV_WILLNEED);
}

static void prefetch_tables(const bl_pass *p)
{
    for (int i = 0; i < p->weights->layer_count; i++) {
        const bl_layer *l = &p->weights->layers[i];
        const bl_matrix *t = &l->engram.table;
        if (l->engram_slot < 0 || t->rows * t->cols < PREFETCH_TABLE) continue;
        const int64_t *rows = p->engram_rows + l->engram_slot * p->engram_stride;
        for (int64_t k = 0; k < p->tokens * p->engram_columns; k++) {
            prefetch((const uint8_t *)t->codes + rows[k] * t->cols, t->cols);
            prefetch(t->scale + rows[k] * (t->cols / 32), t->cols / 32);
        }
    }
}

static bl_status cpu_begin(bl_backend *b, const bl_pass *p, bool *recorded, bl_error *err)
{
    bl_cpu *c = cpu_of(b);
    int64_t longest = 0;
    *recorded = false;
    for (int64_t i = 0; i < p->span_count; i++)
        if (p->spans[i].start + p->spans[i].count > longest) longest = p->spans[i].start + p->spans[i].count;
    if (c->config.kv_source_count) BL_TRY(bl_cpu_reserve_scores(c, longest, err));
    bl_cpu_tokens(c, p->tokens, 32, rotation_tokens, (void *)p);
    if (p->engram_rows) prefetch_tables(p);
    return BL_OK;
}

static bl_status cpu_end(bl_backend *b, bl_error *err)
{
    (void)b;
    (void)err;
    return BL_OK;
}

/* ---- creation */

static void cpu_destroy(bl_backend *b)
{
    bl_cpu *c = cpu_of(b);
    while (c->owned) {
        cpu_memory *next = c->owned->next;
        free(c->owned);
        c->owned = next;
    }
    free(c->scores);
    free(c->choose);
    free(c);
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Shapes that scratch is sized by. */
typedef struct widths {
    int64_t hidden, streams, low, query, groups, group_in, group_out, head, index, index_query, engram_in, inter;
} widths;

static widths measure(const bl_cpu *c)
{
    const bl_config *f = &c->config;
    const int64_t columns = bl_config_engram_columns(f);
    return (widths){.hidden = f->hidden_size,
                    .streams = (int64_t)BL_HC_MULT * f->hidden_size,
                    .low = f->q_lora_rank,
                    .query = (int64_t)c->shard.heads.count * f->head_dim,
                    .groups = c->shard.groups.count,
                    .group_in = (c->group_in + 31) / 32 * 32,
                    .group_out = (int64_t)c->shard.groups.count * f->o_lora_rank,
                    .head = f->head_dim,
                    .index = f->index_head_dim,
                    .index_query = (int64_t)f->index_n_heads * f->index_head_dim,
                    .engram_in = columns * f->engram_head_dim,
                    .inter = f->moe_intermediate_size};
}

/* Widest activation that is packed, rounded or not: BF16 weights take all of them plain. */
static int64_t widest(const widths *w)
{
    return max64(max64(w->hidden, w->low), max64(max64(w->group_out, w->engram_in), w->head));
}

static size_t worker_bytes(const bl_cpu *c, const widths *w)
{
    size_t most = bl_cpu_attend_bytes(c);
    const size_t tiles[] = {bl_cpu_tile_bytes(c, max64(w->streams, widest(w))), bl_cpu_tile_bytes(c, w->group_in), bl_cpu_expert_bytes(c),
                            (size_t)c->config.qk_rope_head_dim * sizeof(float)};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        if (tiles[i] > most) most = tiles[i];
    return (most + CPU_ALIGN - 1) & ~(size_t)(CPU_ALIGN - 1);
}

static bl_status allocate(bl_cpu *c, bl_error *err)
{
    const bl_config *f = &c->config;
    const widths w = measure(c);
    const int64_t T = c->max_tokens, R = f->qk_rope_head_dim, heads = f->index_n_heads;
    const bl_linear_kernels *k = &c->linear;
    const size_t streams_pack = bl_cpu_packed_bytes(k, T, w.streams), round_pack = bl_cpu_packed_bytes(k, T, widest(&w));
    c->group_stride = bl_cpu_packed_bytes(k, T, w.group_in);
    c->worker_bytes = worker_bytes(c, &w);
    const size_t groups_pack = c->group_stride * (size_t)w.groups, wide_pack = streams_pack > round_pack ? streams_pack : round_pack;
    const struct {
        void *at;
        uint64_t bytes;
    } buffers[] = {
        {&c->frequency[0], (uint64_t)R * 2},
        {&c->frequency[1], (uint64_t)R * 2},
        {&c->rotation[0], (uint64_t)(T * R) * 4},
        {&c->rotation[1], (uint64_t)(T * R) * 4},
        {&c->rounded, (uint64_t)(T * widest(&w)) * 2},
        {&c->plain_pack, groups_pack > wide_pack ? groups_pack : wide_pack},
        {&c->rounded_pack, round_pack},
        {&c->down, (uint64_t)(T * w.low) * 2},
        {&c->kv, (uint64_t)(T * w.head) * 2},
        {&c->group, (uint64_t)(T * w.group_out) * 2},
        {&c->padded, w.group_in == c->group_in ? 0 : (uint64_t)(T * w.groups * w.group_in) * 2},
        {&c->head_x, (uint64_t)(T * w.hidden) * 2},
        {&c->mix_dots, (uint64_t)T * BL_HC_MULT * (2 + BL_HC_MULT) * 4},
        {&c->squares, (uint64_t)T * 4},
        {&c->pair_kv, (uint64_t)(T * w.head) * 4},
        {&c->pair_z, (uint64_t)(T * w.head) * 4},
        {&c->pooled, (uint64_t)(T * w.head) * 2},
        {&c->key, (uint64_t)(T * w.index) * 2},
        {&c->new_entries, (uint64_t)T * 2 * sizeof *c->new_entries},
        {&c->index_q, (uint64_t)(T * w.index_query) * 2},
        {&c->index_dots, (uint64_t)(T * heads) * 2},
        {&c->index_rows, (uint64_t)(T * heads) * bl_index_row_bytes(w.index)},
        {&c->index_w, (uint64_t)(T * heads) * 4},
        {&c->router, (uint64_t)(T * f->n_routed_experts) * 4},
        {&c->engram_kv, f->engram_count ? (uint64_t)(T * (BL_HC_MULT + 1) * w.hidden) * 2 : 0},
        {&c->group_packed, (uint64_t)w.groups * sizeof *c->group_packed},
        {&c->products, (uint64_t)w.groups * sizeof *c->products},
        {&c->worker, (uint64_t)c->threads * c->worker_bytes},
    };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        void *p = bl_cpu_keep(c, buffers[i].bytes);
        if (!p) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the model's working buffers");
        memcpy(buffers[i].at, &p, sizeof p);
    }
    return bl_cpu_experts_init(c, err);
}

static const bl_backend table = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy_in,
    .download = cpu_copy_out,
    .import = cpu_import,
    .begin = cpu_begin,
    .end = cpu_end,
    .embed = bl_cpu_embed,
    .fan_out = bl_cpu_fan_out,
    .mix = bl_cpu_mix,
    .collapse = bl_cpu_collapse,
    .expand = bl_cpu_expand,
    .round = bl_cpu_round,
    .project_in = bl_cpu_project_in,
    .compress = bl_cpu_compress,
    .select = bl_cpu_select,
    .attend = bl_cpu_attend,
    .store_window = bl_cpu_store_window,
    .project_out = bl_cpu_project_out,
    .route = bl_cpu_route,
    .experts = bl_cpu_experts,
    .engram_rows = bl_cpu_engram_rows,
    .engram = bl_cpu_engram,
    .head = bl_cpu_head,
};

bl_status bl_backend_cpu(bl_backend **out, const bl_config *config, const bl_shard *shard, const bl_cpu_options *o, bl_error *err)
{
    bl_cpu *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the CPU backend");
    c->base = table;
    c->pool = o->pool;
    c->threads = bl_pool_threads(o->pool);
    c->config = *config;
    c->shard = *shard;
    c->max_tokens = o->max_tokens;
    c->group_in = (int64_t)shard->heads.count * config->head_dim / shard->groups.count;
    bl_linear_init(&c->linear, o->cpu & bl_cpu_detect());
    bl_op_init(&c->ops, o->cpu & bl_cpu_detect());
    if (o->adjust) o->adjust(&c->linear, &c->ops);
    bl_status s = allocate(c, err);
    if (s != BL_OK) {
        cpu_destroy(&c->base);
        return s;
    }
    for (int k = 0; k < 2; k++) bl_rope_frequencies(c->frequency[k], config, k == 1);
    *out = &c->base;
    return BL_OK;
}

bl_status bl_cpu_scratch_bytes(uint64_t *bytes, const bl_config *c, const bl_shard *shard, const bl_cpu_options *o, bl_error *err)
{
    bl_backend *b; /* what it does not touch it does not take */
    *bytes = 0;
    BL_TRY(bl_backend_cpu(&b, c, shard, o, err));
    *bytes = cpu_of(b)->kept;
    b->destroy(b);
    return BL_OK;
}
