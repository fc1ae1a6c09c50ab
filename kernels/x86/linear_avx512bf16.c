/* Many tokens with vdpbf16ps, which takes a block of 32 in one instruction: acc[l] += odd product, then += even product.
 *
 * It takes subnormal operands as zero and flushes subnormal results, so it may stand for the definition only where neither
 * can occur. Let qx and qw be powers of two that divide every x and every weight of a panel. All products are multiples of
 * qx * qw, and so, rounded or not, are all sums of them: with qx * qw >= 2^-126 every result is zero or normal. Where that does
 * not hold, the float32 kernel does the chunk and all later ones of those rows (a sum that may already be a smaller multiple is
 * not handed back). Weights in float32, and few tokens, are the float32 kernel's in any case. */
#include "kernels/x86/linear_avx512.h"

#include <limits.h>
#include <string.h>

enum {
    STEP = ROWS * BL_BLOCK, /* bf16 of the panel in one block: [row][element] */
    UNSAFE = INT_MIN / 4,   /* log2 of a divisor that is no use: subnormal values */
    SAFE = -126             /* log2(qx * qw) from which on nothing is flushed */
};

/* ---- the packed activation: the float32 one; beyond GEMV_TOKENS tokens also bf16 [chunk][token][element], and for every TOKENS
 * tokens log2(qx) as int32. */

static int64_t token_groups(int64_t tokens)
{
    return (tokens + TOKENS - 1) / TOKENS;
}

static size_t packed_bytes_bf16(int64_t tokens, int64_t cols)
{
    size_t f32 = bl_linear_packed_bytes_avx512(tokens, cols);
    return tokens <= GEMV_TOKENS ? f32 : f32 + f32 / 2 + (size_t)token_groups(tokens) * sizeof(int32_t);
}

static const uint16_t *packed_pairs(const void *packed, int64_t tokens, int64_t cols)
{
    return (const uint16_t *)((const float *)packed + tokens * cols);
}

static const int32_t *packed_divisors(const void *packed, int64_t tokens, int64_t cols)
{
    return (const int32_t *)(const void *)(packed_pairs(packed, tokens, cols) + tokens * cols);
}

/* least = min(least, |v| - 1) as unsigned words: zeros do not count. */
BL_INLINE __m512i least_magnitude(__m512i least, __m512i v)
{
    __m512i magnitude = _mm512_and_si512(v, _mm512_set1_epi16(0x7fff));
    return _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
}

/* log2 of a power of two that divides every bf16 seen by least_magnitude: the last place of the smallest. */
static int divisor(__m512i least)
{
    uint16_t words[32];
    unsigned smallest = 0xffff;
    _mm512_storeu_si512(words, least);
    for (int i = 0; i < 32; i++) smallest = words[i] < smallest ? words[i] : smallest;
    int exponent = (int)((smallest + 1) >> 7); /* 512 when all were zero: any divisor will do */
    return exponent ? exponent - 127 - 7 : UNSAFE;
}

static void pack_bf16(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols)
{
    bl_linear_pack_avx512(packed, x, ldx, tokens, cols);
    if (tokens <= GEMV_TOKENS) return;
    uint16_t *pairs = (uint16_t *)((float *)packed + tokens * cols);
    int32_t *divisors = (int32_t *)(void *)(pairs + tokens * cols);
    for (int64_t g = 0; g < token_groups(tokens); g++) {
        __m512i least = _mm512_set1_epi16(-1);
        for (int64_t t = g * TOKENS; t < tokens && t < (g + 1) * TOKENS; t++)
            for (int64_t k = 0; k < cols; k += BL_BLOCK) {
                const int64_t chunk = k / CHUNK * CHUNK, n = chunk_cols(cols, chunk);
                __m512i v = _mm512_loadu_si512(x + t * ldx + k);
                least = least_magnitude(least, v);
                _mm512_store_si512(pairs + chunk * tokens + t * n + (k - chunk), v);
            }
        divisors[g] = divisor(least);
    }
}

/* ---- the panel; returns log2(qw) */

BL_INLINE __m512i panel_row(bl_weight_kind kind, uint16_t *panel, int64_t blocks, const uint8_t *codes, const float *factor,
                            __m512i least)
{
    for (int64_t b = 0; b < blocks; b++, panel += STEP) {
        __m512i v;
        if (kind == BL_W_BF16) {
            v = _mm512_loadu_si512(codes + b * 64);
        } else { /* the decoded floats are bf16: their low halves are zero */
            __m512 w[2];
            decode_block(kind, w, codes, b, factor);
            v = _mm512_or_si512(_mm512_castps_si512(w[0]), _mm512_srli_epi32(_mm512_castps_si512(w[1]), 16));
        }
        least = least_magnitude(least, v);
        _mm512_store_si512(panel, v);
    }
    return least;
}

static int fill_panel(uint16_t *panel, const bl_matrix *w, int64_t row, int64_t n, int64_t k, int64_t blocks, float *factor)
{
    const int64_t skip = k / BL_BLOCK, block_bytes = bl_matrix_row_bytes(w) / (w->cols / BL_BLOCK);
    __m512i least = _mm512_set1_epi16(-1);
    for (int r = 0; r < ROWS; r++, panel += BL_BLOCK) {
        const int64_t at = row + (r < n ? r : n - 1);
        const uint8_t *codes = bl_matrix_row(w, at) + skip * block_bytes, *scale = bl_matrix_scale(w, at);
        if (scale) expand_scales(factor, scale + skip, blocks, scale_bias(w->kind));
        if (w->kind == BL_W_BF16) least = panel_row(BL_W_BF16, panel, blocks, codes, factor, least);
        if (w->kind == BL_W_FP8) least = panel_row(BL_W_FP8, panel, blocks, codes, factor, least);
        if (w->kind == BL_W_FP4) least = panel_row(BL_W_FP4, panel, blocks, codes, factor, least);
    }
    return divisor(least);
}

