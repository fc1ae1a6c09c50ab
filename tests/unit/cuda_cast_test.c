/* Casts on a GPU, their host side, on a runtime that only records: what is copied and launched, what is held, every failure there is. */
#include "formats/pool.h"
#include "kernels/cuda/host.h"
#include "tests/stub/cudart.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 70, COLS = 96, THREADS = 8, TIMES = 40, MOST_AT_ONCE = 4 };
#define MEMORY ((uint64_t)1 << 30)
#define ROOM ((uint64_t)(3 * ROWS * COLS + ROWS * COLS / 32 + 3 * 256)) /* of a piece, values, codes and scales */

typedef struct shared {
    bl_cast_device *device;
    bl_matrix w[2];
    uint16_t *y; /* [TIMES][ROWS][COLS] */
} shared;

static uint8_t codes[ROWS * COLS], scale[ROWS * COLS / 32];
static uint16_t values[TIMES * ROWS * COLS];

static shared of(bl_cast_device *d)
{
    return (shared){.device = d, .y = values,
                    .w = {{.kind = BL_W_FP8, .rows = ROWS, .cols = COLS, .codes = codes, .scale = scale},
                          {.kind = BL_W_FP4, .rows = ROWS, .cols = COLS, .codes = codes, .scale = scale}}};
}

static void assert_nothing_left(void)
{
    assert_int_equal(cuda_stub_seen.live, 0);
    assert_int_equal(cuda_stub_seen.registered, 0);
    assert_int_equal(cuda_stub_seen.faults, 0);
}

/* Both kinds, through pinned memory; what any conversion does. */
static bl_status work(bl_error *err)
{
    bl_cast_device *d;
    BL_TRY(bl_cuda_cast_device(&d, err));
    const shared s = of(d);
    bl_status result = d->pin(d, values, sizeof values, err);
    const bool pinned = result == BL_OK;
    for (int i = 0; result == BL_OK && i < 2; i++) result = d->cast(d, values, &s.w[i], err);
    if (pinned) d->unpin(d, values);
    d->destroy(d);
    return result;
}

static void test_copies_and_launches(void **state)
{
    cuda_stub_reset(MEMORY);
    assert_int_equal(work(NULL), BL_OK);
    assert_int_equal(cuda_stub_seen.kernels, 2);
    assert_int_equal(cuda_stub_seen.copies_in, 4); /* codes and scales */
    assert_int_equal(cuda_stub_seen.copies_out, 2);
    assert_int_equal(cuda_stub_seen.waits, 2);
    assert_nothing_left();
}

static void test_no_rows(void **state)
{
    bl_cast_device *d;
    cuda_stub_reset(MEMORY);
    assert_int_equal(bl_cuda_cast_device(&d, NULL), BL_OK);
    bl_matrix w = of(d).w[0];
    w.rows = 0;
    assert_int_equal(d->cast(d, values, &w, NULL), BL_OK);
    assert_int_equal(cuda_stub_seen.kernels, 0);
    d->destroy(d);
    assert_nothing_left();
}

static void cast_one(void *arg, int64_t i, int worker)
{
    const shared *s = arg;
    (void)worker;
    if (s->device->cast(s->device, s->y + i * ROWS * COLS, &s->w[i % 2], NULL) != BL_OK) abort();
}

/* Device memory is that of a few pieces, whatever asks. */
static void test_many_threads(void **state)
{
    bl_pool *pool;
    bl_cast_device *d;
    cuda_stub_reset(MEMORY);
    assert_int_equal(bl_cuda_cast_device(&d, NULL), BL_OK);
    assert_int_equal(bl_pool_create(&pool, THREADS, NULL), BL_OK);
    shared s = of(d);
    bl_pool_run(pool, TIMES, cast_one, &s);
    assert_int_equal(cuda_stub_seen.kernels, TIMES);
    assert_true(cuda_stub_seen.live <= MOST_AT_ONCE * ROOM);
    bl_pool_destroy(&pool);
    d->destroy(d);
    assert_nothing_left();
}

/* For good, and in passing, as a launch may that asks for too much. */
static void test_every_call_may_fail(void **state)
{
    static const int errors[] = {cudaErrorIllegalAddress, cudaErrorInvalidValue};
    cuda_stub_reset(MEMORY);
    assert_int_equal(work(NULL), BL_OK);
    const long calls = cuda_stub_seen.calls;
    assert_true(calls > 12);
    for (int k = 0; k < 2; k++)
        for (long n = 1; n <= calls; n++) {
            bl_error err = {0};
            cuda_stub_reset(MEMORY);
            cuda_stub_fail("any", n, errors[k]);
            if (work(&err) == BL_OK)
                fail_msg("call %ld of %ld failed with %d and nobody noticed", n, calls, errors[k]);
            assert_true(err.message[0] != 0);
            assert_nothing_left();
        }
}

/* Memory of a piece grows with what is cast, and is one piece's. */
static void test_memory_grows(void **state)
{
    bl_cast_device *d;
    cuda_stub_reset(MEMORY);
    assert_int_equal(bl_cuda_cast_device(&d, NULL), BL_OK);
    bl_matrix w = of(d).w[0];
    for (w.rows = 2; w.rows <= ROWS; w.rows += 4) assert_int_equal(d->cast(d, values, &w, NULL), BL_OK);
    assert_true(cuda_stub_seen.live <= ROOM);
    d->destroy(d);
    assert_nothing_left();
}

static void test_out_of_memory(void **state)
{
    bl_error err = {0};
    cuda_stub_reset(ROWS * COLS);
    assert_int_equal(work(&err), BL_E_NOMEM);
    assert_non_null(strstr(err.message, "out of memory"));
    assert_nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_and_launches), cmocka_unit_test(test_no_rows),       cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_every_call_may_fail), cmocka_unit_test(test_out_of_memory),     cmocka_unit_test(test_memory_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
