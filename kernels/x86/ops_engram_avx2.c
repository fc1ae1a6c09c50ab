/* Engram: rows out of the tables, and the gate. */
#include "kernels/x86/ops_avx2.h"

#include "kernels/cast_variants.h"

static float weighted_dot(const uint16_t *h, const float *qk, const uint16_t *key, int64_t D)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    for (int64_t i = 0; i < D; i += 16) {
        lo = _mm256_fmadd_ps(_mm256_mul_ps(bl_widen_avx2(h + i), _mm256_loadu_ps(qk + i)), bl_widen_avx2(key + i), lo);
        hi = _mm256_fmadd_ps(_mm256_mul_ps(bl_widen_avx2(h + i + 8), _mm256_loadu_ps(qk + i + 8)), bl_widen_avx2(key + i + 8), hi);
    }
    return bl_lane_tree_avx2(lo, hi);
}

static inline __m256 gated8(const uint16_t *h, const uint16_t *value, __m256 gate)
{
    return _mm256_add_ps(bl_widen_avx2(h), _mm256_mul_ps(gate, bl_widen_avx2(value)));
}

static void engram_gate_avx2(uint16_t *H, const uint16_t *key, const uint16_t *value, const float *qk, int64_t D, float eps)
{
    for (int j = 0; j < 4; j++, H += D, key += D, qk += D) {
        __m256 gate = _mm256_set1_ps(bl_engram_gate_value(bl_sum_squares_avx2(H, D), bl_sum_squares_avx2(key, D),
                                                          weighted_dot(H, qk, key, D), D, eps));
        for (int64_t i = 0; i < D; i += 16)
            bl_narrow_avx2(H + i, gated8(H + i, value + i, gate), gated8(H + i + 8, value + i + 8, gate));
    }
}

/* Rows lie anywhere in a table of gigabytes: ask for the next one early. */
static void engram_gather_avx2(uint16_t *y, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t cols,
                               int64_t width)
{
    for (int64_t c = 0; c < cols; c++) {
        if (c + 1 < cols) {
            const uint8_t *next = codes + rows[c + 1] * width;
            for (int64_t i = 0; i < width; i += 64) _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
            _mm_prefetch((const char *)(scale + rows[c + 1] * (width / 32)), _MM_HINT_T0);
        }
        bl_fp8_row_avx2(y + c * width, codes + rows[c] * width, scale + rows[c] * (width / 32), width);
    }
}

void bl_op_engram_init_avx2(bl_op_kernels *t)
{
    t->engram_gate = engram_gate_avx2;
    t->engram_gather = engram_gather_avx2;
}
