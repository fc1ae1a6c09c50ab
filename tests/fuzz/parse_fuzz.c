#include "tests/fuzz/fuzz.h"

#include "formats/json.h"
#include "formats/utf8.h"
#include "runtime/parse.h"
#include "tests/unit/tiny_tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* All events as one text; pieces of a kind are joined. */
typedef struct record {
    bl_text reasoning, answer, calls;
    size_t arguments; /* where those of the current call begin */
    int begun, ended;
} record;

static void take(void *arg, const bl_event *e)
{
    record *r = arg;
    BL_MUST(bl_utf8_check(e->text ? e->text : "", e->n) == e->n);
    bl_text *t = e->kind == BL_EVENT_REASONING ? &r->reasoning : e->kind == BL_EVENT_ANSWER ? &r->answer : &r->calls;
    if (e->kind == BL_EVENT_CALL_BEGIN) {
        BL_MUST(e->call == r->begun++);
        bl_text_add(t, e->name_space, e->name_space_n);
        bl_text_puts(t, "/");
    }
    bl_text_add(t, e->text, e->n);
    if (e->kind == BL_EVENT_CALL_BEGIN)
        r->arguments = t->n;
    if (e->kind == BL_EVENT_CALL_END) {
        static const bl_json_limits limits = {.last_duplicate_wins = true, .max_depth = 1000};
        bl_json v;
        BL_MUST(bl_json_parse(t->p + r->arguments, t->n - r->arguments, &limits, NULL, &v, NULL) == BL_OK && v.kind == BL_JSON_OBJECT);
        bl_text_puts(t, ".");
        r->ended++;
    }
}

static void finish(bl_parser *p, const record *r)
{
    BL_MUST(bl_parser_finish(p) == BL_OK && bl_parser_section(p) == BL_SECTION_DONE);
    BL_MUST(bl_parser_calls_begun(p) == r->begun && bl_parser_calls_ended(p) == r->ended);
    bl_parser_destroy(&p);
}

static void same(const bl_text *a, const bl_text *b)
{
    BL_MUST(a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0));
}

static void compare_and_free(record *a, record *b)
{
    same(&a->reasoning, &b->reasoning);
    same(&a->answer, &b->answer);
    same(&a->calls, &b->calls);
    bl_text *all[] = {&b->reasoning, &b->answer, &b->calls};
    for (int i = 0; i < 3; i++)
        free(all[i]->p);
}

static bl_tokenizer *tokenizer(void)
{
    static bl_tokenizer *t;
    static char text[32768];
    if (!t) {
        size_t n = tiny_tokenizer(text, sizeof text);
        BL_MUST(bl_tokenizer_parse(&t, text, n, "tiny", NULL) == BL_OK);
    }
    return t;
}

/* Two bytes of options, then an output: the same whole, in two parts and (when it is text) as tokens. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2, *stops[] = {"STOP", "\n\n", "</"};
    size_t n = size - 2, cut = data[1] % (n + 1);
    bl_parser *p;
    record whole = {0}, parts = {0};
    bl_parser_options o = {.start = data[0] & 1 ? BL_SECTION_REASONING : BL_SECTION_ANSWER,
                           .calls = (data[0] >> 1) % 3,
                           .stops = stops,
                           .stop_count = (data[0] >> 3) & 3,
                           .stop_in_reasoning = data[0] >> 5 & 1,
                           .event = take,
                           .arg = &whole};
    BL_MUST(bl_parser_create(&p, &o, NULL) == BL_OK);
    BL_MUST(bl_parser_push_text(p, text, n) == BL_OK);
    finish(p, &whole);
    o.arg = &parts;
    BL_MUST(bl_parser_create(&p, &o, NULL) == BL_OK);
    BL_MUST(bl_parser_push_text(p, text, cut) == BL_OK && bl_parser_push_text(p, text + cut, n - cut) == BL_OK);
    finish(p, &parts);
    compare_and_free(&whole, &parts);
    bl_ids ids = {0};
    if (bl_utf8_check(text, n) == n && !memmem(text, n, "<bos>", 5) && !memmem(text, n, "<eos>", 5) && !memmem(text, n, "<pad>", 5) &&
        !memmem(text, n, "<\uFF5CUser\uFF5C>", 12)) {
        memset(&parts, 0, sizeof parts);
        o.tokenizer = tokenizer();
        BL_MUST(bl_parser_create(&p, &o, NULL) == BL_OK);
        BL_MUST(bl_tokenizer_encode(o.tokenizer, text, n, true, &ids, NULL) == BL_OK);
        for (size_t i = 0; i < ids.count; i++)
            BL_MUST(bl_parser_push(p, ids.ids[i]) == BL_OK);
        finish(p, &parts);
        compare_and_free(&whole, &parts);
    }
    free(ids.ids);
    bl_text *all[] = {&whole.reasoning, &whole.answer, &whole.calls};
    for (int i = 0; i < 3; i++)
        free(all[i]->p);
    return 0;
}
