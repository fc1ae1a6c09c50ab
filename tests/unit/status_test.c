#include "formats/arena.h"
#include "formats/dtype.h"
#include "formats/names.h"
#include "formats/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_line_has_every_part(void **state)
{
    bl_error e = {0};
    char line[200];
    assert_int_equal(bl_fail(&e, BL_E_INPUT, "a/b.safetensors", "x.weight", 12, "%d things", 3), BL_E_INPUT);
    assert_string_equal(bl_error_line(&e, line, sizeof line),
                        "a/b.safetensors: 'x.weight': at byte 12: 3 things");
    bl_error_clear(&e);
    assert_string_equal(bl_error_line(&e, line, sizeof line), "no error");
    bl_fail(&e, BL_E_USAGE, NULL, NULL, -1, "no");
    assert_string_equal(bl_error_line(&e, line, sizeof line), "no");
    assert_int_equal(strlen(bl_error_line(&e, line, 2)), 1);
    bl_error_clear(&e);
    bl_fail(&e, BL_E_INPUT, "a.zip", NULL, -1, "damaged: %s", "wrong size\n");
    assert_string_equal(bl_error_line(&e, line, sizeof line), "a.zip: damaged: wrong size");
}

static void test_first_failure_wins(void **state)
{
    bl_error e = {0};
    bl_fail(&e, BL_E_INPUT, "first", NULL, -1, "one");
    assert_int_equal(bl_fail(&e, BL_E_IO, "second", NULL, -1, "two"), BL_E_IO);
    assert_int_equal(e.code, BL_E_INPUT);
    assert_string_equal(e.path, "first");
    assert_int_equal(bl_fail(NULL, BL_E_NOMEM, NULL, NULL, -1, "nobody listens"), BL_E_NOMEM);
}

static void test_everything_unprintable_is_escaped(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"a\nb\x1b[0m", "a\\x0ab\\x1b[0m"},
        {"caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x90\x8b", "caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x90\x8b"},
        {"\xc3", "\\xc3"},
        {"\xc3x", "\\xc3x"},
        {"\xe2\x82x", "\\xe2\\x82x"},
        {"\xc0\xaf", "\\xc0\\xaf"},                   /* overlong */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},          /* surrogate */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* past U+10FFFF */
        {"\xc2\x9b", "\\xc2\\x9b"},                   /* C1 control */
        {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},          /* line separator */
        {"\xe2\x80\xae", "\\xe2\\x80\\xae"},          /* right-to-left override */
        {"\xe2\x81\xa6", "\\xe2\\x81\\xa6"},          /* isolate */
        {"\x7f", "\\x7f"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error e = {0};
        bl_fail(&e, BL_E_INPUT, cases[i].in, cases[i].in, -1, "%s", cases[i].in);
        assert_string_equal(e.path, cases[i].out);
        assert_string_equal(e.tensor, cases[i].out);
        assert_string_equal(e.message, cases[i].out);
    }
    bl_error e = {0};
    bl_fail(&e, BL_E_INPUT, "it's", "it's", -1, "it's");
    assert_string_equal(e.path, "it's");
    assert_string_equal(e.tensor, "it\\'s");
}

static void test_long_texts_are_cut_at_a_character(void **state)
{
    char text[3000];
    bl_error e = {0};
    for (size_t i = 0; i + 2 < sizeof text; i += 2) {
        memcpy(text + i, "\xc3\xa9", 3);
    }
    bl_fail(&e, BL_E_INPUT, text, text, -1, "%s", text);
    assert_true(strlen(e.path) >= sizeof e.path - 3 && strlen(e.path) % 2 == 0);
    assert_true(strlen(e.tensor) >= sizeof e.tensor - 3 && strlen(e.tensor) % 2 == 0);
    assert_true(strlen(e.message) >= sizeof e.message - 3 && strlen(e.message) % 2 == 0);
}

static void test_errno_classes(void **state)
{
    static const struct {
        int number, reading;
        bl_status code;
    } cases[] = {{ENOENT, 1, BL_E_INPUT}, {ENOTDIR, 1, BL_E_INPUT}, {EISDIR, 1, BL_E_INPUT},
                 {ELOOP, 1, BL_E_INPUT},  {EIO, 1, BL_E_IO},        {EACCES, 1, BL_E_INPUT},
                 {ENOMEM, 1, BL_E_NOMEM}, {ENOENT, 0, BL_E_IO},     {ENOSPC, 0, BL_E_IO},
                 {EACCES, 0, BL_E_IO},    {EPERM, 1, BL_E_INPUT},   {ENAMETOOLONG, 1, BL_E_INPUT},
                 {ENOMEM, 0, BL_E_NOMEM}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error e = {0};
        assert_int_equal(bl_fail_errno(&e, cases[i].number, cases[i].reading, "f", "doing"), cases[i].code);
        assert_non_null(strstr(e.message, strerror(cases[i].number)));
    }
}

static void test_exit_codes(void **state)
{
    static const int want[] = {0, 1, 2, 3, 4, 4, 4, 4};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(bl_exit_code((bl_status)-i), want[i]);
    }
}

