/* Casts of rows: every code with every scale, random rows against the reference; codecs, searches and tiles are beside this. */
#include "tests/check/check_cast.h"

#include <math.h>
#include <string.h>

/* ---- rows */

/* The definition of one element, and whether it may be called exact. */
static uint16_t product(const small_float *f, unsigned code, unsigned scale, unsigned lo, unsigned hi, int64_t *inexact)
{
    uint16_t sign = code & small_sign(f) ? 0x8000 : 0;
    double v = small_magnitude(f, code & (small_sign(f) - 1));
    if (isnan(v) || scale == 255) return sign | 0x7fc0;
    v = ldexp(v, (int)scale - 127);
    uint16_t r = nearest_bf16(v);
    if (scale >= lo && scale <= hi && (double)bl_bf16_to_f32(r) != v) ++*inexact;
    return sign | r;
}

/* Every fp8 code with every scale, 256 codes a row; NaN codes apart, since they may take another path. */
static void fp8_all(check *c, const bl_cast_kernels *k)
{
    int64_t inexact = 0;
    for (unsigned s = 0; s < 256; s++) {
        check_case(c, "fp8_row, every code, scale %u", s);
        uint8_t *codes = check_buffer(c, 256, 1), *scale = check_buffer(c, 8, 1);
        uint16_t *out = check_buffer(c, 512, 2), *stream = check_buffer(c, 512, 64), want[256];
        memset(scale, (int)s, 8);
        for (unsigned i = 0; i < 256; i++) {
            codes[i] = (uint8_t)i;
            want[i] = product(&small_e4m3, i, s, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX, &inexact);
        }
        k->fp8_row(out, codes, scale, 256);
        check_bf16(c, "out", out, want, 1, 256);
        k->fp8_row_stream(stream, codes, scale, 256);
        k->stream_fence();
        check_bf16(c, "stream", stream, want, 1, 256);
        for (unsigned i = 127; i < 256; i += 128) {
            codes[i] = 0x80;
            want[i] = product(&small_e4m3, 0x80, s, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX, &inexact);
        }
        k->fp8_row(out, codes, scale, 256);
        check_bf16(c, "without NaN", out, want, 1, 256);
    }
    check_int(c, "inexact results in the legal range", inexact, 0);
}

static void fp4_all(check *c, const bl_cast_kernels *k)
{
    int64_t inexact = 0;
    for (unsigned s = 0; s < 256; s++) {
        check_case(c, "fp4_row, every pair of codes, scale %u", s);
        uint8_t *packed = check_buffer(c, 256, 1), *scale = check_buffer(c, 16, 1);
        uint16_t *out = check_buffer(c, 1024, 2), *stream = check_buffer(c, 1024, 64), want[512];
        memset(scale, (int)s, 16);
        for (unsigned i = 0; i < 256; i++) {
            packed[i] = (uint8_t)i;
            want[2 * i] = product(&small_e2m1, i & 15, s, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX, &inexact);
            want[2 * i + 1] = product(&small_e2m1, i >> 4, s, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX, &inexact);
        }
        k->fp4_row(out, packed, scale, 512);
        check_bf16(c, "out", out, want, 1, 512);
        k->fp4_row_stream(stream, packed, scale, 512);
        k->stream_fence();
        check_bf16(c, "stream", stream, want, 1, 512);
    }
    check_int(c, "inexact results in the legal range", inexact, 0);
}

/* Just outside the stated ranges some code must fail to be exact: the ranges are as wide as they can be. */
static void range_edges(check *c)
{
    check_case(c, "the legal scale ranges are tight");
    static const struct {
        const small_float *f;
        unsigned codes, scale;
    } outside[] = {{&small_e4m3, 128, BL_FP8_SCALE_MIN - 1}, {&small_e4m3, 128, BL_FP8_SCALE_MAX + 1}, {&small_e2m1, 8, BL_FP4_SCALE_MAX + 1}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        int64_t inexact = 0;
        for (unsigned code = 0; code < outside[i].codes; code++) product(outside[i].f, code, outside[i].scale, 0, 254, &inexact);
        check_int(c, "some code is inexact there", inexact > 0, 1);
    }
}

