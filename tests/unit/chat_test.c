#include "runtime/chat.h"
#include "formats/file.h"
#include "runtime/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BOS "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>"
#define EOS "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"
#define SYS "<\uFF5CSystem\uFF5C>"
#define USER "<\uFF5CUser\uFF5C>"
#define ASST "<\uFF5CAssistant\uFF5C>"
#define DSML "\uFF5CDSML\uFF5C"
#define EFFORT(n) "Reasoning Effort: " #n " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
#define IMAGE "<\uFF5Cdeepseek_image\uFF5C>"

/* Read options and messages from one request and encode it. */
static bl_status encode(const char *request, char **prompt, bl_chat_end *end, bl_error *err)
{
    bl_json v;
    size_t n;
    *prompt = NULL;
    bl_error_clear(err);
    assert_int_equal(bl_json_parse(request, strlen(request), NULL, "request", &v, err), BL_OK);
    bl_chat_options o = bl_chat_defaults();
    BL_TRY(bl_chat_options_read(v, &o, err));
    o.response_format = bl_json_get(v, "format");
    bl_json_bool(bl_json_get(v, "images"), &o.images);
    BL_TRY(bl_chat_encode(bl_json_get(v, "messages"), &o, prompt, &n, end, err));
    assert_int_equal(strlen(*prompt), n);
    return BL_OK;
}

static void expect(const char *request, bl_chat_end want_end, const char *want)
{
    char *prompt;
    bl_chat_end end;
    bl_error err;
    if (encode(request, &prompt, &end, &err) != BL_OK)
        fail_msg("%s: %s: %s", request, err.tensor, err.message);
    assert_string_equal(prompt, want);
    assert_int_equal(end, want_end);
    free(prompt);
}

static void test_turns(void **state)
{
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", BL_CHAT_END_ANSWER, BOS USER "q" ASST "</think>");
    expect("{\"thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", BL_CHAT_END_THINK,
           BOS SYS EFFORT(75) USER "q" ASST "<think>");
    expect("{\"thinking\":true,\"reasoning_effort\":1,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
           "{\"role\":\"user\",\"content\":\"q\"}]}",
           BL_CHAT_END_THINK, BOS SYS EFFORT(1) "s" USER "q" ASST "<think>");
    expect("{\"messages\":[{\"role\":\"system\",\"content\":null},{\"role\":\"user\",\"content\":\"q\"}]}", BL_CHAT_END_ANSWER,
           BOS SYS USER "q" ASST "</think>");
    /* A later system message, also under the name developer, opens the answer like a user's. */
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"developer\",\"content\":\"s\"}]}", BL_CHAT_END_ANSWER,
           BOS USER "q" SYS "s" ASST "</think>");
    expect("{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"}]}", BL_CHAT_END_CLOSED, BOS SYS "s");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
           "{\"type\":\"text\",\"text\":\"\\u00e9\"}]}]}",
           BL_CHAT_END_ANSWER, BOS USER "a\n\nb\n\n\u00E9" ASST "</think>");
    expect("{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}", BL_CHAT_END_CLOSED, BOS "a" EOS);
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"latest_reminder\",\"content\":\"R\"}]}", BL_CHAT_END_CLOSED,
           BOS USER "x" ASST "</think><\uFF5Clatest_reminder\uFF5C>R");
}

