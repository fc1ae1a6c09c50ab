/* The casts: codecs against the formats' definitions in double arithmetic, rows over every code with every scale. */
#include "tests/check/check.h"

#include "kernels/cast.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* ---- the formats, as they are defined */

typedef struct small_float {
    int exponent_bits, mantissa_bits, bias;
    unsigned most; /* largest finite magnitude code */
    bool infinity; /* the code above it is infinite */
} small_float;

static const small_float e4m3 = {4, 3, 7, 0x7e, false}, e5m2 = {5, 2, 15, 0x7b, true}, e2m1 = {2, 1, 1, 7, false};

static double magnitude_of(const small_float *f, unsigned code)
{
    int m = (int)(code & ((1u << f->mantissa_bits) - 1)), e = (int)(code >> f->mantissa_bits);
    double one = 1 << f->mantissa_bits;
    if (code > f->most) return f->infinity && code == f->most + 1 ? (double)INFINITY : (double)NAN;
    return e == 0 ? ldexp(m / one, 1 - f->bias) : ldexp(1 + m / one, e - f->bias);
}

static unsigned sign_bit(const small_float *f)
{
    return 1u << (f->exponent_bits + f->mantissa_bits);
}

/* Code of the value nearest to x, ties to the even code, saturating. */
static unsigned nearest_code(const small_float *f, float x)
{
    unsigned sign = signbit(x) ? sign_bit(f) : 0, best = 0;
    double a = fabs((double)x), distance = INFINITY;
    if (a > magnitude_of(f, f->most)) a = magnitude_of(f, f->most);
    for (unsigned code = 0; code <= f->most; code++) {
        double d = fabs(magnitude_of(f, code) - a);
        if (d > distance || (d == distance && code % 2)) continue;
        best = code;
        distance = d;
    }
    return sign | best;
}

/* Nearest bf16 of a finite double, ties to even, infinite from halfway to 2^128 on. */
static uint16_t nearest_bf16(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (a == 0) return sign;
    int e;
    frexp(a, &e);                       /* a = f * 2^e, 0.5 <= f < 1: eight bits end at 2^(e - 8) */
    int quantum = e - 8 < -133 ? -133 : e - 8;
    double n = nearbyint(ldexp(a, -quantum)); /* both exact; nearest even */
    double r = ldexp(n, quantum);
    if (r >= ldexp(1, 128)) return sign | 0x7f80;
    return (uint16_t)(sign | bits_of((float)r) >> 16);
}

/* ---- codecs */

static void decode_all(check *c, const char *name, const small_float *f, float (*decode)(uint8_t), unsigned codes)
{
    check_case(c, "%s decodes every code", name);
    float got[256], want[256];
    for (unsigned i = 0; i < codes; i++) {
        unsigned magnitude = i & (sign_bit(f) - 1);
        double v = magnitude_of(f, magnitude);
        got[i] = decode((uint8_t)i);
        uint32_t u = isnan(v) ? 0x7fc00000 : bits_of((float)v);
        want[i] = float_of(u | (i & sign_bit(f) ? 0x80000000u : 0));
    }
    check_f32(c, name, got, want, 1, codes);
}

static void e8m0_all(check *c)
{
    check_case(c, "e8m0 decodes every code");
    float got[256], want[256];
    for (int i = 0; i < 256; i++) {
        got[i] = bl_e8m0_to_f32((uint8_t)i);
        want[i] = i == 255 ? float_of(0x7fc00000) : (float)ldexp(1, i - 127);
    }
    check_f32(c, "e8m0", got, want, 1, 256);
    check_int(c, "byte 0 is a subnormal float", bits_of(got[0]), 0x00400000);
}

static void encode_one(check *c, const char *name, const small_float *f, uint8_t (*encode)(float), float x)
{
    unsigned got = encode(x), want;
    if (!isnan(x)) want = nearest_code(f, x);
    else want = (signbit(x) ? sign_bit(f) : 0) | (f == &e2m1 ? 0 : sign_bit(f) - 1);
    if (got == want) return;
    check_case(c, "%s encodes 0x%08x (%.9g)", name, bits_of(x), (double)x);
    check_int(c, "code", got, want);
}

