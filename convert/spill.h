/* Small results that wait for their place in a file: made with one tensor, written with a later one. What is small waits in
 * memory, what is large in a temporary file without a name, so that memory does not grow with tensors. */
#ifndef BL_CONVERT_SPILL_H
#define BL_CONVERT_SPILL_H

#include "formats/status.h"

#define BL_SPILL_SMALL ((uint64_t)512 << 10) /* items up to this size wait in memory */

typedef struct bl_spill bl_spill;

/* Room for count items. folder, which is borrowed: where the temporary file goes, if one is needed. */
bl_status bl_spill_create(bl_spill **out, const char *folder, size_t count, bl_error *err);
/* Drops what still waits; nulls *s; NULL is fine. */
void bl_spill_destroy(bl_spill **s);

/* Put n bytes at offset of item i, which has total bytes. Any thread, any order; no byte twice. */
bl_status bl_spill_put(bl_spill *s, size_t i, uint64_t total, uint64_t offset, const void *data, uint64_t n, bl_error *err);
/* Take n bytes at offset of item i. All of them were put; the item's last byte is taken last, and frees it. */
bl_status bl_spill_take(bl_spill *s, size_t i, uint64_t total, uint64_t offset, void *data, uint64_t n, bl_error *err);

#endif
