/* Many tokens: bound by the multiply-adds. Eight weight rows are decoded for a chunk of K into a panel that stays in L1; the
 * micro kernel keeps 3 tokens x 4 rows of eight lanes in registers (7 loads for 12 multiply-adds) and goes over the panel twice,
 * once for each half of the lanes. Between chunks the lanes rest in scratch. */
#include "kernels/x86/linear_avx2.h"

#include <string.h>

enum {
    ROWS = 8,         /* of a panel */
    TOKENS = 96,      /* between decoding a panel and decoding it again */
    VEC = 8,          /* floats of a vector */
    STEP = 2 * ROWS * VEC /* floats of the panel in one block of one half: [odd, even][row][lane] */
};

#define INLINE static inline __attribute__((always_inline))

/* Scratch: panel [half][block][odd, even][row][lane], lanes [half][token][row][lane], scales. */
typedef struct workspace {
    float *panel, *lanes, *factor;
} workspace;

static workspace layout(float *scratch)
{
    workspace s = {.panel = scratch};
    s.lanes = s.panel + ROWS * CHUNK;
    s.factor = s.lanes + 2 * TOKENS * ROWS * VEC;
    return s;
}

size_t bl_linear_gemm_scratch_avx2(int64_t tokens, int64_t cols)
{
    (void)tokens;
    (void)cols;
    return (size_t)(ROWS * CHUNK + 2 * TOKENS * ROWS * VEC + 2 * (CHUNK / BL_BLOCK)) * sizeof(float);
}

/* ---- the panel */

static void store_block(float *panel, int64_t half, int64_t b, int r, const __m256 w[4])
{
    for (int i = 0; i < 4; i++) _mm256_store_ps(panel + i / 2 * half + b * STEP + (i % 2 * ROWS + r) * VEC, w[i]);
}

static void panel_row(float *panel, int64_t blocks, int r, const bl_matrix *w, int64_t row, int64_t b0, float *factor)
{
    const uint8_t *codes = bl_matrix_row(w, row);
    const int64_t half = blocks * STEP;
    __m256 v[4];
    if (w->kind == BL_W_BF16)
        for (int64_t b = 0; b < blocks; b++) {
            decode_bf16(v, codes + (b0 + b) * 64);
            store_block(panel, half, b, r, v);
        }
    if (w->kind == BL_W_F32)
        for (int64_t b = 0; b < blocks; b++) {
            decode_f32(v, codes + (b0 + b) * 128);
            store_block(panel, half, b, r, v);
        }
    if (w->kind == BL_W_FP8) {
        expand_scales(factor, bl_matrix_scale(w, row) + b0, blocks, FP8_BIAS);
        for (int64_t b = 0; b < blocks; b++) {
            decode_fp8(v, codes + (b0 + b) * 32, _mm256_broadcast_ss(factor + b));
            store_block(panel, half, b, r, v);
        }
    }
}

static void panel_pair(float *panel, int64_t blocks, int r, const bl_matrix *w, const int64_t row[2], int64_t b0, float *factor)
{
    const uint8_t *a = bl_matrix_row(w, row[0]), *b = bl_matrix_row(w, row[1]);
    const int64_t half = blocks * STEP;
    float *second = factor + CHUNK / BL_BLOCK;
    expand_scales(factor, bl_matrix_scale(w, row[0]) + b0, blocks, FP4_BIAS);
    expand_scales(second, bl_matrix_scale(w, row[1]) + b0, blocks, FP4_BIAS);
    for (int64_t i = 0; i < blocks; i++) {
        __m256 v[8], first[4], other[4];
        decode_fp4_pair(v, a + (b0 + i) * 16, b + (b0 + i) * 16, pair_factor(factor + i, second + i));
        for (int j = 0; j < 4; j++) { /* half j / 2, odd then even */
            int q = 4 * (j / 2) + j % 2;
            first[j] = _mm256_permute2f128_ps(v[q], v[q + 2], 0x20);
            other[j] = _mm256_permute2f128_ps(v[q], v[q + 2], 0x31);
        }
        store_block(panel, half, i, r, first);
        store_block(panel, half, i, r + 1, other);
    }
}

