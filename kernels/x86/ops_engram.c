/* Engram: rows out of the tables, and the gate. */
#include "kernels/cast_variants.h"
#include "kernels/x86/ops_x86.h"

static float weighted_dot(const uint16_t *h, const float *qk, const uint16_t *key, int64_t D)
{
    vf sum[VECS] = {{0}};
    for (int64_t i = 0; i < D; i += 16)
        for (int v = 0; v < VECS; v++) {
            const int64_t at = i + LANES * v;
            sum[v] = vf_fmadd(vf_widen(h + at) * vf_loadu(qk + at), vf_widen(key + at), sum[v]);
        }
    return vf_lane_tree(sum);
}

static void engram_gate(uint16_t *H, const uint16_t *key, const uint16_t *value, const float *qk, int64_t D, float eps)
{
    for (int j = 0; j < 4; j++, H += D, key += D, qk += D) {
        const float squares_h = BL_LEVEL(bl_sum_squares)(H, D), squares_key = BL_LEVEL(bl_sum_squares)(key, D);
        const vf gate = vf_set1(bl_engram_gate_value(squares_h, squares_key, weighted_dot(H, qk, key, D), D, eps));
        for (int64_t i = 0; i < D; i += 16) {
            vf out[VECS];
            for (int v = 0; v < VECS; v++) out[v] = vf_widen(H + i + LANES * v) + gate * vf_widen(value + i + LANES * v);
            vf_narrow(H + i, out);
        }
    }
}

/* Rows lie anywhere in a table of gigabytes: ask for the next one early. */
static void engram_gather(uint16_t *y, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t cols, int64_t width)
{
    for (int64_t c = 0; c < cols; c++) {
        if (c + 1 < cols) {
            const uint8_t *next = codes + rows[c + 1] * width;
            for (int64_t i = 0; i < width; i += 64) _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
            _mm_prefetch((const char *)(scale + rows[c + 1] * (width / 32)), _MM_HINT_T0);
        }
        BL_LEVEL(bl_fp8_row)(y + c * width, codes + rows[c] * width, scale + rows[c] * (width / 32), width);
    }
}

void BL_LEVEL(bl_op_engram_init)(bl_op_kernels *t)
{
    t->engram_gate = engram_gate;
    t->engram_gather = engram_gather;
}
