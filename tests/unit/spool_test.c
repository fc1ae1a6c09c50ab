#include "formats/file.h"

#include "tests/unit/scratch.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

enum { PIECE = 8192, PIECES = 64 };

/* A stream of PIECES pieces, put in blocks of odd sizes; piece i is made of bytes i + 1. */
typedef struct stream {
    bl_spool *s;
    size_t fail_after;    /* pieces */
    atomic_size_t put; /* pieces that went in */
} stream;

static bl_status run(void *arg, bl_error *err)
{
    stream *t = arg;
    uint8_t block[PIECE];
    for (size_t i = 0; i < PIECES; i++) {
        memset(block, (int)i + 1, sizeof block);
        if (i == t->fail_after) {
            return bl_fail(err, BL_E_INPUT, "stream", NULL, -1, "breaks off");
        }
        for (size_t at = 0, n; at < PIECE; at += n) {
            n = PIECE - at < 3001 ? PIECE - at : 3001;
            BL_TRY(bl_spool_put(t->s, block + at, n, i * PIECE + at, err));
        }
        atomic_fetch_add(&t->put, 1);
    }
    return BL_OK;
}

static bl_spool *begin(stream *t, uint64_t pause)
{
    bl_error err = {0};
    *t = (stream){.fail_after = PIECES};
    assert_int_equal(bl_spool_create(&t->s, scratch_root, pause, NULL, &err), BL_OK);
    bl_spool_source(t->s, run, t);
    return t->s;
}

static void expect_piece(bl_spool *s, size_t i)
{
    uint8_t have[PIECE];
    bl_error err = {0};
    bl_file *f;
    assert_int_equal(bl_file_spooled(&f, s, i * PIECE, PIECE, "piece", &err), BL_OK);
    assert_int_equal(bl_file_read(f, have, PIECE, 0, &err), BL_OK);
    for (size_t k = 0; k < PIECE; k++) {
        assert_int_equal(have[k], i + 1);
    }
    bl_file_close(&f);
}

static uint64_t blocks_used(bl_spool *s)
{
    struct stat st;
    assert_int_equal(fstat(bl_spool_fd(s), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Read in order, everything dropped once it was read: little is stored at any time, and the stream waits for its readers. */
static void in_order(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 2 * PIECE);
    bl_error err = {0};
    for (size_t i = 0; i < PIECES; i += 2) { /* of every other piece nothing is wanted */
        assert_int_equal(bl_spool_expect(s, i * PIECE, PIECE, &err), BL_OK);
    }
    bl_spool_seal(s);
    assert_true(bl_spool_wants(s, 0, 1) && !bl_spool_wants(s, PIECE, 2 * PIECE));
    for (size_t i = 0; i < PIECES; i += 2) {
        expect_piece(s, i);
        assert_true(t.put < i + 10);
        bl_spool_done(s, i * PIECE, PIECE);
    }
    assert_int_equal(bl_spool_finish(s, &err), BL_OK);
    assert_true(bl_spool_peak(s) <= 4 * PIECE);
    assert_true(blocks_used(s) <= 2 * PIECE);
    bl_spool_destroy(&s);
}

/* Who wants what comes last gets it, however little may be stored; what others still need stays. */
static void backwards(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 0);
    bl_error err = {0};
    for (size_t i = 0; i < PIECES; i++) {
        assert_int_equal(bl_spool_expect(s, i * PIECE, PIECE, &err), BL_OK);
    }
    assert_int_equal(bl_spool_expect(s, 3 * PIECE, PIECE, &err), BL_OK); /* twice */
    bl_spool_seal(s);
    for (size_t i = PIECES; i-- > 0;) {
        expect_piece(s, i);
        bl_spool_done(s, i * PIECE, PIECE);
    }
    expect_piece(s, 3);
    assert_true(blocks_used(s) <= 2 * PIECE);
    assert_int_equal(bl_spool_wait(s, 0, PIECE, &err), BL_E_INTERNAL); /* gone: never zeros in its place */
    bl_spool_destroy(&s);
}

/* Nothing said beforehand: all stays. */
static void unsealed(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 0);
    for (size_t i = PIECES; i-- > 0;) {
        expect_piece(s, i);
    }
    bl_spool_destroy(&s);
}

static void kept_without_stream(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 0);
    bl_error err = {0};
    uint8_t head[PIECE];
    memset(head, 6, sizeof head);
    assert_int_equal(bl_spool_fill(s, head, PIECE, 4 * PIECE, &err), BL_OK);
    assert_int_equal(bl_spool_keep(s, head, 100, 5 * PIECE, &err), BL_OK);
    assert_int_equal(bl_spool_keep(s, head, PIECE - 100, 5 * PIECE + 100, &err), BL_OK);
    bl_spool_drop(s);
    expect_piece(s, 5);
    assert_true(blocks_used(s) <= PIECE && t.put == 0);
    bl_spool_destroy(&s);
}

static void fails(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 0);
    bl_error err = {0};
    t.fail_after = 9;
    assert_int_equal(bl_spool_wait(s, 9 * PIECE, 10 * PIECE, &err), BL_E_INPUT);
    assert_string_equal(err.message, "breaks off");
    expect_piece(s, 8); /* what came is there */
    err = (bl_error){0};
    assert_int_equal(bl_spool_finish(s, &err), BL_E_INPUT);
    bl_spool_destroy(&s);
}

static bool yes(void)
{
    return true;
}

static void cancelled(void **state)
{
    (void)state;
    stream t;
    bl_spool *s;
    bl_error err = {0};
    t = (stream){.fail_after = PIECES};
    assert_int_equal(bl_spool_create(&s, scratch_root, 0, yes, &err), BL_OK);
    t.s = s;
    bl_spool_source(s, run, &t);
    assert_int_equal(bl_spool_wait(s, 63 * PIECE, 64 * PIECE, &err), BL_E_CANCELLED);
    bl_spool_destroy(&s); /* the stream pauses: nobody waits */
    assert_null(s);
}

typedef struct reader {
    stream *t;
    size_t first;
} reader;

static void *read_every_fourth(void *arg)
{
    reader *r = arg;
    for (size_t i = r->first; i < PIECES; i += 4) {
        expect_piece(r->t->s, i);
        bl_spool_done(r->t->s, i * PIECE, PIECE);
    }
    return NULL;
}

static void several_readers(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, PIECE);
    bl_error err = {0};
    pthread_t threads[4];
    reader readers[4];
    for (size_t i = 0; i < PIECES; i++) {
        assert_int_equal(bl_spool_expect(s, i * PIECE, PIECE, &err), BL_OK);
    }
    bl_spool_seal(s);
    for (size_t i = 0; i < 4; i++) {
        readers[i] = (reader){&t, i};
        assert_int_equal(pthread_create(&threads[i], NULL, read_every_fourth, &readers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_true(blocks_used(s) <= 2 * PIECE);
    bl_spool_destroy(&s);
}

static void leaves_nothing(void **state)
{
    (void)state;
    stream t;
    bl_spool *s = begin(&t, 0);
    int entries = 0;
    DIR *d = opendir(scratch_root);
    while (readdir(d)) {
        entries++;
    }
    closedir(d);
    assert_int_equal(entries, 2); /* "." and "..": the file has no name */
    bl_spool_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_order),  cmocka_unit_test(backwards),       cmocka_unit_test(unsealed),
        cmocka_unit_test(fails),     cmocka_unit_test(cancelled),       cmocka_unit_test(kept_without_stream),
        cmocka_unit_test(several_readers), cmocka_unit_test(leaves_nothing),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