static void test_arena(void **state)
{
    bl_arena a = {0};
    for (size_t n = 0; n < 3000; n += 7) {
        unsigned char *p = bl_arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i], 0);
        }
        memset(p, 0xff, n);
    }
    assert_non_null(bl_arena_alloc(&a, 5 << 20));
    assert_null(bl_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(bl_arena_alloc(&a, SIZE_MAX));
    assert_null(bl_arena_strndup(&a, "x", SIZE_MAX));
    assert_string_equal(bl_arena_strndup(&a, "hello", 3), "hel");
    bl_arena_reset(&a);
    assert_int_equal(a.total, 0);
    a.limit = 64;
    assert_non_null(bl_arena_alloc(&a, 40));
    assert_null(bl_arena_alloc(&a, 40));
    assert_non_null(bl_arena_alloc(&a, 16));
    bl_arena_reset(&a);
}

static void test_dtypes(void **state)
{
    static const struct {
        const char *name;
        unsigned bits;
    } want[] = {{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
                {"I64", 64},        {"U64", 64}};
    assert_int_equal(sizeof want / sizeof *want, BL_DT_COUNT - 1);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        bl_dtype t = bl_dtype_parse(want[i].name, strlen(want[i].name));
        assert_int_not_equal(t, BL_DT_NONE);
        assert_string_equal(bl_dtype_name(t), want[i].name);
        assert_int_equal(bl_dtype_bits(t), want[i].bits);
    }
    assert_int_equal(bl_dtype_parse("F8", 2), BL_DT_NONE);
    assert_int_equal(bl_dtype_parse("bf16", 4), BL_DT_NONE);
    assert_int_equal(bl_dtype_parse("BF16x", 5), BL_DT_NONE);
    assert_int_equal(bl_dtype_parse("?", 1), BL_DT_NONE);
    assert_int_equal(bl_dtype_bits((bl_dtype)77), 0);
    assert_string_equal(bl_dtype_name((bl_dtype)-1), "?");
}

static void test_names(void **state)
{
    (void)state;
    assert_true(bl_ends_with("a.safetensors", ".safetensors"));
    assert_true(bl_ends_with(".scale", ".scale"));
    assert_false(bl_ends_with("scale", ".scale"));
    assert_false(bl_ends_with("a.scale.x", ".scale"));
    assert_int_equal(bl_stem("a.b.weight", ".weight"), 3);
    assert_int_equal(bl_stem(".weight", ".weight"), 0);
    assert_int_equal(bl_stem("a.weights", ".weight"), 0);
    bl_arena arena = {0};
    assert_string_equal(bl_path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(bl_path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(bl_path_join(&arena, "/", "b"), "/b");
    assert_string_equal(bl_path_join(&arena, "", "b"), "b");
    bl_arena_reset(&arena);
}

static void test_pieces(void **state)
{
    (void)state;
    assert_int_equal(bl_pieces(0, 32), 0);
    assert_int_equal(bl_pieces(1, 32), 1);
    assert_int_equal(bl_pieces(64, 32), 2);
    assert_int_equal(bl_pieces(65, 32), 3);
    assert_true(bl_pieces(UINT64_MAX, 2) == (uint64_t)1 << 63);
}

static void test_quotes(void **state)
{
    static const char *const cases[][2] = {{"", "\"\""},
                                           {"layers.0", "\"layers.0\""},
                                           {"a\"b\\", "\"a\\\"b\\\\\""},
                                           {"\n\x1f", "\"\\u000a\\u001f\""},
                                           {"\xc3\xa9", "\"\xc3\xa9\""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        size_t n = bl_json_quote(out, cases[i][0]);
        out[n] = 0;
        assert_string_equal(out, cases[i][1]);
        assert_int_equal(bl_json_quote(NULL, cases[i][0]), n);
    }
}

static void test_growing_arrays(void **state)
{
    size_t cap = 0;
    uint64_t *items = NULL;
    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        items = bl_grow(items, &cap, i, sizeof *items);
        assert_true(items && cap > i);
        items[i] = i * i;
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(items[i] == i * i);
    }
    size_t before = cap;
    assert_null(bl_grow(items, &cap, cap, SIZE_MAX / 64)); /* more bytes than there can be: nothing has changed */
    assert_true(cap == before && items[999] == 999 * 999);
    free(items);
    bl_arena a = {.limit = 20000};
    items = NULL;
    cap = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        items = bl_arena_grow(&a, items, &cap, i, sizeof *items);
        assert_true(items && cap > i);
        items[i] = i * i;
    }
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(items[i] == i * i);
    }
    before = cap;
    assert_null(bl_arena_grow(&a, items, &cap, cap, sizeof *items)); /* beyond the limit */
    assert_true(cap == before && items[999] == 999 * 999);
    bl_arena_reset(&a);
}

static void test_endings(void **state)
{
    (void)state;
    assert_string_equal(bl_plural(0), "s");
    assert_string_equal(bl_plural(1), "");
    assert_string_equal(bl_plural(2), "s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_line_has_every_part),
                                       cmocka_unit_test(test_first_failure_wins),
                                       cmocka_unit_test(test_everything_unprintable_is_escaped),
                                       cmocka_unit_test(test_long_texts_are_cut_at_a_character),
                                       cmocka_unit_test(test_errno_classes),
                                       cmocka_unit_test(test_exit_codes),
                                       cmocka_unit_test(test_arena),
                                       cmocka_unit_test(test_growing_arrays),
                                       cmocka_unit_test(test_endings),
                                       cmocka_unit_test(test_dtypes),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_quotes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
