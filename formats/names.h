/* Names of files and tensors: how they end, where they lie, how they stand in JSON. */
#ifndef BL_FORMATS_NAMES_H
#define BL_FORMATS_NAMES_H

#include "formats/arena.h"

#include <stdbool.h>
#include <stdio.h>

/* Does s end with tail, or equal it? */
bool bl_ends_with(const char *s, const char *tail);
/* Length of what stands before tail at the end of s; 0 when s does not end with tail, or is all of it. */
size_t bl_stem(const char *s, const char *tail);

/* "folder/name" with one slash between them, name alone where folder is "", in arena; NULL without memory. */
char *bl_path_join(bl_arena *arena, const char *folder, const char *name);

/* s as a JSON string with its quotes, not NUL-terminated, into dst (NULL: only count). Returns its length, at most 6 bytes for each
 * of s and 2. Bytes from 0x80 on are kept: s is UTF-8. */
size_t bl_json_quote(char *dst, const char *s);
/* The same to f. */
void bl_json_put(FILE *f, const char *s);

#endif
