/* Attention: projections, window rows, compressor, indexer, the sparse product, the grouped output projection. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>

static const float *rotation(const bl_cuda *c, const bl_layer *l)
{
    return c->tables.rotation[l->ratio > 0];
}

static int64_t ring_offset(const bl_cuda *c, const bl_layer *l)
{
    const int64_t rows = bl_ring_rows(&c->config), bytes = (int64_t)bl_window_row_bytes(c->config.head_dim);
    return (l->index - c->shard.layers.first) * rows * bytes;
}

/* Is the compressor's work done beside the projections, as the indexer's is for a few tokens? */
static bool makes_entries(const bl_layer *l, int64_t T)
{
    return T <= BL_CUDA_FEW && l->kv_source && bl_cuda_holds_key(&l->compressor.wk);
}

/* The compressor's first products; z where entries are of pairs. Returns how many. */
static int compressor_products(bl_cuda *c, const bl_layer *l, const uint16_t *x, int64_t T, bl_cuda_product to[2])
{
    if (l->ratio == 1) {
        to[0] = bl_cuda_product_of(c, c->stream, &l->compressor.wkv, x, NULL, T, c->pooled, NULL);
        return 1;
    }
    to[0] = bl_cuda_product_of(c, c->stream, &l->compressor.wkv, x, NULL, T, NULL, c->pair_kv);
    to[1] = bl_cuda_product_of(c, c->stream, &l->compressor.wgate, x, NULL, T, NULL, c->pair_z);
    return 2;
}

static bl_cuda_entries entries_of(const bl_cuda *c, const bl_layer *l)
{
    const bl_config *f = &c->config;
    return (bl_cuda_entries){.t = &c->tables, .latent = c->pooled, .key = c->key, .k_norm = l->compressor.k_norm.codes,
                             .frequency = c->frequency + f->qk_rope_head_dim / 2, .d = f->head_dim, .width = f->index_head_dim,
                             .R = f->qk_rope_head_dim, .ratio = l->ratio, .source = l->kv_slot, .eps = f->rms_norm_eps};
}

static bl_cuda_index_query index_query_of(const bl_cuda *c, const bl_layer *l, int64_t T)
{
    const bl_config *f = &c->config;
    const int64_t heads = f->index_n_heads, width = f->index_head_dim;
    return (bl_cuda_index_query){.rows = c->index_rows, .weights = c->index_w, .q = c->index_q, .dots = c->index_dots,
                                 .rotation = rotation(c, l), .T = T, .heads = heads, .width = width, .R = f->qk_rope_head_dim,
                                 .scale = (float)(pow((double)width, -0.5) * pow((double)heads, -0.5))};
}

/* Of a few tokens, with what the compressor and the indexer want of the same inputs: in as many launches as without. */
static void project_few(bl_cuda *c, const bl_pass *p, const bl_layer *l, const uint16_t *x, uint16_t *qr, uint16_t *q,
                        const bl_cuda_window *window)
{
    const bl_config *f = &c->config;
    const int64_t T = p->tokens;
    const bool with_entries = makes_entries(l, T);
    const bl_cuda_product down = bl_cuda_product_of(c, c->stream, &l->wq_a, x, c->x_rounded, T, c->down, NULL);
    const bl_cuda_product kv_down = bl_cuda_product_of(c, c->stream, &l->wkv, x, c->x_rounded, T, c->kv_down, NULL);
    const bl_cuda_product dots = bl_cuda_take_parts(c, p);
    bl_cuda_product with[BL_CUDA_BESIDE];
    int count = with_entries ? compressor_products(c, l, x, T, with) : 0;
    if (l->index_source) with[count++] = bl_cuda_product_of(c, c->stream, &l->indexer.weights_proj, x, NULL, T, c->index_dots, NULL);
    bl_cuda_multiply_two(c->stream, &down, &kv_down);
    const bl_cuda_between between = {.y = qr, .rounded = c->qr_rounded, .x = c->down, .norm = l->q_norm.codes, .n = f->q_lora_rank,
                                     .eps = f->rms_norm_eps, .window = *window, .dots = dots.rows ? &dots : NULL, .parts = c->parts,
                                     .with = with, .with_count = count};
    bl_cuda_prepare_attention(c->stream, &between);
    const bl_cuda_product up = bl_cuda_product_of(c, c->stream, &l->wq_b, qr, c->qr_rounded, T, q, NULL);
    bl_cuda_index_query index;
    if (l->index_source) {
        const bl_cuda_product index_up = bl_cuda_product_of(c, c->stream, &l->indexer.wq_b, qr, c->qr_rounded, T, c->index_q, NULL);
        bl_cuda_multiply_two(c->stream, &up, &index_up);
        index = index_query_of(c, l, T);
    } else {
        bl_cuda_multiply(c->stream, &up);
    }
    const bl_cuda_entries e = entries_of(c, l);
    const bool pairs = l->ratio > 1;
    const bl_cuda_compression entries = {.e = &e, .kv = pairs ? c->pair_kv : NULL, .z = pairs ? c->pair_z : NULL,
                                         .norm = l->compressor.norm.codes, .wk = l->compressor.wk};
    const bl_cuda_behind behind = {.q = q, .rotation = rotation(c, l), .T = T, .heads = c->shard.heads.count, .d = f->head_dim,
                                   .R = f->qk_rope_head_dim, .index = l->index_source ? &index : NULL,
                                   .entries = with_entries ? &entries : NULL};
    bl_cuda_finish_queries(c->stream, &behind);
}

