/* Embedding, sums, positions, and what the compressor and the indexer store, against the C references. */
#include "kernels/cast.h"
#include "kernels/ops_variants.h"
#include "runtime/rope.h"
#include "tests/check/check_cuda.h"

#include <string.h>

enum { SPANS = 3, SOURCES = 2, SOURCE = 1, PAGE = 64, START = 300, COUNT = 40, MOST = SPANS * COUNT, PAGES = (START + COUNT) / PAGE + 1 };

/* Tokens of three sequences, which may begin and end within a pair. */
typedef struct tokens {
    int64_t count;
    int64_t first[SPANS], start[SPANS], length[SPANS];
    int64_t position[MOST];
    int32_t span_of[MOST];
} tokens;

static tokens tokens_of(check *c, int64_t most)
{
    tokens k = {0};
    for (int i = 0; i < SPANS; i++) {
        k.first[i] = k.count;
        k.start[i] = check_below(c, START);
        k.length[i] = 1 + check_below(c, most);
        for (int64_t j = 0; j < k.length[i]; j++, k.count++) {
            k.position[k.count] = k.start[i] + j;
            k.span_of[k.count] = i;
        }
    }
    return k;
}

static tokens random_tokens(check *c)
{
    return tokens_of(c, COUNT);
}

/* open [SPANS][SOURCES][2][d], latents and keys [SPANS][SOURCES][PAGES][PAGE] rows, all on the GPU; NULL where they are not used. */
static bl_cuda_tables tables_of(const tokens *k, float *open, uint8_t *latents, uint8_t *keys, int64_t d, int64_t width)
{
    bl_cuda_span spans[SPANS];
    bl_cuda_page pages[SPANS * SOURCES * PAGES];
    int64_t source_pages[SPANS * SOURCES];
    for (int64_t i = 0; i < SPANS; i++)
        spans[i] = (bl_cuda_span){.first = k->first[i], .start = k->start[i], .count = k->length[i],
                                  .open = open ? open + i * SOURCES * 2 * d : NULL, .pages = i * SOURCES * PAGES};
    for (int64_t i = 0; i < SPANS * SOURCES; i++) source_pages[i] = i % SOURCES * PAGES;
    for (size_t i = 0; i < SPANS * SOURCES * PAGES; i++)
        pages[i] = (bl_cuda_page){latents ? latents + i * PAGE * bl_latent_row_bytes(d) : NULL,
                                  keys ? keys + i * PAGE * bl_index_row_bytes(width) : NULL};
    return (bl_cuda_tables){.tokens = k->count, .position = gpu_copy(k->position, sizeof k->position),
                            .span_of = gpu_copy(k->span_of, sizeof k->span_of), .spans = gpu_copy(spans, sizeof spans),
                            .pages = gpu_copy(pages, sizeof pages), .source_pages = gpu_copy(source_pages, sizeof source_pages),
                            .sources = SOURCES};
}

/* What gpu_buffer leaves where nothing is written. */
static void *untouched(check *c, size_t bytes)
{
    return memset(check_buffer(c, bytes, 16), 0xa5, bytes);
}

/* ---- embedding, sums */

static void check_embed(check *c, int64_t T, int64_t D)
{
    enum { FIRST = 100, ROWS = 37, S = 4 };
    check_case(c, "embed tokens=%lld width=%lld", (long long)T, (long long)D);
    const size_t bytes = (size_t)(T * D) * 2;
    const uint16_t *table = random_row(c, ROWS * D, 1);
    int32_t *ids = check_buffer(c, (size_t)T * 4, 16);
    uint16_t *want = check_buffer(c, bytes, 16), *streams = check_buffer(c, S * bytes, 16), *x = gpu_buffer(bytes), *H = gpu_buffer(S * bytes);
    float *first = check_buffer(c, (size_t)(T * S) * 4, 16), *pre = gpu_buffer((size_t)(T * S) * 4);
    memset(want, 0, bytes);
    for (int64_t t = 0; t < T; t++) {
        ids[t] = (int32_t)(FIRST - 5 + check_below(c, ROWS + 10)); /* some are on other ranks */
        if (ids[t] >= FIRST && ids[t] < FIRST + ROWS) memcpy(want + t * D, table + (ids[t] - FIRST) * D, (size_t)D * 2);
        for (int j = 0; j < S; j++) {
            memcpy(streams + (t * S + j) * D, want + t * D, (size_t)D * 2);
            first[t * S + j] = j == 0;
        }
    }
    bl_cuda_embed(0, x, gpu_copy(table, ROWS * (size_t)D * 2), gpu_copy(ids, (size_t)T * 4), FIRST, ROWS, T, D);
    bl_cuda_fan_out(0, H, pre, x, T, D);
    check_bf16(c, "rows", gpu_result(c, x, bytes), want, T, D);
    check_bf16(c, "streams", gpu_result(c, H, S * bytes), streams, T * S, D);
    check_f32(c, "pre", gpu_result(c, pre, (size_t)(T * S) * 4), first, T, S);
    gpu_case_end();
}

