#include "tools/bench/peak.h"

#include <immintrin.h>

float peak_dot_avx512bf16(int64_t iterations)
{
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f7f), y = (__m512bh)_mm512_set1_epi16(0x3a80);
    __m512 a[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps((float)i);
    for (int64_t k = 0; k < iterations; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_dpbf16_ps(a[i], x, y);
    }
    for (int i = 1; i < 16; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return _mm512_cvtss_f32(a[0]);
}
