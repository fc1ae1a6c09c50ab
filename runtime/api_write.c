/* Generated output as JSON: one whole answer, or events. */
#include "runtime/api_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces of JSON */

static void put_string(bl_text *t, const char *s)
{
    bl_text_quote(t, s, strlen(s));
}

/* JSON has no infinities; clients know this number for "impossible". */
static void put_logprob(bl_text *t, float v)
{
    bl_text_printf(t, "%.9g", isfinite(v) ? (double)v : -9999.0);
}

static bool is_chat(const api_call *c)
{
    return c->params.route == API_CHAT;
}

static void put_usage(bl_text *t, const api_call *c)
{
    int64_t generated = 0, reasoning = 0;
    for (int i = 0; i < c->count; i++) {
        generated += c->choices[i].generated;
        reasoning += c->choices[i].reasoning_tokens;
    }
    bl_text_printf(t, "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"reasoning_tokens\":%lld,",
                   (long long)c->prompt_tokens, (long long)generated, (long long)(c->prompt_tokens + generated), (long long)reasoning);
    bl_text_printf(t, "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
                   (long long)reasoning);
}

/* ---- log-probabilities */

/* A token's text: its bytes with what is no UTF-8 replaced. Returns the number of characters. */
static int64_t put_token(bl_text *t, const bl_tokenizer *tokenizer, int id)
{
    bl_text text = {0};
    bl_detok d = {0};
    size_t n;
    int64_t characters = 0;
    const char *bytes = bl_tokenizer_bytes(tokenizer, id, &n);
    if (bytes)
        bl_detok_bytes(&d, bytes, n, &text);
    bl_detok_end(&d, &text);
    bl_text_quote(t, text.p ? text.p : "", text.n);
    for (size_t i = 0; i < text.n; i++)
        characters += ((unsigned char)text.p[i] & 0xc0) != 0x80;
    t->failed = t->failed || text.failed;
    free(text.p);
    return characters;
}

static void put_token_entry(bl_text *t, const bl_tokenizer *tokenizer, int id, float logprob)
{
    size_t n = 0;
    const char *bytes = bl_tokenizer_bytes(tokenizer, id, &n);
    bl_text_puts(t, "{\"token\":");
    put_token(t, tokenizer, id);
    bl_text_puts(t, ",\"bytes\":[");
    for (size_t i = 0; bytes && i < n; i++)
        bl_text_printf(t, i ? ",%d" : "%d", (unsigned char)bytes[i]);
    bl_text_puts(t, "],\"logprob\":");
    put_logprob(t, logprob);
}

static void put_chat_logprobs(bl_text *t, const api_choice *c)
{
    const bl_tokenizer *tokenizer = c->call->server->tokenizer;
    bl_text_puts(t, "{\"content\":[");
    for (size_t i = 0; i < c->token_count; i++) {
        const bl_output_token *o = &c->tokens[i];
        bl_text_puts(t, i ? "," : "");
        put_token_entry(t, tokenizer, o->id, o->logprob);
        bl_text_puts(t, ",\"top_logprobs\":[");
        for (int k = 0; k < o->top_count; k++) {
            bl_text_puts(t, k ? "," : "");
            put_token_entry(t, tokenizer, o->top[k], o->top_logprob[k]);
            bl_text_puts(t, "}");
        }
        bl_text_puts(t, "]}");
    }
    bl_text_puts(t, "]}");
}