/* Random rows of every length with a bias to short ones, any alignment, against the reference; scales legal, anything, or
 * legal with a few strays, NaN codes in some rows. */
static void random_rows(check *c, const bl_cast_kernels *ref, const bl_cast_kernels *k, bool fp4)
{
    for (int i = 0; i < 400; i++) {
        int64_t cols = i < 200 ? i : check_below(c, 3000);
        if (fp4) cols &= ~(int64_t)1;
        int64_t blocks = (cols + 31) / 32, bytes = fp4 ? cols / 2 : cols;
        int kind = (int)check_below(c, 3);
        check_case(c, "%s row, cols=%lld, scales kind %d", fp4 ? "fp4" : "fp8", (long long)cols, kind);
        uint8_t *codes = check_buffer(c, (size_t)bytes, 1), *scale = check_buffer(c, (size_t)blocks, 1);
        check_random_bytes(c, codes, (size_t)bytes);
        for (int64_t j = 0; !fp4 && i % 2 && j < bytes; j++)
            if ((codes[j] & 0x7f) == 0x7f) codes[j] ^= 1;
        for (int64_t b = 0; b < blocks; b++) scale[b] = (uint8_t)(kind == 1 ? check_random(c) : 100 + check_random(c) % 40);
        if (kind == 2 && blocks) scale[check_below(c, blocks)] = (uint8_t)check_random(c);
        size_t size = (size_t)cols * 2;
        uint16_t *want = check_buffer(c, size, 2), *got = check_buffer(c, size, 2), *stream = check_buffer(c, size, 64),
                 *off = check_buffer(c, size, 2);
        (fp4 ? ref->fp4_row : ref->fp8_row)(want, codes, scale, cols);
        (fp4 ? k->fp4_row : k->fp8_row)(got, codes, scale, cols);
        check_bf16(c, "row", got, want, 1, cols);
        (fp4 ? k->fp4_row_stream : k->fp8_row_stream)(stream, codes, scale, cols);
        (fp4 ? k->fp4_row_stream : k->fp8_row_stream)(off, codes, scale, cols);
        k->stream_fence();
        check_bf16(c, "stream", stream, want, 1, cols);
        check_bf16(c, "stream, any alignment", off, want, 1, cols);
    }
}

/* ---- float32 scales */

/* What the definition says, in double: both roundings are visible. */
static uint16_t rounded_product(unsigned code, float scale)
{
    uint16_t sign = code & 0x80 ? 0x8000 : 0;
    double v = small_magnitude(&small_e4m3, code & 0x7f);
    if (isnan(v)) return sign | 0x7fc0;
    return sign | bl_f32_to_bf16((float)(v * (double)scale));
}

/* Scales of every exponent of the range and beside it, as powers of two, one unit beside them, and at random. */
static void f32_scales(check *c, const bl_cast_kernels *k)
{
    int64_t inexact = 0;
    for (int e = -126; e <= 121; e++) {
        for (int kind = 0; kind < 4; kind++) {
            float s = (float)ldexp(1, e);
            s = kind == 1 ? nextafterf(s, 0) : kind == 2 ? nextafterf(s, 1e38f) : kind == 3 ? s * (1 + (float)check_below(c, 1 << 23) * 0x1p-23f) : s;
            check_case(c, "fp8_f32_row, every code, scale %a", (double)s);
            uint8_t *codes = check_buffer(c, 512, 1);
            uint16_t *out = check_buffer(c, 1024, 2), want[512];
            for (unsigned i = 0; i < 512; i++) { /* the second 256 without NaN */
                codes[i] = (uint8_t)(i >= 256 && (i & 0x7f) == 0x7f ? i ^ 1 : i);
                want[i] = rounded_product(codes[i], s);
                bool fits = kind == 0 && s >= BL_F32_SCALE_MIN && s <= BL_F32_SCALE_MAX && (codes[i] & 0x7f) != 0x7f;
                inexact += fits && (double)bl_bf16_to_f32(want[i] & 0x7fff) != small_magnitude(&small_e4m3, codes[i] & 0x7f) * (double)s;
            }
            float scales[2] = {s, s};
            k->fp8_f32_row(out, codes, scales, 512, 256);
            check_bf16(c, "out", out, want, 1, 512);
        }
    }
    check_int(c, "inexact results of powers of two in the range", inexact, 0);
}

