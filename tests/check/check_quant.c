/* The encoders: every bf16 under every scale against the nearest code in double arithmetic, the scale rule against its two
 * statements, random rows against the reference. */
#include "tests/check/check.h"

#include "kernels/cast.h"
#include "kernels/quant.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* ---- scales */

/* The rule as the quantisers of the release compute it. */
static uint8_t product_rule(uint16_t amax, float reciprocal)
{
    return bl_e8m0_ceil(bl_bf16_to_f32(amax) * reciprocal);
}

/* The rule as it is stated. */
static int smallest_byte(uint16_t amax, double largest, int lo, int hi)
{
    int b = lo;
    while (b < hi && ldexp(largest, b - 127) < (double)bl_bf16_to_f32(amax)) b++;
    return b;
}

static void scales(check *c)
{
    check_case(c, "scale bytes of every amax");
    for (uint16_t amax = 1; amax < 0x7f80; amax++) {
        uint8_t got[2], want[2] = {(uint8_t)smallest_byte(amax, 448, BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX),
                                   (uint8_t)smallest_byte(amax, 6, BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX)};
        bl_fp8_scales(got, &amax, 1);
        bl_fp4_scales(got + 1, &amax, 1);
        if (!check_u8(c, "fp8, fp4", got, want, 1, 2)) return;
        if (want[0] > BL_FP8_SCALE_MIN && want[0] < BL_FP8_SCALE_MAX)
            check_int(c, "fp8 from the product's bits", product_rule(amax, 1.0f / 448), want[0]);
        if (want[1] > 1 && want[1] < BL_FP4_SCALE_MAX)
            check_int(c, "fp4 from the product's bits", product_rule(amax, 1.0f / 6), want[1]);
    }
    check_case(c, "scale bytes of blocks of zeros");
    uint8_t got[2];
    bl_fp8_scales(got, &(uint16_t){0}, 1);
    bl_fp4_scales(got + 1, &(uint16_t){0}, 1);
    check_int(c, "fp8", got[0], 105);
    check_int(c, "fp4", got[1], 1);
}

/* ---- codes: for the reference, against the definition */

static double magnitude_of(bool fp4, unsigned code)
{
    return (double)(fp4 ? bl_e2m1_to_f32((uint8_t)code) : bl_e4m3_to_f32((uint8_t)code));
}

/* The code nearest to a finite y >= 0; ties to the even code, or down. */
static unsigned nearest(bool fp4, double y, bl_fp4_ties ties)
{
    unsigned last = fp4 ? 7 : 0x7e, low = 0, high = last;
    if (y >= magnitude_of(fp4, last)) return last;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (magnitude_of(fp4, middle) <= y) low = middle;
        else high = middle;
    }
    double below = y - magnitude_of(fp4, low), above = magnitude_of(fp4, high) - y;
    if (below == above) return ties == BL_FP4_TIES_DOWN || low % 2 == 0 ? low : high;
    return below < above ? low : high;
}

static uint8_t encode_one(const bl_quant_kernels *k, bool fp4, uint16_t x, uint8_t scale, bl_fp4_ties ties)
{
    uint16_t pair[2] = {x, x};
    uint8_t codes[2];
    if (!fp4) {
        k->fp8_row(codes, pair, &scale, 1);
        return codes[0];
    }
    k->fp4_row(codes, pair, &scale, 2, ties);
    return codes[0] & 15;
}

/* Every magnitude, with scales at the ends, in the middle, and a random one in every block of them. */
static void definition(check *c, const bl_quant_kernels *k, bool fp4, bl_fp4_ties ties)
{
    unsigned sign = fp4 ? 8 : 0x80;
    for (int s = 0; s <= 254; s += s < 16 || s >= 244 || (s >= 112 && s < 124) ? 1 : 8) {
        int scale = s < 16 || s >= 244 ? s : s + (int)check_below(c, 4);
        check_case(c, "%s encodes every bf16, scale %d, ties %d", fp4 ? "fp4" : "fp8", scale, (int)ties);
        for (unsigned m = 0; m <= 0x7f80; m++) {
            double y = ldexp((double)bl_bf16_to_f32((uint16_t)m), 127 - scale);
            unsigned want = nearest(fp4, y, ties), got = encode_one(k, fp4, (uint16_t)m, (uint8_t)scale, ties);
            unsigned minus = encode_one(k, fp4, (uint16_t)(m | 0x8000), (uint8_t)scale, ties);
            if (got == want && minus == (want | sign)) continue;
            check_case(c, "%s encodes 0x%04x, scale %d, ties %d", fp4 ? "fp4" : "fp8", m, scale, (int)ties);
            check_int(c, "plus", got, want);
            check_int(c, "minus", minus, want | sign);
            return;
        }
    }
}

/* ---- known answers: what a cast and its way back give for blocks whose largest code is known */

