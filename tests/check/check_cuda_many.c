/* Passes of many tokens, where other kernels take over: grouping by expert, the experts' products, attention. (Dense products of many
 * tokens are among those of check_cuda.c.) */
#include "kernels/cast.h"
#include "kernels/cuda/dot.h"
#include "kernels/ops_variants.h"
#include "tests/check/check_cuda.h"

#include <math.h>
#include <string.h>

typedef struct expert_case {
    int64_t T, k, E, rows, cols;
    bl_cuda_groups groups; /* device */
    int32_t *ids, *token, *slot_of;
    float *gates;
} expert_case;

/* Most tokens choose the first expert, the last one is dropped from the range. */
static void make_choices(check *c, expert_case *e)
{
    const int64_t n = e->T * e->k;
    e->ids = check_buffer(c, (size_t)n * 4, 16);
    e->gates = random_floats(c, n, 1);
    for (int64_t t = 0; t < e->T; t++)
        for (int64_t j = 0; j < e->k; j++) {
            const int64_t shift = t % 3 ? 0 : 1 + check_below(c, e->E - e->k);
            e->ids[t * e->k + j] = (int32_t)((j + shift) % e->E);
        }
    bl_cuda_groups *g = &e->groups;
    g->token = gpu_buffer((size_t)n * 4);
    g->gate = gpu_buffer((size_t)n * 4);
    g->slot_of = gpu_buffer((size_t)n * 4);
    g->units = gpu_buffer((size_t)n * 12);
    g->count = gpu_buffer(4);
    g->classes = gpu_buffer(32);
    g->counts = gpu_buffer((size_t)bl_cuda_sort_counts(e->T, e->k, e->E) * 4);
}

/* Slots by expert, then token; a token's slots ascending, dropped choices last. Returns the slots in use. */
static int64_t compare_sort(check *c, expert_case *e)
{
    const int64_t n = e->T * e->k, kept = e->E - 1;
    int32_t *want_token = check_buffer(c, (size_t)n * 4, 16), *want_slot = check_buffer(c, (size_t)n * 4, 16);
    float *want_gate = check_buffer(c, (size_t)n * 4, 16);
    int64_t slot = 0;
    for (int64_t i = 0; i < n; i++) want_slot[i] = -1;
    for (int64_t x = 0; x < kept; x++)
        for (int64_t i = 0; i < n; i++)
            if (e->ids[i] == x) {
                int64_t j = i / e->k * e->k;
                while (want_slot[j] >= 0) j++;
                want_slot[j] = (int32_t)slot;
                want_token[slot] = (int32_t)(i / e->k);
                want_gate[slot++] = e->gates[i];
            }
    e->token = gpu_result(c, e->groups.token, (size_t)n * 4);
    e->slot_of = gpu_result(c, e->groups.slot_of, (size_t)n * 4);
    check_i32(c, "token", e->token, want_token, 1, slot);
    check_f32(c, "gate", gpu_result(c, e->groups.gate, (size_t)n * 4), want_gate, 1, slot);
    check_i32(c, "slots of tokens", e->slot_of, want_slot, e->T, e->k);
    return slot;
}

static int64_t check_sort(check *c, expert_case *e, bool many)
{
    const int64_t n = e->T * e->k;
    bl_cuda_sort(0, &e->groups, gpu_copy(e->ids, (size_t)n * 4), gpu_copy(e->gates, (size_t)n * 4), e->T, e->k, 0, e->E - 1, many);
    return compare_sort(c, e);
}

/* Routing and sorting at once, against the C reference; experts from the last on are dropped. */
static void check_route_few(check *c, int64_t T, int64_t E, int64_t k)
{
    check_case(c, "route and sort tokens=%lld experts=%lld of=%lld", (long long)T, (long long)k, (long long)E);
    expert_case e = {.T = T, .k = k, .E = E};
    const int64_t n = T * k;
    make_choices(c, &e);
    float *logits = random_floats(c, T * E, 3), *bias = random_floats(c, E, 0.1f), *ggates = gpu_buffer((size_t)n * 4);
    int32_t *gids = gpu_buffer((size_t)n * 4), *want = check_buffer(c, (size_t)n * 12, 16), units = 0;
    for (int64_t i = 0; i < T * E; i += 2) logits[i] = floorf(logits[i]); /* ties */
    for (int64_t t = 0; t < T; t++) bl_route_c(e.ids + t * k, e.gates + t * k, logits + t * E, bias, E, k, 1, 1.5f);
    const bl_cuda_mixing mixing = gpu_mixing(c, T, 32 * (1 + check_below(c, 60)));
    bl_cuda_route_few(0, &e.groups, gids, ggates, gpu_copy(logits, (size_t)(T * E) * 4), gpu_copy(bias, (size_t)E * 4), T, E, k, true, 1.5f,
                      0, E - 1, E % 2 ? &mixing : NULL);
    if (E % 2) check_mixed(c, &mixing);
    check_i32(c, "ids", gpu_result(c, gids, (size_t)n * 4), e.ids, T, k);
    check_f32(c, "gates", gpu_result(c, ggates, (size_t)n * 4), e.gates, T, k);
    compare_sort(c, &e);
    for (int32_t x = 0, slot = 0; x < E - 1; x++) {
        int32_t count = 0;
        for (int64_t i = 0; i < n; i++) count += e.ids[i] == x;
        if (count) want[3 * units] = x, want[3 * units + 1] = slot, want[3 * units + 2] = count, units++;
        slot += count;
    }
    check_i32(c, "number of units", gpu_result(c, e.groups.count, 4), &units, 1, 1);
    check_i32(c, "units", gpu_result(c, e.groups.units, (size_t)units * 12), want, units, 3);
    gpu_case_end();
}

