/* What nvcc knows by itself, for g++: qualifiers, the thread's place, and intrinsics. */
#ifndef BL_TESTS_EMULATE_INTRINSICS_CUH
#define BL_TESTS_EMULATE_INTRINSICS_CUH

#include "tests/emulate/engine.h"
#include "tests/emulate/numbers.h"

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __cluster_dims__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local /* a block of a cluster has those of an OS thread of its own */
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)

namespace emu {

static inline uint3 thread_at() { return {here.thread, 0, 0}; }
static inline uint3 block_at() { return {here.block[0], here.block[1], here.block[2]}; }
static inline uint3 block_size() { return {here.threads, 1, 1}; }
static inline uint3 grid_size() { return {here.grid[0], here.grid[1], here.grid[2]}; }

/* What lane source_of(lane) of a warp has; no lane: the calling one's own. */
template <class T, class F> static inline T from_lane(const char *what, unsigned mask, T x, F source_of)
{
    struct given {
        T x;
        int from;
    } in = {x, source_of((int)(here.thread % LANES))};
    T out;
    if (in.from >= 0 && in.from < LANES && !(mask >> in.from & 1)) fail("reads a lane that is not in the mask");
    meet_warp(what, mask, &in, &out, sizeof in, sizeof out, [=](const void *all_in, void *all_out) {
        const given *g = (const given *)all_in;
        for (int i = 0; i < LANES; i++)
            if (mask >> i & 1) ((T *)all_out)[i] = g[g[i].from < 0 || g[i].from >= LANES ? i : g[i].from].x;
    });
    return out;
}

/* f over what the lanes of the mask have, for all of them; start: what it begins with. */
template <class T, class F> static inline T over_lanes(const char *what, unsigned mask, T x, T start, F f)
{
    T out;
    meet_warp(what, mask, &x, &out, sizeof x, sizeof out, [=](const void *all_in, void *all_out) {
        T total = start;
        for (int i = 0; i < LANES; i++)
            if (mask >> i & 1) total = f(total, ((const T *)all_in)[i], i);
        for (int i = 0; i < LANES; i++) ((T *)all_out)[i] = total;
    });
    return out;
}

/* How many of the block's threads say so. */
static inline int count_block(const char *what, int x)
{
    const unsigned in = x != 0, threads = here.threads;
    int out;
    meet_block(what, &in, &out, sizeof in, sizeof out, [=](const void *all_in, void *all_out) {
        int n = 0;
        for (unsigned i = 0; i < threads; i++) n += ((const unsigned *)all_in)[i] != 0;
        for (unsigned i = 0; i < threads; i++) ((int *)all_out)[i] = n;
    });
    return out;
}

} // namespace emu

#define threadIdx (emu::thread_at())
#define blockIdx (emu::block_at())
#define blockDim (emu::block_size())
#define gridDim (emu::grid_size())

/* ---- meetings */

static inline void __syncthreads() { emu::barrier_sync(0, 0); }
static inline void __syncwarp(unsigned mask = ~0u) { emu::sync_warp(mask); }
static inline int __syncthreads_count(int x) { return emu::count_block("__syncthreads_count", x); }
static inline int __syncthreads_or(int x) { return emu::count_block("__syncthreads_or", x) > 0; }
static inline int __syncthreads_and(int x) { return emu::count_block("__syncthreads_and", x) == (int)emu::here.threads; }

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from)
{
    return emu::from_lane("__shfl_sync", mask, x, [=](int) { return from & 31; });
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int m)
{
    return emu::from_lane("__shfl_xor_sync", mask, x, [=](int lane) { return lane ^ m; });
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned d)
{
    return emu::from_lane("__shfl_up_sync", mask, x, [=](int lane) { return lane - (int)d; });
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned d)
{
    return emu::from_lane("__shfl_down_sync", mask, x, [=](int lane) { return lane + (int)d; });
}

static inline unsigned __ballot_sync(unsigned mask, int x)
{
    return emu::over_lanes<unsigned>("__ballot_sync", mask, x != 0, 0u, [](unsigned t, unsigned v, int i) { return t | v << i; });
}

static inline int __any_sync(unsigned mask, int x)
{
    return emu::over_lanes<int>("__any_sync", mask, x != 0, 0, [](int t, int v, int) { return t | v; });
}

static inline int __all_sync(unsigned mask, int x)
{
    return emu::over_lanes<int>("__all_sync", mask, x != 0, 1, [](int t, int v, int) { return t & v; });
}

template <class T> static inline T __reduce_add_sync(unsigned mask, T x)
{
    return emu::over_lanes<T>("__reduce_add_sync", mask, x, 0, [](T t, T v, int) { return t + v; });
}

template <class T> static inline T __reduce_max_sync(unsigned mask, T x)
{
    return emu::over_lanes<T>("__reduce_max_sync", mask, x, x, [](T t, T v, int) { return v > t ? v : t; });
}

template <class T> static inline T __reduce_min_sync(unsigned mask, T x)
{
    return emu::over_lanes<T>("__reduce_min_sync", mask, x, x, [](T t, T v, int) { return v < t ? v : t; });
}

template <class T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    unsigned out;
    emu::meet_warp("__match_any_sync", mask, &x, &out, sizeof x, sizeof out, [=](const void *all_in, void *all_out) {
        const T *v = (const T *)all_in;
        for (int i = 0; i < emu::LANES; i++)
            for (int j = 0; j < emu::LANES; j++)
                if (mask >> j & 1 && v[i] == v[j]) ((unsigned *)all_out)[i] |= 1u << j;
    });
    return out;
}

/* ---- memory */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T x) { *p = x; }

template <class T, class U> static inline T atomicAdd(T *p, U x)
{
    const T before = *p;
    *p = before + (T)x;
    return before;
}

template <class T, class U> static inline T atomicMax(T *p, U x)
{
    const T before = *p;
    if ((T)x > before) *p = (T)x;
    return before;
}

template <class T, class U> static inline T atomicOr(T *p, U x)
{
    const T before = *p;
    *p = before | (T)x;
    return before;
}

/* ---- numbers */

static inline unsigned __float_as_uint(float x) { return emu::bits_of(x); }
static inline int __float_as_int(float x) { return (int)emu::bits_of(x); }
static inline float __uint_as_float(unsigned u) { return emu::float_of(u); }
static inline float __int_as_float(int i) { return emu::float_of((unsigned)i); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }

/* The bit of a selector that spreads a sign has no effect. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return v;
}

static inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    const unsigned low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff, high = a >> 16 > b >> 16 ? a >> 16 : b >> 16;
    return high << 16 | low;
}

static inline unsigned __vcmpgtu4(unsigned a, unsigned b)
{
    unsigned v = 0;
    for (int i = 0; i < 32; i += 8) v |= (a >> i & 255) > (b >> i & 255) ? 255u << i : 0;
    return v;
}

template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

#endif
