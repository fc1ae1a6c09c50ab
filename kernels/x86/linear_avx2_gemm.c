/* Many tokens: bound by the multiply-adds. Eight weight rows are decoded for a chunk of K into a panel that stays in L1; the
 * micro kernel keeps 3 tokens x 4 rows of eight lanes in registers (7 loads for 12 multiply-adds) and goes over the panel twice,
 * once for each half of the lanes. Between chunks the lanes rest in scratch. */
#include "kernels/x86/linear_avx2.h"
#include "kernels/x86/linear_panel.h"

#include <string.h>

enum {
    ROWS = PANEL_ROWS,
    TOKENS = 96,          /* between decoding a panel and decoding it again */
    VEC = 8,              /* floats of a vector */
    STEP = 2 * ROWS * VEC /* floats of the panel in one block of one half: [odd, even][row][lane] */
};

/* Scratch: panel [half][block][odd, even][row][lane], lanes [half][token][row][lane], factors of fp8, table of fp4. */
typedef struct workspace {
    float *panel, *lanes, *factor;
    const uint8_t *table;
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
    return (size_t)(ROWS * CHUNK + 2 * TOKENS * ROWS * VEC + CHUNK / BL_BLOCK) * sizeof(float) + FP4_TABLE;
}

/* ---- the panel */

BL_INLINE void store(float *panel, int64_t half, int odd, int r, const __m256 w[2])
{
    for (int h = 0; h < 2; h++) _mm256_store_ps(panel + h * half + ((1 - odd) * ROWS + r) * VEC, w[h]);
}

BL_INLINE void panel_row(bl_weight_kind kind, float *panel, int64_t blocks, int r, const uint8_t *codes, const float *factor)
{
    for (int64_t b = 0; b < blocks; b++)
        for (int odd = 0; odd < 2; odd++) {
            __m256 w[2];
            if (kind == BL_W_BF16) decode_bf16(odd, w, codes + b * 64);
            if (kind == BL_W_F32) decode_f32(odd, w, codes + b * 128);
            if (kind == BL_W_FP8) decode_fp8(odd, w, codes + b * 32, _mm256_broadcast_ss(factor + b));
            store(panel + b * STEP, blocks * STEP, odd, r, w);
        }
}

static void panel_fp4(float *panel, int64_t blocks, int r, const uint8_t *const codes[2], const uint8_t *const scale[2],
                      const uint8_t *table)
{
    for (int64_t b = 0; b < blocks; b++) {
        const fp4_pair entries = fp4_entries(table, scale[0][b], scale[1][b]);
        const __m256i v = fp4_codes(codes[0] + b * 16, codes[1] + b * 16);
        for (int odd = 0; odd < 2; odd++) {
            __m256i words[2];
            decode_fp4(odd, words, v, entries);
            for (int i = 0; i < 2; i++) { /* all sixteen words of a row */
                __m256i row = i ? _mm256_permute2x128_si256(words[0], words[1], 0x31)
                                : _mm256_permute2x128_si256(words[0], words[1], 0x20);
                store(panel + b * STEP, blocks * STEP, odd, r + i, (const __m256[2]){low_words(row), high_words(row)});
            }
        }
    }
}

/* Decode the chunk at element k of n rows from row on; the panel's rows past n repeat the last. */
static void fill_panel(const workspace *s, const bl_matrix *w, int64_t row, int64_t n, int64_t k, int64_t blocks)
{
    const int64_t skip = k / BL_BLOCK, block_bytes = bl_matrix_row_bytes(w) / (w->cols / BL_BLOCK);
    for (int r = 0; r < ROWS; r += 2) {
        const uint8_t *codes[2], *scale[2];
        for (int i = 0; i < 2; i++) {
            int64_t at = row + (r + i < n ? r + i : n - 1);
            codes[i] = bl_matrix_row(w, at) + skip * block_bytes;
            scale[i] = bl_matrix_scale(w, at);
            if (scale[i]) scale[i] += skip;
            if (w->kind == BL_W_BF16) panel_row(BL_W_BF16, s->panel, blocks, r + i, codes[i], NULL);
            if (w->kind == BL_W_F32) panel_row(BL_W_F32, s->panel, blocks, r + i, codes[i], NULL);
            if (w->kind == BL_W_FP8) {
                expand_scales(s->factor, scale[i], blocks);
                panel_row(BL_W_FP8, s->panel, blocks, r + i, codes[i], s->factor);
            }
        }
        if (w->kind == BL_W_FP4) panel_fp4(s->panel, blocks, r, codes, scale, s->table);
    }
}

