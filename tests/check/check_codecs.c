/* The scalar codecs against the formats' definitions in double arithmetic. */
#include "kernels/fmath.h"
#include "tests/check/check_cast.h"

#include <math.h>

/* ---- the formats, as they are defined */

const small_float small_e4m3 = {4, 3, 7, 0x7e, false}, small_e2m1 = {2, 1, 1, 7, false};
static const small_float small_e5m2 = {5, 2, 15, 0x7b, true};

double small_magnitude(const small_float *f, unsigned code)
{
    int m = (int)(code & ((1u << f->mantissa_bits) - 1)), e = (int)(code >> f->mantissa_bits);
    double one = 1 << f->mantissa_bits;
    if (code > f->most) return f->infinity && code == f->most + 1 ? (double)INFINITY : (double)NAN;
    return e == 0 ? ldexp(m / one, 1 - f->bias) : ldexp(1 + m / one, e - f->bias);
}

unsigned small_sign(const small_float *f)
{
    return 1u << (f->exponent_bits + f->mantissa_bits);
}

/* Code of the value nearest to x, ties to the even code, saturating. */
static unsigned nearest_code(const small_float *f, float x)
{
    unsigned sign = signbit(x) ? small_sign(f) : 0, best = 0;
    double a = fabs((double)x), distance = INFINITY;
    if (a > small_magnitude(f, f->most)) a = small_magnitude(f, f->most);
    for (unsigned code = 0; code <= f->most; code++) {
        double d = fabs(small_magnitude(f, code) - a);
        if (d > distance || (d == distance && code % 2)) continue;
        best = code;
        distance = d;
    }
    return sign | best;
}

uint16_t nearest_bf16(double x)
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
    return (uint16_t)(sign | bl_float_bits((float)r) >> 16);
}

/* ---- codecs */

static void decode_all(check *c, const char *name, const small_float *f, float (*decode)(uint8_t), unsigned codes)
{
    check_case(c, "%s decodes every code", name);
    float got[256], want[256];
    for (unsigned i = 0; i < codes; i++) {
        unsigned magnitude = i & (small_sign(f) - 1);
        double v = small_magnitude(f, magnitude);
        got[i] = decode((uint8_t)i);
        uint32_t u = isnan(v) ? 0x7fc00000 : bl_float_bits((float)v);
        want[i] = bl_bits_float(u | (i & small_sign(f) ? 0x80000000u : 0));
    }
    check_f32(c, name, got, want, 1, codes);
}

static void e8m0_all(check *c)
{
    check_case(c, "e8m0 decodes every code");
    float got[256], want[256];
    for (int i = 0; i < 256; i++) {
        got[i] = bl_e8m0_to_f32((uint8_t)i);
        want[i] = i == 255 ? bl_bits_float(0x7fc00000) : (float)ldexp(1, i - 127);
    }
    check_f32(c, "e8m0", got, want, 1, 256);
    check_int(c, "byte 0 is a subnormal float", bl_float_bits(got[0]), 0x00400000);
}

static void encode_one(check *c, const char *name, const small_float *f, uint8_t (*encode)(float), float x)
{
    unsigned got = encode(x), want;
    if (!isnan(x)) want = nearest_code(f, x);
    else want = (signbit(x) ? small_sign(f) : 0) | (f == &small_e2m1 ? 0 : small_sign(f) - 1);
    if (got == want) return;
    check_case(c, "%s encodes 0x%08x (%.9g)", name, bl_float_bits(x), (double)x);
    check_int(c, "code", got, want);
}

/* Every bf16, halfway points and their neighbours, random floats of every size. */
static void encode_all(check *c, const char *name, const small_float *f, uint8_t (*encode)(float))
{
    check_case(c, "%s encodes every bf16", name);
    for (uint32_t b = 0; b < 65536; b++) encode_one(c, name, f, encode, bl_bits_float(b << 16));
    check_case(c, "%s rounds ties to even", name);
    for (unsigned code = 0; code < f->most; code++) {
        float tie = (float)((small_magnitude(f, code) + small_magnitude(f, code + 1)) / 2);
        check_int(c, "tie", encode(tie), code + code % 2);
        for (int s = 0; s < 2; s++) {
            float x = s ? -tie : tie;
            encode_one(c, name, f, encode, x);
            encode_one(c, name, f, encode, nextafterf(x, 0));
            encode_one(c, name, f, encode, nextafterf(x, s ? -INFINITY : INFINITY));
        }
    }
    check_case(c, "%s encodes random floats", name);
    for (int i = 0; i < 20000; i++) encode_one(c, name, f, encode, bl_bits_float((uint32_t)check_random(c)));
    for (int i = 0; i < 20000; i++) encode_one(c, name, f, encode, (float)ldexp(check_normal(c), (int)check_below(c, 40) - 25));
    check_case(c, "%s encodes what it decodes, and saturates", name);
    for (unsigned code = 0; code <= f->most; code++) check_int(c, "round trip", encode((float)small_magnitude(f, code)), code);
    check_int(c, "inf", encode(INFINITY), f->most);
    check_int(c, "-inf", encode(-INFINITY), f->most | small_sign(f));
}

static void bf16_encode(check *c)
{
    check_case(c, "bf16 rounds to nearest even");
    for (int i = 0; i < 300000; i++) {
        uint32_t u = (uint32_t)check_random(c);
        if (i % 3 == 1) u = (u & 0xffff0000) | 0x8000;                         /* ties */
        if (i % 3 == 2) u = (u & 0xffff0000) | (0x7fff + 2 * (uint32_t)(i & 1)); /* and just beside them */
        float x = bl_bits_float(u);
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
    check_int(c, "below", bl_f32_to_bf16(bl_bits_float(0x7f7f7fff)), 0x7f7f);
    check_int(c, "at", bl_f32_to_bf16(bl_bits_float(0x7f7f8000)), 0x7f80);
    check_int(c, "a NaN whose payload would be lost", bl_f32_to_bf16(bl_bits_float(0xff800001)), 0xffc0);
}

static void e8m0_ceil(check *c)
{
    check_case(c, "e8m0_ceil");
    for (int e = -126; e <= 127; e++) {
        float p = (float)ldexp(1, e);
        check_int(c, "a power of two keeps its byte", bl_e8m0_ceil(p), e + 127);
        check_int(c, "above it the next", bl_e8m0_ceil(nextafterf(p, INFINITY)), e + 128 < 255 ? e + 128 : 254);
    }
    check_int(c, "subnormal", bl_e8m0_ceil(bl_bits_float(1)), 1);
    check_int(c, "2^-127", bl_e8m0_ceil(bl_bits_float(0x00400000)), 1);
    check_int(c, "largest", bl_e8m0_ceil(bl_bits_float(0x7f7fffff)), 254);
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

void check_codecs(check *c)
{
    decode_all(c, "e4m3", &small_e4m3, bl_e4m3_to_f32, 256);
    decode_all(c, "e5m2", &small_e5m2, bl_e5m2_to_f32, 256);
    decode_all(c, "e2m1", &small_e2m1, bl_e2m1_to_f32, 16);
    e8m0_all(c);
    encode_all(c, "e4m3", &small_e4m3, bl_f32_to_e4m3);
    encode_all(c, "e5m2", &small_e5m2, bl_f32_to_e5m2);
    encode_all(c, "e2m1", &small_e2m1, bl_f32_to_e2m1);
    bf16_encode(c);
    e8m0_ceil(c);
    vectors(c);
}
