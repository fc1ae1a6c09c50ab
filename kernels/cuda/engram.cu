/* Rows of Engram tables, from wherever the GPU reaches them: its own memory, or pinned memory of the host. */
#include "kernels/cuda/device.cuh"

namespace bl {

enum {
    THREADS = 256, PART = 8 /* codes of a thread: a warp asks for a whole row of 256 at once */,
    EACH = 4 /* rows of a thread whose loads are under way together, where there are many */, MANY_PARTS = 1 << 20
};

/* Codes that are NaN, or the scale that is: as engram_rows_kernel. */
__device__ __noinline__ uint4 odd_part(uint2 w, uint8_t scale)
{
    const float s = e8m0(scale);
    uint32_t out[PART / 2];
    for (int k = 0; k < PART; k++) {
        const uint8_t c = (uint8_t)((k < 4 ? w.x : w.y) >> 8 * (k % 4));
        const float v = e4m3(c) * s;
        const uint32_t b = v == v ? to_bf16(v) : 0x7fc0u | (c & 0x80u) << 8;
        out[k / 2] = k % 2 ? out[k / 2] | b << 16 : b;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

__device__ __forceinline__ uint32_t nan_codes(uint32_t w)
{
    return ((w & 0x7f7f7f7f) + 0x01010101) & 0x80808080;
}

__device__ __forceinline__ uint4 decode_part(uint2 w, uint8_t scale)
{
    if ((nan_codes(w.x) | nan_codes(w.y)) != 0 || scale == 255) return odd_part(w, scale);
    const uint32_t s = scale_bf16x2(scale);
    const uint2 a = decode_fp8(w.x, s), b = decode_fp8(w.y, s);
    return make_uint4(a.x, a.y, b.x, b.y);
}

/* CUT: the table has held rows from first_row on. Others are zeros, and are not asked for. */
template <int N, bool CUT>
__global__ void __launch_bounds__(THREADS) engram_gather_kernel(uint16_t *e, const uint8_t *codes, const uint8_t *scale,
                                                                const int64_t *rows, uint32_t total, uint32_t width, int64_t first_row,
                                                                int64_t held)
{
    const uint32_t first = blockIdx.x * THREADS * N + threadIdx.x, parts = width / PART;
    uint2 w[N];
    uint8_t s[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const uint32_t i = first + k * THREADS < total ? first + k * THREADS : total - 1, at = i % parts * PART;
        const int64_t row = CUT ? rows[i / parts] - first_row : rows[i / parts];
        if (CUT && (uint64_t)row >= (uint64_t)held) {
            w[k] = make_uint2(0, 0);
            s[k] = 0;
            continue;
        }
        w[k] = *(const uint2 *)(codes + row * width + at);
        s[k] = scale[row * (width / 32) + at / 32];
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (first + k * THREADS < total) *(uint4 *)(e + (int64_t)(first + k * THREADS) * PART) = decode_part(w[k], s[k]);
}

template <bool CUT>
void gather(bl_cuda_stream s, uint16_t *e, const bl_cuda_table *t, const int64_t *rows, int64_t count)
{
    const uint32_t total = (uint32_t)(count * (t->width / PART)); /* a pass's rows: far below 2^32 */
    if (total == 0) return;
    const bool many = total >= MANY_PARTS;
    launch_plain(s, blocks_of(total, many ? THREADS * EACH : THREADS), THREADS, 0,
                 many ? engram_gather_kernel<EACH, CUT> : engram_gather_kernel<1, CUT>, e, t->codes, t->scale, rows, total,
                 (uint32_t)t->width, t->first, t->rows);
}

} // namespace bl

using namespace bl;

void bl_cuda_engram_gather(bl_cuda_stream s, uint16_t *e, const bl_cuda_table *t, const int64_t *rows, int64_t count)
{
    if (t->cut) gather<true>(s, e, t, rows, count);
    else gather<false>(s, e, t, rows, count);
}
