#include "formats/file.h"
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"

static void test_open_refuses_what_is_no_file(void **state)
{
    bl_file *f;
    bl_error e = {0};
    const char *fifo = scratch_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_failure(bl_file_open(&f, fifo, &e), &e, BL_E_INPUT, "fifo|a FIFO");
    bl_error_clear(&e);
    expect_failure(bl_file_open(&f, scratch_root, &e), &e, BL_E_INPUT, "a folder");
    bl_error_clear(&e);
    expect_failure(bl_file_open(&f, "/dev/null", &e), &e, BL_E_INPUT, "a device");
    bl_error_clear(&e);
    expect_failure(bl_file_open(&f, scratch_path("nope"), &e), &e, BL_E_INPUT, "nope|No such file");
    bl_error_clear(&e);
    assert_int_equal(symlink("loop", scratch_path("loop")), 0);
    expect_failure(bl_file_open(&f, scratch_path("loop"), &e), &e, BL_E_INPUT, "loop");
    assert_null(f);
}

static void test_reads(void **state)
{
    bl_file *f;
    bl_error e = {0};
    char buf[16] = "";
    scratch_text(scratch_path("data"), "0123456789");
    assert_int_equal(symlink("data", scratch_path("link")), 0);
    expect_ok(bl_file_open(&f, scratch_path("link"), &e), &e);
    assert_int_equal(bl_file_size(f), 10);
    expect_ok(bl_file_read(f, buf, 4, 3, &e), &e);
    assert_string_equal(buf, "3456");
    expect_ok(bl_file_read(f, buf, 0, 99, &e), &e);
    expect_failure(bl_file_read(f, buf, 4, 8, &e), &e, BL_E_INPUT,
                   "truncated|2 bytes missing|at byte 10");
    bl_error_clear(&e);
    expect_failure(bl_file_read(f, buf, 4, UINT64_MAX - 1, &e), &e, BL_E_INPUT, "out of range");
    bl_file *g = bl_file_ref(f);
    bl_file_close(&f);
    assert_null(f);
    assert_int_equal(bl_file_size(g), 10);
    bl_file_close(&g);
    bl_file_close(&g);
}

static void test_slurp(void **state)
{
    char *text;
    size_t n;
    bl_error e = {0};
    scratch_text(scratch_path("text"), "hello");
    scratch_text(scratch_path("empty"), "");
    expect_ok(bl_file_slurp(scratch_path("text"), 5, &text, &n, &e), &e);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    expect_ok(bl_file_slurp(scratch_path("empty"), 5, &text, NULL, &e), &e);
    assert_string_equal(text, "");
    free(text);
    expect_failure(bl_file_slurp(scratch_path("text"), 4, &text, &n, &e), &e, BL_E_INPUT,
                   "5 bytes|limit of 4");
    assert_null(text);
}

static void test_regions(void **state)
{
    static const bl_access ways[] = {BL_ACCESS_AUTO, BL_ACCESS_MMAP, BL_ACCESS_PREAD};
    enum { SIZE = 20000 };
    unsigned char data[SIZE];
    bl_file *f;
    bl_error e = {0};
    for (int i = 0; i < SIZE; i++) {
        data[i] = (unsigned char)(i * 7 + i / 251);
    }
    scratch_write(scratch_path("region"), data, SIZE);
    expect_ok(bl_file_open(&f, scratch_path("region"), &e), &e);
    for (size_t w = 0; w < 3; w++) {
        for (uint64_t offset = 0; offset <= SIZE; offset += 4999) {
            bl_region *r;
            expect_ok(bl_region_open(&r, f, offset, SIZE - offset, ways[w], &e), &e);
            assert_memory_equal(bl_region_data(r), data + offset, SIZE - offset);
            bl_region_close(&r);
            assert_null(r);
        }
        bl_region *r;
        expect_failure(bl_region_open(&r, f, 10, SIZE, ways[w], &e), &e, BL_E_INPUT, "past the end");
        bl_error_clear(&e);
        expect_failure(bl_region_open(&r, f, UINT64_MAX, 2, ways[w], &e), &e, BL_E_INPUT, "past the end");
        bl_error_clear(&e);
        assert_null(r);
    }
    /* A region outlives the handle it was opened from. */
    bl_region *r;
    expect_ok(bl_region_open(&r, f, 1, 2, BL_ACCESS_MMAP, &e), &e);
    bl_file_close(&f);
    assert_memory_equal(bl_region_data(r), data + 1, 2);
    bl_region_close(&r);
}

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d)) {
        n++;
    }
    closedir(d);
    return n - 2;
}

