/* The output parser: a machine that takes one byte at a time, so that the cuts between tokens cannot matter. Text goes out once no
 * pattern can begin in it any more. */
#include "runtime/parse.h"

#include "runtime/parse_impl.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_CALLS "<\xFE calls>"
#define CLOSE_CALLS "</\xFE calls>"
#define OPEN_INVOKE "<\xFE invoke name=\""
#define CLOSE_INVOKE "</\xFE invoke>"
#define OPEN_PARAMETER "<\xFE parameter name=\""
#define CLOSE_PARAMETER "</\xFE parameter>"
#define TRUE_HEAD "\" string=\"true\">"
#define FALSE_HEAD "\" string=\"false\">"

/* Longer names are no names. */
#define MAX_NAME 256
#define MAX_KEY 4096

/* what of a pattern that is no stop string */
#define OPENS_CALLS (-1)
#define CLOSES_VALUE (-2)

static void say_text(bl_parser *p, const char *s, size_t n)
{
    bl_parse_say(p, p->state == REASONING ? BL_EVENT_REASONING : BL_EVENT_ANSWER, s, n);
}

/* ---- the machine */
static void feed(bl_parser *p, char c);

static void enter(bl_parser *p, parse_state s)
{
    p->state = s;
    p->part.n = 0;
    p->held.n = 0;
    bl_matcher_reset(&p->reasoning);
    bl_matcher_reset(&p->answer);
    bl_matcher_reset(&p->value);
}

static void feed_bytes(bl_parser *p, const bl_text *t)
{
    for (size_t i = 0; i < t->n; i++)
        feed(p, t->p[i]);
}

static bool ends_in(const bl_text *t, const char *s)
{
    size_t n = strlen(s);
    return t->n >= n && memcmp(t->p + t->n - n, s, n) == 0;
}

/* The block is not what it should be: what came since the last event was text, and the bytes from part on are looked at anew. They
 * hold one mark at most, so that this does not nest. */
static void fall_back(bl_parser *p)
{
    bl_text part = p->part;
    p->part = (bl_text){0};
    enter(p, p->begun == p->block_begun ? p->opened_in : ANSWER);
    if (p->o.calls != BL_CALLS_DROP)
        say_text(p, p->raw.p, p->raw.n > part.n ? p->raw.n - part.n : 0);
    p->raw.n = 0;
    feed_bytes(p, &part);
    free(part.p);
}

/* Drops all but the last n bytes. */
static void keep_end(bl_text *t, size_t n)
{
    memmove(t->p, t->p + t->n - n, n);
    t->n = n;
}

static void feed_text(bl_parser *p, char c)
{
    if (p->state != PLAIN) {
        if (c == MARK_THINK || (c == MARK_END_THINK && p->state == ANSWER))
            return; /* a control token out of place is never text */
        if (c == MARK_END_THINK) {
            say_text(p, p->held.p, p->held.n);
            enter(p, ANSWER);
            return;
        }
    }
    bl_matcher *m = p->state == REASONING ? &p->reasoning : &p->answer;
    const bl_pattern *hit = bl_matcher_step(m, c);
    bl_text_add(&p->held, &c, 1);
    if (p->held.failed)
        return;
    size_t keep = hit ? hit->n : m->hold;
    say_text(p, p->held.p, p->held.n - keep);
    keep_end(&p->held, keep);
    if (hit && hit->what == OPENS_CALLS) {
        p->raw.n = 0;
        bl_text_add(&p->raw, p->held.p, keep);
        p->block_begun = p->begun;
        p->opened_in = p->state;
        enter(p, OUTER);
    } else if (hit) {
        p->stop = hit->what;
        enter(p, DONE);
    }
}

/* Between tags: white space, then one of two tags. 1 or 2 when it is complete, 0 while it may be, or when it cannot be: then the
 * parser has fallen back. */
static int read_tag(bl_parser *p, char c, const char *first, const char *second)
{
    if (p->part.n == 0 && (c == ' ' || c == '\n' || c == '\r' || c == '\t'))
        return 0;
    bl_text_add(&p->part, &c, 1);
    const char *const tags[2] = {first, second};
    for (int i = 0; i < 2; i++)
        if (p->part.n <= strlen(tags[i]) && memcmp(p->part.p, tags[i], p->part.n) == 0)
            return p->part.n == strlen(tags[i]) ? i + 1 : 0;
    fall_back(p);
    return 0;
}