/* {"text": logprob, ...}: texts that several tokens share (parts of characters) have the likeliest one's. */
static void put_top(bl_text *t, const bl_tokenizer *tokenizer, const bl_output_token *o)
{
    size_t from[BL_MAX_TOP_LOGPROBS], length[BL_MAX_TOP_LOGPROBS];
    int kept = 0;
    bl_text_puts(t, "{");
    for (int k = 0; k < o->top_count; k++) {
        size_t begin = t->n;
        bool again = false;
        bl_text_puts(t, kept ? "," : "");
        from[kept] = t->n;
        put_token(t, tokenizer, o->top[k]);
        if (t->failed)
            return;
        length[kept] = t->n - from[kept];
        for (int i = 0; i < kept && !again; i++)
            again = length[i] == length[kept] && memcmp(t->p + from[i], t->p + from[kept], length[i]) == 0;
        if (again) {
            t->n = begin;
            continue;
        }
        kept++;
        bl_text_puts(t, ":");
        put_logprob(t, o->top_logprob[k]);
    }
    bl_text_puts(t, "}");
}

static void put_text_logprobs(bl_text *t, api_choice *c)
{
    const bl_tokenizer *tokenizer = c->call->server->tokenizer;
    bl_text offsets = {0};
    bl_text_puts(t, "{\"tokens\":[");
    for (size_t i = 0; i < c->token_count; i++) {
        bl_text_printf(&offsets, i ? ",%lld" : "%lld", (long long)c->text_offset);
        bl_text_puts(t, i ? "," : "");
        c->text_offset += put_token(t, tokenizer, c->tokens[i].id);
    }
    bl_text_puts(t, "],\"token_logprobs\":[");
    for (size_t i = 0; i < c->token_count; i++) {
        bl_text_puts(t, i ? "," : "");
        put_logprob(t, c->tokens[i].logprob);
    }
    bl_text_puts(t, "],\"text_offset\":[");
    bl_text_add(t, offsets.p, offsets.n);
    bl_text_puts(t, "],\"top_logprobs\":");
    t->failed = t->failed || offsets.failed;
    free(offsets.p);
    if (c->call->params.top_logprobs == 0) {
        bl_text_puts(t, "null}");
        return;
    }
    bl_text_puts(t, "[");
    for (size_t i = 0; i < c->token_count; i++) {
        bl_text_puts(t, i ? "," : "");
        put_top(t, tokenizer, &c->tokens[i]);
    }
    bl_text_puts(t, "]}");
}

/* ,"logprobs":... for the tokens that have not been told. */
static void put_logprobs(bl_text *t, api_choice *c)
{
    bl_text_puts(t, ",\"logprobs\":");
    if (!c->call->params.logprobs || (c->call->params.stream && c->token_count == 0))
        bl_text_puts(t, "null");
    else if (is_chat(c->call))
        put_chat_logprobs(t, c);
    else
        put_text_logprobs(t, c);
    c->token_count = 0;
}

/* ---- how a choice ended */

static bool has_calls(const api_choice *c)
{
    return c->call->prompts.calls == BL_CALLS_PARSE && bl_parser_calls_ended(c->parser) > 0;
}

static const char *finish_reason(const api_choice *c)
{
    switch (c->why) {
    case BL_FINISH_LENGTH:
        return "length";
    case BL_FINISH_CANCELLED:
        return "abort";
    default:
        return has_calls(c) ? "tool_calls" : "stop";
    }
}

static void put_finish(bl_text *t, const api_choice *c)
{
    int stop = bl_parser_stop(c->parser);
    bl_text_printf(t, ",\"finish_reason\":\"%s\",\"matched_stop\":", finish_reason(c));
    if (c->why == BL_FINISH_STOP_TOKEN)
        bl_text_printf(t, "%d", c->last_token);
    else if (c->why == BL_FINISH_SINK && stop >= 0)
        put_string(t, c->call->params.stops[stop]);
    else
        bl_text_puts(t, "null");
}

/* The name of a call: {"id":...,"type":"function"[,"namespace":...],"function":{"name":...,"arguments":" and no more. */
static void put_call_begin(bl_text *t, const api_choice *c, const api_piece *p)
{
    const char *random = strchr(c->call->id, '-') + 1;
    bl_text_printf(t, "\"id\":\"call_%.16s%04x%04x\",\"type\":\"function\"", random,
                   (unsigned)c->index & 0xffff, (unsigned)p->call & 0xffff);
    if (p->space_n) {
        bl_text_puts(t, ",\"namespace\":");
        bl_text_quote(t, c->text.p + p->space_from, p->space_n);
    }
    bl_text_puts(t, ",\"function\":{\"name\":");
    bl_text_quote(t, c->text.p + p->from, p->n);
    bl_text_puts(t, ",\"arguments\":\"");
}

