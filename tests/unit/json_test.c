#include "formats/json.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A case whose text holds a NUL byte has its length with it. */
typedef struct text_case {
    const char *text;
    size_t n;
    const char *fragment; /* of the message; NULL = accepted */
    int64_t offset;       /* where it fails; -2 = anywhere */
} text_case;

#define OK(t)                                                                                                \
    {                                                                                                        \
        t, sizeof(t) - 1, NULL, 0                                                                            \
    }
#define BAD(t, fragment, offset)                                                                             \
    {                                                                                                        \
        t, sizeof(t) - 1, fragment, offset                                                                   \
    }

static const text_case cases[] = {
    OK("null"),
    OK("true"),
    OK("false"),
    OK("0"),
    OK("-0"),
    OK("12"),
    OK("-12.5"),
    OK("1e5"),
    OK("1E+5"),
    OK("1.25e-7"),
    OK("0.0"),
    OK("0e0"),
    OK("1e999"),
    OK("123456789012345678901234567890"),
    OK("\"\""),
    OK("\"a\""),
    OK("[]"),
    OK("{}"),
    OK(" \t\r\n[ 1 , 2 ]\n"),
    OK("{\"a\":1,\"b\":[{}],\"c\":{\"a\":1}}"),
    OK("[[],[[]],{\"x\":[]}]"),
    OK("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\""),
    OK("\"\\u0000\""),
    OK("\"\\ud83d\\ude00\""),
    OK("\"\\ud83d\""),
    OK("\"\\ude00x\""),
    OK("\"\\ud83d\\u0041\""),
    OK("\"\x7f\""),
    OK("\"\xc3\xa9\""),
    OK("\"\xe2\x82\xac\""),
    OK("\"\xf0\x9f\x90\x8b\""),
    OK("\"\xed\x9f\xbf\""),
    OK("\"\xf4\x8f\xbf\xbf\""),
    OK("\"\xef\xbb\xbf\""),
    OK("{\"\":1}"),
    OK("{\"a\":1,\"A\":2}"),
    OK("[1,\"1\",true,null]"),
    OK("{\"a\":{\"b\":1},\"b\":{\"b\":1}}"),
    BAD("", "ends where a value", 0),
    BAD(" ", "ends where a value", 1),
    BAD("nul", "expected a value", 0),
    BAD("True", "expected a value", 0),
    BAD("nullx", "something follows", 4),
    BAD("1 2", "something follows", 2),
    BAD("01", "must not start with 0", 0),
    BAD("-01", "must not start with 0", 0),
    BAD("-", "needs digits", 0),
    BAD("+1", "expected a value", 0),
    BAD(".5", "expected a value", 0),
    BAD("1.", "a fraction needs digits", 0),
    BAD("1.e5", "a fraction needs digits", 0),
    BAD("1e", "an exponent needs digits", 0),
    BAD("1e+", "an exponent needs digits", 0),
    BAD("0x10", "something follows", 1),
    BAD("NaN", "expected a value", 0),
    BAD("Infinity", "expected a value", 0),
    BAD("-Infinity", "needs digits", 0),
    BAD("[1,]", "expected a value", 3),
    BAD("[,1]", "expected a value", 1),
    BAD("[1 2]", "expected ',' or ']'", 3),
    BAD("[1", "ends inside an array", 2),
    BAD("[", "ends where a value", 1),
    BAD("]", "expected a value", 0),
    BAD("[1}", "expected ',' or ']'", 2),
    BAD("{", "expected a key", 1),
    BAD("{1:2}", "expected a key", 1),
    BAD("{a:1}", "expected a key", 1),
    BAD("{'a':1}", "expected a key", 1),
    BAD("{\"a\"}", "expected ':'", 4),
    BAD("{\"a\" 1}", "expected ':'", 5),
    BAD("{\"a\":}", "expected a value", 5),
    BAD("{\"a\":1,}", "expected a key", 7),
    BAD("{\"a\":1", "ends inside an object", 6),
    BAD("{\"a\":1]", "expected ',' or '}'", 6),
    BAD("{\"a\":1 \"b\":2}", "expected ',' or '}'", 7),
    BAD("\"a", "ends inside a string", 0),
    BAD("\"a\\", "ends inside an escape", 2),
    BAD("\"\\x41\"", "unknown escape", 1),
    BAD("\"\\u12g4\"", "four hex digits", 1),
    BAD("\"\\u12", "four hex digits", 1),
    BAD("\"a\nb\"", "control byte", 2),
    BAD("\"\x1f\"", "control byte", 1),
    BAD("\"a\0b\"", "control byte", 2),
    BAD("1\0", "something follows", 1),
    BAD("\"\x80\"", "invalid UTF-8", 1),
    BAD("\"\xc0\xaf\"", "invalid UTF-8", 1),
    BAD("\"\xc1\xbf\"", "invalid UTF-8", 1),
    BAD("\"\xe0\x80\x80\"", "invalid UTF-8", 1),
    BAD("\"\xed\xa0\x80\"", "invalid UTF-8", 1),
    BAD("\"\xf0\x80\x80\x80\"", "invalid UTF-8", 1),
    BAD("\"\xf4\x90\x80\x80\"", "invalid UTF-8", 1),
    BAD("\"\xff\"", "invalid UTF-8", 1),
    BAD("\"\xc3\"", "invalid UTF-8", 1),
    BAD("\"\xe2\x82\"", "invalid UTF-8", 1),
    BAD("\"abcdefghijkl\xe2\"", "invalid UTF-8", 13),
    BAD("\xef\xbb\xbf{}", "expected a value", 0),
    BAD("// x\n1", "expected a value", 0),
    BAD("[1]/**/", "something follows", 3),
    BAD("{\"a\":1,\"a\":2}", "duplicate key", 7),
    BAD("{\"a\":1,\"\\u0061\":2}", "duplicate key", 7),
    BAD("{\"\\ud800\":1,\"\\udc00\":2}", "duplicate key", 12),
    BAD("{\"\":1,\"\":2}", "duplicate key", 6),
    BAD("[{\"x\":{\"y\":1,\"z\":2,\"y\":3}}]", "duplicate key", 19),
    BAD("\v1", "expected a value", 0),
};