static void feed_outer(bl_parser *p, char c)
{
    int tag = read_tag(p, c, OPEN_INVOKE, CLOSE_CALLS);
    if (tag)
        enter(p, tag == 1 ? NAME : DONE);
}

static void feed_name(bl_parser *p, char c)
{
    bl_text_add(&p->part, &c, 1);
    if (ends_in(&p->part, "\">") && !p->part.failed) {
        size_t n = p->part.n - 2;
        const char *mark = memmem(p->part.p, n, "::", 2);
        bool twice = mark && memmem(mark + 2, n - (size_t)(mark + 2 - p->part.p), "::", 2);
        if (n > 0 && !twice) {
            p->name.n = 0;
            bl_text_add(&p->name, p->part.p, n);
            p->begun_this = false;
            enter(p, INNER);
            return;
        }
    }
    if (ends_in(&p->part, "\">") || c == '\n' || parse_is_mark(c) || p->part.n > MAX_NAME)
        fall_back(p);
}

static void feed_inner(bl_parser *p, char c)
{
    int tag = read_tag(p, c, OPEN_PARAMETER, CLOSE_INVOKE);
    if (tag == 2) {
        if (!p->begun_this)
            bl_parse_begin_call(p);
        bl_parse_end_call(p);
    }
    if (tag)
        enter(p, tag == 1 ? KEY : OUTER);
}

static void feed_key(bl_parser *p, char c)
{
    bl_text_add(&p->part, &c, 1);
    bool text = ends_in(&p->part, TRUE_HEAD);
    if (text || ends_in(&p->part, FALSE_HEAD)) {
        if (!p->begun_this)
            bl_parse_begin_call(p);
        p->raw.n = 0;
        bl_parse_argue(p, p->first_key ? "{\"" : ", \"");
        bl_parse_argue_escaped(p, p->part.p, p->part.n - strlen(text ? TRUE_HEAD : FALSE_HEAD));
        bl_parse_argue(p, text ? "\": \"" : "\": ");
        p->first_key = false;
        enter(p, text ? TEXT_VALUE : JSON_VALUE);
    } else if (parse_is_mark(c) || p->part.n > MAX_KEY) {
        fall_back(p);
    }
}

static void feed_value(bl_parser *p, char c)
{
    const bl_pattern *hit = bl_matcher_step(&p->value, c);
    bl_text_add(&p->held, &c, 1);
    if (p->held.failed)
        return;
    size_t keep = hit ? hit->n : p->value.hold, ready = p->held.n - keep;
    if (p->state == TEXT_VALUE)
        bl_parse_argue_escaped(p, p->held.p, ready);
    else
        bl_text_add(&p->part, p->held.p, ready);
    keep_end(&p->held, keep);
    if (!hit)
        return;
    if (p->state == TEXT_VALUE)
        bl_parse_argue(p, "\"");
    else
        bl_parse_argue_json(p, p->part.p, p->part.n);
    p->raw.n = 0;
    enter(p, INNER);
}

static void feed(bl_parser *p, char c)
{
    if (p->state == OUTER || p->state == NAME || p->state == INNER || p->state == KEY)
        bl_text_add(&p->raw, &c, 1);
    switch (p->state) {
    case REASONING:
    case ANSWER:
    case PLAIN:
        feed_text(p, c);
        break;
    case OUTER:
        feed_outer(p, c);
        break;
    case NAME:
        feed_name(p, c);
        break;
    case INNER:
        feed_inner(p, c);
        break;
    case KEY:
        feed_key(p, c);
        break;
    case TEXT_VALUE:
    case JSON_VALUE:
        feed_value(p, c);
        break;
    case DONE:
        break;
    }
}

static bl_status settle(bl_parser *p)
{
    bl_parse_flush(p);
    bool failed = p->spelling.failed || p->held.failed || p->raw.failed || p->part.failed || p->name.failed || p->bytes.failed ||
                  p->out.failed;
    return failed ? BL_E_NOMEM : BL_OK;
}

