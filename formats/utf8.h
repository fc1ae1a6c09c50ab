/* UTF-8, one code point at a time, with the error boundaries that Python's errors="replace" uses. */
#ifndef BL_FORMATS_UTF8_H
#define BL_FORMATS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bl_utf8_kind {
    BL_UTF8_VALID = 0,
    BL_UTF8_INVALID, /* these bytes can never start a code point: one U+FFFD stands for all of them */
    BL_UTF8_SHORT    /* a correct beginning, but the text ends inside the code point */
} bl_utf8_kind;

/* Look at the code point that starts at p[0], n >= 1. *len = bytes it takes (1..4); for INVALID the longest prefix of a
 * correct sequence, at least 1; for SHORT n. *cp (may be NULL) is set for VALID only. Surrogates and overlong forms are
 * invalid. */
bl_utf8_kind bl_utf8_step(const char *p, size_t n, unsigned *len, uint32_t *cp);

/* Offset of the first byte that does not belong to a complete code point; n when all of p is valid. */
size_t bl_utf8_check(const char *p, size_t n);

/* Write cp (a valid scalar value) as 1..4 bytes; returns their number. */
unsigned bl_utf8_put(uint32_t cp, char out[4]);

#endif
