/* The memory plan: pure, so that a GPU's is tested without one. */
#include "runtime/memory_plan.h"

#include "runtime/cuda/cuda.h"
#include "runtime/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MODEL BL_SOURCE_ROOT "/tests/data/nano/checkpoint"
#define GIB ((uint64_t)1 << 30)

static bl_model_options on_gpu(int sequences, int64_t context, int64_t tokens)
{
    return (bl_model_options){.device = BL_DEVICE_CUDA, .threads = 1, .cache = {sequences, context, tokens}};
}

static bl_memory_plan plan_of(const bl_model_options *o, uint64_t memory)
{
    bl_memory_plan p;
    bl_error err = {0};
    assert_int_equal(bl_model_plan(&p, MODEL, o, memory, &err), BL_OK);
    return p;
}

static uint64_t line_of(const bl_memory_plan *p, bl_memory_place place, const char *what)
{
    for (int i = 0; i < p->count; i++)
        if (p->lines[i].place == place && !strcmp(p->lines[i].what, what)) return p->lines[i].bytes;
    return 0;
}

static void test_totals(void **state)
{
    const bl_model_options o = on_gpu(4, 1000, 0);
    const bl_memory_plan p = plan_of(&o, 64 * GIB);
    uint64_t sums[BL_MEMORY_PLACES] = {0};
    for (int i = 0; i < p.count; i++) sums[p.lines[i].place] += p.lines[i].bytes;
    assert_memory_equal(sums, p.total, sizeof sums);
    assert_int_equal(line_of(&p, BL_MEMORY_DEVICE, "weights"), p.weight_bytes);
    assert_int_equal(line_of(&p, BL_MEMORY_DEVICE, "windows") + line_of(&p, BL_MEMORY_DEVICE, "cache pages"), p.cache_bytes);
    for (int i = 0; i < p.count; i++) /* allocations are in whole lines */
        if (p.lines[i].place == BL_MEMORY_DEVICE) assert_int_equal(p.lines[i].bytes % 256, 0);
    const bl_memory_plan again = plan_of(&o, 64 * GIB);
    assert_memory_equal(&p, &again, sizeof p);
}

static void test_cache_takes_what_is_left(void **state)
{
    bl_model_options o = on_gpu(64, 0, 0);
    const bl_memory_plan all = plan_of(&o, 1024 * GIB);
    assert_int_equal(all.tokens, 64 * all.context);
    const uint64_t least = all.total[BL_MEMORY_DEVICE] + all.reserve - all.cache_bytes, memory = least + all.cache_bytes / 2;
    const bl_memory_plan half = plan_of(&o, memory);
    assert_in_range(half.tokens, all.tokens * 4 / 10, all.tokens / 2);
    assert_true(half.total[BL_MEMORY_DEVICE] + half.reserve <= memory);
    assert_true(half.total[BL_MEMORY_DEVICE] + half.reserve + ((uint64_t)1 << 16) > memory); /* and no page is left out */
    o.cache.tokens = 5000;
    assert_int_equal(plan_of(&o, 1024 * GIB).tokens, 5000);
    o.cache = (bl_cache_room){0};
    const bl_memory_plan growing = plan_of(&o, 64 * GIB);
    assert_int_equal(growing.cache_bytes, 0);
    assert_int_equal(growing.tokens, 0);
}

/* One sequence at its longest is the least: less is refused, with the numbers. */
static void test_refused(void **state)
{
    const bl_model_options o = on_gpu(8, 0, 0);
    const bl_memory_plan fits = plan_of(&o, 64 * GIB);
    bl_memory_plan p;
    bl_error err = {0};
    assert_int_equal(bl_model_plan(&p, MODEL, &o, GIB / 4, &err), BL_E_NOMEM);
    assert_int_equal(p.tokens, fits.context);
    assert_non_null(strstr(err.message, "does not fit"));
    assert_non_null(strstr(err.message, "0.25 are free"));
    assert_int_equal(p.memory, GIB / 4);
    assert_true(fits.reserve < GIB / 4); /* of few layers */
}

/* Buffers do not depend on the cache, and those of more tokens are larger. */
static void test_measure(void **state)
{
    bl_model m = {0};
    bl_error err = {0};
    assert_int_equal(bl_checkpoint_open(&m.checkpoint, MODEL, NULL, &err), BL_OK);
    const bl_config *c = &m.checkpoint->config;
    const bl_shard shard = bl_shard_single(c);
    const bl_memory_plan none = {0}, some = {.sequences = 16, .context = 4096};
    cuda_sizes a, b, d;
    bl_cuda_measure(&a, c, &shard, 512, &none);
    bl_cuda_measure(&b, c, &shard, 512, &some);
    bl_cuda_measure(&d, c, &shard, 64, &none);
    assert_memory_equal(a.used, b.used, sizeof a.used);
    assert_int_equal(b.logits_rows, 16);
    assert_int_equal(b.table_bytes, b.layout.pages + bl_line(16 * (uint64_t)bl_cache_pages(c, 4096) * sizeof(bl_cuda_page)));
    for (int i = 0; i < CUDA_USES; i++) assert_true(d.used[i] <= a.used[i]);
    for (size_t i = 0; i < a.count; i++) /* no pointer is listed twice */
        for (size_t k = 0; k < i; k++) assert_true(a.buffers[i].at != a.buffers[k].at);
    bl_checkpoint_close(&m.checkpoint);
}