static void project_in(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, uint16_t *qr, uint16_t *q, uint8_t *kv)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    const int64_t T = p->tokens, R = f->qk_rope_head_dim, d = f->head_dim;
    if (!c->x_is_rounded) bl_cuda_round_fp8(c->stream, c->x_rounded, x, f->hidden_size, T, f->hidden_size);
    c->chosen = false;
    c->stored = T <= bl_ring_rows(f) - f->sliding_window;
    const bl_cuda_window window = {.t = &c->tables, .kv = kv, .down = c->kv_down, .norm = l->kv_norm.codes, .rotation = rotation(c, l),
                                   .d = d, .R = R, .eps = f->rms_norm_eps, .ring = c->stored ? bl_ring_rows(f) : 0,
                                   .layer_offset = ring_offset(c, l)};
    if (T <= BL_CUDA_FEW) {
        project_few(c, p, l, x, qr, q, &window);
        return;
    }
    bl_cuda_fork(c);
    bl_cuda_linear_on(c, c->side, &l->wkv, x, c->x_rounded, T, c->kv_down, NULL);
    bl_cuda_linear(c, &l->wq_a, x, c->x_rounded, T, c->down, NULL);
    bl_cuda_window_rows(c->side, &window);
    bl_cuda_mark(c); /* window rows beside the queries, until attention needs them */
    bl_cuda_start_mixing(c, p);
    bl_cuda_rmsnorm(c->stream, qr, c->qr_rounded, c->down, l->q_norm.codes, T, f->q_lora_rank, f->rms_norm_eps);
    bl_cuda_linear(c, &l->wq_b, qr, c->qr_rounded, T, q, NULL);
    bl_cuda_rope(c->stream, q, rotation(c, l), T, c->shard.heads.count, d, R);
}

static void compress(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    const int64_t T = p->tokens, d = f->head_dim;
    bl_cuda_product first[2];
    c->chosen = true;
    if (makes_entries(l, T)) return;
    const int count = compressor_products(c, l, x, T, first);
    for (int i = 0; i < count; i++) bl_cuda_multiply(c->stream, &first[i]);
    if (count > 1) bl_cuda_pool_pairs(c->stream, &c->tables, c->pooled, c->pair_kv, c->pair_z, d, l->kv_slot);
    bl_cuda_rmsnorm(c->stream, c->pooled, NULL, c->pooled, l->compressor.norm.codes, T, d, f->rms_norm_eps);
    bl_cuda_linear(c, &l->compressor.wk, c->pooled, NULL, T, c->key, NULL);
    const bl_cuda_entries e = entries_of(c, l);
    bl_cuda_store_entries(c->stream, &e);
}