static void expect_text(const char *path, const char *want)
{
    char *text;
    bl_error e = {0};
    expect_ok(bl_file_slurp(path, 1 << 20, &text, NULL, &e), &e);
    assert_string_equal(text, want);
    free(text);
}

/* rename() would put the file in their place. */
static void test_output_replaces_files_alone(void **state)
{
    bl_output *o;
    bl_error e = {0};
    const char *fifo = scratch_path("out-fifo"), *link = scratch_path("out-link");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect_failure(bl_output_open(&o, fifo, 0, &e), &e, BL_E_IO, "out-fifo|is a FIFO");
    bl_error_clear(&e);
    expect_failure(bl_output_open(&o, scratch_root, 0, &e), &e, BL_E_IO, "is a folder");
    bl_error_clear(&e);
    assert_int_equal(symlink("/dev/null", link), 0);
    expect_failure(bl_output_open(&o, link, 0, &e), &e, BL_E_IO, "out-link|is a device");
    bl_error_clear(&e);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("/proc/self/cmdline", link), 0);
    expect_failure(bl_output_open(&o, link, 0, &e), &e, BL_E_IO, "a link of the system");
    bl_error_clear(&e);
    assert_int_equal(unlink(link), 0);
    scratch_text(scratch_path("out-target"), "old");
    assert_int_equal(symlink("out-target", link), 0);
    expect_ok(bl_output_file(link, "new", 3, &e), &e);
    expect_text(link, "new");
    expect_text(scratch_path("out-target"), "old");
}

static void test_output_is_complete_or_absent(void **state)
{
    bl_output *o;
    bl_error e = {0};
    const char *dir = scratch_path("out");
    char path[600];
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    expect_ok(bl_output_open(&o, path, 6, &e), &e);
    assert_int_not_equal(access(path, F_OK), 0);
    expect_ok(bl_output_write(o, "def", 3, 3, &e), &e);
    expect_ok(bl_output_write(o, "abc", 3, 0, &e), &e);
    assert_int_equal(entries(dir), 1);
    expect_ok(bl_output_commit(&o, &e), &e);
    assert_null(o);
    assert_int_equal(entries(dir), 1);
    expect_text(path, "abcdef");
    expect_ok(bl_output_open(&o, path, 0, &e), &e);
    expect_ok(bl_output_write(o, "new", 3, 0, &e), &e);
    bl_output_abort(&o);
    bl_output_abort(&o);
    assert_int_equal(entries(dir), 1);
    expect_text(path, "abcdef");
    expect_ok(bl_output_file(path, "xyz", 3, &e), &e);
    expect_text(path, "xyz");
    /* Two writers of one file do not meet: the last to commit wins, whole. */
    bl_output *p;
    expect_ok(bl_output_open(&o, path, 0, &e), &e);
    expect_ok(bl_output_open(&p, path, 0, &e), &e);
    expect_ok(bl_output_write(o, "one", 3, 0, &e), &e);
    expect_ok(bl_output_write(p, "second", 6, 0, &e), &e);
    expect_ok(bl_output_commit(&p, &e), &e);
    expect_ok(bl_output_commit(&o, &e), &e);
    expect_text(path, "one");
    assert_int_equal(entries(dir), 1);
}

