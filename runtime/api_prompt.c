/* From messages or a prompt to ids. */
#include "runtime/api_impl.h"

#include <stdlib.h>
#include <string.h>

static bl_status bad(bl_error *err, const char *key, const char *what)
{
    return bl_fail(err, BL_E_INPUT, NULL, key, -1, "%s", what);
}

/* ---- chat */

/* Did an earlier turn call tools, or does a system message bring its own? */
static void look_for_tools(bl_json messages, bool *called, bool *brought)
{
    bl_json key, m;
    for (bl_json_iter it = bl_json_begin(messages); bl_json_next(&it, &key, &m);) {
        *called = *called || bl_json_count(bl_json_get(m, "tool_calls")) > 0;
        *brought = *brought || (bl_json_equals(bl_json_get(m, "role"), "system") && bl_json_count(bl_json_get(m, "tools")) > 0);
    }
}

/* Without tools a model that has seen calls may call again: such a block is no answer, and no call that anyone expects. */
static bl_call_mode call_mode(const api_params *p)
{
    bool called = false, brought = false;
    look_for_tools(p->messages, &called, &brought);
    if (p->calls_allowed || brought)
        return BL_CALLS_PARSE;
    return called ? BL_CALLS_DROP : BL_CALLS_TEXT;
}

bl_status bl_api_encode_chat(const bl_server *s, const api_params *p, bl_ids *out, bl_section *start, bl_error *err)
{
    char *text;
    size_t n;
    bl_chat_end end;
    if (p->messages.kind == BL_JSON_NONE)
        return bad(err, "messages", "is missing");
    BL_TRY(bl_chat_encode(p->messages, &p->chat, &text, &n, &end, err));
    bl_status status = bl_tokenizer_encode(s->tokenizer, text, n, true, out, err);
    free(text);
    BL_TRY(status);
    *start = end == BL_CHAT_END_THINK ? BL_SECTION_REASONING : end == BL_CHAT_END_ANSWER ? BL_SECTION_ANSWER : BL_SECTION_PLAIN;
    if (end == BL_CHAT_END_CLOSED)
        return bad(err, "messages", "must end with a user, tool or later system message, or be continued with continue_final_message");
    return BL_OK;
}

/* ---- completions: a string, a list of strings, a list of ids, or a list of lists of ids */

static bl_status add_text(const bl_server *s, bl_json v, bl_ids *out, bl_error *err)
{
    size_t n = bl_json_string(v, NULL, 0);
    char *text = malloc(n + 1);
    if (!text)
        return bl_fail(err, BL_E_NOMEM, NULL, "prompt", -1, "no memory");
    bl_json_string(v, text, n + 1);
    bl_status status = bl_tokenizer_encode(s->tokenizer, text, n, true, out, err);
    free(text);
    return status;
}

static bl_status add_ids(const bl_server *s, bl_json v, bl_ids *out, bl_error *err)
{
    bl_json key, id;
    size_t n = bl_json_count(v);
    out->ids = malloc((n + 1) * sizeof *out->ids);
    if (!out->ids)
        return bl_fail(err, BL_E_NOMEM, NULL, "prompt", -1, "no memory");
    out->capacity = n + 1;
    for (bl_json_iter it = bl_json_begin(v); bl_json_next(&it, &key, &id);) {
        uint64_t u;
        if (!bl_json_u64(id, &u) || u >= (uint64_t)s->vocab)
            return bl_fail(err, BL_E_INPUT, NULL, "prompt", -1, "ids must be whole numbers from 0 to %d", s->vocab - 1);
        out->ids[out->count++] = (int32_t)u;
    }
    return BL_OK;
}

static bl_status reserve(api_prompts *out, size_t n, bl_error *err)
{
    if (n == 0)
        return bad(err, "prompt", "must not be empty");
    if (n > API_MAX_CHOICES)
        return bl_fail(err, BL_E_INPUT, NULL, "prompt", -1, "may hold at most %d prompts", API_MAX_CHOICES);
    out->ids = calloc(n, sizeof *out->ids);
    return out->ids ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, "prompt", -1, "no memory");
}

