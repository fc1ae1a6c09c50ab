/* Generation for one request: its choices run as jobs; tokens become pieces of output on the engine thread, pieces become events or one
 * answer. */
#include "runtime/api_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- from the parser */

static void add_piece(api_choice *c, bl_event_kind kind, int call, const char *text, size_t n)
{
    api_piece *last = c->piece_count ? &c->pieces[c->piece_count - 1] : NULL;
    bool text_kind = kind == BL_EVENT_REASONING || kind == BL_EVENT_ANSWER || kind == BL_EVENT_CALL_ARGUMENTS;
    if (last && text_kind && last->kind == kind && last->call == call) {
        last->n += n;
    } else {
        api_piece *grown = bl_grow(c->pieces, &c->piece_cap, c->piece_count, sizeof *grown);
        if (!grown) {
            c->failed = true;
            return;
        }
        c->pieces = grown;
        c->pieces[c->piece_count++] = (api_piece){.kind = kind, .call = call, .from = c->text.n, .n = n};
    }
    bl_text_add(&c->text, text, n);
}

/* Reasoning inside the answer is closed by the model's own mark. */
static void close_inline_reasoning(api_choice *c)
{
    const api_params *p = &c->call->params;
    if (c->answer_begun || c->call->prompts.start != BL_SECTION_REASONING || p->separate_reasoning || !p->include_reasoning)
        return;
    c->answer_begun = true;
    add_piece(c, BL_EVENT_ANSWER, 0, "</think>", 8);
}

static void on_event(void *arg, const bl_event *e)
{
    api_choice *c = arg;
    const api_params *p = &c->call->params;
    if (e->kind == BL_EVENT_REASONING) {
        if (p->include_reasoning)
            add_piece(c, p->separate_reasoning ? BL_EVENT_REASONING : BL_EVENT_ANSWER, 0, e->text, e->n);
        return;
    }
    close_inline_reasoning(c);
    if (e->kind == BL_EVENT_CALL_END)
        return;
    add_piece(c, e->kind, e->kind == BL_EVENT_ANSWER ? 0 : e->call, e->text, e->n);
    if (e->kind == BL_EVENT_CALL_BEGIN && e->name_space && !c->failed) {
        api_piece *last = &c->pieces[c->piece_count - 1];
        last->space_from = c->text.n;
        last->space_n = e->name_space_n;
        bl_text_add(&c->text, e->name_space, e->name_space_n);
    }
}

/* ---- from the scheduler */

static bool is_stop_id(const api_params *p, int id)
{
    for (int i = 0; i < p->stop_id_count; i++)
        if (p->stop_ids[i] == id)
            return true;
    return false;
}

static void keep_token(api_choice *c, const bl_output_token *t)
{
    bl_output_token *grown = bl_grow(c->tokens, &c->token_cap, c->token_count, sizeof *grown);
    if (!grown) {
        c->failed = true;
        return;
    }
    c->tokens = grown;
    c->tokens[c->token_count++] = *t;
}

static bool on_token(void *arg, const bl_output_token *t)
{
    api_choice *c = arg;
    api_call *call = c->call;
    pthread_mutex_lock(&call->lock);
    c->generated++;
    c->last_token = t->id;
    if (call->params.logprobs)
        keep_token(c, t);
    if (!is_stop_id(&call->params, t->id) && bl_parser_push(c->parser, t->id) != BL_OK)
        c->failed = true;
    bl_section section = bl_parser_section(c->parser);
    if (section == BL_SECTION_REASONING)
        c->reasoning_tokens++;
    else if (call->prompts.start == BL_SECTION_REASONING)
        close_inline_reasoning(c);
    c->failed = c->failed || c->text.failed;
    bool more = section != BL_SECTION_DONE && !c->failed && (call->params.parallel_calls || bl_parser_calls_ended(c->parser) == 0);
    pthread_mutex_unlock(&call->lock);
    if (call->params.stream)
        bl_exchange_wake(call->exchange);
    return more;
}

/* The client closed the connection, or at least its own side of it. */
static void fail_gone(bl_exchange *x)
{
    bl_api_fail(x, 503, "the request was ended: the client closed its side of the connection", NULL, "aborted");
}

