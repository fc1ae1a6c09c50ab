/* Strings looked for in a stream, byte by byte, and how much of the stream might still become one of them. */
#ifndef BL_RUNTIME_MATCH_H
#define BL_RUNTIME_MATCH_H

#include "formats/arena.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct bl_pattern {
    const char *p;
    size_t n;
    size_t *fail; /* [n] for each prefix its longest proper prefix that is also its suffix */
    size_t state; /* bytes of p that the stream ends in */
    int what;     /* the caller's name for it */
} bl_pattern;

typedef struct bl_matcher {
    bl_pattern *patterns;
    size_t count, capacity;
    size_t hold; /* the stream's last hold bytes may be the beginning of a match */
} bl_matcher;

/* Room for n patterns, in the arena; false when out of memory. */
bool bl_matcher_init(bl_matcher *m, size_t n, bl_arena *a);
/* Add a non-empty pattern, copied into the arena; false when out of memory. */
bool bl_matcher_add(bl_matcher *m, const char *p, size_t n, int what, bl_arena *a);
/* Take the next byte. The pattern that ends with it (the longest, then the first added), or NULL. */
const bl_pattern *bl_matcher_step(bl_matcher *m, char c);
/* Forget the stream so far. */
void bl_matcher_reset(bl_matcher *m);

#endif