/* Every bf16, halfway points and their neighbours, random floats of every size. */
static void encode_all(check *c, const char *name, const small_float *f, uint8_t (*encode)(float))
{
    check_case(c, "%s encodes every bf16", name);
    for (uint32_t b = 0; b < 65536; b++) encode_one(c, name, f, encode, float_of(b << 16));
    check_case(c, "%s rounds ties to even", name);
    for (unsigned code = 0; code < f->most; code++) {
        float tie = (float)((magnitude_of(f, code) + magnitude_of(f, code + 1)) / 2);
        check_int(c, "tie", encode(tie), code + code % 2);
        for (int s = 0; s < 2; s++) {
            float x = s ? -tie : tie;
            encode_one(c, name, f, encode, x);
            encode_one(c, name, f, encode, nextafterf(x, 0));
            encode_one(c, name, f, encode, nextafterf(x, s ? -INFINITY : INFINITY));
        }
    }
    check_case(c, "%s encodes random floats", name);
    for (int i = 0; i < 20000; i++) encode_one(c, name, f, encode, float_of((uint32_t)check_random(c)));
    for (int i = 0; i < 20000; i++) encode_one(c, name, f, encode, (float)ldexp(check_normal(c), (int)check_below(c, 40) - 25));
    check_case(c, "%s encodes what it decodes, and saturates", name);
    for (unsigned code = 0; code <= f->most; code++) check_int(c, "round trip", encode((float)magnitude_of(f, code)), code);
    check_int(c, "inf", encode(INFINITY), f->most);
    check_int(c, "-inf", encode(-INFINITY), f->most | sign_bit(f));
}

static void bf16_encode(check *c)
{
    check_case(c, "bf16 rounds to nearest even");
    for (int i = 0; i < 300000; i++) {
        uint32_t u = (uint32_t)check_random(c);
        if (i % 3 == 1) u = (u & 0xffff0000) | 0x8000;                         /* ties */
        if (i % 3 == 2) u = (u & 0xffff0000) | (0x7fff + 2 * (uint32_t)(i & 1)); /* and just beside them */
        float x = float_of(u);
        uint16_t want = isnan(x) ? (uint16_t)(0x7fc0 | (u >> 16 & 0x8000)) : isinf(x) ? (uint16_t)(u >> 16) : nearest_bf16(x);
        if (bl_f32_to_bf16(x) == want) continue;
        check_case(c, "bf16 of 0x%08x", (unsigned)u);
        check_int(c, "bits", bl_f32_to_bf16(x), want);
    }
    check_case(c, "bf16 keeps every bf16");
    uint16_t got[65536 / 256], want[65536 / 256];
    for (uint32_t hi = 0; hi < 256; hi++) {
        for (uint32_t lo = 0; lo < 256; lo++) {
            uint16_t b = (uint16_t)(hi << 8 | lo);
            got[lo] = bl_f32_to_bf16(bl_bf16_to_f32(b));
            want[lo] = (b & 0x7fff) > 0x7f80 ? (uint16_t)(0x7fc0 | (b & 0x8000)) : b;
        }
        check_bf16(c, "bf16", got, want, 1, 256);
    }
    check_case(c, "bf16 overflows at the last halfway point");
    check_int(c, "below", bl_f32_to_bf16(float_of(0x7f7f7fff)), 0x7f7f);
    check_int(c, "at", bl_f32_to_bf16(float_of(0x7f7f8000)), 0x7f80);
    check_int(c, "a NaN whose payload would be lost", bl_f32_to_bf16(float_of(0xff800001)), 0xffc0);
}

