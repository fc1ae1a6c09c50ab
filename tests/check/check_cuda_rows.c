/* Streams, norms, roundings, router and experts' elementwise parts against the C references. */
#include "kernels/cast.h"
#include "kernels/cuda/dot.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"
#include "tests/check/check_cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

/* A row sum of squares in segments. */
static float squares(const uint16_t *x, int64_t n)
{
    float total = 0;
    for (int64_t i = 0; i < n; i += BL_CUDA_ROW_SEGMENT)
        total += bl_sum_squares_c(x + i, n - i < BL_CUDA_ROW_SEGMENT ? n - i : BL_CUDA_ROW_SEGMENT);
    return total;
}

static void norm(uint16_t *y, const uint16_t *x, const uint16_t *w, int64_t n, float eps)
{
    const float r = bl_rsqrt(squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++) y[i] = bl_f32_to_bf16(bl_bf16_to_f32(w[i]) * (bl_bf16_to_f32(x[i]) * r));
}

static void check_rounding(check *c, int64_t rows, int64_t n, float scale, int wild)
{
    check_case(c, "round_fp8 rows=%lld n=%lld scale=%g wild=%d", (long long)rows, (long long)n, (double)scale, wild);
    uint16_t *x = random_row(c, rows * n, scale), *want = check_buffer(c, (size_t)(rows * n) * 2, 16);
    if (wild)
        for (int64_t i = 0; i < rows * n; i += 37) x[i] = (uint16_t)check_random(c);
    for (int64_t t = 0; t < rows; t++) bl_round_fp8_c(want + t * n, x + t * n, n);
    uint16_t *y = gpu_buffer((size_t)(rows * n) * 2);
    bl_cuda_round_fp8(0, y, gpu_copy(x, (size_t)(rows * n) * 2), n, rows, n);
    check_bf16(c, "rounded", gpu_result(c, y, (size_t)(rows * n) * 2), want, rows, n);
    gpu_case_end();
}

static void check_norm(check *c, int64_t rows, int64_t n)
{
    check_case(c, "rmsnorm rows=%lld n=%lld", (long long)rows, (long long)n);
    const size_t bytes = (size_t)(rows * n) * 2;
    const uint16_t *x = random_row(c, rows * n, 3), *w = random_row(c, n, 1);
    uint16_t *want = check_buffer(c, bytes, 16), *rounded = check_buffer(c, bytes, 16), *y = gpu_buffer(bytes), *z = gpu_buffer(bytes);
    for (int64_t t = 0; t < rows; t++) {
        norm(want + t * n, x + t * n, w, n, 1e-6f);
        bl_round_fp8_c(rounded + t * n, want + t * n, n);
    }
    bl_cuda_rmsnorm(0, y, z, gpu_copy(x, bytes), gpu_copy(w, (size_t)n * 2), rows, n, 1e-6f);
    check_bf16(c, "norm", gpu_result(c, y, bytes), want, rows, n);
    check_bf16(c, "rounded", gpu_result(c, z, bytes), rounded, rows, n);
    gpu_case_end();
}

