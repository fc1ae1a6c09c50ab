/* Few tokens: bound by reading the weights, so every code is decoded in registers and used for all tokens at once. Rows are
 * taken in groups that share the loads of x; the group after is prefetched, since rows are shorter than a hardware prefetcher
 * needs to run ahead. */
#include "kernels/x86/linear_avx2.h"

#include <string.h>

/* Up to four rows: where their codes and expanded scales begin. Rows past the end repeat the last one. */
typedef struct row_group {
    const uint8_t *codes[4];
    const float *factor[4];
    size_t bytes; /* of all rows' codes */
} row_group;

enum { LINE = 64 };

#define INLINE static inline __attribute__((always_inline))

INLINE void prefetch(const row_group *g, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE) _mm_prefetch((const char *)g->codes[0] + g->bytes + at + i, _MM_HINT_T0);
}

INLINE void decode(bl_weight_kind kind, __m256 w[4], const row_group *g, int r, int64_t b)
{
    if (kind == BL_W_BF16) decode_bf16(w, g->codes[r] + b * 64);
    if (kind == BL_W_F32) decode_f32(w, g->codes[r] + b * 128);
    if (kind == BL_W_FP8) decode_fp8(w, g->codes[r] + b * 32, _mm256_broadcast_ss(g->factor[r] + b));
}

/* acc[t][r][half] += the blocks of one chunk that begins at block b0; kinds that decode a row at a time. */
INLINE void chunk_single(bl_weight_kind kind, int T, int R, __m256 acc[][4][2], const float *const x[], int64_t half, int64_t b0,
                         int64_t blocks, const row_group *g)
{
    const int bytes = kind == BL_W_FP8 ? 32 : kind == BL_W_BF16 ? 64 : 128;
    for (int64_t i = 0; i < blocks; i++) {
        prefetch(g, (size_t)((b0 + i) * R * bytes), (size_t)(R * bytes));
        for (int r = 0; r < R; r++) {
            __m256 w[4];
            decode(kind, w, g, r, b0 + i);
            for (int t = 0; t < T; t++)
                for (int h = 0; h < 2; h++) {
                    const float *p = x[t] + h * half + i * 16;
                    acc[t][r][h] = _mm256_fmadd_ps(_mm256_load_ps(p), w[2 * h], acc[t][r][h]);
                    acc[t][r][h] = _mm256_fmadd_ps(_mm256_load_ps(p + 8), w[2 * h + 1], acc[t][r][h]);
                }
        }
    }
}

/* The same for fp4: acc[t][pair][g] holds four lanes of both rows of a pair. */
INLINE void chunk_pairs(int T, int pairs, __m256 acc[][2][4], const float *const x[], int64_t half, int64_t b0, int64_t blocks,
                        const row_group *g)
{
    for (int64_t i = 0; i < blocks; i++) {
        prefetch(g, (size_t)((b0 + i) * pairs * 32), (size_t)(pairs * 32));
        for (int p = 0; p < pairs; p++) {
            __m256 w[8];
            decode_fp4_pair(w, g->codes[2 * p] + (b0 + i) * 16, g->codes[2 * p + 1] + (b0 + i) * 16,
                            pair_factor(g->factor[2 * p] + b0 + i, g->factor[2 * p + 1] + b0 + i));
            for (int t = 0; t < T; t++)
                for (int q = 0; q < 4; q++) {
                    const float *xq = x[t] + q / 2 * half + i * 16 + q % 2 * 4;
                    acc[t][p][q] = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)xq), w[2 * q], acc[t][p][q]);
                    acc[t][p][q] = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)(xq + 8)), w[2 * q + 1], acc[t][p][q]);
                }
        }
    }
}

