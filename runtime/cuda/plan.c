/* What the CUDA backend takes, from shapes alone: compiled in every build, so that a plan can be made anywhere. */
#include "runtime/cuda/cuda.h"

enum {
    SCORE_FLOATS = 64 << 20, /* of the index scores, unless a single query needs more */
    FEW_PAGES = 256          /* room of the page table at first where the cache grows on demand */
};

/* Of recorded passes: kernels of a layer and of the rest at most, with a fifth to spare; bytes of a kernel, which take 2.2 to 3.1 KiB
 * (runtime/README.md); machine code, loaded when a kernel is first used. */
enum { LAYER_KERNELS = 48, PASS_KERNELS = 32, KERNEL_BYTES = 4 << 10, CODE_BYTES = 64 << 20 };

uint64_t bl_cuda_graph_bytes(const bl_shard *shard)
{
    return CODE_BYTES + (uint64_t)CUDA_GRAPHS * ((uint64_t)shard->layers.count * LAYER_KERNELS + PASS_KERNELS) * KERNEL_BYTES;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Widest activation that is rounded to fp8. */
static int64_t widest(const bl_config *f, const bl_shard *shard)
{
    const int64_t out = (int64_t)shard->groups.count * f->o_lora_rank, gathered = bl_config_engram_columns(f) * f->engram_head_dim;
    return max64(max64(f->hidden_size, f->q_lora_rank), max64(max64(out, gathered), f->head_dim));
}

/* 1, 2, 4, multiples of 8, from 64 on of 32. */
int64_t bl_cuda_padded(bl_backend *b, int64_t tokens)
{
    (void)b;
    if (tokens > CUDA_STEP) return tokens;
    if (tokens > 64) return (tokens + 31) / 32 * 32;
    if (tokens > 4) return (tokens + 7) / 8 * 8;
    return tokens == 3 ? 4 : tokens;
}

cuda_layout bl_cuda_lay_out(const bl_config *c, int64_t tokens)
{
    const uint64_t T = (uint64_t)tokens;
    cuda_layout l;
    uint64_t at = 0;
    l.ids = at;
    at += bl_line(T * sizeof(int32_t));
    l.position = at;
    at += bl_line(T * sizeof(int64_t));
    l.span_of = at;
    at += bl_line(T * sizeof(int32_t));
    l.spans = at;
    at += bl_line(T * sizeof(bl_cuda_span));
    l.source_pages = at;
    at += bl_line(T * (uint64_t)c->kv_source_count * sizeof(int64_t));
    l.wanted = at;
    at += bl_line(T * sizeof(int64_t));
    l.draws = at;
    at += bl_line(T * sizeof(bl_cuda_draw));
    l.drawn = at;
    at += bl_line(T * sizeof(bl_cuda_drawn));
    l.engram = at;
    at += bl_line(T * (uint64_t)bl_config_engram_columns(c) * (uint64_t)c->engram_count * sizeof(int64_t));
    l.pages = at;
    return l;
}

/* Page tables of every sequence at its longest. */
static uint64_t table_bytes(const bl_config *c, const cuda_layout *l, const bl_memory_plan *plan)
{
    const uint64_t pages = plan->sequences ? (uint64_t)plan->sequences * (uint64_t)bl_cache_pages(c, plan->context) : FEW_PAGES;
    return l->pages + bl_line(pages * sizeof(bl_cuda_page));
}

static void list_buffers(cuda_sizes *z, const bl_config *f, const bl_shard *shard, uint64_t T)
{
    const uint64_t D = (uint64_t)f->hidden_size, d = (uint64_t)f->head_dim, R = (uint64_t)f->qk_rope_head_dim;
    const uint64_t k = (uint64_t)f->num_experts_per_tok, inter = (uint64_t)f->moe_intermediate_size, slots = T * k;
    const uint64_t heads = (uint64_t)f->index_n_heads, width = (uint64_t)f->index_head_dim, groups = (uint64_t)shard->groups.count;
    const uint64_t group_in = bl_line((uint64_t)shard->heads.count * d / groups * 2) / 2;
    const uint64_t mix = BL_HC_MULT * (2 + BL_HC_MULT), segments = bl_pieces(BL_HC_MULT * D, BL_DOT_SEGMENT);
    const uint64_t size = f->candidate_block_size > 0 ? (uint64_t)f->candidate_block_size : 1;
    const uint64_t counts = (uint64_t)bl_cuda_sort_counts((int64_t)T, f->num_experts_per_tok, shard->experts.count);
    const int64_t attended = (int64_t)f->sliding_window + f->index_topk;
    const cuda_buffer list[] = {
        {offsetof(bl_cuda, frequency), CUDA_ACTIVATIONS, 2 * R / 2 * 4},
        {offsetof(bl_cuda, tables.rotation[0]), CUDA_ACTIVATIONS, T * R * 4},
        {offsetof(bl_cuda, tables.rotation[1]), CUDA_ACTIVATIONS, T * R * 4},
        {offsetof(bl_cuda, rounded), CUDA_ACTIVATIONS, T * (uint64_t)widest(f, shard) * 2},
        {offsetof(bl_cuda, qr_rounded), CUDA_ACTIVATIONS, T * (uint64_t)f->q_lora_rank * 2},
        {offsetof(bl_cuda, down), CUDA_ACTIVATIONS, T * (uint64_t)f->q_lora_rank * 2},
        {offsetof(bl_cuda, kv_down), CUDA_ACTIVATIONS, T * d * 2},
        {offsetof(bl_cuda, group), CUDA_ACTIVATIONS, T * groups * (uint64_t)f->o_lora_rank * 2},
        {offsetof(bl_cuda, padded), CUDA_ACTIVATIONS, T * groups * group_in * 2},
        {offsetof(bl_cuda, head_x), CUDA_ACTIVATIONS, T * D * 2},
        {offsetof(bl_cuda, x_rounded), CUDA_ACTIVATIONS, T * D * 2},
        {offsetof(bl_cuda, parts), CUDA_ACTIVATIONS, segments * T * mix * 4},
        {offsetof(bl_cuda, wide), CUDA_ACTIVATIONS, CUDA_WIDE * 2},
        {offsetof(bl_cuda, side_wide), CUDA_ACTIVATIONS, CUDA_SIDE_WIDE * 2},
        {offsetof(bl_cuda, engram_kv), CUDA_ACTIVATIONS, f->engram_count ? T * (BL_HC_MULT + 1) * D * 2 : 0},
        {offsetof(bl_cuda, pooled), CUDA_ATTENTION, T * d * 2},
        {offsetof(bl_cuda, key), CUDA_ATTENTION, T * width * 2},
        {offsetof(bl_cuda, pair_kv), CUDA_ATTENTION, T * d * 4},
        {offsetof(bl_cuda, pair_z), CUDA_ATTENTION, T * d * 4},
        {offsetof(bl_cuda, attend_scores), CUDA_ATTENTION, bl_cuda_attend_scores((int64_t)T, shard->heads.count, attended)},
        {offsetof(bl_cuda, index_q), CUDA_INDEX, T * heads * width * 2},
        {offsetof(bl_cuda, index_dots), CUDA_INDEX, T * heads * 2},
        {offsetof(bl_cuda, index_w), CUDA_INDEX, T * heads * 4},
        {offsetof(bl_cuda, index_rows), CUDA_INDEX, T * heads * bl_index_row_bytes((int64_t)width)},
        {offsetof(bl_cuda, scores), CUDA_INDEX, (uint64_t)z->score_floats * 4},
        {offsetof(bl_cuda, best), CUDA_INDEX, f->kv_source_count ? ((uint64_t)z->score_floats / size + T) * 4 : 0},
        {offsetof(bl_cuda, router), CUDA_EXPERTS, T * (uint64_t)f->n_routed_experts * 4},
        {offsetof(bl_cuda, gate), CUDA_EXPERTS, (slots + T) * inter * 2},
        {offsetof(bl_cuda, up), CUDA_EXPERTS, (slots + T) * inter * 2},
        {offsetof(bl_cuda, act), CUDA_EXPERTS, (slots + T) * inter * 2},
        {offsetof(bl_cuda, out), CUDA_EXPERTS, slots * D * 2},
        {offsetof(bl_cuda, shared_out), CUDA_EXPERTS, T * D * 2},
        {offsetof(bl_cuda, groups.token), CUDA_EXPERTS, slots * 4},
        {offsetof(bl_cuda, groups.gate), CUDA_EXPERTS, slots * 4},
        {offsetof(bl_cuda, groups.slot_of), CUDA_EXPERTS, slots * 4},
        {offsetof(bl_cuda, groups.units), CUDA_EXPERTS, slots * 3 * 4},
        {offsetof(bl_cuda, groups.count), CUDA_EXPERTS, 4},
        {offsetof(bl_cuda, groups.classes), CUDA_EXPERTS, 8 * 4},
        {offsetof(bl_cuda, groups.counts), CUDA_EXPERTS, counts * 4},
        {offsetof(bl_cuda, experts), CUDA_EXPERTS, (uint64_t)shard->layers.count * (uint64_t)shard->experts.count * sizeof(bl_cuda_expert)},
        {offsetof(bl_cuda, device_rows), CUDA_ENGRAM, z->rows_bytes * (uint64_t)f->engram_count},
    };
    z->count = sizeof list / sizeof *list;
    _Static_assert(sizeof list / sizeof *list <= CUDA_BUFFERS, "CUDA_BUFFERS is too small");
    for (size_t i = 0; i < z->count; i++) {
        z->buffers[i] = list[i];
        z->used[list[i].use] += bl_line(list[i].bytes);
    }
}

void bl_cuda_measure(cuda_sizes *z, const bl_config *c, const bl_shard *shard, int64_t max_tokens, const bl_memory_plan *plan)
{
    const uint64_t T = (uint64_t)max_tokens, width = (uint64_t)c->engram_head_dim;
    *z = (cuda_sizes){.layout = bl_cuda_lay_out(c, max_tokens)};
    z->score_floats = c->kv_source_count ? max64(SCORE_FLOATS, 2 * c->max_position_embeddings) : 0;
    z->rows_bytes = bl_line(T * (uint64_t)bl_config_engram_columns(c) * (width + width / 32));
    z->table_bytes = table_bytes(c, &z->layout, plan);
    z->logits_rows = plan->sequences < max_tokens ? bl_cuda_padded(NULL, plan->sequences) : max_tokens;
    list_buffers(z, c, shard, T);
}

uint64_t bl_cuda_logits_bytes(const bl_shard *shard, int64_t rows)
{
    return bl_line((uint64_t)rows * (uint64_t)shard->vocab.count * sizeof(float));
}