/* ---- the product */

BL_INLINE __m512bh load_pairs(const uint16_t *p)
{
    return (__m512bh)_mm512_load_si512(p);
}

/* As micro of the float32 kernel. */
BL_INLINE void micro(int T, int R, float *lanes, const uint16_t *x, int64_t ldx, const uint16_t *panel, int64_t blocks, int first)
{
    __m512 acc[STEP_TOKENS][8];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            acc[t][r] = first ? _mm512_setzero_ps() : _mm512_load_ps(lanes + (t * ROWS + r) * VEC);
    for (int64_t b = 0; b < blocks; b++, panel += STEP, x += BL_BLOCK) {
        __m512bh w[8];
        for (int r = 0; r < R; r++) w[r] = load_pairs(panel + r * BL_BLOCK);
        for (int t = 0; t < T; t++) {
            __m512bh v = load_pairs(x + t * ldx);
            for (int r = 0; r < R; r++) acc[t][r] = _mm512_dpbf16_ps(acc[t][r], v, w[r]);
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) _mm512_store_ps(lanes + (t * ROWS + r) * VEC, acc[t][r]);
}

BL_INLINE void tokens_step(int T, float *lanes, const uint16_t *x, int64_t ldx, const uint16_t *panel, int64_t blocks, int64_t rows,
                           int first)
{
    for (int r = 0; r < rows; r += 4) micro(T, 4, lanes + r * VEC, x, ldx, panel + r * BL_BLOCK, blocks, first);
}

static void chunk_bf16(float *lanes, const uint16_t *x, int64_t ldx, int64_t T, const uint16_t *panel, int64_t rows, int first,
                       panel_ahead *ahead)
{
    const int64_t blocks = ldx / BL_BLOCK;
    int64_t t = 0;
    for (; t + STEP_TOKENS <= T; t += STEP_TOKENS) {
        panel_ask(ahead);
        tokens_step(STEP_TOKENS, lanes + t * ROWS * VEC, x + t * ldx, ldx, panel, blocks, rows, first);
    }
    if (t == T) return;
    panel_ask(ahead);
    lanes += t * ROWS * VEC;
    x += t * ldx;
    switch (T - t) {
    case 5: tokens_step(5, lanes, x, ldx, panel, blocks, rows, first); return;
    case 4: tokens_step(4, lanes, x, ldx, panel, blocks, rows, first); return;
    case 3: tokens_step(3, lanes, x, ldx, panel, blocks, rows, first); return;
    case 2: tokens_step(2, lanes, x, ldx, panel, blocks, rows, first); return;
    case 1: micro(1, 8, lanes, x, ldx, panel, blocks, first);
    }
}

static void gemm_bf16(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                      float *scratch)
{
    float *lanes = scratch, *panel = lanes + LANES_FLOATS, *factor = panel + PANEL_FLOATS;
    uint16_t *pairs_panel = (uint16_t *)panel; /* a chunk needs one panel or the other */
    const uint16_t *pairs = packed_pairs(packed, tokens, w->cols);
    const int32_t *divisors = packed_divisors(packed, tokens, w->cols);
    for (int64_t t0 = 0; t0 < tokens; t0 += TOKENS) {
        int64_t T = tokens - t0 < TOKENS ? tokens - t0 : TOKENS;
        for (int64_t r = row0; r < row1; r += ROWS) {
            int64_t n = row1 - r < ROWS ? row1 - r : ROWS;
            int safe = 1;
            for (int64_t k = 0; k < w->cols; k += CHUNK) {
                int64_t ldx = chunk_cols(w->cols, k);
                panel_ahead ahead = ask_for(w, r, k, T);
                safe = safe && fill_panel(pairs_panel, w, r, n, k, ldx / BL_BLOCK, factor) + divisors[t0 / TOKENS] >= SAFE;
                if (safe) chunk_bf16(lanes, pairs + k * tokens + t0 * ldx, ldx, T, pairs_panel, n, k == 0, &ahead);
                else bl_linear_chunk_avx512(lanes, packed, tokens, t0, T, w, r, n, k, panel, factor);
            }
            bl_linear_reduce_avx512(y + t0 * ldy + (r - row0), ldy, lanes, T, n);
        }
    }
}

static void rows_bf16(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                      void *scratch)
{
    if (tokens <= GEMV_TOKENS) bl_linear_gemv_avx512(y, ldy, packed, tokens, w, row0, row1, scratch);
    else if (w->kind == BL_W_F32) bl_linear_gemm_avx512(y, ldy, packed, tokens, w, row0, row1, scratch);
    else gemm_bf16(y, ldy, packed, tokens, w, row0, row1, scratch);
}

void bl_linear_init_avx512bf16(bl_linear_kernels *t)
{
    t->name = "avx512bf16";
    t->packed_bytes = packed_bytes_bf16;
    t->pack = pack_bf16;
    t->rows = rows_bf16;
}
