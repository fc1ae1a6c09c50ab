/* Digests of tensors: what the manifests of a packed model hold and what two models are compared by.
 *
 * All hashes are XXH3-128 of xxHash 0.8. Sums are unsigned, modulo 2^128; a sum is written like a hash, most significant
 * byte first (bl_digest).
 *
 * CHUNK DIGEST. The bytes of a tensor as stored are cut at multiples of BL_CHUNK_BYTES (8 MiB) from the tensor's first byte; each
 * piece, the last one possibly shorter, is hashed with seed 0. A tensor without bytes has no chunk.
 *
 * VALUE DIGEST. The sum of the hashes of units, each seeded with its global index, so that units may come in any order and
 * the digests of parts that do not split units add up to the digest of the whole. The class says what a unit is:
 *
 *   matrix   [rows, cols] of bf16 values: a BF16 tensor of two dimensions, or fp8 or fp4 codes decoded with their scale (F32
 *            scales that are no powers of two: rounded to bf16 as a cast rounds), with cols <= BL_VALUE_MAX_COLS. The unit is a tile of 32 x 32 values, smaller at the
 *            right and lower edge: its rows in order, each row's values in order, two bytes a value, little-endian,
 *            canonical (-0 as +0, any NaN as 0x7FC0). Index = (row / 32) * ceil(cols / 32) + col / 32.
 *            Where ranks' parts begin inside such a tile, tiles are h x w, the largest powers of two up to 32 of which the parts
 *            are made; then 32 is h or w above, the record says so ("unit"), and the digests of other models are computed with
 *            the same tiles to compare.
 *   rows     an Engram table: the bytes of each row of codes, index = row, and the bytes of each row of its scales,
 *            index = 2^63 + row: both add to one digest, the weight's.
 *   elements a vector that ranks cut into parts (attn_sink): the bytes of each element, index = element.
 *   bytes    everything else (F32, vectors): raw bytes, units of 4096 bytes from the tensor's start, the last one shorter,
 *            index = offset / 4096.
 *
 * A scale has no digest of its own: it counts through its weight. Stacked experts have one digest an expert, each as if the
 * expert stood alone (indexes from 0), so that an expert's digest is the same stacked, single, released or cast to BF16.
 * The digest is recorded with its class and shape (formats/manifest.h); equal means all three are equal. */
#ifndef BL_VERIFY_DIGEST_H
#define BL_VERIFY_DIGEST_H

#include "formats/manifest.h"
#include "kernels/cast.h"

#define BL_VALUE_TILE 32
#define BL_VALUE_UNIT_BYTES 4096
#define BL_VALUE_MAX_COLS 131072

/* A sum modulo 2^128. {0} is empty. */
typedef struct bl_sum {
    uint64_t lo, hi;
} bl_sum;

void bl_sum_add(bl_sum *s, bl_sum x);
bl_digest bl_sum_digest(bl_sum s);
bl_sum bl_digest_sum(bl_digest d);

/* Where a piece of a matrix lies in the whole, for the indexes of its tiles, and how its rows lie in memory. */
typedef struct bl_tiles {
    uint64_t first, per_row; /* index of the first tile; tiles in a row of the whole */
    uint64_t height, width;  /* of a tile */
    uint64_t pitch;          /* values from one row of the piece to the next; 0: as many as it has columns */
} bl_tiles;

/* Of a piece that starts at [row, col], multiples of height and width, in a matrix with cols columns. */
bl_tiles bl_tiles_of(uint64_t row, uint64_t col, uint64_t cols, uint64_t height, uint64_t width);
/* The same with tiles of 32x32, the usual ones. */
bl_tiles bl_tiles_at(uint64_t row, uint64_t col, uint64_t cols);

/* Add the tiles of a piece: values [rows, cols] bf16, at any alignment. rows and cols are multiples of a tile's unless the matrix
 * ends there. */
void bl_value_matrix(const bl_cast_kernels *k, bl_sum *s, const void *values, uint64_t rows, uint64_t cols, bl_tiles at);
/* The same for packed fp4 codes [rows, cols / 2] with their scale bytes [rows, cols / 32]; cols is a multiple of 32,
 * tiles are 32x32, rows lie one after the other. */
void bl_value_fp4(const bl_cast_kernels *k, bl_sum *s, const uint8_t *packed, const uint8_t *scale, uint64_t rows, uint64_t cols,
                  bl_tiles at);
/* The same for fp8 codes [rows, cols] with their scale bytes [ceil(rows / 32), ceil(cols / 32)], which lie one after the other. Tiles
 * are 32x32. */
void bl_value_fp8(const bl_cast_kernels *k, bl_sum *s, const uint8_t *codes, const uint8_t *scale, uint64_t rows, uint64_t cols,
                  bl_tiles at);
/* Add rows [row0, row0 + rows) of a table's codes, or of its scales; data [rows, row_bytes]. */
void bl_value_rows(bl_sum *s, const uint8_t *data, uint64_t row0, uint64_t rows, uint64_t row_bytes, bool scales);
/* Add elements [first, first + count) of a vector, size bytes each. */
void bl_value_elements(bl_sum *s, const uint8_t *data, uint64_t first, uint64_t count, uint64_t size);
/* Add n bytes at offset, a multiple of 4096, of a tensor of class bytes; n too, unless the tensor ends there. */
void bl_value_bytes(bl_sum *s, const uint8_t *data, uint64_t offset, uint64_t n);

/* Chunk digests of one tensor after another, from bytes in order. */
typedef struct bl_chunker bl_chunker;
bl_status bl_chunker_create(bl_chunker **out, bl_error *err);
void bl_chunker_destroy(bl_chunker **c);
/* Hash the next n bytes of a tensor of total bytes, at offset; offset 0 starts a tensor. Every finished chunk's digest goes
 * to chunks[offset / BL_CHUNK_BYTES], where chunks has bl_chunk_count(total) entries. */
void bl_chunker_update(bl_chunker *c, const uint8_t *data, uint64_t offset, uint64_t n, uint64_t total, bl_digest *chunks);

/* XXH3-128, seed 0, of bytes that come in pieces. */
typedef struct bl_hasher bl_hasher;
bl_status bl_hasher_create(bl_hasher **out, bl_error *err);
void bl_hasher_destroy(bl_hasher **h); /* nulls *h; NULL is fine */
void bl_hasher_update(bl_hasher *h, const void *data, uint64_t n);
/* The digest of all bytes so far; h then starts anew. */
bl_digest bl_hasher_final(bl_hasher *h);

/* The digests of a file's data and of its tensors, while their bytes pass in order. */
typedef struct bl_data_hashes {
    bl_hasher *data, *tensor;
} bl_data_hashes;

bl_status bl_data_hashes_open(bl_data_hashes *h, bl_error *err);
void bl_data_hashes_close(bl_data_hashes *h); /* also of one that was not opened */
/* Add n bytes; of_tensor: they are a tensor's, not padding. */
void bl_data_hash(bl_data_hashes *h, const uint8_t *bytes, uint64_t n, bool of_tensor);

/* XXH3-128, seed 0, of n bytes. */
bl_digest bl_digest_bytes(const void *data, uint64_t n);

#endif
