/* What kernels of Hopper's own instructions share: maps of tiles and operands. Bodies are empty on other architectures, whose kernels are
 * never launched (is_hopper). */
#ifndef BL_KERNELS_CUDA_SM90_HOPPER_CUH
#define BL_KERNELS_CUDA_SM90_HOPPER_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sm90/instructions.cuh"

namespace bl {

enum { GROUP = 128 /* threads of a warpgroup */, SWIZZLE = 128 /* bytes of a tile's row: 64 bf16 */, TILE_K = SWIZZLE / 2 };

/* On the host: whether the current device has it. */
bool is_hopper(void);

/* A map of a matrix [rows, cols] of bf16 (row stride in elements) in boxes of 64 columns and box_rows rows, swizzled; false where
 * the driver refuses. */
bool make_tile_map(CUtensorMap *map, const uint16_t *x, int64_t rows, int64_t cols, int64_t stride, int box_rows);

/* Operand in shared memory whose rows are K: swizzled tiles of 8 rows of 128 bytes, from one to the next `next` bytes. 16 elements of K
 * further are 2 more. */
__device__ __forceinline__ uint64_t operand_by_rows(uint32_t at, uint32_t next = 1024)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 32 | (uint64_t)1 << 62;
}

/* B whose rows are its columns' elements: tiles of 8 values of K by 64 columns; next_k, next_n: bytes to the tile of the next 8 of K
 * and of the next 64 columns. */
__device__ __forceinline__ uint64_t operand_by_columns(uint32_t at, uint32_t next_k, uint32_t next_n)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(next_n >> 4) << 16 | (uint64_t)(next_k >> 4) << 32 | (uint64_t)1 << 62;
}

#ifdef BL_HOPPER

/* The barriers of n stages of a ring, by one thread: full ones at full, of which each round is a load's bytes, empty ones at empty, of
 * which each round is that many arrivals. */
__device__ __forceinline__ void init_stages(uint32_t full, uint32_t empty, int n, int releases)
{
    for (int s = 0; s < n; s++) {
        barrier_init(full + 8 * s, 1);
        barrier_init(empty + 8 * s, releases);
    }
    barrier_init_done();
}

#endif

} // namespace bl

#endif
