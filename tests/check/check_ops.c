/* The model's operations: every variant against the reference, bit for bit, over shapes, alignments and sizes of values. (The
 * reference itself is held against the numpy oracle by tests/py/test_ops_oracle.py.) */
#include "tests/check/check_ops.h"

#include "kernels/fmath.h"

#include <math.h>
#include <string.h>

static const int64_t lengths[] = {32, 64, 96, 160, 512, 1280};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

uint16_t *ops_bf16(check *c, int64_t n, ops_values kind)
{
    uint16_t *x = check_buffer(c, 2 * (size_t)n, 2);
    for (int64_t i = 0; i < n; i++) {
        uint16_t r = (uint16_t)check_random(c);
        switch (kind) {
        case OPS_NORMAL: check_random_bf16(c, x + i, 1, 2.0f); break;
        case OPS_SPREAD: x[i] = (uint16_t)((r & 0x807f) | (uint16_t)(100 + check_below(c, 50)) << 7); break;
        case OPS_ANY: x[i] = (r & 0x7f80) == 0x7f80 ? r & 0x8000 : r; break;
        default: x[i] = check_below(c, 40) ? (uint16_t)((r & 0x807f) | 0x3f80) : (uint16_t)(r | 0x7f80); break;
        }
    }
    return x;
}

float *ops_f32(check *c, int64_t n, float scale)
{
    float *x = check_buffer(c, 4 * (size_t)n, 4);
    for (int64_t i = 0; i < n; i++) x[i] = check_normal(c) * scale;
    return x;
}

/* ---- roundings and rows */

typedef void to_row(uint8_t *row, const uint16_t *x, int64_t d);
typedef void from_row(uint16_t *x, const uint8_t *row, int64_t d);

static void check_row(check *c, const char *what, to_row *pack, to_row *pack_c, from_row *unpack, from_row *unpack_c,
                      size_t bytes, const uint16_t *x, int64_t d)
{
    uint8_t *got = check_buffer(c, bytes, 1), *want = check_buffer(c, bytes, 1);
    uint16_t *back = check_buffer(c, 2 * (size_t)d, 2), *back_c = check_buffer(c, 2 * (size_t)d, 2);
    pack(got, x, d);
    pack_c(want, x, d);
    check_u8(c, what, got, want, 1, (int64_t)bytes);
    unpack(back, want, d);
    unpack_c(back_c, want, d);
    check_bf16(c, what, back, back_c, 1, d);
}

static void check_rows(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 40 * LENGTHS; k++) {
        int64_t d = lengths[k % LENGTHS];
        ops_values kind = (ops_values)(k / LENGTHS % OPS_VALUES);
        check_case(c, "rows d=%lld values=%d", (long long)d, kind);
        uint16_t *x = ops_bf16(c, d, kind), *y = check_buffer(c, 2 * (size_t)d, 2), *y_c = check_buffer(c, 2 * (size_t)d, 2);
        check_row(c, "window", t->pack_window, r->pack_window, t->unpack_window, r->unpack_window, bl_window_row_bytes(d), x, d);
        check_row(c, "latent", t->pack_latent, r->pack_latent, t->unpack_latent, r->unpack_latent, bl_latent_row_bytes(d), x, d);
        check_row(c, "index", t->pack_index, r->pack_index, t->unpack_index, r->unpack_index, bl_index_row_bytes(d), x, d);
        r->round_fp8(y_c, x, d);
        t->round_fp8(y, x, d);
        check_bf16(c, "round_fp8", y, y_c, 1, d);
        t->round_fp8(x, x, d);
        check_bf16(c, "round_fp8 in place", x, y_c, 1, d);
    }
}

/* Every bf16 as the amax of a group, so that every scale occurs and every ceiling is met from both sides; every bf16 below a
 * fixed amax, so that every code and tie occurs. */
