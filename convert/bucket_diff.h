/* What turns the bytes of one tensor into other bytes, as a zstd stream: made from both from front to back, and applied so. Offsets have
 * 64 bits; memory does not depend on the tensor's size. Private to convert/. */
#ifndef BL_CONVERT_BUCKET_DIFF_H
#define BL_CONVERT_BUCKET_DIFF_H

#include "formats/delta.h"
#include "formats/zstd.h"

typedef struct bl_diff bl_diff;

/* Compressed bytes go to sink. One bl_diff serves one tensor after another. */
bl_status bl_diff_create(bl_diff **out, bl_delta_encoding encoding, int level,
                         bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err), void *arg, bl_error *err);
void bl_diff_destroy(bl_diff **d); /* NULL is fine */
/* The next n bytes of a tensor of total bytes, at offset; offset 0 begins it. unit: bytes of a row, of which records are made. Nothing
 * goes to the sink before the first difference. */
bl_status bl_diff_add(bl_diff *d, const uint8_t *before, const uint8_t *after, uint64_t offset, uint64_t n, uint64_t unit, bl_error *err);
/* The tensor ends: *bytes is what the stream holds, 0 when nothing differs and nothing went to the sink. */
bl_status bl_diff_end(bl_diff *d, uint64_t *bytes, bl_error *err);

typedef struct bl_patch bl_patch;

/* Apply stream t, in nbytes at offset of file, to a tensor of total bytes. t is borrowed. Nothing that the stream says is believed:
 * what does not fit is BL_E_INPUT. */
bl_status bl_patch_open(bl_patch **out, bl_delta_encoding encoding, bl_file *file, uint64_t offset, const bl_delta_tensor *t,
                        uint64_t total, bl_error *err);
/* Turn the next n bytes of the tensor, at offset, into the new ones. */
bl_status bl_patch_apply(bl_patch *p, uint8_t *data, uint64_t offset, uint64_t n, bl_error *err);
/* Was the stream used up? */
bl_status bl_patch_end(bl_patch *p, bl_error *err);
void bl_patch_close(bl_patch **p); /* NULL is fine */

#endif
