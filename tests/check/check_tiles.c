/* Searches for bad scales, codes and values, and the tiles that are digested. */
#include "tests/check/check_cast.h"

#include <math.h>
#include <string.h>

/* ---- searches: a hit at every position, after it another one, or none */

typedef struct search {
    const char *name;
    size_t size;
    int64_t (*run)(const bl_cast_kernels *k, const void *p, int64_t n);
    void (*fill)(check *c, void *p, int64_t n);      /* no hits */
    void (*plant)(check *c, void *p, int64_t at);    /* a hit */
} search;

enum { LO = 10, HI = 246 };

static int64_t run_scale(const bl_cast_kernels *k, const void *p, int64_t n)
{
    return k->scale_check(p, n, LO, HI);
}

static void fill_scale(check *c, void *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ((uint8_t *)p)[i] = (uint8_t)(LO + check_below(c, HI - LO + 1));
}

static void plant_scale(check *c, void *p, int64_t at)
{
    static const uint8_t bad[] = {0, LO - 1, HI + 1, 255};
    ((uint8_t *)p)[at] = bad[check_below(c, 4)];
}

static int64_t run_nan(const bl_cast_kernels *k, const void *p, int64_t n)
{
    return k->fp8_nan(p, n);
}

static void fill_nan(check *c, void *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) ((uint8_t *)p)[i] = (uint8_t)(check_below(c, 127) | check_below(c, 2) << 7);
}

static void plant_nan(check *c, void *p, int64_t at)
{
    ((uint8_t *)p)[at] = check_below(c, 2) ? 0x7f : 0xff;
}

static int64_t run_f32(const bl_cast_kernels *k, const void *p, int64_t n)
{
    return k->f32_nonfinite(p, n);
}

static void put_f32(void *p, int64_t at, uint32_t u)
{
    memcpy((char *)p + 4 * at, &u, 4);
}

static void fill_f32(check *c, void *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)check_random(c);
        put_f32(p, i, (u & 0x7f800000) == 0x7f800000 ? u ^ 0x00800000 : u);
    }
}

static void plant_f32(check *c, void *p, int64_t at)
{
    put_f32(p, at, (uint32_t)(check_below(c, 2) << 31) | 0x7f800000 | (check_below(c, 2) ? (uint32_t)check_below(c, 1 << 23) : 0));
}

static int64_t run_bf16(const bl_cast_kernels *k, const void *p, int64_t n)
{
    return k->bf16_nonfinite(p, n);
}

static void put_bf16(void *p, int64_t at, uint16_t u)
{
    memcpy((char *)p + 2 * at, &u, 2);
}

static void fill_bf16(check *c, void *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t u = (uint16_t)check_random(c);
        put_bf16(p, i, (uint16_t)((u & 0x7f80) == 0x7f80 ? u ^ 0x80 : u));
    }
}

static void plant_bf16(check *c, void *p, int64_t at)
{
    put_bf16(p, at, (uint16_t)(check_below(c, 2) << 15 | 0x7f80 | (check_below(c, 2) ? check_below(c, 128) : 0)));
}

static const search searches[] = {
    {"scale_check", 1, run_scale, fill_scale, plant_scale},
    {"fp8_nan", 1, run_nan, fill_nan, plant_nan},
    {"f32_nonfinite", 4, run_f32, fill_f32, plant_f32},
    {"bf16_nonfinite", 2, run_bf16, fill_bf16, plant_bf16},
};

static void check_search(check *c, const bl_cast_kernels *k, const search *s)
{
    for (int64_t n = 0; n <= 150; n++) {
        check_case(c, "%s, n=%lld", s->name, (long long)n);
        char *p = check_buffer(c, (size_t)n * s->size, 1); /* its end is fixed, so its start takes every alignment */
        s->fill(c, p, n);
        check_int(c, "none", s->run(k, p, n), n);
        if (n == 0) continue;
        int64_t at = check_below(c, n), later = at + check_below(c, n - at);
        s->plant(c, p, later);
        check_int(c, "one", s->run(k, p, n), later);
        s->plant(c, p, at);
        check_int(c, "the first of two", s->run(k, p, n), at);
        check_int(c, "none before it", s->run(k, p, at), at);
    }
}

void check_searches(check *c, const bl_cast_kernels *k)
{
    for (size_t i = 0; i < sizeof searches / sizeof searches[0]; i++) check_search(c, k, &searches[i]);
}

/* ---- tiles */