static void check_all_scales(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int amax = 0; amax < 0x7f80; amax += 4) {
        check_case(c, "scales from %04x", amax);
        uint16_t *x = check_buffer(c, 128 * 2, 2);
        for (int i = 0; i < 128; i++) x[i] = (uint16_t)check_below(c, amax + 1 + i / 32) | (uint16_t)(check_below(c, 2) << 15);
        for (int i = 0; i < 128; i += 16) x[i] = (uint16_t)(amax + i / 32);
        check_row(c, "window", t->pack_window, r->pack_window, t->unpack_window, r->unpack_window, 132, x, 128);
        check_row(c, "latent", t->pack_latent, r->pack_latent, t->unpack_latent, r->unpack_latent, 72, x, 128);
        check_row(c, "index", t->pack_index, r->pack_index, t->unpack_index, r->unpack_index, 68, x, 128);
    }
}

static void check_to_bf16(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int64_t n = 0; n < 70; n++) {
        check_case(c, "to_bf16 n=%lld", (long long)n);
        float *x = check_buffer(c, 4 * (size_t)n, 4);
        uint16_t *y = check_buffer(c, 2 * (size_t)n, 2), *y_c = check_buffer(c, 2 * (size_t)n, 2);
        check_random_bytes(c, x, 4 * (size_t)n);
        if (n > 3) x[n / 2] = NAN, x[n - 1] = -INFINITY;
        t->to_bf16(y, x, n);
        r->to_bf16(y_c, x, n);
        check_bf16(c, "to_bf16", y, y_c, 1, n);
    }
}

/* ---- norms and positions */

static void check_norm(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 4 * LENGTHS; k++) {
        int64_t n = lengths[k % LENGTHS], T = 1 + k % 3;
        ops_values kind = k & 1 ? OPS_SPREAD : OPS_NORMAL;
        check_case(c, "norm T=%lld n=%lld", (long long)T, (long long)n);
        uint16_t *x = ops_bf16(c, T * n, kind), *w = ops_bf16(c, n, OPS_NORMAL);
        uint16_t *y = check_buffer(c, 2 * (size_t)(T * n), 2), *y_c = check_buffer(c, 2 * (size_t)(T * n), 2);
        float s = t->sum_squares(x, n), s_c = r->sum_squares(x, n);
        check_f32(c, "sum_squares", &s, &s_c, 1, 1);
        r->rmsnorm(y_c, x, w, T, n, k & 2 ? 1e-20f : 1e-6f);
        t->rmsnorm(y, x, w, T, n, k & 2 ? 1e-20f : 1e-6f);
        check_bf16(c, "rmsnorm", y, y_c, T, n);
        t->rmsnorm(x, x, w, T, n, k & 2 ? 1e-20f : 1e-6f);
        check_bf16(c, "rmsnorm in place", x, y_c, T, n);
    }
}

static void check_rope(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int64_t R = 0; R <= 128; R += 2) {
        int64_t heads = 1 + R % 5, d = R <= 96 ? 96 : 128;
        check_case(c, "rope heads=%lld d=%lld R=%lld", (long long)heads, (long long)d, (long long)R);
        uint16_t *x = ops_bf16(c, heads * d, OPS_NORMAL), *y = check_copy(c, x, 2 * (size_t)(heads * d), 2);
        float *cs = check_buffer(c, 4 * (size_t)R, 4);
        for (int64_t i = 0; i < R; i += 2) {
            float a = check_normal(c) * 3;
            cs[i] = cosf(a);
            cs[i + 1] = sinf(a);
        }
        for (int inverse = 0; inverse < 2; inverse++) {
            t->rope(x, heads, d, R, cs, inverse);
            r->rope(y, heads, d, R, cs, inverse);
            check_bf16(c, inverse ? "inverse" : "rope", x, y, heads, d);
        }
    }
}

/* ---- residual streams */

static void check_mix(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 200; k++) {
        check_case(c, "mix %d", k);
        float *m = ops_f32(c, 24, k % 2 ? 1 : 30), *scale = ops_f32(c, 3, 1), *base = ops_f32(c, 24, 2);
        float *got = check_buffer(c, 24 * 4, 4), *want = check_buffer(c, 24 * 4, 4), sum = 50 + 100 * check_normal(c) * check_normal(c);
        if (!(sum > 0)) sum = 1;
        t->mix(got, got + 4, got + 8, m, sum, 20480, scale, base, 1e-20f, 1e-6f, 1 + k % 20);
        r->mix(want, want + 4, want + 8, m, sum, 20480, scale, base, 1e-20f, 1e-6f, 1 + k % 20);
        check_f32(c, "mix", got, want, 6, 4);
    }
}