static void check_sums(check *c, int64_t T, int64_t k, int64_t D, bool with_shared)
{
    check_case(c, "sum of experts tokens=%lld choices=%lld width=%lld shared=%d", (long long)T, (long long)k, (long long)D, with_shared);
    const int64_t slots = T * k;
    const uint16_t *y = random_row(c, slots * D, 1), *shared = random_row(c, T * D, 1);
    int32_t *slot_of = check_buffer(c, (size_t)slots * 4, 16);
    float *want = check_buffer(c, (size_t)(T * D) * 4, 16), *partial = gpu_buffer((size_t)(T * D) * 4);
    uint16_t *rounded = check_buffer(c, (size_t)(T * D) * 2, 16), *z = gpu_buffer((size_t)(T * D) * 2);
    memset(want, 0, (size_t)(T * D) * 4);
    for (int64_t i = 0; i < slots; i++) slot_of[i] = check_below(c, 4) ? (int32_t)check_below(c, slots) : -1;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t j = 0; j < k; j++)
            if (slot_of[t * k + j] >= 0) bl_accumulate_c(want + t * D, y + slot_of[t * k + j] * D, D);
        if (with_shared) bl_accumulate_c(want + t * D, shared + t * D, D);
    }
    bl_to_bf16_c(rounded, want, T * D);
    bl_cuda_sum_experts(0, partial, gpu_copy(y, (size_t)(slots * D) * 2), gpu_copy(slot_of, (size_t)slots * 4),
                        with_shared ? gpu_copy(shared, (size_t)(T * D) * 2) : NULL, T, k, D);
    bl_cuda_to_bf16(0, z, partial, T * D);
    check_f32(c, "sum", gpu_result(c, partial, (size_t)(T * D) * 4), want, T, D);
    check_bf16(c, "rounded", gpu_result(c, z, (size_t)(T * D) * 2), rounded, T, D);
    gpu_case_end();
}

/* ---- positions, and queries of the indexer */

static float *random_frequencies(check *c, int64_t n)
{
    float *f = random_floats(c, n, 1);
    for (int64_t i = 0; i < n; i++) f[i] = 1 / (1 + f[i] * f[i] * 1000);
    return f;
}

static void check_positions(check *c, int64_t heads, int64_t d, int64_t R)
{
    check_case(c, "positions heads=%lld width=%lld rotated=%lld", (long long)heads, (long long)d, (long long)R);
    tokens k = random_tokens(c);
    for (int64_t t = 0; t < k.count; t += 3) k.position[t] = check_below(c, 1 << 20);
    const int64_t T = k.count;
    const size_t bytes = (size_t)(T * heads * d) * 2, turns = (size_t)(T * R) * 4;
    const float *f = random_frequencies(c, R);
    float *cs[2];
    uint16_t *q = random_row(c, T * heads * d, 2), *gq = gpu_copy(q, bytes);
    bl_cuda_tables t = tables_of(&k, NULL, NULL, NULL, d, 32);
    for (int i = 0; i < 2; i++) {
        cs[i] = check_buffer(c, turns, 16);
        t.rotation[i] = gpu_buffer(turns);
        for (int64_t j = 0; j < T; j++) bl_rope_rotation(cs[i] + j * R, f + i * (R / 2), (int)(R / 2), k.position[j]);
    }
    for (int64_t j = 0; j < T; j++) bl_rope_c(q + j * heads * d, heads, d, R, cs[1] + j * R, 0);
    bl_cuda_rotations(0, &t, gpu_copy(f, (size_t)R * 4), R);
    for (int i = 0; i < 2; i++) check_f32(c, i ? "compressed" : "plain", gpu_result(c, t.rotation[i], turns), cs[i], T, R);
    bl_cuda_rope(0, gq, gpu_copy(cs[1], turns), T, heads, d, R);
    check_bf16(c, "rotated", gpu_result(c, gq, bytes), q, T * heads, d);
    gpu_case_end();
}

