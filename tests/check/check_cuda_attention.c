/* Sparse attention over window and selected rows, against the host model of its order; window rows against the C reference. */
#include "kernels/cast.h"
#include "kernels/cuda/dot.h"
#include "kernels/fmath.h"
#include "kernels/ops_variants.h"
#include "kernels/row_sum.h"
#include "tests/check/check_cuda.h"

#include <math.h>
#include <string.h>

enum { PAGE = 64, BLOCK = BL_ATTN_BLOCK, MAX_D = 512 };

/* One head's output over a list of bf16 rows (NULL: a hole), as attention.cu states it; rope not undone. */
static void head_model(uint16_t *o, const uint16_t *q, const uint16_t *const *rows, int64_t slots, float sink, int64_t d, float scale)
{
    static const uint16_t zeros[MAX_D];
    float acc[MAX_D] = {0}, peak = -1e30f, total = 0;
    for (int64_t from = 0; from < slots; from += BLOCK) {
        float s[BLOCK], lane[16] = {0}, most = peak;
        uint16_t p[BLOCK], column[BLOCK];
        int any = 0;
        for (int i = 0; i < BLOCK; i++) {
            const uint16_t *row = from + i < slots ? rows[from + i] : NULL;
            s[i] = row ? bl_dot_row(q, row, d) * scale : -INFINITY;
            any |= row != NULL;
            if (s[i] > most) most = s[i];
        }
        if (!any) continue;
        const float fade = bl_exp(peak - most);
        for (int i = 0; i < BLOCK; i++) {
            s[i] = bl_exp(s[i] - most);
            lane[i % 16] += s[i];
            p[i] = bl_f32_to_bf16(s[i]);
        }
        total = total * fade + bl_lane_tree(lane);
        peak = most;
        for (int64_t e = 0; e < d; e++) {
            for (int i = 0; i < BLOCK; i++) column[i] = (from + i < slots && rows[from + i] ? rows[from + i] : zeros)[e];
            acc[e] *= fade;
            for (int k = 0; k < BLOCK; k += 16) acc[e] = bl_dot_step(acc[e], p + k, column + k, 16, 25);
        }
    }
    total += bl_exp(sink - peak);
    for (int64_t e = 0; e < d; e++) o[e] = bl_f32_to_bf16(acc[e] / total);
}

