#include "runtime/parse.h"
#include "formats/json.h"
#include "runtime/text.h"
#include "tests/unit/tiny_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define DSML "\uFF5CDSML\uFF5C"
#define OPEN "<" DSML " calls>\n"
#define CLOSE "</" DSML " calls>"
#define INVOKE(name) "<" DSML " invoke name=\"" name "\">\n"
#define END_INVOKE "</" DSML " invoke>\n"
#define PARAM(name, string, value) "<" DSML " parameter name=\"" name "\" string=\"" string "\">" value "</" DSML " parameter>\n"

/* What came out, as one line: "R[...]A[...]" and for every call "C[namespace/name arguments]", a "." behind it when it ended. Text of
 * one kind is joined, so that the line does not depend on how it was cut. */
typedef struct record {
    char reasoning[4096], answer[8192], calls[8192];
    size_t r, a, c;
    int begun, ended;
} record;

static void take(void *arg, const bl_event *e)
{
    record *r = arg;
    switch (e->kind) {
    case BL_EVENT_REASONING:
        assert_true(e->n > 0);
        memcpy(r->reasoning + r->r, e->text, e->n);
        r->r += e->n;
        break;
    case BL_EVENT_ANSWER:
        assert_true(e->n > 0);
        memcpy(r->answer + r->a, e->text, e->n);
        r->a += e->n;
        break;
    case BL_EVENT_CALL_BEGIN:
        assert_int_equal(e->call, r->begun++);
        r->c += (size_t)sprintf(r->calls + r->c, "C[%.*s/%.*s ", (int)e->name_space_n, e->name_space ? e->name_space : "", (int)e->n, e->text);
        break;
    case BL_EVENT_CALL_ARGUMENTS:
        assert_int_equal(e->call, r->begun - 1);
        assert_true(e->n > 0);
        memcpy(r->calls + r->c, e->text, e->n);
        r->c += e->n;
        break;
    case BL_EVENT_CALL_END:
        assert_int_equal(e->call, r->begun - 1);
        r->ended++;
        r->c += (size_t)sprintf(r->calls + r->c, "].");
        break;
    }
}

static const char *line_of(const record *r)
{
    static char line[20480];
    snprintf(line, sizeof line, "R[%.*s]A[%.*s]%.*s", (int)r->r, r->reasoning, (int)r->a, r->answer, (int)r->c, r->calls);
    return line;
}

static bl_tokenizer *tokenizer;
static record seen;

static bl_parser *start(bl_parser_options o)
{
    bl_parser *p;
    memset(&seen, 0, sizeof seen);
    o.event = take;
    o.arg = &seen;
    assert_int_equal(bl_parser_create(&p, &o, NULL), BL_OK);
    return p;
}

static const char *done(bl_parser *p)
{
    assert_int_equal(bl_parser_finish(p), BL_OK);
    assert_int_equal(bl_parser_calls_begun(p), seen.begun);
    assert_int_equal(bl_parser_calls_ended(p), seen.ended);
    bl_parser_destroy(&p);
    return line_of(&seen);
}

/* The line of a text that comes in two parts. */
static const char *in_two(bl_parser_options o, const char *text, size_t n, size_t cut)
{
    bl_parser *p = start(o);
    assert_int_equal(bl_parser_push_text(p, text, cut), BL_OK);
    assert_int_equal(bl_parser_push_text(p, text + cut, n - cut), BL_OK);
    return done(p);
}

static const char *as_tokens(bl_parser_options o, const char *text, size_t n)
{
    bl_ids ids = {0};
    assert_int_equal(bl_tokenizer_encode(tokenizer, text, n, true, &ids, NULL), BL_OK);
    o.tokenizer = tokenizer;
    bl_parser *p = start(o);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(bl_parser_push(p, ids.ids[i]), BL_OK);
    free(ids.ids);
    return done(p);
}

/* The text as bytes cut in every place, byte by byte, and as tokens: always the same line. */
static void expect(bl_parser_options o, const char *text, const char *want)
{
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++)
        assert_string_equal(in_two(o, text, n, cut), want);
    bl_parser *p = start(o);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(bl_parser_push_text(p, text + i, 1), BL_OK);
    assert_string_equal(done(p), want);
    assert_string_equal(as_tokens(o, text, n), want);
}

