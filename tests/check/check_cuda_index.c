/* Index scores, candidate blocks and selection against the C references, through a sequence's pages. */
#include "kernels/cast.h"
#include "kernels/ops_variants.h"
#include "tests/check/check_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 64, ROWS = 3, MANY_ROWS = 65 /* each is a block's to choose for */ };
typedef enum key_kind { DISTINCT, TIES, EQUAL, WILD_SCALES } key_kind;

static uint8_t *packed_rows(check *c, int64_t n, int64_t width)
{
    const size_t bytes = bl_index_row_bytes(width);
    uint8_t *rows = check_buffer(c, (size_t)n * bytes, 16);
    uint16_t x[256];
    for (int64_t i = 0; i < n; i++) {
        check_random_bf16(c, x, (size_t)width, 1);
        bl_pack_index_c(rows + (size_t)i * bytes, x, width);
    }
    return rows;
}

/* Scales of any size in every third group, products of which are finite. */
static void spread_scales(check *c, uint8_t *rows, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n * (width / 32); i++)
        if (check_below(c, 3) == 0)
            rows[i / (width / 32) * (int64_t)bl_index_row_bytes(width) + width / 2 + i % (width / 32)] = (uint8_t)check_below(c, 180);
}

static void candidate_list(int32_t *out, const float *scores, int64_t n, int64_t blocks, int64_t size)
{
    const int64_t count = (n + size - 1) / size;
    uint8_t *keep = malloc((size_t)n + 1);
    float *scratch = malloc((size_t)(2 * count + 1) * sizeof *scratch);
    int64_t kept = 0;
    bl_select_candidates(keep, scores, n, n, blocks, size, scratch);
    for (int64_t i = 0; i < count; i++)
        if (keep[i * size]) out[kept++] = (int32_t)i;
    while (kept < blocks) out[kept++] = -1;
    free(keep);
    free(scratch);
}

