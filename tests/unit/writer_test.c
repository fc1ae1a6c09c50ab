/* The tile writer and the reader that matches it: any order, any size, any place. */
#include "convert/writer.h"
#include "verify/reader.h"

#include "tests/unit/scratch.h"

#include <dirent.h>

enum { MAX = 300000 };

static uint32_t next(uint32_t *s)
{
    return (*s = *s * 1664525u + 1013904223u) >> 8;
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 2654435761u >> 11);
}

static size_t files_in_scratch(void)
{
    size_t n = 0;
    DIR *d = opendir(scratch_root);
    for (struct dirent *e; (e = readdir(d));) {
        n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    }
    closedir(d);
    return n;
}

static bl_status put(bl_writer *w, uint8_t *room, uint64_t from, uint64_t to, bl_error *e)
{
    uint8_t *data = room + from % 4096;
    for (uint64_t i = from; i < to; i++) {
        data[i - from] = byte_at(i);
    }
    return bl_writer_put(w, data, to - from, from, e);
}

static void check_file(const char *path, uint64_t size)
{
    bl_file *f;
    bl_reader *r;
    bl_error e;
    const uint8_t *data;
    uint8_t *buf = aligned_alloc(4096, (BL_READ_ROOM(size) + 4095) / 4096 * 4096);
    bl_error_clear(&e);
    expect_ok(bl_file_open(&f, path, &e), &e);
    assert_int_equal(bl_file_size(f), size);
    expect_ok(bl_reader_open(&r, f, &e), &e);
    uint32_t seed = (uint32_t)size;
    for (int k = 0; k < 8; k++) {
        uint64_t from = k && size ? next(&seed) % size : 0, n = k && size ? 1 + next(&seed) % (size - from) : size;
        expect_ok(bl_reader_read(r, buf, n, from, &data, &e), &e);
        assert_int_equal((uintptr_t)data % 4096, from % 4096);
        for (uint64_t i = 0; i < n; i++) {
            assert_int_equal(data[i], byte_at(from + i));
        }
    }
    expect_failure(bl_reader_read(r, buf, 1, size, &data, &e), &e, BL_E_INPUT, "truncated");
    bl_reader_close(&r);
    bl_file_close(&f);
    free(buf);
}

static void test_any_order(void **state)
{
    uint8_t *room = aligned_alloc(4096, (MAX + 8192 + 4095) / 4096 * 4096);
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t seed = round + 1;
        uint64_t size = round < 8 ? (uint64_t[]){0, 1, 4095, 4096, 4097, 8192, 12287, 100}[round] : next(&seed) % MAX, cuts[64];
        size_t n = 0;
        for (uint64_t at = 0; at < size && n < 62;) {
            cuts[n++] = at;
            at += 1 + next(&seed) % (size / 8 + 6000);
        }
        cuts[n] = size;
        const char *path = scratch_path("file-%u", round);
        bl_writer *w;
        bl_error e;
        bl_error_clear(&e);
        expect_ok(bl_writer_open(&w, path, size, &e), &e);
        size_t order[64];
        for (size_t i = 0; i < n; i++) { /* a random order, built by insertion */
            size_t k = next(&seed) % (i + 1);
            memmove(order + k + 1, order + k, (i - k) * sizeof *order);
            order[k] = i;
        }
        for (size_t i = 0; i < n; i++) {
            expect_ok(put(w, room, cuts[order[i]], cuts[order[i] + 1], &e), &e);
        }
        expect_ok(bl_writer_commit(&w, &e), &e);
        check_file(path, size);
    }
    free(room);
}

static void test_abort_leaves_nothing(void **state)
{
    uint8_t *room = aligned_alloc(4096, 65536);
    size_t before = files_in_scratch();
    bl_writer *w;
    bl_error e;
    bl_error_clear(&e);
    expect_ok(bl_writer_open(&w, scratch_path("gone"), 20000, &e), &e);
    expect_ok(put(w, room, 5000, 9000, &e), &e);
    bl_writer_abort(&w);
    assert_null(w);
    assert_int_equal(files_in_scratch(), before);
    free(room);
}

/* A hole is our own bug, but it must not become a file. */
static void test_a_hole_is_refused(void **state)
{
    uint8_t *room = aligned_alloc(4096, 65536);
    size_t before = files_in_scratch();
    bl_writer *w;
    bl_error e;
    bl_error_clear(&e);
    expect_ok(bl_writer_open(&w, scratch_path("hole"), 20000, &e), &e);
    expect_ok(put(w, room, 0, 5000, &e), &e);
    expect_ok(put(w, room, 5001, 20000, &e), &e);
    bl_status s = bl_writer_commit(&w, &e);
    if (s != BL_OK) { /* without direct writes nobody counts */
        expect_failure(s, &e, BL_E_INTERNAL, "hole|never written");
        assert_int_equal(files_in_scratch(), before);
    }
    free(room);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order), cmocka_unit_test(test_abort_leaves_nothing),
                                              cmocka_unit_test(test_a_hole_is_refused)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