static void test_accepts_and_rejects(void **state)
{
    assert_true(sizeof cases / sizeof *cases >= 80);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const text_case *c = &cases[i];
        bl_error e = {0};
        bl_json root;
        char *copy =
            malloc(c->n ? c->n : 1); /* exactly sized: a read past the end shows under the sanitizer */
        memcpy(copy, c->text, c->n);
        bl_status s = bl_json_parse(copy, c->n, NULL, "doc", &root, &e);
        if ((s == BL_OK) != !c->fragment ||
            (c->fragment && (!strstr(e.message, c->fragment) || e.offset != c->offset))) {
            fail_msg("case %zu (%s): status %d at %lld: %s", i, c->text, s, (long long)e.offset, e.message);
        }
        free(copy);
    }
}

static void test_large_objects_are_checked_for_duplicates(void **state)
{
    for (int n = 2; n < 3000; n += n < 70 ? 1 : 997) {
        for (int twice = -1; twice < n; twice += n / 3 + 1) {
            size_t cap = (size_t)n * 32 + 64, at = 0;
            char *text = malloc(cap);
            at += (size_t)snprintf(text, cap, "[{");
            for (int i = 0; i < n; i++) {
                at += (size_t)snprintf(text + at, cap - at, "\"k%d\":{\"k0\":0},", i);
            }
            at += (size_t)snprintf(text + at, cap - at, "\"k%d\":0}]", twice < 0 ? n : twice);
            bl_error e = {0};
            bl_json root;
            bl_status s = bl_json_parse(text, at, NULL, "doc", &root, &e);
            assert_int_equal(s, twice < 0 ? BL_OK : BL_E_INPUT);
            if (twice >= 0) {
                char want[16];
                snprintf(want, sizeof want, "k%d", twice);
                assert_string_equal(e.tensor, want);
            }
            free(text);
        }
    }
}

