/* The CUDA backend: what it holds, and its table. */
#include "runtime/cuda/cuda.h"

#include "runtime/rope.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

/* Buffers of a pass, in one piece. */
static bl_status allocate(bl_cuda *c, bl_error *err)
{
    uint64_t total = 0;
    for (int i = 0; i < CUDA_USES; i++) total += c->sizes.used[i];
    if (!(c->memory = bl_cuda_alloc(&c->base, total)))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory for working buffers of %llu bytes",
                       (unsigned long long)total);
    BL_TRY(bl_cuda_check(cudaMemsetAsync(c->memory, 0, total, c->stream), "clearing working buffers", err));
    uint8_t *p = c->memory;
    for (size_t i = 0; i < c->sizes.count; i++) {
        memcpy((uint8_t *)c + c->sizes.buffers[i].at, &p, sizeof p);
        p += bl_line(c->sizes.buffers[i].bytes);
    }
    return BL_OK;
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
    bl_cuda_tables_destroy(c);
    bl_cuda_memory_destroy(c);
    cudaFree(c->memory);
    if (c->side) cudaStreamDestroy(c->side);
    if (c->stream) cudaStreamDestroy(c->stream);
    if (c->forked) cudaEventDestroy(c->forked);
    if (c->joined) cudaEventDestroy(c->joined);
    if (c->marked) cudaEventDestroy(c->marked);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static const bl_error *fault(bl_backend *b)
{
    return cuda_of(b)->fault.code ? &cuda_of(b)->fault : NULL;
}

static bl_launches launches(bl_backend *b)
{
    return cuda_of(b)->launches;
}

static uint64_t allocated(bl_backend *b)
{
    return cuda_of(b)->allocated;
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
        {"q_lora_rank", f->q_lora_rank, BL_CUDA_MAX_RANK},
        {"vocab_size", f->vocab_size, BL_CUDA_MAX_DRAWN},
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

static bl_status create(bl_cuda *c, const bl_cuda_options *o, uint64_t weight_bytes, bl_error *err)
{
    BL_TRY(check_shapes(&c->config, err));
    BL_TRY(bl_cuda_find_device(&c->device, err));
    BL_TRY(bl_cuda_check(cudaStreamCreateWithFlags((cudaStream_t *)&c->stream, cudaStreamNonBlocking), "creating a stream", err));
    BL_TRY(bl_cuda_check(cudaStreamCreateWithFlags((cudaStream_t *)&c->side, cudaStreamNonBlocking), "creating a stream", err));
    BL_TRY(bl_cuda_check(cudaEventCreateWithFlags((cudaEvent_t *)&c->forked, cudaEventDisableTiming), "creating an event", err));
    BL_TRY(bl_cuda_check(cudaEventCreateWithFlags((cudaEvent_t *)&c->joined, cudaEventDisableTiming), "creating an event", err));
    BL_TRY(bl_cuda_check(cudaEventCreateWithFlags((cudaEvent_t *)&c->marked, cudaEventDisableTiming), "creating an event", err));
    BL_TRY(bl_cuda_memory_create(c, weight_bytes, err));
    BL_TRY(bl_cuda_tables_create(c, o->shared, o->plan->engram_bytes, err));
    BL_TRY(allocate(c, err));
    BL_TRY(bl_cuda_pass_create(c, err));
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
                           .allocated = allocated, .launches = launches, .fault = fault, .upload = bl_cuda_upload,
                           .download = bl_cuda_download, .import = bl_cuda_import,
                           .place = bl_cuda_place, .load = bl_cuda_load, .arrange = bl_cuda_arrange,
                           .huge_pages = bl_cuda_huge_pages,
                           .padded = bl_cuda_padded, .begin = bl_cuda_begin, .end = bl_cuda_end};
    bl_cuda_set_operations(&c->base);
    bl_cuda_set_attention(&c->base);
    c->config = *config;
    c->shard = *shard;
    c->max_tokens = o->max_tokens;
    c->pool = o->pool;
    bl_cuda_measure(&c->sizes, config, shard, o->max_tokens, o->plan);
    c->engram = o->plan->engram;
    if (cuda_gathers(c)) c->base.place_table = bl_cuda_place_table;
    const uint64_t tables = c->engram == BL_ENGRAM_DEVICE ? o->plan->engram_bytes : 0;
    bl_status s = create(c, o, o->plan->weight_bytes ? o->plan->weight_bytes + tables : 0, err);
    if (s == BL_OK) {
        *out = &c->base;
        return s;
    }
    if (c->fault.code) { /* says more than what came of it */
        s = c->fault.code;
        if (err) *err = c->fault;
    }
    cuda_destroy(&c->base);
    return s;
}

bool bl_cuda_usable(bl_error *why)
{
    int device;
    bl_error e = {0};
    if (bl_cuda_find_device(&device, &e) == BL_OK) return true;
    if (why && bl_cuda_present()) *why = e;
    return false;
}

bl_status bl_cuda_free_memory(uint64_t *bytes, bl_error *err)
{
    size_t left = 0, all;
    BL_TRY(bl_cuda_check(cudaMemGetInfo(&left, &all), "looking for a device", err));
    *bytes = left;
    return BL_OK;
}
