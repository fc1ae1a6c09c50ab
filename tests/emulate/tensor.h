/* Steps of the tensor core, exact to the bit: the model of kernels/cuda/dot.h for many columns at a time. */
#ifndef BL_TESTS_EMULATE_TENSOR_H
#define BL_TESTS_EMULATE_TENSOR_H

#include <math.h>
#include <stdint.h>

namespace emu {

enum { STEP = 16 /* elements of K */, WIDE = 8 /* columns at a time */, NONE = -2000 /* exponent of a zero */ };

/* What a factor is: m * 2^(e - point), e as the tensor core has it; zeros have an e that no other has. */
enum number { BF16, F16 };

struct row_of_a {
    float m[STEP];
    int32_t e[STEP];
    bool finite;
};

typedef float floats __attribute__((vector_size(4 * WIDE)));
typedef int32_t words __attribute__((vector_size(4 * WIDE)));

struct columns_of_b {
    floats m[STEP];
    words e[STEP];
    bool finite;
};

/* Exponent and significand; returns whether it is finite; if not, m is what it is. */
static inline bool split(float &m, int32_t &e, uint16_t bits, number kind)
{
    const int fraction = kind == BF16 ? 7 : 10, top = kind == BF16 ? 255 : 31;
    const int field = bits >> fraction & top, low = bits & ((1 << fraction) - 1), size = low | (field != 0) << fraction;
    m = (float)(bits & 0x8000 ? -size : size);
    e = size ? (field ? field : 1) - top / 2 : NONE;
    if (field != top) return true;
    m = low ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
    return false;
}

/* Element k = 0 first, of column 0 first. */
static inline void set_element(row_of_a &a, int k, uint16_t bits, number kind)
{
    if (k == 0) a.finite = true;
    a.finite &= split(a.m[k], a.e[k], bits, kind);
}

static inline void set_element(columns_of_b &b, int k, int column, uint16_t bits, number kind)
{
    float m;
    int32_t e;
    if (k == 0 && column == 0) b.finite = true;
    b.finite &= split(m, e, bits, kind);
    b.m[k][column] = m;
    b.e[k][column] = e;
}

/* c[j] += the 16 products of a and column j, as one step. With an infinity or NaN in it: their sum, whose NaN is 0x7FFFFFFF. */
void step(float c[WIDE], const row_of_a &a, const columns_of_b &b, number kind);

} // namespace emu

#endif
