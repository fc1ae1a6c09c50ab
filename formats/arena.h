/* A bump allocator: many small allocations, freed at once, so that error paths free nothing by hand. */
#ifndef BL_FORMATS_ARENA_H
#define BL_FORMATS_ARENA_H

#include <stddef.h>
#include <stdint.h>

typedef struct bl_arena {
    struct bl_arena_block *head; /* private */
    size_t total;                /* bytes handed out so far */
    size_t limit;                /* refuse beyond this many bytes; 0 = no limit */
} bl_arena;

/* size bytes, zeroed, aligned to 16; NULL when memory or the limit is exhausted. size 0 gives a valid pointer. */
void *bl_arena_alloc(bl_arena *a, size_t size);
/* n items of size bytes, checked for overflow. */
void *bl_arena_array(bl_arena *a, size_t n, size_t size);
/* items, an array of *cap items of size bytes in a (NULL: none so far), with room for one behind the first count of them. Returns it, where
 * it is now, for the caller to keep; its former place stays in a. NULL when memory or the limit is exhausted, items is then as it was. */
void *bl_arena_grow(bl_arena *a, void *items, size_t *cap, size_t count, size_t size);
/* A NUL-terminated copy of n bytes of s. */
char *bl_arena_strndup(bl_arena *a, const char *s, size_t n);
/* Free everything; a is ready for reuse (limit kept). */
void bl_arena_reset(bl_arena *a);

/* As bl_arena_grow, but of no arena: items is from malloc. */
void *bl_grow(void *items, size_t *cap, size_t count, size_t size);

#endif