static void check_index_queries(check *c, int64_t T, int64_t heads, int64_t width, int64_t R)
{
    check_case(c, "index queries tokens=%lld heads=%lld width=%lld rotated=%lld", (long long)T, (long long)heads, (long long)width,
               (long long)R);
    const size_t row = bl_index_row_bytes(width), n = (size_t)(T * heads);
    uint16_t *q = random_row(c, T * heads * width, 2);
    const uint16_t *dots = random_row(c, T * heads, 3), *gq = gpu_copy(q, n * (size_t)width * 2);
    const float *f = random_frequencies(c, R / 2), scale = 0.0137f;
    float *cs = check_buffer(c, (size_t)(T * R) * 4, 16), *weights = check_buffer(c, n * 4, 16), *gweights = gpu_buffer(n * 4);
    uint8_t *want = check_buffer(c, n * row, 16), *rows = gpu_buffer(n * row);
    for (int64_t t = 0; t < T; t++) {
        bl_rope_rotation(cs + t * R, f, (int)(R / 2), check_below(c, 1 << 20));
        bl_rope_c(q + t * heads * width, heads, width, R, cs + t * R, 0);
    }
    for (size_t i = 0; i < n; i++) {
        bl_pack_index_c(want + i * row, q + i * (size_t)width, width);
        weights[i] = bl_bf16_to_f32(bl_f32_to_bf16(bl_bf16_to_f32(dots[i]) * scale));
    }
    const bl_cuda_index_query query = {.rows = rows, .weights = gweights, .q = gq, .dots = gpu_copy(dots, n * 2),
                                       .rotation = gpu_copy(cs, (size_t)(T * R) * 4), .T = T, .heads = heads, .width = width, .R = R,
                                       .scale = scale};
    bl_cuda_index_queries(0, &query);
    check_u8(c, "rows", gpu_result(c, rows, n * row), want, (int64_t)n, (int64_t)row);
    check_f32(c, "weights", gpu_result(c, gweights, n * 4), weights, T, heads);
    gpu_case_end();
}

/* ---- the compressor */

static void check_pairs(check *c, int64_t d)
{
    check_case(c, "pairs width=%lld", (long long)d);
    const tokens k = random_tokens(c);
    const int64_t T = k.count;
    const size_t bytes = (size_t)(T * d) * 4, kept = (size_t)(SPANS * SOURCES * 2 * d) * 4;
    const float *kv = random_floats(c, T * d, 2), *z = random_floats(c, T * d, 3);
    float *open = random_floats(c, SPANS * SOURCES * 2 * d, 2), *gopen = gpu_copy(open, kept);
    uint16_t *want = untouched(c, bytes / 2), *pooled = gpu_buffer(bytes / 2);
    for (int64_t t = 0; t < T; t++) {
        const int64_t i = k.span_of[t];
        const float *from = open + (i * SOURCES + SOURCE) * 2 * d;
        const bool here = k.position[t] > k.start[i];
        if (k.position[t] % 2)
            bl_pool_pair_c(want + t * d, here ? kv + (t - 1) * d : from, here ? z + (t - 1) * d : from + d, kv + t * d, z + t * d, d);
    }
    for (int64_t i = 0; i < SPANS; i++) {
        float *to = open + (i * SOURCES + SOURCE) * 2 * d;
        const int64_t last = k.first[i] + k.length[i] - 1;
        if (k.position[last] % 2) continue;
        memcpy(to, kv + last * d, (size_t)d * 4);
        memcpy(to + d, z + last * d, (size_t)d * 4);
    }
    const bl_cuda_tables t = tables_of(&k, gopen, NULL, NULL, d, 32);
    bl_cuda_pool_pairs(0, &t, pooled, gpu_copy(kv, bytes), gpu_copy(z, bytes), d, SOURCE);
    check_bf16(c, "pooled", gpu_result(c, pooled, bytes / 2), want, T, d);
    check_f32(c, "open", gpu_result(c, gopen, kept), open, SPANS * SOURCES * 2, d);
    gpu_case_end();
}

