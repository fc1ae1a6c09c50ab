/* Values of config.json by key, each in its range: what is not as it must be is BL_E_INPUT and names path and key. Private to formats/. */
#ifndef BL_FORMATS_CONFIG_KEYS_H
#define BL_FORMATS_CONFIG_KEYS_H

#include "formats/arena.h"
#include "formats/json.h"

#include <stdbool.h>

typedef struct bl_keys {
    bl_json text, top; /* keys are looked up in text_config (NONE where there is none), then at the top level */
    const char *path;
    bl_arena *arena; /* of lists */
    bl_error *err;
} bl_keys;

/* An int of a struct. An absent or null key fails where it is required, and otherwise leaves the default. */
typedef struct bl_key_int {
    const char *key;
    size_t at; /* offsetof */
    int min, max;
} bl_key_int;

/* A failure that names key. */
bl_status bl_keys_bad(const bl_keys *k, const char *key, const char *what);
/* The value of a key, and of one in an object; NONE when it is absent or null. */
bl_json bl_keys_find(const bl_keys *k, const char *key);
bl_json bl_keys_member(bl_json object, const char *key);

/* Numbers that must be there. Integers may be written as 16.0, as trainers do. */
bl_status bl_keys_i64(const bl_keys *k, const char *key, int64_t min, int64_t max, int64_t *out);
bl_status bl_keys_double(const bl_keys *k, const char *key, double min, double max, double *out);
bl_status bl_keys_float(const bl_keys *k, const char *key, double min, double max, float *out);
/* The n fields of the struct at out. */
bl_status bl_keys_ints(const bl_keys *k, void *out, const bl_key_int *f, size_t n, bool required);
bl_status bl_keys_bool(const bl_keys *k, const char *key, bool fallback, bool *out);

/* A value that was found, under the name that errors call it by. */
bl_status bl_keys_to_int(const bl_keys *k, const char *key, bl_json v, int64_t min, int64_t max, int64_t *out);
bl_status bl_keys_to_double(const bl_keys *k, const char *key, bl_json v, double min, double max, double *out);
/* One that, where present, may only be this: the arithmetic knows no other. */
bl_status bl_keys_string(const bl_keys *k, bl_json v, const char *key, const char *want);
/* [rows, cols] */
bl_status bl_keys_block(const bl_keys *k, bl_json v, const char *key, int64_t rows, int64_t cols);

/* A list of integers, each in [min, max]; an absent key is an empty list. */
bl_status bl_keys_list(const bl_keys *k, const char *key, int64_t min, int64_t max, const int64_t **out, int *count);
bl_status bl_keys_int_list(const bl_keys *k, const char *key, int min, int max, const int **out, int *count);
/* Layer numbers below layers, strictly ascending. */
bl_status bl_keys_layers(const bl_keys *k, const char *key, int layers, const int **out, int *count);

#endif
