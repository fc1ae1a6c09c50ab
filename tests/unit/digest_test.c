/* Chunk and value digests: their definition restated, order, parts, canonical values, and recorded values that must not drift. */
#include "verify/digest.h"

#include "kernels/cpu.h"
#include "tests/unit/scratch.h"

#include <xxhash.h>

static bl_cast_kernels kernels;

static uint32_t next(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u;
}

static uint16_t *values(size_t n, uint32_t seed)
{
    uint16_t *v = malloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        v[i] = (uint16_t)(next(&seed) >> 13);
    }
    return v;
}

static uint16_t canonical(uint16_t x)
{
    return (x & 0x7FFF) == 0 ? 0 : (x & 0x7FFF) > 0x7F80 ? 0x7FC0 : x;
}

static void put(bl_sum *s, const void *p, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(p, n, seed);
    bl_sum_add(s, (bl_sum){.lo = h.low64, .hi = h.high64});
}

/* The definition of class matrix, one value at a time. */
static bl_sum definition(const uint16_t *v, size_t rows, size_t cols)
{
    bl_sum s = {0};
    for (size_t r = 0; r < rows; r += 32) {
        for (size_t c = 0; c < cols; c += 32) {
            uint16_t unit[1024];
            size_t n = 0;
            for (size_t i = r; i < rows && i < r + 32; i++) {
                for (size_t k = c; k < cols && k < c + 32; k++) {
                    unit[n++] = canonical(v[i * cols + k]);
                }
            }
            put(&s, unit, 2 * n, r / 32 * ((cols + 31) / 32) + c / 32);
        }
    }
    return s;
}

static void same(bl_sum a, bl_sum b)
{
    assert_true(a.lo == b.lo && a.hi == b.hi);
}

