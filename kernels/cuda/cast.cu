/* Weights to bf16: a thread has 8 columns of eight rows, whose loads are under way together and whose stores lie side by side. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum { THREADS = 128, EACH = 8, ROWS = 8 };

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

__global__ void __launch_bounds__(THREADS) cast_fp4_kernel(uint16_t *y, const uint8_t *codes, const uint8_t *scale, int64_t rows, int cols)
{
    const int col = EACH * (blockIdx.x * THREADS + threadIdx.x);
    const int64_t row = (int64_t)blockIdx.y * ROWS;
    uint32_t v[ROWS];
    uint8_t s[ROWS];
    if (col >= cols) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool there = row + r < rows;
        v[r] = there ? __ldg((const uint32_t *)(codes + ((row + r) * cols + col) / 2)) : 0;
        s[r] = there ? __ldg(scale + (row + r) * (cols / 32) + col / 32) : 0;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint32_t by = scale_bf16x2(s[r]);
        const uint2 a = decode_fp4(v[r], by), b = decode_fp4(v[r] >> 16, by);
        if (row + r < rows) *(uint4 *)(y + (row + r) * cols + col) = make_uint4(a.x, a.y, b.x, b.y);
    }
}

} // namespace bl

using namespace bl;

void bl_cuda_cast(bl_cuda_stream s, uint16_t *y, const bl_matrix *w, int64_t row, int64_t rows)
{
    const uint8_t *codes = (const uint8_t *)w->codes;
    const int64_t most = 65535 * ROWS / 32 * 32; /* of a grid; whole blocks of 32 */
    for (int64_t at = 0; at < rows; at += most) {
        const int64_t n = rows - at < most ? rows - at : most, from = row + at;
        const dim3 grid((unsigned)((w->cols / EACH + THREADS - 1) / THREADS), (unsigned)((n + ROWS - 1) / ROWS));
        uint16_t *to = y + at * w->cols;
        if (w->kind == BL_W_FP8)
            cast_fp8_kernel<<<grid, THREADS, 0, s>>>(to, codes + from * w->cols, w->scale + from / 32 * (w->cols / 32), n, (int)w->cols);
        else cast_fp4_kernel<<<grid, THREADS, 0, s>>>(to, codes + from * w->cols / 2, w->scale + from * (w->cols / 32), n, (int)w->cols);
    }
}
