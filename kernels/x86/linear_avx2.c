#include "kernels/x86/linear_avx2.h"

static size_t packed_bytes_avx2(int64_t tokens, int64_t cols)
{
    return (size_t)tokens * (size_t)cols * sizeof(float);
}

static size_t scratch_bytes_avx2(int64_t tokens, int64_t cols)
{
    return tokens <= GEMV_TOKENS ? bl_linear_gemv_scratch_avx2(tokens, cols) : bl_linear_gemm_scratch_avx2(tokens, cols);
}

static void pack_avx2(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols)
{
    float *p = packed;
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const int64_t n = chunk_cols(cols, k), half = tokens * n / 2;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t b = 0; b < n / BL_BLOCK; b++)
                for (int even = 0; even < 2; even++) {
                    float *at = p + t * n / 2 + b * 16 + even * 8;
                    __m256 v[2];
                    decode_bf16(!even, v, (const uint8_t *)(x + t * ldx + k + b * BL_BLOCK));
                    _mm256_store_ps(at, v[0]);
                    _mm256_store_ps(at + half, v[1]);
                }
        p += n * tokens;
    }
}

static void rows_avx2(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                      void *scratch)
{
    if (tokens == 0) return;
    if (tokens <= GEMV_TOKENS) bl_linear_gemv_avx2(y, ldy, packed, tokens, w, row0, row1, scratch);
    else bl_linear_gemm_avx2(y, ldy, packed, tokens, w, row0, row1, scratch);
}

void bl_linear_init_avx2(bl_linear_kernels *t)
{
    *t = (bl_linear_kernels){
        .name = "avx2",
        .packed_bytes = packed_bytes_avx2,
        .scratch_bytes = scratch_bytes_avx2,
        .pack = pack_avx2,
        .rows = rows_avx2,
    };
}
