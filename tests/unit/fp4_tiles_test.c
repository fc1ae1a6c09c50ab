/* The order of fp4 weights for experts' kernels on a GPU: that it inverts, and that what the kernels make of it is the weight, to the bit. */
#include "kernels/cast.h"
#include "kernels/cuda/fp4_tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 2 * BL_TILE_ROWS, COLS = 3 * BL_TILE_COLS, LANES = 32, STEP = 16, STEPS = BL_TILE_COLS / STEP };

static uint32_t seed = 1;
static bl_cast_kernels cast;

static uint32_t any(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed ^ seed >> 15;
}

/* ---- words */

static void expect_word(uint32_t first, uint32_t second)
{
    uint32_t a, b;
    bl_fp4_tile_codes(bl_fp4_tile_word(first, second), &a, &b);
    assert_int_equal(a, first);
    assert_int_equal(b, second);
}

static void test_words_invert(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1 << 16; i++)
        for (int n = 0; n < 8; n++) {
            const uint32_t other = n == 0 ? 0 : n == 1 ? 0xffff : any() & 0xffff;
            expect_word(i, other);
            expect_word(other, i);
        }
    for (int n = 0; n < 1 << 20; n++) {
        const uint32_t word = any();
        uint32_t a, b;
        bl_fp4_tile_codes(word, &a, &b);
        assert_int_equal(bl_fp4_tile_word(a, b), word);
    }
}

/* ---- values */

static float from_bf16(uint32_t b)
{
    const uint32_t u = b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* A bf16 product that has to be exact, as the kernels' multiplications are. */
static uint32_t exact_product(uint32_t a, uint32_t b)
{
    const float f = from_bf16(a) * from_bf16(b);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    assert_int_equal(u & 0xffff, 0);
    return u >> 16;
}

/* One half of an operand's register with its scale: fp4_tiles.cuh, tile_scale and tile_step. */
static uint32_t value_of(uint32_t placed, uint32_t scale, bool small)
{
    const uint32_t up = BL_TILE_UP & 0xffff;
    if (small) return exact_product(placed, scale + up);
    return exact_product(exact_product(placed, up + 0x3f80), scale > 0x40 ? scale : 0x40);
}

/* The two codes of a byte in one of a word's places, among any others, with every scale: one and two multiplications. */
static void expect_byte(uint32_t byte, int place, uint32_t scale)
{
    const uint32_t shift = (uint32_t)place % 2 * 8, codes = (any() & 0xff00 >> shift) | byte << shift, other = any() & 0xffff;
    const int row = place / 2, block = (int)(any() % 2);
    const uint32_t word = row ? bl_fp4_tile_word(other, codes) : bl_fp4_tile_word(codes, other);
    const uint32_t scales = (any() & ~(0xffu << (row * 16 + block * 8))) | scale << (row * 16 + block * 8);
    const uint8_t one = (uint8_t)byte, by = (uint8_t)scale, row_codes[16] = {one};
    uint16_t want[32];
    uint32_t v[4];
    cast.fp4_row(want, row_codes, &by, 32);
    bl_fp4_tile_place(v, word);
    const uint32_t s = bl_fp4_tile_scales(scales, block) >> row * 16 & 0xffff, pair = v[place % 2 * 2 + row];
    assert_int_equal(s, scale << 7);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(value_of(pair >> 16 * i & 0xffff, s, false), want[i]);
        if (bl_fp4_tile_small(scale)) assert_int_equal(value_of(pair >> 16 * i & 0xffff, s, true), want[i]);
    }
}

static void test_values(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale < 255; scale++)
        for (uint32_t byte = 0; byte < 256; byte++)
            for (int place = 0; place < 4; place++) expect_byte(byte, place, scale);
    for (uint32_t i = 0; i < 256; i++)
        for (int b = 0; b < 32; b += 8) assert_int_equal(bl_fp4_tile_small(i << b), i < 128);
}

/* ---- whole weights */

typedef struct weight {
    uint8_t codes[ROWS * COLS / 2], scale[ROWS * COLS / 32];
} weight;

static weight stored, tiled;

