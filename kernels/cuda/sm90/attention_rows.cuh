/* Packed rows to bf16 in shared memory, and the warpgroups that do so for many tokens, a block of slots at a time. */
#ifndef BL_KERNELS_CUDA_SM90_ATTENTION_ROWS_CUH
#define BL_KERNELS_CUDA_SM90_ATTENTION_ROWS_CUH

#include "kernels/cuda/sm90/attention.cuh"

#ifdef BL_HOPPER
namespace bl {

/* 16 bytes of a row of a chunk, swizzled. */
__device__ __forceinline__ void put(uint32_t to, int slot, int unit, const uint2 &a, const uint2 &b)
{
    put_words(to + ((unit ^ slot % 8) << 4), a, b);
}

/* An e4m3 scale, which is a bf16 too, twice. */
__device__ __forceinline__ uint32_t latent_scale(uint32_t code)
{
    const uint32_t bits = (code & 0x80) << 8 | (code & 0x7f) << 4; /* times 2^-120 */
    return (code & 0x7f) == 0x7f ? 0x7fc07fc0 : mul_bf16x2(bits * 0x10001u, 0x7b807b80);
}

/* 64 columns of a slot's window row, with two scales, to its row in a chunk. */
__device__ __forceinline__ void decode_window_chunk(uint32_t to, int slot, const uint4 *codes, uint32_t scales)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t s = scale_bf16x2((uint8_t)(scales >> k / 2 * 8));
        put(to, slot, 2 * k, decode_fp8(codes[k].x, s), decode_fp8(codes[k].y, s));
        put(to, slot, 2 * k + 1, decode_fp8(codes[k].z, s), decode_fp8(codes[k].w, s));
    }
}

/* 64 columns of a slot's latents, with four scales. */
__device__ __forceinline__ void decode_latent_chunk(uint32_t to, int slot, const uint4 *codes, uint32_t scales)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t w[4] = {codes[k].x, codes[k].y, codes[k].z, codes[k].w};
#pragma unroll
        for (int h = 0; h < 2; h++) { /* 16 columns of a scale */
            const uint32_t s = latent_scale((uint8_t)(scales >> (2 * k + h) * 8));
            put(to, slot, 4 * k + 2 * h, decode_fp4(w[2 * h], s), decode_fp4(w[2 * h] >> 16, s));
            put(to, slot, 4 * k + 2 * h + 1, decode_fp4(w[2 * h + 1], s), decode_fp4(w[2 * h + 1] >> 16, s));
        }
    }
}

/* A thread's 128 columns of a packed row, of a window row one half; zeros of a hole. */
struct row_part {
    uint4 codes[4];
    uint2 scales;
};

__device__ __forceinline__ void load_codes(row_part &r, const uint8_t *codes)
{
#pragma unroll
    for (int k = 0; k < 4; k++) r.codes[k] = codes ? ((const uint4 *)codes)[k] : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void load_part(row_part &r, const uint8_t *row, bool window, int part)
{
    load_codes(r, row ? row + part * (window ? PART : PART / 2) : NULL);
    r.scales = make_uint2(0, 0);
    if (row && window) r.scales.x = *(const uint32_t *)(row + D + part * (PART / 32));
    else if (row) r.scales = *(const uint2 *)(row + D / 2 + part * (PART / 16));
}

/* to: the slot's row in the first of two chunks; row: for the second half. */
__device__ __forceinline__ void decode_window(uint32_t to, int slot, row_part &r, const uint8_t *row, int part)
{
    decode_window_chunk(to, slot, r.codes, r.scales.x);
    load_codes(r, row ? row + part * PART + PART / 2 : NULL);
    decode_window_chunk(to + CHUNK_BYTES, slot, r.codes, r.scales.x >> 16);
}

__device__ __forceinline__ void decode_latent(uint32_t to, int slot, const row_part &r)
{
    decode_latent_chunk(to, slot, r.codes, r.scales.x);
    decode_latent_chunk(to + CHUNK_BYTES, slot, r.codes + 2, r.scales.y);
}

__device__ __forceinline__ void clear_part(uint32_t to, int slot)
{
#pragma unroll
    for (int i = 0; i < 16; i++) put(to + i / 8 * CHUNK_BYTES, slot, i % 8, make_uint2(0, 0), make_uint2(0, 0));
}

/* A thread's row in a block of slots: what is selected is read three blocks ahead, its page looked up two, and its codes loaded when the
 * one before is written: nothing waits but for what was asked for a block earlier. */
struct row_finder {
    int turn, slot, entry; /* of the token's list, and what is selected there */
    token_rows rows;
};

struct found_row {
    const uint8_t *base; /* NULL: a hole */
    int offset;
};

__device__ __forceinline__ const uint8_t *row_of(const found_row &r)
{
    return r.base ? r.base + r.offset : NULL;
}

/* The row at the finder, which moves on. */
__device__ __forceinline__ found_row next_row(row_finder &f, const bl_cuda_attention &a, const bl_cuda_tables &tables, const turns &all)
{
    found_row r = {NULL, 0};
    if (f.turn >= all.count) return r;
    if (f.slot < a.window) {
        r.base = window_row(a, f.rows, f.slot);
    } else if (f.entry >= 0) {
        r.base = f.rows.pages[(unsigned)f.entry / PAGE].latents;
        r.offset = (unsigned)f.entry % PAGE * (int)latent_bytes(D);
    }
    f.slot += SLOTS;
    if (f.slot >= all.blocks * SLOTS) {
        f.slot %= SLOTS;
        f.turn += all.step;
        if (f.turn < all.count) f.rows = rows_of(a, tables, f.turn / all.tiles);
    }
    f.entry = f.turn < all.count ? selected_entry(a, f.turn / all.tiles, f.slot) : -1;
    return r;
}

__device__ __forceinline__ void decode_tokens(shared_state &sh, const bl_cuda_attention &a, const bl_cuda_tables &tables, uint32_t rows,
                                              const turns &all)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - 2 * GROUP / WARP;
    const int first = 8 * warp + lane % 8, part = lane / 8; /* eight lanes that store together have eight slots */
    const uint32_t to = rows + 2 * part * CHUNK_BYTES + first * SWIZZLE;
    row_finder finder = {all.first, first, selected_entry(a, all.first / all.tiles, first), rows_of(a, tables, all.first / all.tiles)};
    found_row found = next_row(finder, a, tables, all);
    const uint8_t *row = row_of(found);
    row_part now;
    int slot = first, buffer = 0, phase = 0;
    found = next_row(finder, a, tables, all);
    load_part(now, row, slot < a.window, part);
    for (int i = all.first; i < all.count;) {
        const bool any = __any_sync(~0u, row != NULL);
        barrier_wait(shared_address(&sh.empty[buffer]), phase ^ 1);
        if (!any) clear_part(to + buffer * ROW_BYTES, first);
        else if (slot < a.window) decode_window(to + buffer * ROW_BYTES, first, now, row, part);
        else decode_latent(to + buffer * ROW_BYTES, first, now);
        publish_shared();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&sh.full[buffer]));
        if (++buffer == BUFFERS) buffer = 0, phase ^= 1;
        slot += SLOTS;
        if (slot >= all.blocks * SLOTS) slot = first, i += all.step;
        row = row_of(found);
        found = next_row(finder, a, tables, all);
        load_part(now, row, slot < a.window, part);
    }
}

} // namespace bl
#endif

#endif
