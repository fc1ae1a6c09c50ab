/* zstd streams, through libarchive: one stream is one run of bytes, written and read from front to back. */
#ifndef BL_FORMATS_ZSTD_H
#define BL_FORMATS_ZSTD_H

#include "formats/file.h"

typedef struct bl_zstd_writer bl_zstd_writer;

/* Compressed bytes go to sink, in order. level: 1 to 19. */
bl_status bl_zstd_writer_open(bl_zstd_writer **out, int level, bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err),
                              void *arg, bl_error *err);
bl_status bl_zstd_write(bl_zstd_writer *w, const void *data, size_t n, bl_error *err);
/* End the stream; frees and nulls *w also on failure. */
bl_status bl_zstd_writer_close(bl_zstd_writer **w, bl_error *err);
/* Give up; NULL is fine. */
void bl_zstd_writer_abort(bl_zstd_writer **w);

typedef struct bl_zstd_reader bl_zstd_reader;

/* Read the stream in nbytes at offset of file, which is referenced. What is no zstd stream is BL_E_INPUT, naming tensor. Memory is
 * bounded whatever the stream says. tensor is borrowed, for errors. */
bl_status bl_zstd_reader_open(bl_zstd_reader **out, bl_file *file, uint64_t offset, uint64_t nbytes, const char *tensor, bl_error *err);
/* Up to n bytes; *got is less only at the end of the stream. A damaged stream is BL_E_INPUT. */
bl_status bl_zstd_read(bl_zstd_reader *r, void *dst, size_t n, size_t *got, bl_error *err);
void bl_zstd_reader_close(bl_zstd_reader **r); /* nulls *r; NULL is fine */

#endif