static void test_reasoning_kept_and_dropped(void **state)
{
#define TALK "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"b\"},"
#define LAST "{\"role\":\"user\",\"content\":\"c\"}]}"
    expect("{\"thinking\":true,\"messages\":[" TALK LAST, BL_CHAT_END_THINK,
           BOS SYS EFFORT(75) USER "a" ASST "</think>b" EOS USER "c" ASST "<think>");
    expect("{\"thinking\":true,\"chat_template_kwargs\":{\"drop_thinking\":false},\"messages\":[" TALK LAST, BL_CHAT_END_THINK,
           BOS SYS EFFORT(75) USER "a" ASST "<think>r</think>b" EOS USER "c" ASST "<think>");
    expect("{\"messages\":[" TALK LAST, BL_CHAT_END_ANSWER, BOS USER "a" ASST "</think>b" EOS USER "c" ASST "</think>");
    /* The other name of the field, and behind the last user message nothing is dropped. */
    expect("{\"thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
           "{\"role\":\"assistant\",\"reasoning\":\"r\",\"content\":\"b\"}]}",
           BL_CHAT_END_CLOSED, BOS SYS EFFORT(75) USER "a" ASST "<think>r</think>b" EOS);
}

static void test_prefill_and_tasks(void **state)
{
    expect("{\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
           "{\"role\":\"assistant\",\"content\":\"{\"}]}",
           BL_CHAT_END_ANSWER, BOS USER "a" ASST "</think>{");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"{\",\"wo_eos\":true}]}",
           BL_CHAT_END_ANSWER, BOS USER "a" ASST "</think>{");
    expect("{\"task\":\"action\",\"thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", BL_CHAT_END_TASK,
           BOS SYS EFFORT(75) USER "a" ASST "<think><\uFF5Caction\uFF5C>");
    expect("{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"task\":\"query\"}]}", BL_CHAT_END_TASK, BOS USER "a<\uFF5Cquery\uFF5C>");
    expect("{\"task\":\"title\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
           BL_CHAT_END_TASK, BOS USER "a" ASST "</think>b" EOS "<\uFF5Ctitle\uFF5C>");
    /* No merging over a task, and its answer has no reasoning. */
    expect("{\"thinking\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"task\":\"domain\"},"
           "{\"role\":\"assistant\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"b\",\"task\":null}]}",
           BL_CHAT_END_THINK, BOS SYS EFFORT(75) USER "a<\uFF5Cdomain\uFF5C>d" EOS USER "b" ASST "<think>");
}

#define CALL(id, name, arguments) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}"
#define ASK(calls) "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[" calls "]}]}"
#define BLOCK(body) BOS USER "q" ASST "</think>\n\n<" DSML " calls>\n" body "\n</" DSML " calls>" EOS
#define INVOKE(name, body) "<" DSML " invoke name=\"" name "\">\n" body "\n</" DSML " invoke>"
#define PARAM(name, string, value) "<" DSML " parameter name=\"" name "\" string=\"" string "\">" value "</" DSML " parameter>"

static void test_calls(void **state)
{
    expect(ASK(CALL("A", "f", "\"{\\\"x\\\": \\\"a \\\\\\\"b\\\\n\\\", \\\"y\\\":[1,{ \\\"z\\\":null}] ,\\\"w\\\":1e2}\"")),
           BL_CHAT_END_CLOSED,
           BLOCK(INVOKE("f", PARAM("x", "true", "a \"b\n") "\n" PARAM("y", "false", "[1, {\"z\": null}]") "\n" PARAM("w", "false", "1e2"))));
    expect(ASK(CALL("A", "f", "\"{}\"")), BL_CHAT_END_CLOSED, BLOCK(INVOKE("f", "")));
    expect(ASK(CALL("A", "f", "{\"x\":true}") "," CALL("B", "g", "\"\\\"{\\\\\\\"k\\\\\\\":12345678901234567890123}\\\"\"")),
           BL_CHAT_END_CLOSED,
           BLOCK(INVOKE("f", PARAM("x", "false", "true")) "\n" INVOKE("g", PARAM("k", "false", "12345678901234567890123"))));
    /* What is no object becomes one parameter. */
    expect(ASK(CALL("A", "f", "\"not json\"")), BL_CHAT_END_CLOSED, BLOCK(INVOKE("f", PARAM("arguments", "true", "not json"))));
    expect(ASK(CALL("A", "f", "\"[1]\"")), BL_CHAT_END_CLOSED, BLOCK(INVOKE("f", PARAM("arguments", "true", "[1]"))));
    expect(ASK(CALL("A", "f", "[1,\"\\u001f\"]")), BL_CHAT_END_CLOSED,
           BLOCK(INVOKE("f", PARAM("arguments", "false", "[1, \"\\u001f\"]"))));
    expect(ASK("{\"namespace\":\"n\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"), BL_CHAT_END_CLOSED, BLOCK(INVOKE("n::f", "")));
}