static void test_limits(void **state)
{
    bl_json root;
    bl_error e = {0};
    bl_json_limits depth = {.max_depth = 2}, bytes = {.max_bytes = 3}, last = {.last_duplicate_wins = true},
                   lone = {.refuse_lone_surrogates = true};
    assert_int_equal(bl_json_parse("[[1]]", 5, &depth, "d", &root, &e), BL_OK);
    assert_int_equal(bl_json_parse("[[[]]]", 6, &depth, "d", &root, &e), BL_E_INPUT);
    assert_non_null(strstr(e.message, "deeper than 2"));
    bl_error_clear(&e);
    assert_int_equal(bl_json_parse("1234", 4, &bytes, "d", &root, &e), BL_E_INPUT);
    assert_non_null(strstr(e.message, "limit of 3"));
    assert_int_equal(bl_json_parse("{\"a\":1,\"a\":2}", 13, &last, "d", &root, NULL), BL_OK);
    uint64_t u = 0;
    assert_true(bl_json_u64(bl_json_get(root, "a"), &u) && u == 2);
    static const char *const bad[] = {"\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\ud800\"", "\"\\ud800x\"",
                                      "\"\\ud800\\n\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(bl_json_parse(bad[i], strlen(bad[i]), &lone, "d", &root, NULL), BL_E_INPUT);
    }
    assert_int_equal(bl_json_parse("\"\\ud83d\\ude00\"", 14, &lone, "d", &root, NULL), BL_OK);
    char *deep = malloc(200000);
    memset(deep, '[', 100000);
    memset(deep + 100000, ']', 100000);
    assert_int_equal(bl_json_parse(deep, 200000, NULL, "d", &root, NULL), BL_E_INPUT);
    free(deep);
}

static bl_json parsed(const char *text)
{
    bl_json root;
    assert_int_equal(bl_json_parse(text, strlen(text), NULL, "doc", &root, NULL), BL_OK);
    return root;
}

static void test_walking(void **state)
{
    bl_json root = parsed(" { \"a\" : [ 1 , \"x,]}\" , { } ] , \"b\\n\" : null , \"c\" : -1.5e3 } "), k, v;
    static const bl_json_kind kinds[] = {BL_JSON_ARRAY, BL_JSON_NULL, BL_JSON_NUMBER};
    static const char *const keys[] = {"a", "b\n", "c"};
    bl_json_iter it = bl_json_begin(root);
    int n = 0;
    for (; bl_json_next(&it, &k, &v); n++) {
        assert_int_equal(v.kind, kinds[n]);
        assert_true(bl_json_equals(k, keys[n]));
        assert_false(bl_json_equals(k, "b"));
    }
    assert_int_equal(n, 3);
    assert_false(bl_json_next(&it, &k, &v));
    bl_json a = bl_json_get(root, "a");
    assert_int_equal(bl_json_count(a), 3);
    assert_int_equal(bl_json_count(root), 3);
    assert_int_equal(bl_json_count(parsed("\"ab\"")), 0);
    assert_int_equal(bl_json_get(root, "nope").kind, BL_JSON_NONE);
    assert_int_equal(bl_json_get(a, "a").kind, BL_JSON_NONE);
    bl_json c = bl_json_get(root, "c");
    assert_int_equal(c.n, 6);
    assert_memory_equal(c.p, "-1.5e3", 6);
    it = bl_json_begin(a);
    assert_true(bl_json_next(&it, &k, &v) && k.kind == BL_JSON_NONE && v.kind == BL_JSON_NUMBER);
    assert_true(bl_json_next(&it, &k, &v) && bl_json_equals(v, "x,]}"));
    assert_true(bl_json_next(&it, &k, &v) && v.kind == BL_JSON_OBJECT && bl_json_count(v) == 0);
}