/* Where the four elements of a lane lie in each 16: cuda.h, bl_cuda_many_experts. */
static int64_t spread(int64_t i)
{
    return i / 16 * 16 + i % 16 / 4 * 2 + i % 2 + i % 4 / 2 * 8;
}

/* A weight in tiles, against the order in words of fp4_tiles.h. */
static void check_tiles(check *c, int64_t rows, int64_t cols)
{
    check_case(c, "tiles rows=%lld cols=%lld", (long long)rows, (long long)cols);
    const int64_t code_bytes = rows * cols / 2, scale_bytes = rows * cols / 32, pitch = BL_TILE_SECOND * cols / 2;
    uint8_t *codes = check_buffer(c, (size_t)code_bytes, 16), *scale = check_buffer(c, (size_t)scale_bytes, 16);
    uint8_t *want_scale = check_buffer(c, (size_t)scale_bytes, 16);
    int32_t *want = check_buffer(c, (size_t)code_bytes, 16);
    check_random_bytes(c, codes, (size_t)code_bytes);
    check_random_bytes(c, scale, (size_t)scale_bytes);
    const bl_matrix w = {.kind = BL_W_FP4, .rows = rows, .cols = cols, .codes = gpu_copy(codes, (size_t)code_bytes),
                         .scale = gpu_copy(scale, (size_t)scale_bytes)};
    const int words = (int)(BL_TILE_ROWS * cols / 8), scales = (int)(BL_TILE_ROWS * cols / 32);
    for (int64_t t = 0; t < rows / BL_TILE_ROWS; t++) {
        for (int i = 0; i < words; i++) {
            const uint8_t *p = codes + t * words * 4 + bl_fp4_tile_from(i, (int)cols), *q = p + pitch;
            want[t * words + i] = (int32_t)bl_fp4_tile_word(p[0] | (uint32_t)p[1] << 8, q[0] | (uint32_t)q[1] << 8);
        }
        for (int i = 0; i < scales; i++) want_scale[t * scales + i] = scale[t * scales + bl_fp4_tile_scale_from(i, (int)cols)];
    }
    bl_cuda_tile_fp4(0, &w);
    check_i32(c, "codes", gpu_result(c, w.codes, (size_t)code_bytes), want, rows, cols / 8);
    check_i32(c, "scales", gpu_result(c, w.scale, (size_t)scale_bytes), (const int32_t *)(const void *)want_scale, rows, cols / 128);
    gpu_case_end();
}

