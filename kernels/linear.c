#include "kernels/linear_variants.h"

#include "kernels/cast.h"
#include "kernels/row_sum.h"
#include "kernels/cpu.h"

#include <string.h>

/* The packed activation of the reference is x itself as float32, [tokens, cols]; its scratch one decoded weight row. */

static size_t packed_bytes_c(int64_t tokens, int64_t cols)
{
    return (size_t)tokens * (size_t)cols * sizeof(float);
}

static size_t scratch_bytes_c(int64_t tokens, int64_t cols)
{
    (void)tokens;
    return (size_t)cols * sizeof(float);
}

static void pack_c(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols)
{
    float *p = packed;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < cols; i++) p[t * cols + i] = bl_bf16_to_f32(x[t * ldx + i]);
}

/* The codes of a row as the float32 values they stand for. The loads are by memcpy: codes in a mapped file may be unaligned. */
static void decode_row(float *out, const bl_matrix *w, int64_t r)
{
    const uint8_t *codes = bl_matrix_row(w, r), *scale = bl_matrix_scale(w, r);
    uint16_t b;
    switch (w->kind) {
    case BL_W_BF16:
        for (int64_t i = 0; i < w->cols; i++) {
            memcpy(&b, codes + 2 * i, 2);
            out[i] = bl_bf16_to_f32(b);
        }
        return;
    case BL_W_FP8:
        for (int64_t i = 0; i < w->cols; i++) out[i] = bl_e4m3_to_f32(codes[i]) * bl_e8m0_to_f32(scale[i / BL_BLOCK]);
        return;
    case BL_W_FP4:
        for (int64_t i = 0; i < w->cols; i++) {
            uint8_t code = codes[i / 2] >> (i % 2 * 4) & 15;
            out[i] = bl_e2m1_to_f32(code) * bl_e8m0_to_f32(scale[i / BL_BLOCK]);
        }
        return;
    case BL_W_F32: memcpy(out, codes, (size_t)w->cols * sizeof(float));
    }
}

static void rows_c(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                   void *scratch)
{
    const float *x = packed;
    float *row = scratch;
    for (int64_t r = row0; r < row1; r++) {
        decode_row(row, w, r);
        for (int64_t t = 0; t < tokens; t++) y[t * ldy + (r - row0)] = bl_pair_dot(x + t * w->cols, row, w->cols);
    }
}

void bl_linear_init(bl_linear_kernels *t, unsigned cpu)
{
    *t = (bl_linear_kernels){
        .name = "c",
        .packed_bytes = packed_bytes_c,
        .scratch_bytes = scratch_bytes_c,
        .pack = pack_c,
        .rows = rows_c,
    };
#if defined(__x86_64__)
    if (cpu & BL_CPU_AVX2) bl_linear_init_avx2(t);
    if (cpu & BL_CPU_AVX512) bl_linear_init_avx512(t);
    if ((cpu & BL_CPU_AVX512BF16) && bl_cpu_fast_dot()) bl_linear_init_avx512bf16(t);
#else
    (void)cpu;
#endif
}
