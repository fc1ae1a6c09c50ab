#include "runtime/memory_plan.h"

#include "runtime/cuda/cuda.h"
#include "runtime/model.h"

#include <stdio.h>

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static void add(bl_memory_plan *p, bl_memory_place place, const char *what, uint64_t bytes)
{
    if (bytes == 0) return;
    p->lines[p->count++] = (bl_memory_line){place, what, bytes};
    p->total[place] += bytes;
}

/* ---- weights */

static uint64_t stored_bytes(const bl_handle *h)
{
    if (h->tensor) return h->bytes;
    return (uint64_t)h->count * (h->scale ? bl_matrix_scale_bytes(h->view) : bl_matrix_code_bytes(h->view));
}

static uint64_t table_bytes(const bl_weights *w)
{
    uint64_t n = 0;
    for (size_t i = 0; i < w->handle_count; i++)
        if (w->handles[i].host) n += bl_line(stored_bytes(&w->handles[i]));
    return n;
}

/* With what is made of stored ones: weights_load.c. */
static uint64_t weight_bytes(const bl_weights *w)
{
    uint64_t n = 0;
    for (size_t i = 0; i < w->handle_count; i++)
        if (!w->handles[i].host) n += bl_line(stored_bytes(&w->handles[i]));
    for (int i = 0; i < w->layer_count; i++) {
        const bl_layer *l = &w->layers[i];
        if (bl_weights_padded(&l->wo_a) != l->wo_a.cols) {
            bl_matrix padded = l->wo_a;
            padded.cols = bl_weights_padded(&l->wo_a);
            n += bl_line(bl_matrix_code_bytes(&padded));
        }
        if (l->engram_slot >= 0) n += bl_line((uint64_t)(l->engram.q_weight.rows * l->engram.q_weight.cols) * sizeof(float));
    }
    return n;
}

/* ---- cache */

static uint64_t cache_bytes(const bl_config *c, const bl_shard *shard, const bl_memory_plan *p)
{
    return bl_line((uint64_t)p->sequences * bl_cache_place_bytes(c, shard->layers.count)) +
           bl_line((uint64_t)p->pages * bl_cache_page_bytes(c));
}

/* Every sequence may leave its last page of each source partly empty. */
static int64_t pages_of(const bl_config *c, int sequences, int64_t tokens)
{
    return bl_cache_pages(c, tokens) + (int64_t)sequences * c->kv_source_count;
}

/* As many tokens as left bytes hold, up to most. */
static int64_t tokens_that_fit(const bl_config *c, const bl_shard *shard, bl_memory_plan p, uint64_t left, int64_t most)
{
    int64_t low = 0, high = most;
    while (low < high) {
        const int64_t mid = low + (high - low + 1) / 2;
        p.pages = pages_of(c, p.sequences, mid);
        if (cache_bytes(c, shard, &p) <= left) low = mid;
        else high = mid - 1;
    }
    return low;
}

/* Sequences and context are set; everything else is in the plan already. */
static void plan_tokens(bl_memory_plan *p, int64_t wanted, const bl_config *c, const bl_shard *shard)
{
    const uint64_t taken = p->total[BL_MEMORY_DEVICE] + p->reserve;
    const int64_t most = (int64_t)p->sequences * p->context;
    p->tokens = wanted > 0 && wanted < most ? wanted : most;
    if (!wanted && p->memory && p->device == BL_DEVICE_CUDA) {
        const int64_t fit = tokens_that_fit(c, shard, *p, p->memory > taken ? p->memory - taken : 0, most);
        p->tokens = fit > p->context ? fit : p->context; /* one sequence at its longest is the least */
    }
    p->pages = pages_of(c, p->sequences, p->tokens);
}

static void add_cache(bl_memory_plan *p, bl_memory_place place, const bl_config *c, const bl_shard *shard)
{
    add(p, place, "windows", bl_line((uint64_t)p->sequences * bl_cache_place_bytes(c, shard->layers.count)));
    add(p, place, "cache pages", bl_line((uint64_t)p->pages * bl_cache_page_bytes(c)));
}

/* ---- devices */

static void plan_cuda(bl_memory_plan *p, const bl_memory_request *r, const bl_config *c, const bl_shard *shard)
{
    static const char *const names[CUDA_USES] = {"activations", "attention", "index scores", "experts", "Engram rows"};
    cuda_sizes z;
    bl_cuda_measure(&z, c, shard, r->max_tokens, p);
    const uint64_t logits = z.logits_rows ? bl_cuda_logits_bytes(shard, z.logits_rows) : 0;
    const uint64_t chunk = bl_line((uint64_t)r->max_tokens * bl_window_row_bytes(c->head_dim));
    z.used[CUDA_ACTIVATIONS] += bl_scratch_bytes(c, shard, r->max_tokens) - chunk;
    for (int i = 0; i < CUDA_USES; i++) add(p, BL_MEMORY_DEVICE, names[i], z.used[i]);
    add(p, BL_MEMORY_DEVICE, "chunk KV", chunk);
    add(p, BL_MEMORY_DEVICE, "page tables", bl_line(z.table_bytes));
    add(p, BL_MEMORY_DEVICE, "logits", logits);
    add(p, BL_MEMORY_PINNED, "page tables", z.table_bytes);
    add(p, BL_MEMORY_PINNED, "logits", logits);
    add(p, BL_MEMORY_PINNED, "Engram rows", z.rows_bytes * (uint64_t)c->engram_count);
    p->reserve = bl_cuda_graph_bytes(shard);
}

/* ---- Engram tables */

