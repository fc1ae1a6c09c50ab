#include "runtime/chat.h"

#include "runtime/chat_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char image_mark[] = "<\uFF5Cdeepseek_image\uFF5C>";

static size_t count_marks(const char *p, size_t n)
{
    size_t count = 0;
    for (const char *at; (at = memmem(p, n, image_mark, sizeof image_mark - 1)); count++) {
        n -= (size_t)(at - p) + 1;
        p = at + 1;
    }
    return count;
}

/* Append a string and refuse one that holds the mark an image would leave. */
static bl_status add_string(chat_encoder *e, bl_json v, size_t i, const char *member)
{
    size_t from = e->out.n;
    bl_text_unescaped(&e->out, v);
    if (!e->out.failed && count_marks(e->out.p + from, e->out.n - from) > 0)
        return bl_chat_fail_at(e, i, member, "the text holds the image placeholder");
    return BL_OK;
}

/* Append a string or a list of text parts; *first is false when a blank line has to come before. */
static bl_status add_content(chat_encoder *e, size_t i, bool *first)
{
    bl_json v = e->messages[i].content, key, part;
    const char *const separator = "\n\n";
    if (v.kind == BL_JSON_STRING || v.kind == BL_JSON_NONE) {
        bl_text_puts(&e->out, *first ? "" : separator);
        *first = false;
        return add_string(e, v, i, "content");
    }
    if (v.kind != BL_JSON_ARRAY)
        return bl_chat_fail_at(e, i, "content", "must be a string or a list of parts");
    size_t k = 0;
    for (bl_json_iter it = bl_json_begin(v); bl_json_next(&it, &key, &part); k++) {
        static const char *const names[] = {"type", "text"};
        char member[64];
        bl_json m[2];
        snprintf(member, sizeof member, "content[%zu]", k);
        bl_chat_pick(part, names, m, 2);
        bool image = bl_json_equals(m[0], "image") || bl_json_equals(m[0], "image_url");
        if (image && !e->o->images)
            return bl_chat_fail_at(e, i, member, "images are not supported");
        if (!image && !bl_json_equals(m[0], "text"))
            return bl_chat_fail_at(e, i, member, "must be a part of type text");
        if (!image && m[1].kind != BL_JSON_STRING)
            return bl_chat_fail_at(e, i, member, "must have a text");
        bl_text_puts(&e->out, *first ? "" : separator);
        *first = false;
        if (image)
            bl_text_puts(&e->out, image_mark);
        else
            BL_TRY(add_string(e, m[1], i, member));
        e->images += image;
    }
    return BL_OK;
}