static void test_tool_results(void **state)
{
#define ASKED "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" CALL("A", "f", "\"{}\"") "," CALL("B", "g", "\"{}\"") "]},"
#define RESULT(id, text) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define BOTH BOS "\n\n<" DSML " calls>\n" INVOKE("f", "") "\n" INVOKE("g", "") "\n</" DSML " calls>" EOS USER
#define R(text) "<tool_result>" text "</tool_result>"
    expect(ASKED RESULT("B", "2") "," RESULT("A", "1") "]}", BL_CHAT_END_ANSWER, BOTH R("1") "\n\n" R("2") ASST "</think>");
    /* Text between results stays where it is; an unknown id counts as the first call. */
    expect(ASKED RESULT("B", "2") ",{\"role\":\"user\",\"content\":\"t\"}," RESULT("?", "3") "," RESULT("A", "1") "]}", BL_CHAT_END_ANSWER,
           BOTH R("3") "\n\nt\n\n" R("1") "\n\n" R("2") ASST "</think>");
    /* The last call of an id is the one that counts. */
    expect("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[" CALL("A", "f", "\"{}\"") "," CALL("B", "g", "\"{}\"") "," CALL(
               "A", "h", "\"{}\"") "]}," RESULT("A", "1") "," RESULT("B", "2") "]}",
           BL_CHAT_END_ANSWER,
           BOS "\n\n<" DSML " calls>\n" INVOKE("f", "") "\n" INVOKE("g", "") "\n" INVOKE("h", "") "\n</" DSML " calls>" EOS USER R("2") "\n\n" R(
               "1") ASST "</think>");
    expect("{\"messages\":[{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}",
           BL_CHAT_END_ANSWER, BOS USER R("a\n\nb") ASST "</think>");
}

/* The tools block, by its parts. */
static void expect_tools(const char *request, const char *before, const char *lines, const char *after)
{
    char *prompt;
    bl_error err;
    if (encode(request, &prompt, NULL, &err) != BL_OK)
        fail_msg("%s: %s", err.tensor, err.message);
    const char *block = strstr(prompt, "\n\n## Tools\n\nYou have access"), *schemas = strstr(prompt, "### Available Tool Schemas\n\n");
    assert_non_null(block);
    assert_non_null(schemas);
    assert_int_equal(block - prompt, strlen(before));
    assert_memory_equal(prompt, before, strlen(before));
    schemas += strlen("### Available Tool Schemas\n\n");
    assert_memory_equal(schemas, lines, strlen(lines));
    schemas += strlen(lines);
    const char *tail = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
    assert_memory_equal(schemas, tail, strlen(tail));
    assert_string_equal(schemas + strlen(tail), after);
    free(prompt);
}

