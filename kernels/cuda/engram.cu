/* Rows of Engram tables, from wherever the GPU reaches them: its own memory, or pinned memory of the host. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum { THREADS = 256, PART = 8 /* codes of a thread: a warp asks for a whole row of 256 at once */ };

__global__ void engram_gather_kernel(uint16_t *e, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t count,
                                     int64_t width)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, parts = width / PART;
    if (i >= count * parts) return;
    const int64_t row = rows[i / parts], at = i % parts * PART;
    const uint2 w = *(const uint2 *)(codes + row * width + at);
    const float s = e8m0(scale[row * (width / 32) + at / 32]);
    __align__(16) uint16_t out[PART];
#pragma unroll
    for (int k = 0; k < PART; k++) {
        const uint8_t c = (uint8_t)((k < 4 ? w.x : w.y) >> 8 * (k % 4));
        const float v = e4m3(c) * s; /* as engram_rows_kernel */
        out[k] = v == v ? to_bf16(v) : (uint16_t)(0x7fc0 | (c & 0x80) << 8);
    }
    *(uint4 *)(e + i * PART) = *(const uint4 *)out;
}

} // namespace bl

using namespace bl;

void bl_cuda_engram_gather(bl_cuda_stream s, uint16_t *e, const uint8_t *codes, const uint8_t *scale, const int64_t *rows, int64_t count,
                           int64_t width)
{
    const int64_t threads = count * (width / PART);
    if (threads > 0)
        engram_gather_kernel<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, s>>>(e, codes, scale, rows, count, width);
}
