/* Few tokens: products that share a launch, held by bytes against the same products each in a launch of its own. */
#include "tests/check/check_cuda.h"

#include <string.h>

static bl_cuda_product product_of(bl_matrix w, const uint16_t *x, int64_t T)
{
    return (bl_cuda_product){.w = w, .rows = w.rows, .x = x, .ldx = w.cols, .tokens = T, .ld = w.rows};
}

static const uint16_t *gpu_rows(check *c, int64_t rows, int64_t cols)
{
    return gpu_copy(random_row(c, rows * cols, 2), (size_t)(rows * cols) * 2);
}

/* The product alone. */
static const uint16_t *alone(check *c, bl_cuda_product p)
{
    const size_t bytes = (size_t)(p.tokens * p.rows) * 2;
    p.y16 = gpu_buffer(bytes);
    p.early = false;
    bl_cuda_multiply(0, &p);
    return gpu_result(c, p.y16, bytes);
}

static void compare(check *c, const char *what, const bl_cuda_product *p)
{
    const uint16_t *want = alone(c, *p);
    check_bf16(c, what, gpu_result(c, p->y16, (size_t)(p->tokens * p->rows) * 2), want, p->tokens, p->rows);
}

static void check_two(check *c, bl_weight_kind kind, int64_t first, int64_t second, int64_t cols, int64_t T)
{
    check_case(c, "two products kind=%d rows=%lld, %lld cols=%lld tokens=%lld", (int)kind, (long long)first, (long long)second,
               (long long)cols, (long long)T);
    const uint16_t *x = gpu_rows(c, T, cols);
    bl_cuda_product p = product_of(gpu_weight(c, kind, first, cols), x, T), q = product_of(gpu_weight(c, kind, second, cols), x, T);
    p.y16 = gpu_buffer((size_t)(T * first) * 2);
    q.y16 = gpu_buffer((size_t)(T * second) * 2);
    p.early = true;
    bl_cuda_multiply_two(0, &p, &q);
    compare(c, "first", &p);
    compare(c, "second", &q);
    gpu_case_end();
}

/* The router's product beside the parts of the mixing's, all in float32. */
static void check_with_parts(check *c, int64_t rows, int64_t cols, int64_t mixes, int64_t mixed, int64_t T)
{
    check_case(c, "product with parts rows=%lld cols=%lld, %lld of %lld tokens=%lld", (long long)rows, (long long)cols, (long long)mixes,
               (long long)mixed, (long long)T);
    const size_t bytes = (size_t)(mixed / BL_DOT_SEGMENT * T * mixes) * 4, sums = (size_t)(T * rows) * 4;
    bl_cuda_product p = product_of(gpu_weight(c, BL_W_BF16, rows, cols), gpu_rows(c, T, cols), T), single = p;
    const bl_cuda_product q = product_of(gpu_weight(c, BL_W_F32, mixes, mixed), gpu_rows(c, T, mixed), T);
    float *parts = gpu_buffer(bytes), *want = gpu_buffer(bytes);
    p.y32 = gpu_buffer(sums);
    single.y32 = gpu_buffer(sums);
    check_int(c, "in one launch", bl_cuda_multiply_with_parts(0, &p, &q, parts), 1);
    bl_cuda_multiply(0, &single);
    bl_cuda_multiply_parts(0, &q, want);
    check_f32(c, "parts", gpu_result(c, parts, bytes), gpu_result(c, want, bytes), mixed / BL_DOT_SEGMENT, T * mixes);
    check_f32(c, "product", gpu_result(c, p.y32, sums), gpu_result(c, single.y32, sums), T, rows);
    gpu_case_end();
}

/* Routed experts in groups as the router makes them, one for each unit of up to `most` tokens; each has its weights. */
static bl_cuda_groups make_groups(check *c, int64_t E, int64_t T, int64_t *slots)
{
    int32_t *units = check_buffer(c, (size_t)E * 12, 16), *token = check_buffer(c, (size_t)(E * T) * 4, 16), count = (int32_t)E;
    *slots = 0;
    for (int32_t e = 0; e < E; e++) {
        const int32_t n = 1 + (int32_t)check_below(c, T);
        units[3 * e] = e, units[3 * e + 1] = (int32_t)*slots, units[3 * e + 2] = n;
        for (int32_t i = 0; i < n; i++) token[(*slots)++] = i;
    }
    return (bl_cuda_groups){.units = gpu_copy(units, (size_t)E * 12), .count = gpu_copy(&count, 4),
                            .token = gpu_copy(token, (size_t)*slots * 4)};
}

