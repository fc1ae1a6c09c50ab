/* The linear product: the reference against the definition in linear.h written out once more, then every variant against the
 * reference, bit for bit, over kinds of weight, shapes, row ranges, numbers of tokens and sizes of values. */
#include "tests/check/check.h"

#include "kernels/cast.h"
#include "kernels/cpu.h"
#include "kernels/linear_variants.h"

#include <math.h>
#include <string.h>

static const struct {
    bl_weight_kind kind;
    const char *name;
    int scale_lo, scale_hi; /* legal */
} kinds[] = {
    {BL_W_BF16, "bf16", 0, 0},
    {BL_W_FP8, "fp8", BL_FP8_SCALE_MIN, BL_FP8_SCALE_MAX},
    {BL_W_FP4, "fp4", BL_FP4_SCALE_MIN, BL_FP4_SCALE_MAX},
    {BL_W_F32, "f32", 0, 0},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* How large the values are. TINY products and sums are subnormal or vanish, MIXED ones are anything that stays finite: a
 * variant that flushes subnormals, or scales the wrong operand, differs from the reference there. PATCHY weights are tiny in one
 * range of columns and usual elsewhere, where x of every second token is zero: sums that are subnormal for a while. */
typedef enum spread { USUAL, TINY, MIXED, PATCHY, SPREADS } spread;
static const char *const spread_names[] = {"usual", "tiny", "mixed", "patchy"};

typedef struct values {
    spread s;
    int64_t from, to; /* the patch */
} values;

static values random_values(check *c, spread s, int64_t cols)
{
    values v = {.s = s};
    if (s != PATCHY) return v;
    v.from = 32 * check_below(c, cols / 32);
    v.to = v.from + 32 * (1 + check_below(c, (cols - v.from) / 32));
    return v;
}

static spread spread_at(values v, int64_t col)
{
    return v.s != PATCHY ? v.s : col >= v.from && col < v.to ? TINY : USUAL;
}

static int between(check *c, int lo, int hi)
{
    return lo + (int)check_below(c, hi - lo + 1);
}

/* Random finite bits with an exponent field in [lo, hi]. */
static uint32_t random_bits(check *c, int lo, int hi)
{
    return (uint32_t)(check_random(c) & 0x807fffff) | (uint32_t)between(c, lo, hi) << 23;
}

static uint8_t random_scale(check *c, spread s, int lo, int hi)
{
    static const int usual[] = {104, 124};
    int a = s == USUAL ? usual[0] : lo, b = s == USUAL ? usual[1] : s == TINY ? lo + 40 : hi;
    return (uint8_t)(check_below(c, 16) ? between(c, a, b) : s == USUAL ? a : check_below(c, 2) ? a : b);
}

/* Exponents such that a sum of products stays finite. */
static uint32_t random_weight(check *c, spread s)
{
    return s == USUAL ? random_bits(c, 120, 128) : random_bits(c, 0, s == TINY ? 70 : 140);
}

static uint16_t random_activation(check *c, values v, int64_t token, int64_t col)
{
    if (v.s == PATCHY && token % 2 && spread_at(v, col) == USUAL) return 0;
    if (!check_below(c, 12)) return (uint16_t)(col % 2 << 15); /* zeros of either sign */
    int lo = v.s == USUAL || v.s == PATCHY ? 120 : 0, hi = v.s == TINY ? 70 : v.s == MIXED ? 100 : 128;
    return (uint16_t)(random_bits(c, lo, hi) >> 16);
}

enum { GAP = 3 }; /* elements between the rows of y and of x that a kernel must leave alone */

static uint16_t *random_x(check *c, int64_t T, int64_t cols, values v)
{
    int64_t ldx = cols + GAP;
    uint16_t *x = check_buffer(c, (size_t)((T - 1) * ldx + cols) * 2, 2);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < cols; i++) x[t * ldx + i] = random_activation(c, v, t, i);
    return x;
}

