#include "verify/digest.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* XXH3 for the best vectors this CPU has */
#endif
#endif
#include <xxhash.h>

void bl_sum_add(bl_sum *s, bl_sum x)
{
    s->lo += x.lo;
    s->hi += x.hi + (s->lo < x.lo);
}

bl_digest bl_sum_digest(bl_sum s)
{
    bl_digest d;
    for (int i = 0; i < 8; i++) {
        d.b[i] = (uint8_t)(s.hi >> (56 - 8 * i));
        d.b[8 + i] = (uint8_t)(s.lo >> (56 - 8 * i));
    }
    return d;
}

bl_sum bl_digest_sum(bl_digest d)
{
    bl_sum s = {0};
    for (int i = 0; i < 8; i++) {
        s.hi = s.hi << 8 | d.b[i];
        s.lo = s.lo << 8 | d.b[8 + i];
    }
    return s;
}

static void add_unit(bl_sum *s, const void *unit, size_t n, uint64_t index)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(unit, n, index);
    bl_sum_add(s, (bl_sum){.lo = h.low64, .hi = h.high64});
}

/* A tile at the right edge, narrower than 32 values. */
static void narrow_tile(uint16_t *tile, const uint8_t *src, uint64_t stride, uint64_t height, size_t width)
{
    for (uint64_t r = 0; r < height; r++, src += stride, tile += width) {
        memcpy(tile, src, 2 * width);
        for (size_t i = 0; i < width; i++) {
            unsigned magnitude = tile[i] & 0x7FFFu;
            tile[i] = magnitude == 0 ? 0 : magnitude > 0x7F80 ? 0x7FC0 : tile[i];
        }
    }
}

bl_tiles bl_tiles_of(uint64_t row, uint64_t col, uint64_t cols, uint64_t height, uint64_t width)
{
    uint64_t per_row = bl_pieces(cols, width);
    return (bl_tiles){.first = row / height * per_row + col / width, .per_row = per_row, .height = height, .width = width};
}

bl_tiles bl_tiles_at(uint64_t row, uint64_t col, uint64_t cols)
{
    return bl_tiles_of(row, col, cols, BL_VALUE_TILE, BL_VALUE_TILE);
}