/* ---- the product */

/* lanes[t][r] (+)= x[t] . panel row r over the blocks of one half, T tokens x R rows in registers. ahead: ask for the x of the T
 * tokens after these, which are further away than the second-level cache. */
BL_INLINE void micro(int T, int R, float *lanes, const float *x, int64_t ldx, const float *panel, int64_t blocks, int first,
                     int ahead)
{
    __m256 acc[3][8];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            acc[t][r] = first ? _mm256_setzero_ps() : _mm256_load_ps(lanes + (t * ROWS + r) * VEC);
    for (int64_t b = 0; b < blocks; b++, panel += STEP, x += 2 * VEC) {
        for (int t = 0; ahead && t < T; t++) _mm_prefetch((const char *)(x + (T + t) * ldx), _MM_HINT_T0);
        for (int even = 0; even < 2; even++) {
            __m256 v[3];
            for (int t = 0; t < T; t++) v[t] = _mm256_load_ps(x + t * ldx + even * VEC);
            for (int r = 0; r < R; r++) {
                __m256 w = _mm256_load_ps(panel + (even * ROWS + r) * VEC);
                for (int t = 0; t < T; t++) acc[t][r] = _mm256_fmadd_ps(v[t], w, acc[t][r]);
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) _mm256_store_ps(lanes + (t * ROWS + r) * VEC, acc[t][r]);
}

/* One half of one chunk for all tokens; x is token-major with n floats a token. */
static void half_chunk(float *lanes, const float *x, int64_t n, int64_t tokens, const float *panel, int64_t rows, int first,
                       panel_ahead *ahead)
{
    const int64_t blocks = n / (2 * VEC);
    int64_t t = 0;
    for (; t + 3 <= tokens && tokens - t != 4; t += 3) {
        panel_ask(ahead);
        for (int r = 0; r < rows; r += 4)
            micro(3, 4, lanes + (t * ROWS + r) * VEC, x + t * n, n, panel + r * VEC, blocks, first, r == 0);
    }
    for (; t + 2 <= tokens; t += 2) {
        panel_ask(ahead);
        for (int r = 0; r < rows; r += 4)
            micro(2, 4, lanes + (t * ROWS + r) * VEC, x + t * n, n, panel + r * VEC, blocks, first, r == 0);
    }
    if (t == tokens) return;
    panel_ask(ahead);
    micro(1, 8, lanes + t * ROWS * VEC, x + t * n, n, panel, blocks, first, 0);
}

static void reduce(float *y, int64_t ldy, const float *lanes, int64_t tokens, int64_t rows)
{
    for (int64_t t = 0; t < tokens; t++) {
        float out[ROWS];
        __m256 v[2][4];
        for (int h = 0; h < 2; h++)
            for (int p = 0; p < 4; p++) {
                const float *a = lanes + ((h * tokens + t) * ROWS + p) * VEC;
                v[h][p] = join_rows(_mm256_load_ps(a), _mm256_load_ps(a + 4 * VEC));
            }
        _mm256_storeu_ps(out, tree_pairs(v[0], v[1]));
        memcpy(y + t * ldy, out, (size_t)rows * sizeof(float));
    }
}

void bl_linear_gemm_avx2(float *y, int64_t ldy, const float *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                         float *scratch)
{
    workspace s = layout(scratch);
    if (w->kind == BL_W_FP4) s.table = make_fp4_table(s.factor + CHUNK / BL_BLOCK);
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS) {
        int64_t T = tokens - t0 < TOKENS ? tokens - t0 : TOKENS;
        for (int64_t r = row0; r < row1; r += ROWS) {
            int64_t R = row1 - r < ROWS ? row1 - r : ROWS;
            for (int64_t k = 0; k < w->cols; k += CHUNK) {
                int64_t n = chunk_cols(w->cols, k), blocks = n / BL_BLOCK;
                panel_ahead ahead = panel_ask_for(w, r, k, CHUNK, 2 * ((T + 2) / 3)); /* steps of half_chunk */
                fill_panel(&s, w, r, R, k, blocks);
                for (int h = 0; h < 2; h++)
                    half_chunk(s.lanes + h * T * ROWS * VEC, packed_at(packed, tokens, w->cols, k, h, t0), n / 2, T,
                               s.panel + h * blocks * STEP, R, k == 0, &ahead);
            }
            reduce(y + t0 * ldy + (r - row0), ldy, s.lanes, T, R);
        }
    }
}