static void test_output_failures_leave_nothing(void **state)
{
    bl_output *o;
    bl_error e = {0};
    const char *dir = scratch_path("outfail");
    char path[600];
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/taken", dir);
    expect_ok(bl_output_open(&o, path, 0, &e), &e);
    assert_int_equal(mkdir(path, 0700), 0); /* meanwhile */
    expect_failure(bl_output_commit(&o, &e), &e, BL_E_IO, "taken|cannot complete");
    assert_null(o);
    assert_int_equal(entries(dir), 1);
    bl_error_clear(&e);
    snprintf(path, sizeof path, "%s/no/such", dir);
    expect_failure(bl_output_open(&o, path, 0, &e), &e, BL_E_IO, "cannot create|No such file");
    assert_null(o);
    bl_error_clear(&e);
    snprintf(path, sizeof path, "%s/huge", dir);
    expect_failure(bl_output_open(&o, path, (uint64_t)1 << 62, &e), &e, BL_E_IO,
                   "huge|4611686018427387904 bytes");
    assert_int_equal(entries(dir), 1);
    /* A write error: the file size limit stands in for a full disk. */
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char block[4000] = {0};
    bl_error_clear(&e);
    snprintf(path, sizeof path, "%s/full", dir);
    bl_status s = bl_output_file(path, block, sizeof block, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_failure(s, &e, BL_E_IO, "full|write error|at byte 1000");
    assert_int_equal(entries(dir), 1);
}

static void *write_ranges(void *arg)
{
    bl_output *o = ((void **)arg)[0];
    uintptr_t which = (uintptr_t)((void **)arg)[1];
    for (uint64_t i = which; i < 1000; i += 4) {
        char text[8];
        snprintf(text, sizeof text, "%06u\n", (unsigned)i);
        if (bl_output_write(o, text, 7, i * 7, NULL) != BL_OK) {
            return o;
        }
    }
    return NULL;
}

static void test_concurrent_ranges(void **state)
{
    bl_output *o;
    bl_error e = {0};
    pthread_t threads[4];
    void *args[4][2];
    const char *path = scratch_path("ranges");
    expect_ok(bl_output_open(&o, path, 7000, &e), &e);
    for (uintptr_t i = 0; i < 4; i++) {
        args[i][0] = o;
        args[i][1] = (void *)i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_ranges, args[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    expect_ok(bl_output_commit(&o, &e), &e);
    char *text;
    size_t n;
    expect_ok(bl_file_slurp(path, 1 << 20, &text, &n, &e), &e);
    assert_int_equal(n, 7000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(atoi(text + 7 * i), i);
    }
    free(text);
}

static void write_in(const bl_folder *f, const char *name)
{
    char path[900];
    bl_error e = {0};
    snprintf(path, sizeof path, "%s/%s", bl_folder_files(f), name);
    expect_ok(bl_output_file(path, "x", 1, &e), &e);
}

static void test_folders(void **state)
{
    char inner[900];
    bl_folder *f, *other;
    bl_error e = {0};
    char path[900];
    snprintf(path, sizeof path, "%s", scratch_path("folder"));
    expect_ok(bl_folder_begin(&f, scratch_path("folder//"), false, &e), &e);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_string_equal(bl_folder_partial(f), scratch_path("folder.partial"));
    assert_false(bl_folder_left_over(f));
    snprintf(inner, sizeof inner, "%s/sub", bl_folder_files(f));
    assert_int_equal(mkdir(inner, 0700), 0);
    write_in(f, "sub/file");
    assert_int_equal(symlink("/", scratch_path("folder.partial/files/link")), 0);
    expect_failure(bl_folder_begin(&other, path, true, &e), &e, BL_E_USAGE, "being written by another process");
    assert_null(other);
    bl_error_clear(&e);
    bl_folder_abort(&f, false);
    assert_null(f);
    assert_int_equal(access("/", F_OK), 0);
    assert_int_not_equal(access(scratch_path("folder.partial"), F_OK), 0);
    expect_ok(bl_folder_begin(&f, path, false, &e), &e);
    expect_ok(bl_folder_commit(&f, &e), &e);
    assert_null(f);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(scratch_path("folder.partial"), F_OK), 0);
    expect_ok(bl_folder_begin(&f, path, false, &e), &e); /* an empty folder may be replaced */
    scratch_text(scratch_path("folder/occupied"), "x");
    expect_failure(bl_folder_commit(&f, &e), &e, BL_E_IO, "cannot complete");
    assert_non_null(f);
    bl_folder_abort(&f, false);
    bl_folder_abort(&f, false);
    bl_error_clear(&e);
    expect_failure(bl_folder_begin(&f, path, false, &e), &e, BL_E_USAGE, "not an empty folder");
    bl_error_clear(&e);
    expect_failure(bl_folder_begin(&f, scratch_path("folder/occupied"), true, &e), &e, BL_E_USAGE, "not a folder");
    bl_error_clear(&e);
    expect_failure(bl_folder_begin(&f, scratch_path("no/where"), false, &e), &e, BL_E_IO, "no/where");
    assert_null(f);
}

/* What a dead process leaves is taken over, or removed; what is not of its making is not touched. */
static void test_folders_left_over(void **state)
{
    static const char *const keep[] = {"sub/b"};
    bl_folder *f;
    bl_error e = {0};
    char path[900];
    snprintf(path, sizeof path, "%s", scratch_path("again"));
    expect_ok(bl_folder_begin(&f, path, true, &e), &e);
    assert_int_equal(mkdir(scratch_path("again.partial/files/sub"), 0700), 0);
    write_in(f, "a");
    write_in(f, "sub/b");
    write_in(f, "sub/c");
    assert_int_equal(write(bl_folder_journal(f), "x", 1), 1);
    bl_folder_abort(&f, true);
    expect_ok(bl_folder_begin(&f, path, true, &e), &e);
    assert_true(bl_folder_left_over(f) && !bl_folder_committed(f));
    bl_folder_keep(f, keep, 1);
    assert_int_equal(access(scratch_path("again.partial/files/sub/b"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("again.partial/files/sub/c"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("again.partial/files/a"), F_OK), 0);
    bl_folder_abort(&f, true);
    expect_ok(bl_folder_begin(&f, path, false, &e), &e);
    assert_true(bl_folder_left_over(f));
    assert_int_not_equal(access(scratch_path("again.partial/files/sub"), F_OK), 0);
    assert_int_equal(lseek(bl_folder_journal(f), 0, SEEK_END), 0);
    assert_int_equal(write(bl_folder_journal(f), "x", 1), 1);
    bl_folder_abort(&f, true);
    /* dead between the rename and the end */
    assert_int_equal(rename(scratch_path("again.partial/files"), path), 0);
    scratch_text(scratch_path("again/whole"), "x");
    expect_failure(bl_folder_begin(&f, path, false, &e), &e, BL_E_USAGE, "not an empty folder");
    bl_error_clear(&e);
    expect_ok(bl_folder_begin(&f, path, true, &e), &e);
    assert_true(bl_folder_committed(f));
    bl_folder_abort(&f, false);
    assert_int_equal(access(scratch_path("again/whole"), F_OK), 0);
    assert_int_not_equal(access(scratch_path("again.partial"), F_OK), 0);
    /* somebody else's */
    assert_int_equal(mkdir(scratch_path("mine.partial"), 0700), 0);
    scratch_text(scratch_path("mine.partial/notes"), "x");
    expect_failure(bl_folder_begin(&f, scratch_path("mine"), false, &e), &e, BL_E_USAGE, "in the way");
    assert_int_equal(access(scratch_path("mine.partial/notes"), F_OK), 0);
}

/* Where the rename at the end must fail it is said at the start. */
static void test_folders_that_cannot_be_renamed_over(void **state)
{
    static const char *const bad[][2] = {{"dst-empty/sub/..", "not an empty folder"},
                                         {"dst-link", "a symbolic link"},
                                         {"dst-link/", "a symbolic link"},
                                         {"dst-dangling", "a symbolic link"}};
    bl_error e = {0};
    assert_int_equal(mkdir(scratch_path("dst-empty"), 0700), 0);
    assert_int_equal(symlink("dst-empty", scratch_path("dst-link")), 0);
    assert_int_equal(symlink("gone", scratch_path("dst-dangling")), 0);
    expect_ok(bl_folder_check(scratch_path("dst-empty"), &e), &e);
    expect_ok(bl_folder_check(scratch_path("dst-empty/new//"), &e), &e);
    expect_failure(bl_folder_check(scratch_path("dst-empty/."), &e), &e, BL_E_USAGE, "under its own name");
    assert_int_equal(mkdir(scratch_path("dst-empty/sub"), 0700), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bl_error_clear(&e);
        expect_failure(bl_folder_check(scratch_path("%s", bad[i][0]), &e), &e, BL_E_USAGE, bad[i][1]);
    }
    bl_error_clear(&e);
    expect_failure(bl_folder_check("/proc", &e), &e, BL_E_USAGE, "already exists");
    bl_error_clear(&e);
    expect_failure(bl_folder_check(scratch_path("none/x"), &e), &e, BL_E_IO, "no folder to create it in");
}

static void test_free_space(void **state)
{
    uint64_t here, deep;
    bl_error e = {0};
    expect_ok(bl_free_space(scratch_root, &here, &e), &e);
    expect_ok(bl_free_space(scratch_path("not/yet/there/"), &deep, &e), &e);
    expect_ok(bl_free_space("also-not-there", &deep, &e), &e);
    assert_true(here > 0 && deep > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_open_refuses_what_is_no_file),
                                       cmocka_unit_test(test_reads),
                                       cmocka_unit_test(test_slurp),
                                       cmocka_unit_test(test_regions),
                                       cmocka_unit_test(test_output_replaces_files_alone),
                                       cmocka_unit_test(test_output_is_complete_or_absent),
                                       cmocka_unit_test(test_output_failures_leave_nothing),
                                       cmocka_unit_test(test_concurrent_ranges),
                                       cmocka_unit_test(test_folders),
                                       cmocka_unit_test(test_folders_left_over),
                                       cmocka_unit_test(test_folders_that_cannot_be_renamed_over),
                                       cmocka_unit_test(test_free_space)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
