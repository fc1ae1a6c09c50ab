/* Few tokens: bound by reading the weights, so every code is decoded in registers and used for all tokens at once. The rows of a
 * group are far apart: each is where a long sequential stream has got to, which hardware prefetchers follow better than many
 * short ones. */
#include "kernels/x86/linear_avx2.h"

#include <float.h>

/* Where the codes of up to four rows begin. */
typedef struct row_group {
    const uint8_t *codes[4];
    const uint8_t *scale[4]; /* fp4 only */
} row_group;

enum { LINE = 64, AHEAD = 1024 };

/* Decoding takes so many instructions that no processor looks far ahead by itself. */
BL_INLINE void prefetch(int R, const row_group *g, int64_t at)
{
    for (int r = 0; r < R && at % LINE == 0; r++) _mm_prefetch((const char *)g->codes[r] + at + AHEAD, _MM_HINT_T0);
}

BL_INLINE void decode(bl_weight_kind kind, int odd, __m256 w[2], const uint8_t *codes, int64_t b)
{
    if (kind == BL_W_BF16) decode_bf16(odd, w, codes + b * 64);
    if (kind == BL_W_F32) decode_f32(odd, w, codes + b * 128);
    if (kind == BL_W_FP8) fp8_unscaled(odd, w, codes + b * 32);
}

/* Where the tokens' blocks of a chunk are: half 1 at x[t] + half. */
typedef struct chunk_x {
    const float *x[GEMV_TOKENS];
    int64_t half, first, blocks; /* first: the chunk's first block */
} chunk_x;

/* acc[t][r][half] of one chunk, for the kinds that decode a row at a time. Every pair of weight vectors is used before the next
 * is decoded: the accumulators need the registers. */