static void flip(check *c, bool fp4, uint8_t code, int drop)
{
    uint8_t scale[2] = {120, 0}, got[16] = {0}, codes[32];
    uint16_t x[32], amax;
    bl_cast_kernels cast;
    bl_quant_kernels k;
    bl_cast_init(&cast, 0);
    bl_quant_init(&k, 0);
    memset(codes, 0, sizeof codes);
    codes[0] = code;
    if (fp4) cast.fp4_row(x, codes, scale, 32);
    else cast.fp8_row(x, codes, scale, 32);
    k.amax_rows(&amax, x, 1, 32);
    (fp4 ? bl_fp4_scales : bl_fp8_scales)(scale + 1, &amax, 1);
    check_int(c, "scale byte", scale[1], 120 - drop);
    uint16_t back[32];
    uint8_t again[32];
    if (fp4) k.fp4_row(got, x, scale + 1, 32, BL_FP4_TIES_EVEN), cast.fp4_row(back, got, scale + 1, 32);
    else k.fp8_row(again, x, scale + 1, 32), cast.fp8_row(back, again, scale + 1, 32);
    check_bf16(c, "values", back, x, 1, 32);
}

static void vectors(check *c)
{
    static const struct {
        bool fp4;
        uint8_t code;
        int drop;
    } known[] = {{false, 0x76, 1}, {false, 0x77, 0}, {false, 0x7e, 0}, {true, 3, 2}, {true, 5, 1}, {true, 6, 0}, {true, 7, 0}, {true, 1, 3}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        check_case(c, "%s block whose largest code is 0x%02x", known[i].fp4 ? "fp4" : "fp8", known[i].code);
        flip(c, known[i].fp4, known[i].code, known[i].drop);
    }
    static const uint16_t tie[7] = {0x3e80, 0x3f40, 0x3fa0, 0x3fe0, 0x4020, 0x4060, 0x40a0};
    static const uint8_t even[7] = {0, 2, 2, 4, 4, 6, 6}, down[7] = {0, 1, 2, 3, 4, 5, 6};
    bl_quant_kernels k;
    bl_quant_init(&k, 0);
    check_case(c, "fp4 ties");
    for (int i = 0; i < 7; i++) {
        check_int(c, "even", encode_one(&k, true, tie[i], 127, BL_FP4_TIES_EVEN), even[i]);
        check_int(c, "down", encode_one(&k, true, tie[i], 127, BL_FP4_TIES_DOWN), down[i]);
    }
}

/* ---- variants against the reference */

enum { EVERY = 65536 - 254 }; /* bf16 that are no NaN: 0..0x7F80 and the same with a sign */

static uint16_t finite_or_infinite(int64_t i)
{
    return (uint16_t)(i <= 0x7f80 ? i : i - 0x7f81 + 0x8000);
}

/* Every bf16 under every scale, in an order that mixes common and rare values in a block differently for each scale. */
static void every_value(check *c, const bl_quant_kernels *ref, const bl_quant_kernels *k)
{
    static uint16_t x[EVERY];
    static uint8_t want[EVERY], got[EVERY], scale[EVERY / 32 + 1];
    for (int s = 0; s <= 254; s++) {
        int64_t step = 2 * check_below(c, 30000) + 1;
        while (step % 3 == 0 || step % 5 == 0 || step % 7 == 0 || step % 1451 == 0) step += 2; /* shares no factor with EVERY */
        check_case(c, "every bf16, scale %d, step %lld", s, (long long)step);
        for (int64_t i = 0; i < EVERY; i++) x[i] = finite_or_infinite(s % 2 ? i : i * step % EVERY);
        memset(scale, s, sizeof scale);
        ref->fp8_row(want, x, scale, EVERY);
        k->fp8_row(got, x, scale, EVERY);
        if (!check_u8(c, "fp8", got, want, 1, EVERY)) return;
        for (int ties = 0; ties < 2; ties++) {
            ref->fp4_row(want, x, scale, EVERY, (bl_fp4_ties)ties);
            k->fp4_row(got, x, scale, EVERY, (bl_fp4_ties)ties);
            if (!check_u8(c, "fp4", got, want, 1, EVERY / 2)) return;
        }
    }
}

/* Values as weights have them, or of any size; zeros of both signs among them. */
static void random_values(check *c, uint16_t *x, int64_t n, int kind)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = kind ? finite_or_infinite(check_below(c, EVERY)) : bl_f32_to_bf16(check_normal(c) * 0x1p-6f);
        if (check_below(c, 16) == 0) x[i] &= 0x8000;
    }
}

static void random_rows(check *c, const bl_quant_kernels *ref, const bl_quant_kernels *k)
{
    for (int i = 0; i < 400; i++) {
        int64_t cols = i < 200 ? i : check_below(c, 3000), blocks = (cols + 31) / 32, even = cols & ~(int64_t)1;
        int kind = (int)check_below(c, 3);
        bl_fp4_ties ties = (bl_fp4_ties)check_below(c, 2);
        check_case(c, "row, cols=%lld, kind %d, ties %d", (long long)cols, kind, (int)ties);
        uint16_t *x = check_buffer(c, (size_t)cols * 2, 2);
        uint8_t *scale = check_buffer(c, (size_t)blocks, 1), *want = check_buffer(c, (size_t)cols, 1),
                *got = check_buffer(c, (size_t)cols, 1), *packed = check_buffer(c, (size_t)even / 2, 1),
                *want4 = check_buffer(c, (size_t)even / 2, 1);
        random_values(c, x, cols, kind > 0);
        for (int64_t b = 0; b < blocks; b++) scale[b] = (uint8_t)(kind == 1 ? check_below(c, 255) : 110 + check_below(c, 9));
        ref->fp8_row(want, x, scale, cols);
        k->fp8_row(got, x, scale, cols);
        check_u8(c, "fp8", got, want, 1, cols);
        ref->fp4_row(want4, x, scale, even, ties);
        k->fp4_row(packed, x, scale, even, ties);
        check_u8(c, "fp4", packed, want4, 1, even / 2);
    }
}