static void e8m0_ceil(check *c)
{
    check_case(c, "e8m0_ceil");
    for (int e = -126; e <= 127; e++) {
        float p = (float)ldexp(1, e);
        check_int(c, "a power of two keeps its byte", bl_e8m0_ceil(p), e + 127);
        check_int(c, "above it the next", bl_e8m0_ceil(nextafterf(p, INFINITY)), e + 128 < 255 ? e + 128 : 254);
    }
    check_int(c, "subnormal", bl_e8m0_ceil(float_of(1)), 1);
    check_int(c, "2^-127", bl_e8m0_ceil(float_of(0x00400000)), 1);
    check_int(c, "largest", bl_e8m0_ceil(float_of(0x7f7fffff)), 254);
}

/* Values that another implementation must agree with, written out. */
static void vectors(check *c)
{
    check_case(c, "known codes");
    check_int(c, "e4m3 0x7e", (int64_t)bl_e4m3_to_f32(0x7e), 448);
    check_int(c, "e4m3 0x77", (int64_t)bl_e4m3_to_f32(0x77), 240);
    check_int(c, "e4m3 0x76", (int64_t)bl_e4m3_to_f32(0x76), 224);
    check_int(c, "e4m3 of 464", bl_f32_to_e4m3(464), 0x7e);
    check_int(c, "e4m3 of -1e30", bl_f32_to_e4m3(-1e30f), 0xfe);
    check_int(c, "e5m2 of 60000", bl_f32_to_e5m2(60000), 0x7b);
    check_int(c, "e2m1 of -0", bl_f32_to_e2m1(-0.0f), 8);
    static const float ties[] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5}, even[] = {0, 1, 1, 2, 2, 4, 4};
    for (int i = 0; i < 7; i++) check_int(c, "e2m1 tie", (int64_t)bl_e2m1_to_f32(bl_f32_to_e2m1(ties[i])), (int64_t)even[i]);
}

static void check_codecs(check *c)
{
    decode_all(c, "e4m3", &e4m3, bl_e4m3_to_f32, 256);
    decode_all(c, "e5m2", &e5m2, bl_e5m2_to_f32, 256);
    decode_all(c, "e2m1", &e2m1, bl_e2m1_to_f32, 16);
    e8m0_all(c);
    encode_all(c, "e4m3", &e4m3, bl_f32_to_e4m3);
    encode_all(c, "e5m2", &e5m2, bl_f32_to_e5m2);
    encode_all(c, "e2m1", &e2m1, bl_f32_to_e2m1);
    bf16_encode(c);
    e8m0_ceil(c);
    vectors(c);
}

/* ---- rows */

/* The definition of one element, and whether it may be called exact. */
static uint16_t product(const small_float *f, unsigned code, unsigned scale, unsigned lo, unsigned hi, int64_t *inexact)
{
    uint16_t sign = code & sign_bit(f) ? 0x8000 : 0;
    double v = magnitude_of(f, code & (sign_bit(f) - 1));
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
            want[i] = product(&e4m3, i, s, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX, &inexact);
        }
        k->fp8_row(out, codes, scale, 256);
        check_bf16(c, "out", out, want, 1, 256);
        k->fp8_row_stream(stream, codes, scale, 256);
        k->stream_fence();
        check_bf16(c, "stream", stream, want, 1, 256);
        for (unsigned i = 127; i < 256; i += 128) {
            codes[i] = 0x80;
            want[i] = product(&e4m3, 0x80, s, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX, &inexact);
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
            want[2 * i] = product(&e2m1, i & 15, s, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX, &inexact);
            want[2 * i + 1] = product(&e2m1, i >> 4, s, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX, &inexact);
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
    } outside[] = {{&e4m3, 128, BL_FP8_SCALE_MIN - 1}, {&e4m3, 128, BL_FP8_SCALE_MAX + 1}, {&e2m1, 8, BL_FP4_SCALE_MAX + 1}};
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
    double v = magnitude_of(&e4m3, code & 0x7f);
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
                inexact += fits && (double)bl_bf16_to_f32(want[i] & 0x7fff) != magnitude_of(&e4m3, codes[i] & 0x7f) * (double)s;
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
    for (size_t i = 0; i < sizeof searches / sizeof searches[0]; i++) check_search(c, &k, &searches[i]);
    check_tile(c, &k);
    check_fp4_tiles(c, &k);
    check_fp8_tiles(c, &k);
}