static void answer_whole(api_call *call, bool gone)
{
    bl_text body = {0};
    for (int i = 0; i < call->count; i++) {
        const api_choice *c = &call->choices[i];
        if (c->why == BL_FINISH_FAILED) {
            bl_api_fail_status(call->exchange, c->status, NULL);
            return;
        }
        if (c->why == BL_FINISH_CANCELLED && gone) {
            fail_gone(call->exchange);
            return;
        }
        if (c->why == BL_FINISH_CANCELLED) {
            bl_api_fail(call->exchange, 503, "the request was ended: the server is shutting down", NULL, "aborted");
            return;
        }
    }
    bl_api_write_whole(&body, call);
    bl_exchange_answer(call->exchange, 200, API_JSON, &body, NULL, NULL);
}

static void on_finish(void *arg, bl_finish why, const bl_error *err)
{
    api_choice *c = arg;
    api_call *call = c->call;
    bl_exchange *x = call->exchange;
    pthread_mutex_lock(&call->lock);
    if (bl_parser_finish(c->parser) != BL_OK || c->text.failed)
        c->failed = true;
    c->status = err ? err->code : BL_OK;
    if (c->failed && why != BL_FINISH_CANCELLED) {
        why = BL_FINISH_FAILED;
        c->status = BL_E_NOMEM;
    }
    c->why = why;
    bool last = --call->running == 0, gone = call->gone;
    pthread_mutex_unlock(&call->lock);
    if (call->params.stream)
        bl_exchange_wake(x);
    else if (last)
        answer_whole(call, gone);
    bl_exchange_unref(x); /* the call may be gone now */
}

/* ---- from the exchange */

/* Locked. */
static void cancel_all(api_call *call)
{
    for (int i = 0; call->submitted && i < call->count; i++)
        if (call->choices[i].why == BL_FINISH_NONE)
            bl_scheduler_cancel(call->server->scheduler, &call->choices[i].job);
}

static void on_gone(void *arg)
{
    api_call *call = arg;
    pthread_mutex_lock(&call->lock);
    call->gone = true;
    cancel_all(call);
    pthread_mutex_unlock(&call->lock);
}