/* T tokens of a sequence from a position on, each with entries of its own. */
static void check_attend(check *c, int64_t T, int64_t heads, int64_t d, int64_t R, int64_t window, int64_t topk, int64_t position)
{
    check_case(c, "attend tokens=%lld heads=%lld d=%lld window=%lld topk=%lld position=%lld", (long long)T, (long long)heads, (long long)d,
               (long long)window, (long long)topk, (long long)position);
    const int64_t entries = position + 1 < 200 ? position + 1 : 200, pages = (entries + PAGE - 1) / PAGE, ring = window + 8;
    const int64_t kept = topk < entries ? topk : entries, slots = window + topk, n = heads * d;
    const size_t wide = bl_window_row_bytes(d), narrow = bl_latent_row_bytes(d);
    uint8_t *rings = check_buffer(c, (size_t)ring * wide, 16), *latents = check_buffer(c, (size_t)(pages * PAGE) * narrow, 16);
    uint8_t *kv = check_buffer(c, (size_t)T * wide, 16);
    uint16_t *values = check_buffer(c, (size_t)(slots * d) * 2, 16), *want = check_buffer(c, (size_t)(T * n) * 2, 16), x[MAX_D];
    const uint16_t **rows = check_buffer(c, (size_t)slots * sizeof *rows, 16), *q = random_row(c, T * n, 1);
    const float *sink = random_floats(c, heads, 1), *rotation = random_floats(c, T * R, 1), scale = (float)(1.0 / sqrt((double)d));
    int32_t *selected = check_buffer(c, (size_t)(T * topk + 1) * 4, 16), *span_of = check_buffer(c, (size_t)T * 4, 16);
    int64_t *positions = check_buffer(c, (size_t)T * 8, 16);
    for (int64_t i = 0; i < ring; i++) check_random_bf16(c, x, (size_t)d, 2), bl_pack_window_c(rings + (size_t)i * wide, x, d);
    for (int64_t i = 0; i < T; i++) check_random_bf16(c, x, (size_t)d, 2), bl_pack_window_c(kv + (size_t)i * wide, x, d);
    for (int64_t i = 0; i < pages * PAGE; i++) check_random_bf16(c, x, (size_t)d, 2), bl_pack_latent_c(latents + (size_t)i * narrow, x, d);
    for (int64_t t = 0; t < T; t++) {
        const int64_t here = position + t, taken = kept - t % 3 > 0 ? kept - t % 3 : 0;
        positions[t] = here;
        span_of[t] = 0;
        int64_t m = 0;
        for (int64_t at = here >= window ? here - window + 1 : 0; at <= here; at++, m++) {
            const uint8_t *row = at >= position ? kv + (size_t)(at - position) * wide : rings + (size_t)(at % ring) * wide;
            bl_unpack_window_c(values + m * d, row, d);
            rows[m] = values + m * d;
        }
        for (; m < window; m++) rows[m] = NULL;
        for (int64_t i = 0; i < topk; i++, m++) {
            const int64_t entry = i < taken ? i * entries / kept + t % 3 : -1;
            selected[t * topk + i] = (int32_t)entry;
            rows[m] = i < taken ? values + m * d : NULL;
            if (i < taken) bl_unpack_latent_c(values + m * d, latents + (size_t)entry * narrow, d);
        }
        for (int64_t h = 0; h < heads; h++) head_model(want + t * n + h * d, q + t * n + h * d, rows, slots, sink[h], d, scale);
        bl_rope_c(want + t * n, heads, d, R, rotation + t * R, 1);
    }
    uint8_t *glatents = gpu_copy(latents, (size_t)(pages * PAGE) * narrow);
    bl_cuda_page table[8];
    for (int64_t i = 0; i < pages; i++) table[i] = (bl_cuda_page){glatents + (size_t)(i * PAGE) * narrow, NULL};
    const bl_cuda_span span = {.first = 0, .start = position, .count = T, .windows = gpu_copy(rings, (size_t)ring * wide)};
    const int64_t zero = 0;
    const bl_cuda_mixing mixing = gpu_mixing(c, T, d);
    const bl_cuda_tables t = {.tokens = T, .position = gpu_copy(positions, (size_t)T * 8), .span_of = gpu_copy(span_of, (size_t)T * 4),
                              .spans = gpu_copy(&span, sizeof span), .pages = gpu_copy(table, sizeof table),
                              .source_pages = gpu_copy(&zero, sizeof zero), .sources = 1};
    const bl_cuda_attention a = {.t = &t, .q = gpu_copy(q, (size_t)(T * n) * 2), .kv = gpu_copy(kv, (size_t)T * wide),
                                 .selected = topk ? gpu_copy(selected, (size_t)(T * topk) * 4) : NULL,
                                 .sink = gpu_copy(sink, (size_t)heads * 4),
                                 .rotation = gpu_copy(rotation, (size_t)(T * R) * 4), .o = gpu_buffer((size_t)(T * n) * 2), .heads = heads,
                                 .d = d, .R = R, .window = window, .ring = ring, .topk = topk, .scale = scale,
                                 .scores = gpu_buffer(bl_cuda_attend_scores(T, heads, slots)),
                                 .mixing = heads % 2 ? &mixing : NULL, .early = T % 2, .fresh = T % 4 == 1};
    bl_cuda_attend(0, &a);
    if (a.mixing) check_mixed(c, a.mixing);
    check_bf16(c, "output", gpu_result(c, a.o, (size_t)(T * n) * 2), want, T * heads, d);
    gpu_case_end();
}

