#include "kernels/x86/linear_avx512.h"

size_t bl_linear_packed_bytes_avx512(int64_t tokens, int64_t cols)
{
    return (size_t)tokens * (size_t)cols * sizeof(float);
}

void bl_linear_pack_avx512(void *packed, const uint16_t *x, int64_t ldx, int64_t tokens, int64_t cols)
{
    float *p = packed;
    for (int64_t k = 0; k < cols; k += CHUNK) {
        const int64_t n = chunk_cols(cols, k);
        for (int64_t t = 0; t < tokens; t++, p += n)
            for (int64_t i = 0; i < n; i += BL_BLOCK)
                for (int even = 0; even < 2; even++)
                    _mm512_store_ps(p + i + even * VEC, decode_bf16(!even, (const uint8_t *)(x + t * ldx + k + i)));
    }
}

static size_t scratch_bytes_avx512(int64_t tokens, int64_t cols)
{
    return tokens <= GEMV_TOKENS ? bl_linear_gemv_scratch_avx512(cols) : bl_linear_gemm_scratch_avx512();
}

static void rows_avx512(float *y, int64_t ldy, const void *packed, int64_t tokens, const bl_matrix *w, int64_t row0, int64_t row1,
                        void *scratch)
{
    if (tokens <= GEMV_TOKENS) bl_linear_gemv_avx512(y, ldy, packed, tokens, w, row0, row1, scratch);
    else bl_linear_gemm_avx512(y, ldy, packed, tokens, w, row0, row1, scratch);
}

void bl_linear_init_avx512(bl_linear_kernels *t)
{
    *t = (bl_linear_kernels){
        .name = "avx512",
        .packed_bytes = bl_linear_packed_bytes_avx512,
        .scratch_bytes = scratch_bytes_avx512,
        .pack = bl_linear_pack_avx512,
        .rows = rows_avx512,
    };
}
