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

static void check_attend(check *c, int64_t heads, int64_t d, int64_t R, int64_t window, int64_t topk, int64_t position)
{
    check_case(c, "attend heads=%lld d=%lld window=%lld topk=%lld position=%lld", (long long)heads, (long long)d, (long long)window,
               (long long)topk, (long long)position);
    const int64_t entries = position + 1 < 200 ? position + 1 : 200, pages = (entries + PAGE - 1) / PAGE, ring = window + 8;
    const int64_t kept = topk < entries ? topk : entries, slots = window + topk;
    const size_t wide = bl_window_row_bytes(d), narrow = bl_latent_row_bytes(d);
    uint8_t *rings = check_buffer(c, (size_t)ring * wide, 16), *latents = check_buffer(c, (size_t)(pages * PAGE) * narrow, 16);
    uint16_t *values = check_buffer(c, (size_t)(slots * d) * 2, 16), *want = check_buffer(c, (size_t)(heads * d) * 2, 16), x[MAX_D];
    const uint16_t **rows = check_buffer(c, (size_t)slots * sizeof *rows, 16), *q = random_row(c, heads * d, 1);
    const float *sink = random_floats(c, heads, 1), *rotation = random_floats(c, R, 1);
    int32_t *selected = check_buffer(c, (size_t)(topk + 1) * 4, 16);
    uint8_t kv[MAX_D * 2];
    for (int64_t i = 0; i < ring; i++) check_random_bf16(c, x, (size_t)d, 2), bl_pack_window_c(rings + (size_t)i * wide, x, d);
    for (int64_t i = 0; i < pages * PAGE; i++) check_random_bf16(c, x, (size_t)d, 2), bl_pack_latent_c(latents + (size_t)i * narrow, x, d);
    check_random_bf16(c, x, (size_t)d, 2);
    bl_pack_window_c(kv, x, d);
    for (int64_t i = 0; i < topk; i++) selected[i] = i < kept ? (int32_t)(entries - kept + i) : -1;
    int64_t n = 0;
    for (int64_t at = position >= window ? position - window + 1 : 0; at <= position; at++, n++) {
        bl_unpack_window_c(values + n * d, at == position ? kv : rings + (size_t)(at % ring) * wide, d);
        rows[n] = values + n * d;
    }
    for (; n < window; n++) rows[n] = NULL;
    for (int64_t i = 0; i < topk; i++, n++) {
        rows[n] = i < kept ? values + n * d : NULL;
        if (i < kept) bl_unpack_latent_c(values + n * d, latents + (size_t)selected[i] * narrow, d);
    }
    const float scale = (float)(1.0 / sqrt((double)d));
    for (int64_t h = 0; h < heads; h++) head_model(want + h * d, q + h * d, rows, slots, sink[h], d, scale);
    bl_rope_c(want, heads, d, R, rotation, 1);
    uint8_t *glatents = gpu_copy(latents, (size_t)(pages * PAGE) * narrow);
    bl_cuda_page table[8];
    for (int64_t i = 0; i < pages; i++) table[i] = (bl_cuda_page){glatents + (size_t)(i * PAGE) * narrow, NULL};
    const bl_cuda_span span = {.first = 0, .start = position, .count = 1, .windows = gpu_copy(rings, (size_t)ring * wide)};
    const int64_t zero = 0;
    const int32_t first = 0;
    const bl_cuda_tables t = {.tokens = 1, .position = gpu_copy(&position, sizeof position), .span_of = gpu_copy(&first, sizeof first),
                              .spans = gpu_copy(&span, sizeof span), .pages = gpu_copy(table, sizeof table),
                              .source_pages = gpu_copy(&zero, sizeof zero), .sources = 1};
    const bl_cuda_attention a = {.t = &t, .q = gpu_copy(q, (size_t)(heads * d) * 2), .kv = gpu_copy(kv, wide),
                                 .selected = topk ? gpu_copy(selected, (size_t)topk * 4) : NULL, .sink = gpu_copy(sink, (size_t)heads * 4),
                                 .rotation = gpu_copy(rotation, (size_t)R * 4), .o = gpu_buffer((size_t)(heads * d) * 2), .heads = heads,
                                 .d = d, .R = R, .window = window, .ring = ring, .topk = topk, .scale = scale,
                                 .scores = gpu_buffer(bl_cuda_attend_scores(1, heads, slots)),
                                 .rows = gpu_buffer(bl_cuda_attend_rows(1, slots))};
    bl_cuda_attend(0, &a);
    check_bf16(c, "output", gpu_result(c, a.o, (size_t)(heads * d) * 2), want, heads, d);
    gpu_case_end();
}

static void check_window_rows(check *c, int64_t T, int64_t d, int64_t R)
{
    check_case(c, "window rows tokens=%lld d=%lld", (long long)T, (long long)d);
    const size_t bytes = bl_window_row_bytes(d);
    const uint16_t *x = random_row(c, T * d, 3), *w = random_row(c, d, 1);
    const float *rotation = random_floats(c, T * R, 1);
    uint8_t *want = check_buffer(c, (size_t)T * bytes, 16), *kv = gpu_buffer((size_t)T * bytes);
    uint16_t row[MAX_D];
    for (int64_t t = 0; t < T; t++) {
        bl_rmsnorm_c(row, x + t * d, w, 1, d, 1e-6f);
        bl_rope_c(row, 1, d, R, rotation + t * R, 0);
        bl_pack_window_c(want + (size_t)t * bytes, row, d);
    }
    bl_cuda_window_rows(0, kv, gpu_copy(x, (size_t)(T * d) * 2), gpu_copy(w, (size_t)d * 2), gpu_copy(rotation, (size_t)(T * R) * 4), T, d, R,
                        1e-6f);
    check_u8(c, "rows", gpu_result(c, kv, (size_t)T * bytes), want, T, (int64_t)bytes);
    gpu_case_end();
}

void check_cuda_attention(check *c)
{
    for (int i = 0; i < 8; i++) {
        const int64_t d = 32 * (1 + check_below(c, 16)), R = 16;
        check_attend(c, 1 + check_below(c, 20), d, R, 1 + check_below(c, 140), i % 3 ? 1 + check_below(c, 150) : 0, check_below(c, 400));
        check_window_rows(c, 1 + check_below(c, 4), d, R);
    }
    check_attend(c, 3, 512, 64, 128, 512, 150);
    check_window_rows(c, 3, 512, 64);
}
