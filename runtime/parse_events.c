/* From the parser to its caller: text gathered into events, arguments written as JSON. */
#include "formats/json.h"
#include "runtime/parse_impl.h"

#include <string.h>

void bl_parse_flush(bl_parser *p)
{
    if (p->out.n == 0)
        return;
    bl_event e = {.kind = p->out_kind, .call = p->begun ? p->begun - 1 : 0, .text = p->out.p, .n = p->out.n};
    p->o.event(p->o.arg, &e);
    p->out.n = 0;
}

void bl_parse_say(bl_parser *p, bl_event_kind kind, const char *s, size_t n)
{
    if (p->out_kind != kind)
        bl_parse_flush(p);
    p->out_kind = kind;
    if (n == 0 || (kind == BL_EVENT_CALL_ARGUMENTS && p->o.calls == BL_CALLS_DROP))
        return;
    size_t run = 0;
    for (size_t i = 0; i < n; i++) {
        const char *letters = s[i] == MARK_END_THINK ? "</think>" : s[i] == MARK_THINK ? "<think>" : "\uFF5CDSML\uFF5C";
        if (!parse_is_mark(s[i]))
            continue;
        bl_text_add(&p->out, s + run, i - run);
        bl_text_puts(&p->out, letters);
        run = i + 1;
    }
    bl_text_add(&p->out, s + run, n - run);
}

void bl_parse_argue(bl_parser *p, const char *s)
{
    bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, s, strlen(s));
}

void bl_parse_argue_escaped(bl_parser *p, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t run = i;
        while (i < n && !parse_is_mark(s[i]))
            i++;
        p->bytes.n = 0;
        bl_text_quote_body(&p->bytes, s + run, i - run);
        bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, p->bytes.p, p->bytes.n);
        if (i < n)
            bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, s + i, 1);
    }
}

void bl_parse_argue_json(bl_parser *p, const char *s, size_t n)
{
    bl_json v;
    if (bl_json_parse(s ? s : "", n, NULL, NULL, &v, NULL) == BL_OK) {
        bl_parse_say(p, BL_EVENT_CALL_ARGUMENTS, s, n);
        return;
    }
    bl_parse_argue(p, "\"");
    bl_parse_argue_escaped(p, s, n);
    bl_parse_argue(p, "\"");
}

void bl_parse_begin_call(bl_parser *p)
{
    p->begun_this = true;
    p->first_key = true;
    p->raw.n = 0;
    bl_parse_flush(p);
    if (p->o.calls == BL_CALLS_DROP)
        return;
    const char *mark = memmem(p->name.p, p->name.n, "::", 2);
    size_t skip = mark ? (size_t)(mark - p->name.p) + 2 : 0;
    bl_event e = {.kind = BL_EVENT_CALL_BEGIN, .call = p->begun++, .text = p->name.p + skip, .n = p->name.n - skip};
    if (mark) {
        e.name_space = p->name.p;
        e.name_space_n = skip - 2;
    }
    p->o.event(p->o.arg, &e);
}

void bl_parse_end_call(bl_parser *p)
{
    bl_parse_argue(p, p->first_key ? "{}" : "}");
    bl_parse_flush(p);
    p->raw.n = 0;
    if (p->o.calls == BL_CALLS_DROP)
        return;
    p->ended++;
    bl_event e = {.kind = BL_EVENT_CALL_END, .call = p->begun - 1};
    p->o.event(p->o.arg, &e);
}
