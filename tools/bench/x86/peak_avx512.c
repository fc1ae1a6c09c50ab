#include "tools/bench/peak.h"

#include <immintrin.h>

float peak_fma_avx512(int64_t iterations)
{
    __m512 a[16], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps((float)i);
    for (int64_t k = 0; k < iterations; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    }
    for (int i = 1; i < 16; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_cvtss_f32(a[0]);
}