static uint32_t pair_of(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static void make_weight(void)
{
    for (size_t i = 0; i < sizeof stored.codes; i++) stored.codes[i] = (uint8_t)any();
    for (size_t i = 0; i < sizeof stored.scale; i++) stored.scale[i] = (uint8_t)(any() % 255);
    for (int t = 0; t < ROWS / BL_TILE_ROWS; t++) {
        const uint8_t *codes = stored.codes + t * BL_TILE_ROWS * COLS / 2, *scale = stored.scale + t * BL_TILE_ROWS * COLS / 32;
        for (int i = 0; i < BL_TILE_ROWS * COLS / 8; i++) {
            const uint8_t *from = codes + bl_fp4_tile_from(i, COLS);
            const uint32_t word = bl_fp4_tile_word(pair_of(from), pair_of(from + BL_TILE_SECOND * COLS / 2));
            memcpy(tiled.codes + t * BL_TILE_ROWS * COLS / 2 + 4 * i, &word, sizeof word);
        }
        for (int i = 0; i < BL_TILE_ROWS * COLS / 32; i++)
            tiled.scale[t * BL_TILE_ROWS * COLS / 32 + i] = scale[bl_fp4_tile_scale_from(i, COLS)];
    }
}

/* Back to rows: every byte has one place. */
static void test_weight_inverts(void **state)
{
    static weight back;
    (void)state;
    make_weight();
    memset(&back, 0xa5, sizeof back);
    for (int t = 0; t < ROWS / BL_TILE_ROWS; t++) {
        uint8_t *codes = back.codes + t * BL_TILE_ROWS * COLS / 2, *scale = back.scale + t * BL_TILE_ROWS * COLS / 32;
        for (int i = 0; i < BL_TILE_ROWS * COLS / 8; i++) {
            uint32_t word, c[2];
            memcpy(&word, tiled.codes + t * BL_TILE_ROWS * COLS / 2 + 4 * i, sizeof word);
            bl_fp4_tile_codes(word, &c[0], &c[1]);
            for (int r = 0; r < 2; r++)
                for (int b = 0; b < 2; b++)
                    codes[bl_fp4_tile_from(i, COLS) + r * BL_TILE_SECOND * COLS / 2 + b] = (uint8_t)(c[r] >> 8 * b);
        }
        for (int i = 0; i < BL_TILE_ROWS * COLS / 32; i++)
            scale[bl_fp4_tile_scale_from(i, COLS)] = tiled.scale[t * BL_TILE_ROWS * COLS / 32 + i];
    }
    assert_memory_equal(&back, &stored, sizeof back);
}

/* What lane 4 g + t takes of a step, by the addresses of the kernels, is rows of the weight. */
static void expect_step(int tile, int segment, int step, int lane, const uint16_t *values)
{
    const int g = lane / 4, t = lane % 4, block = step / 2;
    const uint8_t *codes = tiled.codes + (tile * COLS / BL_TILE_COLS + segment) * BL_TILE_CODES;
    const uint8_t *scale = tiled.scale + (tile * COLS / BL_TILE_COLS + segment) * BL_TILE_SCALES;
    uint32_t word, scales, v[4];
    memcpy(&word, codes + step / 4 * LANES * 16 + lane * 16 + step % 4 * 4, sizeof word);
    memcpy(&scales, scale + g * 16 + block / 2 * 4, sizeof scales);
    bl_fp4_tile_place(v, word);
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            const int row = tile * BL_TILE_ROWS + bl_fp4_tile_row(g) + i % 2 * BL_TILE_SECOND;
            const int col = segment * BL_TILE_COLS + step * STEP + 4 * t + i / 2 * 2 + half;
            const uint32_t s = bl_fp4_tile_scales(scales, block) >> i % 2 * 16 & 0xffff;
            assert_int_equal(value_of(v[i] >> 16 * half & 0xffff, s, false), values[row * COLS + col]);
        }
}

static void test_steps(void **state)
{
    static uint16_t values[ROWS * COLS];
    (void)state;
    make_weight();
    for (int r = 0; r < ROWS; r++) cast.fp4_row(values + r * COLS, stored.codes + r * COLS / 2, stored.scale + r * COLS / 32, COLS);
    for (int tile = 0; tile < ROWS / BL_TILE_ROWS; tile++)
        for (int segment = 0; segment < COLS / BL_TILE_COLS; segment++)
            for (int step = 0; step < STEPS; step++)
                for (int lane = 0; lane < LANES; lane++) expect_step(tile, segment, step, lane, values);
}

static void test_which(void **state)
{
    (void)state;
    assert_true(bl_fp4_tiled(BL_W_FP4, 2304, 5120));
    assert_true(bl_fp4_tiled(BL_W_FP4, 16, BL_TILE_MOST_COLS));
    assert_false(bl_fp4_tiled(BL_W_FP4, 16, BL_TILE_MOST_COLS + 256));
    assert_false(bl_fp4_tiled(BL_W_FP4, 24, 256));
    assert_false(bl_fp4_tiled(BL_W_FP4, 32, 128));
    assert_false(bl_fp4_tiled(BL_W_FP8, 32, 256));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words_invert), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_weight_inverts), cmocka_unit_test(test_steps), cmocka_unit_test(test_which)};
    bl_cast_init(&cast, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