static void choose(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const uint16_t *qr, int32_t *selected,
                   int32_t *candidates)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    c->chosen = true;
    if (p->tokens > BL_CUDA_FEW) {
        const bl_cuda_index_query queries = index_query_of(c, l, p->tokens);
        bl_cuda_linear(c, &l->indexer.wq_b, qr, c->qr_rounded, p->tokens, c->index_q, NULL);
        bl_cuda_linear(c, &l->indexer.weights_proj, x, NULL, p->tokens, c->index_dots, NULL);
        bl_cuda_index_queries(c->stream, &queries);
    }
    bl_cuda_selection a = {.t = &c->tables, .queries = c->index_rows, .weights = c->index_w, .heads = f->index_n_heads,
                           .width = f->index_head_dim, .ratio = l->ratio, .source = l->kv_slot, .topk = f->index_topk,
                           .longest = c->longest / l->ratio, .scores = c->scores, .best = c->best, .selected = selected,
                           .candidates = candidates, .blocks = f->candidate_topk_blocks, .size = f->candidate_block_size,
                           .publish = l->candidates, .filtered = l->filtered};
    const int64_t most = c->sizes.score_floats / a.longest; /* rows that the score buffer holds */
    for (a.first = 0; a.first < p->tokens; a.first += a.rows) {
        a.rows = p->tokens - a.first < most ? p->tokens - a.first : most;
        bl_cuda_select(c->stream, &a);
    }
}

static void attend(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *q, const uint8_t *kv, const int32_t *selected,
                   uint16_t *o)
{
    bl_cuda *c = cuda_of(b);
    const bl_config *f = &c->config;
    const bl_cuda_mixing mixing = bl_cuda_mixing_of(c, p);
    if (p->tokens > BL_CUDA_FEW) bl_cuda_await(c);
    const bl_cuda_attention a = {.t = &c->tables, .q = q, .kv = kv, .selected = l->ratio > 0 ? selected : NULL, .sink = l->sink.codes,
                                 .rotation = rotation(c, l), .o = o, .heads = c->shard.heads.count, .d = f->head_dim,
                                 .R = f->qk_rope_head_dim, .window = f->sliding_window, .ring = bl_ring_rows(f), .topk = f->index_topk,
                                 .layer_offset = ring_offset(c, l), .source = l->kv_slot,
                                 .scale = (float)(1.0 / sqrt((double)f->head_dim)), .scores = c->attend_scores,
                                 .mixing = c->later.parts ? &mixing : NULL, .early = p->tokens <= BL_CUDA_FEW,
                                 .fresh = p->tokens <= BL_CUDA_FEW && c->chosen};
    bl_cuda_attend(c->stream, &a);
    c->later.parts = false;
}

static void store_window(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint8_t *kv)
{
    bl_cuda *c = cuda_of(b);
    (void)p;
    if (c->stored) return;
    bl_cuda_fork(c); /* nothing waits for it but the next pass */
    bl_cuda_store_window(c->side, &c->tables, kv, c->config.head_dim, bl_ring_rows(&c->config), ring_offset(c, l));
}

static void project_out(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *o, float *partial)
{
    bl_cuda *c = cuda_of(b);
    const int64_t T = p->tokens, groups = c->shard.groups.count, cols = l->wo_a.cols, rank = c->config.o_lora_rank;
    const int64_t width = (int64_t)c->shard.heads.count * c->config.head_dim / groups; /* of a group's input */
    if (cols != width) { /* K comes in multiples of 32: zeros behind each group's input; the buffer begins as zeros */
        cudaMemcpy2DAsync(c->padded, (size_t)cols * 2, o, (size_t)width * 2, (size_t)width * 2, (size_t)(T * groups),
                          cudaMemcpyDeviceToDevice, c->stream);
        o = c->padded;
    }
    const bl_cuda_product a = {.w = l->wo_a, .rows = rank, .x = o, .ldx = groups * cols, .tokens = T, .y16 = c->group, .ld = groups * rank,
                               .groups = groups, .x_step = cols, .row_step = rank, .y_step = rank,
                               .wide = c->wide, .wide_elements = CUDA_WIDE, .early = cols == width};
    bl_cuda_multiply(c->stream, &a); /* bf16 activations, whatever its codes */
    bl_cuda_linear(c, &l->wo_b, c->group, NULL, T, NULL, partial);
    bl_cuda_put_off_sum(c, partial, true);
    c->later.close = !cuda_quantised(&l->wo_b); /* else its input is rounded between the products */
}

void bl_cuda_set_attention(bl_backend *t)
{
    t->project_in = project_in;
    t->compress = compress;
    t->select = choose;
    t->attend = attend;
    t->store_window = store_window;
    t->project_out = project_out;
}