static const uint8_t *random_scales(check *c, int kind, int64_t rows, int64_t cols, values v)
{
    int64_t blocks = cols / 32, n = kinds[kind].kind == BL_W_FP8 ? (rows + 31) / 32 * blocks : rows * blocks;
    uint8_t *p = check_buffer(c, (size_t)n, 1);
    for (int64_t i = 0; i < n; i++)
        p[i] = random_scale(c, spread_at(v, i % blocks * 32), kinds[kind].scale_lo, kinds[kind].scale_hi);
    return p;
}

static bl_matrix random_matrix(check *c, int kind, int64_t rows, int64_t cols, values v)
{
    bl_matrix w = {.kind = kinds[kind].kind, .rows = rows, .cols = cols};
    int64_t n = rows * cols;
    size_t bytes = (size_t)(w.kind == BL_W_BF16 ? n * 2 : w.kind == BL_W_FP8 ? n : w.kind == BL_W_FP4 ? n / 2 : n * 4);
    uint8_t *p = check_buffer(c, bytes, w.kind == BL_W_F32 ? 4 : w.kind == BL_W_BF16 ? 2 : 1);
    w.codes = p;
    if (kinds[kind].scale_hi) {
        check_random_bytes(c, p, bytes);
        for (size_t i = 0; w.kind == BL_W_FP8 && i < bytes; i++)
            if ((p[i] & 0x7f) == 0x7f) p[i] ^= 1;
        w.scale = random_scales(c, kind, rows, cols, v);
        return w;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = random_weight(c, spread_at(v, i % cols));
        if (w.kind == BL_W_F32) memcpy(p + 4 * i, &u, 4);
        else memcpy(p + 2 * i, (uint16_t[]){(uint16_t)(u >> 16)}, 2);
    }
    return w;
}

/* ---- the definition once more: element i of a row belongs to lane i / 2 % 16 */