static void check_entries(check *c, int64_t d, int64_t width, int64_t R, int64_t ratio)
{
    enum { ROWS = SPANS * SOURCES * PAGES * PAGE };
    check_case(c, "entries of %lld tokens, width=%lld, key=%lld rotated=%lld", (long long)ratio, (long long)d, (long long)width,
               (long long)R);
    const tokens k = random_tokens(c);
    const int64_t T = k.count;
    const size_t wide = bl_latent_row_bytes(d), narrow = bl_index_row_bytes(width);
    uint16_t *latent = random_row(c, T * d, 2), *key = random_row(c, T * width, 2);
    const uint16_t *norm = random_row(c, width, 1);
    const float *f = random_frequencies(c, R / 2);
    uint8_t *latents = untouched(c, ROWS * wide), *keys = untouched(c, ROWS * narrow);
    uint8_t *glatents = gpu_buffer(ROWS * wide), *gkeys = gpu_buffer(ROWS * narrow);
    const bl_cuda_tables t = tables_of(&k, NULL, glatents, gkeys, d, width);
    const bl_cuda_entries e = {.t = &t, .latent = gpu_copy(latent, (size_t)(T * d) * 2), .key = gpu_copy(key, (size_t)(T * width) * 2),
                               .k_norm = gpu_copy(norm, (size_t)width * 2), .frequency = gpu_copy(f, (size_t)(R / 2) * 4), .d = d,
                               .width = width, .R = R, .ratio = ratio, .source = SOURCE, .eps = 1e-6f};
    for (int64_t i = 0; i < T; i++) {
        const int64_t entry = k.position[i] / ratio, row = (k.span_of[i] * SOURCES + SOURCE) * PAGES * PAGE + entry;
        float cs[BL_CUDA_MAX_INDEX_DIM];
        if ((k.position[i] + 1) % ratio) continue;
        bl_rope_rotation(cs, f, (int)(R / 2), entry * ratio);
        bl_rmsnorm_c(key + i * width, key + i * width, norm, 1, width, 1e-6f);
        bl_rope_c(key + i * width, 1, width, R, cs, 0);
        bl_rope_c(latent + i * d, 1, d, R, cs, 0);
        bl_pack_index_c(keys + (size_t)row * narrow, key + i * width, width);
        bl_pack_latent_c(latents + (size_t)row * wide, latent + i * d, d);
    }
    bl_cuda_store_entries(0, &e);
    check_u8(c, "latents", gpu_result(c, glatents, ROWS * wide), latents, ROWS, (int64_t)wide);
    check_u8(c, "keys", gpu_result(c, gkeys, ROWS * narrow), keys, ROWS, (int64_t)narrow);
    gpu_case_end();
}

/* ---- a few tokens in one launch, against launches of their own, which are checked above */

/* What the two ways write. */
typedef struct written {
    uint16_t *q;
    uint8_t *rows, *latents, *keys;
    float *weights, *open;
} written;

