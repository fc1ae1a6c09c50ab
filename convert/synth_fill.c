#include "convert/synth_fill.h"

#include "formats/names.h"
#include "kernels/cast.h"
#include "kernels/sampling_math.h"

#include <math.h>
#include <string.h>

/* Word i of a stream. */
static uint64_t word(uint64_t key, uint64_t i)
{
    return bl_splitmix64(key + i * 0x9E3779B97F4A7C15u);
}

/* Distribution function of the standard normal for |x| <= 4, by series. */
static double normal_cdf(double x)
{
    double power = 1, density = 1, term = x, sum = x, h = x * x / 2;
    for (int i = 1; i < 60; i++) { /* exp(-x^2/2) as 1 / exp(x^2/2): all terms positive */
        power *= h / i;
        density += power;
        term *= x * x / (2 * i + 1);
        sum += term;
    }
    return 0.5 + sum / density * 0.3989422804014327;
}

void bl_synth_normal_init(bl_synth_normal *n)
{
    for (int i = BL_SYNTH_LEVELS / 2; i < BL_SYNTH_LEVELS; i++) {
        double want = (i + 0.5) / BL_SYNTH_LEVELS, low = 0, high = 4;
        for (int k = 0; k < 50; k++) {
            double middle = (low + high) / 2;
            *(normal_cdf(middle) < want ? &low : &high) = middle;
        }
        n->level[i] = (float)low;
        n->level[BL_SYNTH_LEVELS - 1 - i] = -(float)low;
    }
}

/* Spread by the end of the name: mean, factor, and whether to divide by the square root of the input width. */
static const struct spread {
    const char *tail;
    float mean, factor;
    bool fan_in;
} spreads[] = {
    {"attn.attn_sink", 0, 1, false},
    {"attn.wq_b.weight", 0, 1.5f, true},
    {"attn.wo_b.weight", 0, 0.3f, true},
    {"hc_attn_base", 0, 1, false},
    {"hc_ffn_base", 0, 1, false},
    {"hc_attn_scale", 0.5f, 0.3f, false},
    {"hc_ffn_scale", 0.5f, 0.3f, false},
    {"ffn.gate.bias", 0, 0.1f, false},
    {"ffn.gate.bias_vl", 0, 0.1f, false},
    {".w2.weight", 0, 0.5f, true}, /* experts and the shared expert */
    {"engram.embed.weight", 0, 1, false},
    {"engram.wkv.weight", 0, 0.5f, true},
    {"engram.q_weight", 1, 0.2f, false},
    {"engram.k_weight", 1, 0.2f, false},
    {"norm.weight", 1, 0.2f, false}, /* every norm */
    {"markov_head.embed.weight", 0, 1, false},
    {".bias", 0, 0.1f, false},
};

static uint64_t width(const bl_slot *s)
{
    return s->ndim == 1 ? s->shape[0] : s->shape[1];
}

static bool is_fp4(const bl_slot *s)
{
    return s->kind == BL_SLOT_EXPERT;
}

/* Byte of the smallest power of two that is not below x. */
static int scale_byte(float x)
{
    int b = 127;
    for (; b > 10 && bl_e8m0_to_f32((uint8_t)(b - 1)) >= x; b--) {
    }
    for (; b < 240 && bl_e8m0_to_f32((uint8_t)b) < x; b++) {
    }
    return b;
}

bl_synth_source bl_synth_source_of(const bl_slot *s, bool scale, uint64_t seed, uint64_t index)
{
    struct spread d = {NULL, 0, 1, true};
    if (!strcmp(s->name, "embed.weight")) {
        d = (struct spread){NULL, 0, 4, false}; /* a dominant residual keeps end-to-end comparisons well conditioned */
    } else {
        for (size_t i = 0; i < sizeof spreads / sizeof *spreads; i++) {
            if (bl_ends_with(s->name, spreads[i].tail)) {
                d = spreads[i];
                break;
            }
        }
    }
    bl_synth_source out = {.slot = s, .scale = scale, .mean = d.mean, .key = bl_splitmix64(bl_splitmix64(seed) + index)};
    out.sigma = d.fan_in ? d.factor / sqrtf((float)width(s)) : d.factor;
    /* The largest of 32 normal values is about 2.1 sigma, of 1024 about 3.2; ours end at 2.7. */
    out.exponent = is_fp4(s) ? scale_byte(2.1f * out.sigma / 6) : scale_byte(2.9f * out.sigma / 448);
    return out;
}