static void on_release(void *arg)
{
    api_call *call = arg;
    for (int i = 0; i < call->count; i++) {
        bl_parser_destroy(&call->choices[i].parser);
        free(call->choices[i].text.p);
        free(call->choices[i].pieces);
        free(call->choices[i].tokens);
    }
    free(call->choices);
    bl_api_free_prompts(&call->prompts);
    bl_arena_reset(&call->arena);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

static bool on_pull(void *arg, bl_text *out)
{
    api_call *call = arg;
    pthread_mutex_lock(&call->lock);
    bool more = bl_api_write_events(out, call);
    if (!more)
        cancel_all(call); /* one choice failed: nobody hears of the others */
    pthread_mutex_unlock(&call->lock);
    return more;
}

/* ---- starting */

static void make_id(api_call *call)
{
    unsigned char r[16] = {0};
    const char *prefix = call->params.route == API_CHAT ? "chatcmpl-" : "cmpl-";
    size_t n = strlen(prefix);
    if (getrandom(r, sizeof r, 0) < 0)
        r[0] = 1; /* ids need not be secret */
    memcpy(call->id, prefix, n + 1);
    for (int i = 0; i < 16; i++)
        snprintf(call->id + n + 2 * i, 3, "%02x", r[i]);
    if (!call->params.seeded)
        memcpy(&call->params.sampling.seed, r, sizeof call->params.sampling.seed);
}

/* The prompt's text as the first of the output. */
static bl_status echo(api_choice *c, const bl_ids *prompt, bl_error *err)
{
    bl_detok d = {0};
    bl_text text = {0};
    bl_status status = BL_OK;
    for (size_t i = 0; status == BL_OK && i < prompt->count; i++)
        status = bl_detok_push(&d, c->call->server->tokenizer, prompt->ids[i], &text.p, &text.n, &text.cap);
    if (status == BL_OK)
        status = bl_detok_finish(&d, &text.p, &text.n, &text.cap);
    if (status == BL_OK && text.n)
        add_piece(c, BL_EVENT_ANSWER, 0, text.p, text.n);
    free(text.p);
    return status == BL_OK ? BL_OK : bl_fail(err, status, NULL, "echo", -1, "no memory");
}

static bl_status make_choices(api_call *call, double arrived, bl_error *err)
{
    const bl_server *s = call->server;
    const api_params *p = &call->params;
    uint64_t echoed = 0;
    call->choices = calloc((size_t)call->prompts.count * (size_t)p->n, sizeof *call->choices);
    if (!call->choices)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for the request");
    for (int i = 0; i < call->prompts.count * p->n; i++) {
        const bl_ids *ids = &call->prompts.ids[i / p->n];
        api_choice *c = &call->choices[call->count++];
        c->call = call;
        c->index = i;
        c->job = (bl_job){.prompt = ids->ids,
                          .prompt_count = (int64_t)ids->count,
                          .max_tokens = p->max_tokens ? p->max_tokens : s->context - (int64_t)ids->count,
                          .adjust = p->adjust,
                          .min_tokens = p->min_tokens,
                          .sampling = p->sampling,
                          .stop_ids = p->stop_ids,
                          .stop_count = p->stop_id_count,
                          .logprobs = p->logprobs,
                          .top_logprobs = p->top_logprobs,
                          .arrived = arrived,
                          .arg = c,
                          .token = on_token,
                          .finish = on_finish};
        c->job.sampling.seed += (uint64_t)(i % p->n); /* else all answers to a prompt would be one */
        const bl_parser_options o = {.tokenizer = s->tokenizer,
                                     .start = call->prompts.start,
                                     .calls = call->prompts.calls,
                                     .stops = p->stops,
                                     .stop_count = p->stop_count,
                                     .stop_in_reasoning = p->stop_in_reasoning,
                                     .keep_special = p->keep_special,
                                     .event = on_event,
                                     .arg = c};
        BL_TRY(bl_parser_create(&c->parser, &o, err));
        if (p->echo)
            BL_TRY(echo(c, ids, err));
        echoed += c->text.n;
        if (echoed > s->options.max_body)
            return bl_fail(err, BL_E_INPUT, NULL, "echo", -1, "would repeat more than %llu bytes", (unsigned long long)s->options.max_body);
    }
    for (int i = 0; i < call->prompts.count; i++)
        call->prompt_tokens += (int64_t)call->prompts.ids[i].count;
    return BL_OK;
}

/* A client that is gone is not served (*gone); else the jobs go to the scheduler, each holding the exchange. */
static bl_submit submit(api_call *call, bool *gone)
{
    bl_job *jobs[API_MAX_CHOICES];
    for (int i = 0; i < call->count; i++) {
        jobs[i] = &call->choices[i].job;
        bl_exchange_ref(call->exchange);
    }
    pthread_mutex_lock(&call->lock);
    call->running = call->count;
    *gone = call->gone;
    bl_submit result = call->gone ? BL_SUBMIT_STOPPED : bl_scheduler_submit(call->server->scheduler, jobs, call->count);
    call->submitted = result == BL_SUBMIT_TAKEN;
    pthread_mutex_unlock(&call->lock);
    for (int i = 0; result != BL_SUBMIT_TAKEN && i < call->count; i++)
        bl_exchange_unref(call->exchange);
    return result;
}

static bl_status prepare(api_call *call, unsigned route, double arrived, bl_error *err)
{
    bl_json root;
    BL_TRY(bl_api_body(call->server, call->exchange, &root, err));
    BL_TRY(bl_api_read_params(call->server, root, route, &call->arena, &call->params, err));
    BL_TRY(bl_api_read_prompts(call->server, &call->params, &call->prompts, err));
    make_id(call);
    call->created = (int64_t)time(NULL);
    return make_choices(call, arrived, err);
}

void bl_api_complete(bl_server *s, bl_exchange *x, unsigned route)
{
    bl_error err;
    double arrived = bl_clock();
    api_call *call = calloc(1, sizeof *call);
    if (!call) {
        bl_api_fail_status(x, BL_E_NOMEM, NULL);
        return;
    }
    bl_error_clear(&err);
    call->server = s;
    call->exchange = x;
    pthread_mutex_init(&call->lock, NULL);
    bl_exchange_attach(x, call, on_gone, on_release);
    bl_status status = prepare(call, route, arrived, &err);
    if (status != BL_OK) {
        bl_api_fail_status(x, status, &err);
        return;
    }
    if (call->count > s->options.max_requests + s->options.max_queue) {
        bl_api_fail(x, 400, "more answers than this server makes at once", "n", NULL);
        return;
    }
    bool stream = call->params.stream, gone;
    switch (submit(call, &gone)) {
    case BL_SUBMIT_TAKEN:
        if (stream)
            bl_exchange_stream(x, on_pull);
        break;
    case BL_SUBMIT_FULL:
        bl_api_fail(x, 503, "the request queue is full", NULL, "queue_full");
        break;
    case BL_SUBMIT_BROKEN:
        bl_api_fail(x, 503, "the device has failed; the server must be restarted", NULL, "device_failed");
        break;
    case BL_SUBMIT_STOPPED:
        if (gone)
            fail_gone(x);
        else
            bl_api_fail(x, 503, "the server is shutting down", NULL, "shutting_down");
        break;
    }
}
