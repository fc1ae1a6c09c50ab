#include "formats/pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

typedef struct job {
    int *hits;     /* plain on purpose: the pool must order them before the caller's reads */
    int64_t *sums; /* by worker */
    int threads;
    atomic_int bad_worker;
} job;

static void count(void *arg, int64_t item, int worker)
{
    job *j = arg;
    if (worker < 0 || worker >= j->threads) {
        atomic_store(&j->bad_worker, 1);
        return;
    }
    j->hits[item]++;
    j->sums[worker] += item;
}

static void run_and_check(bl_pool *p, int64_t items)
{
    int threads = bl_pool_threads(p);
    job j = {calloc((size_t)items + 1, sizeof(int)), calloc((size_t)threads, sizeof(int64_t)), threads, 0};
    bl_pool_run(p, items, count, &j);
    int64_t sum = 0;
    for (int i = 0; i < threads; i++) {
        sum += j.sums[i];
    }
    assert_int_equal(j.bad_worker, 0);
    for (int64_t i = 0; i < items; i++) {
        assert_int_equal(j.hits[i], 1);
    }
    assert_int_equal(sum, items * (items - 1) / 2 * (items > 0));
    free(j.hits);
    free(j.sums);
}

static void test_every_item_once(void **state)
{
    static const int sizes[] = {1, 2, 3, 7, 16};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bl_pool *p;
        assert_int_equal(bl_pool_create(&p, sizes[i], NULL), BL_OK);
        assert_int_equal(bl_pool_threads(p), sizes[i]);
        for (int64_t items = 0; items < 200; items += items < 5 ? 1 : 61) {
            run_and_check(p, items);
        }
        for (int round = 0; round < 2000; round++) { /* close together: latecomers of one run meet the next */
            run_and_check(p, 1 + round % 5);
        }
        run_and_check(p, 100000);
        bl_pool_destroy(&p);
        assert_null(p);
    }
    run_and_check(NULL, 10);
}

static void test_wakes_sleeping_workers(void **state)
{
    bl_pool *p;
    assert_int_equal(bl_pool_create(&p, 4, NULL), BL_OK);
    for (int i = 0; i < 20; i++) {
        struct timespec t = {0, 3000000};
        nanosleep(&t, NULL); /* longer than idle workers spin */
        run_and_check(p, 50);
    }
    bl_pool_destroy(&p);
    bl_pool_destroy(&p);
}

static void test_destroy_without_work(void **state)
{
    for (int i = 0; i < 50; i++) {
        bl_pool *p;
        assert_int_equal(bl_pool_create(&p, 1 + i % 5, NULL), BL_OK);
        bl_pool_destroy(&p);
    }
}

static void test_default_size_respects_affinity(void **state)
{
    cpu_set_t old, one;
    bl_pool *p;
    assert_true(bl_cpus_available() >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(bl_pool_create(&p, 0, NULL), BL_OK);
    assert_int_equal(bl_pool_threads(p), 1);
    bl_pool_destroy(&p);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
    bl_error e = {0};
    assert_int_equal(bl_pool_create(&p, BL_POOL_MAX_THREADS + 1, &e), BL_E_USAGE);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once), cmocka_unit_test(test_wakes_sleeping_workers),
        cmocka_unit_test(test_destroy_without_work), cmocka_unit_test(test_default_size_respects_affinity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
