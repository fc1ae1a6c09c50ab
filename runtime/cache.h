/* What a sequence remembers, in the packed formats of arch.md section 5, in the backend's memory:
 *
 *   windows   for each layer of the stage a ring of bl_ring_rows rows of bl_window_row_bytes; position p is in row p % rows
 *   entries   for each KV source the latents and index keys made so far, in pages of BL_PAGE_ENTRIES
 *   open      for each KV source the fp32 kv and z [2][head_dim] of a token at an even position whose partner is still to come
 *
 * and, in host memory, the Engram classes of the last tokens. */
#ifndef BL_RUNTIME_CACHE_H
#define BL_RUNTIME_CACHE_H

#include "runtime/backend.h"

#include <pthread.h>

enum {
    BL_PAGE_ENTRIES = 64,
    BL_RING_SPARE = 8 /* rows beyond the window, so that a sequence can be cut back by as many tokens */
};

static inline int64_t bl_ring_rows(const bl_config *c)
{
    return (int64_t)c->sliding_window + BL_RING_SPARE;
}

/* 64 consecutive entries of one KV source. Shared between sequences by count; only its first owner writes to it. */
typedef struct bl_page {
    struct bl_page *next; /* in the free list */
    int owners;
    uint8_t *latents; /* [64] rows of bl_latent_row_bytes(head_dim) */
    uint8_t *keys;    /* [64] rows of bl_index_row_bytes(index_head_dim) */
} bl_page;

/* Room for the windows and open pairs of a sequence. */
typedef struct bl_place {
    struct bl_place *next; /* in the free list */
    uint8_t *memory;
} bl_place;

/* The pages of a model, and places for sequences. Thread-safe. */
typedef struct bl_page_pool {
    bl_backend *backend;
    uint64_t latent_bytes, key_bytes; /* of a page */
    uint64_t window_bytes, place_bytes; /* of a sequence; the open pairs lie behind the windows */
    pthread_mutex_t lock;
    bl_page *free;
    bl_place *free_places;
    bool fixed;     /* nothing is added to what bl_page_pool_fix has made */
    bl_arena arena; /* headers of pages and places */
    void **slabs;   /* device memory */
    size_t slab_count;
} bl_page_pool;

typedef struct bl_entries {
    bl_page **pages;
    int64_t count, capacity; /* pages */
} bl_entries;

typedef struct bl_cache {
    const bl_config *config;
    bl_page_pool *pool;
    bl_place *place;      /* where windows and open lie */
    uint8_t *windows;     /* [layers][ring rows][row bytes] */
    float *open;          /* [KV sources][2][head_dim] */
    bl_entries *entries;  /* [KV sources] */
    int32_t *classes;     /* [engram_max_ngram_size - 1] newest first, BL_ENGRAM_DEAD before the beginning; NULL without Engram */
    uint64_t layer_bytes; /* of one layer's ring */
} bl_cache;

bl_status bl_page_pool_init(bl_page_pool *p, bl_backend *b, const bl_config *c, int layers, bl_error *err);
/* All of the memory at once, for so many sequences and pages; from then on there is no more. */
bl_status bl_page_pool_fix(bl_page_pool *p, int sequences, int64_t pages, bl_error *err);
void bl_page_pool_destroy(bl_page_pool *p);

bl_status bl_cache_init(bl_cache *c, const bl_config *config, bl_page_pool *pool, bl_error *err);
void bl_cache_destroy(bl_cache *c);
/* Empty again; pages go back to the pool. */
void bl_cache_reset(bl_cache *c);
/* Make room for the entries of the first tokens tokens. On failure the pages got so far stay, unused. */
bl_status bl_cache_reserve(bl_cache *c, int64_t tokens, bl_error *err);
/* Bytes a sequence of that many tokens takes. */
uint64_t bl_cache_bytes(const bl_config *c, int layers, int64_t tokens);
/* The parts of that: what every sequence takes, pages of one with that many tokens, bytes of a page. */
uint64_t bl_cache_place_bytes(const bl_config *c, int layers);
int64_t bl_cache_pages(const bl_config *c, int64_t tokens);
uint64_t bl_cache_page_bytes(const bl_config *c);
/* Bytes that such a sequence takes on a stage of several: the windows of its layers, and the entries of every KV source that they
 * attend to, whichever stage makes them. */
uint64_t bl_cache_stage_bytes(const bl_config *c, bl_range layers, int64_t tokens);

/* The ring row of a position, and the rows of a source's entry. */
static inline uint8_t *bl_cache_window(const bl_cache *c, int layer, int64_t position)
{
    const int64_t row = position % bl_ring_rows(c->config);
    return c->windows + (uint64_t)layer * c->layer_bytes + (uint64_t)row * bl_window_row_bytes(c->config->head_dim);
}
static inline uint8_t *bl_cache_latent(const bl_cache *c, int source, int64_t entry)
{
    const bl_page *p = c->entries[source].pages[entry / BL_PAGE_ENTRIES];
    return p->latents + (uint64_t)(entry % BL_PAGE_ENTRIES) * bl_latent_row_bytes(c->config->head_dim);
}
static inline uint8_t *bl_cache_key(const bl_cache *c, int source, int64_t entry)
{
    const bl_page *p = c->entries[source].pages[entry / BL_PAGE_ENTRIES];
    return p->keys + (uint64_t)(entry % BL_PAGE_ENTRIES) * bl_index_row_bytes(c->config->index_head_dim);
}

#endif