static void test_tools(void **state)
{
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":[1.0,\"\\/\"]}}}"
    expect_tools("{\"tools\":[" TOOL "," TOOL "],\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", BOS SYS,
                 "{\"name\": \"f\", \"parameters\": {\"a\": [1.0, \"/\"]}}\n{\"name\": \"f\", \"parameters\": {\"a\": [1.0, \"/\"]}}",
                 USER "q" ASST "</think>");
    /* With tools all reasoning is kept. */
    expect_tools("{\"tools\":[" TOOL "],\"thinking\":true,\"messages\":[{\"role\":\"system\",\"content\":\"s\"}," TALK LAST,
                 BOS SYS EFFORT(75) "s", "{\"name\": \"f\", \"parameters\": {\"a\": [1.0, \"/\"]}}",
                 USER "a" ASST "<think>r</think>b" EOS USER "c" ASST "<think>");
    expect_tools("{\"tools\":[{\"namespace\":{\"name\":\"n\",\"description\":\"D\"},\"function\":{\"description\":\"e\",\"name\":\"f\"}}],"
                 "\"format\":{\"type\":\"object\"},\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}",
                 BOS SYS, "{\"description\": \"D\\ne\", \"name\": \"n::f\"}",
                 "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": \"object\"}" USER "q" ASST
                 "</think>");
    expect_tools("{\"tools\":[{\"namespace\":{\"name\":\"n\",\"description\":\"D\"},\"function\":{\"name\":\"n::f\",\"strict\":true}}],"
                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}",
                 BOS SYS, "{\"name\": \"n::f\", \"strict\": true, \"description\": \"D\\n\"}", USER "q" ASST "</think>");
    expect("{\"tools\":[" TOOL "],\"tool_choice\":\"none\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", BL_CHAT_END_ANSWER,
           BOS USER "q" ASST "</think>");
    expect("{\"tools\":[],\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}", BL_CHAT_END_ANSWER, BOS USER "q" ASST "</think>");
}

static void test_images(void **state)
{
    expect("{\"images\":true,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
           "{\"type\":\"image_url\",\"image_url\":{\"url\":\"u\"}}]}]}",
           BL_CHAT_END_ANSWER, BOS USER "a\n\n" IMAGE ASST "</think>");
}

