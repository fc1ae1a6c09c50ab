/* Experts' weights into the order of fp4_tiles.h. */
#include "kernels/cuda/fp4_tiles.cuh"

namespace bl {

enum { THREADS = 512 };

/* A block has one tile, and all of it in shared memory before it writes. */
__global__ void __launch_bounds__(THREADS) tile_kernel(uint8_t *codes, uint8_t *scales, int cols)
{
    BL_DYNAMIC_SHARED(uint8_t, memory, 16);
    const int code_bytes = BL_TILE_ROWS * cols / 2, scale_bytes = BL_TILE_ROWS * cols / 32;
    uint8_t *const stored = memory + code_bytes; /* scales */
    codes += blockIdx.x * (int64_t)code_bytes;
    scales += blockIdx.x * (int64_t)scale_bytes;
    for (int i = threadIdx.x; i < code_bytes / 16; i += THREADS) ((uint4 *)memory)[i] = ((const uint4 *)codes)[i];
    for (int i = threadIdx.x; i < scale_bytes / 16; i += THREADS) ((uint4 *)stored)[i] = ((const uint4 *)scales)[i];
    __syncthreads();
    for (int i = threadIdx.x; i < code_bytes / 4; i += THREADS) {
        const uint8_t *const from = memory + bl_fp4_tile_from(i, cols);
        const uint32_t first = *(const uint16_t *)from, second = *(const uint16_t *)(from + BL_TILE_SECOND * (cols / 2));
        ((uint32_t *)codes)[i] = bl_fp4_tile_word(first, second);
    }
    for (int i = threadIdx.x; i < scale_bytes; i += THREADS) scales[i] = stored[bl_fp4_tile_scale_from(i, cols)];
}

} // namespace bl

using namespace bl;

void bl_cuda_tile_fp4(bl_cuda_stream s, const bl_matrix *w)
{
    if (!bl_fp4_tiled(w->kind, w->rows, w->cols)) return;
    const int bytes = (int)(BL_TILE_ROWS * w->cols / 2 + BL_TILE_ROWS * w->cols / 32);
    cudaFuncSetAttribute(tile_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    launch_plain(s, blocks_of(w->rows, BL_TILE_ROWS), THREADS, bytes, tile_kernel, (uint8_t *)w->codes, (uint8_t *)w->scale, (int)w->cols);
}