/* ---- input */
static bool is_control(const bl_parser *p, int id)
{
    bool control = bl_tokenizer_is_special(p->o.tokenizer, id);
    for (int i = 0; i < PARSE_CONTROLS; i++)
        control = control || id == p->controls[i];
    return control;
}

bl_status bl_parser_push(bl_parser *p, int id)
{
    bl_text bytes = {0};
    char mark = 0;
    if (p->state == PLAIN) {
        if (bl_tokenizer_is_special(p->o.tokenizer, id) && !p->o.keep_special)
            return BL_OK;
    } else if (id == p->end_think || id == p->dsml || id == p->think) {
        mark = id == p->end_think ? MARK_END_THINK : id == p->dsml ? MARK_DSML : MARK_THINK;
        bl_detok_end(&p->detok, &bytes);
    } else if (is_control(p, id)) {
        return BL_OK;
    }
    if (!mark) {
        size_t n;
        const char *s = bl_tokenizer_bytes(p->o.tokenizer, id, &n);
        bl_detok_bytes(&p->detok, s, n, &bytes);
    }
    feed_bytes(p, &bytes);
    if (mark)
        feed(p, mark);
    bl_status s = bytes.failed ? BL_E_NOMEM : settle(p);
    free(bytes.p);
    return s;
}

bl_status bl_parser_push_text(bl_parser *p, const char *text, size_t n)
{
    bl_text bytes = {0};
    bl_detok_bytes(&p->detok, text, n, &bytes);
    for (size_t i = 0; i < bytes.n; i++) {
        const bl_pattern *hit = p->state == PLAIN ? NULL : bl_matcher_step(&p->spelled, bytes.p[i]);
        bl_text_add(&p->spelling, &bytes.p[i], 1);
        if (p->spelling.failed)
            break;
        size_t keep = hit ? hit->n : p->spelled.hold, ready = p->spelling.n - keep;
        for (size_t k = 0; k < ready; k++)
            feed(p, p->spelling.p[k]);
        memmove(p->spelling.p, p->spelling.p + ready, keep);
        p->spelling.n = keep;
        if (hit) {
            feed(p, (char)hit->what);
            p->spelling.n = 0;
            bl_matcher_reset(&p->spelled);
        }
    }
    bl_status s = bytes.failed ? BL_E_NOMEM : settle(p);
    free(bytes.p);
    return s;
}

bl_status bl_parser_finish(bl_parser *p)
{
    bl_text tail = {0};
    bl_detok_end(&p->detok, &tail);
    feed_bytes(p, &p->spelling);
    p->spelling.n = 0;
    feed_bytes(p, &tail);
    switch (p->state) {
    case REASONING:
    case ANSWER:
    case PLAIN:
        say_text(p, p->held.p, p->held.n);
        break;
    case OUTER:
    case NAME:
        if (p->begun == p->block_begun && p->o.calls == BL_CALLS_PARSE)
            bl_parse_say(p, p->opened_in == REASONING ? BL_EVENT_REASONING : BL_EVENT_ANSWER, p->raw.p, p->raw.n);
        break;
    case INNER:
    case KEY:
        if (!p->begun_this)
            bl_parse_begin_call(p);
        break;
    case TEXT_VALUE:
        bl_parse_argue_escaped(p, p->held.p, p->held.n);
        break;
    case JSON_VALUE:
        bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, p->part.p, p->part.n);
        bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, p->held.p, p->held.n);
        break;
    case DONE:
        break;
    }
    enter(p, DONE);
    bl_status s = tail.failed ? BL_E_NOMEM : settle(p);
    free(tail.p);
    return s;
}

/* ---- life */
/* Tokens that structure a conversation; they are not special in the file, but never text. */
static const char *const control_names[PARSE_CONTROLS] = {"<\uFF5CSystem\uFF5C>",          "<\uFF5CUser\uFF5C>",           "<\uFF5CAssistant\uFF5C>",
                                            "<\uFF5Clatest_reminder\uFF5C>", "<\uFF5Cdeepseek_image\uFF5C>", "<\uFF5Caction\uFF5C>",
                                            "<\uFF5Cquery\uFF5C>",           "<\uFF5Cauthority\uFF5C>",      "<\uFF5Cdomain\uFF5C>",
                                            "<\uFF5Ctitle\uFF5C>",           "<\uFF5Cread_url\uFF5C>"};