static void test_strings(void **state)
{
    char buf[64];
    assert_int_equal(bl_json_string(parsed("\"a\\u00e9\\ud83d\\ude00\\n\""), buf, sizeof buf), 8);
    assert_string_equal(buf, "a\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_int_equal(bl_json_string(parsed("\"\\ud800x\\udc00\""), buf, sizeof buf), 7);
    assert_string_equal(buf, "\xef\xbf\xbdx\xef\xbf\xbd");
    assert_int_equal(bl_json_string(parsed("\"a\\u0000b\""), buf, sizeof buf), 3);
    assert_memory_equal(buf, "a\0b", 4);
    assert_int_equal(bl_json_string(parsed("\"abcdef\""), buf, 4), 6);
    assert_string_equal(buf, "abc");
    assert_int_equal(bl_json_string(parsed("\"abc\""), NULL, 0), 3);
    assert_int_equal(bl_json_string(parsed("12"), buf, sizeof buf), 0);
    assert_string_equal(buf, "");
    assert_true(bl_json_equals(parsed("\"\\u0041b\""), "Ab"));
    assert_false(bl_json_equals(parsed("\"Ab\""), "Abc"));
    assert_false(bl_json_equals(parsed("\"Abc\""), "Ab"));
    assert_false(bl_json_equals(parsed("\"a\\u0000\""), "a"));
    assert_false(bl_json_equals(parsed("1"), "1"));
    assert_true(bl_text_is_clean("caf\xc3\xa9", 5));
    assert_false(bl_text_is_clean("a\tb", 3));
    assert_false(bl_text_is_clean("a\0b", 3));
    assert_false(bl_text_is_clean("\x7f", 1));
    assert_false(bl_text_is_clean("\xc3", 1));
}

static void test_numbers(void **state)
{
    uint64_t u = 7;
    int64_t i = 7;
    double d = 7;
    assert_true(bl_json_u64(parsed("18446744073709551615"), &u) && u == UINT64_MAX);
    assert_false(bl_json_u64(parsed("18446744073709551616"), &u));
    assert_false(bl_json_u64(parsed("-0"), &u));
    assert_false(bl_json_u64(parsed("1.0"), &u));
    assert_false(bl_json_u64(parsed("1e2"), &u));
    assert_false(bl_json_u64(parsed("\"1\""), &u));
    assert_true(bl_json_i64(parsed("-9223372036854775808"), &i) && i == INT64_MIN);
    assert_true(bl_json_i64(parsed("9223372036854775807"), &i) && i == INT64_MAX);
    assert_true(bl_json_i64(parsed("-0"), &i) && i == 0);
    assert_false(bl_json_i64((bl_json){NULL, 0, BL_JSON_NONE}, &i));
    assert_false(bl_json_i64(parsed("9223372036854775808"), &i));
    assert_false(bl_json_i64(parsed("-9223372036854775809"), &i));
    assert_true(bl_json_double(parsed("1e-20"), &d) && d == 1e-20);
    assert_true(bl_json_double(parsed("-0.0"), &d) && d == 0);
    assert_false(bl_json_double(parsed("1e999"), &d));
    assert_false(bl_json_double(parsed("true"), &d));
    char many[400];
    memset(many, '1', 399);
    many[1] = '.';
    many[399] = 0;
    assert_true(bl_json_double(parsed(many), &d) && d > 1.1 && d < 1.2);
    bool b = false;
    assert_true(bl_json_bool(parsed("true"), &b) && b);
    assert_true(bl_json_bool(parsed("false"), &b) && !b);
    assert_false(bl_json_bool(parsed("0"), &b));
}

/* Random documents and damaged ones: jansson must agree on acceptance and on every value. */
static uint32_t rng = 12345;

static uint32_t draw(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(rng >> 4) * n >> 28);
}

static char doc[1 << 16];
static size_t doc_n;

static void put(const char *s)
{
    size_t n = strlen(s);
    if (doc_n + n < sizeof doc) {
        memcpy(doc + doc_n, s, n);
        doc_n += n;
    }
}

static void random_string(void)
{
    static const char *const pieces[] = {
        "a", "key", "\\n", "\\u00e9", "\\ud83d\\ude00", "\xc3\xa9",         "\xe6\x97\xa5", " ",
        "{", "]",   ",",   "\\\"",    "\\\\",           "0123456789abcdef", "\\/",          "\\u0041"};
    put("\"");
    for (uint32_t i = draw(5); i > 0; i--) {
        put(pieces[draw(sizeof pieces / sizeof *pieces)]);
    }
    put("\"");
}

