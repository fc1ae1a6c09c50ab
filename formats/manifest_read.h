/* Reading manifests, value by value: what bl_manifest_parse and bl_rank_manifest_parse share. Every function returns BL_OK,
 * BL_E_INPUT with a message that says what is wrong where, or BL_E_NOMEM. */
#ifndef BL_FORMATS_MANIFEST_READ_H
#define BL_FORMATS_MANIFEST_READ_H

#include "formats/json.h"
#include "formats/manifest.h"

typedef struct bl_mreader {
    const char *text, *path, *tensor; /* tensor: the one being read, for errors */
    bl_arena *arena;                  /* what results point to */
    bl_error *err;
} bl_mreader;

/* A key of an object: where its value goes, whether it may be absent. */
typedef struct bl_mread_slot {
    const char *key;
    bl_json *value;
    bool optional;
} bl_mread_slot;

bl_status bl_mread_bad(const bl_mreader *r, bl_json at, const char *what);
bl_status bl_mread_no_memory(const bl_mreader *r);

/* The text (n bytes) as JSON, its "format" being want and its "version" 1. */
bl_status bl_mread_root(const bl_mreader *r, size_t n, const char *want, bl_json *root);
/* Take an object apart. Keys that are not in slots mean a newer writer, whose meaning is unknown. */
bl_status bl_mread_take(const bl_mreader *r, bl_json object, const char *what, const bl_mread_slot *slots, size_t count);
#define BL_MREAD_TAKE(r, object, what, slots) bl_mread_take(r, object, what, slots, sizeof(slots) / sizeof *(slots))

bl_status bl_mread_to_u64(const bl_mreader *r, bl_json v, const char *what, uint64_t max, uint64_t *out);
bl_status bl_mread_to_int(const bl_mreader *r, bl_json v, const char *what, int min, int max, int *out);
/* A string without control characters; *n is its length. */
bl_status bl_mread_to_text(const bl_mreader *r, bl_json v, const char *what, const char **out, size_t *n);
/* n bytes as hexadecimal digits. */
bl_status bl_mread_to_hex(const bl_mreader *r, bl_json v, size_t n, void *out);
/* The name of a value class; never BL_VALUE_NONE. */
bl_status bl_mread_to_value_class(const bl_mreader *r, bl_json v, bl_value_class *out);
/* An array of at most max unsigned integers. */
bl_status bl_mread_to_list(const bl_mreader *r, bl_json v, const char *what, size_t max, const uint64_t **out, size_t *count);
bl_status bl_mread_to_digests(const bl_mreader *r, bl_json v, const char *what, const bl_digest **out, size_t *count);
/* "files" of the global manifest (rank -1), or of a rank's; no name twice. */
bl_status bl_mread_files(const bl_mreader *r, bl_json v, int rank, const bl_manifest_file **out, size_t *count);

/* folder/sub/manifest.json (sub may be ""): its path in the arena, its text malloc'd. */
bl_status bl_mread_slurp(const char *folder, const char *sub, bl_arena *arena, const char **path, char **text, size_t *n,
                         bl_error *err);

#endif
