/* Which switches of a request shape the prompt; every spelling that clients use. */
#include "runtime/chat_impl.h"

#include <stdio.h>

void bl_chat_pick(bl_json v, const char *const *names, bl_json *out, int n)
{
    bl_json key, value;
    for (int i = 0; i < n; i++)
        out[i] = (bl_json){0};
    for (bl_json_iter it = bl_json_begin(v); bl_json_next(&it, &key, &value);) {
        if (key.kind == BL_JSON_NONE)
            return;
        for (int i = 0; i < n; i++)
            if (bl_json_equals(key, names[i]))
                out[i] = value.kind == BL_JSON_NULL ? (bl_json){0} : value;
    }
}

bl_status bl_chat_fail(bl_error *err, const char *key, const char *what)
{
    return bl_fail(err, BL_E_INPUT, NULL, key, -1, "%s", what);
}

bl_chat_options bl_chat_defaults(void)
{
    return (bl_chat_options){.effort = BL_CHAT_EFFORT_DEFAULT, .drop_thinking = true};
}

bl_status bl_chat_effort(bl_json v, const char *key, int *effort, bl_error *err)
{
    static const struct {
        const char *name;
        int effort;
    } levels[] = {{"none", 0},  {"minimal", 50}, {"low", 50},  {"medium", 75},
                  {"high", 75}, {"xhigh", 75},   {"max", 100}, {"ultra", 100}};
    uint64_t n;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (bl_json_equals(v, levels[i].name)) {
            *effort = levels[i].effort;
            return BL_OK;
        }
    if (!bl_json_u64(v, &n) || n < 1 || n > 100)
        return bl_chat_fail(err, key, "must be none, minimal, low, medium, high, xhigh, max, ultra or a whole number from 1 to 100");
    *effort = (int)n;
    return BL_OK;
}

/* A switch that is absent (*set stays), true or false. */
static bl_status read_switch(bl_json v, const char *key, bool *value, bool *set, bl_error *err)
{
    if (v.kind == BL_JSON_NONE)
        return BL_OK;
    if (!bl_json_bool(v, value))
        return bl_chat_fail(err, key, "must be true or false");
    if (set)
        *set = true;
    return BL_OK;
}

/* The official API's thinking: {"type": "enabled"}; a plain true or false as well. */
static bl_status read_thinking(bl_json v, bool *on, bool *set, bl_error *err)
{
    if (v.kind != BL_JSON_OBJECT)
        return read_switch(v, "thinking", on, set, err);
    bl_json type = bl_json_get(v, "type");
    *on = bl_json_equals(type, "enabled");
    if (!*on && !bl_json_equals(type, "disabled"))
        return bl_chat_fail(err, "thinking.type", "must be enabled or disabled");
    *set = true;
    return BL_OK;
}

/* Efforts in rising order of precedence; 0 = none was asked for. */
static bl_status read_efforts(const bl_json *from, const char *const *keys, int n, int *effort, bool *set, bl_error *err)
{
    for (int i = 0; i < n; i++)
        if (from[i].kind != BL_JSON_NONE) {
            BL_TRY(bl_chat_effort(from[i], keys[i], effort, err));
            *set = true;
        }
    return BL_OK;
}

bl_status bl_chat_options_read(bl_json request, bl_chat_options *o, bl_error *err)
{
    enum { EFFORT, REASONING, THINKING, ENABLE, KWARGS, TOOLS, CHOICE, TASK, CONTINUE, KEYS };
    static const char *const names[KEYS] = {"reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs",
                                            "tools", "tool_choice", "task", "continue_final_message"};
    enum { K_THINKING, K_ENABLE, K_DROP, K_EFFORT, K_KEYS };
    static const char *const kwargs_names[K_KEYS] = {"thinking", "enable_thinking", "drop_thinking", "reasoning_effort"};
    static const char *const reasoning_names[2] = {"enabled", "effort"};
    static const char *const effort_keys[3] = {"reasoning.effort", "reasoning_effort", "chat_template_kwargs.reasoning_effort"};
    bl_json m[KEYS], kwargs[K_KEYS], reasoning[2];
    bool on = o->thinking, set = false, effort_set = false;
    int effort = 0;
    bl_chat_pick(request, names, m, KEYS);
    if (m[REASONING].kind != BL_JSON_NONE && m[REASONING].kind != BL_JSON_OBJECT)
        return bl_chat_fail(err, "reasoning", "must be an object");
    if (m[KWARGS].kind != BL_JSON_NONE && m[KWARGS].kind != BL_JSON_OBJECT)
        return bl_chat_fail(err, "chat_template_kwargs", "must be an object");
    bl_chat_pick(m[REASONING], reasoning_names, reasoning, 2);
    bl_chat_pick(m[KWARGS], kwargs_names, kwargs, K_KEYS);

    const bl_json efforts[3] = {reasoning[1], m[EFFORT], kwargs[K_EFFORT]};
    BL_TRY(read_efforts(efforts, effort_keys, 3, &effort, &effort_set, err));
    BL_TRY(read_switch(reasoning[0], "reasoning.enabled", &on, &set, err));
    BL_TRY(read_thinking(m[THINKING], &on, &set, err));
    BL_TRY(read_switch(m[ENABLE], "enable_thinking", &on, &set, err));
    BL_TRY(read_switch(kwargs[K_ENABLE], "chat_template_kwargs.enable_thinking", &on, &set, err));
    BL_TRY(read_switch(kwargs[K_THINKING], "chat_template_kwargs.thinking", &on, &set, err));
    BL_TRY(read_switch(kwargs[K_DROP], "chat_template_kwargs.drop_thinking", &o->drop_thinking, NULL, err));
    BL_TRY(read_switch(m[CONTINUE], "continue_final_message", &o->continue_final_message, NULL, err));
    if (!set && effort_set && effort == 0)
        on = false;
    o->thinking = on;
    if (effort > 0)
        o->effort = effort;
    o->tools = bl_json_equals(m[CHOICE], "none") ? (bl_json){0} : m[TOOLS];
    o->task = m[TASK];
    return BL_OK;
}
