#include "formats/arena.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK ((size_t)1 << 12)
#define LARGEST_BLOCK ((size_t)1 << 20)

struct bl_arena_block {
    struct bl_arena_block *next;
    size_t used, size; /* of data */
    _Alignas(16) unsigned char data[];
};

/* A new block of at least size bytes. Blocks double, so that a small arena stays small and a large one makes
 * few calls; an allocation larger than the usual block goes behind the head, whose rest stays usable. */
static struct bl_arena_block *grow(bl_arena *a, size_t size)
{
    size_t usual = a->head ? a->head->size * 2 : FIRST_BLOCK;
    if (usual > LARGEST_BLOCK) {
        usual = LARGEST_BLOCK;
    }
    int large = size > usual / 2;
    size_t bytes = large ? size : usual;
    struct bl_arena_block *b = calloc(1, sizeof *b + bytes);
    if (!b) {
        return NULL;
    }
    b->size = bytes;
    if (large && a->head) {
        b->next = a->head->next;
        a->head->next = b;
    } else {
        b->next = a->head;
        a->head = b;
    }
    return b;
}

void *bl_arena_alloc(bl_arena *a, size_t size)
{
    if (size > SIZE_MAX / 2 - 64) {
        return NULL;
    }
    size_t step = size ? (size + 15) & ~(size_t)15 : 16;
    if (a->limit && (a->total > a->limit || step > a->limit - a->total)) {
        return NULL;
    }
    struct bl_arena_block *b = a->head;
    if (!b || b->size - b->used < step) {
        b = grow(a, step);
        if (!b) {
            return NULL;
        }
    }
    void *p = b->data + b->used;
    b->used += step;
    a->total += step;
    return p;
}

void *bl_arena_array(bl_arena *a, size_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? NULL : bl_arena_alloc(a, bytes);
}

void *bl_arena_grow(bl_arena *a, void *items, size_t *cap, size_t count, size_t size)
{
    if (count < *cap) {
        return items;
    }
    size_t more = *cap ? 2 * *cap : 64;
    void *grown = more > *cap ? bl_arena_array(a, more, size) : NULL;
    if (grown && count) {
        memcpy(grown, items, count * size);
    }
    *cap = grown ? more : *cap;
    return grown;
}

char *bl_arena_strndup(bl_arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? bl_arena_alloc(a, n + 1) : NULL;
    if (p && n) {
        memcpy(p, s, n);
    }
    return p;
}

void bl_arena_reset(bl_arena *a)
{
    while (a->head) {
        struct bl_arena_block *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->total = 0;
}

void *bl_grow(void *items, size_t *cap, size_t count, size_t size)
{
    if (count < *cap) {
        return items;
    }
    size_t more = *cap ? 2 * *cap : 64, bytes;
    void *grown = more > *cap && !__builtin_mul_overflow(more, size, &bytes) ? realloc(items, bytes) : NULL;
    *cap = grown ? more : *cap;
    return grown;
}
