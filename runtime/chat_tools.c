/* Tools and calls in DSML, the markup the model reads and writes them in. */
#include "runtime/chat_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The wire format's wording; the line break at the end belongs to it. */
static const char tools_head[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<" CHAT_DSML
    " calls>\" block like the following:\n"
    "\n"
    "<" CHAT_DSML " calls>\n"
    "<" CHAT_DSML " invoke name=\"$TOOL_NAME\">\n"
    "<" CHAT_DSML " parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" CHAT_DSML " parameter>\n"
    "...\n"
    "</" CHAT_DSML " invoke>\n"
    "<" CHAT_DSML " invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</" CHAT_DSML " invoke>\n"
    "</" CHAT_DSML " calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), "
    "pass the value in JSON format and set `string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any "
    "tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";
static const char tools_tail[] =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

/* A tool's name as the model sees it, "namespace::name" or "name", written behind t->n. name_space is a string, an object with a name,
 * or NONE. */
static bl_status add_name(bl_text *t, bl_json name, bl_json name_space, const char *key, bl_error *err)
{
    if (name.kind != BL_JSON_STRING)
        return bl_chat_fail(err, key, "must be a string");
    if (name_space.kind == BL_JSON_OBJECT)
        name_space = bl_json_get(name_space, "name");
    if (name_space.kind != BL_JSON_NONE && name_space.kind != BL_JSON_STRING)
        return bl_chat_fail(err, key, "the tool's namespace must be a string or an object with a name");
    bl_text ns = {0}, full = {0};
    bl_text_unescaped(&ns, name_space);
    bl_text_unescaped(&full, name);
    bl_status s = full.failed || ns.failed ? BL_E_NOMEM : BL_OK;
    const char *mark = full.p ? memmem(full.p, full.n, "::", 2) : NULL;
    if (s == BL_OK && mark) {
        size_t prefix = (size_t)(mark - full.p);
        if (name_space.kind == BL_JSON_STRING && (ns.n != prefix || (ns.p && memcmp(ns.p, full.p, prefix) != 0)))
            s = bl_chat_fail(err, key, "the namespace in the name is not the tool's namespace");
        else if (memmem(mark + 2, full.n - prefix - 2, "::", 2))
            s = bl_chat_fail(err, key, "a name may hold :: only once");
    } else if (s == BL_OK && name_space.kind == BL_JSON_STRING) {
        if (ns.p && memmem(ns.p, ns.n, "::", 2))
            s = bl_chat_fail(err, key, "a namespace may not hold ::");
        bl_text_add(t, ns.p, ns.n);
        bl_text_puts(t, "::");
    }
    bl_text_add(t, full.p, full.n);
    free(ns.p);
    free(full.p);
    return s;
}

/* A description with that of its namespace before it. */
static bl_status add_description(bl_text *t, bl_json description, bl_json name_space, const char *key, bl_error *err)
{
    if (description.kind != BL_JSON_STRING && description.kind != BL_JSON_NULL && description.kind != BL_JSON_NONE)
        return bl_chat_fail(err, key, "the description must be a string");
    bl_text both = {0};
    bl_text_unescaped(&both, name_space);
    bl_text_puts(&both, "\n");
    bl_text_unescaped(&both, description);
    bl_text_quote(t, both.p, both.n);
    t->failed = t->failed || both.failed;
    free(both.p);
    return BL_OK;
}

/* One line: the function object with its full name in place of the bare one. */
static bl_status add_function(bl_text *t, bl_json tool, const char *key, bl_error *err)
{
    bl_json function = bl_json_get(tool, "function"), name_space = bl_json_get(tool, "namespace"), k, v;
    if (function.kind != BL_JSON_OBJECT)
        return bl_chat_fail(err, key, "must be an object with a function");
    bl_json name = bl_json_get(function, "name");
    if (name_space.kind == BL_JSON_NONE || name_space.kind == BL_JSON_NULL)
        name_space = bl_json_get(function, "namespace");
    if (name_space.kind == BL_JSON_NULL)
        name_space = (bl_json){0};
    bl_json about = bl_json_get(name_space, "description");
    bool described = about.kind == BL_JSON_STRING && about.n > 2, first = true;
    bl_text_puts(t, "{");
    for (bl_json_iter it = bl_json_begin(function); bl_json_next(&it, &k, &v);) {
        if (bl_json_equals(k, "namespace"))
            continue;
        bl_text_puts(t, first ? "" : ", ");
        first = false;
        bl_text_json(t, k);
        bl_text_puts(t, ": ");
        if (bl_json_equals(k, "name")) {
            bl_text full = {0};
            bl_status s = add_name(&full, name, name_space, key, err);
            bl_text_quote(t, full.p, full.n);
            free(full.p);
            BL_TRY(s);
        } else if (described && bl_json_equals(k, "description")) {
            BL_TRY(add_description(t, v, about, key, err));
        } else {
            bl_text_json(t, v);
        }
    }
    if (name.kind == BL_JSON_NONE)
        return bl_chat_fail(err, key, "the function has no name");
    if (described && bl_json_get(function, "description").kind == BL_JSON_NONE) {
        bl_text_puts(t, ", \"description\": ");
        BL_TRY(add_description(t, (bl_json){0}, about, key, err));
    }
    bl_text_puts(t, "}");
    return BL_OK;
}

bl_status bl_chat_add_tools(bl_text *t, bl_json tools, const char *where, bl_error *err)
{
    bl_json k, tool;
    size_t i = 0;
    bl_text_puts(t, tools_head);
    for (bl_json_iter it = bl_json_begin(tools); bl_json_next(&it, &k, &tool); i++) {
        char key[CHAT_KEY];
        snprintf(key, sizeof key, "%s[%zu].function.name", where, i);
        bl_text_puts(t, i ? "\n" : "");
        BL_TRY(add_function(t, tool, key, err));
    }
    bl_text_puts(t, tools_tail);
    return BL_OK;
}

/* Arguments arrive as an object, or as its JSON text, sometimes quoted once more. Where text has to be unescaped for that it goes to
 * held, to be freed by the caller; NONE when it is no object. */
static bl_json arguments_object(bl_json v, bl_text held[2])
{
    static const bl_json_limits limits = {.max_depth = 512, .last_duplicate_wins = true};
    for (int i = 0; i < 2 && v.kind == BL_JSON_STRING; i++) {
        bl_text_unescaped(&held[i], v);
        if (held[i].failed || bl_json_parse(held[i].p, held[i].n, &limits, NULL, &v, NULL) != BL_OK)
            return (bl_json){0};
    }
    return v.kind == BL_JSON_OBJECT ? v : (bl_json){0};
}

static void add_parameter(bl_text *t, const char *name, size_t n, bl_json value)
{
    bl_text_puts(t, "<" CHAT_DSML " parameter name=\"");
    bl_text_add(t, name, n);
    bl_text_puts(t, value.kind == BL_JSON_STRING ? "\" string=\"true\">" : "\" string=\"false\">");
    if (value.kind == BL_JSON_STRING)
        bl_text_unescaped(t, value);
    else
        bl_text_json(t, value);
    bl_text_puts(t, "</" CHAT_DSML " parameter>");
}

static void add_arguments(bl_text *t, bl_json arguments)
{
    bl_text held[2] = {{0}, {0}};
    bl_json object = arguments_object(arguments, held), key, value;
    if (object.kind == BL_JSON_NONE)
        add_parameter(t, "arguments", strlen("arguments"), arguments);
    bool first = true;
    for (bl_json_iter it = bl_json_begin(object); bl_json_next(&it, &key, &value); first = false) {
        bl_text name = {0};
        bl_text_unescaped(&name, key);
        bl_text_puts(t, first ? "" : "\n");
        add_parameter(t, name.p, name.n, value);
        t->failed = t->failed || name.failed;
        free(name.p);
    }
    t->failed = t->failed || held[0].failed || held[1].failed;
    free(held[0].p);
    free(held[1].p);
}

static bl_status add_call(bl_text *t, bl_json call, const char *where, bl_error *err)
{
    static const char *const names[] = {"function", "namespace"};
    static const char *const function_names[] = {"name", "namespace"};
    bl_json m[2], f[2];
    char key[CHAT_KEY + 32];
    bl_chat_pick(call, names, m, 2);
    bl_chat_pick(m[0], function_names, f, 2);
    snprintf(key, sizeof key, "%s.function.arguments", where);
    bl_json arguments = bl_json_get(m[0], "arguments");
    if (arguments.kind == BL_JSON_NONE)
        return bl_chat_fail(err, key, "is missing");
    snprintf(key, sizeof key, "%s.function.name", where);
    bl_json name_space = m[1].kind == BL_JSON_NONE || bl_json_equals(m[1], "") ? f[1] : m[1];
    if (bl_json_equals(name_space, ""))
        name_space = (bl_json){0};
    bl_text_puts(t, "<" CHAT_DSML " invoke name=\"");
    BL_TRY(add_name(t, f[0], name_space, key, err));
    bl_text_puts(t, "\">\n");
    add_arguments(t, arguments);
    bl_text_puts(t, "\n</" CHAT_DSML " invoke>");
    return BL_OK;
}

bl_status bl_chat_add_calls(bl_text *t, bl_json calls, const char *where, bl_error *err)
{
    bl_json k, call;
    size_t i = 0;
    bl_text_puts(t, "\n\n<" CHAT_DSML " calls>\n");
    for (bl_json_iter it = bl_json_begin(calls); bl_json_next(&it, &k, &call); i++) {
        char key[CHAT_KEY];
        snprintf(key, sizeof key, "%s[%zu]", where, i);
        bl_text_puts(t, i ? "\n" : "");
        BL_TRY(add_call(t, call, key, err));
    }
    bl_text_puts(t, "\n</" CHAT_DSML " calls>");
    return BL_OK;
}
