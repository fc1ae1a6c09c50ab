/* Engram tables that ranks have parts of: what they gather adds up to what one rank gathers. */
#include "runtime/backend.h"
#include "runtime/memory_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL BL_SOURCE_ROOT "/tests/data/nano/checkpoint"

enum { TOKENS = 40, MOST = 64 };

typedef struct rank {
    bl_shard shard;
    bl_weights weights;
    bl_backend *backend;
    uint64_t planned; /* bytes of tables */
} rank;

static rank open_rank(const bl_checkpoint *c, bl_pool *pool, int part, int parts)
{
    rank r = {.shard = bl_shard_single(&c->config)};
    bl_error err = {0};
    const bl_cpu_options o = {.cpu = ~0u, .max_tokens = TOKENS, .pool = pool};
    bl_memory_plan plan;
    r.shard.engram_part = part;
    r.shard.engram_parts = parts;
    assert_int_equal(bl_weights_resolve(&r.weights, c, &r.shard, &err), BL_OK);
    const bl_memory_request request = {.device = BL_DEVICE_CUDA, .max_tokens = TOKENS, .engram = BL_ENGRAM_HOST};
    assert_int_equal(bl_memory_plan_make(&plan, &request, &c->config, &r.shard, &r.weights, &err), BL_OK);
    r.planned = plan.engram_bytes;
    assert_int_equal(bl_backend_cpu(&r.backend, &c->config, &r.shard, &o, &err), BL_OK);
    assert_int_equal(bl_weights_load(&r.weights, c, BL_ACCESS_AUTO, false, r.backend, &err), BL_OK);
    return r;
}

static void close_rank(rank *r)
{
    r->backend->destroy(r->backend);
    bl_weights_destroy(&r->weights);
}

static void test_sum(void **state)
{
    static const int counts[] = {1, 2, 3, 8, MOST};
    bl_checkpoint *c;
    bl_pool *pool;
    bl_error err = {0};
    assert_int_equal(bl_checkpoint_open(&c, MODEL, NULL, &err), BL_OK);
    assert_int_equal(bl_pool_create(&pool, 2, &err), BL_OK);
    const int64_t columns = bl_config_engram_columns(&c->config), n = TOKENS * columns, width = c->config.engram_head_dim;
    int64_t *rows = malloc((size_t)(n * c->config.engram_count) * sizeof *rows);
    for (int s = 0; s < c->config.engram_count; s++) /* the first and the last one too */
        for (int64_t i = 0; i < n; i++)
            rows[s * n + i] = i == 0 ? 0 : i == 1 ? c->config.engram_num_embeddings[s] - 1 : i * 7919 % c->config.engram_num_embeddings[s];
    const bl_pass p = {.tokens = TOKENS, .engram_rows = rows, .engram_columns = columns, .engram_stride = n};
    uint16_t *whole = malloc((size_t)(n * width) * 2), *e = malloc((size_t)(n * width) * 2), *sum = malloc((size_t)(n * width) * 2);
    rank one = open_rank(c, pool, 0, 1);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        for (int i = 0; i < one.weights.layer_count; i++) {
            const int slot = one.weights.layers[i].engram_slot;
            uint64_t planned = 0;
            int64_t held = 0;
            if (slot < 0) continue;
            one.backend->engram_rows(one.backend, &p, &one.weights.layers[i], whole);
            memset(sum, 0, (size_t)(n * width) * 2);
            for (int part = 0; part < counts[k]; part++) {
                rank r = open_rank(c, pool, part, counts[k]);
                const bl_matrix *table = &r.weights.layers[i].engram.table;
                held += table->rows;
                planned += r.planned;
                r.backend->engram_rows(r.backend, &p, &r.weights.layers[i], e);
                for (int64_t j = 0; j < n * width; j++) {
                    assert_true(!(e[j] & 0x7fff) || !(sum[j] & 0x7fff)); /* of one rank alone */
                    sum[j] |= e[j];
                }
                close_rank(&r);
            }
            assert_memory_equal(sum, whole, (size_t)(n * width) * 2);
            assert_int_equal(held, c->config.engram_num_embeddings[slot]);
            assert_in_range(planned, one.planned, one.planned + 4 * 256 * (uint64_t)counts[k] * (uint64_t)c->config.engram_count);
        }
    }
    close_rank(&one);
    free(rows);
    free(whole);
    free(e);
    free(sum);
    bl_pool_destroy(&pool);
    bl_checkpoint_close(&c);
}

/* Every row is one rank's, whatever remains, and shares are those of packed ranks: ceil(rows / parts). */
static void test_ranges(void **state)
{
    for (int64_t rows = 1; rows < 40; rows++)
        for (int parts = 1; parts < 12; parts++) {
            int64_t next = 0;
            for (int part = 0; part < parts; part++) {
                const bl_shard s = {.engram_part = part, .engram_parts = parts};
                const bl_rows r = bl_shard_engram_rows(&s, rows);
                assert_int_equal(r.first, next);
                assert_in_range(r.count, 0, (rows + parts - 1) / parts);
                next = r.first + r.count;
            }
            assert_int_equal(next, rows);
        }
    const bl_shard last = {.engram_part = 7, .engram_parts = 8};
    const bl_rows r = bl_shard_engram_rows(&last, INT64_C(1) << 36);
    assert_int_equal(r.first + r.count, INT64_C(1) << 36);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_sum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
