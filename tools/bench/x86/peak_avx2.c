#include "tools/bench/peak.h"

#include <immintrin.h>

/* Twelve chains cover four cycles of latency on up to three units. The factor stays a variable, or the sums would fold. */
float peak_fma_avx2(int64_t iterations)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < 12; i++) a[i] = _mm256_set1_ps((float)i);
    for (int64_t k = 0; k < iterations; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    }
    for (int i = 1; i < 12; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    return _mm256_cvtss_f32(a[0]);
}