static void random_amax(check *c, const bl_quant_kernels *k)
{
    for (int i = 0; i < 200; i++) {
        int64_t cols = 1 + (i < 100 ? i : check_below(c, 700)), rows = 1 + check_below(c, i % 3 ? 32 : 1), blocks = (cols + 31) / 32;
        check_case(c, "amax, rows=%lld cols=%lld", (long long)rows, (long long)cols);
        uint16_t *x = check_buffer(c, (size_t)(rows * cols) * 2, 2), *got = check_buffer(c, (size_t)blocks * 2, 2), want[40] = {0};
        random_values(c, x, rows * cols, i % 2);
        if (i % 5 == 0) x[check_below(c, rows * cols)] = (uint16_t)(0x7f80 | check_below(c, 128) | check_below(c, 2) << 15);
        for (int64_t j = 0; j < rows * cols; j++) {
            uint16_t *most = &want[j % cols / 32], m = x[j] & 0x7fff;
            *most = m > *most ? m : *most;
        }
        k->amax_rows(got, x, rows, cols);
        check_bf16(c, "amax", got, want, 1, blocks);
    }
}

static void random_compare(check *c, const bl_quant_kernels *ref, const bl_quant_kernels *k)
{
    for (int i = 0; i < 300; i++) {
        int64_t cols = i < 150 ? i : check_below(c, 2000), blocks = (cols + 31) / 32;
        check_case(c, "compare, cols=%lld", (long long)cols);
        uint16_t *x = check_buffer(c, (size_t)cols * 2, 2), *back = check_buffer(c, (size_t)cols * 2, 2);
        uint8_t *got = check_buffer(c, (size_t)blocks, 1), *want = check_buffer(c, (size_t)blocks, 1);
        random_values(c, x, cols, 0);
        for (int64_t j = 0; j < cols; j++) {
            back[j] = x[j];
            if (check_below(c, 60) == 0) back[j] ^= (uint16_t)(1 << check_below(c, 16)); /* also the sign of a zero */
            if ((back[j] & 0x7f80) == 0x7f80) back[j] = 0;
        }
        memset(got, 0, (size_t)blocks);
        memset(want, 0, (size_t)blocks);
        bl_quant_sums a = {.error = 0x1p-20f}, b;
        for (int l = 0; l < 16; l++) a.error2[l] = a.value2[l] = l;
        memcpy(&b, &a, sizeof a);
        ref->compare_row(&a, want, x, back, cols);
        k->compare_row(&b, got, x, back, cols);
        check_u8(c, "differs", got, want, 1, blocks);
        check_int(c, "sums", memcmp(a.error2, b.error2, sizeof a.error2) || memcmp(a.value2, b.value2, sizeof a.value2), 0);
        check_f32(c, "largest error", &b.error, &a.error, 1, 1);
    }
}

/* What is compared must be told apart: one value, in every place. */
static void compare_finds(check *c, const bl_quant_kernels *k)
{
    check_case(c, "compare finds one difference, and none in the sign of zero");
    for (int at = 0; at < 70; at++) {
        uint16_t x[70] = {0}, back[70] = {0};
        uint8_t differs[3] = {0}, want[3] = {0};
        bl_quant_sums s = {.error = 0};
        x[at] = 0x8000;
        k->compare_row(&s, differs, x, back, 70);
        check_u8(c, "zeros", differs, want, 1, 3);
        back[at] = 0x3f80;
        want[at / 32] = 1;
        k->compare_row(&s, differs, x, back, 70);
        check_u8(c, "one", differs, want, 1, 3);
        check_int(c, "largest error", s.error == 1, 1);
        check_int(c, "its square", s.error2[at % 16] == 1, 1);
    }
}

void check_quant(check *c, unsigned cpu)
{
    bl_quant_kernels ref, k;
    bl_quant_init(&ref, 0);
    bl_quant_init(&k, cpu);
    if (cpu == 0) {
        scales(c);
        vectors(c);
        definition(c, &ref, false, BL_FP4_TIES_EVEN);
        definition(c, &ref, true, BL_FP4_TIES_EVEN);
        definition(c, &ref, true, BL_FP4_TIES_DOWN);
    } else {
        every_value(c, &ref, &k);
    }
    random_rows(c, &ref, &k);
    random_amax(c, &k);
    random_compare(c, &ref, &k);
    compare_finds(c, &k);
}