/* again: the second product, by slots with one weight; else the first, by tokens with two. */
static void check_joined(check *c, bl_weight_kind kind, int64_t rows, int64_t cols, int64_t T, bool again)
{
    enum { E = 5 };
    check_case(c, "joined experts %s rows=%lld cols=%lld tokens=%lld %s", kind == BL_W_FP8 ? "fp8" : "fp4", (long long)rows,
               (long long)cols, (long long)T, again ? "by slot" : "by token");
    const int count = again ? 1 : 2;
    int64_t slots;
    const bl_cuda_groups groups = make_groups(c, E, T, &slots);
    bl_cuda_expert table[E];
    for (int e = 0; e < E; e++)
        for (int k = 0; k < count; k++) {
            const bl_matrix w = gpu_weight(c, kind, rows, cols);
            table[e].codes[k] = w.codes;
            table[e].scale[k] = w.scale;
        }
    bl_cuda_expert_product p = {.experts = gpu_copy(table, sizeof table), .groups = &groups, .kind = kind, .rows = rows, .cols = cols,
                                .which = {0, 1}, .count = count, .x = gpu_rows(c, again ? slots : T, cols), .by_token = !again, .T = T,
                                .k = E, .E = E, .again = again, .spare = 1};
    bl_cuda_expert_product q = p; /* without the shared expert */
    const uint16_t *x = gpu_rows(c, T, cols);
    bl_cuda_product shared[2];
    for (int k = 0; k < count; k++) {
        p.y[k] = gpu_buffer((size_t)(slots * rows) * 2);
        q.y[k] = gpu_buffer((size_t)(slots * rows) * 2);
        shared[k] = product_of(gpu_weight(c, BL_W_FP8, rows, cols), x, T);
        shared[k].y16 = gpu_buffer((size_t)(T * rows) * 2);
        check_int(c, "joins", bl_cuda_joins_experts(&p, &shared[k]), 1);
    }
    p.shared = shared;
    p.shared_count = count;
    bl_cuda_multiply_experts(0, &p);
    bl_cuda_multiply_experts(0, &q);
    for (int k = 0; k < count; k++) {
        compare(c, "shared", &shared[k]);
        check_bf16(c, "routed", gpu_result(c, p.y[k], (size_t)(slots * rows) * 2), gpu_result(c, q.y[k], (size_t)(slots * rows) * 2), slots,
                   rows);
    }
    gpu_case_end();
}

void check_cuda_few(check *c)
{
    for (int64_t T = 1; T <= 8; T += T < 3 ? 1 : 5) {
        check_two(c, BL_W_FP8, sized(1280, 320), sized(512, 160), 5120, T);
        check_two(c, BL_W_BF16, sized(1280, 70), 33, 1536, T);
        check_two(c, BL_W_FP4, 50, 33, 512, T);
        check_with_parts(c, 100, 1024, 21, 2048, T);
        check_with_parts(c, 7, 5408, 9, 256, T); /* more segments than at once, the last one ragged */
        check_with_parts(c, sized(384, 100), 5120, 24, sized(20480, 5120), T);
        check_joined(c, BL_W_FP4, 160, 512, T, false);
        check_joined(c, BL_W_FP4, sized(2304, 64), 5120, T, false);
        check_joined(c, BL_W_FP4, sized(5120, 128), 2304, T, true);
        check_joined(c, BL_W_FP8, 320, 1280, T, T != 1);
    }
    for (int again = 0; again < 2; again++) check_joined(c, BL_W_FP4, sized(4480, 544), 2816, 2, again); /* blocks take several turns */
    check_joined(c, BL_W_FP4, 16 * sized(900, 120), 256, 2, false); /* more tiles of a block than it has descriptions of at a time */
    check_two(c, BL_W_FP8, 64, 32, 512, 9); /* one after the other */
}
