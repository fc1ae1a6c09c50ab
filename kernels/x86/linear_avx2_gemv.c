/* Few tokens: bound by reading the weights, so every code is decoded in registers and used for all tokens at once. Rows are
 * taken in groups that share the loads of x; the group after is prefetched, since rows are shorter than a hardware prefetcher
 * needs to run ahead. */
#include "kernels/x86/linear_avx2.h"

/* Up to four rows: where their codes and scales begin. Rows past the end repeat the last one. */
typedef struct row_group {
    const uint8_t *codes[4];
    const uint8_t *scale[4];
    int64_t bytes; /* of all rows' codes */
} row_group;

enum { LINE = 64 };

BL_INLINE void prefetch(const row_group *g, int64_t at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE) _mm_prefetch((const char *)g->codes[0] + g->bytes + at + i, _MM_HINT_T0);
}

BL_INLINE void decode(bl_weight_kind kind, int odd, __m256 w[2], const row_group *g, int r, int64_t b,
                      const float *factor)
{
    if (kind == BL_W_BF16) decode_bf16(odd, w, g->codes[r] + b * 64);
    if (kind == BL_W_F32) decode_f32(odd, w, g->codes[r] + b * 128);
    if (kind == BL_W_FP8) decode_fp8(odd, 1, w, g->codes[r] + b * 32, _mm256_broadcast_ss(factor + b));
}

/* Where the tokens' blocks of a chunk are: half 1 at x[t] + half. */
typedef struct chunk_x {
    const float *x[GEMV_TOKENS];
    int64_t half, first, blocks; /* first: the chunk's first block */
} chunk_x;

/* acc[t][r][half] of one chunk, for the kinds that decode a row at a time. Every pair of weight vectors is used before the next
 * is decoded: the accumulators need the registers. */
BL_INLINE void chunk_rows(bl_weight_kind kind, int T, int R, __m256 acc[][4][2], const chunk_x *c, const row_group *g,
                          const float *factor)
{
    const int64_t bytes = R * (kind == BL_W_FP8 ? 32 : kind == BL_W_BF16 ? 64 : 128);
    for (int64_t i = 0; i < c->blocks; i++) {
        prefetch(g, (c->first + i) * bytes, bytes);
        for (int r = 0; r < R; r++)
            for (int even = 0; even < 2; even++) {
                __m256 w[2];
                decode(kind, !even, w, g, r, c->first + i, factor);
                for (int t = 0; t < T; t++)
                    for (int h = 0; h < 2; h++)
                        acc[t][r][h] = _mm256_fmadd_ps(_mm256_load_ps(c->x[t] + h * c->half + i * 16 + even * 8), w[h], acc[t][r][h]);
            }
    }
}

/* The same for two rows of fp4: acc[t][q] holds lanes 0 2 4 6, 8 10 12 14, 1 3 5 7, 9 11 13 15 of both. */
BL_INLINE void chunk_pair(int T, __m256 acc[][4], const chunk_x *c, const row_group *g, const uint8_t *table)
{
    for (int64_t i = 0; i < c->blocks; i++) {
        const int64_t b = c->first + i;
        prefetch(g, b * 32, 32);
        const fp4_pair entries = fp4_entries(table, g->scale[0][b], g->scale[1][b]);
        const __m256i v = load_two(g->codes[0] + b * 16, g->codes[1] + b * 16);
        for (int even = 0; even < 2; even++) {
            __m256i words[2];
            decode_fp4(!even, words, v, entries);
            for (int q = 0; q < 4; q++) {
                __m256 w = q < 2 ? low_words(words[q]) : high_words(words[q - 2]);
                for (int t = 0; t < T; t++) {
                    const float *x = c->x[t] + q / 2 * c->half + i * 16 + even * 8 + q % 2 * 4;
                    acc[t][q] = _mm256_fmadd_ps(_mm256_broadcast_ps((const __m128 *)x), w, acc[t][q]);
                }
            }
        }
    }
}

/* Where out of group() keeps row r. */
static inline int place(int r)
{
    return r % 2 * 4 + r / 2;
}

