/* SHA256SUMS: what is written is read back, and nothing but that form is read. */
#include "formats/file.h"
#include "verify/sha256.h"

#include "tests/unit/scratch.h"

#define HEX "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static const struct {
    const char *text, *what; /* what: fragments of the failure, NULL = it is read */
} cases[] = {
    {"", NULL},
    {HEX "  a\n", NULL},
    {HEX " *a\n" HEX "  rank-0000/b c\n", NULL},
    {HEX "  a", "at byte 0"},
    {HEX "  a\n" HEX "  b\r\n", "at byte 68|CR LF"},
    {HEX "  a\n\n", "at byte 68"},
    {HEX "  a\n" HEX "  a\n", "twice"},
    {HEX " a\n", "digits"},
    {HEX "\ta\n", "digits"},
    {"E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855  a\n", "lower-case"},
    {"g3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n", "digits"},
    {HEX "  \n", "digits"},
    {HEX "  ../a\n", "digits"},
    {HEX "  /a\n", "digits"},
    {HEX "  a//b\n", "digits"},
    {HEX "  a/./b\n", "digits"},
    {HEX "  a/\n", "digits"},
    {HEX "  a\\nb\n", "digits"},
    {"\\" HEX "  a\n", "digits"},
};

static void test_reading(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_arena arena = {0};
        bl_sum_line *lines;
        size_t n;
        bl_error e;
        bl_error_clear(&e);
        bl_status s = bl_sums_parse(cases[i].text, strlen(cases[i].text), "SHA256SUMS", &arena, &lines, &n, &e);
        if (cases[i].what) {
            expect_failure(s, &e, BL_E_INPUT, cases[i].what);
        } else {
            expect_ok(s, &e);
            assert_true(n == 0 || bl_sums_find(lines, n, "a"));
            assert_null(bl_sums_find(lines, n, "z"));
        }
        bl_arena_reset(&arena);
    }
}

static void test_writing(void **state)
{
    bl_sum_line lines[] = {{.name = "b"}, {.name = "rank-0000/a"}, {.name = "a"}}, *back;
    const char *path = scratch_path("SHA256SUMS");
    bl_arena arena = {0};
    char *text;
    size_t n, bytes;
    bl_error e;
    bl_error_clear(&e);
    for (int i = 0; i < 3; i++) {
        expect_ok(bl_sha256_bytes(lines[i].name, strlen(lines[i].name), lines[i].digest, &e), &e);
    }
    expect_ok(bl_sums_write(lines, 3, path, &e), &e);
    expect_ok(bl_file_slurp(path, 4096, &text, &bytes, &e), &e);
    expect_ok(bl_sums_parse(text, bytes, path, &arena, &back, &n, &e), &e);
    free(text);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) {
        const bl_sum_line *l = bl_sums_find(back, n, lines[i].name);
        assert_non_null(l);
        assert_memory_equal(l->digest, lines[i].digest, 32);
    }
    bl_arena_reset(&arena);
}

static void test_hashing(void **state)
{
    uint8_t whole[32], parts[32], file[32];
    bl_sha256 *h;
    char *data = malloc(3000000);
    for (int i = 0; i < 3000000; i++) {
        data[i] = (char)(i * 7 >> 3);
    }
    expect_ok(bl_sha256_bytes(data, 3000000, whole, NULL), NULL);
    expect_ok(bl_sha256_create(&h, NULL), NULL);
    for (int round = 0; round < 2; round++) { /* it starts anew after each digest */
        for (size_t at = 0; at < 3000000; at += 777777) {
            bl_sha256_update(h, data + at, 3000000 - at < 777777 ? 3000000 - at : 777777);
        }
        expect_ok(bl_sha256_final(h, parts, NULL), NULL);
        assert_memory_equal(whole, parts, 32);
    }
    bl_sha256_destroy(&h);
    scratch_write(scratch_path("data"), data, 3000000);
    expect_ok(bl_sha256_file(scratch_path("data"), file, NULL), NULL);
    assert_memory_equal(whole, file, 32);
    free(data);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_reading), cmocka_unit_test(test_writing),
                                              cmocka_unit_test(test_hashing)};
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