/* ---- whole */

static bool put_kind(bl_text *t, const api_choice *c, bl_event_kind kind)
{
    bool any = false;
    bl_text_puts(t, "\"");
    for (size_t i = 0; i < c->piece_count; i++)
        if (c->pieces[i].kind == kind) {
            bl_text_quote_body(t, c->text.p + c->pieces[i].from, c->pieces[i].n);
            any = any || c->pieces[i].n > 0;
        }
    bl_text_puts(t, "\"");
    return any;
}

/* Calls that ended; one that was cut off is left out, its arguments would not parse. */
static void put_calls(bl_text *t, const api_choice *c)
{
    int ended = bl_parser_calls_ended(c->parser);
    bool open = false;
    bl_text_puts(t, ",\"tool_calls\":[");
    for (size_t i = 0; i < c->piece_count; i++) {
        const api_piece *p = &c->pieces[i];
        if (p->call >= ended)
            continue;
        if (p->kind == BL_EVENT_CALL_BEGIN) {
            bl_text_printf(t, open ? "\"}},{\"index\":%d," : "{\"index\":%d,", p->call);
            put_call_begin(t, c, p);
            open = true;
        } else if (p->kind == BL_EVENT_CALL_ARGUMENTS) {
            bl_text_quote_body(t, c->text.p + p->from, p->n);
        }
    }
    bl_text_puts(t, open ? "\"}}]" : "]");
}

