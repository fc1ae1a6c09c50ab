/* safetensors, strict both ways.
 *
 * Layout: u64 little-endian N; N bytes of JSON (an object, then only 0x20); then the data buffer, which every byte of the
 * rest of the file belongs to: tensors sorted by offset touch without holes or overlaps and end at the end of the file. */
#ifndef BL_FORMATS_SAFETENSORS_H
#define BL_FORMATS_SAFETENSORS_H

#include "formats/arena.h"
#include "formats/dtype.h"
#include "formats/file.h"
#include "formats/output.h"

#include <stdbool.h>

#define BL_MAX_DIMS 32
#define BL_ST_MAX_HEADER 100000000u /* bytes of JSON, as in the reference implementation */
#define BL_MAX_NAME 1024            /* bytes of a tensor name */

/* A tensor is a description: where its bytes are and what they mean. */
typedef struct bl_tensor {
    const char *name;      /* NUL-terminated, valid UTF-8, no control bytes */
    const uint64_t *shape; /* [ndim] */
    uint32_t ndim;
    bl_dtype dtype;
    uint32_t file;   /* index of the file that holds it (its owner's files[]) */
    uint64_t offset; /* absolute byte offset in that file */
    uint64_t nbytes;
} bl_tensor;

/* Bytes of a dtype and shape: false when the product overflows 64 bits or sub-byte elements do not fill whole bytes. */
bool bl_tensor_size(bl_dtype dtype, const uint64_t *shape, uint32_t ndim, uint64_t *nbytes);
/* May a tensor have this name (n bytes)? UTF-8 of 1 to BL_MAX_NAME bytes without control characters, not "__metadata__". */
bool bl_tensor_name_ok(const char *name, size_t n);
/* Product of the dimensions (1 for a scalar); shapes of read tensors never overflow. */
uint64_t bl_tensor_elements(const bl_tensor *t);

/* A file's header. Strings and arrays live in the arena given to bl_st_read. */
typedef struct bl_st_header {
    bl_tensor *tensors; /* [count], in data order (offset, then name) */
    size_t count;
    uint64_t header_bytes; /* 8 + N: where the data begins */
    uint64_t file_bytes;
    const char **metadata; /* [2 * metadata_count] key, value, ... of __metadata__ */
    size_t metadata_count;
} bl_st_header;

/* Read and check the header of f (every rule above; formats details in README.md). Files that are something else are told
 * apart in the
 * message: a git-lfs pointer (with its oid and size), an HTML page, a ZIP (old PyTorch), gzip, an empty file, a
 * truncated download (header complete, data short: says how many bytes are missing). file_index goes into every tensor's
 * file field. Memory is bounded by the header's size times a small constant. */
bl_status bl_st_read(const bl_file *f, uint32_t file_index, bl_arena *arena, bl_st_header *out, bl_error *err);

/* A header to write: its text, then spaces up to header_bytes. */
typedef struct bl_st_head {
    const char *text; /* [text_bytes] the length field and the JSON */
    uint64_t text_bytes;
    uint64_t header_bytes; /* 8 + N: where the data begins */
    uint64_t file_bytes;
} bl_st_head;

/* n bytes at offset of a header to dst. */
void bl_st_head_copy(const bl_st_head *h, uint64_t offset, uint64_t n, void *dst);
/* All of it to the beginning of a file. */
bl_status bl_st_head_write(const bl_st_head *h, bl_output *out, bl_error *err);

/* Lay out tensors for writing: fills every tensor's nbytes and offset (absolute) and *head, whose text is in the arena; its spaces let
 * the data begin on a multiple of align, a power of two >= 8. Data order: as given when keep_order is nonzero; else largest first, then by name, with tensors of a size that is no multiple of 8 last, widest
 * elements first, so that every tensor is aligned for its dtype. No holes either way; the array itself is not reordered. metadata is [2 * metadata_count] key, value.
 * Refuses duplicate or illegal names, impossible shapes and headers over BL_ST_MAX_HEADER (BL_E_INPUT). */
bl_status bl_st_layout(bl_tensor *tensors, size_t count, const char *const *metadata, size_t metadata_count, uint32_t align,
                       int keep_order, bl_arena *arena, bl_st_head *head, bl_error *err);

/* {"format": "pt"}, which some readers insist on: __metadata__ of every checkpoint file and packed payload written here. */
extern const char *const bl_st_metadata[2];

/* Two orderings for qsort of bl_tensor. */
int bl_tensor_by_name(const void *a, const void *b);
int bl_tensor_by_place(const void *a, const void *b); /* file, offset, size, name */

#endif
