/* As kernels/cuda/instructions.cuh, which says what each does: the same on the CPU. */
#ifndef BL_KERNELS_CUDA_INSTRUCTIONS_CUH
#define BL_KERNELS_CUDA_INSTRUCTIONS_CUH

#include "tests/emulate/intrinsics.cuh"

#define BL_DYNAMIC_SHARED(type, name, alignment) type *const name = (type *)emu::dynamic_memory()

namespace bl {

/* ---- numbers */

static inline uint32_t convert_bf16x2(float high, float low) { return emu::to_bf16(low) | (uint32_t)emu::to_bf16(high) << 16; }
static inline uint16_t convert_e4m3x2(float high, float low) { return (uint16_t)(emu::to_e4m3(low) | emu::to_e4m3(high) << 8); }
uint32_t mul_bf16x2(uint32_t a, uint32_t b);
static inline uint32_t mul_bf16x2_low(uint32_t a, uint32_t b) { return mul_bf16x2(a, (b & 0xffff) * 0x10001u); }
static inline uint32_t mul_bf16x2_high(uint32_t a, uint32_t b) { return mul_bf16x2(a, (b >> 16) * 0x10001u); }
uint32_t mul_f16x2(uint32_t a, uint32_t b);
/* Off by a unit of the last place as it happens. */
float approximate_reciprocal(float y);

/* ---- tensor core: tensor_core.cc */

struct fragment_a {
    uint32_t r[4];
};

void mma(float c[4], const fragment_a &a, uint2 b);
void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2,
             float c3);
uint32_t transpose_matrix(uint32_t v);

/* ---- shared memory by its addresses */

static inline uint32_t shared_address(const void *p) { return emu::shared_address(p); }
void load_matrices(uint32_t w[4], uint32_t at);
uint2 load_transposed(uint32_t at);

/* n bytes there, which hardware wants aligned to as many. */
static inline void *shared_bytes(uint32_t at, uint32_t n)
{
    if (at % n) emu::fail("uses a shared address that is not aligned");
    return emu::at(at);
}

static inline uint32_t shared_word(uint32_t at) { return *(const uint32_t *)shared_bytes(at, 4); }
static inline uint2 shared_pair(uint32_t at) { return *(const uint2 *)shared_bytes(at, 8); }
static inline uint4 shared_four(uint32_t at) { return *(const uint4 *)shared_bytes(at, 16); }
static inline float shared_float(uint32_t at) { return *(const float *)shared_bytes(at, 4); }
static inline void shared_floats(float (&v)[4], uint32_t at) { memcpy(v, shared_bytes(at, 16), 16); }
static inline void put_word(uint32_t at, uint32_t v) { *(uint32_t *)shared_bytes(at, 4) = v; }
static inline void put_words(uint32_t at, uint2 a, uint2 b) { *(uint4 *)shared_bytes(at, 16) = make_uint4(a.x, a.y, b.x, b.y); }
static inline void put_float(uint32_t at, float v) { *(float *)shared_bytes(at, 4) = v; }
static inline void put_floats(uint32_t at, const float (&v)[4]) { memcpy(shared_bytes(at, 16), v, 16); }

/* ---- global memory */

static inline uint2 global_pair(const uint16_t *from) { return *(const uint2 *)from; }
static inline uint32_t global_word(const uint16_t *from) { return *(const uint32_t *)from; }
static inline void prefetch(const void *) {}

/* ---- copies: copies.cc */

void copy_bytes(uint32_t to, const void *from, unsigned bytes, bool there);
static inline void copy_sixteen(uint32_t to, const void *from, bool there) { copy_bytes(to, from, 16, there); }
template <int N> static inline void copy_async(uint32_t to, const uint8_t *from) { copy_bytes(to, from, N, true); }
void copies_end_group(void);
void copies_wait(unsigned left);
template <int LEFT> static inline void copies_wait_for(void) { copies_wait(LEFT); }

/* ---- clusters */

static inline unsigned cluster_rank(void) { return emu::here.rank; }
static inline unsigned cluster_size(void) { return emu::here.cluster; }
static inline void cluster_arrive(void) { emu::cluster_arrive(); }
static inline void cluster_wait(void) { emu::cluster_wait(); }

static inline void cluster_sync(void)
{
    emu::cluster_arrive(true);
    emu::cluster_wait();
}

static inline int remote(const int *p, unsigned rank) { return *(const int *)emu::at(emu::map_address(shared_address(p), rank)); }
static inline void set_remote(int *p, unsigned rank, int v) { *(int *)emu::at(emu::map_address(shared_address(p), rank)) = v; }

/* ---- kernels that begin early: here none does, but one has to wait (launch.cuh) */

extern uint64_t waits_for_last; /* so far */
static inline void start_next(void) {}
static inline void wait_for_last(void) { waits_for_last++; }

} // namespace bl

#endif
