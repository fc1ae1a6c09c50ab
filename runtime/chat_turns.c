/* From the request's messages to the turns of the prompt: roles, merging, the order of tool results. */
#include "runtime/chat_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bl_status bl_chat_fail_at(chat_encoder *e, size_t i, const char *member, const char *what)
{
    char key[CHAT_KEY];
    snprintf(key, sizeof key, "messages[%zu]%s%s", i, member ? "." : "", member ? member : "");
    return bl_chat_fail(e->err, key, what);
}

bool bl_chat_is_list(bl_json v)
{
    return v.kind == BL_JSON_ARRAY && bl_json_count(v) > 0;
}

static bl_status read_role(chat_encoder *e, bl_json v, size_t i, chat_role *out)
{
    static const struct {
        const char *name;
        chat_role role;
    } roles[] = {{"system", SYSTEM}, {"developer", SYSTEM},   {"user", USER},
                 {"tool", TOOL},     {"assistant", ASSISTANT}, {"latest_reminder", REMINDER}};
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++)
        if (bl_json_equals(v, roles[r].name)) {
            *out = roles[r].role;
            return BL_OK;
        }
    return bl_chat_fail_at(e, i, "role", "must be system, developer, user, assistant, tool or latest_reminder");
}

const char *bl_chat_task_token(bl_json v)
{
    static const char *const tasks[][2] = {{"action", "<\uFF5Caction\uFF5C>"},       {"query", "<\uFF5Cquery\uFF5C>"},
                                           {"authority", "<\uFF5Cauthority\uFF5C>"}, {"domain", "<\uFF5Cdomain\uFF5C>"},
                                           {"title", "<\uFF5Ctitle\uFF5C>"},         {"read_url", "<\uFF5Cread_url\uFF5C>"}};
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (bl_json_equals(v, tasks[i][0]))
            return tasks[i][1];
    return NULL;
}

bl_status bl_chat_check_task(chat_encoder *e, bl_json v, const char *key)
{
    if (v.kind == BL_JSON_NONE || bl_chat_task_token(v))
        return BL_OK;
    return bl_chat_fail(e->err, key, "must be action, query, authority, domain, title or read_url");
}

static bl_status read_message(chat_encoder *e, bl_json v, size_t i)
{
    enum { ROLE, CONTENT, REASONING_CONTENT, REASONING, CALLS, CALL_ID, TASK, WO_EOS, TOOLS, FORMAT, KEYS };
    static const char *const names[KEYS] = {"role", "content", "reasoning_content", "reasoning", "tool_calls", "tool_call_id",
                                            "task", "wo_eos", "tools", "response_format"};
    bl_json m[KEYS];
    chat_message *out = &e->messages[i];
    if (v.kind != BL_JSON_OBJECT)
        return bl_chat_fail_at(e, i, NULL, "must be an object");
    bl_chat_pick(v, names, m, KEYS);
    BL_TRY(read_role(e, m[ROLE], i, &out->role));
    out->content = m[CONTENT];
    out->reasoning = m[REASONING_CONTENT].kind != BL_JSON_NONE ? m[REASONING_CONTENT] : m[REASONING];
    out->calls = m[CALLS];
    out->call_id = m[CALL_ID];
    out->task = m[TASK];
    out->tools = m[TOOLS];
    out->response_format = m[FORMAT];
    if (out->reasoning.kind != BL_JSON_NONE && out->reasoning.kind != BL_JSON_STRING)
        return bl_chat_fail_at(e, i, "reasoning_content", "must be a string");
    if (out->calls.kind != BL_JSON_NONE && out->calls.kind != BL_JSON_ARRAY)
        return bl_chat_fail_at(e, i, "tool_calls", "must be a list");
    if (out->tools.kind != BL_JSON_NONE && out->tools.kind != BL_JSON_ARRAY)
        return bl_chat_fail_at(e, i, "tools", "must be a list");
    if (out->response_format.kind != BL_JSON_NONE && out->response_format.kind != BL_JSON_OBJECT)
        return bl_chat_fail_at(e, i, "response_format", "must be an object");
    if (m[WO_EOS].kind != BL_JSON_NONE && !bl_json_bool(m[WO_EOS], &out->without_end))
        return bl_chat_fail_at(e, i, "wo_eos", "must be true or false");
    char key[CHAT_KEY];
    snprintf(key, sizeof key, "messages[%zu].task", i);
    return bl_chat_check_task(e, out->task, key);
}

