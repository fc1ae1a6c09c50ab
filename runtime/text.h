/* A growing byte buffer. A failed allocation sticks: later appends do nothing, the caller looks once at the end. */
#ifndef BL_RUNTIME_TEXT_H
#define BL_RUNTIME_TEXT_H

#include "formats/json.h"

#include <stdbool.h>
#include <stddef.h>

/* Start from {0}; free(p) when done. Not NUL-terminated unless bl_text_end was called. */
typedef struct bl_text {
    char *p;
    size_t n, cap;
    bool failed;
} bl_text;

void bl_text_add(bl_text *t, const char *p, size_t n);
/* A NUL-terminated string. */
void bl_text_puts(bl_text *t, const char *s);
/* As printf does; of any length. */
__attribute__((format(printf, 2, 3))) void bl_text_printf(bl_text *t, const char *format, ...);
/* The unescaped content of a JSON string; nothing for other kinds. */
void bl_text_unescaped(bl_text *t, bl_json v);
/* p[0..n) as a JSON string with quotes, or (_body) without them: the escapes that Python's json.dumps(ensure_ascii=False) uses, and no
 * others. */
void bl_text_quote(bl_text *t, const char *p, size_t n);
void bl_text_quote_body(bl_text *t, const char *p, size_t n);
/* A JSON value in the form of Python's json.dumps(ensure_ascii=False): ", " and ": " between, keys in their order, strings with the
 * fewest escapes. Numbers keep their source text (Python would print 1e2 as 100.0). Duplicate keys are all printed. */
void bl_text_json(bl_text *t, bl_json v);
/* Put a NUL behind the last byte (not counted). */
void bl_text_end(bl_text *t);

#endif
