/* The stream: every byte once, cuts at granules, order where it is promised, failure and cancellation. */
#include "verify/stream.h"

#include "tests/unit/scratch.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LANES = 7, PARTS = 9 };

typedef struct watch {
    bl_part parts[LANES][PARTS];
    bl_lane lanes[LANES];
    uint64_t bytes[LANES];
    atomic_uint_fast64_t worked[LANES];
    uint64_t ordered[LANES];
    int finished[LANES];
    size_t fail_lane;
    bool sequence;
    size_t lane; /* in a sequence: whose turn it is */
    atomic_int calls, stop_after;
    atomic_uint_fast64_t reported;
} watch;

static uint32_t next(uint32_t *s)
{
    return (*s = *s * 1664525u + 1013904223u) >> 8;
}

static void fill(watch *w, uint32_t seed)
{
    static const uint64_t granules[] = {1, 3, 4096, 4096, 32 * 5120, 1 << 20};
    memset(w, 0, sizeof *w);
    w->fail_lane = LANES;
    atomic_init(&w->stop_after, -1);
    for (size_t i = 0; i < LANES; i++) {
        for (size_t k = 0; k < PARTS; k++) {
            bl_part *p = &w->parts[i][k];
            p->granule = granules[next(&seed) % 6];
            p->nbytes = next(&seed) % 3 == 0 ? next(&seed) % 5000 : next(&seed) % (3u << 20);
            p->tag = 100 * i + k;
            w->bytes[i] += i < LANES - 1 ? p->nbytes : 0;
        }
        w->lanes[i] = (bl_lane){.parts = w->parts[i], .count = i < LANES - 1 ? PARTS : 0}; /* the last lane is an empty file */
    }
}

/* The segments follow each other through the lane from the tile's offset on, and end at granules. */
static void check_tile(const watch *w, const bl_tile *t)
{
    uint64_t at = 0, n = 0;
    for (size_t i = 0; i < t->segment_count; i++) {
        const bl_segment *g = &t->segments[i];
        const bl_part *p = &w->parts[t->lane][g->part];
        uint64_t place = g->offset;
        for (size_t k = 0; k < g->part; k++) {
            place += w->parts[t->lane][k].nbytes;
        }
        assert_int_equal(place, t->offset + at);
        assert_true(g->nbytes > 0 && g->offset + g->nbytes <= p->nbytes && g->offset % p->granule == 0);
        assert_true((g->offset + g->nbytes) % p->granule == 0 || g->offset + g->nbytes == p->nbytes);
        at += g->nbytes;
        n += g->nbytes;
    }
    assert_int_equal(n, t->nbytes);
    assert_int_equal((uintptr_t)t->data % BL_IO_ALIGN, t->offset % BL_IO_ALIGN);
    assert_int_equal((uintptr_t)t->scratch % BL_IO_ALIGN, 0);
    assert_int_equal(t->last, t->offset + t->nbytes == w->bytes[t->lane]);
}

static bl_status work(void *arg, const bl_tile *t, bl_error *err)
{
    watch *w = arg;
    check_tile(w, t);
    atomic_fetch_add(&w->calls, 1);
    if (t->lane == w->fail_lane && (t->offset > 0 || t->last)) {
        return bl_fail(err, BL_E_IO, "lane", NULL, (int64_t)t->offset, "broken");
    }
    memset(t->data - t->offset % BL_IO_ALIGN, (int)(t->offset + t->lane), t->nbytes + t->offset % BL_IO_ALIGN);
    memset(t->scratch, 1, 1000);
    atomic_fetch_add(&w->worked[t->lane], t->nbytes);
    return BL_OK;
}

static bl_status in_order(void *arg, const bl_tile *t, bl_error *err)
{
    watch *w = arg;
    assert_int_equal(w->ordered[t->lane], t->offset); /* no lock: the stream promises one at a time */
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < t->nbytes; i++) {
        wrong += t->data[i] != (uint8_t)(t->offset + t->lane);
    }
    assert_int_equal(wrong, 0);
    if (w->sequence) {
        assert_int_equal(t->lane, w->lane);
        w->lane += t->last;
    }
    w->ordered[t->lane] += t->nbytes;
    w->finished[t->lane] += t->last;
    return BL_OK;
}

static watch *current;

static bool cancelled(void)
{
    return atomic_load(&current->stop_after) >= 0 && atomic_load(&current->calls) >= atomic_load(&current->stop_after);
}

static void progress(void *arg, uint64_t done, uint64_t total)
{
    watch *w = arg;
    assert_true(done <= total);
    uint64_t seen = atomic_load(&w->reported);
    while (seen < done && !atomic_compare_exchange_weak(&w->reported, &seen, done)) {
    }
}

