/* tokenizer.json: byte-level BPE with its own split patterns (PCRE2), added tokens, and a detokeniser that works on bytes. */
#ifndef BL_RUNTIME_TOKENIZER_H
#define BL_RUNTIME_TOKENIZER_H

#include "formats/status.h"
#include "runtime/text.h"

#include <stdbool.h>

typedef struct bl_tokenizer bl_tokenizer; /* immutable after opening; safe to share between threads */

bl_status bl_tokenizer_open(bl_tokenizer **out, const char *path, bl_error *err);
/* From memory (fuzzing, packed models); name is used in errors. */
bl_status bl_tokenizer_parse(bl_tokenizer **out, const char *text, size_t n, const char *name, bl_error *err);
void bl_tokenizer_close(bl_tokenizer **t);

/* Number of ids: largest id + 1, added tokens included. */
int bl_tokenizer_size(const bl_tokenizer *t);
/* Id of an added or vocabulary token by its exact content, -1 when there is none. */
int bl_tokenizer_id(const bl_tokenizer *t, const char *token);
/* The bytes an id stands for (added tokens: their literal text), borrowed; *n = length. NULL for an unused id. */
const char *bl_tokenizer_bytes(const bl_tokenizer *t, int id, size_t *n);
/* The string an id has in the file (vocabulary entries: in the byte alphabet), borrowed; *n = length. NULL for an unused id. */
const char *bl_tokenizer_name(const bl_tokenizer *t, int id, size_t *n);
bool bl_tokenizer_is_added(const bl_tokenizer *t, int id);
bool bl_tokenizer_is_special(const bl_tokenizer *t, int id);

/* Growing list of ids; start from {0}; free(ids) when done. */
typedef struct bl_ids {
    int32_t *ids;
    size_t count, capacity;
} bl_ids;

/* Append the ids of text[0..n) (valid UTF-8, else BL_E_INPUT). Added tokens in the text become their ids when added is
 * true (as the reference does); no BOS is added. O(n log n) for any input. After a failure out holds what came before it. */
bl_status bl_tokenizer_encode(const bl_tokenizer *t, const char *text, size_t n, bool added, bl_ids *out, bl_error *err);

/* Streaming detokeniser: push ids, take complete UTF-8. */
typedef struct bl_detok {
    char tail[4]; /* an incomplete code point, private */
    unsigned tail_len;
} bl_detok;
/* Append the text id adds to buf (realloc'd; *len, *cap as usual). An incomplete code point waits for the next id; bytes that
 * can never become valid UTF-8 are replaced by U+FFFD as Python's errors="replace" does. */
bl_status bl_detok_push(bl_detok *d, const bl_tokenizer *t, int id, char **buf, size_t *len, size_t *cap);
/* At the end: an incomplete tail becomes U+FFFD. */
bl_status bl_detok_finish(bl_detok *d, char **buf, size_t *len, size_t *cap);
/* The same for bytes that come from elsewhere; a failure shows in out->failed. */
void bl_detok_bytes(bl_detok *d, const char *p, size_t n, bl_text *out);
void bl_detok_end(bl_detok *d, bl_text *out);

#endif
