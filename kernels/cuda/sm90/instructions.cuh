/* Instructions that only Hopper has: barriers that count bytes, tiles copied by the tensor memory accelerator, products of a warpgroup.
 * None on other architectures, where BL_HOPPER is not defined. */
#ifndef BL_KERNELS_CUDA_SM90_INSTRUCTIONS_CUH
#define BL_KERNELS_CUDA_SM90_INSTRUCTIONS_CUH

#include "kernels/cuda/instructions.cuh"

#include <cuda.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define BL_HOPPER 1

namespace bl {

/* ---- barriers */

__device__ __forceinline__ void barrier_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* At the same place in another block of the cluster. Orders nothing there but what the tensor core has read: wider orders cost a wait for
 * all memory, and at the other end the L1 cache. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(bar), "r"(rank) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(bar), "r"(parity) : "memory");
}

/* The address in another block of the cluster of what is here at `at`. */
__device__ __forceinline__ uint32_t address_at(uint32_t at, uint32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

/* 16 bytes to another block's shared memory, whose barrier there counts them; both addresses by address_at. */
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float x, float y, float z, float w)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];"
                 ::"r"(to), "r"(bar), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

/* Barrier `id` among so many threads of the block. */
__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* To be met there by others, without waiting for them. */
__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- tiles */

__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap *map, uint32_t bar, int col, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(bar), "r"(col), "r"(row) : "memory");
}

/* To the same place in all blocks of the mask. */
__device__ __forceinline__ void load_tile_to(uint32_t to, const CUtensorMap *map, uint32_t bar, int col, int row, int mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], "
                 "[%2], %5;" ::"r"(to), "l"(map), "r"(bar), "r"(col), "r"(row), "h"((uint16_t)mask) : "memory");
}

/* Ordinary stores to shared memory, before the tensor core or a bulk copy looks at them. */
__device__ __forceinline__ void publish_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int N> __device__ __forceinline__ void more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products of a warpgroup: d [64, N] += A B. A thread holds of rows 16 w + g and + 8 (w its warp, g its lane / 4, t its lane % 4)
 * columns 8 j + 2 t, + 1: d[4 j], d[4 j + 1] of the first row, then of the second. */

__device__ __forceinline__ void wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* After a wait: nothing that reads d moves before it. */
template <int N> __device__ __forceinline__ void settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define BL_TEN(x) "%" #x "0, %" #x "1, %" #x "2, %" #x "3, %" #x "4, %" #x "5, %" #x "6, %" #x "7, %" #x "8, %" #x "9"
#define BL_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BL_D8(i) BL_D4(i), BL_D4(i + 4)
#define BL_D16(i) BL_D8(i), BL_D8(i + 8)
#define BL_D32(i) BL_D16(i), BL_D16(i + 16)

/* Both operands in shared memory; keep: add to d, else d begins from zero. TB: B by columns. */
#define BL_WGMMA_SS(N, LIST, P0, P1, P2, P3, ...)                                                                                    \
    template <int TB> struct wgmma_ss<N, TB> {                                                                                       \
        static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b, int keep)                              \
        {                                                                                                                            \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                         \
                         "k16.f32.bf16.bf16 {" LIST "}, " P0 ", " P1 ", p, 1, 1, 0, " P3 ";\n}"                                      \
                         : __VA_ARGS__                                                                                               \
                         : "l"(a), "l"(b), "r"(keep), "n"(TB));                                                                      \
        }                                                                                                                            \
    };
template <int N, int TB> struct wgmma_ss;
BL_WGMMA_SS(32, BL_TEN() ", %10, %11, %12, %13, %14, %15", "%16", "%17", "%18", "%19", BL_D16(0))
BL_WGMMA_SS(64, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", %30, %31", "%32", "%33", "%34", "%35", BL_D32(0))
BL_WGMMA_SS(192, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", " BL_TEN(3) ", " BL_TEN(4) ", " BL_TEN(5) ", " BL_TEN(6) ", " BL_TEN(7) ", "
            BL_TEN(8) ", %90, %91, %92, %93, %94, %95", "%96", "%97", "%98", "%99", BL_D32(0), BL_D32(32), BL_D32(64))
BL_WGMMA_SS(128, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", " BL_TEN(3) ", " BL_TEN(4) ", " BL_TEN(5) ", %60, %61, %62, %63", "%64", "%65",
            "%66", "%67", BL_D32(0), BL_D32(32))
#undef BL_WGMMA_SS

/* A in registers: rows 16 w + g and + 8, elements 2 t, 2 t + 1 of K, then the same rows' 2 t + 8, + 9. */
#define BL_WGMMA_RS(N, LIST, A0, A1, A2, A3, B, KEEP, ...)                                                                           \
    template <> struct wgmma_rs<N> {                                                                                                 \
        static __device__ __forceinline__ void run(float (&d)[N / 2], const fragment_a &a, uint64_t b, int keep)                     \
        {                                                                                                                            \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                       \
                         "k16.f32.bf16.bf16 {" LIST "}, {" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 0;\n}"                     \
                         : __VA_ARGS__                                                                                               \
                         : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b), "r"(keep));                                   \
        }                                                                                                                            \
    };
template <int N> struct wgmma_rs;
BL_WGMMA_RS(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12", "%13", BL_D8(0))
BL_WGMMA_RS(24, BL_TEN() ", %10, %11", "%12", "%13", "%14", "%15", "%16", "%17", BL_D8(0), BL_D4(8))
BL_WGMMA_RS(32, BL_TEN() ", %10, %11, %12, %13, %14, %15", "%16", "%17", "%18", "%19", "%20", "%21", BL_D16(0))
BL_WGMMA_RS(64, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", %30, %31", "%32", "%33", "%34", "%35", "%36", "%37", BL_D32(0))
BL_WGMMA_RS(96, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", " BL_TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47", "%48", "%49", "%50",
            "%51", "%52", "%53", BL_D32(0), BL_D16(32))
BL_WGMMA_RS(128, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", " BL_TEN(3) ", " BL_TEN(4) ", " BL_TEN(5) ", %60, %61, %62, %63", "%64", "%65",
            "%66", "%67", "%68", "%69", BL_D32(0), BL_D32(32))
BL_WGMMA_RS(160, BL_TEN() ", " BL_TEN(1) ", " BL_TEN(2) ", " BL_TEN(3) ", " BL_TEN(4) ", " BL_TEN(5) ", " BL_TEN(6) ", " BL_TEN(7), "%80",
            "%81", "%82", "%83", "%84", "%85", BL_D32(0), BL_D32(32), BL_D16(64))
#undef BL_WGMMA_RS

} // namespace bl
#endif

#endif