/* Some blocks have the larger of the two scales, as their largest value happens to be larger. */
static unsigned block_bit(const bl_synth_source *s, uint64_t block)
{
    return (word(~s->key, block) & 7) < (is_fp4(s->slot) ? 3 : 1);
}

static void fill_scale(const bl_synth_source *s, uint64_t offset, uint64_t n, uint8_t *dst)
{
    for (uint64_t i = 0; i < n; i++) {
        dst[i] = (uint8_t)((unsigned)s->exponent + block_bit(s, offset + i));
    }
}

/* The code of each of 256 quantiles under both scales. */
static void code_tables(const bl_synth_source *s, const bl_synth_normal *normal, uint8_t tables[2][256])
{
    for (int bit = 0; bit < 2; bit++) {
        float scale = bl_e8m0_to_f32((uint8_t)(s->exponent + bit));
        for (int i = 0; i < 256; i++) {
            float x = normal->level[i * (BL_SYNTH_LEVELS / 256) + BL_SYNTH_LEVELS / 512] * s->sigma / scale;
            tables[bit][i] = is_fp4(s->slot) ? bl_f32_to_e2m1(x) : bl_f32_to_e4m3(x);
        }
    }
}

/* A word of the stream makes four packed bytes; a group of 32 values is 16 packed bytes. */
static void fill_fp4(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst)
{
    uint8_t tables[2][256];
    code_tables(s, normal, tables);
    for (uint64_t i = 0; i < n; i += 4) {
        const uint8_t *table = tables[block_bit(s, (offset + i) / 16)];
        uint64_t w = word(s->key, (offset + i) / 4);
        for (unsigned k = 0; k < 4; k++, w >>= 16) {
            dst[i + k] = (uint8_t)(table[w & 255] | table[w >> 8 & 255] << 4);
        }
    }
}

/* A word makes eight codes. tall: 32x32 blocks, else 1x32. */
static void fill_fp8(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst)
{
    uint8_t tables[2][256];
    code_tables(s, normal, tables);
    uint64_t cols = s->slot->shape[1], per_row = bl_pieces(cols, 32), row = offset / cols, col = offset % cols, w = 0;
    bool tall = s->slot->kind == BL_SLOT_DENSE;
    const uint8_t *table = tables[block_bit(s, (tall ? row / 32 : row) * per_row + col / 32)];
    for (uint64_t i = 0; i < n; i++, w >>= 8) {
        if (i % 8 == 0) {
            w = word(s->key, (offset + i) / 8);
        }
        if (col == cols) {
            col = 0;
            row++;
        }
        if (col % 32 == 0) {
            table = tables[block_bit(s, (tall ? row / 32 : row) * per_row + col / 32)];
        }
        col++;
        dst[i] = table[w & 255];
    }
}

/* A word makes four values. */
static void fill_bf16(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst)
{
    uint64_t first = offset / 2, w = 0;
    for (uint64_t i = 0; i < n / 2; i++, w >>= 16) {
        if (i % 4 == 0) {
            w = word(s->key, (first + i) / 4);
        }
        uint16_t v = bl_f32_to_bf16(s->mean + s->sigma * normal->level[w % BL_SYNTH_LEVELS]);
        memcpy(dst + 2 * i, &v, sizeof v);
    }
}

static void fill_f32(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst)
{
    uint64_t first = offset / 4, w = 0;
    for (uint64_t i = 0; i < n / 4; i++, w >>= 16) {
        if (i % 4 == 0) {
            w = word(s->key, (first + i) / 4);
        }
        float v = s->mean + s->sigma * normal->level[w % BL_SYNTH_LEVELS];
        memcpy(dst + 4 * i, &v, sizeof v);
    }
}

void bl_synth_fill(const bl_synth_source *s, const bl_synth_normal *normal, uint64_t offset, uint64_t n, uint8_t *dst)
{
    if (s->scale) {
        fill_scale(s, offset, n, dst);
        return;
    }
    switch (s->slot->kind) {
    case BL_SLOT_F32:
        fill_f32(s, normal, offset, n, dst);
        break;
    case BL_SLOT_BF16:
        fill_bf16(s, normal, offset, n, dst);
        break;
    case BL_SLOT_EXPERT:
        fill_fp4(s, normal, offset, n, dst);
        break;
    default:
        fill_fp8(s, normal, offset, n, dst);
    }
}
