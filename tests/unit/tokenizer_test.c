#include "formats/utf8.h"
#include "runtime/tokenizer_impl.h"
#include "tests/unit/tiny_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static char text[32768];

static bl_tokenizer *tiny(void)
{
    bl_tokenizer *t;
    bl_error err;
    bl_error_clear(&err);
    size_t n = tiny_tokenizer(text, sizeof text);
    assert_true(n < sizeof text);
    if (bl_tokenizer_parse(&t, text, n, "tiny", &err) != BL_OK)
        fail_msg("%s", err.message);
    return t;
}

static void expect_ids(const bl_tokenizer *t, const char *s, size_t n, bool added, const int *want, size_t count)
{
    bl_ids ids = {0};
    assert_int_equal(bl_tokenizer_encode(t, s, n, added, &ids, NULL), BL_OK);
    assert_int_equal(ids.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids.ids[i], want[i]);
    free(ids.ids);
}

#define EXPECT(t, s, added, ...)                                                                   \
    do {                                                                                           \
        const int want_[] = {__VA_ARGS__};                                                         \
        expect_ids(t, s, strlen(s), added, want_, sizeof want_ / sizeof *want_);                   \
    } while (0)
#define B(c) (TINY_BYTE + (unsigned char)(c))

static void test_merges(void **state)
{
    bl_tokenizer *t = tiny();
    EXPECT(t, "hello", true, TINY_HELLO);
    EXPECT(t, "hello hello", true, TINY_HELLO, TINY_SPACE_HELLO);
    EXPECT(t, "aaaaaaa", true, TINY_AA + 1, TINY_AA, B('a'));
    EXPECT(t, "hel", true, TINY_AA + 2, B('l'));
    EXPECT(t, "1234", true, B('1'), B('2'), B('3'), B('4'));
    EXPECT(t, "  hello", true, B(' '), TINY_SPACE_HELLO);
    EXPECT(t, "\xC3\xA9", true, B(0xC3), B(0xA9));
    expect_ids(t, "", 0, true, NULL, 0);
    expect_ids(t, "a\0a", 3, true, (const int[]){B('a'), B(0), B('a')}, 3);
    bl_tokenizer_close(&t);
    assert_null(t);
}

static void test_added_tokens(void **state)
{
    bl_tokenizer *t = tiny();
    EXPECT(t, "<think>hello</think>", true, TINY_THINK, TINY_HELLO, TINY_END_THINK);
    EXPECT(t, "<\uFF5CUser\uFF5C>hello", true, TINY_USER, TINY_HELLO);
    EXPECT(t, "<\uFF5CUser\uFF5C>!", true, TINY_LONG_USER); /* longest wins */
    EXPECT(t, "<<think>", true, B('<'), TINY_THINK);
    EXPECT(t, "<thin", true, B('<'), B('t'), B('h'), B('i'), B('n'));
    EXPECT(t, "<bos>", false, B('<'), B('b'), B('o'), B('s'), B('>'));
    /* A blank before an added token is at the end of its own text, not before a letter. */
    EXPECT(t, " <think>", true, B(' '), TINY_THINK);
    bl_tokenizer_close(&t);
}

static void test_lookup(void **state)
{
    bl_tokenizer *t = tiny();
    size_t n;
    assert_int_equal(bl_tokenizer_size(t), TINY_SIZE);
    assert_int_equal(bl_tokenizer_id(t, "<think>"), TINY_THINK);
    assert_int_equal(bl_tokenizer_id(t, "\u0120hello"), TINY_SPACE_HELLO);
    assert_int_equal(bl_tokenizer_id(t, "nothing"), -1);
    assert_memory_equal(bl_tokenizer_bytes(t, TINY_SPACE_HELLO, &n), " hello", 6);
    assert_int_equal(n, 6);
    assert_memory_equal(bl_tokenizer_name(t, TINY_SPACE_HELLO, &n), "\u0120hello", 7);
    assert_int_equal(n, 7);
    assert_null(bl_tokenizer_bytes(t, 280, &n));
    assert_null(bl_tokenizer_bytes(t, -1, &n));
    assert_null(bl_tokenizer_bytes(t, TINY_SIZE, &n));
    assert_true(bl_tokenizer_is_added(t, TINY_THINK) && !bl_tokenizer_is_special(t, TINY_THINK));
    assert_true(bl_tokenizer_is_added(t, 1) && bl_tokenizer_is_special(t, 1));
    assert_false(bl_tokenizer_is_added(t, TINY_HELLO));
    bl_tokenizer_close(&t);
}

static void test_invalid_text(void **state)
{
    bl_tokenizer *t = tiny();
    static const char *const bad[] = {"ok \xC3", "\xED\xA0\x80", "\xC0\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xFF",
                                      "a\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bl_error err;
        bl_error_clear(&err);
        bl_ids ids = {0};
        assert_int_equal(bl_tokenizer_encode(t, bad[i], strlen(bad[i]), true, &ids, &err), BL_E_INPUT);
        assert_string_equal(err.message, "text is not valid UTF-8");
        free(ids.ids);
    }
    bl_tokenizer_close(&t);
}