static void test_refusals(void **state)
{
#define ONE(message) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}," message "]}"
#define WITH(option) "{" option ",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"
    static const struct {
        const char *request, *key, *message;
    } cases[] = {
        {"{\"messages\":[]}", "messages", "at least one message"},
        {"{\"messages\":{}}", "messages", "at least one message"},
        {"{}", "messages", "at least one message"},
        {ONE("1"), "messages[1]", "must be an object"},
        {ONE("{}"), "messages[1].role", "must be system"},
        {ONE("{\"role\":\"function\"}"), "messages[1].role", "must be system"},
        {ONE("{\"role\":\"user\",\"content\":1}"), "messages[1].content", "string or a list"},
        {ONE("{\"role\":\"user\",\"content\":[\"a\"]}"), "messages[1].content[0]", "type text"},
        {ONE("{\"role\":\"user\",\"content\":[{\"type\":\"video\"}]}"), "messages[1].content[0]", "type text"},
        {ONE("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), "messages[1].content[0]", "must have a text"},
        {ONE("{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"x\"}]}"), "messages[1].content[0]",
         "images are not supported"},
        {ONE("{\"role\":\"user\",\"content\":\"a" IMAGE "\"}"), "messages[1].content", "image placeholder"},
        {ONE("{\"role\":\"user\",\"content\":\"<\\uff5cdeepseek_image\\uff5c>\"}"), "messages[1].content", "image placeholder"},
        {ONE("{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"" IMAGE "\"}]}"), "messages[1].content[0]", "image placeholder"},
        {ONE("{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL("A", "f", "\"{\\\"" IMAGE "\\\":1}\"") "]}"), "messages[1]",
         "image placeholder"},
        {ONE("{\"role\":\"assistant\",\"tool_calls\":1}"), "messages[1].tool_calls", "must be a list"},
        {ONE("{\"role\":\"assistant\",\"tool_calls\":[1]}"), "messages[1].tool_calls[0].function.arguments", "missing"},
        {ONE("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"\"}}]}"), "messages[1].tool_calls[0].function.name",
         "must be a string"},
        {ONE("{\"role\":\"assistant\",\"tool_calls\":[" CALL("A", "a::b::c", "\"\"") "]}"), "messages[1].tool_calls[0].function.name",
         "only once"},
        {ONE("{\"role\":\"assistant\",\"reasoning_content\":[]}"), "messages[1].reasoning_content", "must be a string"},
        {ONE("{\"role\":\"assistant\",\"wo_eos\":1}"), "messages[1].wo_eos", "true or false"},
        {ONE("{\"role\":\"user\",\"task\":\"extracted_url\"}"), "messages[1].task", "must be action"},
        {ONE("{\"role\":\"system\",\"tools\":{}}"), "messages[1].tools", "must be a list"},
        {ONE("{\"role\":\"system\",\"tools\":[{\"function\":1}]}"), "messages[1].tools[0].function.name", "object with a function"},
        {ONE("{\"role\":\"system\",\"response_format\":1}"), "messages[1].response_format", "must be an object"},
        {WITH("\"tools\":1"), "tools", "must be a list"},
        {WITH("\"tools\":[{\"function\":{}}]"), "tools[0].function.name", "no name"},
        {WITH("\"tools\":[{\"function\":{\"name\":1}}]"), "tools[0].function.name", "must be a string"},
        {WITH("\"tools\":[{\"namespace\":\"a\",\"function\":{\"name\":\"b::f\"}}]"), "tools[0].function.name", "not the tool's namespace"},
        {WITH("\"tools\":[{\"namespace\":\"a::b\",\"function\":{\"name\":\"f\"}}]"), "tools[0].function.name", "may not hold ::"},
        {WITH("\"tools\":[{\"namespace\":1,\"function\":{\"name\":\"f\"}}]"), "tools[0].function.name", "must be a string or an object"},
        {WITH("\"format\":[]"), "response_format", "must be an object"},
        {WITH("\"task\":\"x\""), "task", "must be action"},
        {WITH("\"continue_final_message\":true"), "messages[0].role", "must be assistant"},
        {WITH("\"reasoning_effort\":0"), "reasoning_effort", "whole number from 1 to 100"},
        {WITH("\"reasoning_effort\":101"), "reasoning_effort", "whole number from 1 to 100"},
        {WITH("\"reasoning_effort\":true"), "reasoning_effort", "whole number from 1 to 100"},
        {WITH("\"reasoning_effort\":\"75\""), "reasoning_effort", "whole number from 1 to 100"},
        {WITH("\"reasoning_effort\":7.5"), "reasoning_effort", "whole number from 1 to 100"},
        {WITH("\"reasoning\":1"), "reasoning", "must be an object"},
        {WITH("\"reasoning\":{\"effort\":\"x\"}"), "reasoning.effort", "whole number"},
        {WITH("\"thinking\":{\"type\":\"on\"}"), "thinking.type", "enabled or disabled"},
        {WITH("\"thinking\":1"), "thinking", "true or false"},
        {WITH("\"chat_template_kwargs\":{\"thinking\":\"yes\"}"), "chat_template_kwargs.thinking", "true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *prompt;
        bl_error err;
        assert_int_equal(encode(cases[i].request, &prompt, NULL, &err), BL_E_INPUT);
        assert_null(prompt);
        if (strcmp(err.tensor, cases[i].key) || !strstr(err.message, cases[i].message))
            fail_msg("%s: '%s': %s", cases[i].request, err.tensor, err.message);
    }
}

static void test_switches(void **state)
{
    static const struct {
        const char *request;
        bool thinking; /* with thinking off as the default */
        int effort;
        bool default_on; /* the answer with thinking on as the default */
    } cases[] = {
        {"{}", false, 75, true},
        {"{\"thinking\":null,\"reasoning_effort\":null}", false, 75, true},
        {"{\"thinking\":{\"type\":\"enabled\"}}", true, 75, true},
        {"{\"thinking\":{\"type\":\"disabled\"}}", false, 75, false},
        {"{\"enable_thinking\":true}", true, 75, true},
        {"{\"chat_template_kwargs\":{\"thinking\":true}}", true, 75, true},
        {"{\"chat_template_kwargs\":{\"enable_thinking\":false}}", false, 75, false},
        {"{\"reasoning\":{\"enabled\":true,\"effort\":\"low\"}}", true, 50, true},
        {"{\"reasoning_effort\":\"none\"}", false, 75, false},
        {"{\"reasoning_effort\":\"none\",\"thinking\":true}", true, 75, true},
        {"{\"reasoning_effort\":\"minimal\"}", false, 50, true},
        {"{\"reasoning_effort\":\"medium\"}", false, 75, true},
        {"{\"reasoning_effort\":\"xhigh\"}", false, 75, true},
        {"{\"reasoning_effort\":\"ultra\"}", false, 100, true},
        {"{\"reasoning_effort\":42,\"chat_template_kwargs\":{\"reasoning_effort\":\"max\"}}", false, 100, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_json v;
        assert_int_equal(bl_json_parse(cases[i].request, strlen(cases[i].request), NULL, "r", &v, NULL), BL_OK);
        for (int on = 0; on < 2; on++) {
            bl_chat_options o = bl_chat_defaults();
            o.thinking = on;
            assert_int_equal(bl_chat_options_read(v, &o, NULL), BL_OK);
            if (o.thinking != (on ? cases[i].default_on : cases[i].thinking) || o.effort != cases[i].effort)
                fail_msg("%s: thinking %d effort %d", cases[i].request, o.thinking, o.effort);
        }
    }
}

/* Every case of a shared file: its messages and options against the prompt it wants. */
static int check_file(const char *name, const char *list, const char *want)
{
    const char *shared = getenv("BL_SHARED");
    char path[4096], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/data/%s", shared ? shared : BL_SOURCE_ROOT "/../shared", name);
    if (bl_file_slurp(path, 1 << 20, &text, &n, NULL) != BL_OK) {
        print_message("SKIPPED: no %s: its prompts are NOT checked\n", path);
        return 0;
    }
    bl_json root, key, v;
    int count = 0;
    assert_int_equal(bl_json_parse(text, n, NULL, path, &root, NULL), BL_OK);
    for (bl_json_iter it = bl_json_begin(list ? bl_json_get(root, list) : root); bl_json_next(&it, &key, &v); count++) {
        bl_chat_options o = bl_chat_defaults();
        bl_json mode = bl_json_get(v, list ? "thinking_mode" : "mode"), effort = bl_json_get(v, list ? "reasoning_effort" : "effort");
        o.images = true;
        o.thinking = bl_json_equals(mode, "thinking");
        o.tools = bl_json_get(v, "tools");
        bl_json_bool(bl_json_get(v, "drop_thinking"), &o.drop_thinking);
        if (effort.kind != BL_JSON_NONE && effort.kind != BL_JSON_NULL)
            assert_int_equal(bl_chat_effort(effort, "effort", &o.effort, NULL), BL_OK);
        char *prompt;
        size_t len;
        bl_status s = bl_chat_encode(bl_json_get(v, "messages"), &o, &prompt, &len, NULL, NULL);
        bl_json expected = bl_json_get(v, want);
        if (expected.kind == BL_JSON_STRING) {
            assert_int_equal(s, BL_OK);
            if (!bl_json_equals(expected, prompt))
                fail_msg("case %d of %s: %s", count, name, prompt);
        } else {
            assert_int_equal(s, BL_E_INPUT);
        }
        free(prompt);
    }
    free(text);
    return count;
}

static void test_shared_cases(void **state)
{
    if (check_file("official_cases.json", "cases", "expected_prompt") == 0)
        skip();
    assert_int_equal(check_file("encoding_examples.json", NULL, "prompt"), 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),        cmocka_unit_test(test_reasoning_kept_and_dropped),
        cmocka_unit_test(test_calls),        cmocka_unit_test(test_prefill_and_tasks),
        cmocka_unit_test(test_tool_results), cmocka_unit_test(test_tools),
        cmocka_unit_test(test_images),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_switches),     cmocka_unit_test(test_shared_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
