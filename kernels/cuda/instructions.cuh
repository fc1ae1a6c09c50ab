/* Instructions that C++ has no name for, one function each, and dynamic shared memory. Nothing else of this folder but
 * sm90/instructions.cuh has assembly. */
#ifndef BL_KERNELS_CUDA_INSTRUCTIONS_CUH
#define BL_KERNELS_CUDA_INSTRUCTIONS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* The block's dynamic shared memory as elements of a type, aligned. */
#define BL_DYNAMIC_SHARED(type, name, alignment) extern __shared__ __align__(alignment) type name[]

namespace bl {

/* ---- numbers: to nearest even, subnormal ones as they are */

/* Two at once, the first in the upper half. NaN becomes 0x7FFF. */
__device__ __forceinline__ uint32_t convert_bf16x2(float high, float low)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* Saturating. NaN becomes 0x7F. */
__device__ __forceinline__ uint16_t convert_e4m3x2(float high, float low)
{
    uint16_t v;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(v) : "f"(high), "f"(low));
    return v;
}

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* By one half of b. */
__device__ __forceinline__ uint32_t mul_bf16x2_low(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n.reg .b16 l, h;\n.reg .b32 p;\nmov.b32 {l, h}, %2;\nmov.b32 p, {l, l};\nmul.rn.bf16x2 %0, %1, p;\n}" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t mul_bf16x2_high(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{\n.reg .b16 l, h;\n.reg .b32 p;\nmov.b32 {l, h}, %2;\nmov.b32 p, {h, h};\nmul.rn.bf16x2 %0, %1, p;\n}" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* 1 / y within one unit of the last place. */
__device__ __forceinline__ float approximate_reciprocal(float y)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    return r;
}

/* ---- tensor core */

struct fragment_a {
    uint32_t r[4];
};

/* c += A B, one k16 step. A thread's registers hold of rows g and g + 8 of A and of column g of B the elements 4t .. 4t+3: the
 * order within a step changes nothing (dot.h). */
__device__ __forceinline__ void mma(float c[4], const fragment_a &a, uint2 b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.x), "r"(b.y));
}

/* d = c + A B of fp16. */
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                                        float c0, float c1, float c2, float c3)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

/* Of 8 x 8 elements of 16 bits, lane 4 g + t has 2 t and 2 t + 1 of row g: afterwards of column g. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t v)
{
    uint32_t d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}

/* ---- shared memory by its addresses */

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Matrices of 8 rows of 16 bytes: lane 8 i + r says where row r of the i-th is; lane 4 g + t gets word t of row g of each. */
__device__ __forceinline__ void load_matrices(uint32_t w[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(at) : "memory");
}

/* Two of 8 x 8 elements, from the first 16 lanes' addresses, transposed: elements 2 t and 2 t + 1 of column g. */
__device__ __forceinline__ uint2 load_transposed(uint32_t at)
{
    uint2 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint32_t shared_word(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 shared_pair(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint4 shared_four(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

__device__ __forceinline__ float shared_float(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void shared_floats(float (&v)[4], uint32_t at)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void put_word(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

__device__ __forceinline__ void put_words(uint32_t at, uint2 a, uint2 b)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y) : "memory");
}

__device__ __forceinline__ void put_float(uint32_t at, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}

__device__ __forceinline__ void put_floats(uint32_t at, const float (&v)[4])
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

/* ---- global memory */

/* Not to be moved above a wait for what writes it; also global_word. */
__device__ __forceinline__ uint2 global_pair(const uint16_t *from)
{
    uint2 v;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t global_word(const uint16_t *from)
{
    uint32_t v;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* ---- copies from global to shared memory that run beside the program */

/* Sixteen bytes; zeros where they are not there (from must be an address all the same). */
__device__ __forceinline__ void copy_sixteen(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* Sixteen, eight or four, and no more to the L2 cache. */
template <int N> __device__ __forceinline__ void copy_async(uint32_t to, const uint8_t *from)
{
    if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(N) : "memory");
}

__device__ __forceinline__ void copies_end_group(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most so many of this thread's newest groups are under way. */
template <int LEFT> __device__ __forceinline__ void copies_wait_for(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- clusters of blocks; alone, a block is a cluster of one */

__device__ __forceinline__ unsigned cluster_rank(void)
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ unsigned cluster_size(void)
{
    unsigned n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

/* cluster_sync in two, for barriers in shared memory that have been initialised (and fenced) only: their first use elsewhere is behind
 * the second. Other memory is not ordered, which would cost a wait for all of it. */
__device__ __forceinline__ void cluster_arrive(void) { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The word at the same place in another block. */
__device__ __forceinline__ int remote(const int *p, unsigned rank)
{
    int v;
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.b32 %0, [at];\n}"
                 : "=r"(v) : "r"(shared_address(p)), "r"(rank) : "memory");
    return v;
}

__device__ __forceinline__ void set_remote(int *p, unsigned rank, int v)
{
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nst.shared::cluster.b32 [at], %2;\n}"
                 :: "r"(shared_address(p)), "r"(rank), "r"(v) : "memory");
}

/* ---- kernels that begin early (programmatic dependent launches): the next one in the stream may be set up from here on; and what
 * the one before has written is there from here on. A kernel that was launched so must wait, whatever it reads. */

__device__ __forceinline__ void start_next(void) { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void wait_for_last(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }

} // namespace bl

#endif