static void random_value(int depth)
{
    static const char *const scalars[] = {"0",    "-1",    "12.5", "1e5",      "-2.5E-3",
                                          "true", "false", "null", "123456789"};
    static const char *const spaces[] = {"", "", "", " ", "\n", "\t "};
    put(spaces[draw(6)]);
    uint32_t kind = draw(depth > 0 ? 4 : 2);
    if (kind == 0) {
        put(scalars[draw(9)]);
    } else if (kind == 1) {
        random_string();
    } else {
        uint32_t n = draw(5);
        put(kind == 2 ? "[" : "{");
        for (uint32_t i = 0; i < n; i++) {
            put(i ? "," : "");
            if (kind == 3) {
                random_string();
                put(spaces[draw(6)]);
                put(":");
            }
            random_value(depth - 1);
        }
        put(kind == 2 ? "]" : "}");
    }
    put(spaces[draw(6)]);
}

static void compare(bl_json v, const json_t *j)
{
    static char buf[1 << 16];
    bl_json k, e;
    bl_json_iter it = bl_json_begin(v);
    int64_t i;
    double d;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        assert_int_equal(v.kind, BL_JSON_OBJECT);
        assert_int_equal(bl_json_count(v), json_object_size(j));
        while (bl_json_next(&it, &k, &e)) {
            bl_json_string(k, buf, sizeof buf);
            json_t *member = json_object_get(j, buf);
            assert_non_null(member);
            assert_ptr_equal(bl_json_get(v, buf).p, e.p);
            compare(e, member);
        }
        break;
    case JSON_ARRAY:
        assert_int_equal(v.kind, BL_JSON_ARRAY);
        assert_int_equal(bl_json_count(v), json_array_size(j));
        for (size_t n = 0; bl_json_next(&it, &k, &e); n++) {
            compare(e, json_array_get(j, n));
        }
        break;
    case JSON_STRING:
        assert_int_equal(bl_json_string(v, buf, sizeof buf), json_string_length(j));
        assert_memory_equal(buf, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        assert_true(bl_json_i64(v, &i) && i == json_integer_value(j));
        break;
    case JSON_REAL:
        assert_true(bl_json_double(v, &d) && d == json_real_value(j));
        break;
    default:
        assert_int_equal(v.kind, json_is_true(j)    ? BL_JSON_TRUE
                                 : json_is_false(j) ? BL_JSON_FALSE
                                                    : BL_JSON_NULL);
    }
}

static void damage(void)
{
    for (uint32_t n = draw(3); n > 0 && doc_n > 0; n--) {
        static const char bytes[] = "{}[]\",:\\u0e-.1 \n\x80\xc3\xff";
        size_t at = draw((uint32_t)doc_n);
        if (draw(2)) {
            memmove(doc + at, doc + at + 1, doc_n - at - 1);
            doc_n--;
        } else {
            doc[at] = bytes[draw(sizeof bytes - 1)];
        }
    }
}

static void test_agrees_with_jansson(void **state)
{
    const bl_json_limits limits = {.refuse_lone_surrogates = true};
    int accepted = 0, refused = 0;
    for (int round = 0; round < 20000; round++) {
        doc_n = 0;
        random_value(5);
        damage();
        bl_json root;
        json_error_t e;
        json_t *j = json_loadb(doc, doc_n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
        bl_status s = bl_json_parse(doc, doc_n, &limits, "doc", &root, NULL);
        bool unsure =
            !j && (strstr(e.text, "overflow") || strstr(e.text, "too big") || strstr(e.text, "NUL byte"));
        if (!unsure && (s == BL_OK) != (j != NULL)) {
            fail_msg("round %d: status %d, jansson: %s: %.*s", round, s, j ? "accepted" : e.text, (int)doc_n,
                     doc);
        }
        if (j) {
            compare(root, j);
        }
        accepted += j != NULL;
        refused += j == NULL;
        json_decref(j);
    }
    assert_true(accepted > 2000 && refused > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accepts_and_rejects),
                                       cmocka_unit_test(test_large_objects_are_checked_for_duplicates),
                                       cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_walking),
                                       cmocka_unit_test(test_strings),
                                       cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_agrees_with_jansson)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
