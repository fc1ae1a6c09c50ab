/* Many tokens: bound by the multiply-adds. Eight weight rows are decoded for a chunk of K into a panel that stays in L1; the
 * micro kernel keeps 6 tokens x 4 rows of sixteen lanes in registers (10 loads for 24 multiply-adds). Between chunks the lanes
 * rest in scratch. */
#include "kernels/x86/linear_avx512.h"

#include <string.h>

enum { STEP = 2 * ROWS * VEC }; /* floats of the panel in one block: [odd, even][row][lane] */

/* ---- the panel */

BL_INLINE void panel_row(bl_weight_kind kind, float *panel, int64_t blocks, const uint8_t *codes, const float *factor)
{
    for (int64_t b = 0; b < blocks; b++) {
        __m512 w[2];
        decode_block(kind, w, codes, b, factor);
        _mm512_store_ps(panel + b * STEP, w[0]);
        _mm512_store_ps(panel + b * STEP + ROWS * VEC, w[1]);
    }
}

static void fill_panel(float *panel, const bl_matrix *w, int64_t row, int64_t n, int64_t k, int64_t blocks, float *factor)
{
    const int64_t skip = k / BL_BLOCK, block_bytes = bl_matrix_row_bytes(w) / (w->cols / BL_BLOCK);
    for (int r = 0; r < ROWS; r++) {
        const int64_t at = row + (r < n ? r : n - 1);
        const uint8_t *codes = bl_matrix_row(w, at) + skip * block_bytes, *scale = bl_matrix_scale(w, at);
        if (scale) expand_scales(factor, scale + skip, blocks, scale_bias(w->kind));
        switch (w->kind) {
        case BL_W_BF16: panel_row(BL_W_BF16, panel + r * VEC, blocks, codes, factor); break;
        case BL_W_FP8: panel_row(BL_W_FP8, panel + r * VEC, blocks, codes, factor); break;
        case BL_W_FP4: panel_row(BL_W_FP4, panel + r * VEC, blocks, codes, factor); break;
        case BL_W_F32: panel_row(BL_W_F32, panel + r * VEC, blocks, codes, factor);
        }
    }
}

/* ---- the product */

/* lanes[t][r] (+)= x[t] . panel row r over the blocks, T tokens x R rows in registers; a token has ldx floats of x. */
BL_INLINE void micro(int T, int R, float *lanes, const float *x, int64_t ldx, const float *panel, int64_t blocks, int first)
{
    __m512 acc[STEP_TOKENS][8];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            acc[t][r] = first ? _mm512_setzero_ps() : _mm512_load_ps(lanes + (t * ROWS + r) * VEC);
    for (int64_t b = 0; b < blocks; b++, panel += STEP, x += BL_BLOCK)
        for (int even = 0; even < 2; even++) {
            __m512 w[8];
            for (int r = 0; r < R; r++) w[r] = _mm512_load_ps(panel + (even * ROWS + r) * VEC);
            for (int t = 0; t < T; t++) {
                __m512 v = _mm512_load_ps(x + t * ldx + even * VEC);
                for (int r = 0; r < R; r++) acc[t][r] = _mm512_fmadd_ps(v, w[r], acc[t][r]);
            }
        }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) _mm512_store_ps(lanes + (t * ROWS + r) * VEC, acc[t][r]);
}

/* Both groups of four rows for T tokens. */
BL_INLINE void tokens_step(int T, float *lanes, const float *x, int64_t ldx, const float *panel, int64_t blocks, int64_t rows,
                           int first)
{
    for (int r = 0; r < rows; r += 4) micro(T, 4, lanes + r * VEC, x, ldx, panel + r * VEC, blocks, first);
}

void bl_linear_chunk_avx512(float *lanes, const float *packed, int64_t tokens, int64_t t0, int64_t T, const bl_matrix *w,
                            int64_t row, int64_t n, int64_t k, float *panel, float *factor)
{
    const int64_t ldx = chunk_cols(w->cols, k), blocks = ldx / BL_BLOCK;
    const float *x = packed_at(packed, tokens, w->cols, k, t0);
    const int first = k == 0;
    panel_ahead ahead = ask_for(w, row, k, T);
    fill_panel(panel, w, row, n, k, blocks, factor);
    int64_t t = 0;
    for (; t + STEP_TOKENS <= T; t += STEP_TOKENS) {
        panel_ask(&ahead);
        tokens_step(STEP_TOKENS, lanes + t * ROWS * VEC, x + t * ldx, ldx, panel, blocks, n, first);
    }
    if (t == T) return;
    panel_ask(&ahead);
    lanes += t * ROWS * VEC;
    x += t * ldx;
    switch (T - t) {
    case 5: tokens_step(5, lanes, x, ldx, panel, blocks, n, first); return;
    case 4: tokens_step(4, lanes, x, ldx, panel, blocks, n, first); return;
    case 3: tokens_step(3, lanes, x, ldx, panel, blocks, n, first); return;
    case 2: tokens_step(2, lanes, x, ldx, panel, blocks, n, first); return;
    case 1: micro(1, 8, lanes, x, ldx, panel, blocks, first);
    }
}

void bl_linear_reduce_avx512(float *y, int64_t ldy, const float *lanes, int64_t T, int64_t n)
{
    for (int64_t t = 0; t < T; t++) {
        float out[ROWS];
        __m512 v[ROWS];
        for (int r = 0; r < ROWS; r++) v[r] = _mm512_load_ps(lanes + (t * ROWS + r) * VEC);
        _mm256_storeu_ps(out, tree_rows8(v));
        memcpy(y + t * ldy, out, (size_t)n * sizeof(float));
    }
}

size_t bl_linear_gemm_scratch_avx512(void)
{
    return (LANES_FLOATS + PANEL_FLOATS + FACTOR_FLOATS) * sizeof(float);
}

void bl_linear_gemm_avx512(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0,
                           int64_t row1, float *scratch)
{
    float *lanes = scratch, *panel = lanes + LANES_FLOATS, *factor = panel + PANEL_FLOATS;
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS) {
        int64_t T = tokens - t0 < TOKENS ? tokens - t0 : TOKENS;
        for (int64_t r = row0; r < row1; r += ROWS) {
            int64_t n = row1 - r < ROWS ? row1 - r : ROWS;
            for (int64_t k = 0; k < w->cols; k += CHUNK)
                bl_linear_chunk_avx512(lanes, packed, tokens, t0, T, w, r, n, k, panel, factor);
            bl_linear_reduce_avx512(y + t0 * ldy + (r - row0), ldy, lanes, T, n);
        }
    }
}