/* out[t] = the first R of its eight floats are the products of the group's rows. */
INLINE void group(bl_weight_kind kind, int T, int R, float out[][8], const float *packed, int64_t cols, const row_group *g)
{
    __m256 single[GEMV_TOKENS][4][2], pair[GEMV_TOKENS][2][4], v[8];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < 4; i++) {
            single[t][i][0] = single[t][i][1] = _mm256_setzero_ps();
            pair[t][0][i] = pair[t][1][i] = _mm256_setzero_ps();
        }
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const float *x[GEMV_TOKENS];
        for (int t = 0; t < T; t++) x[t] = packed_at(packed, T, cols, k, 0, t);
        int64_t n = chunk_cols(cols, k);
        if (kind == BL_W_FP4) chunk_pairs(T, R / 2, pair, x, T * n / 2, k / BL_BLOCK, n / BL_BLOCK, g);
        else chunk_single(kind, T, R, single, x, T * n / 2, k / BL_BLOCK, n / BL_BLOCK, g);
    }
    for (int t = 0; t < T; t++) {
        for (int r = 0; r < R; r++) { /* l + (l + 8) */
            if (kind == BL_W_FP4) {
                __m256 *a = pair[t][r / 2];
                __m256 lo = _mm256_add_ps(a[0], a[2]), hi = _mm256_add_ps(a[1], a[3]);
                v[r] = r % 2 ? _mm256_permute2f128_ps(lo, hi, 0x31) : _mm256_permute2f128_ps(lo, hi, 0x20);
            } else {
                v[r] = _mm256_add_ps(single[t][r][0], single[t][r][1]);
            }
        }
        for (int r = R; r < 8; r++) v[r] = v[r - R];
        _mm256_storeu_ps(out[t], tree_rows8(v));
    }
}

INLINE void all_groups(bl_weight_kind kind, int T, int R, float *y, int64_t ldy, const float *packed, const bl_matrix *w,
                       int64_t row0, int64_t row1, float *scratch)
{
    const int64_t blocks = w->cols / BL_BLOCK;
    const uint8_t *expanded = NULL;
    row_group g;
    g.bytes = (size_t)(R * bl_matrix_row_bytes(w));
    for (int64_t r = row0, n; r < row1; r += n) {
        n = row1 - r < R ? row1 - r : R;
        /* an fp8 group stays within one row of the scale grid */
        if (kind == BL_W_FP8 && n > BL_SCALE_ROWS - r % BL_SCALE_ROWS) n = BL_SCALE_ROWS - r % BL_SCALE_ROWS;
        for (int i = 0; i < R; i++) {
            int64_t row = r + (i < n ? i : n - 1);
            g.codes[i] = bl_matrix_row(w, row);
            g.factor[i] = scratch + (kind == BL_W_FP4 ? i * blocks : 0);
            if (kind == BL_W_FP4) expand_scales(scratch + i * blocks, bl_matrix_scale(w, row), blocks, FP4_BIAS);
        }
        if (kind == BL_W_FP8 && expanded != bl_matrix_scale(w, r)) {
            expanded = bl_matrix_scale(w, r);
            expand_scales(scratch, expanded, blocks, FP8_BIAS);
        }
        float out[GEMV_TOKENS][8];
        group(kind, T, R, out, packed, w->cols, &g);
        for (int t = 0; t < T; t++) memcpy(y + t * ldy + (r - row0), out[t], (size_t)n * sizeof(float));
    }
}

INLINE void all_tokens(bl_weight_kind kind, float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w,
                       int64_t row0, int64_t row1, float *scratch)
{
    /* as many rows as leave accumulators, x and decoded weights in sixteen registers */
    if (tokens == 1) all_groups(kind, 1, 4, y, ldy, packed, w, row0, row1, scratch);
    else if (tokens == 2) all_groups(kind, 2, 2, y, ldy, packed, w, row0, row1, scratch);
    else all_groups(kind, 3, 2, y, ldy, packed, w, row0, row1, scratch);
}

size_t bl_linear_gemv_scratch_avx2(int64_t cols)
{
    return 4 * (size_t)(cols / BL_BLOCK) * sizeof(float);
}

void bl_linear_gemv_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch)
{
    switch (w->kind) {
    case BL_W_BF16: all_tokens(BL_W_BF16, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP8: all_tokens(BL_W_FP8, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP4: all_tokens(BL_W_FP4, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_F32: all_tokens(BL_W_F32, y, ldy, packed, tokens, w, row0, row1, scratch);
    }
}
