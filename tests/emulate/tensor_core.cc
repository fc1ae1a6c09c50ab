/* Instructions of a warp: products, and matrices of 8 x 8 elements of 16 bits. */
#include "kernels/cuda/instructions.cuh"
#include "tests/emulate/tensor.h"

namespace bl {

/* ---- numbers */

/* Of bf16, whose product is exact as a normal float32. */
static uint32_t half_product(uint32_t x, uint32_t y)
{
    const uint32_t u = emu::bits_of(emu::float_of(x << 16) * emu::float_of(y << 16)), field = u >> 23 & 255;
    if (field > 0 && field < 255) return (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return emu::to_bf16(emu::from_bf16((uint16_t)x) * emu::from_bf16((uint16_t)y));
}

uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    return half_product(a, b) | half_product(a >> 16, b >> 16) << 16;
}

uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    const auto half = [](uint32_t x, uint32_t y) { return emu::to_f16(emu::from_f16((uint16_t)x) * emu::from_f16((uint16_t)y)); };
    return half(a, b) | (uint32_t)half(a >> 16, b >> 16) << 16;
}

float approximate_reciprocal(float y)
{
    const float r = 1 / (fabsf(y) < 0x1p-126f ? copysignf(0, y) : y);
    if (!isnormal(r)) return fabsf(r) < 0x1p-126f ? copysignf(0, r) : r;
    return emu::float_of(emu::bits_of(r) + emu::below(3) - 1);
}

/* ---- products: lane 4 g + t has of A the elements 2 t, + 1 (then 2 t + 8, + 9) of rows g and g + 8, of B those of column g, of C
 * columns 2 t, + 1 of rows g and g + 8 */

struct operands {
    uint32_t a[4], b[2];
    float c[4];
};

static void multiply(const operands *in, float (*out)[4], emu::number kind)
{
    emu::columns_of_b b;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int k = lane % 4 * 2 + i % 2 + i / 2 * 8;
            emu::set_element(b, k, lane / 4, (uint16_t)(in[lane].b[i / 2] >> i % 2 * 16), kind);
        }
    for (int row = 0; row < 16; row++) {
        const int first = row % 8 * 4, high = row / 8;
        emu::row_of_a a;
        float c[8];
        for (int k = 0; k < 16; k++)
            emu::set_element(a, k, (uint16_t)(in[first + k % 8 / 2].a[high + k / 8 * 2] >> k % 2 * 16), kind);
        for (int j = 0; j < 8; j++) c[j] = in[first + j / 2].c[2 * high + j % 2];
        emu::step(c, a, b, kind);
        for (int j = 0; j < 8; j++) out[first + j / 2][2 * high + j % 2] = c[j];
    }
}

static void multiply_warp(const char *what, float d[4], const operands &in, emu::number kind)
{
    float out[4];
    emu::meet_warp(what, ~0u, &in, out, sizeof in, sizeof out,
                   [=](const void *i, void *o) { multiply((const operands *)i, (float(*)[4])o, kind); });
    memcpy(d, out, sizeof out);
}

void mma(float c[4], const fragment_a &a, uint2 b)
{
    multiply_warp("mma", c, {{a.r[0], a.r[1], a.r[2], a.r[3]}, {b.x, b.y}, {c[0], c[1], c[2], c[3]}}, emu::BF16);
}

void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2,
             float c3)
{
    multiply_warp("mma_f16", d, {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}}, emu::F16);
}

/* ---- matrices */

/* Elements 2 t and 2 t + 1 of column g of rows that lie word by word in lanes' order. */
static uint32_t from_column(const uint32_t words[32], int lane)
{
    const int g = lane / 4, row = lane % 4 * 2;
    const auto element = [&](int r) { return words[r * 4 + g / 2] >> g % 2 * 16 & 0xffff; };
    return element(row) | element(row + 1) << 16;
}

uint32_t transpose_matrix(uint32_t v)
{
    uint32_t out;
    emu::meet_warp("movmatrix", ~0u, &v, &out, sizeof v, sizeof out, [](const void *i, void *o) {
        for (int lane = 0; lane < 32; lane++) ((uint32_t *)o)[lane] = from_column((const uint32_t *)i, lane);
    });
    return out;
}

static void read_matrix(uint32_t words[32], const uint32_t rows[8])
{
    for (int r = 0; r < 8; r++) memcpy(words + 4 * r, shared_bytes(rows[r], 16), 16);
}

void load_matrices(uint32_t w[4], uint32_t at)
{
    uint32_t out[4];
    emu::meet_warp("ldmatrix", ~0u, &at, out, sizeof at, sizeof out, [](const void *i, void *o) {
        for (int m = 0; m < 4; m++) {
            uint32_t words[32];
            read_matrix(words, (const uint32_t *)i + 8 * m);
            for (int lane = 0; lane < 32; lane++) ((uint32_t *)o)[4 * lane + m] = words[lane];
        }
    });
    memcpy(w, out, sizeof out);
}

uint2 load_transposed(uint32_t at)
{
    uint2 out;
    emu::meet_warp("ldmatrix.trans", ~0u, &at, &out, sizeof at, sizeof out, [](const void *i, void *o) {
        for (int m = 0; m < 2; m++) {
            uint32_t words[32];
            read_matrix(words, (const uint32_t *)i + 8 * m);
            for (int lane = 0; lane < 32; lane++) ((uint32_t *)o)[2 * lane + m] = from_column(words, lane);
        }
    });
    return out;
}

} // namespace bl