static void check_behind(check *c, int64_t d, int64_t width, int64_t R, int64_t ratio, bool with_index, bool with_entries)
{
    enum { ROWS = SPANS * SOURCES * PAGES * PAGE };
    const tokens k = tokens_of(c, 2);
    const int64_t T = k.count, heads = 1 + check_below(c, 20), index_heads = 1 + check_below(c, BL_CUDA_MAX_HEADS);
    check_case(c, "behind tokens=%lld heads=%lld width=%lld rotated=%lld ratio=%lld key=%lld index=%d entries=%d", (long long)T,
               (long long)heads, (long long)d, (long long)R, (long long)ratio, (long long)width, with_index, with_entries);
    const size_t queries = (size_t)(T * heads * d) * 2, asked = (size_t)(T * index_heads), row = bl_index_row_bytes(width);
    const size_t wide = ROWS * bl_latent_row_bytes(d), narrow = ROWS * row, kept = (size_t)(SPANS * SOURCES * 2 * d) * 4;
    const uint16_t *q = random_row(c, T * heads * d, 2), *latent = random_row(c, T * d, 2);
    const float *open = random_floats(c, SPANS * SOURCES * 2 * d, 2), *f = random_frequencies(c, R / 2);
    const float *turns = gpu_copy(random_floats(c, T * R, 1), (size_t)(T * R) * 4);
    const float *kv = gpu_copy(random_floats(c, T * d, 2), (size_t)(T * d) * 4), *z = gpu_copy(random_floats(c, T * d, 3), (size_t)(T * d) * 4);
    const uint16_t *norm = gpu_copy(random_row(c, d, 1), (size_t)d * 2), *k_norm = gpu_copy(random_row(c, width, 1), (size_t)width * 2);
    const bl_matrix wk = {.kind = BL_W_BF16, .rows = width, .cols = d,
                          .codes = gpu_copy(random_row(c, width * d, 0.05f), (size_t)(width * d) * 2)};
    const uint16_t *index_q = gpu_copy(random_row(c, T * index_heads * width, 2), asked * (size_t)width * 2);
    const uint16_t *dots = gpu_copy(random_row(c, T * index_heads, 3), asked * 2);
    const float *frequency = gpu_copy(f, (size_t)(R / 2) * 4);
    written out[2];
    for (int i = 0; i < 2; i++) {
        out[i] = (written){.q = gpu_copy(q, queries), .rows = gpu_buffer(asked * row), .latents = gpu_buffer(wide),
                           .keys = gpu_buffer(narrow), .weights = gpu_buffer(asked * 4), .open = gpu_copy(open, kept)};
        uint16_t *pooled = gpu_copy(latent, (size_t)(T * d) * 2), *key = gpu_buffer((size_t)(T * width) * 2);
        const bl_cuda_tables t = tables_of(&k, out[i].open, out[i].latents, out[i].keys, d, width);
        const bl_cuda_index_query index = {.rows = out[i].rows, .weights = out[i].weights, .q = index_q, .dots = dots, .rotation = turns,
                                           .T = T, .heads = index_heads, .width = width, .R = R, .scale = 0.0137f};
        const bl_cuda_entries e = {.t = &t, .latent = pooled, .key = key, .k_norm = k_norm, .frequency = frequency, .d = d, .width = width,
                                   .R = R, .ratio = ratio, .source = SOURCE, .eps = 1e-6f};
        const bl_cuda_compression entries = {.e = &e, .kv = ratio > 1 ? kv : NULL, .z = ratio > 1 ? z : NULL, .norm = norm, .wk = wk};
        const bl_cuda_behind b = {.q = out[i].q, .rotation = turns, .T = T, .heads = heads, .d = d, .R = R,
                                  .index = with_index ? &index : NULL, .entries = with_entries ? &entries : NULL};
        if (i == 0) {
            bl_cuda_finish_queries(0, &b);
            continue;
        }
        bl_cuda_rope(0, out[i].q, turns, T, heads, d, R);
        if (with_index) bl_cuda_index_queries(0, &index);
        if (!with_entries) continue;
        if (ratio > 1) bl_cuda_pool_pairs(0, &t, pooled, kv, z, d, SOURCE);
        bl_cuda_rmsnorm(0, pooled, NULL, pooled, norm, T, d, 1e-6f);
        const bl_cuda_product product = {.w = wk, .rows = width, .x = pooled, .ldx = d, .tokens = T, .y16 = key, .ld = width};
        bl_cuda_multiply(0, &product);
        bl_cuda_store_entries(0, &e);
    }
    check_bf16(c, "rotated", gpu_result(c, out[0].q, queries), gpu_result(c, out[1].q, queries), T * heads, d);
    check_u8(c, "rows", gpu_result(c, out[0].rows, asked * row), gpu_result(c, out[1].rows, asked * row), T * index_heads, (int64_t)row);
    check_f32(c, "weights", gpu_result(c, out[0].weights, asked * 4), gpu_result(c, out[1].weights, asked * 4), T, index_heads);
    check_u8(c, "latents", gpu_result(c, out[0].latents, wide), gpu_result(c, out[1].latents, wide), ROWS, (int64_t)(wide / ROWS));
    check_u8(c, "keys", gpu_result(c, out[0].keys, narrow), gpu_result(c, out[1].keys, narrow), ROWS, (int64_t)row);
    check_f32(c, "open", gpu_result(c, out[0].open, kept), gpu_result(c, out[1].open, kept), SPANS * SOURCES * 2, d);
    gpu_case_end();
}

void check_cuda_entries(check *c)
{
    for (int i = 0; i < 6; i++) {
        const int64_t d = 32 * (1 + check_below(c, 16)), width = 32 * (1 + check_below(c, 4)), T = 1 + check_below(c, 70);
        const int64_t R = 2 * (1 + check_below(c, (width < d ? width : d) / 2));
        check_embed(c, T, d);
        check_sums(c, T, 1 + check_below(c, 8), d, i % 2);
        check_positions(c, 1 + check_below(c, 9), d, R);
        check_index_queries(c, T, 1 + check_below(c, BL_CUDA_MAX_HEADS), width, R);
        check_pairs(c, d);
        check_entries(c, d, width, R, 1 + i % 2);
        check_behind(c, d, width, R, 1 + i % 2, i % 3 != 0, i != 3);
    }
    check_embed(c, 3, 5120);
    check_index_queries(c, 9, 32, 128, 64);
    for (int ratio = 1; ratio <= 2; ratio++) {
        check_entries(c, 512, 128, 64, ratio);
        check_behind(c, 512, 128, 64, ratio, true, true);
    }
}