/* Every bf16 value, at every row of a tile, from any alignment and stride. */
static void check_tile(check *c, const bl_cast_kernels *k)
{
    for (int64_t rows = 1; rows <= 32; rows++) {
        int64_t stride = 64 + check_below(c, 200);
        check_case(c, "bf16_tile rows=%lld stride=%lld", (long long)rows, (long long)stride);
        char *in = check_buffer(c, (size_t)((rows - 1) * stride + 64), 1);
        uint16_t *tile = check_buffer(c, (size_t)rows * 64, 2), want[32 * 32];
        for (unsigned first = 0; first < 65536; first += (unsigned)rows * 32) {
            for (int64_t i = 0; i < rows * 32; i++) {
                uint16_t x = (uint16_t)(first + i);
                want[i] = x == 0x8000 ? 0 : (x & 0x7f80) == 0x7f80 && (x & 0x7f) ? 0x7fc0 : x;
                put_bf16(in + i / 32 * stride, i % 32, x);
            }
            k->bf16_tile(tile, in, stride, rows);
            if (!check_bf16(c, "canonical", tile, want, rows, 32)) return;
        }
    }
}

/* Every packed byte under every legal scale byte, in tiles of every height, one to nine beside each other. */
static void check_fp4_tiles(check *c, const bl_cast_kernels *k)
{
    for (unsigned lowest = BL_FP4_SCALE_MIN, rows = 1; lowest <= BL_FP4_SCALE_MAX; lowest++, rows = rows % 32 + 1) {
        int64_t count = 1 + check_below(c, 9), stride = 16 * count + check_below(c, 100), scale_stride = count + check_below(c, 9);
        check_case(c, "fp4_tiles scale=%u rows=%u count=%lld stride=%lld", lowest, rows, (long long)count, (long long)stride);
        uint8_t *packed = check_buffer(c, (size_t)((rows - 1) * stride + 16 * count), 1);
        uint8_t *scales = check_buffer(c, (size_t)((rows - 1) * scale_stride + count), 1);
        uint16_t *tiles = check_buffer(c, (size_t)(rows * count) * 64, 2), want[9 * 32 * 32];
        for (unsigned first = 0; first < 256; first += rows * 16) {
            for (int64_t i = 0; i < count * rows; i++) {
                int64_t tile = i / rows, r = i % rows;
                uint8_t *row = packed + r * stride + 16 * tile, *s = scales + r * scale_stride + tile;
                *s = (uint8_t)(i % 2 && lowest < BL_FP4_SCALE_MAX ? lowest + 1 : lowest);
                for (unsigned j = 0; j < 16; j++) row[j] = (uint8_t)(first + 16 * i + j);
                for (unsigned j = 0; j < 32; j++) {
                    float x = bl_e2m1_to_f32(row[j / 2] >> j % 2 * 4 & 15) * bl_e8m0_to_f32(*s);
                    want[32 * i + j] = x == 0 ? 0 : bl_f32_to_bf16(x);
                }
            }
            k->fp4_tiles(tiles, packed, stride, scales, scale_stride, rows, count);
            if (!check_bf16(c, "values", tiles, want, rows * count, 32)) return;
        }
    }
}

/* Every code, NaN included, under every scale byte, in tiles of every height, one to five beside each other. */
static void check_fp8_tiles(check *c, const bl_cast_kernels *k)
{
    for (unsigned lowest = 0, rows = 1; lowest < 256; lowest++, rows = rows % 32 + 1) {
        int64_t count = 1 + check_below(c, 5), stride = 32 * count + check_below(c, 100);
        bool nan = check_below(c, 2);
        check_case(c, "fp8_tiles scale=%u rows=%u count=%lld stride=%lld", lowest, rows, (long long)count, (long long)stride);
        uint8_t *codes = check_buffer(c, (size_t)((rows - 1) * stride + 32 * count), 1), *scales = check_buffer(c, (size_t)count, 1);
        uint16_t *tiles = check_buffer(c, (size_t)(rows * count) * 64, 2), want[5 * 32 * 32];
        for (unsigned first = 0; first < 256; first += rows * 32) {
            for (int64_t i = 0; i < count * rows; i++) {
                int64_t tile = i / rows, r = i % rows;
                uint8_t *row = codes + r * stride + 32 * tile;
                scales[tile] = (uint8_t)(lowest + tile > 255 ? 255 : lowest + tile);
                for (unsigned j = 0; j < 32; j++) {
                    row[j] = (uint8_t)(first + 32 * i + j);
                    if (!nan && (row[j] & 0x7f) == 0x7f) row[j] = 0x80;
                    float x = bl_e4m3_to_f32(row[j]) * bl_e8m0_to_f32(scales[tile]);
                    uint16_t v = bl_f32_to_bf16(x); /* below the normal scales also a product may round to -0 */
                    want[32 * i + j] = x != x ? 0x7fc0 : v == 0x8000 ? 0 : v;
                }
            }
            k->fp8_tiles(tiles, codes, stride, scales, rows, count);
            if (!check_bf16(c, "values", tiles, want, rows * count, 32)) return;
        }
    }
}

void check_tiles(check *c, const bl_cast_kernels *k)
{
    check_tile(c, k);
    check_fp4_tiles(c, k);
    check_fp8_tiles(c, k);
}