/* Mixing from the streams to its coefficients, collapse and expand with them. */
static void check_streams(check *c, int64_t T, int64_t D, float spread, float eps)
{
    enum { S = 4, MIX = 24 };
    check_case(c, "streams tokens=%lld width=%lld spread=%g eps=%g", (long long)T, (long long)D, (double)spread, (double)eps);
    const int64_t n = S * D, segments = (n + 255) / 256;
    const uint16_t *H = random_row(c, T * n, 2), *w = random_row(c, D, 1), *y = random_row(c, T * D, 1);
    const float *fn = random_floats(c, MIX * n, 0.02f), *scale = random_floats(c, 3, 1), *base = random_floats(c, MIX, spread);
    float *pre = check_buffer(c, (size_t)(T * S) * 4, 16), *post = check_buffer(c, (size_t)(T * S) * 4, 16);
    float *comb = check_buffer(c, (size_t)(T * 16) * 4, 16), dots[MIX];
    uint16_t *x = check_buffer(c, (size_t)(T * D) * 2, 16), *out = check_buffer(c, (size_t)(T * n) * 2, 16);
    for (int64_t t = 0; t < T; t++) {
        for (int r = 0; r < MIX; r++) dots[r] = bl_dot_row_f32(fn + r * n, H + t * n, n);
        bl_mix_c(pre + t * S, post + t * S, comb + t * 16, dots, squares(H + t * n, n), n, scale, base, 1e-20f, eps, 20);
        bl_collapse_c(x + t * D, H + t * n, pre + t * S, D);
        norm(x + t * D, x + t * D, w, D, 1e-6f);
        bl_expand_c(out + t * n, y + t * D, H + t * n, post + t * S, comb + t * 16, D);
    }
    uint16_t *gH = gpu_copy(H, (size_t)(T * n) * 2), *gx = gpu_buffer((size_t)(T * D) * 2);
    float *parts = gpu_buffer((size_t)(segments * T * MIX) * 4), *gpre = gpu_buffer((size_t)(T * S) * 4);
    float *gpost = gpu_buffer((size_t)(T * S) * 4), *gcomb = gpu_buffer((size_t)(T * 16) * 4);
    const bl_cuda_mixing m = {.fn = gpu_copy(fn, (size_t)(MIX * n) * 4), .scale3 = gpu_copy(scale, 12), .base24 = gpu_copy(base, MIX * 4),
                              .H = gH, .pre = gpre, .post = gpost, .comb = gcomb, .parts = parts, .T = T, .D = D, .eps_rms = 1e-20f,
                              .eps = eps, .iters = 20};
    const bl_cuda_product p = {.w = {.kind = BL_W_F32, .rows = MIX, .cols = n, .codes = m.fn}, .rows = MIX, .x = gH, .ldx = n, .tokens = T};
    bl_cuda_multiply_parts(0, &p, parts);
    bl_cuda_mix(0, &m);
    bl_cuda_collapse(0, gx, NULL, gH, gpre, gpu_copy(w, (size_t)D * 2), NULL, T, D, 1e-6f);
    bl_cuda_expand(0, gH, gpu_copy(y, (size_t)(T * D) * 2), gpost, gcomb, T, D);
    check_f32(c, "pre", gpu_result(c, gpre, (size_t)(T * S) * 4), pre, T, S);
    check_f32(c, "post", gpu_result(c, gpost, (size_t)(T * S) * 4), post, T, S);
    check_f32(c, "comb", gpu_result(c, gcomb, (size_t)(T * 16) * 4), comb, T, 16);
    check_bf16(c, "collapsed", gpu_result(c, gx, (size_t)(T * D) * 2), x, T, D);
    check_bf16(c, "expanded", gpu_result(c, gH, (size_t)(T * n) * 2), out, T, n);
    gpu_case_end();
}

bl_cuda_mixing gpu_mixing(check *c, int64_t T, int64_t D)
{
    const int64_t n = 4 * D, parts = (n + BL_DOT_SEGMENT - 1) / BL_DOT_SEGMENT * T * 24;
    float *to = gpu_buffer((size_t)T * 24 * 4);
    return (bl_cuda_mixing){.scale3 = gpu_copy(random_floats(c, 3, 1), 12), .base24 = gpu_copy(random_floats(c, 24, 1), 24 * 4),
                            .H = gpu_copy(random_row(c, T * n, 2), (size_t)(T * n) * 2), .pre = to, .post = to + 4 * T, .comb = to + 8 * T,
                            .parts = gpu_copy(random_floats(c, parts, 3), (size_t)parts * 4), .T = T, .D = D, .eps_rms = 1e-20f,
                            .eps = 1e-6f, .iters = 20};
}

void check_mixed(check *c, const bl_cuda_mixing *m)
{
    bl_cuda_mixing alone = *m;
    alone.pre = gpu_buffer((size_t)m->T * 24 * 4);
    alone.post = alone.pre + 4 * m->T;
    alone.comb = alone.pre + 8 * m->T;
    bl_cuda_mix(0, &alone);
    check_f32(c, "mixing", gpu_result(c, m->pre, (size_t)m->T * 96), gpu_result(c, alone.pre, (size_t)m->T * 96), m->T, 24);
}

/* The kernels that read the streams once: with room for split weights sm90/mixing.cu's. Every so many of the first `unlike` tokens against
 * the reference, the others, which are these again, against the first. */
