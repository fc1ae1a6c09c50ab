#include "tests/emulate/numbers.h"

#include <math.h>

namespace emu {

/* Magnitude of |x| in a format of so many fraction bits whose exponent fields begin at 2^least: field and fraction as one number, which
 * may be beyond the last. */
static uint32_t encode(double x, int fraction, int least)
{
    uint64_t u;
    x = fabs(x);
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1023;
    if (e < least) e = least; /* subnormal there */
    const uint64_t power = (uint64_t)(1023 + fraction - e) << 52;
    double scale;
    memcpy(&scale, &power, sizeof scale);
    const double units = (x * scale + 0x1p52) - 0x1p52; /* to nearest even */
    return (uint32_t)(e - least) * (1u << fraction) + (uint32_t)units;
}

uint16_t to_bf16(double x)
{
    const uint32_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return 0x7fff;
    if (fabs(x) >= 0x1p128) return (uint16_t)(sign | 0x7f80);
    return (uint16_t)(sign | encode(x, 7, -126));
}

uint16_t to_f16(double x)
{
    const uint32_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return 0x7fff;
    if (fabs(x) >= 0x1p16) return (uint16_t)(sign | 0x7c00);
    return (uint16_t)(sign | encode(x, 10, -14));
}

double from_bf16(uint16_t b)
{
    return float_of((uint32_t)b << 16);
}

double from_f16(uint16_t b)
{
    const int field = b >> 10 & 31, low = b & 1023;
    const double x = field == 31 ? (low ? NAN : INFINITY) : ldexp(low | (field ? 1024 : 0), (field ? field : 1) - 25);
    return b & 0x8000 ? -x : x;
}

uint8_t to_e4m3(float x)
{
    const uint32_t sign = signbit(x) ? 0x80 : 0;
    if (isnan(x)) return 0x7f;
    if (fabsf(x) >= 448) return (uint8_t)(sign | 0x7e);
    const uint32_t code = encode(x, 3, -6);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

} // namespace emu
