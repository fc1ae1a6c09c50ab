/* A CRC-32 put together of reads in any order: whatever their order and overlap, it is that of the whole. */
#include "verify/cover.h"

#include "tests/unit/scratch.h"

#include <pthread.h>
#include <zlib.h>

enum { BYTES = 3 << 20, THREADS = 4 };

typedef struct reading {
    bl_cover *cover;
    const uint8_t *data;
    uint64_t most; /* nothing is read from here on */
    unsigned seed;
} reading;

static unsigned draw(unsigned *seed)
{
    return (*seed = *seed * 1664525u + 1013904223u) >> 8;
}

static void *read_some(void *arg)
{
    reading *r = arg;
    for (int i = 0; i < 400; i++) {
        uint64_t at = draw(&r->seed) % r->most, n = draw(&r->seed) % 65536 + 1;
        n = n < r->most - at ? n : r->most - at;
        if (!bl_cover_add(r->cover, r->data + at, n, at)) {
            return r;
        }
    }
    return NULL;
}

/* What the file at path, of data, is said to be after random reads below most. */
static bl_status prove(const char *path, const uint8_t *data, uint64_t most, uint32_t crc, bl_error *err)
{
    bl_file *f;
    bl_cover *c;
    pthread_t threads[THREADS];
    reading readings[THREADS];
    expect_ok(bl_file_open(&f, path, err), err);
    bl_file_note_crc32(f, crc);
    expect_ok(bl_cover_create(&c, err), err);
    for (unsigned i = 0; i < THREADS; i++) {
        readings[i] = (reading){c, data, most, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, read_some, &readings[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    bl_status s = bl_cover_prove(c, f, err);
    bl_cover_destroy(&c);
    assert_null(c);
    bl_file_close(&f);
    return s;
}

static void test_any_order(void **state)
{
    const char *path = scratch_path("covered");
    unsigned seed = 7;
    uint8_t *data = malloc(BYTES);
    bl_error e;
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++) {
        data[i] = (uint8_t)draw(&seed);
    }
    bl_error_clear(&e);
    scratch_write(path, data, BYTES);
    uint32_t crc = (uint32_t)crc32_z(0, data, BYTES);
    for (uint64_t most = BYTES; most > BYTES / 2 + 65536; most -= BYTES / 7) { /* the rest is read from the file */
        expect_ok(prove(path, data, most, crc, &e), &e);
        expect_failure(prove(path, data, most, crc ^ 1, &e), &e, BL_E_INPUT, "covered|CRC-32 differs");
        bl_error_clear(&e);
    }
    expect_ok(prove(path, data, BYTES / 3, crc ^ 1, &e), &e); /* too little was wanted */
    free(data);
}

/* Of which nothing can be read. */
static void test_empty_file(void **state)
{
    const char *path = scratch_path("empty");
    bl_file *f;
    bl_cover *c;
    bl_error e;
    bl_error_clear(&e);
    scratch_write(path, "", 0);
    expect_ok(bl_file_open(&f, path, &e), &e);
    bl_file_note_crc32(f, 1);
    expect_ok(bl_cover_create(&c, &e), &e);
    expect_ok(bl_cover_prove(c, f, &e), &e);
    bl_cover_destroy(&c);
    bl_file_close(&f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_order), cmocka_unit_test(test_empty_file)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