static void check_mixing(check *c, int64_t T, int64_t unlike, int64_t D, int64_t every, bool room)
{
    enum { S = 4, MIX = 24 };
    check_case(c, "mixing tokens=%lld width=%lld%s", (long long)T, (long long)D, room ? "" : " without room");
    const int64_t n = S * D, segments = (n + BL_DOT_SEGMENT - 1) / BL_DOT_SEGMENT;
    uint16_t *const H = check_buffer(c, (size_t)(T * n) * 2, 16);
    check_random_bf16(c, H, (size_t)(unlike * n), 2);
    for (int64_t t = unlike; t < T; t++) memcpy(H + t * n, H + (t - unlike) * n, (size_t)n * 2);
    const float *fn = random_floats(c, MIX * n, 0.02f), *scale = random_floats(c, 3, 1), *base = random_floats(c, MIX, 1);
    const bl_cuda_mixing m = {.fn = gpu_copy(fn, (size_t)(MIX * n) * 4), .scale3 = gpu_copy(scale, 12), .base24 = gpu_copy(base, MIX * 4),
                              .H = gpu_copy(H, (size_t)(T * n) * 2), .pre = gpu_buffer((size_t)(T * S) * 4),
                              .post = gpu_buffer((size_t)(T * S) * 4), .comb = gpu_buffer((size_t)(T * 16) * 4),
                              .parts = room ? gpu_buffer((size_t)(segments * T * MIX) * 4) : NULL, .T = T, .D = D, .eps_rms = 1e-20f,
                              .eps = 1e-6f, .iters = 20};
    for (int64_t i = 0; i < sized(4, 1); i++) check_int(c, "many", bl_cuda_mix_many(0, &m), true);
    const float *pre = gpu_result(c, m.pre, (size_t)(T * S) * 4), *post = gpu_result(c, m.post, (size_t)(T * S) * 4);
    const float *comb = gpu_result(c, m.comb, (size_t)(T * 16) * 4);
    for (int64_t t = 0; t < unlike; t = t + every < unlike || t == unlike - 1 ? t + every : unlike - 1) {
        float dots[MIX], want[3][16];
        for (int r = 0; r < MIX; r++) dots[r] = bl_dot_row_f32(fn + r * n, H + t * n, n);
        bl_mix_c(want[0], want[1], want[2], dots, squares(H + t * n, n), n, scale, base, 1e-20f, 1e-6f, 20);
        check_f32(c, "pre", pre + t * S, want[0], 1, S);
        check_f32(c, "post", post + t * S, want[1], 1, S);
        check_f32(c, "comb", comb + t * 16, want[2], 1, 16);
    }
    if (T > unlike) {
        check_f32(c, "pre again", pre + unlike * S, pre, T - unlike, S);
        check_f32(c, "post again", post + unlike * S, post, T - unlike, S);
        check_f32(c, "comb again", comb + unlike * 16, comb, T - unlike, 16);
    }
    gpu_case_end();
}

/* Expansion, collapse, norm and rounding at once: of a sum that is there, and of experts' rows. */
static void check_advance(check *c, int64_t T, int64_t D, int64_t k, bool there)
{
    enum { S = 4 };
    check_case(c, "advance tokens=%lld width=%lld choices=%lld", (long long)T, (long long)D, (long long)k);
    const int64_t n = S * D, slots = T * k;
    const uint16_t *H = random_row(c, T * n, 2), *w = random_row(c, D, 1), *out = random_row(c, slots * D, 1);
    const uint16_t *shared = random_row(c, T * D, 1);
    const float *post = random_floats(c, T * S, 1), *comb = random_floats(c, T * S * S, 1), *pre = random_floats(c, T * S, 1);
    float *partial = random_floats(c, T * D, 1);
    int32_t *slot_of = check_buffer(c, (size_t)slots * 4, 16);
    uint16_t *x = check_buffer(c, (size_t)(T * D) * 2, 16), *rounded = check_buffer(c, (size_t)(T * D) * 2, 16);
    uint16_t *streams = check_buffer(c, (size_t)(T * n) * 2, 16), *y = check_buffer(c, (size_t)D * 2, 16);
    for (int64_t i = 0; i < slots; i++) slot_of[i] = i % k == k - 1 ? -1 : (int32_t)((i * 7) % slots);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < D; i++) {
            float sum = there ? partial[t * D + i] : 0;
            for (int64_t j = 0; !there && j < k; j++)
                if (slot_of[t * k + j] >= 0) sum += bl_bf16_to_f32(out[slot_of[t * k + j] * D + i]);
            if (!there) sum += bl_bf16_to_f32(shared[t * D + i]);
            y[i] = bl_f32_to_bf16(sum);
        }
        bl_expand_c(streams + t * n, y, H + t * n, post + t * S, comb + t * S * S, D);
        bl_collapse_c(x + t * D, streams + t * n, pre + t * S, D);
        norm(x + t * D, x + t * D, w, D, 1e-6f);
        bl_round_fp8_c(rounded + t * D, x + t * D, D);
    }
    bl_cuda_advance a = {.H = gpu_copy(H, (size_t)(T * n) * 2), .partial = there ? gpu_copy(partial, (size_t)(T * D) * 4) : NULL,
                         .out = gpu_copy(out, (size_t)(slots * D) * 2), .shared = gpu_copy(shared, (size_t)(T * D) * 2),
                         .slot_of = gpu_copy(slot_of, (size_t)slots * 4), .k = (int)k, .post = gpu_copy(post, (size_t)(T * S) * 4),
                         .comb = gpu_copy(comb, (size_t)(T * S * S) * 4), .pre = gpu_copy(pre, (size_t)(T * S) * 4),
                         .norm = gpu_copy(w, (size_t)D * 2), .x = gpu_buffer((size_t)(T * D) * 2),
                         .rounded = gpu_buffer((size_t)(T * D) * 2),
                         .T = T, .D = D, .eps = 1e-6f, .early = T % 2};
    bl_cuda_advance_streams(0, &a);
    check_bf16(c, "streams", gpu_result(c, a.H, (size_t)(T * n) * 2), streams, T, n);
    check_bf16(c, "collapsed", gpu_result(c, a.x, (size_t)(T * D) * 2), x, T, D);
    check_bf16(c, "rounded", gpu_result(c, a.rounded, (size_t)(T * D) * 2), rounded, T, D);
    gpu_case_end();
}

