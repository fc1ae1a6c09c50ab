/* Activation roundings and the packed rows of the caches. */
#include "kernels/cast.h"
#include "kernels/ops_variants.h"

enum { E8M0_NAN = 0xff, E4M3_NAN = 0x7f, BF16_NAN = 0x7fc0, BF16_INF = 0x7f80 };

/* Largest magnitude of n bf16, as bits: their order is that of the values, infinity and NaN above all. */
static unsigned amax_bits(const uint16_t *x, int64_t n)
{
    unsigned most = 0;
    for (int64_t i = 0; i < n; i++) {
        unsigned m = x[i] & 0x7fff;
        if (m > most) most = m;
    }
    return most;
}

/* Scale byte 2^ceil(log2(max(amax, least) * part)) of a group, E8M0_NAN for a group that is not all finite. */
static uint8_t power_scale(const uint16_t *x, int64_t n, float least, float part)
{
    unsigned bits = amax_bits(x, n);
    if (bits >= BF16_INF) return E8M0_NAN;
    float amax = bl_bf16_to_f32((uint16_t)bits);
    return bl_e8m0_ceil((amax > least ? amax : least) * part);
}

static uint8_t fp8_scale(const uint16_t *x)
{
    return power_scale(x, 32, 1e-4f, 1.0f / 448.0f);
}

static uint16_t scaled(float value, float scale)
{
    return scale == scale ? bl_f32_to_bf16(value * scale) : BF16_NAN;
}

void bl_round_fp8_c(uint16_t *y, const uint16_t *x, int64_t n)
{
    for (int64_t g = 0; g < n; g += 32) {
        float s = bl_e8m0_to_f32(fp8_scale(x + g));
        for (int64_t i = g; i < g + 32; i++)
            y[i] = scaled(bl_e4m3_to_f32(bl_f32_to_e4m3(bl_bf16_to_f32(x[i]) / s)), s);
    }
}

void bl_pack_window_c(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        uint8_t byte = row[d + g] = fp8_scale(x + 32 * g);
        float s = bl_e8m0_to_f32(byte);
        for (int64_t i = 32 * g; i < 32 * g + 32; i++)
            row[i] = byte == E8M0_NAN ? E4M3_NAN : bl_f32_to_e4m3(bl_bf16_to_f32(x[i]) / s);
    }
}

void bl_unpack_window_c(uint16_t *x, const uint8_t *row, int64_t d)
{
    for (int64_t i = 0; i < d; i++) x[i] = scaled(bl_e4m3_to_f32(row[i]), bl_e8m0_to_f32(row[d + i / 32]));
}

/* n values over scale s as e2m1 pairs, even element in the low nibble; all +0 when s is NaN. */
static void pack_e2m1(uint8_t *out, const uint16_t *x, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i += 2) {
        unsigned lo = bl_f32_to_e2m1(bl_bf16_to_f32(x[i]) / s), hi = bl_f32_to_e2m1(bl_bf16_to_f32(x[i + 1]) / s);
        out[i / 2] = s == s ? (uint8_t)(lo | hi << 4) : 0;
    }
}

static void unpack_e2m1(uint16_t *x, const uint8_t *in, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i++) x[i] = scaled(bl_e2m1_to_f32(in[i / 2] >> (i % 2 * 4) & 15), s);
}

/* The floor 6 * 2^-9 makes the smallest scale the smallest e4m3; unlike the other roundings this is a division by 6. */
static uint8_t latent_scale(const uint16_t *x)
{
    unsigned bits = amax_bits(x, 16);
    if (bits >= BF16_INF) return E4M3_NAN;
    float amax = bl_bf16_to_f32((uint16_t)bits), least = 6 * 0x1p-9f;
    return bl_f32_to_e4m3((amax > least ? amax : least) / 6.0f);
}

void bl_pack_latent_c(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 16; g++) {
        row[d / 2 + g] = latent_scale(x + 16 * g);
        pack_e2m1(row + 8 * g, x + 16 * g, 16, bl_e4m3_to_f32(row[d / 2 + g]));
    }
}

void bl_unpack_latent_c(uint16_t *x, const uint8_t *row, int64_t d)
{
    for (int64_t g = 0; g < d / 16; g++) unpack_e2m1(x + 16 * g, row + 8 * g, 16, bl_e4m3_to_f32(row[d / 2 + g]));
}

void bl_pack_index_c(uint8_t *row, const uint16_t *x, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) {
        row[d / 2 + g] = power_scale(x + 32 * g, 32, 6 * 0x1p-126f, 1.0f / 6.0f);
        pack_e2m1(row + 16 * g, x + 32 * g, 32, bl_e8m0_to_f32(row[d / 2 + g]));
    }
}

void bl_unpack_index_c(uint16_t *x, const uint8_t *row, int64_t d)
{
    for (int64_t g = 0; g < d / 32; g++) unpack_e2m1(x + 32 * g, row + 16 * g, 32, bl_e8m0_to_f32(row[d / 2 + g]));
}

void bl_to_bf16_c(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = bl_f32_to_bf16(x[i]);
}
