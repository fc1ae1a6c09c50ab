/* Steps of fp4 weights in the order of fp4_tiles.h: a word of codes and a block's scales become a tensor core's operand. */
#ifndef BL_KERNELS_CUDA_FP4_TILES_CUH
#define BL_KERNELS_CUDA_FP4_TILES_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp4_tiles.h"

namespace bl {

/* What the first row's values times 2^-126 are multiplied with, then the second row's, from a word of scales and which of its blocks; for
 * small scales with 2^126 in it. Byte 255, which no weight has, becomes infinity. */
template <bool SMALL> __device__ __forceinline__ uint32_t tile_scale(uint32_t scales, int block)
{
    const uint32_t s = bl_fp4_tile_scales(scales, block);
    return SMALL ? s + BL_TILE_UP : __vmaxu2(s, 0x00400040u);
}

/* A step's operand from its word. */
template <bool SMALL> __device__ __forceinline__ fragment_a tile_step(uint32_t word, uint32_t by)
{
    fragment_a f;
    bl_fp4_tile_place(f.r, word);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!SMALL) f.r[i] = mul_bf16x2(f.r[i], BL_TILE_UP + 0x3f803f80);
        f.r[i] = i % 2 ? mul_bf16x2_high(f.r[i], by) : mul_bf16x2_low(f.r[i], by);
    }
    return f;
}

} // namespace bl

#endif
