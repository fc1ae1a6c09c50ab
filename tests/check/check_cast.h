/* What the files of the cast family share: the small formats as they are defined, and the parts of its check. */
#ifndef BL_TESTS_CHECK_CHECK_CAST_H
#define BL_TESTS_CHECK_CHECK_CAST_H

#include "kernels/cast.h"
#include "tests/check/check.h"

#include <stdbool.h>

typedef struct small_float {
    int exponent_bits, mantissa_bits, bias;
    unsigned most; /* largest finite magnitude code */
    bool infinity; /* the code above it is infinite */
} small_float;

extern const small_float small_e4m3, small_e2m1;

/* Value of a code without its sign. */
double small_magnitude(const small_float *f, unsigned code);
unsigned small_sign(const small_float *f);
/* Nearest bf16 of a finite double, ties to even, infinite from halfway to 2^128 on. */
uint16_t nearest_bf16(double x);

/* The scalar codecs, against the definitions (check_codecs.c). */
void check_codecs(check *c);
/* Searches and digest tiles of one level (check_tiles.c). */
void check_searches(check *c, const bl_cast_kernels *k);
void check_tiles(check *c, const bl_cast_kernels *k);

#endif