static void find_controls(bl_parser *p)
{
    const bl_tokenizer *t = p->o.tokenizer;
    p->end_think = t ? bl_tokenizer_id(t, "</think>") : -1;
    p->think = t ? bl_tokenizer_id(t, "<think>") : -1;
    p->dsml = t ? bl_tokenizer_id(t, "\uFF5CDSML\uFF5C") : -1;
    for (int i = 0; i < PARSE_CONTROLS; i++)
        p->controls[i] = t ? bl_tokenizer_id(t, control_names[i]) : -1;
}

static bool add_literal(bl_matcher *m, const char *s, int what, bl_arena *a)
{
    return bl_matcher_add(m, s, strlen(s), what, a);
}

static bool make_matchers(bl_parser *p)
{
    bl_arena *a = &p->arena;
    bool calls = p->o.calls != BL_CALLS_TEXT && p->o.start != BL_SECTION_PLAIN;
    bool ok = bl_matcher_init(&p->spelled, 3, a) && add_literal(&p->spelled, "</think>", (unsigned char)MARK_END_THINK, a) &&
              add_literal(&p->spelled, "<think>", (unsigned char)MARK_THINK, a) &&
              add_literal(&p->spelled, "\uFF5CDSML\uFF5C", (unsigned char)MARK_DSML, a) && bl_matcher_init(&p->value, 1, a) &&
              add_literal(&p->value, CLOSE_PARAMETER, CLOSES_VALUE, a);
    bl_matcher *both[2] = {&p->reasoning, &p->answer};
    for (int k = 0; k < 2 && ok; k++) {
        ok = bl_matcher_init(both[k], p->o.stop_count + 2, a);
        if (ok && calls) /* the blank line before a block belongs to it */
            ok = add_literal(both[k], "\n\n" OPEN_CALLS, OPENS_CALLS, a) && add_literal(both[k], OPEN_CALLS, OPENS_CALLS, a);
        for (size_t i = 0; ok && i < p->o.stop_count && (k == 1 || p->o.stop_in_reasoning); i++)
            if (p->o.stops[i][0])
                ok = add_literal(both[k], p->o.stops[i], (int)i, a);
    }
    return ok;
}

bl_status bl_parser_create(bl_parser **out, const bl_parser_options *o, bl_error *err)
{
    *out = NULL;
    bl_parser *p = calloc(1, sizeof *p);
    if (!p)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the output parser");
    p->o = *o;
    p->stop = -1;
    p->state = o->start == BL_SECTION_REASONING ? REASONING : o->start == BL_SECTION_PLAIN ? PLAIN : ANSWER;
    find_controls(p);
    if (!make_matchers(p)) {
        bl_parser_destroy(&p);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the output parser");
    }
    p->o.stops = NULL;
    *out = p;
    return BL_OK;
}

void bl_parser_destroy(bl_parser **pp)
{
    bl_parser *p = *pp;
    if (!p)
        return;
    bl_text *texts[] = {&p->spelling, &p->held, &p->raw, &p->part, &p->name, &p->bytes, &p->out};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]->p);
    bl_arena_reset(&p->arena);
    free(p);
    *pp = NULL;
}

bl_section bl_parser_section(const bl_parser *p)
{
    static const bl_section sections[] = {[REASONING] = BL_SECTION_REASONING, [ANSWER] = BL_SECTION_ANSWER, [PLAIN] = BL_SECTION_PLAIN,
                                          [DONE] = BL_SECTION_DONE,           [OUTER] = BL_SECTION_CALLS,   [NAME] = BL_SECTION_CALLS,
                                          [INNER] = BL_SECTION_CALLS,         [KEY] = BL_SECTION_CALLS,     [TEXT_VALUE] = BL_SECTION_CALLS,
                                          [JSON_VALUE] = BL_SECTION_CALLS};
    return sections[p->state];
}

int bl_parser_stop(const bl_parser *p)
{
    return p->stop;
}

int bl_parser_calls_begun(const bl_parser *p)
{
    return p->begun;
}

int bl_parser_calls_ended(const bl_parser *p)
{
    return p->ended;
}
