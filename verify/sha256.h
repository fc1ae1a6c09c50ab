/* SHA-256 of byte streams, and the SHA256SUMS file that sha256sum(1) reads. */
#ifndef BL_VERIFY_SHA256_H
#define BL_VERIFY_SHA256_H

#include "formats/arena.h"
#include "formats/status.h"

#include <stdbool.h>

#define BL_SUMS_NAME "SHA256SUMS"
#define BL_SIGNATURE_NAME "SHA256SUMS.sig" /* 64 raw bytes: its Ed25519 signature */

typedef struct bl_sha256 bl_sha256;

bl_status bl_sha256_create(bl_sha256 **out, bl_error *err);
void bl_sha256_destroy(bl_sha256 **h);
/* Add n bytes. A failure of the library shows at the end. */
void bl_sha256_update(bl_sha256 *h, const void *data, size_t n);
/* The digest of all bytes added so far; the object then starts anew. */
bl_status bl_sha256_final(bl_sha256 *h, uint8_t digest[32], bl_error *err);

/* Of a buffer, and of a file (read in pieces). */
bl_status bl_sha256_bytes(const void *data, size_t n, uint8_t digest[32], bl_error *err);
bl_status bl_sha256_file(const char *path, uint8_t digest[32], bl_error *err);

/* One line of SHA256SUMS: 64 lower-case digits, two spaces, name, newline. Names are relative to its folder, without newline
 * or backslash. Lines are sorted by name (bytes). */
typedef struct bl_sum_line {
    const char *name;
    uint8_t digest[32];
} bl_sum_line;

/* Sort lines and make the file's text of them: malloc'd, n bytes. */
bl_status bl_sums_text(bl_sum_line *lines, size_t count, char **text, size_t *n, bl_error *err);
/* The same, written to path. */
bl_status bl_sums_write(bl_sum_line *lines, size_t count, const char *path, bl_error *err);

/* Parse the n bytes of path. Every line must have exactly the form above (also " *" for the two spaces, as sha256sum -b writes), names
 * must be unique and stay inside the folder; the first line that breaks this is named with its offset (BL_E_INPUT). The order is free.
 * Lines come sorted by name; all lives in arena. */
bl_status bl_sums_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_sum_line **lines, size_t *count, bl_error *err);
/* The line of name among sorted lines; NULL when absent. */
const bl_sum_line *bl_sums_find(const bl_sum_line *lines, size_t count, const char *name);

#endif
