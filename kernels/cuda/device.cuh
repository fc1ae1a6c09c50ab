/* What the kernels share: numbers, sums in fixed orders, the tensor core step. Everything here rounds as written: the folder is
 * compiled without contraction, and without flushing subnormals. */
#ifndef BL_KERNELS_CUDA_DEVICE_CUH
#define BL_KERNELS_CUDA_DEVICE_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/fmath.h"
#include "kernels/ops.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace bl {

enum { S = 4 /* residual streams */, PAGE = 64, WARP = 32 };

/* On the host: blocks for n items, so many each; multiprocessors of the current device. */
static inline unsigned blocks_of(int64_t n, int64_t each) { return (unsigned)((n + each - 1) / each); }
int processor_count(void);

__device__ __forceinline__ float from_bf16(uint16_t b)
{
    return __uint_as_float((uint32_t)b << 16);
}

/* As in kernels/ops.h, for device code. */
__host__ __device__ __forceinline__ int64_t window_bytes(int64_t d) { return d + d / 32; }
__host__ __device__ __forceinline__ int64_t latent_bytes(int64_t d) { return d / 2 + d / 16; }
__host__ __device__ __forceinline__ int64_t index_bytes(int64_t d) { return d / 2 + d / 32; }

/* Units of experts by the columns that their product takes: 16, 32, 64, 96, 128 or 160. */
enum { UNIT_CLASSES = 6 };
__device__ __forceinline__ int unit_class(int tokens) { return tokens <= 16 ? 0 : (tokens + 31) / 32; }

/* Nearest even; NaN becomes 0x7FC0 with its sign. */
__device__ __forceinline__ uint16_t to_bf16(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 & 0x8000 | 0x7fc0);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Two at once, low half first. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    const uint32_t v = convert_bf16x2(high, low);
    return low == low && high == high ? v : to_bf16(low) | (uint32_t)to_bf16(high) << 16;
}

__device__ __forceinline__ float e8m0(uint8_t b)
{
    return b == 255 ? __uint_as_float(0x7fc00000) : __uint_as_float(b ? (uint32_t)b << 23 : 0x00400000u);
}

__device__ __forceinline__ float e4m3(uint8_t c)
{
    const uint32_t e = c >> 3 & 15, m = c & 7;
    if ((c & 127) == 127) return __uint_as_float(0x7fc00000 | (uint32_t)(c & 128) << 24);
    const float v = e ? __uint_as_float((e + 120) << 23 | m << 20) : (float)m * 0x1p-9f;
    return c & 128 ? -v : v;
}

/* Saturating, nearest even, NaN 0x7F with the sign: the conversion of the hardware. */
__device__ __forceinline__ uint8_t to_e4m3(float x)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint8_t)(u >> 24 & 0x80 | 0x7f);
    return (uint8_t)convert_e4m3x2(0, x);
}

__device__ __forceinline__ float e2m1(unsigned c)
{
    const unsigned m = c & 7;
    const float v = m < 2 ? 0.5f * (float)m : __uint_as_float(((m >> 1) + 126) << 23 | (m & 1) << 22);
    return c & 8 ? -v : v;
}

/* Ties to even; keeps the sign of zero; clamps to 6. NaN gives 0 with its sign. */
__device__ __forceinline__ unsigned to_e2m1(float x)
{
    const float a = fabsf(x);
    const unsigned sign = __float_as_uint(x) >> 28 & 8;
    unsigned c = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return sign | c;
}

/* Byte of 2^ceil(log2 r): as bl_e8m0_ceil. */
__device__ __forceinline__ uint8_t e8m0_ceil(float r)
{
    const uint32_t u = __float_as_uint(r), e = (u >> 23) + ((u & 0x7fffff) != 0);
    return (uint8_t)(e < 1 ? 1 : e > 254 ? 254 : e);
}

/* Largest of a value over 16 or 32 lanes that hold a group. */
template <int LANES> __device__ __forceinline__ unsigned group_max(unsigned x)
{
    for (int m = LANES / 2; m; m /= 2) {
        const unsigned y = __shfl_xor_sync(~0u, x, m);
        x = y > x ? y : x;
    }
    return x;
}

/* Scale byte of a group of 32 bf16 with the largest magnitude `most`: see power_scale in ops_round.c. 255: not all finite. */
__device__ __forceinline__ uint8_t scale_of(unsigned most, float least, float part)
{
    if (most >= 0x7f80) return 255;
    const float amax = from_bf16((uint16_t)most);
    return e8m0_ceil((amax > least ? amax : least) * part);
}