bl_status bl_chat_read(chat_encoder *e, bl_json messages)
{
    bl_json key, v;
    e->message_count = bl_json_count(messages);
    if (messages.kind != BL_JSON_ARRAY || e->message_count == 0)
        return bl_chat_fail(e->err, "messages", "must be a list of at least one message");
    e->messages = bl_arena_array(&e->arena, e->message_count, sizeof *e->messages);
    e->order = bl_arena_array(&e->arena, e->message_count, sizeof *e->order);
    e->turns = bl_arena_array(&e->arena, e->message_count + 1, sizeof *e->turns);
    if (!e->messages || !e->order || !e->turns)
        return bl_fail(e->err, BL_E_NOMEM, NULL, "messages", -1, "out of memory");
    size_t i = 0;
    for (bl_json_iter it = bl_json_begin(messages); bl_json_next(&it, &key, &v); i++)
        BL_TRY(read_message(e, v, i));
    chat_message *last = &e->messages[e->message_count - 1];
    if (e->o->continue_final_message) {
        if (last->role != ASSISTANT)
            return bl_chat_fail_at(e, e->message_count - 1, "role", "must be assistant to continue the final message");
        last->without_end = true;
    }
    return BL_OK;
}

/* Tool results and user messages in a row are one user turn; a task closes a turn to user messages. As in the reference, such a turn
 * keeps the task of its first message. */
static void make_turns(chat_encoder *e)
{
    const bl_chat_options *o = e->o;
    bool print_format = o->response_format.kind == BL_JSON_OBJECT;
    if (e->messages[0].role != SYSTEM && (bl_chat_is_list(o->tools) || print_format))
        e->turns[e->turn_count++] = (chat_turn){.role = SYSTEM};
    for (size_t i = 0; i < e->message_count; i++) {
        const chat_message *m = &e->messages[i];
        chat_turn *last = e->turn_count ? &e->turns[e->turn_count - 1] : NULL;
        e->order[i] = i;
        bool joins = last && last->role == USER && (m->role == TOOL || (m->role == USER && last->task.kind == BL_JSON_NONE));
        if (joins) {
            last->count++;
            continue;
        }
        e->turns[e->turn_count++] = (chat_turn){.role = m->role == TOOL ? USER : m->role,
                                           .first = i,
                                           .count = 1,
                                           .task = m->role == TOOL ? (bl_json){0} : m->task,
                                           .tools = m->role == SYSTEM ? m->tools : (bl_json){0},
                                           .response_format = m->role == SYSTEM ? m->response_format : (bl_json){0}};
    }
    if (bl_chat_is_list(o->tools))
        e->turns[0].tools = o->tools;
    if (print_format)
        e->turns[0].response_format = o->response_format;
    if (o->task.kind == BL_JSON_STRING)
        e->turns[e->turn_count - 1].task = o->task;
}

/* A call's id and its place among the calls of its message. */
typedef struct call_place {
    const char *id;
    size_t n, place;
} call_place;

static int compare_ids(const call_place *a, const call_place *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->id, b->id, n) : 0;
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

/* By id, a later call of the same id first: it is the one that counts. */
static int compare_calls(const void *a, const void *b)
{
    const call_place *x = a, *y = b;
    int c = compare_ids(x, y);
    return c ? c : (x->place < y->place) - (x->place > y->place);
}