static void check_streams(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 4 * LENGTHS; k++) {
        int64_t D = lengths[k % LENGTHS];
        ops_values kind = k & 1 ? OPS_SPREAD : OPS_NORMAL;
        check_case(c, "streams D=%lld", (long long)D);
        uint16_t *H = ops_bf16(c, 4 * D, kind), *x = ops_bf16(c, D, kind);
        float *post = ops_f32(c, 4, 1), *comb = ops_f32(c, 16, 1);
        uint16_t *y = check_buffer(c, 2 * (size_t)D, 2), *y_c = check_buffer(c, 2 * (size_t)D, 2);
        uint16_t *out = check_buffer(c, 8 * (size_t)D, 2), *out_c = check_buffer(c, 8 * (size_t)D, 2);
        t->collapse(y, H, post, D);
        r->collapse(y_c, H, post, D);
        check_bf16(c, "collapse", y, y_c, 1, D);
        t->expand(out, x, H, post, comb, D);
        r->expand(out_c, x, H, post, comb, D);
        check_bf16(c, "expand", out, out_c, 4, D);
        t->expand(H, x, H, post, comb, D);
        check_bf16(c, "expand in place", H, out_c, 4, D);
    }
}

/* ---- router, experts, Engram */

static void check_route(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int trial = 0; trial < 300; trial++) {
        int64_t E = 1 + check_below(c, 400), k = 1 + check_below(c, E < 9 ? E : 9);
        check_case(c, "route E=%lld k=%lld", (long long)E, (long long)k);
        float *logits = ops_f32(c, E, 4), *bias = ops_f32(c, E, 1);
        for (int64_t e = 0; trial % 3 == 0 && e < E; e++) logits[e] = rintf(logits[e]), bias[e] = rintf(bias[e]); /* ties */
        if (trial % 7 == 0) logits[check_below(c, E)] = NAN;
        int32_t *ids = check_buffer(c, 4 * (size_t)k, 4), *ids_c = check_buffer(c, 4 * (size_t)k, 4);
        float *gates = check_buffer(c, 4 * (size_t)k, 4), *gates_c = check_buffer(c, 4 * (size_t)k, 4);
        t->route(ids, gates, logits, bias, E, k, trial % 2, 1.5f);
        r->route(ids_c, gates_c, logits, bias, E, k, trial % 2, 1.5f);
        if (check_i32(c, "ids", ids, ids_c, 1, k) && !isnan(gates_c[k - 1])) check_f32(c, "gates", gates, gates_c, 1, k);
    }
}

/* The last bit of the router's score, which selection otherwise hides: biases that cancel the reference's score make all keys
 * zero, and ties are listed in order. */
static void check_scores(check *c, const bl_op_kernels *t)
{
    enum { E = 4096 };
    for (int trial = 0; trial < 50; trial++) {
        check_case(c, "router scores %d", trial);
        float *logits = ops_f32(c, E, trial % 5 == 4 ? 60 : 5), *bias = check_buffer(c, 4 * E, 4), *gates = check_buffer(c, 4 * E, 4);
        int32_t *ids = check_buffer(c, 4 * E, 4), *want = check_buffer(c, 4 * E, 4);
        for (int e = 0; e < E; e++) {
            bias[e] = -bl_sqrt_softplus(logits[e]);
            want[e] = e;
        }
        t->route(ids, gates, logits, bias, E, E, 0, 1.0f);
        check_i32(c, "ids", ids, want, 1, E);
    }
}

/* The last bit of the sigmoid, which the rounding to bf16 hides nearly always: every g with many weights. */
static void check_sigmoid(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    enum { N = 65536 };
    for (int trial = 0; trial < 24; trial++) {
        check_case(c, "sigmoid %d", trial);
        uint16_t *g = check_buffer(c, 2 * N, 2), *u = check_buffer(c, 2 * N, 2), *y = check_buffer(c, 2 * N, 2), *y_c = check_buffer(c, 2 * N, 2);
        float w = 1 + 0.1f * check_normal(c);
        for (int i = 0; i < N; i++) {
            g[i] = (i & 0x7f80) == 0x7f80 ? 0 : (uint16_t)i;
            u[i] = (uint16_t)(0x3f80 + trial);
        }
        t->swiglu(y, g, u, w, 0, N);
        r->swiglu(y_c, g, u, w, 0, N);
        check_bf16(c, "swiglu", y, y_c, N / 256, 256);
    }
}