static uint64_t pitch_of(bl_tiles at, uint64_t cols)
{
    return at.pitch ? at.pitch : cols;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void bl_value_matrix(const bl_cast_kernels *k, bl_sum *s, const void *values, uint64_t rows, uint64_t cols, bl_tiles at)
{
    _Alignas(64) uint16_t tile[BL_VALUE_TILE * BL_VALUE_TILE];
    uint64_t pitch = pitch_of(at, cols);
    for (uint64_t r = 0; r < rows; r += at.height) {
        uint64_t height = least(rows - r, at.height), index = at.first + r / at.height * at.per_row;
        for (uint64_t c = 0; c < cols; c += at.width, index++) {
            const uint8_t *src = (const uint8_t *)values + 2 * (r * pitch + c);
            size_t width = (size_t)least(cols - c, at.width);
            if (width == BL_VALUE_TILE) {
                k->bf16_tile(tile, src, (int64_t)(2 * pitch), (int64_t)height);
            } else {
                narrow_tile(tile, src, 2 * pitch, height, width);
            }
            add_unit(s, tile, height * width * sizeof *tile, index);
        }
    }
}

/* Tiles decoded together: their codes fill one cache line of each row. More of them evict each other, lying 2 KiB apart. */
#define FP4_TILES 4

void bl_value_fp4(const bl_cast_kernels *k, bl_sum *s, const uint8_t *packed, const uint8_t *scale, uint64_t rows, uint64_t cols,
                  bl_tiles at)
{
    _Alignas(64) uint16_t tiles[FP4_TILES * BL_VALUE_TILE * BL_VALUE_TILE];
    uint64_t blocks = cols / BL_VALUE_TILE, row_bytes = cols / 2;
    for (uint64_t r = 0; r < rows; r += BL_VALUE_TILE) {
        uint64_t height = rows - r < BL_VALUE_TILE ? rows - r : BL_VALUE_TILE, unit = height * BL_VALUE_TILE;
        for (uint64_t b = 0; b < blocks; b += FP4_TILES) {
            uint64_t count = blocks - b < FP4_TILES ? blocks - b : FP4_TILES;
            k->fp4_tiles(tiles, packed + r * row_bytes + b * (BL_VALUE_TILE / 2), (int64_t)row_bytes, scale + r * blocks + b,
                         (int64_t)blocks, (int64_t)height, (int64_t)count);
            for (uint64_t i = 0; i < count; i++) {
                add_unit(s, tiles + i * unit, unit * sizeof *tiles, at.first + r / BL_VALUE_TILE * at.per_row + b + i);
            }
        }
    }
}

/* As many tiles as a cache line holds codes for. */
#define FP8_TILES 2

/* The tile at the right edge, whose rows are width < 32 codes. */
static void add_narrow_fp8(const bl_cast_kernels *k, bl_sum *s, const uint8_t *codes, const uint8_t *scale, uint64_t height,
                           uint64_t stride, size_t width, uint64_t index)
{
    uint16_t values[BL_VALUE_TILE * BL_VALUE_TILE], tile[BL_VALUE_TILE * BL_VALUE_TILE];
    for (uint64_t r = 0; r < height; r++) {
        k->fp8_row(values + r * width, codes + r * stride, scale, (int64_t)width);
    }
    narrow_tile(tile, (const uint8_t *)values, 2 * width, height, width);
    add_unit(s, tile, height * width * sizeof *tile, index);
}

void bl_value_fp8(const bl_cast_kernels *k, bl_sum *s, const uint8_t *codes, const uint8_t *scale, uint64_t rows, uint64_t cols,
                  bl_tiles at)
{
    _Alignas(64) uint16_t tiles[FP8_TILES * BL_VALUE_TILE * BL_VALUE_TILE];
    uint64_t blocks = cols / BL_VALUE_TILE, edge = cols % BL_VALUE_TILE, pitch = pitch_of(at, cols);
    for (uint64_t r = 0; r < rows; r += BL_VALUE_TILE, codes += BL_VALUE_TILE * pitch, scale += blocks + (edge != 0)) {
        uint64_t height = rows - r < BL_VALUE_TILE ? rows - r : BL_VALUE_TILE, unit = height * BL_VALUE_TILE;
        uint64_t index = at.first + r / BL_VALUE_TILE * at.per_row;
        for (uint64_t b = 0; b < blocks; b += FP8_TILES) {
            uint64_t count = blocks - b < FP8_TILES ? blocks - b : FP8_TILES;
            k->fp8_tiles(tiles, codes + b * BL_VALUE_TILE, (int64_t)pitch, scale + b, (int64_t)height, (int64_t)count);
            for (uint64_t i = 0; i < count; i++) {
                add_unit(s, tiles + i * unit, unit * sizeof *tiles, index + b + i);
            }
        }
        if (edge) {
            add_narrow_fp8(k, s, codes + blocks * BL_VALUE_TILE, scale + blocks, height, pitch, edge, index + blocks);
        }
    }
}

void bl_value_rows(bl_sum *s, const uint8_t *data, uint64_t row0, uint64_t rows, uint64_t row_bytes, bool scales)
{
    uint64_t base = row0 + (scales ? (uint64_t)1 << 63 : 0);
    for (uint64_t r = 0; r < rows; r++) {
        add_unit(s, data + r * row_bytes, row_bytes, base + r);
    }
}

void bl_value_elements(bl_sum *s, const uint8_t *data, uint64_t first, uint64_t count, uint64_t size)
{
    for (uint64_t i = 0; i < count; i++) {
        add_unit(s, data + i * size, size, first + i);
    }
}

void bl_value_bytes(bl_sum *s, const uint8_t *data, uint64_t offset, uint64_t n)
{
    for (uint64_t at = 0; at < n; at += BL_VALUE_UNIT_BYTES) {
        size_t unit = n - at < BL_VALUE_UNIT_BYTES ? (size_t)(n - at) : BL_VALUE_UNIT_BYTES;
        add_unit(s, data + at, unit, (offset + at) / BL_VALUE_UNIT_BYTES);
    }
}

static bl_digest canonical_digest(XXH128_hash_t h)
{
    return bl_sum_digest((bl_sum){.lo = h.low64, .hi = h.high64});
}

struct bl_hasher {
    XXH3_state_t *state;
};

bl_status bl_hasher_create(bl_hasher **out, bl_error *err)
{
    bl_hasher *h = malloc(sizeof *h);
    XXH3_state_t *state = XXH3_createState();
    *out = h;
    if (!h || !state) {
        free(h);
        XXH3_freeState(state);
        *out = NULL;
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    h->state = state;
    XXH3_128bits_reset(state);
    return BL_OK;
}

void bl_hasher_destroy(bl_hasher **h)
{
    if (*h) {
        XXH3_freeState((*h)->state);
        free(*h);
        *h = NULL;
    }
}

void bl_hasher_update(bl_hasher *h, const void *data, uint64_t n)
{
    XXH3_128bits_update(h->state, data, n);
}

bl_digest bl_hasher_final(bl_hasher *h)
{
    bl_digest d = canonical_digest(XXH3_128bits_digest(h->state));
    XXH3_128bits_reset(h->state);
    return d;
}

bl_status bl_data_hashes_open(bl_data_hashes *h, bl_error *err)
{
    BL_TRY(bl_hasher_create(&h->data, err));
    return bl_hasher_create(&h->tensor, err);
}

void bl_data_hashes_close(bl_data_hashes *h)
{
    bl_hasher_destroy(&h->data);
    bl_hasher_destroy(&h->tensor);
}

void bl_data_hash(bl_data_hashes *h, const uint8_t *bytes, uint64_t n, bool of_tensor)
{
    enum { PIECE = 128 << 10 }; /* well inside a second-level cache: it is hashed twice */
    for (uint64_t at = 0, take; at < n; at += take) {
        take = n - at < PIECE ? n - at : PIECE;
        bl_hasher_update(h->data, bytes + at, take);
        if (of_tensor) {
            bl_hasher_update(h->tensor, bytes + at, take);
        }
    }
}

struct bl_chunker {
    bl_hasher *hasher;
};

bl_status bl_chunker_create(bl_chunker **out, bl_error *err)
{
    bl_chunker *c = malloc(sizeof *c);
    *out = c;
    if (!c) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    bl_status s = bl_hasher_create(&c->hasher, err);
    if (s != BL_OK) {
        free(c);
        *out = NULL;
    }
    return s;
}

void bl_chunker_destroy(bl_chunker **c)
{
    if (*c) {
        bl_hasher_destroy(&(*c)->hasher);
        free(*c);
        *c = NULL;
    }
}

void bl_chunker_update(bl_chunker *c, const uint8_t *data, uint64_t offset, uint64_t n, uint64_t total, bl_digest *chunks)
{
    while (n > 0) {
        uint64_t left = BL_CHUNK_BYTES - offset % BL_CHUNK_BYTES, take = n < left ? n : left;
        if (offset % BL_CHUNK_BYTES == 0) {
            bl_hasher_final(c->hasher); /* an earlier tensor may have been left in the middle */
        }
        bl_hasher_update(c->hasher, data, take);
        offset += take;
        data += take;
        n -= take;
        if (offset % BL_CHUNK_BYTES == 0 || offset == total) {
            chunks[(offset - 1) / BL_CHUNK_BYTES] = bl_hasher_final(c->hasher);
        }
    }
}

bl_digest bl_digest_bytes(const void *data, uint64_t n)
{
    return canonical_digest(XXH3_128bits(data, n));
}
