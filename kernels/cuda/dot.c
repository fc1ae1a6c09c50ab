#include "kernels/cuda/dot.h"

#include "kernels/cast.h"

#include <string.h>

enum { FRACTION_BITS = 25 };

/* value = significand * 2^(exponent - point) */
typedef struct term {
    int64_t significand;
    int exponent, point;
} term;

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static term accumulator(float c)
{
    const uint32_t u = bits_of(c), field = u >> 23 & 255;
    const int64_t m = (int64_t)(u & 0x7fffff) | (field ? 0x800000 : 0);
    return (term){u >> 31 ? -m : m, field ? (int)field - 127 : -126, 23};
}

static term product(uint16_t a, uint16_t b)
{
    const int ea = a >> 7 & 255, eb = b >> 7 & 255;
    const int64_t m = (int64_t)((a & 127) | (ea ? 128 : 0)) * ((b & 127) | (eb ? 128 : 0));
    return (term){(a ^ b) & 0x8000 ? -m : m, (ea ? ea - 127 : -126) + (eb ? eb - 127 : -126), 14};
}

/* The term in units of 2^unit, cut toward zero. */
static int64_t cut(term t, int unit)
{
    const int shift = t.exponent - t.point - unit;
    if (shift >= 0) return t.significand * ((int64_t)1 << shift);
    if (shift <= -63) return 0;
    return t.significand / ((int64_t)1 << -shift);
}

/* sum * 2^unit as float32, cut toward zero. */
static float to_float(int64_t sum, int unit)
{
    if (sum == 0) return 0;
    uint64_t m = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    const int top = 63 - __builtin_clzll(m);
    int exponent = top + unit, drop = top - 23;
    if (exponent < -126) drop += -126 - exponent; /* subnormal */
    if (drop > 0) {
        m = drop > 63 ? 0 : m >> drop;
        unit += drop;
    }
    float x = (float)m; /* at most 24 bits */
    for (; unit > 0; unit--) x *= 2;
    for (; unit < 0; unit++) x *= 0.5f;
    return sum < 0 ? -x : x;
}

float bl_dot_step(float c, const uint16_t *a, const uint16_t *b, int n, int fraction_bits)
{
    term t[33];
    int most = -1000;
    t[n] = accumulator(c);
    for (int i = 0; i < n; i++) t[i] = product(a[i], b[i]);
    for (int i = 0; i <= n; i++)
        if (t[i].significand && t[i].exponent > most) most = t[i].exponent;
    int64_t sum = 0;
    for (int i = 0; i <= n; i++) sum += cut(t[i], most - fraction_bits);
    return to_float(sum, most - fraction_bits);
}

/* Elements [at, at + 16) of a row, zeros behind its end. */
static void step_of(uint16_t out[BL_DOT_STEP], const uint16_t *row, int64_t at, int64_t n)
{
    for (int i = 0; i < BL_DOT_STEP; i++) out[i] = at + i < n ? row[at + i] : 0;
}

float bl_dot_row(const uint16_t *a, const uint16_t *b, int64_t n)
{
    float total = 0;
    for (int64_t s = 0; s < n; s += BL_DOT_SEGMENT) {
        float chain = 0;
        for (int64_t k = s; k < s + BL_DOT_SEGMENT && k < n; k += BL_DOT_STEP) {
            uint16_t x[BL_DOT_STEP], y[BL_DOT_STEP];
            step_of(x, a, k, n);
            step_of(y, b, k, n);
            chain = bl_dot_step(chain, x, y, BL_DOT_STEP, FRACTION_BITS);
        }
        total += chain;
    }
    return total;
}

void bl_dot_split(uint16_t parts[3], float x)
{
    for (int i = 0; i < 3; i++) {
        parts[i] = (uint16_t)(bits_of(x) >> 16); /* cut, so that what is left has the same sign and fits the next */
        x -= bl_bf16_to_f32(parts[i]);
    }
}

float bl_dot_row_f32(const float *a, const uint16_t *b, int64_t n)
{
    float total = 0;
    for (int64_t s = 0; s < n; s += BL_DOT_SEGMENT) {
        float chain = 0;
        for (int64_t k = s; k < s + BL_DOT_SEGMENT && k < n; k += BL_DOT_STEP) {
            uint16_t x[3][BL_DOT_STEP] = {{0}}, y[BL_DOT_STEP], parts[3];
            step_of(y, b, k, n);
            for (int i = 0; i < BL_DOT_STEP && k + i < n; i++) {
                bl_dot_split(parts, a[k + i]);
                for (int p = 0; p < 3; p++) x[p][i] = parts[p];
            }
            for (int p = 2; p >= 0; p--) chain = bl_dot_step(chain, x[p], y, BL_DOT_STEP, FRACTION_BITS);
        }
        total += chain;
    }
    return total;
}