static void check_experts(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 4 * LENGTHS; k++) {
        int64_t n = lengths[k % LENGTHS], odd = n - k % 32;
        check_case(c, "experts n=%lld", (long long)n);
        uint16_t *g = ops_bf16(c, n, k & 1 ? OPS_SPREAD : OPS_NORMAL), *u = ops_bf16(c, n, k & 1 ? OPS_SPREAD : OPS_NORMAL);
        uint16_t *y = check_buffer(c, 2 * (size_t)n, 2), *y_c = check_buffer(c, 2 * (size_t)n, 2);
        t->swiglu(y, g, u, 0.7f, k & 2 ? 10.0f : 0.0f, n);
        r->swiglu(y_c, g, u, 0.7f, k & 2 ? 10.0f : 0.0f, n);
        check_bf16(c, "swiglu", y, y_c, 1, n);
        float *acc = ops_f32(c, odd, 1), *acc_c = check_copy(c, acc, 4 * (size_t)odd, 4);
        t->accumulate(acc, g, odd);
        r->accumulate(acc_c, g, odd);
        check_f32(c, "accumulate", acc, acc_c, 1, odd);
    }
}

static void check_engram(check *c, const bl_op_kernels *t, const bl_op_kernels *r)
{
    for (int k = 0; k < 4 * LENGTHS; k++) {
        int64_t D = lengths[k % LENGTHS], width = 32 * (1 + check_below(c, 8)), cols = 1 + check_below(c, 24), rows = 40;
        check_case(c, "engram D=%lld width=%lld", (long long)D, (long long)width);
        uint16_t *H = ops_bf16(c, 4 * D, OPS_NORMAL), *H_c = check_copy(c, H, 8 * (size_t)D, 2);
        uint16_t *key = ops_bf16(c, 4 * D, OPS_NORMAL), *value = ops_bf16(c, D, OPS_NORMAL);
        float *qk = ops_f32(c, 4 * D, 1);
        t->engram_gate(H, key, value, qk, D, 1e-20f);
        r->engram_gate(H_c, key, value, qk, D, 1e-20f);
        check_bf16(c, "gate", H, H_c, 4, D);
        uint8_t *codes = check_buffer(c, (size_t)(rows * width), 1), *scale = check_buffer(c, (size_t)(rows * width / 32), 1);
        int64_t *picked = check_buffer(c, 8 * (size_t)cols, 8);
        check_random_bytes(c, codes, (size_t)(rows * width));
        check_random_bytes(c, scale, (size_t)(rows * width / 32));
        for (int64_t i = 0; i < cols; i++) picked[i] = i % 7 ? check_below(c, rows) : rows - 1;
        uint16_t *y = check_buffer(c, 2 * (size_t)(cols * width), 2), *y_c = check_buffer(c, 2 * (size_t)(cols * width), 2);
        t->engram_gather(y, codes, scale, picked, cols, width);
        r->engram_gather(y_c, codes, scale, picked, cols, width);
        check_bf16(c, "gather", y, y_c, cols, width);
    }
}

void check_ops(check *c, unsigned cpu)
{
    bl_op_kernels t, r;
    bl_op_init(&t, cpu);
    bl_op_init(&r, 0);
    check_rows(c, &t, &r);
    check_all_scales(c, &t, &r);
    check_to_bf16(c, &t, &r);
    check_norm(c, &t, &r);
    check_rope(c, &t, &r);
    check_mix(c, &t, &r);
    check_streams(c, &t, &r);
    check_route(c, &t, &r);
    check_scores(c, &t);
    check_sigmoid(c, &t, &r);
    check_experts(c, &t, &r);
    check_engram(c, &t, &r);
    check_attention(c, &t, &r);
    check_index(c, &t, &r);
    if (cpu == 0) check_select(c);
}
