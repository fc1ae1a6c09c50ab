/* As kernels/cuda/sm90/instructions.cuh, which says what each does: the same on the CPU. */
#ifndef BL_KERNELS_CUDA_SM90_INSTRUCTIONS_CUH
#define BL_KERNELS_CUDA_SM90_INSTRUCTIONS_CUH

#include "kernels/cuda/instructions.cuh"

#include <cuda.h>

#define BL_HOPPER 1

namespace bl {

/* ---- barriers and copies of tiles: tiles.cc */

void barrier_init(uint32_t bar, int count);
void barrier_init_done(void);
void barrier_expect(uint32_t bar, uint32_t bytes);
void barrier_arrive(uint32_t bar);
void barrier_arrive_at(uint32_t bar, int rank);
void barrier_wait(uint32_t bar, uint32_t parity);
static inline uint32_t address_at(uint32_t at, uint32_t rank) { return emu::map_address(at, rank); }
void send(uint32_t to, uint32_t bar, float x, float y, float z, float w);
static inline void named_sync(int id, int threads) { emu::barrier_sync(id, (unsigned)threads); }
static inline void named_arrive(int id, int threads) { emu::barrier_arrive(id, (unsigned)threads); }

void load_tile_to(uint32_t to, const CUtensorMap *map, uint32_t bar, int col, int row, int mask);
static inline void load_tile(uint32_t to, const CUtensorMap *map, uint32_t bar, int col, int row)
{
    load_tile_to(to, map, bar, col, row, 1 << emu::here.rank);
}

static inline void publish_shared(void) {}
template <int N> static inline void more_registers(void) {}
template <int N> static inline void fewer_registers(void) {}

/* ---- products of a warpgroup: warpgroup.cc */

void wgmma_begin(void);
void wgmma_commit(void);
void wgmma_finish(unsigned left);
template <int LEFT> static inline void wgmma_wait(void) { wgmma_finish(LEFT); }
template <int N> static inline void settle(float (&)[N]) {}

/* a: registers, or NULL for the operand at `at`. */
void wgmma(float *d, int n, const fragment_a *a, uint64_t at, uint64_t b, bool by_columns, int keep);

template <int N, int TB> struct wgmma_ss {
    static void run(float (&d)[N / 2], uint64_t a, uint64_t b, int keep) { wgmma(d, N, NULL, a, b, TB, keep); }
};

template <int N> struct wgmma_rs {
    static void run(float (&d)[N / 2], const fragment_a &a, uint64_t b, int keep) { wgmma(d, N, &a, 0, b, false, keep); }
};

} // namespace bl

#endif
