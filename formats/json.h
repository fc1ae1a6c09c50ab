/* One strict, span-based JSON reader.
 *
 * A document is validated once, whole (RFC 8259 grammar, UTF-8, depth, size, no duplicate keys in any object after
 * unescaping, nothing but white space after the value). Then values are spans of the source text and walking them cannot
 * fail. There is no tree: memory is the caller's text plus, during validation, 8 to 20 bytes for each key of the open objects.
 * Numbers keep their source text, so that chat templates can print them as written. Building JSON is jansson's job. */
#ifndef BL_FORMATS_JSON_H
#define BL_FORMATS_JSON_H

#include "formats/status.h"

#include <stdbool.h>

typedef enum bl_json_kind {
    BL_JSON_NONE = 0, /* absent */
    BL_JSON_NULL,
    BL_JSON_FALSE,
    BL_JSON_TRUE,
    BL_JSON_NUMBER,
    BL_JSON_STRING,
    BL_JSON_ARRAY,
    BL_JSON_OBJECT
} bl_json_kind;

/* A value: p[0..n) is its exact source text (a string includes its quotes). Borrowed from the document text. */
typedef struct bl_json {
    const char *p;
    size_t n;
    bl_json_kind kind;
} bl_json;

/* Limits; 0 means the default. */
typedef struct bl_json_limits {
    size_t max_bytes;       /* default 100,000,000 */
    unsigned max_depth;     /* default 64; a scalar has depth 0, {} and [] depth 1 */
    bool last_duplicate_wins; /* HTTP bodies: duplicate keys are allowed and the last one counts */
    bool refuse_lone_surrogates; /* "\ud800" is an error, as in readers whose strings are UTF-8 */
} bl_json_limits;

/* Is s[0..n) well-formed UTF-8 without control characters (below 0x20, and 0x7f)? */
bool bl_text_is_clean(const char *s, size_t n);

/* Validate text[0..n) and return the whole value in *root. path names the source in errors; the offset is where it fails. */
bl_status bl_json_parse(const char *text, size_t n, const bl_json_limits *limits, const char *path, bl_json *root,
                        bl_error *err);

/* Walk an object or array. Usage: bl_json_iter it = bl_json_begin(v); while (bl_json_next(&it, &key, &value)) ...
 * key is NONE for arrays. Iterating anything else yields nothing. */
typedef struct bl_json_iter {
    const char *p, *end;
    bool object;
} bl_json_iter;
bl_json_iter bl_json_begin(bl_json v);
bool bl_json_next(bl_json_iter *it, bl_json *key, bl_json *value);

/* Member of an object by (unescaped) name; kind NONE when absent or v is no object. Linear in the object's text. */
bl_json bl_json_get(bl_json v, const char *key);
/* Number of members or elements. */
size_t bl_json_count(bl_json v);

/* Does the string value equal s after unescaping? */
bool bl_json_equals(bl_json v, const char *s);
/* Unescape a string into buf (cap bytes, NUL-terminated). Returns the unescaped length, which may exceed cap - 1 (then buf
 * holds a prefix); 0 for non-strings. The text may hold NUL bytes when the source says \u0000. A lone surrogate becomes
 * U+FFFD. */
size_t bl_json_string(bl_json v, char *buf, size_t cap);

/* Exact conversions: false when v is not that (fraction, exponent, sign or range included). */
bool bl_json_u64(bl_json v, uint64_t *out);
bool bl_json_i64(bl_json v, int64_t *out);
/* Any finite number. */
bool bl_json_double(bl_json v, double *out);
bool bl_json_bool(bl_json v, bool *out);

#endif
