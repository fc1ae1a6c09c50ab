/* The CUDA backend: what it holds, and its table. */
#include "runtime/cuda/cuda.h"

#include "runtime/rope.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_FLOATS = 64 << 20 /* of the index scores, unless a single query needs more */ };

/* ---- the plan: every buffer of a pass, made once from the config */

typedef struct buffer {
    void *at; /* of the pointer */
    uint64_t bytes;
} buffer;

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Widest activation that is rounded to fp8. */
static int64_t widest(const bl_cuda *c)
{
    const bl_config *f = &c->config;
    const int64_t columns = bl_config_engram_columns(f);
    const int64_t out = (int64_t)c->shard.groups.count * f->o_lora_rank;
    return max64(max64(f->hidden_size, f->q_lora_rank), max64(max64(out, columns * f->engram_head_dim), f->head_dim));
}

static bl_status reserve(bl_cuda *c, const buffer *list, size_t n, bl_error *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += cuda_line(list[i].bytes);
    if (!(c->memory = bl_cuda_alloc(&c->base, total)))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory for working buffers of %llu bytes", (unsigned long long)total);
    BL_TRY(bl_cuda_check(cudaMemsetAsync(c->memory, 0, total, c->stream), "clearing working buffers", err));
    uint8_t *p = c->memory;
    for (size_t i = 0; i < n; i++) {
        memcpy(list[i].at, &p, sizeof p);
        p += cuda_line(list[i].bytes);
    }
    return BL_OK;
}

static bl_status allocate(bl_cuda *c, bl_error *err)
{
    const bl_config *f = &c->config;
    const uint64_t T = (uint64_t)c->max_tokens, D = (uint64_t)f->hidden_size, d = (uint64_t)f->head_dim, R = (uint64_t)f->qk_rope_head_dim;
    const uint64_t k = (uint64_t)f->num_experts_per_tok, inter = (uint64_t)f->moe_intermediate_size;
    const uint64_t heads = (uint64_t)f->index_n_heads, width = (uint64_t)f->index_head_dim, groups = (uint64_t)c->shard.groups.count;
    const uint64_t group_in = cuda_line((uint64_t)c->shard.heads.count * d / groups * 2) / 2, slots = T * k;
    const uint64_t mix = BL_HC_MULT * (2 + BL_HC_MULT), segments = bl_pieces(BL_HC_MULT * D, BL_DOT_SEGMENT);
    const uint64_t size = f->candidate_block_size > 0 ? (uint64_t)f->candidate_block_size : 1;
    c->score_floats = f->kv_source_count ? max64(SCORE_FLOATS, 2 * f->max_position_embeddings) : 0;
    const buffer list[] = {
        {&c->frequency, 2 * R / 2 * 4},
        {&c->tables.rotation[0], T * R * 4},
        {&c->tables.rotation[1], T * R * 4},
        {&c->rounded, T * (uint64_t)widest(c) * 2},
        {&c->qr_rounded, T * (uint64_t)f->q_lora_rank * 2},
        {&c->down, T * (uint64_t)f->q_lora_rank * 2},
        {&c->kv_down, T * d * 2},
        {&c->group, T * groups * (uint64_t)f->o_lora_rank * 2},
        {&c->padded, T * groups * group_in * 2},
        {&c->head_x, T * D * 2},
        {&c->pooled, T * d * 2},
        {&c->key, T * width * 2},
        {&c->index_q, T * heads * width * 2},
        {&c->index_dots, T * heads * 2},
        {&c->index_w, T * heads * 4},
        {&c->index_rows, T * heads * bl_index_row_bytes((int64_t)width)},
        {&c->engram_kv, f->engram_count ? T * (BL_HC_MULT + 1) * D * 2 : 0},
        {&c->attend_scores, bl_cuda_attend_scores(c->max_tokens, c->shard.heads.count, f->sliding_window + f->index_topk)},
        {&c->attend_rows, bl_cuda_attend_rows(c->max_tokens, f->sliding_window + f->index_topk)},
        {&c->parts, segments * T * mix * 4},
        {&c->pair_kv, T * d * 4},
        {&c->pair_z, T * d * 4},
        {&c->router, T * (uint64_t)f->n_routed_experts * 4},
        {&c->gate, slots * inter * 2},
        {&c->up, slots * inter * 2},
        {&c->act, slots * inter * 2},
        {&c->shared_gate, T * inter * 2},
        {&c->shared_up, T * inter * 2},
        {&c->shared_act, T * inter * 2},
        {&c->x_rounded, T * D * 2},
        {&c->out, slots * D * 2},
        {&c->shared_out, T * D * 2},
        {&c->scores, (uint64_t)c->score_floats * 4},
        {&c->best, f->kv_source_count ? ((uint64_t)c->score_floats / size + T) * 4 : 0},
        {&c->groups.token, slots * 4},
        {&c->groups.gate, slots * 4},
        {&c->groups.slot_of, slots * 4},
        {&c->groups.units, slots * 3 * 4},
        {&c->groups.count, 4},
    };
    return reserve(c, list, sizeof list / sizeof *list, err);
}