/* Short pieces are merged by rescanning, long ones with a queue: on the demo model's merges both must give the same ids. */
static void test_both_merge_paths_agree(void **state)
{
    bl_tokenizer *t;
    bl_error err;
    bl_error_clear(&err);
    if (bl_tokenizer_open(&t, BL_SOURCE_ROOT "/tools/demo-model/tokenizer.json", &err) != BL_OK)
        fail_msg("%s", err.message);
    const char letters[] = "etaoinshrdlu aaeetthhrrssnnooii ";
    uint64_t seed = 5;
    for (int round = 0; round < 3000; round++) {
        char s[48];
        size_t n = 1 + (size_t)round % sizeof s;
        for (size_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            s[i] = letters[seed >> 59];
        }
        bl_ids rescanned = {0}, queued = {0};
        bl_encoder e;
        assert_int_equal(bl_encoder_init(&e, t, &rescanned, &err), BL_OK);
        assert_int_equal(bl_bpe_encode(&e, s, n), BL_OK);
        e.out = &queued;
        assert_int_equal(bl_bpe_encode_long(&e, s, n), BL_OK);
        bl_encoder_free(&e);
        assert_int_equal(rescanned.count, queued.count);
        assert_memory_equal(rescanned.ids, queued.ids, queued.count * sizeof *queued.ids);
        free(rescanned.ids);
        free(queued.ids);
    }
    bl_tokenizer_close(&t);
}

static char *decode(const bl_tokenizer *t, const int *ids, size_t count, size_t *len)
{
    bl_detok d = {0};
    char *buf = NULL;
    size_t cap = 0;
    *len = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(bl_detok_push(&d, t, ids[i], &buf, len, &cap), BL_OK);
        assert_int_equal(bl_utf8_check(buf ? buf : "", *len), *len);
    }
    assert_int_equal(bl_detok_finish(&d, &buf, len, &cap), BL_OK);
    return buf;
}

static void expect_text(const bl_tokenizer *t, const char *bytes, const char *want)
{
    int ids[64];
    size_t n = strlen(bytes), len;
    for (size_t i = 0; i < n; i++)
        ids[i] = B(bytes[i]);
    char *s = decode(t, ids, n, &len);
    assert_int_equal(len, strlen(want));
    assert_memory_equal(s, want, len);
    free(s);
}

/* Replacement as Python's bytes.decode("utf-8", "replace") does it. */
static void test_detokenise(void **state)
{
    bl_tokenizer *t = tiny();
    expect_text(t, "a\u00E9\u4E2D\U0001F30D", "a\u00E9\u4E2D\U0001F30D");
    expect_text(t, "\xE4\xB8", "\uFFFD");
    expect_text(t, "\xE4\xB8z", "\uFFFDz");
    expect_text(t, "\xF0\x9F\x8C", "\uFFFD");
    expect_text(t, "\xF0\x9F\xF0\x9F\x8C\x8D", "\uFFFD\U0001F30D");
    expect_text(t, "\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");
    expect_text(t, "\xC0\x80\xFF", "\uFFFD\uFFFD\uFFFD");
    expect_text(t, "\xE0\x9F\xBF", "\uFFFD\uFFFD\uFFFD");
    expect_text(t, "\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD");
    int ids[] = {B(0xE4), TINY_THINK, TINY_SPACE_HELLO, B(0xC3), 280, B(0xA9)};
    size_t len;
    char *s = decode(t, ids, 6, &len);
    assert_int_equal(len, strlen("\uFFFD<think> hello\u00E9"));
    assert_memory_equal(s, "\uFFFD<think> hello\u00E9", len);
    free(s);
    bl_tokenizer_close(&t);
}

