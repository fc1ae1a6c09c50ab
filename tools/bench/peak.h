/* Loops that keep the multiply-add units busy from registers: the arithmetic ceilings. */
#ifndef BL_TOOLS_BENCH_PEAK_H
#define BL_TOOLS_BENCH_PEAK_H

#include <stdint.h>

/* Each does its FLOPS for every iteration and returns a value that keeps the compiler from dropping them. */
enum {
    PEAK_FMA_C_FLOPS = 2 * 4 * 12,       /* baseline: a product and a sum */
    PEAK_FMA_AVX2_FLOPS = 2 * 8 * 12,
    PEAK_FMA_AVX512_FLOPS = 2 * 16 * 16,
    PEAK_DOT_AVX512_FLOPS = 4 * 16 * 16
};
float peak_fma_c(int64_t iterations);
float peak_fma_avx2(int64_t iterations);
float peak_fma_avx512(int64_t iterations);
float peak_dot_avx512bf16(int64_t iterations);

#endif
