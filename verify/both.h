/* SHA-256 of a file and chunk digests of its tensors over the same bytes. */
#ifndef BL_VERIFY_BOTH_H
#define BL_VERIFY_BOTH_H

#include "verify/digest.h"
#include "verify/sha256.h"

/* Hash the next n bytes of a file with h, and, as bl_chunker_update with offset, total and chunks, with c. Either may be NULL.
 * SHA-256, which computes longer than it reads, goes first, a piece at a time: the digest then finds the bytes in cache. */
void bl_hash_both(bl_sha256 *h, bl_chunker *c, const uint8_t *data, uint64_t n, uint64_t offset, uint64_t total,
                  bl_digest *chunks);

#endif
