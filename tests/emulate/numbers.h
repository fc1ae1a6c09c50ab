/* Conversions and products of small numbers, rounded to nearest even once. */
#ifndef BL_TESTS_EMULATE_NUMBERS_H
#define BL_TESTS_EMULATE_NUMBERS_H

#include <stdint.h>
#include <string.h>

namespace emu {

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* NaN: 0x7FFF. */
uint16_t to_bf16(double x);
uint16_t to_f16(double x);
double from_bf16(uint16_t b);
double from_f16(uint16_t b);
/* Saturating; NaN: 0x7F. */
uint8_t to_e4m3(float x);

} // namespace emu

#endif