/* out[t]: the products of the group's rows, row r at place(r). aux: the expanded scales of fp8, the table of fp4. */
BL_INLINE void group(bl_weight_kind kind, int T, int R, float out[][8], const float *packed, int64_t cols, const row_group *g,
                     const void *aux)
{
    __m256 single[GEMV_TOKENS][4][2], pair[GEMV_TOKENS][4];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < 4; i++) single[t][i][0] = single[t][i][1] = pair[t][i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const int64_t n = chunk_cols(cols, k);
        chunk_x c = {.half = T * n / 2, .first = k / BL_BLOCK, .blocks = n / BL_BLOCK};
        for (int t = 0; t < T; t++) c.x[t] = packed_at(packed, T, cols, k, 0, t);
        if (kind == BL_W_FP4) chunk_pair(T, pair, &c, g, aux);
        else chunk_rows(kind, T, R, single, &c, g, aux);
    }
    for (int t = 0; t < T; t++) {
        __m256 half0[4], half1[4];
        for (int p = 0; p < 4; p++) { /* l + (l + 8); groups of fewer than eight rows repeat them */
            __m256 *a = single[t][2 * p % R], *b = single[t][(2 * p + 1) % R];
            half0[p] = kind == BL_W_FP4 ? _mm256_add_ps(pair[t][0], pair[t][1]) : join_rows(a[0], b[0]);
            half1[p] = kind == BL_W_FP4 ? _mm256_add_ps(pair[t][2], pair[t][3]) : join_rows(a[1], b[1]);
        }
        _mm256_storeu_ps(out[t], tree_pairs(half0, half1));
    }
}

/* Rows row0..row1, of which an fp8 matrix has the same scales in all. */
BL_INLINE void all_groups(bl_weight_kind kind, int T, int R, float *y, int64_t ldy, const float *packed, const bl_matrix *w,
                          int64_t row0, int64_t row1, const void *aux)
{
    row_group g = {.bytes = R * bl_matrix_row_bytes(w)};
    for (int64_t r = row0; r < row1; r += R) {
        int64_t n = row1 - r < R ? row1 - r : R;
        for (int i = 0; i < R; i++) {
            int64_t row = r + (i < n ? i : n - 1);
            g.codes[i] = bl_matrix_row(w, row);
            g.scale[i] = bl_matrix_scale(w, row);
        }
        float out[GEMV_TOKENS][8];
        group(kind, T, R, out, packed, w->cols, &g, aux);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < n; i++) y[t * ldy + (r - row0) + i] = out[t][place(i)];
    }
}

BL_INLINE void all_tokens(bl_weight_kind kind, float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w,
                       int64_t row0, int64_t row1, const void *aux)
{
    /* as many rows as leave accumulators, x and decoded weights in sixteen registers */
    if (tokens == 1) all_groups(kind, 1, kind == BL_W_FP4 ? 2 : 4, y, ldy, packed, w, row0, row1, aux);
    else if (tokens == 2) all_groups(kind, 2, 2, y, ldy, packed, w, row0, row1, aux);
    else all_groups(kind, 3, 2, y, ldy, packed, w, row0, row1, aux);
}

static int fast_scales(const uint8_t *scale, int64_t n)
{
    unsigned most = 0;
    for (int64_t i = 0; i < n; i++) most = scale[i] > most ? scale[i] : most;
    return most <= FP8_FAST_MAX;
}

static void fp8_rows(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                     float *scratch)
{
    for (int64_t r = row0, end; r < row1; r = end) {
        const uint8_t *scale = bl_matrix_scale(w, r);
        end = (r / BL_SCALE_ROWS + 1) * BL_SCALE_ROWS;
        if (end > row1) end = row1;
        if (fast_scales(scale, w->cols / BL_BLOCK)) {
            expand_scales(scratch, scale, w->cols / BL_BLOCK, FP8_FAST_BIAS);
            all_tokens(BL_W_FP8, y + (r - row0), ldy, packed, tokens, w, r, end, scratch);
        } else {
            bl_linear_gemm_avx2(y + (r - row0), ldy, packed, tokens, w, r, end, scratch);
        }
    }
}

size_t bl_linear_gemv_scratch_avx2(int64_t cols)
{
    size_t factors = (size_t)(cols / BL_BLOCK) * sizeof(float), other = bl_linear_gemm_scratch_avx2(GEMV_TOKENS, cols);
    return factors > other ? factors : other; /* the latter has room for the table of fp4 */
}

void bl_linear_gemv_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch)
{
    switch (w->kind) {
    case BL_W_BF16: all_tokens(BL_W_BF16, y, ldy, packed, tokens, w, row0, row1, NULL); return;
    case BL_W_FP8: fp8_rows(y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP4:
        make_fp4_table((uint8_t *)scratch);
        all_tokens(BL_W_FP4, y, ldy, packed, tokens, w, row0, row1, scratch);
        return;
    case BL_W_F32: all_tokens(BL_W_F32, y, ldy, packed, tokens, w, row0, row1, NULL);
    }
}
