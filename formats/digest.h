/* 128-bit digests and hexadecimal text. */
#ifndef BL_FORMATS_DIGEST_H
#define BL_FORMATS_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 128 bits, most significant byte first: XXH3-128 in its canonical form, or a sum of such modulo 2^128. */
typedef struct bl_digest {
    uint8_t b[16];
} bl_digest;

/* dst gets 2 * n lower-case digits and a NUL. Returns dst. */
char *bl_hex_encode(char *dst, const void *src, size_t n);
/* Exactly chars digits (even; lower or upper case) into chars / 2 bytes; false on anything else. */
bool bl_hex_decode(void *dst, const char *src, size_t chars);

bool bl_digest_equal(const bl_digest *a, const bl_digest *b);

#endif