static void test_engram(void **state)
{
    bl_model_options o = on_gpu(4, 1000, 0);
    const bl_memory_plan fits = plan_of(&o, 64 * GIB);
    assert_int_equal(fits.engram, BL_ENGRAM_DEVICE);
    assert_int_equal(line_of(&fits, BL_MEMORY_DEVICE, "Engram tables"), fits.engram_bytes);
    const uint64_t least = fits.total[BL_MEMORY_DEVICE] + fits.reserve;
    assert_int_equal(plan_of(&o, least).engram, BL_ENGRAM_DEVICE);
    const bl_memory_plan beside = plan_of(&o, least - 1);
    assert_int_not_equal(beside.engram, BL_ENGRAM_DEVICE); /* host or mapped, as this machine's memory is */
    assert_int_equal(line_of(&beside, BL_MEMORY_DEVICE, "Engram tables"), 0);
    assert_non_null(strstr(beside.engram_why, "GiB"));
    for (int place = BL_ENGRAM_DEVICE; place <= BL_ENGRAM_MAPPED; place++) {
        o.engram = (bl_engram_place)place;
        assert_int_equal(plan_of(&o, 64 * GIB).engram, place);
    }
}

/* Pinned tables that the host has no memory for: refused before anything is pinned. */
static void test_host_memory(void **state)
{
    bl_model m = {0};
    bl_memory_plan p;
    bl_error err = {0};
    bl_model_options o = on_gpu(4, 1000, 0);
    assert_int_equal(bl_model_describe(&m, MODEL, &o, 64 * GIB, &err), BL_OK);
    bl_memory_request r = {.device = BL_DEVICE_CUDA, .max_tokens = 512, .cache = o.cache, .memory = 64 * GIB, .host_memory = GIB,
                           .engram = BL_ENGRAM_HOST};
    assert_int_equal(bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, &err), BL_OK);
    r.host_memory = p.total[BL_MEMORY_PINNED];
    assert_int_equal(bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, &err), BL_OK);
    r.host_memory--;
    assert_int_equal(bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, &err), BL_E_NOMEM);
    assert_non_null(strstr(err.message, "pinned memory of the host"));
    assert_true(bl_memory_plan_device_fits(&p));
    assert_false(bl_memory_plan_host_fits(&p));
    r.host_memory = 0; /* not known */
    assert_int_equal(bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, &err), BL_OK);
    bl_pool_destroy(&m.pool);
    bl_weights_destroy(&m.weights);
    bl_checkpoint_close(&m.checkpoint);
}

/* Shared tables: what is there already is no need of the host's memory, nor of room to share. */
static void test_shared_memory(void **state)
{
    bl_model m = {0};
    bl_memory_plan p;
    bl_model_options o = on_gpu(4, 1000, 0);
    assert_int_equal(bl_model_describe(&m, MODEL, &o, 64 * GIB, NULL), BL_OK);
    bl_memory_request r = {.device = BL_DEVICE_CUDA, .max_tokens = 512, .cache = o.cache, .memory = 64 * GIB, .host_memory = GIB,
                           .engram = BL_ENGRAM_SHARED};
    assert_int_equal(bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, NULL), BL_OK);
    const uint64_t tables = p.engram_bytes + BL_SHARED_HEAD, pinned = p.total[BL_MEMORY_PINNED];
    assert_int_equal(p.total[BL_MEMORY_SHARED], tables);
    assert_int_equal(line_of(&p, BL_MEMORY_SHARED, "Engram tables"), tables);
    for (int i = 0; i < 16; i++) {
        const bool host = i & 1, room = i & 2, there = i & 4, known = i & 8;
        bl_error err = {0};
        r.shared = (bl_shared_room){.there = there ? tables / 2 : 0, .free = known ? tables - (there ? tables / 2 : 0) - !room : 0};
        r.host_memory = pinned + tables - (there ? tables / 2 : 0) - !host;
        const bl_status s = bl_memory_plan_make(&p, &r, &m.config, &m.shard, &m.weights, &err);
        assert_int_equal(s, host && (room || !known) ? BL_OK : BL_E_NOMEM);
        assert_int_equal(bl_memory_plan_fits(&p), s == BL_OK);
        if (s != BL_OK) assert_non_null(strstr(err.message, host ? "of shared memory, of which" : "pinned memory of the host"));
    }
    bl_pool_destroy(&m.pool);
    bl_weights_destroy(&m.weights);
    bl_checkpoint_close(&m.checkpoint);
}

static void test_cpu(void **state)
{
    bl_model_options o = on_gpu(2, 100, 0);
    o.device = BL_DEVICE_CPU;
    const bl_memory_plan p = plan_of(&o, 0);
    assert_int_equal(p.total[BL_MEMORY_DEVICE] + p.reserve, 0);
    assert_true(p.total[BL_MEMORY_HOST] > p.cache_bytes);
    assert_int_equal(line_of(&p, BL_MEMORY_MAPPED, "weights"), p.weight_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_totals),  cmocka_unit_test(test_cache_takes_what_is_left), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_measure), cmocka_unit_test(test_engram), cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_shared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