/* Decode the chunk at element k of n rows from row on; the panel's rows past n repeat the last. */
static void fill_panel(const workspace *s, const bl_matrix *w, int64_t row, int64_t n, int64_t k, int64_t blocks)
{
    for (int r = 0; r < ROWS; r += 2) {
        int64_t at[2] = {row + (r < n ? r : n - 1), row + (r + 1 < n ? r + 1 : n - 1)};
        if (w->kind == BL_W_FP4) {
            panel_pair(s->panel, blocks, r, w, at, k / BL_BLOCK, s->factor);
            continue;
        }
        panel_row(s->panel, blocks, r, w, at[0], k / BL_BLOCK, s->factor);
        panel_row(s->panel, blocks, r + 1, w, at[1], k / BL_BLOCK, s->factor);
    }
}

/* ---- the product */

/* lanes[t][r] (+)= x[t] . panel row r over the blocks of one half, T tokens x R rows in registers. */
INLINE void micro(int T, int R, float *lanes, const float *x, int64_t ldx, const float *panel, int64_t blocks, int first)
{
    __m256 acc[3][8];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            acc[t][r] = first ? _mm256_setzero_ps() : _mm256_load_ps(lanes + (t * ROWS + r) * VEC);
    for (int64_t b = 0; b < blocks; b++, panel += STEP, x += 2 * VEC)
        for (int even = 0; even < 2; even++) {
            __m256 v[3];
            for (int t = 0; t < T; t++) v[t] = _mm256_load_ps(x + t * ldx + even * VEC);
            for (int r = 0; r < R; r++) {
                __m256 w = _mm256_load_ps(panel + (even * ROWS + r) * VEC);
                for (int t = 0; t < T; t++) acc[t][r] = _mm256_fmadd_ps(v[t], w, acc[t][r]);
            }
        }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) _mm256_store_ps(lanes + (t * ROWS + r) * VEC, acc[t][r]);
}

/* One half of one chunk for all tokens; x is token-major with n floats a token. */
static void half_chunk(float *lanes, const float *x, int64_t n, int64_t tokens, const float *panel, int64_t rows, int first)
{
    const int64_t blocks = n / (2 * VEC);
    int64_t t = 0;
    for (; t + 3 <= tokens && tokens - t != 4; t += 3)
        for (int r = 0; r < rows; r += 4)
            micro(3, 4, lanes + (t * ROWS + r) * VEC, x + t * n, n, panel + r * VEC, blocks, first);
    for (; t + 2 <= tokens; t += 2)
        for (int r = 0; r < rows; r += 4)
            micro(2, 4, lanes + (t * ROWS + r) * VEC, x + t * n, n, panel + r * VEC, blocks, first);
    if (t < tokens) micro(1, 8, lanes + t * ROWS * VEC, x + t * n, n, panel, blocks, first);
}

static void reduce(float *y, int64_t ldy, const float *lanes, int64_t tokens, int64_t rows)
{
    for (int64_t t = 0; t < tokens; t++) {
        float out[ROWS];
        __m256 v[ROWS];
        for (int r = 0; r < ROWS; r++) {
            const float *p = lanes + (t * ROWS + r) * VEC;
            v[r] = _mm256_add_ps(_mm256_load_ps(p), _mm256_load_ps(p + tokens * ROWS * VEC));
        }
        _mm256_storeu_ps(out, tree_rows8(v));
        memcpy(y + t * ldy, out, (size_t)rows * sizeof(float));
    }
}

void bl_linear_gemm_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch)
{
    const workspace s = layout(scratch);
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS) {
        int64_t T = tokens - t0 < TOKENS ? tokens - t0 : TOKENS;
        for (int64_t r = row0; r < row1; r += ROWS) {
            int64_t R = row1 - r < ROWS ? row1 - r : ROWS;
            for (int64_t k = 0; k < w->cols; k += CHUNK) {
                int64_t n = chunk_cols(w->cols, k), blocks = n / BL_BLOCK;
                fill_panel(&s, w, r, R, k, blocks);
                for (int h = 0; h < 2; h++)
                    half_chunk(s.lanes + h * T * ROWS * VEC, packed_at(packed, tokens, w->cols, k, h, t0), n / 2, T,
                               s.panel + h * blocks * STEP, R, k == 0);
            }
            reduce(y + t0 * ldy + (r - row0), ldy, s.lanes, T, R);
        }
    }
}
