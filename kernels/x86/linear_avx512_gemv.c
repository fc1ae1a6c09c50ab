/* Few tokens: bound by reading the weights, so every code is decoded in registers and used for all tokens at once. Rows are
 * taken in groups that share the loads of x; the group after is prefetched, since rows are shorter than a hardware prefetcher
 * needs to run ahead. */
#include "kernels/x86/linear_avx512.h"

enum { GROUP = 4, LINE = 64 };

/* Where the codes and expanded scales of a group's rows begin. Rows past the end repeat the last one. */
typedef struct row_group {
    const uint8_t *codes[GROUP];
    const float *factor[GROUP];
    int64_t bytes; /* of all rows' codes */
} row_group;

BL_INLINE int64_t block_bytes(bl_weight_kind kind)
{
    return kind == BL_W_FP4 ? 16 : kind == BL_W_FP8 ? 32 : kind == BL_W_BF16 ? 64 : 128;
}

/* acc[t][r] of one chunk whose first block is number first. */
BL_INLINE void chunk(bl_weight_kind kind, int T, __m512 acc[][GROUP], const float *x, int64_t ldx, int64_t first, int64_t blocks,
                     const row_group *g)
{
    const int64_t bytes = GROUP * block_bytes(kind);
    for (int64_t i = 0; i < blocks; i++, x += BL_BLOCK) {
        const int64_t b = first + i;
        for (int64_t p = 0; p < bytes; p += LINE) _mm_prefetch((const char *)g->codes[0] + g->bytes + b * bytes + p, _MM_HINT_T0);
        for (int r = 0; r < GROUP; r++) {
            __m512 w[2];
            decode_block(kind, w, g->codes[r], b, g->factor[r]);
            for (int even = 0; even < 2; even++)
                for (int t = 0; t < T; t++) acc[t][r] = _mm512_fmadd_ps(_mm512_load_ps(x + t * ldx + even * VEC), w[even], acc[t][r]);
        }
    }
}

/* out[t]: the products of the group's rows, each twice. */
BL_INLINE void group(bl_weight_kind kind, int T, float out[][2 * GROUP], const float *packed, int64_t cols, const row_group *g)
{
    __m512 acc[GEMV_TOKENS][GROUP];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < GROUP; r++) acc[t][r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const int64_t n = chunk_cols(cols, k);
        chunk(kind, T, acc, packed_at(packed, T, cols, k, 0), n, k / BL_BLOCK, n / BL_BLOCK, g);
    }
    for (int t = 0; t < T; t++) {
        __m512 v[2 * GROUP];
        for (int r = 0; r < 2 * GROUP; r++) v[r] = acc[t][r % GROUP];
        _mm256_storeu_ps(out[t], tree_rows8(v));
    }
}

BL_INLINE void all_groups(bl_weight_kind kind, int T, float *y, int64_t ldy, const float *packed, const bl_matrix *w, int64_t row0,
                          int64_t row1, float *scratch)
{
    const int64_t blocks = w->cols / BL_BLOCK;
    row_group g = {.bytes = GROUP * bl_matrix_row_bytes(w)};
    for (int64_t r = row0; r < row1; r += GROUP) {
        int64_t n = row1 - r < GROUP ? row1 - r : GROUP;
        const uint8_t *expanded = NULL;
        for (int i = 0; i < GROUP; i++) {
            int64_t row = r + (i < n ? i : n - 1);
            const uint8_t *scale = bl_matrix_scale(w, row);
            g.codes[i] = bl_matrix_row(w, row);
            g.factor[i] = scratch + i * blocks;
            if (scale && scale == expanded) g.factor[i] = g.factor[i - 1];
            else if (scale) expand_scales(scratch + i * blocks, scale, blocks, scale_bias(kind));
            expanded = scale;
        }
        float out[GEMV_TOKENS][2 * GROUP];
        group(kind, T, out, packed, w->cols, &g);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < n; i++) y[t * ldy + (r - row0) + i] = out[t][i];
    }
}

BL_INLINE void all_tokens(bl_weight_kind kind, float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w,
                          int64_t row0, int64_t row1, float *scratch)
{
    switch (tokens) {
    case 1: all_groups(kind, 1, y, ldy, packed, w, row0, row1, scratch); return;
    case 2: all_groups(kind, 2, y, ldy, packed, w, row0, row1, scratch); return;
    case 3: all_groups(kind, 3, y, ldy, packed, w, row0, row1, scratch); return;
    case 4: all_groups(kind, 4, y, ldy, packed, w, row0, row1, scratch); return;
    case 5: all_groups(kind, 5, y, ldy, packed, w, row0, row1, scratch); return;
    case 6: all_groups(kind, 6, y, ldy, packed, w, row0, row1, scratch); return;
    }
}

size_t bl_linear_gemv_scratch_avx512(int64_t cols)
{
    return GROUP * (size_t)(cols / BL_BLOCK) * sizeof(float);
}

void bl_linear_gemv_avx512(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0,
                           int64_t row1, float *scratch)
{
    switch (w->kind) {
    case BL_W_BF16: all_tokens(BL_W_BF16, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP8: all_tokens(BL_W_FP8, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_FP4: all_tokens(BL_W_FP4, y, ldy, packed, tokens, w, row0, row1, scratch); return;
    case BL_W_F32: all_tokens(BL_W_F32, y, ldy, packed, tokens, w, row0, row1, scratch);
    }
}
