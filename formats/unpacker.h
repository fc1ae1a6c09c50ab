/* The stream that a compressed file holds: gzip through zlib, zstd and xz through libarchive. The checksums that these formats have are
 * compared, gzip's too, which libarchive does not do; those at the end only when all of the stream is read. Private to formats/. */
#ifndef BL_FORMATS_UNPACKER_H
#define BL_FORMATS_UNPACKER_H

#include "formats/file.h"

typedef struct bl_unpacker bl_unpacker;

/* *out is NULL when f, which is borrowed, is not compressed, by its first bytes. */
bl_status bl_unpacker_open(bl_unpacker **out, const bl_file *f, bl_error *err);
/* The next bytes, borrowed until the next call; *n is 0 at the end. What is damaged or cut is BL_E_INPUT. */
bl_status bl_unpacker_next(bl_unpacker *u, const void **data, size_t *n, bl_error *err);
void bl_unpacker_close(bl_unpacker **u); /* nulls *u; NULL is fine */

#endif