static float weight(const bl_matrix *w, int64_t r, int64_t i)
{
    static const float e2m1[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    int64_t at = r * w->cols + i;
    if (w->kind == BL_W_BF16) return bl_bf16_to_f32(((const uint16_t *)w->codes)[at]);
    if (w->kind == BL_W_F32) return ((const float *)w->codes)[at];
    if (w->kind == BL_W_FP8)
        return (float)ldexp(bl_e4m3_to_f32(((const uint8_t *)w->codes)[at]), w->scale[r / 32 * (w->cols / 32) + i / 32] - 127);
    unsigned code = ((const uint8_t *)w->codes)[at / 2];
    code = i % 2 ? code >> 4 : code & 15;
    float v = code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
    return (float)ldexp(v, w->scale[r * (w->cols / 32) + i / 32] - 127);
}

/* Halves added to each other; uses lane up. */
static float tree(float *lane, int n)
{
    for (n /= 2; n > 0; n /= 2)
        for (int l = 0; l < n; l++) lane[l] += lane[l + n];
    return lane[0];
}

static float element(const uint16_t *x, const bl_matrix *w, int64_t r)
{
    float lane[16];
    for (int l = 0; l < 16; l++) {
        lane[l] = 0;
        for (int64_t i = 2 * l; i < w->cols; i += 32)
            for (int64_t j = i + 1; j >= i; j--) lane[l] = fmaf(weight(w, r, j), bl_bf16_to_f32(x[j]), lane[l]);
    }
    return tree(lane, 16);
}

/* ---- running a table */

/* y [T, ldy], filled with a value that is no product before the kernel runs. */
static float *run(check *c, const bl_linear_kernels *k, const bl_matrix *w, const uint16_t *x, int64_t T, int64_t row0, int64_t row1)
{
    int64_t ldx = w->cols + GAP, ldy = row1 - row0 + GAP;
    size_t bytes = (size_t)((T - 1) * ldy + row1 - row0) * 4;
    float *y = check_buffer(c, bytes, 4);
    void *packed = check_buffer(c, k->packed_bytes(T, w->cols), 64), *scratch = check_buffer(c, k->scratch_bytes(T, w->cols), 64);
    memset(y, 0x5a, bytes);
    k->pack(packed, x, ldx, T, w->cols);
    k->rows(y, ldy, packed, T, w, row0, row1, scratch);
    return y;
}

static void compare(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k, int kind, spread s, int64_t T, int64_t cols,
                    int64_t row0, int64_t row1)
{
    check_case(c, "%s, %s values, tokens=%lld cols=%lld rows %lld..%lld", kinds[kind].name, spread_names[s], (long long)T,
               (long long)cols, (long long)row0, (long long)row1);
    values v = random_values(c, s, cols);
    bl_matrix w = random_matrix(c, kind, row1, cols, v);
    uint16_t *x = random_x(c, T, cols, v);
    float *want = run(c, ref, &w, x, T, row0, row1), *got = run(c, k, &w, x, T, row0, row1);
    check_f32(c, "y, flattened", got, want, 1, (T - 1) * (row1 - row0 + GAP) + row1 - row0);
}

static void against_definition(check *c, const bl_linear_kernels *ref, int kind)
{
    for (int i = 0; i < 24; i++) {
        int64_t cols = 32 * (1 + check_below(c, 5)), row0 = check_below(c, 40), row1 = row0 + 1 + check_below(c, 5), T = 1 + i % 3;
        spread s = (spread)(i % SPREADS);
        check_case(c, "%s, the definition, %s values, tokens=%lld cols=%lld rows %lld..%lld", kinds[kind].name, spread_names[s],
                   (long long)T, (long long)cols, (long long)row0, (long long)row1);
        values v = random_values(c, s, cols);
        bl_matrix w = random_matrix(c, kind, row1, cols, v);
        uint16_t *x = random_x(c, T, cols, v);
        float *got = run(c, ref, &w, x, T, row0, row1);
        for (int64_t t = 0; t < T; t++) {
            float want[8];
            for (int64_t r = row0; r < row1; r++) want[r - row0] = element(x + t * (cols + GAP), &w, r);
            check_f32(c, "y", got + t * (row1 - row0 + GAP), want, 1, row1 - row0);
        }
    }
}

/* Each code with each legal scale, times 1 alone in its lane: a wrong decode shows whatever the sums hide. */
static void every_code(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k, int kind, int64_t T)
{
    const int codes = kinds[kind].kind == BL_W_FP8 ? 256 : 16;
    for (int scale = kinds[kind].scale_lo; scale <= kinds[kind].scale_hi; scale++) {
        check_case(c, "%s, every code, scale %d, tokens=%lld", kinds[kind].name, scale, (long long)T);
        bl_matrix w = {.kind = kinds[kind].kind, .rows = codes, .cols = 32};
        uint8_t *p = check_buffer(c, (size_t)(w.kind == BL_W_FP8 ? codes * 32 : codes * 16), 1), *s = check_buffer(c, (size_t)codes, 1);
        for (int r = 0; r < codes; r++)
            for (int i = 0; i < 32; i++) {
                int code = (r + i * 7) % codes;
                if (w.kind == BL_W_FP8) p[r * 32 + i] = (uint8_t)((code & 0x7f) == 0x7f ? 0 : code);
                else if (i % 2) p[r * 16 + i / 2] |= (uint8_t)(code << 4);
                else p[r * 16 + i / 2] = (uint8_t)code;
            }
        memset(s, scale, (size_t)codes);
        w.codes = p;
        w.scale = s;
        uint16_t *x = check_buffer(c, (size_t)((T - 1) * (32 + GAP) + 32) * 2, 2);
        for (int64_t t = 0; t < T; t++)
            for (int i = 0; i < 32; i++) x[t * (32 + GAP) + i] = (t * 5 + scale) % 32 == i ? 0x3f80 : 0;
        float *want = run(c, ref, &w, x, T, 0, codes), *got = run(c, k, &w, x, T, 0, codes);
        check_f32(c, "y, flattened", got, want, 1, (T - 1) * (codes + GAP) + codes);
    }
}

/* Lanes that cancel to one unit of their last place, 129 * 129 - 130 * 128, for units on either side of the smallest normal
 * float32: what flushes subnormal results has to know which these are. */
static void smallest_sums(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k)
{
    for (int unit = -132; unit <= -123; unit++)
        for (int64_t T = 1; T <= 9; T += 8) {
            int ex = -60 + (int)check_below(c, 8), ew = unit + 14 - ex;
            check_case(c, "bf16, sums of 2^%d, tokens=%lld", unit, (long long)T);
            uint16_t *codes = check_buffer(c, 64 * 2, 2), *x = check_buffer(c, (size_t)((T - 1) * (64 + GAP) + 64) * 2, 2);
            bl_matrix w = {.kind = BL_W_BF16, .rows = 1, .cols = 64, .codes = codes};
            memset(codes, 0, 64 * 2);
            memset(x, 0, (size_t)((T - 1) * (64 + GAP) + 64) * 2);
            int64_t at = 2 * check_below(c, 16);
            codes[at] = bl_f32_to_bf16((float)ldexp(129, ew - 7));
            codes[at + 1] = bl_f32_to_bf16((float)ldexp(-128, ew - 7));
            for (int64_t t = 0; t < T; t++) {
                x[t * (64 + GAP) + at] = bl_f32_to_bf16((float)ldexp(129, ex - 7));
                x[t * (64 + GAP) + at + 1] = bl_f32_to_bf16((float)ldexp(130, ex - 7));
            }
            float *want = run(c, ref, &w, x, T, 0, 1), *got = run(c, k, &w, x, T, 0, 1);
            check_int(c, "the unit", want[0] == (float)ldexp(1, unit), 1);
            check_f32(c, "y, flattened", got, want, 1, (T - 1) * (1 + GAP) + 1);
        }
}

static void random_shapes(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k, int kind, spread s)
{
    for (int64_t T = 1; T <= 20; T++) { /* every count that a variant may treat on its own */
        int64_t row0 = check_below(c, 40);
        compare(c, ref, k, kind, s, T, 32 * (1 + check_below(c, 24)), row0, row0 + 1 + check_below(c, 40));
    }
    for (int64_t rows = 1; rows <= 17; rows++) {
        int64_t row0 = check_below(c, 70);
        compare(c, ref, k, kind, s, 1 + check_below(c, 6), 32 * (1 + check_below(c, 40)), row0, row0 + rows);
    }
    for (int64_t blocks = 1; blocks <= 40; blocks++) compare(c, ref, k, kind, s, 1 + blocks % 9, 32 * blocks, blocks % 3, 7);
}

static void real_shapes(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k, int kind)
{
    static const int64_t cols[] = {1280, 2304, 4096, 5120, 8192};
    for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++) {
        compare(c, ref, k, kind, USUAL, 1, cols[i], 31, 70);
        compare(c, ref, k, kind, USUAL, 5, cols[i], 30, 41);
        compare(c, ref, k, kind, PATCHY, 8, cols[i], 30, 33);
    }
    compare(c, ref, k, kind, USUAL, 100, 1280, 3, 13);
    compare(c, ref, k, kind, USUAL, 257, 544, 0, 33);
    compare(c, ref, k, kind, USUAL, 1000, 96, 0, 19);
}

static void check_table(check *c, const bl_linear_kernels *ref, const bl_linear_kernels *k)
{
    smallest_sums(c, ref, k);
    for (int kind = 0; kind < KINDS; kind++) {
        if (kinds[kind].scale_hi) {
            every_code(c, ref, k, kind, 1);
            every_code(c, ref, k, kind, 32);
        }
        for (int s = 0; s < SPREADS; s++) random_shapes(c, ref, k, kind, (spread)s);
        real_shapes(c, ref, k, kind);
    }
}

void check_linear(check *c, unsigned cpu)
{
    bl_linear_kernels ref, k;
    bl_linear_init(&ref, 0);
    bl_linear_init(&k, cpu);
    if (cpu == 0) {
        for (int kind = 0; kind < KINDS; kind++) against_definition(c, &ref, kind);
        return;
    }
    check_table(c, &ref, &k);
#if defined(__x86_64__)
    if (!(cpu & BL_CPU_AVX512BF16) || !strcmp(k.name, "avx512bf16")) return;
    bl_linear_init_avx512bf16(&k); /* correct also where it is not worth while */
    check_table(c, &ref, &k);
#endif
}