/* One change to the small file at a time, and the refusal it must meet. */
static void test_refusals(void **state)
{
    static const struct {
        const char *from, *to, *key, *message;
    } cases[] = {
        {"\"truncation\":null", "\"truncation\":{}", "truncation", "not supported"},
        {"\"normalizers\":[]", "\"normalizers\":[{\"type\":\"NFC\"}]", "normalizer.normalizers", "must be empty"},
        {"\"type\":\"Sequence\",\"norm", "\"type\":\"NFC\",\"norm", "normalizer", "must have the type Sequence"},
        {"\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "pre_tokenizer.pretokenizers[0]", "Isolated"},
        {"\"invert\":false", "\"invert\":true", "pre_tokenizer.pretokenizers[0]", "must be false"},
        {"\"Regex\":\"\\\\p{N}{1,3}\"", "\"String\":\"x\"", "pre_tokenizer.pretokenizers[0].String", "unknown key"},
        {"\\\\p{N}{1,3}", "(", "pre_tokenizer.pretokenizers[0]", "does not compile"},
        {"\\\\p{N}{1,3}", "\\\\Qa\\\\E", "pre_tokenizer.pretokenizers[0]", "quotes"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "pre_tokenizer.pretokenizers[2]", "must be false"},
        {"\"use_regex\":false", "\"use_regex\":true", "pre_tokenizer.pretokenizers[2]", "must be false"},
        {"\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"Template\"", "post_processor", "ByteLevel"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Fuse\"", "decoder", "ByteLevel"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type", "must be BPE"},
        {"\"dropout\":null", "\"dropout\":0.1", "model.dropout", "not supported"},
        {"\"unk_token\":null", "\"unk_token\":\"x\"", "model.unk_token", "not supported"},
        {"\"byte_fallback\":false", "\"byte_fallback\":true", "model.byte_fallback", "must be false"},
        {"\"ignore_merges\":false", "\"ignore_merges\":true", "model.ignore_merges", "must be false"},
        {"\"fuse_unk\":false", "\"fused\":false", "model.fused", "unknown key"},
        {"\"aaaa\":260", "\"aaaa\":259", "model.vocab", "id 259 stands for two tokens"},
        {"\"aaaa\":260", "\"aaaa\":-1", "model.vocab", "small whole number"},
        {"\"aaaa\":260", "\"aaaa\":99999", "model.vocab", "too large for"},
        {"\"aaaa\":260", "\"aaaa\":1e9", "model.vocab", "small whole number"},
        {"\"\\u0061\":100", "\"zz\":100", "model.vocab", "no token for the byte 0x61"},
        {"\"a a\"", "\"a b\"", "model.merges", "not in the vocabulary: 'ab'"},
        {"\"a a\"", "\"a  a\"", "model.merges", "must be"},
        {"\"a a\"", "\"aa\"", "model.merges", "must be"},
        {"\"a a\"", "[\"a\",\"a\",\"a\"]", "model.merges", "must be"},
        {"\"a a\"", "[\"a\",1]", "model.merges", "must be"},
        {"\"lstrip\":false", "\"lstrip\":true", "added_tokens.lstrip", "must be false"},
        {"\"content\":\"<bos>\"", "\"content\":\"\"", "added_tokens.content", "between 1 and 1024"},
        {"\"content\":\"<bos>\"", "\"content\":\"hello\"", "added_tokens", "'hello' has the id 0 here and 264 elsewhere"},
        {"\"content\":\"<bos>\"", "\"content\":\"<eos>\"", "added_tokens", "'<eos>' has the id 1 here and 0 elsewhere"},
        {"{\"id\":1,\"content\":\"<eos>\"", "{\"id\":265,\"content\":\"\\u0120hello\"", "added_tokens", "other bytes"},
        {"{\"id\":1,", "{\"id\":0,", "added_tokens", "id 0 stands for two tokens"},
        {"{\"id\":1,", "{\"id\":264,", "added_tokens", "id 264 stands for two tokens"},
        {"\"special\":true", "\"special\":1", "added_tokens", "must be true or false"},
        {"\"merges\":[", "\"merges\":[{},", "model.merges", "must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static char bad[32768];
        size_t n = tiny_tokenizer(text, sizeof text);
        char *at = strstr(text, cases[i].from);
        if (!at)
            fail_msg("case %zu: '%s' is not in the file", i, cases[i].from);
        n = (size_t)snprintf(bad, sizeof bad, "%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        bl_tokenizer *t;
        bl_error err;
        bl_error_clear(&err);
        assert_int_equal(bl_tokenizer_parse(&t, bad, n, "tiny", &err), BL_E_INPUT);
        assert_null(t);
        if (strcmp(err.tensor, cases[i].key) || !strstr(err.message, cases[i].message))
            fail_msg("case %zu: '%s': %s", i, err.tensor, err.message);
        assert_string_equal(err.path, "tiny");
    }
}

/* A pattern that backtracks without end is an error, not a hang. */
static void test_hostile_pattern(void **state)
{
    static char bad[32768];
    size_t n = tiny_tokenizer(text, sizeof text);
    const char *from = "\\\\p{N}{1,3}";
    char *at = strstr(text, from);
    n = (size_t)snprintf(bad, sizeof bad, "%.*s(a|aa|a)+$%s", (int)(at - text), text, at + strlen(from));
    bl_tokenizer *t;
    bl_error err;
    bl_error_clear(&err);
    assert_int_equal(bl_tokenizer_parse(&t, bad, n, "tiny", &err), BL_OK);
    bl_ids ids = {0};
    char s[101];
    memset(s, 'a', 100);
    s[100] = 'b';
    assert_int_equal(bl_tokenizer_encode(t, s, sizeof s, true, &ids, &err), BL_E_INPUT);
    assert_non_null(strstr(err.message, "split pattern 1 fails on the text"));
    free(ids.ids);
    bl_tokenizer_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),          cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_lookup),          cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_detokenise),      cmocka_unit_test(test_both_merge_paths_agree),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_hostile_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
