/* A model, on the host and exact to the bit, of what the tensor core makes of a k16 step of bf16 products (mma.sync and wgmma
 * alike), and of the order of summation of every product in kernels/cuda (README.md, "The order of a product"). With it, checks of
 * kernels compare bytes. Plain C, no CUDA. */
#ifndef BL_KERNELS_CUDA_DOT_H
#define BL_KERNELS_CUDA_DOT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BL_DOT_STEP = 16,    /* elements of K that one tensor core step takes */
    BL_DOT_SEGMENT = 256 /* elements of K in a chain of steps; segments are added in float32 */
};

/* c + sum of a[i] * b[i], i < n, as one step: the products exact, all terms cut (toward zero) to multiples of
 * 2^(e - fraction_bits), e the largest exponent among them, added exactly, the sum cut to float32. n <= 32; a, b bf16, finite.
 * For Hopper n is BL_DOT_STEP and fraction_bits 25. */
float bl_dot_step(float c, const uint16_t *a, const uint16_t *b, int n, int fraction_bits);

/* The product of two rows of n bf16 in the order of the kernels: chains of steps from +0 over segments of 256 elements, zeros
 * behind the end; segment sums added to +0 in float32, ascending. */
float bl_dot_row(const uint16_t *a, const uint16_t *b, int64_t n);
/* The same for a float32 row a, each element of which is split exactly into three bf16 parts (the leading bits first); a step of
 * the chain is three: the last parts, the middle ones, the leading ones. */
float bl_dot_row_f32(const float *a, const uint16_t *b, int64_t n);
/* Parts of x: the sum of parts[0..2] is x where no part is subnormal. */
void bl_dot_split(uint16_t parts[3], float x);

#ifdef __cplusplus
}
#endif

#endif