static void check_route(check *c, int64_t T, int64_t E, int64_t k)
{
    check_case(c, "route tokens=%lld experts=%lld of=%lld", (long long)T, (long long)k, (long long)E);
    float *logits = random_floats(c, T * E, 3), *bias = random_floats(c, E, 0.1f), *gates = check_buffer(c, (size_t)(T * k) * 4, 16);
    int32_t *ids = check_buffer(c, (size_t)(T * k) * 4, 16), *gids = gpu_buffer((size_t)(T * k) * 4);
    float *ggates = gpu_buffer((size_t)(T * k) * 4);
    for (int64_t i = 0; i < T * E; i += 3) logits[i] = floorf(logits[i]); /* ties */
    for (int64_t i = 0; i < E; i += 2) bias[i] = 0;
    logits[T * E / 2] = NAN;
    for (int64_t t = 0; t < T; t++) bl_route_c(ids + t * k, gates + t * k, logits + t * E, bias, E, k, 1, 1.5f);
    bl_cuda_route(0, gids, ggates, gpu_copy(logits, (size_t)(T * E) * 4), gpu_copy(bias, (size_t)E * 4), T, E, k, true, 1.5f);
    check_i32(c, "ids", gpu_result(c, gids, (size_t)(T * k) * 4), ids, T, k);
    check_f32(c, "gates", gpu_result(c, ggates, (size_t)(T * k) * 4), gates, T, k);
    gpu_case_end();
}

static void check_swiglu(check *c, int64_t rows, int64_t n, float limit)
{
    const int64_t gated = check_below(c, rows + 1); /* the others are the shared expert's */
    check_case(c, "swiglu rows=%lld n=%lld limit=%g", (long long)rows, (long long)n, (double)limit);
    const size_t bytes = (size_t)(rows * n) * 2;
    const uint16_t *g = random_row(c, rows * n, 8), *u = random_row(c, rows * n, 8);
    const float *gate = random_floats(c, rows, 1);
    uint16_t *want = check_buffer(c, bytes, 16), *a = gpu_buffer(bytes);
    for (int64_t t = 0; t < rows; t++) {
        bl_swiglu_c(want + t * n, g + t * n, u + t * n, t < gated ? gate[t] : 1.0f, limit, n);
        bl_round_fp8_c(want + t * n, want + t * n, n);
    }
    bl_cuda_swiglu(0, a, gpu_copy(g, bytes), gpu_copy(u, bytes), gpu_copy(gate, (size_t)rows * 4), gated, rows, n, limit, true, false);
    check_bf16(c, "activation", gpu_result(c, a, bytes), want, rows, n);
    gpu_case_end();
}

