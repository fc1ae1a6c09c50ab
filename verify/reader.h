/* Reading large files once, in tiles, without filling the page cache: bytes that are cached already are copied from there;
 * the rest is read past the cache (O_DIRECT) where the file system allows it, and dropped behind the reader where not. */
#ifndef BL_VERIFY_READER_H
#define BL_VERIFY_READER_H

#include "formats/file.h"

#define BL_IO_ALIGN 4096u
/* Room that a read of n bytes needs in its buffer: whole pages around it. */
#define BL_READ_ROOM(n) ((n) + 2 * (uint64_t)BL_IO_ALIGN)

/* n bytes in whole pages. */
static inline uint64_t bl_io_pages(uint64_t n)
{
    return bl_pieces(n, BL_IO_ALIGN) * BL_IO_ALIGN;
}

typedef struct bl_reader bl_reader;

/* Reads f, which is referenced. Thread-safe after creation. */
bl_status bl_reader_open(bl_reader **out, bl_file *f, bl_error *err);
void bl_reader_close(bl_reader **r);

/* Before anything is read: take the CRC-32 of what is, where an archive has one of the file. */
bl_status bl_reader_watch(bl_reader *r, bl_error *err);
/* When all was read: where that was at least half of a file that is watched, read the rest and compare. BL_E_INPUT: it is damaged. */
bl_status bl_reader_prove(bl_reader *r, bl_error *err);

/* Read n bytes at offset into buf (aligned to BL_IO_ALIGN, BL_READ_ROOM(n) bytes); *data points at the first one, inside buf,
 * congruent to offset modulo BL_IO_ALIGN. Errors as bl_file_read. */
bl_status bl_reader_read(bl_reader *r, uint8_t *buf, uint64_t n, uint64_t offset, const uint8_t **data, bl_error *err);

/* Read n bytes at offset into dst, anywhere; buf is as above, and used for what is not in the page cache. */
bl_status bl_reader_copy(bl_reader *r, uint8_t *dst, uint8_t *buf, uint64_t n, uint64_t offset, bl_error *err);

#endif