static bl_status send_frequencies(bl_cuda *c, bl_error *err)
{
    const int n = c->config.qk_rope_head_dim / 2;
    float *f = malloc((size_t)n * 2 * sizeof *f);
    if (!f) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the CUDA backend");
    for (int k = 0; k < 2; k++) bl_rope_frequencies(f + k * n, &c->config, k == 1);
    bl_cuda_upload(&c->base, c->frequency, f, (uint64_t)n * 2 * sizeof *f);
    free(f);
    return bl_cuda_check(cudaGetLastError(), "starting the backend", err);
}

/* ---- creation */

static void cuda_destroy(bl_backend *b)
{
    bl_cuda *c = cuda_of(b);
    if (c->stream) cudaStreamSynchronize(c->stream);
    bl_cuda_pass_destroy(c);
    bl_cuda_memory_destroy(c);
    cudaFree(c->memory);
    if (c->side) cudaStreamDestroy(c->side);
    if (c->stream) cudaStreamDestroy(c->stream);
    if (c->forked) cudaEventDestroy(c->forked);
    if (c->joined) cudaEventDestroy(c->joined);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* What the kernels were written for. */
static bl_status check_shapes(const bl_config *f, bl_error *err)
{
    const struct {
        const char *key;
        int64_t value, most;
    } limits[] = {
        {"head_dim", f->head_dim, BL_CUDA_MAX_HEAD_DIM},
        {"index_n_heads", f->index_n_heads, BL_CUDA_MAX_HEADS},
        {"index_head_dim", f->index_head_dim, BL_CUDA_MAX_INDEX_DIM},
        {"num_experts_per_tok", f->num_experts_per_tok, BL_CUDA_MAX_CHOICES},
        {"hidden_size", f->hidden_size, BL_CUDA_MAX_ROW / BL_HC_MULT / 2},
        {"sliding_window", (int64_t)f->sliding_window + f->index_topk, BL_CUDA_MAX_SLOTS}, /* with index_topk */
        {"n_routed_experts", f->n_routed_experts, 8192},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value > limits[i].most)
            return bl_fail(err, BL_E_USAGE, NULL, limits[i].key, -1, "is %lld: the CUDA backend takes %lld at most",
                           (long long)limits[i].value, (long long)limits[i].most);
    return BL_OK;
}

/* Is there machine code for it? kernels/meson.build builds for these two alone. */
static bool is_supported(const struct cudaDeviceProp *p)
{
    return (p->major == 9 || p->major == 10) && p->minor == 0;
}

static bl_status create(bl_cuda *c, bl_error *err)
{
    struct cudaDeviceProp prop;
    int device;
    BL_TRY(check_shapes(&c->config, err));
    BL_TRY(bl_cuda_check(cudaGetDevice(&device), "looking for a device", err));
    BL_TRY(bl_cuda_check(cudaGetDeviceProperties(&prop, device), "looking for a device", err));
    if (!is_supported(&prop))
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "%s has compute capability %d.%d: the CUDA backend is built for 9.0 and 10.0",
                       prop.name, prop.major, prop.minor);
    BL_TRY(bl_cuda_check(cudaStreamCreateWithFlags((cudaStream_t *)&c->stream, cudaStreamNonBlocking), "creating a stream", err));
    BL_TRY(bl_cuda_check(cudaStreamCreateWithFlags((cudaStream_t *)&c->side, cudaStreamNonBlocking), "creating a stream", err));
    BL_TRY(bl_cuda_check(cudaEventCreateWithFlags((cudaEvent_t *)&c->forked, cudaEventDisableTiming), "creating an event", err));
    BL_TRY(bl_cuda_check(cudaEventCreateWithFlags((cudaEvent_t *)&c->joined, cudaEventDisableTiming), "creating an event", err));
    BL_TRY(bl_cuda_memory_create(c, err));
    BL_TRY(bl_cuda_pass_create(c, err));
    BL_TRY(allocate(c, err));
    return send_frequencies(c, err);
}

bl_status bl_backend_cuda(bl_backend **out, const bl_config *config, const bl_shard *shard, const bl_cuda_options *o, bl_error *err)
{
    bl_cuda *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        free(c);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the CUDA backend");
    }
    c->base = (bl_backend){.name = "cuda", .destroy = cuda_destroy, .alloc = bl_cuda_alloc, .release = bl_cuda_release,
                           .upload = bl_cuda_upload, .download = bl_cuda_download, .import = bl_cuda_import, .begin = bl_cuda_begin,
                           .end = bl_cuda_end};
    bl_cuda_set_operations(&c->base);
    bl_cuda_set_attention(&c->base);
    c->config = *config;
    c->shard = *shard;
    c->max_tokens = o->max_tokens;
    c->pool = o->pool;
    const bl_status s = create(c, err);
    if (s != BL_OK) cuda_destroy(&c->base);
    else *out = &c->base;
    return s;
}

bool bl_cuda_usable(void)
{
    struct cudaDeviceProp prop;
    int device;
    return cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&prop, device) == cudaSuccess && is_supported(&prop);
}