/* All codes with all scales. */
static void check_engram_rows(check *c)
{
    check_case(c, "engram rows");
    uint8_t *codes = check_buffer(c, 256 * 256 * 32, 16), *scale = check_buffer(c, 256 * 256, 16);
    uint16_t *want = check_buffer(c, 256 * 256 * 32 * 2, 16), *e = gpu_buffer(256 * 256 * 32 * 2);
    for (int64_t i = 0; i < 256 * 256 * 32; i++) codes[i] = (uint8_t)(i / 32);
    for (int64_t i = 0; i < 256 * 256; i++) scale[i] = (uint8_t)(i / 256);
    const int64_t row = 0;
    for (int64_t i = 0; i < 256 * 256; i++) bl_engram_gather_c(want + 32 * i, codes + 32 * i, scale + i, &row, 1, 32);
    bl_cuda_engram_rows(0, e, gpu_copy(codes, 256 * 256 * 32), gpu_copy(scale, 256 * 256), 256 * 256, 32);
    check_bf16(c, "values", gpu_result(c, e, 256 * 256 * 32 * 2), want, 256 * 256, 32);
    gpu_case_end();
}

/* Rows of a part of a table, between two of those asked for: zeros but for those in [first, first + held). */
static void check_part(check *c, const uint8_t *codes, const uint8_t *scale, int64_t width, const int64_t *rows, const int64_t *list,
                       int64_t count)
{
    const int64_t a = rows[0], b = rows[count - 1], first = a < b ? a : b, held = a < b ? b - a : a - b, size = held > 0 ? held : 1;
    uint16_t *want = check_buffer(c, (size_t)(count * width) * 2, 16), *e = gpu_buffer((size_t)(count * width) * 2);
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] >= first && rows[i] < first + held) bl_engram_gather_c(want + i * width, codes, scale, &rows[i], 1, width);
        else memset(want + i * width, 0, (size_t)width * 2);
    }
    const bl_cuda_table t = {.codes = gpu_copy(codes + first * width, (size_t)(size * width)),
                             .scale = gpu_copy(scale + first * (width / 32), (size_t)(size * (width / 32))), .width = width, .cut = true,
                             .first = first, .rows = held};
    bl_cuda_engram_gather(0, e, &t, list, count);
    check_bf16(c, "of a part", gpu_result(c, e, (size_t)(count * width) * 2), want, count, width);
}

/* Rows of a table in the GPU's memory and in pinned memory of the host. */
static void check_engram_gather(check *c, int64_t width, int64_t count)
{
    enum { TABLE = 5000 };
    check_case(c, "engram gather of %lld rows of %lld", (long long)count, (long long)width);
    const size_t bytes = (size_t)(TABLE * width), scales = bytes / 32;
    uint8_t *codes = check_buffer(c, bytes, 16), *scale = check_buffer(c, scales, 16), *pinned;
    int64_t *rows = check_buffer(c, (size_t)count * 8, 16);
    uint16_t *want = check_buffer(c, (size_t)(count * width) * 2, 16), *e = gpu_buffer((size_t)(count * width) * 2);
    check_random_bytes(c, codes, bytes);
    check_random_bytes(c, scale, scales);
    for (int64_t i = 0; i < count; i++) rows[i] = check_below(c, TABLE);
    bl_engram_gather_c(want, codes, scale, rows, count, width);
    const int64_t *list = gpu_copy(rows, (size_t)count * 8);
    const bl_cuda_table device = {.codes = gpu_copy(codes, bytes), .scale = gpu_copy(scale, scales), .width = width};
    bl_cuda_engram_gather(0, e, &device, list, count);
    check_bf16(c, "from the device", gpu_result(c, e, (size_t)(count * width) * 2), want, count, width);
    check_int(c, "pinning", cudaHostAlloc((void **)&pinned, bytes + scales, cudaHostAllocDefault), cudaSuccess);
    memcpy(pinned, codes, bytes);
    memcpy(pinned + bytes, scale, scales);
    e = gpu_buffer((size_t)(count * width) * 2);
    const bl_cuda_table host = {.codes = pinned, .scale = pinned + bytes, .width = width};
    bl_cuda_engram_gather(0, e, &host, list, count);
    check_bf16(c, "from the host", gpu_result(c, e, (size_t)(count * width) * 2), want, count, width);
    check_part(c, codes, scale, width, rows, list, count);
    gpu_case_end();
    cudaFreeHost(pinned);
}