bl_status bl_api_encode_text(const bl_server *s, bl_json prompt, api_prompts *out, bl_error *err)
{
    bl_json key, first = {0}, v;
    if (prompt.kind == BL_JSON_NONE)
        return bad(err, "prompt", "is missing");
    bl_json_iter it = bl_json_begin(prompt);
    if (prompt.kind == BL_JSON_ARRAY && !bl_json_next(&it, &key, &first))
        return bad(err, "prompt", "must not be empty");
    if (prompt.kind == BL_JSON_STRING || first.kind == BL_JSON_NUMBER) {
        BL_TRY(reserve(out, 1, err));
        out->count = 1;
        return prompt.kind == BL_JSON_STRING ? add_text(s, prompt, &out->ids[0], err) : add_ids(s, prompt, &out->ids[0], err);
    }
    if (first.kind != BL_JSON_STRING && first.kind != BL_JSON_ARRAY)
        return bad(err, "prompt", "must be a string, a list of strings, a list of token ids or a list of such lists");
    BL_TRY(reserve(out, bl_json_count(prompt), err));
    for (it = bl_json_begin(prompt); bl_json_next(&it, &key, &v);) {
        if (v.kind != first.kind)
            return bad(err, "prompt", "must not mix strings and lists");
        bl_ids *ids = &out->ids[out->count++];
        BL_TRY(v.kind == BL_JSON_STRING ? add_text(s, v, ids, err) : add_ids(s, v, ids, err));
    }
    return BL_OK;
}

/* ---- both */

static bl_status check_length(const bl_server *s, const api_params *p, const bl_ids *ids, bl_error *err)
{
    const char *key = p->route == API_CHAT ? "messages" : "prompt";
    int64_t n = (int64_t)ids->count;
    if (n == 0)
        return bad(err, key, "holds no tokens");
    if (n >= s->context)
        return bl_fail(err, BL_E_INPUT, NULL, key, -1, "the prompt has %lld tokens; with at least one more they must fit the context of %lld",
                       (long long)n, (long long)s->context);
    if (p->max_tokens > s->context - n)
        return bl_fail(err, BL_E_INPUT, NULL, "max_tokens", -1,
                       "%lld tokens behind a prompt of %lld do not fit the context of %lld", (long long)p->max_tokens, (long long)n,
                       (long long)s->context);
    for (size_t i = 0; i < ids->count; i++)
        if (ids->ids[i] >= s->vocab) /* a tokenizer may know more than the model */
            return bl_fail(err, BL_E_INPUT, NULL, key, -1, "token %d is outside of the model's vocabulary", (int)ids->ids[i]);
    return BL_OK;
}

bl_status bl_api_read_prompts(const bl_server *s, const api_params *p, api_prompts *out, bl_error *err)
{
    *out = (api_prompts){.start = BL_SECTION_PLAIN};
    if (p->route == API_CHAT) {
        BL_TRY(reserve(out, 1, err));
        out->count = 1;
        BL_TRY(bl_api_encode_chat(s, p, &out->ids[0], &out->start, err));
        out->calls = call_mode(p);
    } else {
        BL_TRY(bl_api_encode_text(s, p->prompt, out, err));
    }
    if ((int64_t)out->count * p->n > API_MAX_CHOICES)
        return bl_fail(err, BL_E_INPUT, NULL, "n", -1, "at most %d answers can be made at once", API_MAX_CHOICES);
    for (int i = 0; i < out->count; i++)
        BL_TRY(check_length(s, p, &out->ids[i], err));
    return BL_OK;
}

void bl_api_free_prompts(api_prompts *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->ids[i].ids);
    free(p->ids);
    *p = (api_prompts){0};
}