static void put_message(bl_text *t, const api_choice *c)
{
    const api_call *call = c->call;
    bl_text content = {0};
    bool any = put_kind(&content, c, BL_EVENT_ANSWER);
    bl_text_puts(t, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (any || !has_calls(c))
        bl_text_add(t, content.p, content.n);
    else
        bl_text_puts(t, "null");
    t->failed = t->failed || content.failed;
    free(content.p);
    if (call->prompts.start == BL_SECTION_REASONING && call->params.separate_reasoning && call->params.include_reasoning) {
        bl_text_puts(t, ",\"reasoning_content\":");
        put_kind(t, c, BL_EVENT_REASONING);
    }
    if (has_calls(c))
        put_calls(t, c);
    bl_text_puts(t, "}");
}

static void put_head(bl_text *t, const api_call *c)
{
    const char *object = !is_chat(c) ? "text_completion" : c->params.stream ? "chat.completion.chunk" : "chat.completion";
    bl_text_printf(t, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object, (long long)c->created);
    put_string(t, c->server->options.model_name);
}

void bl_api_write_whole(bl_text *t, api_call *c)
{
    put_head(t, c);
    bl_text_puts(t, ",\"choices\":[");
    for (int i = 0; i < c->count; i++) {
        api_choice *choice = &c->choices[i];
        bl_text_printf(t, i ? ",{\"index\":%d," : "{\"index\":%d,", i);
        if (is_chat(c)) {
            put_message(t, choice);
        } else {
            bl_text_puts(t, "\"text\":");
            put_kind(t, choice, BL_EVENT_ANSWER);
        }
        put_logprobs(t, choice);
        put_finish(t, choice);
        bl_text_puts(t, "}");
    }
    bl_text_puts(t, "],\"usage\":");
    put_usage(t, c);
    bl_text_puts(t, "}\n");
}

/* ---- events */

static void begin_event(bl_text *t, const api_call *c)
{
    bl_text_puts(t, "data: ");
    put_head(t, c);
    bl_text_puts(t, ",\"choices\":[");
}

static void end_event(bl_text *t, const api_call *c, bool usage)
{
    bl_text_puts(t, "]");
    if (usage || c->params.continuous_usage) {
        bl_text_puts(t, ",\"usage\":");
        put_usage(t, c);
    } else if (c->params.include_usage) {
        bl_text_puts(t, ",\"usage\":null");
    }
    bl_text_puts(t, "}\n\n");
}

static void put_delta(bl_text *t, const api_choice *c, const api_piece *p)
{
    const char *text = c->text.p + p->from;
    switch (p->kind) {
    case BL_EVENT_REASONING:
        bl_text_puts(t, "\"reasoning_content\":");
        bl_text_quote(t, text, p->n);
        break;
    case BL_EVENT_ANSWER:
        bl_text_puts(t, "\"content\":");
        bl_text_quote(t, text, p->n);
        break;
    case BL_EVENT_CALL_BEGIN:
        bl_text_printf(t, "\"tool_calls\":[{\"index\":%d,", p->call);
        put_call_begin(t, c, p);
        bl_text_puts(t, "\"}}]");
        break;
    default:
        bl_text_printf(t, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p->call);
        bl_text_quote(t, text, p->n);
        bl_text_puts(t, "}}]");
    }
}

/* One event of a choice: a piece, or (NULL) nothing but log-probabilities or the end. */
static void write_event(bl_text *t, api_choice *c, const api_piece *p, bool end)
{
    begin_event(t, c->call);
    bl_text_printf(t, "{\"index\":%d,", c->index);
    if (is_chat(c->call)) {
        bl_text_puts(t, "\"delta\":{");
        if (!c->role_sent)
            bl_text_puts(t, p ? "\"role\":\"assistant\"," : "\"role\":\"assistant\",\"content\":\"\"");
        c->role_sent = true;
        if (p)
            put_delta(t, c, p);
        bl_text_puts(t, "}");
    } else {
        bl_text_puts(t, "\"text\":");
        bl_text_quote(t, p ? c->text.p + p->from : "", p ? p->n : 0);
    }
    put_logprobs(t, c);
    if (end)
        put_finish(t, c);
    else
        bl_text_puts(t, ",\"finish_reason\":null");
    bl_text_puts(t, "}");
    end_event(t, c->call, false);
}

/* What is new of one choice. */
static void write_choice(bl_text *t, api_choice *c)
{
    const api_params *p = &c->call->params;
    bool ended = c->why != BL_FINISH_NONE;
    if (is_chat(c->call) && !c->role_sent)
        write_event(t, c, NULL, false);
    size_t ready = c->piece_count;
    if (ready == 1 && c->pieces[0].kind == BL_EVENT_REASONING && !p->stream_reasoning && !ended)
        ready = 0; /* reasoning goes out in one piece, when it is complete */
    for (size_t i = 0; i < ready; i++)
        write_event(t, c, &c->pieces[i], false);
    if (ready) {
        c->piece_count = 0;
        c->text.n = 0;
    }
    if (ended && !c->finish_sent) {
        write_event(t, c, NULL, true);
        c->finish_sent = true;
    } else if (c->token_count) { /* tokens whose text is held back */
        write_event(t, c, NULL, false);
    }
}

bool bl_api_write_events(bl_text *t, api_call *c)
{
    bool all = true;
    for (int i = 0; i < c->count; i++) {
        if (c->choices[i].why == BL_FINISH_FAILED) {
            bool memory = c->choices[i].status == BL_E_NOMEM;
            bl_text_puts(t, "data: {\"error\":");
            bl_api_write_error(t, memory ? 503 : 500, memory ? "the server is out of memory" : "internal error", NULL, NULL);
            bl_text_puts(t, "}\n\ndata: [DONE]\n\n");
            return false;
        }
        write_choice(t, &c->choices[i]);
        all = all && c->choices[i].finish_sent;
    }
    if (!all)
        return true;
    if (c->params.include_usage) {
        begin_event(t, c);
        end_event(t, c, true);
    }
    bl_text_puts(t, "data: [DONE]\n\n");
    return false;
}