/* The gate's three sums, in segments. */
static void gate_sums(float sum[3], const uint16_t *h, const float *qk, const uint16_t *key, int64_t D)
{
    sum[0] = squares(h, D);
    sum[1] = squares(key, D);
    sum[2] = 0;
    for (int64_t from = 0; from < D; from += BL_CUDA_ROW_SEGMENT) {
        float lane[16] = {0};
        for (int64_t i = from; i < D && i < from + BL_CUDA_ROW_SEGMENT; i++)
            lane[i % 16] = fmaf(bl_bf16_to_f32(h[i]) * qk[i], bl_bf16_to_f32(key[i]), lane[i % 16]);
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
        sum[2] += lane[0];
    }
}

static void check_engram_gate(check *c, int64_t T, int64_t D)
{
    enum { S = 4 };
    check_case(c, "engram gate tokens=%lld width=%lld", (long long)T, (long long)D);
    const size_t bytes = (size_t)(T * S * D) * 2;
    uint16_t *H = random_row(c, T * S * D, 2), *want = check_buffer(c, bytes, 16);
    const uint16_t *kv = random_row(c, T * (S + 1) * D, 2);
    const float *qk = random_floats(c, S * D, 1);
    uint16_t *gH = gpu_copy(H, bytes);
    for (int64_t row = 0; row < T * S; row++) {
        const int64_t t = row / S, j = row % S;
        const uint16_t *h = H + row * D, *key = kv + (t * (S + 1) + j) * D, *value = kv + (t * (S + 1) + S) * D;
        float sum[3];
        gate_sums(sum, h, qk + j * D, key, D);
        const float gate = bl_engram_gate_value(sum[0], sum[1], sum[2], D, 1e-6f);
        for (int64_t i = 0; i < D; i++) want[row * D + i] = bl_f32_to_bf16(bl_bf16_to_f32(h[i]) + gate * bl_bf16_to_f32(value[i]));
    }
    bl_cuda_engram_gate(0, gH, gpu_copy(kv, (size_t)(T * (S + 1) * D) * 2), gpu_copy(qk, (size_t)(S * D) * 4), T, D, 1e-6f);
    check_bf16(c, "streams", gpu_result(c, gH, bytes), want, T * S, D);
    gpu_case_end();
}

void check_cuda_rows(check *c)
{
    for (int i = 0; i < 6; i++) {
        const int64_t n = 32 * (1 + check_below(c, 60)), T = 1 + check_below(c, 9);
        check_rounding(c, T, n, (float)ldexp(1, (int)check_below(c, 60) - 30), i % 2);
        check_norm(c, T, n);
        check_streams(c, T, n, 1, 1e-6f);
        check_advance(c, T, n, 1 + check_below(c, 7), i % 2);
        check_route(c, T, 8 + check_below(c, 400), 1 + check_below(c, 8));
        check_swiglu(c, T, n, i % 2 ? 10.0f : 0.0f);
        check_engram_gate(c, T, n);
    }
    check_norm(c, 2, 5120);
    check_engram_gate(c, 2, 5120);
    check_streams(c, 3, 5120, 1, 1e-6f);
    check_streams(c, 8, 64, 60, 0x1p-90f); /* numbers for which division takes its slow path */
    for (int room = 0; room < 2; room++) {
        const int64_t many = BL_CUDA_MIX_MANY;
        check_mixing(c, many, many, 32, 37, room);
        check_mixing(c, many + 1, many + 1, 32 * (1 + check_below(c, sized(40, 12))), 101, room);
        check_mixing(c, many + 70, many + 70, sized(5120, 1088), 182, room);
        if (!sized(1, 0)) continue;
        check_mixing(c, 4200, 300, 32 * (1 + check_below(c, 40)), 101, room); /* blocks on half of the multiprocessors */
        check_mixing(c, 8191, 300, 256, 101, room); /* on nearly all */
        check_mixing(c, 8192, 100, 5120, 33, room); /* and tiles late by different times, as memory is busy */
    }
    check_mixing(c, BL_CUDA_MIX_MANY + 70, BL_CUDA_MIX_MANY + 70, sized(5088, 544), 364, true);
    check_advance(c, 2, 5120, 6, false);
    check_advance(c, 300, 32 * (1 + check_below(c, 60)), 3, false);
    check_advance(c, 257, 2080, 6, true);
    check_engram_rows(c);
    check_engram_gather(c, 32, 7);
    check_engram_gather(c, 64, 1000);
    check_engram_gather(c, 256, 24 * 64);
    check_engram_gather(c, 256, 24 * 2048 + 1);
}