/* Random rows of every length and block width, any alignment, against the reference and against the byte scales. */
static void f32_rows(check *c, const bl_cast_kernels *ref, const bl_cast_kernels *k)
{
    for (int i = 0; i < 400; i++) {
        int64_t cols = i < 200 ? i : check_below(c, 3000), block = i % 3 ? 128 : 1 + check_below(c, 300);
        int64_t blocks = (cols + block - 1) / block;
        bool bytes = i % 4 == 1;
        block = bytes ? 32 : block;
        blocks = bytes ? (cols + 31) / 32 : blocks;
        check_case(c, "fp8_f32 row, cols=%lld, block=%lld", (long long)cols, (long long)block);
        uint8_t *codes = check_buffer(c, (size_t)cols, 1), *scale = check_buffer(c, (size_t)blocks * 4, 1);
        uint8_t *byte_scale = check_buffer(c, (size_t)blocks, 1);
        check_random_bytes(c, codes, (size_t)cols);
        for (int64_t j = 0; i % 2 && j < cols; j++)
            if ((codes[j] & 0x7f) == 0x7f) codes[j] ^= 1;
        for (int64_t b = 0; b < blocks; b++) {
            byte_scale[b] = (uint8_t)(BL_FP8_SCALE_MIN + check_below(c, BL_FP8_SCALE_MAX - BL_FP8_SCALE_MIN + 1));
            uint32_t u = (uint32_t)byte_scale[b] << 23 | (bytes ? 0 : (uint32_t)check_below(c, 1 << 23));
            if (!bytes && check_below(c, 8) == 0) u = (uint32_t)check_random(c) & 0x7fffffff;
            memcpy(scale + 4 * b, &u, 4);
        }
        uint16_t *want = check_buffer(c, (size_t)cols * 2, 2), *got = check_buffer(c, (size_t)cols * 2, 2);
        if (bytes) ref->fp8_row(want, codes, byte_scale, cols);
        else ref->fp8_f32_row(want, codes, scale, cols, block);
        k->fp8_f32_row(got, codes, scale, cols, block);
        check_bf16(c, "row", got, want, 1, cols);
    }
}

static void f32_scale_searches(check *c)
{
    static const float bad[] = {0, -0.0f, -1, 0x1p-125f, 0x1.8p119f, INFINITY, NAN}, good[] = {0x1p-124f, 0x1p119f, 1, 1.5f};
    check_case(c, "bl_f32_scale_check");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) check_int(c, "outside", bl_f32_scale_check(&bad[i], 1), 0);
    check_int(c, "inside", bl_f32_scale_check(good, 4), 4);
    check_int(c, "the first that is no power of two", bl_f32_scale_inexact(good, 4), 3);
    check_int(c, "none", bl_f32_scale_inexact(good, 3), 3);
}

void check_cast(check *c, unsigned cpu)
{
    bl_cast_kernels ref, k;
    bl_cast_init(&ref, 0);
    bl_cast_init(&k, cpu);
    if (cpu == 0) {
        check_codecs(c);
        range_edges(c);
        f32_scale_searches(c);
    }
    fp8_all(c, &k);
    fp4_all(c, &k);
    random_rows(c, &ref, &k, false);
    random_rows(c, &ref, &k, true);
    f32_scales(c, &k);
    f32_rows(c, &ref, &k);
    check_searches(c, &k);
    check_tiles(c, &k);
}
