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

enum { FRACTION = 25 };

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

typedef double doubles __attribute__((vector_size(8 * WIDE)));
typedef int64_t longs __attribute__((vector_size(8 * WIDE)));

/* Below the smallest normal float32 a sum is cut to multiples of 2^-149. */
static float cut_subnormal(double x)
{
    return (float)(trunc(x * 0x1p149) * 0x1p-149);
}

/* Terms are cut to multiples of 2^(most - FRACTION), where most is the largest exponent; in these units those of eight products and of
 * the accumulator are below 2^31. */
FAST static void add_terms(float c[WIDE], const row_of_a &a, const columns_of_b &b, int fraction)
{
    words bits;
    memcpy(&bits, c, sizeof bits);
    const words field = bits >> 23 & 255, low = bits & 0x7fffff, sign = bits < 0;
    const words size = low | ((field != 0) & 0x800000), zero = size == 0;
    const words e = zero ? words{} + (int)NONE : (field > 1 ? field : words{} + 1) - 127;
    words most = e;
    for (int k = 0; k < STEP; k++) {
        const words other = b.e[k] + a.e[k];
        most = other > most ? other : most;
    }
    most = most > -900 ? most : words{} - 900; /* all zeros */
    /* a factor is 2^(FRACTION - point) less what the term is below the largest */
    const words down = most - e < 100 ? most - e : words{} + 100;
    const floats c_by = (floats)((127 + FRACTION - 23 - down) << 23);
    words sum[2] = {__builtin_convertvector(__builtin_convertvector((size ^ sign) - sign, floats) * c_by, words), {}};
    for (int k = 0; k < STEP; k++) {
        const words below = most - (b.e[k] + a.e[k]), least = below < 100 ? below : words{} + 100;
        const floats by = (floats)((127 + FRACTION - 2 * fraction - least) << 23);
        sum[k / (STEP / 2)] += __builtin_convertvector(b.m[k] * a.m[k] * by, words); /* exact, then cut */
    }
    const doubles total = __builtin_convertvector(sum[0], doubles) + __builtin_convertvector(sum[1], doubles);
    const doubles x = total * (doubles)((__builtin_convertvector(most, longs) + (1023 - FRACTION)) << 52);
    const doubles cut = (doubles)((longs)x & ~(longs{} + 0x1fffffff)); /* to 24 bits */
    const floats y = __builtin_convertvector(cut, floats);
    memcpy(c, &y, sizeof y);
    for (int j = 0; j < WIDE; j++)
        if (fabs(x[j]) < 0x1p-126 && x[j] != 0) c[j] = cut_subnormal(x[j]);
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
    bool finite = a.finite && b.finite;
    for (int j = 0; j < WIDE; j++) finite = finite && isfinite(c[j]);
    float plain[WIDE];
    bool mixed[WIDE] = {};
    for (int j = 0; j < WIDE && !finite; j++) {
        mixed[j] = !isfinite(c[j]);
        for (int k = 0; k < STEP; k++) mixed[j] = mixed[j] || !isfinite(a.m[k]) || !isfinite(b.m[k][j]);
        if (mixed[j]) plain[j] = add_plainly(c[j], a, b, j);
    }
    add_terms(c, a, b, kind == BF16 ? 7 : 10);
    for (int j = 0; j < WIDE && !finite; j++)
        if (mixed[j]) c[j] = plain[j];
}

} // namespace emu