__device__ __forceinline__ uint8_t group_scale(uint16_t x, float least, float part)
{
    return scale_of(group_max<32>(x & 0x7fff), least, part);
}

__device__ __forceinline__ uint8_t fp8_scale(uint16_t x)
{
    return group_scale(x, 1e-4f, 1.0f / 448.0f);
}

__device__ __forceinline__ uint16_t scaled(float value, float scale)
{
    return scale == scale ? to_bf16(value * scale) : (uint16_t)0x7fc0;
}

/* The fp8 rounding of one element of a group, all lanes of a warp taking part. */
__device__ __forceinline__ uint16_t rounded_fp8(uint16_t x)
{
    const float s = e8m0(fp8_scale(x));
    return scaled(e4m3(to_e4m3(from_bf16(x) / s)), s);
}

/* Tree over 16 lanes: l + (l+8), l + (l+4), ... in every lane of the half warp. */
__device__ __forceinline__ float lane_tree(float v)
{
    for (int m = 8; m; m /= 2) v = v + __shfl_xor_sync(~0u, v, m);
    return v;
}

/* Sum over a row of n elements in the order of cuda.h, by a whole block; term(i, sum) adds element i. sums: shared,
 * [BL_CUDA_MAX_ROW / BL_CUDA_ROW_SEGMENT]. Every thread gets the result. */
template <class F> __device__ __forceinline__ float row_sum(float *sums, int64_t n, F term)
{
    const int lane = threadIdx.x % 16, group = threadIdx.x / 16, groups = blockDim.x / 16;
    const int segments = (int)((n + BL_CUDA_ROW_SEGMENT - 1) / BL_CUDA_ROW_SEGMENT);
    for (int base = 0; base < segments; base += groups) {
        const int64_t from = (int64_t)(base + group) * BL_CUDA_ROW_SEGMENT;
        const int64_t to = from + BL_CUDA_ROW_SEGMENT < n ? from + BL_CUDA_ROW_SEGMENT : n;
        float v = 0;
#pragma unroll 8
        for (int64_t i = from + lane; i < to; i += 16) v = term(i, v);
        v = lane_tree(v);
        if (lane == 0 && base + group < segments) sums[base + group] = v;
    }
    __syncthreads();
    float total = 0;
    for (int i = 0; i < segments; i++) total += sums[i];
    __syncthreads();
    return total;
}

enum { ROW_SUMS = BL_CUDA_MAX_ROW / BL_CUDA_ROW_SEGMENT };

/* One pair of a rotation: see bl_rope_c. */
__device__ __forceinline__ void rotate(uint16_t &x, uint16_t &y, float c, float s)
{
    const float a = from_bf16(x), b = from_bf16(y);
    x = to_bf16(a * c - b * s);
    y = to_bf16(a * s + b * c);
}

/* Pair i of token t's queries q [tokens, heads, d], of heads * R / 2; rotation [tokens][R / 2][2]. */
__device__ __forceinline__ void rotate_query(uint16_t *q, const float *rotation, int64_t heads, int64_t d, int64_t R, int64_t t, int64_t i)
{
    const int64_t half = R / 2;
    if (i >= heads * half) return;
    uint16_t *v = q + (t * heads + i / half) * d + (d - R) + 2 * (i % half);
    const float2 cs = ((const float2 *)(rotation + t * R))[i % half];
    uint32_t pair = *(uint32_t *)v;
    uint16_t a = (uint16_t)pair, b = (uint16_t)(pair >> 16);
    rotate(a, b, cs.x, cs.y);
    *(uint32_t *)v = a | (uint32_t)b << 16;
}

/* cos and sin of position * f as runtime/rope.h defines them. */
__device__ __forceinline__ float2 rotation_of(int64_t position, float f)
{
    const double angle = (double)((float)position * f);
    return make_float2((float)cos(angle), (float)sin(angle));
}

/* The sum of x of this lane and all before it in the warp. */
template <class T> __device__ __forceinline__ T warp_scan(T x)
{
    const int lane = threadIdx.x % WARP;
    for (int d = 1; d < WARP; d *= 2) {
        const T y = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += y;
    }
    return x;
}

/* ---- kernels that begin early (instructions.cuh) */

/* For kernels that have nothing to do before: the next one begins early, but not before this one could. */
__device__ __forceinline__ void take_over(void)
{
    wait_for_last();
    start_next();
}

/* On the host: start a kernel that begins early, or not. */
template <class... P, class... A>
static void launch_early(bool early, cudaStream_t s, dim3 grid, int threads, int64_t bytes, void (*kernel)(P...), A... args)
{
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    launch_with(&attribute, early ? 1 : 0, s, grid, threads, bytes, kernel, args...);
}

