/* Duplicate keys in the objects of a JSON document; part of validation (json_check.c). */
#ifndef BL_FORMATS_JSON_KEYS_H
#define BL_FORMATS_JSON_KEYS_H

#include "formats/json.h"

typedef struct bl_json_key {
    uint32_t hash; /* seeded: nobody can prepare keys that collide */
    uint32_t at;   /* offset of the opening quote */
} bl_json_key;

/* The keys of all open objects, innermost last. Duplicates are looked for when an object closes: sorting what was appended
 * in order touches memory in order too, where a hash table of a million keys would miss the cache at every step. */
typedef struct bl_json_keys {
    const char *text; /* the document, below 4 GiB */
    uint64_t seed;
    bl_json_key *keys;
    size_t count, cap;
    char *scratch; /* private: unescaped keys */
    size_t scratch_cap;
} bl_json_keys;

void bl_json_keys_begin(bl_json_keys *k, const char *text);
void bl_json_keys_end(bl_json_keys *k);

/* Append a key; escaped says whether it holds a backslash. BL_OK or BL_E_NOMEM. */
bl_status bl_json_keys_add(bl_json_keys *k, bl_json key, bool escaped);

/* Close an object: are keys [first, count) all different once unescaped? Removes them. BL_OK; BL_E_INPUT with the first
 * repetition in *twice; BL_E_NOMEM. */
bl_status bl_json_keys_close(bl_json_keys *k, size_t first, bl_json *twice);

#endif
