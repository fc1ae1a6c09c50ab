#include "verify/both.h"

#define PIECE ((uint64_t)128 << 10) /* well inside a second-level cache */

void bl_hash_both(bl_sha256 *h, bl_chunker *c, const uint8_t *data, uint64_t n, uint64_t offset, uint64_t total, bl_digest *chunks)
{
    for (uint64_t at = 0, take; at < n; at += take) {
        take = n - at < PIECE ? n - at : PIECE;
        if (h) {
            bl_sha256_update(h, data + at, take);
        }
        if (c) {
            bl_chunker_update(c, data + at, offset + at, take, total, chunks);
        }
    }
}