/* ... in clusters of so many blocks; early: one that begins early. */
template <class... P, class... A>
static void launch_clusters(bool early, unsigned blocks, cudaStream_t s, unsigned clusters, int threads, int64_t bytes,
                            void (*kernel)(P...), A... args)
{
    cudaLaunchAttribute attribute[2];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = blocks;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[1].val.programmaticStreamSerializationAllowed = 1;
    launch_with(attribute, early ? 2 : 1, s, dim3(clusters * blocks), threads, bytes, kernel, args...);
}

/* ---- codes and scales as bf16 */

/* A scale byte as two equal bf16. */
__device__ __forceinline__ uint32_t scale_bf16x2(uint8_t b)
{
    const uint32_t v = b == 255 ? 0x7fc0u : b ? (uint32_t)b << 7 : 0x40u;
    return v | v << 16;
}

/* Four e4m3 codes as bf16 that are their values times 2^-120: the codes' bits in their place. NaN codes are no legal weights and
 * come out as 480. */
__device__ __forceinline__ uint2 place_fp8(uint32_t w)
{
    const uint32_t lo = __byte_perm(w, 0, 0x1404), hi = __byte_perm(w, 0, 0x3424); /* codes in the upper bytes of halves */
    return make_uint2((lo & 0x80008000) | (lo >> 4 & 0x07f007f0), (hi & 0x80008000) | (hi >> 4 & 0x07f007f0));
}

/* Four e4m3 codes times a scale as bf16. */
__device__ __forceinline__ uint2 decode_fp8(uint32_t w, uint32_t scale)
{
    const uint2 v = place_fp8(w);
    const uint32_t up = 0x7b807b80; /* 2^120 */
    return make_uint2(mul_bf16x2(mul_bf16x2(v.x, up), scale), mul_bf16x2(mul_bf16x2(v.y, up), scale));
}

/* Four e2m1 codes (low 16 bits of w) times a scale as bf16: the upper and lower bytes of their values from tables, signs put into the
 * upper bytes. */
__device__ __forceinline__ uint2 decode_fp4(uint32_t w, uint32_t scale)
{
    const uint32_t pick = w & 0x7777, twice = __byte_perm(w, 0, 0x1100); /* each byte of codes twice */
    const uint32_t sign = (twice & 0x80008000) | (twice << 4 & 0x00800080);
    const uint32_t high = __byte_perm(0x3f3f3f00, 0x40404040, pick) | sign, low = __byte_perm(0xc0800000, 0xc0804000, pick);
    return make_uint2(mul_bf16x2(__byte_perm(low, high, 0x5140), scale), mul_bf16x2(__byte_perm(low, high, 0x7362), scale));
}

/* ---- scales of a segment's eight blocks */

__device__ __forceinline__ uint32_t block_byte(uint2 v, int b)
{
    return (b < 4 ? v.x : v.y) >> b % 4 * 8 & 255;
}

/* The scale of block b as two bf16. Byte 255, which no weight has, becomes infinity. */
__device__ __forceinline__ uint32_t block_scale(uint2 v, int b)
{
    const uint32_t s = block_byte(v, b) * 0x00800080u;
    return s > 0x00400040u ? s : 0x00400040u;
}

/* Scales up to here leave room for the factor 2^120 of place_fp8. */
enum { SMALL_SCALE = 134 };

__device__ __forceinline__ bool all_small(uint2 v)
{
    return (__vcmpgtu4(v.x, SMALL_SCALE * 0x01010101u) | __vcmpgtu4(v.y, SMALL_SCALE * 0x01010101u)) == 0;
}

/* Four codes with the scale of block b; SMALL: one multiplication does it. */
template <bool SMALL> __device__ __forceinline__ uint2 block_fp8(uint32_t w, uint2 scale, int b)
{
    if (!SMALL) return decode_fp8(w, block_scale(scale, b));
    const uint32_t s = block_byte(scale, b) * 0x00800080u + 0x3c003c00u; /* 2^120 in the exponent */
    const uint2 v = place_fp8(w);
    return make_uint2(mul_bf16x2(v.x, s), mul_bf16x2(v.y, s));
}

/* Of the 4 x 4 words that four neighbouring lanes hold, lane t's row t: afterwards its column t. */
__device__ __forceinline__ void transpose4(uint32_t w[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    if (odd) w[0] = a, w[2] = b;
    else w[1] = a, w[3] = b;
    const uint32_t c = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2), d = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
    if (high) w[0] = c, w[1] = d;
    else w[2] = c, w[3] = d;
}

} // namespace bl

#endif
