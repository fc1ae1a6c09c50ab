/* Steps of the tensor core, exact to the bit: the model of kernels/cuda/dot.h for many columns at a time. */
#ifndef BL_TESTS_EMULATE_TENSOR_H
#define BL_TESTS_EMULATE_TENSOR_H

#include <stdint.h>

namespace emu {

enum { STEP = 16 /* elements of K */, WIDE = 8 /* columns at a time */ };

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

void set_element(row_of_a &a, int k, uint16_t bits, number kind);
void set_element(columns_of_b &b, int k, int column, uint16_t bits, number kind);

/* c[j] += the 16 products of a and column j, as one step. With an infinity or NaN in it: their sum, whose NaN is 0x7FFFFFFF. */
void step(float c[WIDE], const row_of_a &a, const columns_of_b &b, number kind);

} // namespace emu

#endif