static bl_status run(watch *w, int jobs, bool order, bl_error *err)
{
    bl_stream s = {.lanes = w->lanes, .lane_count = LANES, .jobs = jobs, .scratch = 1000, .scratch_ratio = jobs % 3 ? 17 : 0, .work = work,
                   .in_order = order ? in_order : NULL, .arg = w, .sequence = w->sequence, .cancelled = cancelled, .progress = progress, .progress_arg = w};
    current = w;
    bl_error_clear(err);
    return bl_stream_run(&s, err);
}

static void test_everything_once_and_in_order(void **state)
{
    watch *w = malloc(sizeof *w);
    bl_error e;
    for (int jobs = 0; jobs <= 13; jobs++) {
        fill(w, (uint32_t)jobs + 3);
        bool order = jobs != 5;
        w->sequence = jobs % 4 == 1;
        expect_ok(run(w, jobs, order, &e), &e);
        uint64_t total = 0;
        for (size_t i = 0; i < LANES; i++) {
            assert_int_equal(atomic_load(&w->worked[i]), w->bytes[i]);
            assert_int_equal(w->ordered[i], order ? w->bytes[i] : 0);
            assert_int_equal(w->finished[i], order ? 1 : 0);
            total += w->bytes[i];
        }
        assert_int_equal(w->lane, w->sequence && order ? LANES : 0);
        assert_int_equal(atomic_load(&w->reported), total);
    }
    free(w);
}

static void test_failure_and_cancellation(void **state)
{
    watch *w = malloc(sizeof *w);
    bl_error e;
    for (int jobs = 1; jobs <= 8; jobs++) {
        fill(w, (uint32_t)jobs);
        w->fail_lane = (size_t)jobs % (LANES - 1);
        expect_failure(run(w, jobs, true, &e), &e, BL_E_IO, "lane|broken");
        fill(w, (uint32_t)jobs);
        atomic_store(&w->stop_after, 3);
        expect_failure(run(w, jobs, true, &e), &e, BL_E_CANCELLED, "interrupted");
        assert_true(atomic_load(&w->calls) <= 3 + jobs);
    }
    free(w);
}

enum { MANY = 40 };

typedef struct level {
    pthread_mutex_t lock;
    uint64_t left[MANY], size[MANY];
    size_t first; /* lane of the first tile, MANY before it */
    int begun, most;
} level;

static bl_status note_begun(void *arg, const bl_tile *t, bl_error *err)
{
    level *l = arg;
    pthread_mutex_lock(&l->lock);
    l->first = l->first == MANY ? t->lane : l->first;
    l->begun += t->offset == 0;
    l->most = l->begun > l->most ? l->begun : l->most;
    pthread_mutex_unlock(&l->lock);
    return BL_OK;
}

static bl_status note_ended(void *arg, const bl_tile *t, bl_error *err)
{
    level *l = arg;
    pthread_mutex_lock(&l->lock);
    l->left[t->lane] -= t->nbytes;
    l->begun -= t->last;
    pthread_mutex_unlock(&l->lock);
    return BL_OK;
}

/* The longest lane is begun first, wherever it stands, and of many lanes few are unfinished at any time. */
static void test_long_lanes_first(void **state)
{
    enum { JOBS = 3 };
    level l = {.first = MANY};
    bl_part parts[MANY];
    bl_lane lanes[MANY];
    pthread_mutex_init(&l.lock, NULL);
    for (size_t i = 0; i < MANY; i++) {
        l.size[i] = l.left[i] = i == MANY - 1 ? 90 << 20 : (6 << 20) + i;
        parts[i] = (bl_part){.nbytes = l.left[i], .granule = 1};
        lanes[i] = (bl_lane){.parts = &parts[i], .count = 1};
    }
    for (int jobs = 1; jobs <= JOBS; jobs += JOBS - 1) {
        memcpy(l.left, l.size, sizeof l.left);
        l.first = MANY;
        l.begun = l.most = 0;
        bl_stream s = {.lanes = lanes, .lane_count = MANY, .jobs = jobs, .work = note_begun, .in_order = note_ended, .arg = &l};
        expect_ok(bl_stream_run(&s, NULL), NULL);
        for (size_t i = 0; i < MANY; i++) {
            assert_int_equal(l.left[i], 0);
        }
        assert_true(jobs > 1 || l.first == MANY - 1);
        assert_true(l.most <= 3 * jobs);
    }
    pthread_mutex_destroy(&l.lock);
}

static void test_nothing_to_do(void **state)
{
    bl_stream s = {.work = work};
    expect_ok(bl_stream_run(&s, NULL), NULL);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_once_and_in_order),
                                              cmocka_unit_test(test_failure_and_cancellation),
                                              cmocka_unit_test(test_long_lanes_first),
                                              cmocka_unit_test(test_nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