static void check_experts(check *c, int64_t T, int64_t k, int64_t E, int64_t rows, int64_t cols, bool by_token)
{
    check_case(c, "experts tokens=%lld choices=%lld of %lld rows=%lld cols=%lld by %s", (long long)T, (long long)k, (long long)E,
               (long long)rows, (long long)cols, by_token ? "token" : "slot");
    expert_case e = {.T = T, .k = k, .E = E, .rows = rows, .cols = cols};
    const int64_t n = T * k, code_bytes = rows * cols / 2, scale_bytes = rows * (cols / 32), xs = by_token ? T : n;
    const bool many = bl_cuda_many_experts(T, BL_W_FP4, rows, cols);
    make_choices(c, &e);
    const int64_t slots = check_sort(c, &e, many);
    uint8_t *codes = check_buffer(c, (size_t)(2 * E * code_bytes), 16), *scale = check_buffer(c, (size_t)(2 * E * scale_bytes), 16);
    check_random_bytes(c, codes, (size_t)(2 * E * code_bytes));
    for (int64_t i = 0; i < 2 * E * scale_bytes; i++) /* small ones (fp4_tiles.h), or of both sorts */
        scale[i] = (uint8_t)(T % 2 ? 100 + check_below(c, 28) : 110 + check_below(c, 30));
    const uint8_t *gcodes = gpu_copy(codes, (size_t)(2 * E * code_bytes)), *gscale = gpu_copy(scale, (size_t)(2 * E * scale_bytes));
    bl_cuda_expert *table = check_buffer(c, (size_t)E * sizeof *table, 16);
    for (int64_t i = 0; i < 2 * E; i++) {
        const bl_matrix w = {.kind = BL_W_FP4, .rows = rows, .cols = cols, .codes = gcodes + i * code_bytes, .scale = gscale + i * scale_bytes};
        bl_cuda_tile_fp4(0, &w);
    }
    for (int64_t i = 0; i < E; i++)
        table[i] = (bl_cuda_expert){.codes = {gcodes + 2 * i * code_bytes, gcodes + (2 * i + 1) * code_bytes, NULL},
                                    .scale = {gscale + 2 * i * scale_bytes, gscale + (2 * i + 1) * scale_bytes, NULL}};
    const uint16_t *x = random_row(c, xs * cols, 2);
    uint16_t *given = check_buffer(c, (size_t)(xs * cols) * 2, 16);
    for (int64_t i = 0; i < xs; i++)
        for (int64_t j = 0; j < cols; j++) given[i * cols + (many && !by_token ? spread(j) : j)] = x[i * cols + j];
    bl_cuda_expert_product p = {.experts = gpu_copy(table, (size_t)E * sizeof *table), .groups = &e.groups, .kind = BL_W_FP4, .rows = rows,
                                .cols = cols, .which = {0, 1}, .count = 2, .x = gpu_copy(given, (size_t)(xs * cols) * 2),
                                .by_token = by_token,
                                .y = {gpu_buffer((size_t)(n * rows) * 2), gpu_buffer((size_t)(n * rows) * 2)}, .T = T, .k = k, .E = E - 1,
                                .many = many, .grouped = gpu_buffer((size_t)(n * cols) * 2)};
    bl_cuda_multiply_experts(0, &p);
    bl_cast_kernels cast;
    bl_cast_init(&cast, 0);
    uint16_t *row = check_buffer(c, (size_t)cols * 2, 16), *want = check_buffer(c, (size_t)(slots * rows) * 2, 16);
    for (int which = 0; which < 2; which++) {
        int32_t expert = 0;
        for (int64_t s = 0, left = 0; s < slots; s++, left--) {
            while (left == 0) { /* the next expert's slots */
                for (int64_t i = 0; i < n; i++) left += e.ids[i] == expert;
                expert++;
            }
            const int64_t w = 2 * (expert - 1) + which;
            for (int64_t r = 0; r < rows; r++) {
                cast.fp4_row(row, codes + w * code_bytes + r * cols / 2, scale + w * scale_bytes + r * (cols / 32), cols);
                want[s * rows + r] = bl_f32_to_bf16(bl_dot_row(row, x + (by_token ? e.token[s] : s) * cols, cols));
            }
        }
        check_bf16(c, which ? "w3" : "w1", gpu_result(c, p.y[which], (size_t)(slots * rows) * 2), want, slots, rows);
    }
    gpu_case_end();
}

void check_cuda_many(check *c)
{
    for (int i = 0; i < 8; i++) check_route_few(c, 1 + check_below(c, 8), 10 + check_below(c, 375), 1 + check_below(c, 8));
    check_route_few(c, 8, 33, 32);
    check_route_few(c, 8, 12, 8);
    check_route_few(c, 8, 384, 6);
    check_route_few(c, 1, 383, 6);
    check_tiles(c, 48, 768);
    check_tiles(c, 2304, 5120);
    check_tiles(c, 16, BL_TILE_MOST_COLS);
    for (int64_t T = 1; T <= 8; T++) check_experts(c, T, 3, 9, 16 * (1 + check_below(c, 4)), 256 * (1 + check_below(c, 20)), T % 3 != 0);
    for (int64_t T = 7; T <= 8; T++) { /* rows as stored */
        check_experts(c, T, 2, 7, 40, 512, true);
        check_experts(c, T, 2, 7, 48, 288, false);
    }
    for (int64_t T = 9; T <= 10; T++) {
        check_experts(c, T, 2, 7, 48, 5632, true); /* more segments than few tokens' kernels take */
        check_experts(c, T + 90, 2, 7, 48, 512, false);
    }
    check_experts(c, 300, 2, 7, 48, 512, true);
    check_experts(c, 301, 2, 7, 48, 512, true);
    check_experts(c, 300, 2, 7, 144, 256, false);
    check_experts(c, 1100, 3, 200, 16, 256, true);
    check_experts(c, 200, 1, 3, 32, 768, false);
}
