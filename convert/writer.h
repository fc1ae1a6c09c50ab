/* Writing a large file in tiles that may come in any order, past the page cache (O_DIRECT) where the file system allows it:
 * fresh cache pages cost more than the disk, and the data will not be read again soon.
 *
 * Whole pages of a tile go out from where they lie. The parts of pages that two tiles share are collected and written when a
 * page is full, so no byte is written twice and none is read back. */
#ifndef BL_CONVERT_WRITER_H
#define BL_CONVERT_WRITER_H

#include "formats/output.h"

typedef struct bl_writer bl_writer;

/* Start path, size bytes long (reserved at once). Complete or absent, as bl_output. */
bl_status bl_writer_open(bl_writer **out, const char *path, uint64_t size, bl_error *err);
/* Write n bytes at offset. data is congruent to offset modulo 4096 (BL_IO_ALIGN). Thread-safe for disjoint ranges. */
bl_status bl_writer_put(bl_writer *w, const uint8_t *data, uint64_t n, uint64_t offset, bl_error *err);
/* Every byte was put: write what is left, sync, rename; frees *w. On failure nothing is left. */
bl_status bl_writer_commit(bl_writer **w, bl_error *err);
/* Remove the file; frees *w; NULL is fine. */
void bl_writer_abort(bl_writer **w);

#endif