BL_INLINE void chunk_rows(bl_weight_kind kind, int T, int R, __m256 acc[][4][2], const chunk_x *c, const row_group *g)
{
    for (int64_t i = 0; i < c->blocks; i++) {
        if (kind == BL_W_FP8) prefetch(R, g, (c->first + i) * 32);
        for (int r = 0; r < R; r++)
            for (int even = 0; even < 2; even++) {
                __m256 w[2];
                decode(kind, !even, w, g->codes[r], c->first + i);
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
        prefetch(2, g, b * 16);
        const fp4_pair entries = fp4_entries(table, g->scale[0][b], g->scale[1][b]);
        const __m256i v = fp4_codes(g->codes[0] + b * 16, g->codes[1] + b * 16);
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

/* out[t]: the products of the group's rows, row r at place(r). table: of fp4. */
BL_INLINE void group(bl_weight_kind kind, int T, int R, float out[][8], const float *packed, int64_t cols, const row_group *g,
                     const uint8_t *table)
{
    __m256 single[GEMV_TOKENS][4][2], pair[GEMV_TOKENS][4];
    for (int t = 0; t < T; t++)
        for (int i = 0; i < 4; i++) single[t][i][0] = single[t][i][1] = pair[t][i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const int64_t n = chunk_cols(cols, k);
        chunk_x c = {.half = T * n / 2, .first = k / BL_BLOCK, .blocks = n / BL_BLOCK};
        for (int t = 0; t < T; t++) c.x[t] = packed_at(packed, T, cols, k, 0, t);
        if (kind == BL_W_FP4) chunk_pair(T, pair, &c, g, table);
        else chunk_rows(kind, T, R, single, &c, g);
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

/* Rows row0..row1, in R streams. */
BL_INLINE void all_rows(bl_weight_kind kind, int T, int R, float *y, int64_t ldy, const float *packed, const bl_matrix *w,
                        int64_t row0, int64_t row1, const uint8_t *table)
{
    const int64_t rows = row1 - row0, stream = (rows + R - 1) / R;
    for (int64_t r = 0; r < stream; r++) {
        row_group g;
        for (int i = 0; i < R; i++) { /* the last streams may have fewer rows, and repeat one */
            const int64_t row = row0 + (r + i * stream < rows ? r + i * stream : r);
            g.codes[i] = bl_matrix_row(w, row);
            g.scale[i] = bl_matrix_scale(w, row);
        }
        float out[GEMV_TOKENS][8];
        group(kind, T, R, out, packed, w->cols, &g, table);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < R && r + i * stream < rows; i++) y[t * ldy + r + i * stream] = out[t][place(i)];
    }
}

BL_INLINE void all_tokens(bl_weight_kind kind, float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w,
                       int64_t row0, int64_t row1, const uint8_t *table)
{
    /* as many rows as leave accumulators, x and decoded weights in sixteen registers */
    if (tokens == 1) all_rows(kind, 1, kind == BL_W_FP4 ? 2 : 4, y, ldy, packed, w, row0, row1, table);
    else if (tokens == 2) all_rows(kind, 2, 2, y, ldy, packed, w, row0, row1, table);
    else all_rows(kind, 3, 2, y, ldy, packed, w, row0, row1, table);
}

/* out: packed with each block times 2^(its scale - 7), for weights that are decoded without their scale as value times 2^-120.
 * Where every product stays finite and no operand loses bits (checked here) the multiply-adds see the same exact products.
 * Returns 0 where that does not hold. */
static int scaled_x(float *out, const float *packed, int64_t tokens, int64_t cols, const uint8_t *scale)
{
    const __m256 sign = _mm256_set1_ps(-0.f);
    __m256 most = _mm256_setzero_ps();
    for (int64_t k = 0; k < cols; k += CHUNK)
        for (int64_t part = 0, blocks = chunk_cols(cols, k) / BL_BLOCK; part < 2 * tokens; part++)
            for (int64_t b = 0; b < blocks; b++, packed += 16, out += 16) {
                const unsigned s = scale[k / BL_BLOCK + b];
                if (s < FP8_FAST_MIN || s > FP8_FAST_MAX) return 0;
                const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32((int)(s + FP8_FAST_BIAS) << 23));
                for (int i = 0; i < 16; i += 8) {
                    const __m256 v = _mm256_mul_ps(_mm256_load_ps(packed + i), factor);
                    most = _mm256_max_ps(_mm256_andnot_ps(sign, v), most);
                    _mm256_store_ps(out + i, v);
                }
            }
    return _mm256_movemask_ps(_mm256_cmp_ps(most, _mm256_set1_ps(FLT_MAX), _CMP_GT_OQ)) == 0;
}

static void fp8_rows(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                     float *scratch)
{
    for (int64_t r = row0, end; r < row1; r = end) {
        end = (r / BL_SCALE_ROWS + 1) * BL_SCALE_ROWS;
        if (end > row1) end = row1;
        if (scaled_x(scratch, packed, tokens, w->cols, bl_matrix_scale(w, r)))
            all_tokens(BL_W_FP8, y + (r - row0), ldy, scratch, tokens, w, r, end, NULL);
        else
            bl_linear_gemm_avx2(y + (r - row0), ldy, packed, tokens, w, r, end, scratch);
    }
}

size_t bl_linear_gemv_scratch_avx2(int64_t tokens, int64_t cols)
{
    size_t scaled = (size_t)(tokens * cols) * sizeof(float), other = bl_linear_gemm_scratch_avx2(tokens, cols);
    return scaled > other ? scaled : other; /* the latter has room for the table of fp4 */
}

void bl_linear_gemv_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch)
{
    switch (w->kind) {
    case BL_W_BF16: all_tokens(BL_W_BF16, y, ldy, packed, tokens, w, row0, row1, NULL); return;
    case BL_W_FP8: fp8_rows(y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP4:
        all_tokens(BL_W_FP4, y, ldy, packed, tokens, w, row0, row1, make_fp4_table(scratch));
        return;
    case BL_W_F32: all_tokens(BL_W_F32, y, ldy, packed, tokens, w, row0, row1, NULL);
    }
}
