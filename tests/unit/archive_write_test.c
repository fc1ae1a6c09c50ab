#include "formats/archive_write.h"

#include "tests/unit/scratch.h"

/* What is in the file so far. */
static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *text = calloc((size_t)st.st_size + 1, 1);
    *n = fread(text, 1, (size_t)st.st_size, f);
    fclose(f);
    return text;
}

/* The header of a member over 8 GiB says its size in a pax record, and its data begins at a page all the same. */
static void large_member(void **state)
{
    (void)state;
    const char *path = scratch_path("large.tar");
    bl_archive_writer *w;
    bl_error err = {0};
    uint64_t size = ((uint64_t)9 << 30) + 1;
    size_t n;
    expect_ok(bl_archive_writer_open(&w, path, BL_ARCHIVE_TAR, &err), &err);
    expect_ok(bl_archive_writer_begin(w, "config.json", 2, &err), &err);
    expect_ok(bl_archive_writer_put(w, "{}", 2, &err), &err);
    expect_ok(bl_archive_writer_begin(w, "model.safetensors", size, &err), &err);
    bl_archive_writer_abort(&w);
    char *text = slurp(path, &n);
    bool said = false;
    for (size_t i = 0; i + 16 < n; i++) {
        said |= memcmp(text + i, "size=9663676417\n", 16) == 0;
    }
    assert_true(said && n % 4096 == 0 && n > 0);
    free(text);
}

/* Every place that a member can begin at. */
static void aligned(void **state)
{
    (void)state;
    const char *path = scratch_path("aligned.tar");
    char block[8192] = "";
    for (uint64_t first = 0; first <= 4096; first += 512) {
        bl_archive_writer *w;
        bl_error err = {0};
        size_t n;
        unlink(path);
        expect_ok(bl_archive_writer_open(&w, path, BL_ARCHIVE_TAR, &err), &err);
        expect_ok(bl_archive_writer_begin(w, "a", first, &err), &err);
        expect_ok(bl_archive_writer_put(w, block, first, &err), &err);
        expect_ok(bl_archive_writer_begin(w, "b", 4096, &err), &err);
        free(slurp(path, &n));
        assert_int_equal(n % 4096, 0);
        expect_ok(bl_archive_writer_put(w, block, 4096, &err), &err);
        expect_ok(bl_archive_writer_close(&w, &err), &err);
    }
}

static void sizes_must_hold(void **state)
{
    (void)state;
    bl_archive_writer *w;
    bl_error err = {0};
    expect_ok(bl_archive_writer_open(&w, scratch_path("short.zip"), BL_ARCHIVE_ZIP, &err), &err);
    expect_ok(bl_archive_writer_begin(w, "a", 3, &err), &err);
    expect_failure(bl_archive_writer_put(w, "abcd", 4, &err), &err, BL_E_INTERNAL, "more bytes");
    bl_error_clear(&err);
    expect_failure(bl_archive_writer_close(&w, &err), &err, BL_E_INTERNAL, "3 bytes short");
    assert_null(w);
}

static void kinds(void **state)
{
    (void)state;
    assert_int_equal(bl_archive_kind_of("a.tar"), BL_ARCHIVE_TAR);
    assert_int_equal(bl_archive_kind_of("/x.tar/a.tgz"), BL_ARCHIVE_TAR_GZ);
    assert_int_equal(bl_archive_kind_of("a.tar.zst"), BL_ARCHIVE_TAR_ZST);
    assert_int_equal(bl_archive_kind_of("a.zip"), BL_ARCHIVE_ZIP);
    assert_int_equal(bl_archive_kind_of("a.tar.xz"), BL_ARCHIVE_OTHER);
    assert_int_equal(bl_archive_kind_of("x.tar/folder"), BL_ARCHIVE_NONE);
    assert_int_equal(bl_archive_kind_of("model-v1.0"), BL_ARCHIVE_NONE);
    assert_int_equal(bl_archive_kind_of(".tar"), BL_ARCHIVE_NONE);
    assert_int_equal(bl_archive_kind_of("x/.tar"), BL_ARCHIVE_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_member), cmocka_unit_test(aligned), cmocka_unit_test(sizes_must_hold),
                                       cmocka_unit_test(kinds)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