/* Window rows in the launch between the projections; what else it makes is held against launches of their own. */
static void check_between(check *c, const bl_cuda_window *rows)
{
    const int64_t T = rows->t->tokens, n = 32 * (1 + check_below(c, 60)), D = 8 * (1 + check_below(c, 240));
    const int64_t parts = (4 * D + BL_DOT_SEGMENT - 1) / BL_DOT_SEGMENT * T * 24;
    uint16_t *y[4];
    float *sums[2];
    for (int i = 0; i < 4; i++) y[i] = gpu_buffer((size_t)(T * n) * 2);
    for (int i = 0; i < 2; i++) sums[i] = gpu_buffer((size_t)parts * 4);
    const uint16_t *x = gpu_copy(random_row(c, T * n, 3), (size_t)(T * n) * 2), *w = gpu_copy(random_row(c, n, 1), (size_t)n * 2);
    const bl_cuda_product dots = {.w = {.kind = BL_W_F32, .rows = 24, .cols = 4 * D,
                                        .codes = gpu_copy(random_floats(c, 96 * D, 0.02f), (size_t)(96 * D) * 4)},
                                  .rows = 24, .x = gpu_copy(random_row(c, T * 4 * D, 2), (size_t)(T * 4 * D) * 2), .ldx = 4 * D, .tokens = T};
    const int count = (int)check_below(c, BL_CUDA_BESIDE + 1);
    const int64_t cols = 32 * (1 + check_below(c, 170));
    const uint16_t *from = gpu_copy(random_row(c, T * cols, 2), (size_t)(T * cols) * 2);
    bl_cuda_product with[BL_CUDA_BESIDE], alone[BL_CUDA_BESIDE];
    for (int i = 0; i < count; i++) {
        const int64_t out = 1 + check_below(c, 40);
        with[i] = (bl_cuda_product){.w = {.kind = BL_W_BF16, .rows = out, .cols = cols,
                                          .codes = gpu_copy(random_row(c, out * cols, 0.05f), (size_t)(out * cols) * 2)},
                                    .rows = out, .x = from, .ldx = cols, .tokens = T, .ld = out};
        alone[i] = with[i];
        if (i == 1) with[i].y16 = gpu_buffer((size_t)(T * out) * 2), alone[i].y16 = gpu_buffer((size_t)(T * out) * 2);
        else with[i].y32 = gpu_buffer((size_t)(T * out) * 4), alone[i].y32 = gpu_buffer((size_t)(T * out) * 4);
    }
    if (count && check_below(c, 4) == 0) with[count - 1].x = gpu_copy(gpu_result(c, from, (size_t)(T * cols) * 2), (size_t)(T * cols) * 2);
    const bl_cuda_between b = {.y = y[0], .rounded = y[1], .x = x, .norm = w, .n = n, .eps = 1e-6f, .window = *rows, .dots = &dots,
                               .parts = sums[0], .with = with, .with_count = count};
    bl_cuda_prepare_attention(0, &b);
    for (int i = 0; i < count; i++) {
        const int64_t out = alone[i].rows;
        bl_cuda_multiply(0, &alone[i]);
        if (i == 1) check_bf16(c, "rounded products beside", gpu_result(c, with[i].y16, (size_t)(T * out) * 2),
                               gpu_result(c, alone[i].y16, (size_t)(T * out) * 2), T, out);
        else check_f32(c, "products beside", gpu_result(c, with[i].y32, (size_t)(T * out) * 4),
                       gpu_result(c, alone[i].y32, (size_t)(T * out) * 4), T, out);
    }
    bl_cuda_rmsnorm(0, y[2], y[3], x, w, T, n, 1e-6f);
    bl_cuda_multiply_parts(0, &dots, sums[1]);
    for (int i = 0; i < 2; i++)
        check_bf16(c, i ? "rounded" : "norm", gpu_result(c, y[i], (size_t)(T * n) * 2), gpu_result(c, y[i + 2], (size_t)(T * n) * 2), T, n);
    check_f32(c, "parts", gpu_result(c, sums[0], (size_t)parts * 4), gpu_result(c, sums[1], (size_t)parts * 4), parts / 24, 24);
}