static void test_printed_text(void **state)
{
    char longer[1000];
    memset(longer, 'l', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    bl_text t = {0};
    bl_text_puts(&t, "a");
    bl_text_printf(&t, "%d,%s.", 7, longer);
    bl_text_printf(&t, "%s", "");
    bl_text_end(&t);
    assert_int_equal(t.n, 3 + sizeof longer - 1 + 1);
    assert_true(!strncmp(t.p, "a7,", 3) && !memcmp(t.p + 3, longer, sizeof longer - 1) && !strcmp(t.p + t.n - 2, "l."));
    free(t.p);
}

static const bl_parser_options thinking = {.start = BL_SECTION_REASONING, .calls = BL_CALLS_PARSE};
static const bl_parser_options chat = {.start = BL_SECTION_ANSWER, .calls = BL_CALLS_PARSE};

static void test_reasoning(void **state)
{
    expect(thinking, "why</think>because", "R[why]A[because]");
    expect(thinking, "</think>because", "R[]A[because]");
    expect(thinking, "never ends <", "R[never ends <]A[]");
    expect(thinking, "a </thin", "R[a </thin]A[]");
    expect(thinking, "a<think>b</think>c</think>d<think>e", "R[ab]A[cde]"); /* only the first counts, the others are no text */
    expect(chat, "a</think>b 2 <", "R[]A[ab 2 <]");
    expect(chat, "\u00E9\u4E2D\U0001F30D", "R[]A[\u00E9\u4E2D\U0001F30D]");
    expect(chat, "", "R[]A[]");
}

static void test_calls(void **state)
{
    expect(chat, "ok\n\n" OPEN INVOKE("f") PARAM("x", "true", "Paris \"a\"\n\\") PARAM("n", "false", "[1, 2]") END_INVOKE CLOSE,
           "R[]A[ok]C[/f {\"x\": \"Paris \\\"a\\\"\\n\\\\\", \"n\": [1, 2]}].");
    expect(thinking, "r</think>\n\n" OPEN INVOKE("f") "\n" END_INVOKE INVOKE("ns::g") PARAM("", "true", "") END_INVOKE CLOSE "ignored",
           "R[r]A[]C[/f {}].C[ns/g {\"\": \"\"}].");
    expect(thinking, "r\n\n" OPEN INVOKE("f") END_INVOKE CLOSE, "R[r]A[]C[/f {}]."); /* a block ends the reasoning */
    expect(chat, OPEN CLOSE, "R[]A[]");
    expect(chat, "a\n\n\n" OPEN INVOKE("f") END_INVOKE CLOSE, "R[]A[a\n]C[/f {}].");
    /* Keys and values that look like something else. */
    expect(chat,
           OPEN INVOKE("a b") PARAM("k\" string=\"x", "true", "<" DSML " invoke name=\"g\">") PARAM("\u00E9", "true", "</think>" DSML)
               END_INVOKE CLOSE,
           "R[]A[]C[/a b {\"k\\\" string=\\\"x\": \"<" DSML " invoke name=\\\"g\\\">\", \"\u00E9\": \"</think>" DSML "\"}].");
    /* What is no JSON becomes a string. */
    expect(chat, OPEN INVOKE("f") PARAM("n", "false", "1,") PARAM("m", "false", "") PARAM("o", "false", " {\"a\": [null]} ") END_INVOKE CLOSE,
           "R[]A[]C[/f {\"n\": \"1,\", \"m\": \"\", \"o\":  {\"a\": [null]} }].");
}

static void test_calls_cut_off(void **state)
{
    expect(chat, "a\n\n" OPEN, "R[]A[a\n\n" OPEN "]");
    expect(chat, "a\n\n" OPEN "<" DSML " invoke name=\"f", "R[]A[a\n\n" OPEN "<" DSML " invoke name=\"f]");
    expect(chat, "a\n\n<" DSML " cal", "R[]A[a\n\n<" DSML " cal]");
    expect(chat, OPEN INVOKE("f"), "R[]A[]C[/f ");
    expect(chat, OPEN INVOKE("f") "<" DSML " parameter name=\"x", "R[]A[]C[/f ");
    expect(chat, OPEN INVOKE("f") "<" DSML " parameter name=\"x\" string=\"true\">Par</" DSML, "R[]A[]C[/f {\"x\": \"Par</" DSML);
    expect(chat, OPEN INVOKE("f") "<" DSML " parameter name=\"x\" string=\"false\">[1", "R[]A[]C[/f {\"x\": [1");
    expect(chat, OPEN INVOKE("f") PARAM("x", "true", "v"), "R[]A[]C[/f {\"x\": \"v\"");
    expect(chat, OPEN INVOKE("f") END_INVOKE INVOKE("g"), "R[]A[]C[/f {}].C[/g ");
    expect(chat, OPEN INVOKE("f") END_INVOKE "</" DSML " ca", "R[]A[]C[/f {}].");
}

/* A malformed block is text up to where it goes wrong, and what follows is looked at anew. */
static void test_malformed(void **state)
{
    expect(chat, "a\n\n" OPEN "hello", "R[]A[a\n\n" OPEN "hello]");
    expect(chat, OPEN "<" DSML " bogus>", "R[]A[" OPEN "<" DSML " bogus>]");
    expect(chat, OPEN END_INVOKE, "R[]A[" OPEN END_INVOKE "]");
    expect(chat, OPEN "<" DSML " invoke name=\"\">", "R[]A[" OPEN "<" DSML " invoke name=\"\">]");
    expect(chat, OPEN INVOKE("a::b::c"), "R[]A[" OPEN INVOKE("a::b::c") "]");
    expect(chat, OPEN "<" DSML " invoke name=\"f\n\">", "R[]A[" OPEN "<" DSML " invoke name=\"f\n\">]");
    expect(chat, OPEN INVOKE("f") "{\"a\": 1}\n" END_INVOKE, "R[]A[" OPEN INVOKE("f") "{\"a\": 1}\n" END_INVOKE "]");
    expect(chat, OPEN OPEN INVOKE("f") END_INVOKE CLOSE, "R[]A[" OPEN "]C[/f {}].");
    expect(chat, OPEN "<" DSML " invoke name=\"<" DSML " calls>", "R[]A[" OPEN "<" DSML " invoke name=\"<" DSML " calls>]");
    /* Behind a complete call only what follows it is text; a call that goes wrong inside does not end. */
    expect(chat, OPEN INVOKE("f") END_INVOKE "oops", "R[]A[\noops]C[/f {}].");
    expect(chat, OPEN INVOKE("f") PARAM("x", "true", "v") "oops", "R[]A[\noops]C[/f {\"x\": \"v\"");
    expect(thinking, "a\n\n" OPEN "b</think>c", "R[a\n\n" OPEN "b]A[c]"); /* reasoning goes on */
    /* Marks by themselves. */
    expect(chat, DSML "<" DSML " invoke", "R[]A[" DSML "<" DSML " invoke]");
    char name[600];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    char text[1024], want[1100];
    snprintf(text, sizeof text, OPEN "<" DSML " invoke name=\"%s\">", name);
    snprintf(want, sizeof want, "R[]A[%s]", text);
    expect(chat, text, want);
}

static void test_call_modes(void **state)
{
    bl_parser_options o = chat;
    o.calls = BL_CALLS_TEXT;
    expect(o, "a\n\n" OPEN INVOKE("f") END_INVOKE CLOSE, "R[]A[a\n\n" OPEN INVOKE("f") END_INVOKE CLOSE "]");
    o.calls = BL_CALLS_DROP;
    expect(o, "a\n\n" OPEN INVOKE("f") PARAM("x", "true", "v") END_INVOKE CLOSE, "R[]A[a]");
}

static void test_stops(void **state)
{
    const char *stops[] = {"", "STOP", "OPS", "\n\n", "STO"};
    bl_parser_options o = thinking;
    o.stops = stops;
    o.stop_count = 3;
    expect(o, "a STOP b</think>c STOP d", "R[a STOP b]A[c ]");
    o.stop_in_reasoning = true;
    expect(o, "a STOP b</think>c STOP d", "R[a ]A[]");
    o.stop_in_reasoning = false;
    expect(o, "</think>STO STOSTOPS", "R[]A[STO STO]");
    expect(o, "</think>aOPS", "R[]A[a]");
    expect(o, "</think>ends in STO", "R[]A[ends in STO]"); /* held back, then let go */
    o.stop_count = 5;
    expect(o, "</think>aSTOP", "R[]A[a]");
    expect(o, "</think>a\n\n" OPEN, "R[]A[a]"); /* a stop string of line breaks comes before a block */
    expect(o, "a\n\nb</think>" OPEN INVOKE("f") PARAM("x", "true", "STOP\n\n") END_INVOKE CLOSE, "R[a\n\nb]A[]C[/f {\"x\": \"STOP\\n\\n\"}].");

    const char *overlapping[] = {"aabaaad"};
    o.stops = overlapping;
    o.stop_count = 1;
    expect(o, "</think>aabaaabaaad", "R[]A[aaba]");
    o.stops = stops;
    o.stop_count = 5;

    bl_parser *p = start(o);
    assert_int_equal(bl_parser_section(p), BL_SECTION_REASONING);
    assert_int_equal(bl_parser_push_text(p, "r</think>x STOP", 15), BL_OK);
    assert_int_equal(bl_parser_section(p), BL_SECTION_DONE);
    assert_int_equal(bl_parser_stop(p), 4); /* "STO" is complete first */
    assert_string_equal(done(p), "R[r]A[x ]");
    p = start(chat);
    assert_int_equal(bl_parser_stop(p), -1);
    assert_int_equal(bl_parser_push_text(p, OPEN, strlen(OPEN)), BL_OK);
    assert_int_equal(bl_parser_section(p), BL_SECTION_CALLS);
    assert_int_equal(bl_parser_push_text(p, CLOSE, strlen(CLOSE)), BL_OK);
    assert_int_equal(bl_parser_section(p), BL_SECTION_DONE);
    done(p);
}

/* The letters of a mark in ordinary tokens are text; control tokens are not; PLAIN shows everything but special tokens. */
static void push_ids(bl_parser *p, const char *spelled, int id, const char *after)
{
    bl_ids ids = {0};
    assert_int_equal(bl_tokenizer_encode(tokenizer, spelled, strlen(spelled), false, &ids, NULL), BL_OK);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(bl_parser_push(p, ids.ids[i]), BL_OK);
    assert_int_equal(bl_parser_push(p, id), BL_OK);
    ids.count = 0;
    assert_int_equal(bl_tokenizer_encode(tokenizer, after, strlen(after), false, &ids, NULL), BL_OK);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(bl_parser_push(p, ids.ids[i]), BL_OK);
    free(ids.ids);
}

static void test_tokens(void **state)
{
    bl_parser_options o = thinking;
    o.tokenizer = tokenizer;
    bl_parser *p = start(o);
    push_ids(p, "say </think> and " OPEN, TINY_END_THINK, "a </think> " OPEN INVOKE("f") END_INVOKE CLOSE);
    assert_string_equal(done(p), "R[say </think> and " OPEN "]A[a </think> " OPEN INVOKE("f") END_INVOKE CLOSE "]");
    p = start(o);
    push_ids(p, "a", TINY_USER, "b");
    push_ids(p, "c", 1, "d");
    push_ids(p, "e", TINY_SIZE + 5, "f");
    push_ids(p, "g", 280, "h"); /* a hole */
    assert_string_equal(done(p), "R[abcdefgh]A[]");
    /* A code point that a mark breaks. */
    p = start(o);
    push_ids(p, "a", TINY_BYTE + 0xE4, "");
    push_ids(p, "", TINY_END_THINK, "b");
    push_ids(p, "", TINY_BYTE + 0xF0, "");
    assert_string_equal(done(p), "R[a\uFFFD]A[b\uFFFD]");
    o.start = BL_SECTION_PLAIN;
    p = start(o);
    push_ids(p, "a", TINY_END_THINK, "b");
    push_ids(p, "", TINY_DSML, "c");
    push_ids(p, "", 1, "d");
    assert_string_equal(done(p), "R[]A[a</think>b" DSML "cd]");
    o.keep_special = true;
    p = start(o);
    push_ids(p, "a", 1, "d");
    assert_string_equal(done(p), "R[]A[a<eos>d]");
}

/* Random strings of tags and letters: the same from every cut, arguments of calls that ended parse, and without a block nothing is
 * lost. */
static void test_random(void **state)
{
    static const char *const bits[] = {OPEN, CLOSE, INVOKE("f"), INVOKE("n::g"), END_INVOKE, PARAM("k", "true", "v\"\n"), "text", "\n\n", "<",
                                       PARAM("k", "false", "{\"a\": 1}"), PARAM("k", "false", "oops"), "</think>", "<think>", DSML, "\u00E9",
                                       "<" DSML " parameter name=\"k\" string=\"true\">", "</" DSML " parameter>", "STOP", "STO", " calls>", ">"};
    const char *stops[] = {"STOP", "\u00E9<"};
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        char text[2048], want[20480];
        size_t n = 0;
        for (int i = 0; i < 14; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            n += (size_t)sprintf(text + n, "%s", bits[(seed >> 33) % (sizeof bits / sizeof *bits)]);
        }
        bl_parser_options o = round % 2 ? chat : thinking;
        o.stops = stops;
        o.stop_count = round % 4 < 2 ? 2 : 0;
        snprintf(want, sizeof want, "%s", in_two(o, text, n, n));
        assert_string_equal(in_two(o, text, n, (seed >> 40) % (n + 1)), want);
        assert_string_equal(as_tokens(o, text, n), want);
        for (const char *at = want; (at = strstr(at, "C[")); at++) {
            const char *open = strchr(at, '{'), *end = strstr(at, "].");
            const char *next = strstr(at + 1, "C[");
            bl_json v;
            if (open && end && (!next || end < next))
                assert_int_equal(bl_json_parse(open, (size_t)(end - open), &(bl_json_limits){.last_duplicate_wins = true}, NULL, &v, NULL),
                                 BL_OK);
        }
    }
}

static int set_up(void **state)
{
    static char text[32768];
    size_t n = tiny_tokenizer(text, sizeof text);
    return bl_tokenizer_parse(&tokenizer, text, n, "tiny", NULL) != BL_OK;
}

static int tear_down(void **state)
{
    bl_tokenizer_close(&tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning), cmocka_unit_test(test_calls),      cmocka_unit_test(test_calls_cut_off),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_call_modes), cmocka_unit_test(test_stops),
        cmocka_unit_test(test_tokens),    cmocka_unit_test(test_random),     cmocka_unit_test(test_printed_text),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
