#include "runtime/cache.h"

#include "runtime/engram.h"

#include <stdlib.h>

enum { SLAB_PAGES = 16 };

static bl_status out_of_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the cache of a sequence");
}

/* ---- sizes */

static int64_t pages_for(const bl_config *c, int source, int64_t tokens)
{
    const int ratio = c->compress_ratios[c->kv_source_layer_ids[source]];
    const int64_t entries = ratio ? tokens / ratio : 0;
    return (int64_t)bl_pieces((uint64_t)entries, BL_PAGE_ENTRIES);
}

static uint64_t ring_bytes(const bl_config *c)
{
    return (uint64_t)bl_ring_rows(c) * bl_window_row_bytes(c->head_dim);
}

static uint64_t window_bytes(const bl_config *c, int layers)
{
    return bl_line((uint64_t)layers * ring_bytes(c));
}

static uint64_t open_bytes(const bl_config *c)
{
    return (uint64_t)c->kv_source_count * 2 * (uint64_t)c->head_dim * sizeof(float);
}

uint64_t bl_cache_place_bytes(const bl_config *c, int layers)
{
    return bl_line(window_bytes(c, layers) + open_bytes(c));
}

int64_t bl_cache_pages(const bl_config *c, int64_t tokens)
{
    int64_t n = 0;
    for (int s = 0; s < c->kv_source_count; s++) n += pages_for(c, s, tokens);
    return n;
}

uint64_t bl_cache_page_bytes(const bl_config *c)
{
    return BL_PAGE_ENTRIES * (bl_latent_row_bytes(c->head_dim) + bl_index_row_bytes(c->index_head_dim));
}

uint64_t bl_cache_bytes(const bl_config *c, int layers, int64_t tokens)
{
    return bl_cache_place_bytes(c, layers) + (uint64_t)bl_cache_pages(c, tokens) * bl_cache_page_bytes(c);
}

static bool attends_to(const bl_config *c, bl_range layers, int source)
{
    for (int l = layers.first; l < layers.first + layers.count; l++)
        if (bl_config_kv_source(c, l) == c->kv_source_layer_ids[source]) return true;
    return false;
}

uint64_t bl_cache_stage_bytes(const bl_config *c, bl_range layers, int64_t tokens)
{
    int64_t pages = 0;
    for (int s = 0; s < c->kv_source_count; s++) pages += attends_to(c, layers, s) ? pages_for(c, s, tokens) : 0;
    return bl_cache_place_bytes(c, layers.count) + (uint64_t)pages * bl_cache_page_bytes(c);
}

/* ---- pages and places */

bl_status bl_page_pool_init(bl_page_pool *p, bl_backend *b, const bl_config *c, int layers, bl_error *err)
{
    *p = (bl_page_pool){.backend = b};
    p->latent_bytes = BL_PAGE_ENTRIES * bl_latent_row_bytes(c->head_dim);
    p->key_bytes = BL_PAGE_ENTRIES * bl_index_row_bytes(c->index_head_dim);
    p->window_bytes = window_bytes(c, layers);
    p->place_bytes = bl_cache_place_bytes(c, layers);
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

/* Device memory that the pool owns; NULL on failure. */
static uint8_t *add_slab(bl_page_pool *p, uint64_t bytes)
{
    void **slabs = realloc(p->slabs, (p->slab_count + 1) * sizeof *slabs);
    if (!slabs) return NULL;
    p->slabs = slabs;
    uint8_t *memory = p->backend->alloc(p->backend, bytes);
    if (memory) p->slabs[p->slab_count++] = memory;
    return memory;
}

/* n more free pages; nothing on failure. */
static bool add_pages(bl_page_pool *p, int64_t n)
{
    bl_page *pages = bl_arena_array(&p->arena, (size_t)n, sizeof *pages);
    uint8_t *memory = pages ? add_slab(p, (uint64_t)n * (p->latent_bytes + p->key_bytes)) : NULL;
    if (!memory) return false;
    for (int64_t i = n; i-- > 0;) {
        pages[i].latents = memory + (uint64_t)i * p->latent_bytes;
        pages[i].keys = memory + (uint64_t)n * p->latent_bytes + (uint64_t)i * p->key_bytes;
        pages[i].next = p->free;
        p->free = &pages[i];
    }
    return true;
}

/* Likewise; without a plan they are added one at a time and kept for later sequences. */
static bool add_places(bl_page_pool *p, int n)
{
    bl_place *places = bl_arena_array(&p->arena, (size_t)n, sizeof *places);
    uint8_t *memory = places ? add_slab(p, (uint64_t)n * p->place_bytes) : NULL;
    if (!memory) return false;
    for (int i = n; i-- > 0;) {
        places[i] = (bl_place){p->free_places, memory + (uint64_t)i * p->place_bytes};
        p->free_places = &places[i];
    }
    return true;
}

bl_status bl_page_pool_fix(bl_page_pool *p, int sequences, int64_t pages, bl_error *err)
{
    p->fixed = true;
    if (!add_places(p, sequences) || (pages && !add_pages(p, pages)))
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the cache of %d sequences with %lld pages", sequences,
                       (long long)pages);
    return BL_OK;
}

static bl_place *take_place(bl_page_pool *p)
{
    pthread_mutex_lock(&p->lock);
    if (!p->free_places && !p->fixed) add_places(p, 1);
    bl_place *place = p->free_places;
    if (place) p->free_places = place->next;
    pthread_mutex_unlock(&p->lock);
    return place;
}

static void leave_place(bl_page_pool *p, bl_place *place)
{
    if (!place) return;
    pthread_mutex_lock(&p->lock);
    place->next = p->free_places;
    p->free_places = place;
    pthread_mutex_unlock(&p->lock);
}

static bl_page *take(bl_page_pool *p)
{
    pthread_mutex_lock(&p->lock);
    if (!p->free && !p->fixed) add_pages(p, SLAB_PAGES);
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

static void forget_classes(bl_cache *c)
{
    for (int i = 0; c->classes && i < c->config->engram_max_ngram_size - 1; i++) c->classes[i] = BL_ENGRAM_DEAD;
}

bl_status bl_cache_init(bl_cache *c, const bl_config *config, bl_page_pool *pool, bl_error *err)
{
    *c = (bl_cache){.config = config, .pool = pool, .layer_bytes = ring_bytes(config)};
    c->place = take_place(pool);
    c->entries = calloc((size_t)config->kv_source_count + 1, sizeof *c->entries);
    if (config->engram_count) c->classes = calloc((size_t)config->engram_max_ngram_size, sizeof *c->classes);
    if (!c->place || !c->entries || (config->engram_count && !c->classes)) {
        bl_cache_destroy(c);
        return out_of_memory(err);
    }
    c->windows = c->place->memory;
    c->open = (float *)(void *)(c->place->memory + pool->window_bytes);
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
    bl_cache_reset(c);
    for (int s = 0; c->entries && s < c->config->kv_source_count; s++) free(c->entries[s].pages);
    leave_place(c->pool, c->place);
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
        if (!(e->pages[e->count] = take(c->pool)))
            return c->pool->fixed ? bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "the cache has no room for the sequence") : out_of_memory(err);
    return BL_OK;
}

bl_status bl_cache_reserve(bl_cache *c, int64_t tokens, bl_error *err)
{
    for (int s = 0; s < c->config->kv_source_count; s++)
        BL_TRY(reserve_source(c, &c->entries[s], pages_for(c->config, s, tokens), err));
    return BL_OK;
}