/* Also those that go to the ring at once, of positions around its end. */
static void check_window_rows(check *c, int64_t T, int64_t d, int64_t R, bool between)
{
    enum { RING = 19, START = 4 * RING - 2, OFFSET = 3 };
    check_case(c, "window rows tokens=%lld d=%lld between=%d", (long long)T, (long long)d, between);
    const size_t bytes = bl_window_row_bytes(d);
    const uint16_t *x = random_row(c, T * d, 3), *w = random_row(c, d, 1);
    const float *rotation = random_floats(c, T * R, 1);
    uint8_t *want = check_buffer(c, (size_t)T * bytes, 16), *kv = gpu_buffer((size_t)T * bytes);
    uint8_t *rings = gpu_buffer((size_t)(OFFSET + RING) * bytes);
    int64_t *position = check_buffer(c, (size_t)T * 8, 16);
    int32_t *span_of = check_buffer(c, (size_t)T * 4, 16);
    uint16_t row[MAX_D];
    for (int64_t t = 0; t < T; t++) {
        bl_rmsnorm_c(row, x + t * d, w, 1, d, 1e-6f);
        bl_rope_c(row, 1, d, R, rotation + t * R, 0);
        bl_pack_window_c(want + (size_t)t * bytes, row, d);
        position[t] = START + t;
        span_of[t] = 0;
    }
    const bl_cuda_span span = {.first = 0, .start = START, .count = T, .windows = rings};
    const bl_cuda_tables t = {.tokens = T, .position = gpu_copy(position, (size_t)T * 8), .span_of = gpu_copy(span_of, (size_t)T * 4),
                              .spans = gpu_copy(&span, sizeof span)};
    const bl_cuda_window rows = {.t = &t, .kv = kv, .down = gpu_copy(x, (size_t)(T * d) * 2), .norm = gpu_copy(w, (size_t)d * 2),
                                 .rotation = gpu_copy(rotation, (size_t)(T * R) * 4), .d = d, .R = R, .eps = 1e-6f,
                                 .ring = T % 2 ? RING : 0, .layer_offset = OFFSET * (int64_t)bytes};
    if (between) check_between(c, &rows);
    else bl_cuda_window_rows(0, &rows);
    check_u8(c, "rows", gpu_result(c, kv, (size_t)T * bytes), want, T, (int64_t)bytes);
    if (T % 2 == 0) bl_cuda_store_window(0, &t, kv, d, RING, OFFSET * (int64_t)bytes);
    const uint8_t *stored = gpu_result(c, rings, (size_t)(OFFSET + RING) * bytes);
    for (int64_t i = 0; i < T; i++)
        check_u8(c, "stored", stored + (size_t)(OFFSET + (START + i) % RING) * bytes, want + (size_t)i * bytes, 1, (int64_t)bytes);
    gpu_case_end();
}

void check_cuda_attention(check *c)
{
    for (int i = 0; i < 8; i++) {
        const int64_t d = 32 * (1 + check_below(c, 16)), R = 16;
        check_attend(c, 1, 1 + check_below(c, 20), d, R, 1 + check_below(c, 140), i % 3 ? 1 + check_below(c, 150) : 0, check_below(c, 400));
        check_window_rows(c, 1 + check_below(c, 4), d, R, i % 2);
    }
    check_attend(c, 1, 3, 512, 64, 128, 512, 150);
    check_attend(c, 3, 5, 64, 16, 20, 30, 60);
    /* of the released head dimension: kernels of their own, for tokens by pairs of blocks (the first five) and for more */
    check_attend(c, 40, 5, 512, 64, 128, 150, 90);
    check_attend(c, 26, 20, 512, 64, 100, 70, 400);
    check_attend(c, 24, 70, 512, 64, 20, 0, 5);
    check_attend(c, 25, 3, 512, 64, 128, 140, 10); /* blocks of holes between others */
    check_attend(c, 24, 3, 512, 64, 400, 240, 500); /* as many blocks as at released sizes */
    check_attend(c, 5, 3, 512, 64, 128, 150, 300);
    check_attend(c, 8, 64, 512, 64, 128, 512, 700);
    check_attend(c, 140, 2, 512, 64, 128, 0, 0);
    check_attend(c, 135, 3, 512, 64, 20, 70, 30);
    check_window_rows(c, 3, 512, 64, false);
    check_window_rows(c, 8, 512, 64, true);
}