/* The tokens see n, n - 1, ... entries; filtered as the runtime does it: candidates side by side. */
static void check_selection(check *c, int64_t rows, int64_t n, int64_t heads, int64_t width, int64_t topk, int64_t blocks, int64_t size,
                            key_kind kind)
{
    check_case(c, "select rows=%lld entries=%lld heads=%lld width=%lld k=%lld blocks=%lldx%lld kind=%d", (long long)rows, (long long)n, (long long)heads,
               (long long)width, (long long)topk, (long long)blocks, (long long)size, (int)kind);
    const size_t bytes = bl_index_row_bytes(width);
    const int64_t pages = (n + PAGE - 1) / PAGE, longest = 2 * n + 16;
    uint8_t *keys = packed_rows(c, pages * PAGE, width), *q = packed_rows(c, rows * heads, width);
    for (int64_t i = 1; i < n; i++)
        if (kind == EQUAL || (kind == TIES && check_below(c, 3)))
            memcpy(keys + (size_t)i * bytes, keys + (size_t)(kind == EQUAL ? 0 : check_below(c, i)) * bytes, bytes);
    if (kind == WILD_SCALES) {
        spread_scales(c, keys, n, width);
        spread_scales(c, q, rows * heads, width);
    }
    const float *w = random_floats(c, rows * heads, 1);
    float *scores = check_buffer(c, (size_t)n * 4, 16), *scratch = check_buffer(c, (size_t)n * 4, 16);
    int32_t *want = check_buffer(c, (size_t)(rows * topk) * 4, 16), *list = check_buffer(c, (size_t)(rows * blocks) * 4, 16);
    bl_cuda_page *table = check_buffer(c, (size_t)pages * sizeof *table, 16);
    uint8_t *gkeys = gpu_copy(keys, (size_t)(pages * PAGE) * bytes);
    for (int64_t i = 0; i < pages; i++) table[pages - 1 - i] = (bl_cuda_page){NULL, NULL}; /* filled below */
    for (int64_t i = 0; i < pages; i++) table[i].keys = gkeys + (size_t)(i * PAGE) * bytes;
    const bl_cuda_span span = {.first = 0, .start = n - rows, .count = rows};
    const int64_t zero = 0;
    const int32_t span_of[MANY_ROWS] = {0};
    int64_t position[MANY_ROWS];
    for (int64_t r = 0; r < rows; r++) position[r] = n - rows + r;
    const bl_cuda_tables t = {.tokens = rows, .position = gpu_copy(position, sizeof position), .span_of = gpu_copy(span_of, sizeof span_of),
                              .spans = gpu_copy(&span, sizeof span), .pages = gpu_copy(table, (size_t)pages * sizeof *table),
                              .source_pages = gpu_copy(&zero, sizeof zero), .sources = 1};
    bl_cuda_selection a = {.t = &t, .queries = gpu_copy(q, (size_t)(rows * heads) * bytes),
                           .weights = gpu_copy(w, (size_t)(rows * heads) * 4),
                           .rows = rows, .heads = heads, .width = width, .ratio = 1, .topk = topk, .longest = longest,
                           .scores = gpu_buffer((size_t)(rows * longest) * 4), .best = gpu_buffer((size_t)(rows * longest) * 4),
                           .selected = gpu_buffer((size_t)(rows * topk) * 4), .candidates = gpu_buffer((size_t)(rows * blocks) * 4),
                           .blocks = blocks, .size = size, .publish = true};
    for (int64_t r = 0; r < rows; r++) {
        bl_index_scores_c(scores, q + (size_t)(r * heads) * bytes, w + r * heads, heads, width, keys, position[r] + 1);
        int64_t taken = bl_select_top(want + r * topk, scores, position[r] + 1, topk, scratch);
        while (taken < topk) want[r * topk + taken++] = -1;
        candidate_list(list + r * blocks, scores, position[r] + 1, blocks, size);
    }
    bl_cuda_select(0, &a);
    const float *got = gpu_result(c, a.scores, (size_t)(rows * longest) * 4);
    check_f32(c, "scores of the last token", got + (rows - 1) * longest, scores, 1, n);
    check_i32(c, "selected", gpu_result(c, a.selected, (size_t)(rows * topk) * 4), want, rows, topk);
    check_i32(c, "candidates", gpu_result(c, a.candidates, (size_t)(rows * blocks) * 4), list, rows, blocks);
    a.publish = false;
    a.filtered = true;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t seen = position[r] + 1;
        bl_index_scores_c(scores, q + (size_t)(r * heads) * bytes, w + r * heads, heads, width, keys, seen);
        for (int64_t i = 0, b = 0; i < seen; i++) { /* what is no candidate cannot be chosen */
            while (b < blocks && list[r * blocks + b] >= 0 && list[r * blocks + b] < i / size) b++;
            if (b == blocks || list[r * blocks + b] != i / size) scores[i] = -INFINITY;
        }
        int64_t taken = bl_select_top(want + r * topk, scores, seen, topk, scratch);
        while (taken < topk) want[r * topk + taken++] = -1;
    }
    bl_cuda_select(0, &a);
    check_i32(c, "filtered", gpu_result(c, a.selected, (size_t)(rows * topk) * 4), want, rows, topk);
    gpu_case_end();
}

void check_cuda_index(check *c)
{
    for (int i = 0; i < 12; i++)
        check_selection(c, ROWS, 4 + check_below(c, 700), 1 + check_below(c, 64), 32 * (1 + check_below(c, 4)), 1 + check_below(c, 100),
                        1 + check_below(c, 40), 1 + check_below(c, 8), (key_kind)(i % 4));
    /* a block chooses; or a cluster of blocks: from few candidates, or where too many are alike from all; or again a block */
    for (int kind = DISTINCT; kind <= WILD_SCALES; kind++) {
        check_selection(c, ROWS, 5000, sized(32, 8), 128, 512, 128, 8, (key_kind)kind);
        check_selection(c, ROWS, sized(20001, 9001) + check_below(c, 99), 3, 128, 512, 128, 8, (key_kind)kind);
    }
    if (sized(1, 0)) check_selection(c, MANY_ROWS, 8300, 3, 128, 512, 128, 8, TIES);
}