/* Parts that begin at multiples of smaller tiles add up to the whole with such tiles, also when they lie in wider rows. */
static void test_smaller_tiles(void **state)
{
    static const size_t shapes[][4] = {{144, 100, 16, 32}, {64, 72, 32, 8}, {33, 40, 1, 32}, {40, 36, 8, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t rows = shapes[i][0], cols = shapes[i][1], h = shapes[i][2], w = shapes[i][3], pitch = cols + 5;
        uint16_t *v = values(rows * pitch, (uint32_t)i + 50), *tile = malloc(2 * h * w);
        bl_sum want = {0}, whole = {0}, parts = {0};
        for (size_t r = 0; r < rows; r += h) {
            for (size_t c = 0; c < cols; c += w) { /* each tile as the only one of a matrix, its index put in place */
                size_t height = rows - r < h ? rows - r : h, width = cols - c < w ? cols - c : w;
                for (size_t k = 0; k < height; k++) {
                    memcpy(tile + k * width, v + (r + k) * pitch + c, 2 * width);
                }
                bl_tiles one = bl_tiles_of(0, 0, width, h, w);
                one.first = r / h * ((cols + w - 1) / w) + c / w;
                bl_value_matrix(&kernels, &want, tile, height, width, one);
            }
        }
        bl_tiles at = bl_tiles_of(0, 0, cols, h, w);
        at.pitch = pitch;
        bl_value_matrix(&kernels, &whole, v, rows, cols, at);
        same(whole, want);
        for (size_t r = 0; r < rows; r += h) {
            size_t half = cols / 2 / w * w, height = rows - r < h ? rows - r : h;
            bl_tiles left = bl_tiles_of(r, 0, cols, h, w), right = bl_tiles_of(r, half, cols, h, w);
            left.pitch = right.pitch = pitch;
            bl_value_matrix(&kernels, &parts, v + r * pitch, height, half, left);
            bl_value_matrix(&kernels, &parts, v + r * pitch + half, height, cols - half, right);
        }
        same(whole, parts);
        free(tile);
        free(v);
    }
}

static void test_matrix(void **state)
{
    static const size_t shapes[][2] = {{1, 1}, {32, 32}, {33, 31}, {1, 5376}, {96, 64}, {70, 100}, {4, 5120}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t rows = shapes[i][0], cols = shapes[i][1];
        uint16_t *v = values(rows * cols, (uint32_t)i + 1);
        uint8_t *odd = malloc(2 * rows * cols + 1);
        bl_sum whole = {0}, parts = {0}, moved = {0};
        memcpy(odd + 1, v, 2 * rows * cols);
        bl_value_matrix(&kernels, &whole, v, rows, cols, bl_tiles_at(0, 0, cols));
        same(whole, definition(v, rows, cols));
        bl_value_matrix(&kernels, &moved, odd + 1, rows, cols, bl_tiles_at(0, 0, cols));
        same(whole, moved);
        for (size_t r = rows - 1 - (rows - 1) % 32 + 32; r > 0; r -= 32) { /* last stripe first */
            size_t n = rows - (r - 32) < 32 ? rows - (r - 32) : 32;
            bl_value_matrix(&kernels, &parts, v + (r - 32) * cols, n, cols, bl_tiles_at(r - 32, 0, cols));
        }
        same(whole, parts);
        v[rows * cols - 1] ^= 1;
        bl_sum other = {0};
        bl_value_matrix(&kernels, &other, v, rows, cols, bl_tiles_at(0, 0, cols));
        assert_true(canonical(v[rows * cols - 1]) == canonical(v[rows * cols - 1] ^ 1) || other.lo != whole.lo);
        free(odd);
        free(v);
    }
}

static void test_canonical_values(void **state)
{
    uint16_t a[64], b[64];
    bl_sum s = {0}, t = {0};
    for (int i = 0; i < 64; i++) {
        a[i] = b[i] = (uint16_t)(0x3F80 + i);
    }
    a[3] = 0x0000, b[3] = 0x8000;
    a[40] = 0x7FC0, b[40] = 0xFF81;
    bl_value_matrix(&kernels, &s, a, 2, 32, bl_tiles_at(0, 0, 32));
    bl_value_matrix(&kernels, &t, b, 2, 32, bl_tiles_at(0, 0, 32));
    same(s, t);
    b[41] = 0x7F80; /* an infinity is a value of its own */
    t = (bl_sum){0};
    bl_value_matrix(&kernels, &t, b, 2, 32, bl_tiles_at(0, 0, 32));
    assert_true(s.lo != t.lo);
}

/* Two equal tiles in each other's place would go unseen without the index. */
static void test_place_counts(void **state)
{
    uint16_t *v = values(32 * 64, 5), *w = malloc(2 * 32 * 64);
    for (int r = 0; r < 32; r++) {
        memcpy(w + 64 * r, v + 64 * r + 32, 64);
        memcpy(w + 64 * r + 32, v + 64 * r, 64);
    }
    bl_sum s = {0}, t = {0};
    bl_value_matrix(&kernels, &s, v, 32, 64, bl_tiles_at(0, 0, 64));
    bl_value_matrix(&kernels, &t, w, 32, 64, bl_tiles_at(0, 0, 64));
    assert_true(s.lo != t.lo);
    free(v);
    free(w);
}

static void test_rows_and_bytes(void **state)
{
    uint8_t *p = malloc(3 * 4096 + 5);
    uint32_t seed = 9;
    for (int i = 0; i < 3 * 4096 + 5; i++) {
        p[i] = (uint8_t)(next(&seed) >> 24);
    }
    bl_sum want = {0}, have = {0};
    for (uint64_t r = 0; r < 40; r++) {
        put(&want, p + 256 * r, 256, 7 + r);
        put(&want, p + 8 * r, 8, ((uint64_t)1 << 63) + 7 + r);
    }
    bl_value_rows(&have, p, 7, 40, 8, true);
    bl_value_rows(&have, p + 256 * 30, 37, 10, 256, false);
    bl_value_rows(&have, p, 7, 30, 256, false);
    same(want, have);

    bl_sum all = {0}, parts = {0};
    bl_value_bytes(&all, p, 0, 3 * 4096 + 5);
    bl_value_bytes(&parts, p + 4096, 4096, 2 * 4096 + 5);
    bl_value_bytes(&parts, p, 0, 4096);
    same(all, parts);
    free(p);
}

/* The digest of codes is that of their decoded values, whatever the edges. */
static void test_codes_as_their_values(void **state)
{
    static const uint64_t shapes[][2] = {{1, 32}, {32, 31}, {33, 97}, {70, 160}, {64, 1}, {40, 224}};
    uint32_t seed = 5;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        uint64_t rows = shapes[i][0], cols = shapes[i][1], per = (cols + 31) / 32;
        uint8_t *codes = malloc(rows * cols), *scale = malloc(rows * per);
        uint16_t *values = malloc(2 * rows * cols);
        for (uint64_t k = 0; k < rows * cols; k++) {
            codes[k] = (uint8_t)(next(&seed) >> 20);
        }
        for (uint64_t k = 0; k < rows * per; k++) {
            scale[k] = (uint8_t)(k % 3 ? 110 + next(&seed) % 20 : next(&seed) % 253);
        }
        bl_sum want = {0}, have = {0};
        bl_tiles at = bl_tiles_at(64, 32, cols + 64);
        for (uint64_t r = 0; r < rows; r++) {
            kernels.fp8_row(values + r * cols, codes + r * cols, scale + r / 32 * per, (int64_t)cols);
        }
        bl_value_matrix(&kernels, &want, values, rows, cols, at);
        bl_value_fp8(&kernels, &have, codes, scale, rows, cols, at);
        same(want, have);
        if (cols % 32 == 0) {
            want = have = (bl_sum){0};
            for (uint64_t r = 0; r < rows; r++) {
                kernels.fp4_row(values + r * cols, codes + r * cols / 2, scale + r * per, (int64_t)cols);
            }
            bl_value_matrix(&kernels, &want, values, rows, cols, at);
            bl_value_fp4(&kernels, &have, codes, scale, rows, cols, at);
            same(want, have);
        }
        free(codes);
        free(scale);
        free(values);
    }
}