static int compare_places(const void *a, const void *b)
{
    const size_t *x = a, *y = b; /* {place of the call, place of the result} */
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return (x[1] > y[1]) - (x[1] < y[1]);
}

static bl_status unescape_id(chat_encoder *e, bl_json v, call_place *c)
{
    char *p = bl_arena_alloc(&e->arena, v.n + 1);
    if (!p)
        return bl_fail(e->err, BL_E_NOMEM, NULL, "messages", -1, "out of memory");
    c->id = p;
    c->n = bl_json_string(v, p, v.n + 1);
    return BL_OK;
}

/* The calls of an assistant message that have an id, sorted for the search; *count of them. */
static bl_status collect_calls(chat_encoder *e, bl_json calls, call_place **out, size_t *count)
{
    bl_json key, call;
    size_t place = 0;
    *count = 0;
    *out = bl_arena_array(&e->arena, bl_json_count(calls), sizeof **out);
    if (!*out)
        return bl_fail(e->err, BL_E_NOMEM, NULL, "messages", -1, "out of memory");
    for (bl_json_iter it = bl_json_begin(calls); bl_json_next(&it, &key, &call); place++) {
        bl_json id = bl_json_get(call, "id");
        if (id.kind != BL_JSON_STRING || id.n == 2)
            continue;
        (*out)[*count].place = place;
        BL_TRY(unescape_id(e, id, &(*out)[(*count)++]));
    }
    qsort(*out, *count, sizeof **out, compare_calls);
    return BL_OK;
}

/* Where the call of that id stands; 0 for one that is not there. */
static size_t place_of(const call_place *calls, size_t count, const call_place *id)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare_ids(&calls[mid], id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < count && compare_ids(&calls[low], id) == 0 ? calls[low].place : 0;
}

/* Put the tool results of one turn into the order of the calls, each into a place that held a result. */
static bl_status sort_results(chat_encoder *e, const chat_turn *t, const call_place *calls, size_t call_count)
{
    size_t n = 0;
    for (size_t i = t->first; i < t->first + t->count; i++)
        n += e->messages[i].role == TOOL;
    if (n < 2 || call_count == 0)
        return BL_OK;
    size_t(*keys)[2] = bl_arena_array(&e->arena, n, sizeof *keys);
    if (!keys)
        return bl_fail(e->err, BL_E_NOMEM, NULL, "messages", -1, "out of memory");
    size_t k = 0;
    for (size_t i = t->first; i < t->first + t->count; i++) {
        if (e->messages[i].role != TOOL)
            continue;
        call_place id = {0};
        BL_TRY(unescape_id(e, e->messages[i].call_id, &id));
        keys[k][0] = place_of(calls, call_count, &id);
        keys[k++][1] = i;
    }
    qsort(keys, n, sizeof *keys, compare_places);
    k = 0;
    for (size_t i = t->first; i < t->first + t->count; i++)
        if (e->messages[i].role == TOOL)
            e->order[i] = keys[k++][1];
    return BL_OK;
}

bl_status bl_chat_plan(chat_encoder *e)
{
    call_place *calls = NULL;
    size_t call_count = 0;
    make_turns(e);
    e->drop = e->o->drop_thinking && !bl_chat_is_list(e->o->tools);
    for (size_t i = 0; i < e->message_count; i++)
        e->drop = e->drop && !bl_chat_is_list(e->messages[i].tools);
    e->last_user = SIZE_MAX;
    for (size_t i = 0; i < e->turn_count; i++) {
        const chat_turn *t = &e->turns[i];
        if (t->role == USER || (t->role == SYSTEM && i > 0))
            e->last_user = i;
        if (t->role == USER)
            BL_TRY(sort_results(e, t, calls, call_count));
        if (t->role == ASSISTANT && bl_chat_is_list(e->messages[t->first].calls))
            BL_TRY(collect_calls(e, e->messages[t->first].calls, &calls, &call_count));
    }
    return BL_OK;
}
