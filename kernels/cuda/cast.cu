/* Weights to bf16: eight codes of a thread at a time, so that what a warp stores lies side by side. Blocks are short and their stores
 * leave the cache early: memory is busiest then. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum { THREADS = 128, EACH = 8, ROWS = 4, FLAT = 1024 /* threads */, WORDS = 2 /* of a thread: eight fp4 codes each */ };

__global__ void __launch_bounds__(THREADS) cast_fp8_kernel(uint16_t *y, const uint8_t *codes, const uint8_t *scale, int64_t rows, int cols)
{
    const int col = EACH * (blockIdx.x * THREADS + threadIdx.x);
    const int64_t row = (int64_t)blockIdx.y * ROWS; /* all in one block of 32 */
    uint2 v[ROWS];
    if (col >= cols) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) v[r] = row + r < rows ? __ldg((const uint2 *)(codes + (row + r) * cols + col)) : make_uint2(0, 0);
    const uint32_t s = scale_bf16x2(scale[row / 32 * (cols / 32) + col / 32]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint2 a = decode_fp8(v[r].x, s), b = decode_fp8(v[r].y, s);
        if (row + r < rows) *(uint4 *)(y + (row + r) * cols + col) = make_uint4(a.x, a.y, b.x, b.y);
    }
}

/* A scale has 32 codes that follow one another: rows do not matter. */
__global__ void __launch_bounds__(FLAT) cast_fp4_kernel(uint4 *y, const uint32_t *codes, const uint8_t *scale, int64_t words)
{
    const int64_t first = (int64_t)blockIdx.x * FLAT * WORDS + threadIdx.x;
    uint32_t v[WORDS];
    uint8_t s[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const int64_t at = first + i * FLAT < words ? first + i * FLAT : 0;
        v[i] = __ldcs(codes + at);
        s[i] = __ldg(scale + at / 4);
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const uint32_t by = scale_bf16x2(s[i]);
        const uint2 a = decode_fp4(v[i], by), b = decode_fp4(v[i] >> 16, by);
        if (first + i * FLAT < words) __stcs(y + first + i * FLAT, make_uint4(a.x, a.y, b.x, b.y));
    }
}

} // namespace bl

using namespace bl;

void bl_cuda_cast(bl_cuda_stream s, uint16_t *y, const bl_matrix *w, int64_t row, int64_t rows)
{
    const uint8_t *codes = (const uint8_t *)w->codes;
    if (rows <= 0) return;
    if (w->kind == BL_W_FP4) {
        const int64_t words = rows * (w->cols / EACH);
        launch_plain(s, blocks_of(words, FLAT * WORDS), FLAT, 0, cast_fp4_kernel, (uint4 *)y,
                     (const uint32_t *)(codes + row * w->cols / 2), w->scale + row * (w->cols / 32), words);
        return;
    }
    const int64_t most = 65535 * ROWS / 32 * 32; /* of a grid; whole blocks of 32 */
    for (int64_t at = 0; at < rows; at += most) {
        const int64_t n = rows - at < most ? rows - at : most, from = row + at;
        const dim3 grid((unsigned)((w->cols / EACH + THREADS - 1) / THREADS), (unsigned)((n + ROWS - 1) / ROWS));
        launch_plain(s, grid, THREADS, 0, cast_fp8_kernel, y + at * w->cols, codes + from * w->cols,
                     w->scale + from / 32 * (w->cols / 32), n, (int)w->cols);
    }
}