static void test_chunks(void **state)
{
    uint64_t total = 2 * BL_CHUNK_BYTES + 12345, splits[] = {1, 4095, BL_CHUNK_BYTES - 1, BL_CHUNK_BYTES, 3 * BL_CHUNK_BYTES};
    uint8_t *p = malloc(total);
    for (uint64_t i = 0; i < total; i++) {
        p[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    bl_digest want[3], have[3];
    for (int i = 0; i < 3; i++) {
        uint64_t at = (uint64_t)i * BL_CHUNK_BYTES;
        want[i] = bl_digest_bytes(p + at, i < 2 ? BL_CHUNK_BYTES : 12345);
    }
    bl_chunker *c;
    expect_ok(bl_chunker_create(&c, NULL), NULL);
    for (size_t k = 1; k < sizeof splits / sizeof *splits; k++) {
        memset(have, 0, sizeof have);
        for (uint64_t at = 0; at < total; at += splits[k]) {
            bl_chunker_update(c, p + at, at, total - at < splits[k] ? total - at : splits[k], total, have);
        }
        assert_memory_equal(have, want, sizeof want);
    }
    bl_chunker_update(c, p, 0, 0, 0, have); /* no bytes, no chunk */
    bl_chunker_destroy(&c);
    free(p);
}

/* What is on disks: these never change. */
static void test_recorded_values(void **state)
{
    char hex[33];
    uint16_t v[40 * 50];
    bl_sum s = {0};
    for (int i = 0; i < 40 * 50; i++) {
        v[i] = (uint16_t)(i * 33);
    }
    bl_value_matrix(&kernels, &s, v, 40, 50, bl_tiles_at(0, 0, 50));
    bl_digest d = bl_sum_digest(s);
    assert_string_equal(bl_hex_encode(hex, d.b, 16), "380208af8754d7b76361905d812f9435");
    s = (bl_sum){0};
    bl_value_bytes(&s, (const uint8_t *)v, 0, 4000);
    d = bl_sum_digest(s);
    assert_string_equal(bl_hex_encode(hex, d.b, 16), "365c903d20d91a8315af7c9fc028ce67");
    d = bl_digest_bytes("", 0);
    assert_string_equal(bl_hex_encode(hex, d.b, 16), "99aa06d3014798d86001c324468d497f"); /* xxhsum -H2 of nothing */
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix), cmocka_unit_test(test_smaller_tiles),         cmocka_unit_test(test_canonical_values),
        cmocka_unit_test(test_place_counts),   cmocka_unit_test(test_rows_and_bytes),
        cmocka_unit_test(test_chunks),         cmocka_unit_test(test_recorded_values),
        cmocka_unit_test(test_codes_as_their_values),
    };
    int failed = 0;
    for (int level = 0; level < 2; level++) {
        bl_cast_init(&kernels, level ? bl_cpu_detect() : 0);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
