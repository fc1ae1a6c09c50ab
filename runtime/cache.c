#include "runtime/cache.h"

#include "runtime/engram.h"

#include <stdlib.h>

enum { SLAB_PAGES = 16 };

static bl_status out_of_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the cache of a sequence");
}

/* ---- pages */

bl_status bl_page_pool_init(bl_page_pool *p, bl_backend *b, const bl_config *c, bl_error *err)
{
    *p = (bl_page_pool){.backend = b};
    p->latent_bytes = BL_PAGE_ENTRIES * bl_latent_row_bytes(c->head_dim);
    p->key_bytes = BL_PAGE_ENTRIES * bl_index_row_bytes(c->index_head_dim);
    if (pthread_mutex_init(&p->lock, NULL)) return out_of_memory(err);
    return BL_OK;
}

void bl_page_pool_destroy(bl_page_pool *p)
{
    if (!p->backend) return;
    for (size_t i = 0; i < p->slab_count; i++) p->backend->release(p->backend, p->slabs[i]);
    free(p->slabs);
    bl_arena_reset(&p->arena);
    pthread_mutex_destroy(&p->lock);
    *p = (bl_page_pool){0};
}

/* More free pages; nothing on failure. */
static void grow(bl_page_pool *p)
{
    void **slabs = realloc(p->slabs, (p->slab_count + 1) * sizeof *slabs);
    if (!slabs) return;
    p->slabs = slabs;
    bl_page *pages = bl_arena_array(&p->arena, SLAB_PAGES, sizeof *pages);
    uint8_t *memory = pages ? p->backend->alloc(p->backend, SLAB_PAGES * (p->latent_bytes + p->key_bytes)) : NULL;
    if (!memory) return;
    p->slabs[p->slab_count++] = memory;
    for (int i = 0; i < SLAB_PAGES; i++) {
        pages[i].latents = memory + (uint64_t)i * p->latent_bytes;
        pages[i].keys = memory + SLAB_PAGES * p->latent_bytes + (uint64_t)i * p->key_bytes;
        pages[i].next = p->free;
        p->free = &pages[i];
    }
}

static bl_page *take(bl_page_pool *p)
{
    pthread_mutex_lock(&p->lock);
    if (!p->free) grow(p);
    bl_page *page = p->free;
    if (page) {
        p->free = page->next;
        page->owners = 1;
    }
    pthread_mutex_unlock(&p->lock);
    return page;
}

static void give_back(bl_page_pool *p, bl_page *page)
{
    pthread_mutex_lock(&p->lock);
    if (--page->owners == 0) {
        page->next = p->free;
        p->free = page;
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- a sequence's memory */

static int64_t pages_for(const bl_config *c, int source, int64_t tokens)
{
    const int ratio = c->compress_ratios[c->kv_source_layer_ids[source]];
    const int64_t entries = ratio ? tokens / ratio : 0;
    return (entries + BL_PAGE_ENTRIES - 1) / BL_PAGE_ENTRIES;
}

static uint64_t ring_bytes(const bl_config *c)
{
    return (uint64_t)bl_ring_rows(c) * bl_window_row_bytes(c->head_dim);
}

static uint64_t open_bytes(const bl_config *c)
{
    return (uint64_t)c->kv_source_count * 2 * (uint64_t)c->head_dim * sizeof(float);
}

uint64_t bl_cache_bytes(const bl_config *c, int layers, int64_t tokens)
{
    uint64_t page = BL_PAGE_ENTRIES * (bl_latent_row_bytes(c->head_dim) + bl_index_row_bytes(c->index_head_dim));
    uint64_t total = (uint64_t)layers * ring_bytes(c) + open_bytes(c);
    for (int s = 0; s < c->kv_source_count; s++) total += (uint64_t)pages_for(c, s, tokens) * page;
    return total;
}

static void forget_classes(bl_cache *c)
{
    for (int i = 0; c->classes && i < c->config->engram_max_ngram_size - 1; i++) c->classes[i] = BL_ENGRAM_DEAD;
}

bl_status bl_cache_init(bl_cache *c, const bl_config *config, int layers, bl_page_pool *pool, bl_error *err)
{
    bl_backend *b = pool->backend;
    *c = (bl_cache){.config = config, .pool = pool, .layer_bytes = ring_bytes(config)};
    c->windows = b->alloc(b, (uint64_t)layers * c->layer_bytes);
    c->open = b->alloc(b, open_bytes(config));
    c->entries = calloc((size_t)config->kv_source_count + 1, sizeof *c->entries);
    if (config->engram_count) c->classes = calloc((size_t)config->engram_max_ngram_size, sizeof *c->classes);
    if (!c->windows || !c->open || !c->entries || (config->engram_count && !c->classes)) {
        bl_cache_destroy(c);
        return out_of_memory(err);
    }
    forget_classes(c);
    return BL_OK;
}

void bl_cache_reset(bl_cache *c)
{
    for (int s = 0; c->entries && s < c->config->kv_source_count; s++) {
        bl_entries *e = &c->entries[s];
        for (int64_t i = 0; i < e->count; i++) give_back(c->pool, e->pages[i]);
        e->count = 0;
    }
    forget_classes(c);
}

void bl_cache_destroy(bl_cache *c)
{
    if (!c->pool) return;
    bl_backend *b = c->pool->backend;
    bl_cache_reset(c);
    for (int s = 0; c->entries && s < c->config->kv_source_count; s++) free(c->entries[s].pages);
    b->release(b, c->windows);
    b->release(b, c->open);
    free(c->entries);
    free(c->classes);
    *c = (bl_cache){0};
}

static bl_status reserve_source(bl_cache *c, bl_entries *e, int64_t pages, bl_error *err)
{
    if (pages > e->capacity) {
        int64_t capacity = e->capacity ? e->capacity : 8;
        while (capacity < pages) capacity *= 2;
        bl_page **p = realloc(e->pages, (size_t)capacity * sizeof(bl_page *));
        if (!p) return out_of_memory(err);
        e->pages = p;
        e->capacity = capacity;
    }
    for (; e->count < pages; e->count++)
        if (!(e->pages[e->count] = take(c->pool))) return out_of_memory(err);
    return BL_OK;
}

bl_status bl_cache_reserve(bl_cache *c, int64_t tokens, bl_error *err)
{
    for (int s = 0; s < c->config->kv_source_count; s++)
        BL_TRY(reserve_source(c, &c->entries[s], pages_for(c->config, s, tokens), err));
    return BL_OK;
}
