#include "kernels/cuda/dot.h"

#include "kernels/cast.h"

#include <math.h>
#include <string.h>

enum { FRACTION_BITS = 25 };

/* value = magnitude * 2^(exponent - point), negative where sign is -1 */
typedef struct terms {
    uint32_t magnitude[33];
    int32_t exponent[33], sign[33];
} terms;

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* The accumulator; point 23. */
static void set_accumulator(terms *t, int i, float c)
{
    const uint32_t u = bits_of(c), field = u >> 23 & 255;
    t->magnitude[i] = (u & 0x7fffff) | (field ? 0x800000 : 0);
    t->exponent[i] = field ? (int32_t)field - 127 : -126;
    t->sign[i] = u >> 31 ? -1 : 0;
}

/* Products; point 14. */
static void set_products(terms *t, const uint16_t *a, const uint16_t *b, int n)
{
    for (int i = 0; i < n; i++) {
        const int32_t ea = a[i] >> 7 & 255, eb = b[i] >> 7 & 255;
        const uint32_t ma = (a[i] & 127u) | (ea ? 128 : 0), mb = (b[i] & 127u) | (eb ? 128 : 0);
        t->magnitude[i] = ma * mb;
        t->exponent[i] = (ea ? ea : 1) + (eb ? eb : 1) - 254;
        t->sign[i] = -((a[i] ^ b[i]) >> 15);
    }
}

/* The term in units of 2^unit, cut toward zero. */
static int64_t cut(const terms *t, int i, int point, int unit)
{
    const int shift = t->exponent[i] - point - unit;
    const int64_t m = shift >= 0 ? (int64_t)t->magnitude[i] << shift : shift <= -32 ? 0 : t->magnitude[i] >> -shift;
    return (m ^ t->sign[i]) - t->sign[i];
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
    const float x = ldexpf((float)m, unit); /* at most 24 bits: exact */
    return sum < 0 ? -x : x;
}

float bl_dot_step(float c, const uint16_t *a, const uint16_t *b, int n, int fraction_bits)
{
    terms t;
    int32_t most = -1000;
    set_products(&t, a, b, n);
    set_accumulator(&t, n, c);
    for (int i = 0; i <= n; i++) {
        const int32_t e = t.magnitude[i] ? t.exponent[i] : -1000;
        most = e > most ? e : most;
    }
    int64_t sum = cut(&t, n, 23, most - fraction_bits);
    for (int i = 0; i < n; i++) sum += cut(&t, i, 14, most - fraction_bits);
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
