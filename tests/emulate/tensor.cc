#include "tests/emulate/tensor.h"

#include <math.h>
#include <string.h>

/* Several machines' code of what takes the time. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FAST
#endif

namespace emu {

enum { NONE = -2000 /* exponent of a zero */, FRACTION = 25 };

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns whether it is finite; if not, m is what it is. */
static bool split(float &m, int32_t &e, uint16_t bits, number kind)
{
    const int fraction = kind == BF16 ? 7 : 10, top = kind == BF16 ? 255 : 31, bias = top / 2;
    const int field = bits >> fraction & top, low = bits & ((1 << fraction) - 1);
    const int magnitude = low | (field ? 1 << fraction : 0);
    m = (float)(bits & 0x8000 ? -magnitude : magnitude);
    e = magnitude ? (field ? field : 1) - bias : NONE;
    if (field != top) return true;
    m = low ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
    return false;
}

void set_element(row_of_a &a, int k, uint16_t bits, number kind)
{
    if (k == 0) a.finite = true;
    a.finite &= split(a.m[k], a.e[k], bits, kind);
}

void set_element(columns_of_b &b, int k, int column, uint16_t bits, number kind)
{
    if (k == 0 && column == 0) b.finite = true;
    b.finite &= split(b.m[k][column], b.e[k][column], bits, kind);
}

/* sum * 2^(most - FRACTION) as float32, cut toward zero. */
static float cut(double sum, int most)
{
    const uint64_t scale = (uint64_t)(1023 + most - FRACTION) << 52;
    double unit;
    memcpy(&unit, &scale, sizeof unit);
    const double x = sum * unit, size = fabs(x);
    if (size == 0) return 0;
    if (size < 0x1p-126) return (float)(trunc(x * 0x1p149) * 0x1p-149);
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u &= ~0x1fffffffull; /* 24 bits are left */
    double y;
    memcpy(&y, &u, sizeof y);
    return (float)y;
}

/* The largest exponents, and the sums of all terms in units of 2^(most - FRACTION), each cut: those of eight products and of the
 * accumulator are below 2^31. */
FAST static void add_terms(int32_t most[WIDE], int32_t first[WIDE], int32_t second[WIDE], const float c[WIDE], const row_of_a &a,
                           const columns_of_b &b, int fraction)
{
    float cm[WIDE];
    int32_t ce[WIDE];
    for (int j = 0; j < WIDE; j++) {
        uint32_t u;
        memcpy(&u, &c[j], sizeof u);
        const int32_t field = u >> 23 & 255, low = u & 0x7fffff, m = low | (field ? 0x800000 : 0);
        cm[j] = (float)(u >> 31 ? -m : m);
        ce[j] = m ? (field ? field : 1) - 127 : NONE;
        most[j] = ce[j];
    }
    for (int k = 0; k < STEP; k++)
        for (int j = 0; j < WIDE; j++) {
            const int32_t e = a.e[k] + b.e[k][j];
            most[j] = e > most[j] ? e : most[j];
        }
    for (int j = 0; j < WIDE; j++) {
        most[j] = most[j] > -900 ? most[j] : -900; /* all zeros */
        int32_t down = most[j] - ce[j];
        down = down < 100 ? down : 100;
        const uint32_t scale = (uint32_t)(127 + FRACTION - 23 - down) << 23;
        float by;
        memcpy(&by, &scale, sizeof by);
        first[j] = (int32_t)(cm[j] * by);
        second[j] = 0;
    }
    for (int half = 0; half < 2; half++) {
        int32_t *const sum = half ? second : first;
        for (int k = half * STEP / 2; k < (half + 1) * STEP / 2; k++)
            for (int j = 0; j < WIDE; j++) {
                int32_t down = most[j] - (a.e[k] + b.e[k][j]);
                down = down < 100 ? down : 100;
                const uint32_t scale = (uint32_t)(127 + FRACTION - 2 * fraction - down) << 23;
                float by;
                memcpy(&by, &scale, sizeof by);
                sum[j] += (int32_t)(a.m[k] * b.m[k][j] * by); /* exact, then cut */
            }
    }
}

/* Of infinities and NaNs, or of none. */
static float add_plainly(float c, const row_of_a &a, const columns_of_b &b, int j)
{
    double sum = c;
    for (int k = 0; k < STEP; k++) sum += (double)a.m[k] * b.m[k][j];
    return isnan(sum) ? float_of(0x7fffffff) : (float)sum;
}

void step(float c[WIDE], const row_of_a &a, const columns_of_b &b, number kind)
{
    int32_t most[WIDE], first[WIDE], second[WIDE];
    add_terms(most, first, second, c, a, b, kind == BF16 ? 7 : 10);
    for (int j = 0; j < WIDE; j++) {
        bool finite = isfinite(c[j]);
        if (!a.finite || !b.finite)
            for (int k = 0; k < STEP; k++) finite = finite && isfinite(a.m[k]) && isfinite(b.m[k][j]);
        c[j] = finite ? cut((double)first[j] + second[j], most[j]) : add_plainly(c[j], a, b, j);
    }
}

} // namespace emu