/* What the cache takes when it is as large as it may become; one sequence where nothing is said. */
static uint64_t whole_cache(const bl_memory_plan *p, const bl_config *c, const bl_shard *shard)
{
    bl_memory_plan all = *p;
    if (!all.sequences) all.sequences = 1, all.context = c->max_position_embeddings;
    all.pages = pages_of(c, all.sequences, (int64_t)all.sequences * all.context);
    return cache_bytes(c, shard, &all);
}

/* On the device when everything else fits beside them at its largest: the host's memory is for what does not. */
static bl_engram_place choose_place(bl_memory_plan *p, const bl_memory_request *r, uint64_t rest)
{
    const uint64_t spare = p->engram_bytes / 8 + ((uint64_t)4 << 30);
    if (!p->memory) {
        snprintf(p->engram_why, sizeof p->engram_why, "free memory of the device is not known");
        return BL_ENGRAM_MAPPED;
    }
    if (rest + p->engram_bytes <= p->memory) {
        snprintf(p->engram_why, sizeof p->engram_why, "%.2f GiB fit on the device beside the largest cache", gib(p->engram_bytes));
        return BL_ENGRAM_DEVICE;
    }
    const uint64_t missing = rest + p->engram_bytes - p->memory;
    if (r->host_memory >= p->engram_bytes + spare) {
        snprintf(p->engram_why, sizeof p->engram_why, "on the device the largest cache would miss %.2f GiB", gib(missing));
        return BL_ENGRAM_HOST;
    }
    snprintf(p->engram_why, sizeof p->engram_why, "the device misses %.2f GiB, and the host has %.2f available for tables of %.2f",
             gib(missing), gib(r->host_memory), gib(p->engram_bytes));
    return BL_ENGRAM_MAPPED;
}

static void plan_tables(bl_memory_plan *p, const bl_memory_request *r, const bl_config *c, const bl_shard *shard, const bl_weights *w)
{
    static const bl_memory_place places[] = {
        [BL_ENGRAM_DEVICE] = BL_MEMORY_DEVICE, [BL_ENGRAM_HOST] = BL_MEMORY_PINNED,
        [BL_ENGRAM_SHARED] = BL_MEMORY_SHARED, [BL_ENGRAM_MAPPED] = BL_MEMORY_MAPPED};
    p->engram_bytes = table_bytes(w);
    if (!p->engram_bytes) return;
    if (p->device != BL_DEVICE_CUDA) p->engram = BL_ENGRAM_MAPPED;
    else if (r->engram == BL_ENGRAM_AUTO)
        p->engram = choose_place(p, r, p->total[BL_MEMORY_DEVICE] + p->reserve + whole_cache(p, c, shard));
    else {
        p->engram = r->engram;
        snprintf(p->engram_why, sizeof p->engram_why, "as asked for");
    }
    add(p, places[p->engram], "Engram tables", p->engram_bytes + (p->engram == BL_ENGRAM_SHARED ? BL_SHARED_HEAD : 0));
    if (p->engram == BL_ENGRAM_SHARED) p->shared = r->shared;
}

static bl_status check_fit(const bl_memory_plan *p, bl_error *err)
{
    const uint64_t need = p->total[BL_MEMORY_DEVICE] + p->reserve, host = p->engram == BL_ENGRAM_HOST ? p->engram_bytes : p->total[BL_MEMORY_SHARED];
    if (bl_memory_plan_fits(p)) return BL_OK;
    if (bl_memory_plan_device_fits(p) && bl_memory_plan_host_fits(p))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1,
                       "the model does not fit: Engram tables take %.2f GiB of shared memory, of which %.2f are there already and %.2f free in "
                       BL_SHARED_FOLDER, gib(host), gib(p->shared.there), gib(p->shared.free));
    if (bl_memory_plan_device_fits(p))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1,
                       "the model does not fit: it takes %.2f GiB of pinned memory of the host (Engram tables %.2f), %.2f are available",
                       gib(bl_memory_plan_host_needs(p)), gib(host), gib(p->host_memory));
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1,
                   "the model does not fit: it takes %.2f GiB of device memory (weights %.2f, cache of %lld tokens %.2f, everything else "
                   "%.2f), %.2f are free",
                   gib(need), gib(p->weight_bytes), (long long)p->tokens, gib(p->cache_bytes),
                   gib(need - p->weight_bytes - p->cache_bytes), gib(p->memory));
}

bl_status bl_memory_plan_make(bl_memory_plan *p, const bl_memory_request *r, const bl_config *c, const bl_shard *shard,
                              const bl_weights *w, bl_error *err)
{
    const bool cuda = r->device == BL_DEVICE_CUDA;
    *p = (bl_memory_plan){.device = r->device, .memory = cuda ? r->memory : 0, .host_memory = cuda ? r->host_memory : 0,
                          .sequences = r->cache.sequences};
    if (p->sequences) {
        p->context = c->max_position_embeddings;
        if (r->cache.context > 0 && r->cache.context < p->context) p->context = r->cache.context;
    }
    p->weight_bytes = weight_bytes(w);
    add(p, cuda ? BL_MEMORY_DEVICE : BL_MEMORY_MAPPED, "weights", p->weight_bytes);
    if (cuda) plan_cuda(p, r, c, shard);
    else add(p, BL_MEMORY_HOST, "activations", bl_scratch_bytes(c, shard, r->max_tokens) + r->scratch_bytes);
    plan_tables(p, r, c, shard, w);
    if (p->sequences) {
        plan_tokens(p, r->cache.tokens, c, shard);
        add_cache(p, cuda ? BL_MEMORY_DEVICE : BL_MEMORY_HOST, c, shard);
        p->cache_bytes = cache_bytes(c, shard, p);
    }
    return check_fit(p, err);
}