static bl_status add_system(chat_encoder *e, const chat_turn *t, size_t index)
{
    bool first = true;
    if (index > 0)
        bl_text_puts(&e->out, "<\uFF5CSystem\uFF5C>");
    if (t->count > 0)
        BL_TRY(add_content(e, t->first, &first));
    if (bl_chat_is_list(t->tools)) {
        char key[CHAT_KEY] = "tools";
        if (t->tools.p != e->o->tools.p)
            snprintf(key, sizeof key, "messages[%zu].tools", t->first);
        bl_text_puts(&e->out, "\n\n");
        BL_TRY(bl_chat_add_tools(&e->out, t->tools, key, e->err));
    }
    if (bl_json_count(t->response_format) > 0) { /* an empty schema counts as none, as in the reference */
        bl_text_puts(&e->out, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
        bl_text_json(&e->out, t->response_format);
    }
    return BL_OK;
}

static bl_status add_user(chat_encoder *e, const chat_turn *t)
{
    bool first = true;
    bl_text_puts(&e->out, "<\uFF5CUser\uFF5C>");
    for (size_t k = 0; k < t->count; k++) {
        size_t i = e->order[t->first + k];
        if (e->messages[i].role != TOOL) {
            BL_TRY(add_content(e, i, &first));
            continue;
        }
        bool inner = true;
        bl_text_puts(&e->out, first ? "<tool_result>" : "\n\n<tool_result>");
        BL_TRY(add_content(e, i, &inner));
        bl_text_puts(&e->out, "</tool_result>");
        first = false;
    }
    return BL_OK;
}

static bl_status add_assistant(chat_encoder *e, const chat_turn *t, size_t index)
{
    const chat_message *m = &e->messages[t->first];
    bool answers_task = index > 0 && e->turns[index - 1].task.kind != BL_JSON_NONE, first = true;
    bool keeps = !e->drop || e->last_user == SIZE_MAX || index > e->last_user;
    if (e->o->thinking && !answers_task && keeps) {
        BL_TRY(add_string(e, m->reasoning, t->first, "reasoning_content"));
        bl_text_puts(&e->out, "</think>");
    }
    BL_TRY(add_content(e, t->first, &first));
    if (bl_chat_is_list(m->calls)) {
        char key[CHAT_KEY];
        snprintf(key, sizeof key, "messages[%zu].tool_calls", t->first);
        BL_TRY(bl_chat_add_calls(&e->out, m->calls, key, e->err));
    }
    if (!m->without_end)
        bl_text_puts(&e->out, "<\uFF5Cend\u2581of\u2581sentence\uFF5C>");
    return BL_OK;
}

/* What comes between a turn and the next, and after the last: the head of the answer. */
static void add_transition(chat_encoder *e, const chat_turn *t, size_t index, bl_chat_end *end)
{
    bool last = index + 1 == e->turn_count;
    if (!last && e->turns[index + 1].role != ASSISTANT && e->turns[index + 1].role != REMINDER)
        return;
    *end = BL_CHAT_END_CLOSED;
    bool think = e->o->thinking && (!e->drop || e->last_user == SIZE_MAX || index >= e->last_user);
    const char *token = bl_chat_task_token(t->task);
    bool action = bl_json_equals(t->task, "action");
    if (token ? action : t->role == USER || (t->role == SYSTEM && index > 0)) {
        bl_text_puts(&e->out, "<\uFF5CAssistant\uFF5C>");
        bl_text_puts(&e->out, (action ? e->o->thinking : think) ? "<think>" : "</think>");
        *end = think ? BL_CHAT_END_THINK : BL_CHAT_END_ANSWER;
    }
    if (token) {
        bl_text_puts(&e->out, token);
        *end = BL_CHAT_END_TASK;
    } else if (t->role == ASSISTANT && e->messages[t->first].without_end) {
        *end = BL_CHAT_END_ANSWER;
    }
}

static bl_status add_turn(chat_encoder *e, size_t index, bl_chat_end *end)
{
    const chat_turn *t = &e->turns[index];
    if (index == 0 && (e->o->thinking || t->role == SYSTEM))
        bl_text_puts(&e->out, "<\uFF5CSystem\uFF5C>");
    if (index == 0 && e->o->thinking) {
        char line[128];
        snprintf(line, sizeof line, "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                 e->o->effort);
        bl_text_puts(&e->out, line);
    }
    size_t from = e->out.n, images = e->images;
    switch (t->role) {
    case SYSTEM:
        BL_TRY(add_system(e, t, index));
        break;
    case USER:
    case TOOL:
        BL_TRY(add_user(e, t));
        break;
    case ASSISTANT:
        BL_TRY(add_assistant(e, t, index));
        break;
    case REMINDER:
        bl_text_puts(&e->out, "<\uFF5Clatest_reminder\uFF5C>");
        BL_TRY(add_content(e, t->first, &(bool){true}));
        break;
    }
    /* Content was looked at piece by piece; this is for tools, calls and schemas. */
    if (!e->out.failed && count_marks(e->out.p + from, e->out.n - from) != e->images - images)
        return t->count ? bl_chat_fail_at(e, t->first, NULL, "holds the image placeholder")
                        : bl_chat_fail(e->err, "tools", "hold the image placeholder");
    add_transition(e, t, index, end);
    return BL_OK;
}

static bl_status encode(chat_encoder *e, bl_json messages, bl_chat_end *end)
{
    const bl_chat_options *o = e->o;
    if (o->tools.kind != BL_JSON_NONE && o->tools.kind != BL_JSON_NULL && o->tools.kind != BL_JSON_ARRAY)
        return bl_chat_fail(e->err, "tools", "must be a list");
    if (o->thinking && (o->effort < 1 || o->effort > 100))
        return bl_chat_fail(e->err, "reasoning_effort", "must be between 1 and 100");
    if (o->response_format.kind != BL_JSON_NONE && o->response_format.kind != BL_JSON_NULL && o->response_format.kind != BL_JSON_OBJECT)
        return bl_chat_fail(e->err, "response_format", "must be an object");
    if (o->task.kind != BL_JSON_NULL)
        BL_TRY(bl_chat_check_task(e, o->task, "task"));
    BL_TRY(bl_chat_read(e, messages));
    BL_TRY(bl_chat_plan(e));
    bl_text_puts(&e->out, "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>");
    for (size_t i = 0; i < e->turn_count; i++)
        BL_TRY(add_turn(e, i, end));
    bl_text_end(&e->out);
    return e->out.failed ? bl_fail(e->err, BL_E_NOMEM, NULL, "messages", -1, "out of memory") : BL_OK;
}

bl_status bl_chat_encode(bl_json messages, const bl_chat_options *o, char **prompt, size_t *n, bl_chat_end *end, bl_error *err)
{
    chat_encoder e = {.o = o, .err = err};
    bl_chat_end ignored;
    bl_status s = encode(&e, messages, end ? end : &ignored);
    bl_arena_reset(&e.arena);
    if (s != BL_OK)
        free(e.out.p);
    *prompt = s == BL_OK ? e.out.p : NULL;
    *n = s == BL_OK ? e.out.n : 0;
    return s;
}
