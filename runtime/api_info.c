/* Answers that need no generation: health, metrics, models, tokens. */
#include "formats/utf8.h"
#include "runtime/api_impl.h"

#include <stdlib.h>
#include <string.h>

static void answer_json(bl_exchange *x, bl_text *body)
{
    bl_text_puts(body, "\n");
    bl_exchange_answer(x, 200, API_JSON, body, NULL, NULL);
}

void bl_api_health(bl_server *s, bl_exchange *x)
{
    static const char *const names[] = {"loading", "ready", "draining"};
    bl_text body = {0};
    bl_error fault;
    bl_scheduler_stats n = {0};
    int state = atomic_load(&s->state);
    bool loaded = state != API_LOADING && s->scheduler, broken = loaded && bl_scheduler_broken(s->scheduler, &fault);
    bool ready = state == API_READY && !broken;
    if (loaded)
        bl_scheduler_read(s->scheduler, &n);
    bl_text_printf(&body, "{\"status\":\"%s\"", broken ? "failed" : names[state]);
    if (broken) {
        bl_text_puts(&body, ",\"error\":");
        bl_text_quote(&body, fault.message, strlen(fault.message));
    }
    if (n.nan_outputs)
        bl_text_printf(&body, ",\"nan_outputs\":%llu", (unsigned long long)n.nan_outputs);
    bl_text_puts(&body, "}\n");
    bl_exchange_answer(x, ready ? 200 : 503, API_JSON, &body, ready ? NULL : "Retry-After", ready ? NULL : "1");
}

/* ---- metrics */

static void put_scheduler_metrics(bl_text *t, const bl_scheduler_stats *n, const char *model)
{
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"sglang:prompt_tokens_total", "counter", "Prompt tokens run.", (double)n->prompt_tokens},
        {"sglang:generation_tokens_total", "counter", "Tokens generated.", (double)n->generated_tokens},
        {"sglang:cached_tokens_total", "counter", "Prompt tokens taken from a cache.", 0},
        {"sglang:num_requests_total", "counter", "Sequences that ended.", (double)(n->finished + n->cancelled + n->failed)},
        {"sglang:num_aborted_requests_total", "counter", "Sequences that were cancelled.", (double)n->cancelled},
        {"baleen:num_failed_requests_total", "counter", "Sequences that failed.", (double)n->failed},
        {"baleen:nan_outputs_total", "counter", "Tokens that could not be chosen: a logit was no number.", (double)n->nan_outputs},
        {"sglang:num_running_reqs", "gauge", "Sequences in the batch.", n->running},
        {"sglang:num_queue_reqs", "gauge", "Sequences waiting for a place.", n->waiting},
        {"sglang:num_used_tokens", "gauge", "Tokens held by sequences in the batch.", (double)n->used_tokens},
        {"baleen:steps_total", "counter", "Forward passes.", (double)n->steps},
        {"baleen:step_tokens_total", "counter", "Tokens of all forward passes.", (double)n->step_tokens},
        {"baleen:largest_batch", "gauge", "Most sequences in one forward pass.", n->largest_batch},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bl_metric_write(t, rows[i].name, rows[i].type, rows[i].help, model, rows[i].value);
    bl_histogram_write(t, "sglang:queue_time_seconds", "From arrival to a place in the batch.", model, &n->queue_time);
    bl_histogram_write(t, "sglang:time_to_first_token_seconds", "From arrival to the first token.", model, &n->first_token);
    bl_histogram_write(t, "sglang:inter_token_latency_seconds", "Between two tokens of a sequence.", model, &n->inter_token);
    bl_histogram_write(t, "sglang:e2e_request_latency_seconds", "From arrival to the last token.", model, &n->whole);
}

void bl_api_metrics(bl_server *s, bl_exchange *x)
{
    bl_text t = {0};
    bl_http_stats h;
    const char *model = s->options.model_name;
    bool loaded = atomic_load(&s->state) != API_LOADING;
    bl_scheduler_stats n = {0};
    if (loaded && s->scheduler)
        bl_scheduler_read(s->scheduler, &n);
    bl_http_read(s->http, &h);
    put_scheduler_metrics(&t, &n, model);
    bl_metric_write(&t, "sglang:engine_startup_time", "gauge", "Seconds from start to ready; 0 while loading.", model,
                    loaded ? s->load_seconds : 0);
    bl_metric_write(&t, "baleen:http_requests_total", "counter", "HTTP requests.", model, (double)h.requests);
    bl_metric_write(&t, "baleen:http_answers_4xx_total", "counter", "HTTP answers that blame the client.", model, (double)h.answers[4]);
    bl_metric_write(&t, "baleen:http_answers_5xx_total", "counter", "HTTP answers that do not.", model, (double)h.answers[5]);
    bl_metric_write(&t, "baleen:http_hang_ups_total", "counter", "Clients that left before their answer.", model, (double)h.hang_ups);
    bl_metric_write(&t, "baleen:http_displaced_total", "counter", "Idle connections closed to make room for others.", model,
                    (double)h.displaced);
    bl_metric_write(&t, "baleen:http_connections", "gauge", "Open connections.", model, h.connections);
    bl_metric_write(&t, "baleen:uptime_seconds", "gauge", "Seconds since the start.", model, bl_clock() - s->started);
    bl_exchange_answer(x, 200, "text/plain; version=0.0.4; charset=utf-8", &t, NULL, NULL);
}

/* ---- models */

static void put_model(bl_text *t, const bl_server *s)
{
    const char *name = s->options.model_name;
    bl_text_puts(t, "{\"id\":");
    bl_text_quote(t, name, strlen(name));
    bl_text_printf(t, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"baleen\",\"max_model_len\":%lld}", (long long)s->created,
                   (long long)s->context);
}

void bl_api_models(bl_server *s, bl_exchange *x)
{
    bl_text body = {0};
    bl_text_puts(&body, "{\"object\":\"list\",\"data\":[");
    put_model(&body, s);
    bl_text_puts(&body, "]}");
    answer_json(x, &body);
}

void bl_api_model(bl_server *s, bl_exchange *x)
{
    bl_text body = {0}, message = {0};
    const char *id = bl_exchange_path(x) + strlen("/v1/models/");
    if (strcmp(id, s->options.model_name) == 0) {
        put_model(&body, s);
        answer_json(x, &body);
        return;
    }
    bl_text_puts(&message, "The model '");
    bl_text_puts(&message, id);
    bl_text_puts(&message, "' does not exist");
    bl_text_end(&message);
    bool utf8 = bl_utf8_check(id, strlen(id)) == strlen(id);
    bl_api_fail(x, 404, message.p && utf8 ? message.p : "no such model", "model", "model_not_found");
    free(message.p);
}

void bl_api_server_info(bl_server *s, bl_exchange *x)
{
    bl_text t = {0};
    const bl_server_options *o = &s->options;
    bl_text_puts(&t, "{\"version\":\"" BL_VERSION "\",\"served_model_name\":");
    bl_text_quote(&t, o->model_name, strlen(o->model_name));
    bl_text_printf(&t, ",\"max_model_len\":%lld,\"max_requests\":%d,\"max_queue\":%d,\"max_connections\":%d,", (long long)s->context,
                   o->max_requests, o->max_queue, bl_http_room(s->http));
    bl_text_printf(&t, "\"max_body\":%llu,\"step_tokens\":%lld,", (unsigned long long)o->max_body, (long long)o->step_tokens);
    bl_text_printf(&t, "\"thinking\":%s,\"reasoning_effort\":%d,", o->thinking ? "true" : "false", BL_CHAT_EFFORT_DEFAULT);
    bl_text_puts(&t, "\"sampling_defaults\":{\"temperature\":1,\"top_p\":1,\"top_k\":0,\"min_p\":0,\"repetition_penalty\":1,"
                     "\"presence_penalty\":0,\"frequency_penalty\":0},"
                     "\"logprobs\":\"log_softmax(logits after penalties and bias / temperature)\",\"has_image_understanding\":false,");
    bl_text_printf(&t, "\"load_seconds\":%.3f}", s->load_seconds);
    answer_json(x, &t);
}

/* ---- tokens */

static bl_status read_tokenize(bl_server *s, bl_exchange *x, bl_arena *arena, api_prompts *prompts, bool *list, bl_error *err)
{
    bl_json root;
    BL_TRY(bl_api_body(s, x, &root, err));
    bl_json prompt = bl_json_get(root, "prompt");
    bl_json key, first = {0};
    bl_json_iter it = bl_json_begin(prompt);
    *list = prompt.kind == BL_JSON_ARRAY && bl_json_next(&it, &key, &first) && first.kind != BL_JSON_NUMBER;
    if (prompt.kind != BL_JSON_NONE)
        return bl_api_encode_text(s, prompt, prompts, err);
    api_params p;
    bl_section start;
    BL_TRY(bl_api_read_params(s, root, API_CHAT, arena, &p, err));
    prompts->ids = calloc(1, sizeof *prompts->ids);
    if (!prompts->ids)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory");
    prompts->count = 1;
    return bl_api_encode_chat(s, &p, &prompts->ids[0], &start, err);
}

static void put_ids(bl_text *t, const bl_ids *ids)
{
    bl_text_puts(t, "[");
    for (size_t i = 0; i < ids->count; i++)
        bl_text_printf(t, i ? ",%d" : "%d", (int)ids->ids[i]);
    bl_text_puts(t, "]");
}

void bl_api_tokenize(bl_server *s, bl_exchange *x)
{
    api_prompts prompts = {0};
    bl_arena arena = {0};
    bl_text t = {0};
    bl_error err;
    bool list = false;
    bl_error_clear(&err);
    bl_status status = read_tokenize(s, x, &arena, &prompts, &list, &err);
    bl_arena_reset(&arena);
    if (status != BL_OK) {
        bl_api_fail_status(x, status, &err);
        bl_api_free_prompts(&prompts);
        return;
    }
    bl_text_puts(&t, list ? "{\"tokens\":[" : "{\"tokens\":");
    for (int i = 0; i < prompts.count; i++) {
        bl_text_puts(&t, i ? "," : "");
        put_ids(&t, &prompts.ids[i]);
    }
    bl_text_puts(&t, list ? "],\"count\":[" : ",\"count\":");
    for (int i = 0; i < prompts.count; i++)
        bl_text_printf(&t, i ? ",%zu" : "%zu", prompts.ids[i].count);
    bl_text_printf(&t, list ? "],\"max_model_len\":%lld}" : ",\"max_model_len\":%lld}", (long long)s->context);
    bl_api_free_prompts(&prompts);
    answer_json(x, &t);
}

static bl_status read_detokenize(bl_server *s, bl_exchange *x, bl_text *out, bl_error *err)
{
    bl_json root, key, v;
    bl_detok d = {0};
    bool skip = true;
    BL_TRY(bl_api_body(s, x, &root, err));
    bl_json tokens = bl_json_get(root, "tokens"), flag = bl_json_get(root, "skip_special_tokens");
    if (flag.kind != BL_JSON_NONE && flag.kind != BL_JSON_NULL && !bl_json_bool(flag, &skip))
        return bl_fail(err, BL_E_INPUT, NULL, "skip_special_tokens", -1, "must be true or false");
    if (tokens.kind != BL_JSON_ARRAY)
        return bl_fail(err, BL_E_INPUT, NULL, "tokens", -1, "must be a list of token ids");
    for (bl_json_iter it = bl_json_begin(tokens); bl_json_next(&it, &key, &v);) {
        uint64_t id;
        size_t n;
        if (!bl_json_u64(v, &id) || id >= (uint64_t)bl_tokenizer_size(s->tokenizer))
            return bl_fail(err, BL_E_INPUT, NULL, "tokens", -1, "must be a list of token ids");
        const char *bytes = bl_tokenizer_bytes(s->tokenizer, (int)id, &n);
        if (bytes && !(skip && bl_tokenizer_is_special(s->tokenizer, (int)id)))
            bl_detok_bytes(&d, bytes, n, out);
    }
    bl_detok_end(&d, out);
    return out->failed ? bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory") : BL_OK;
}

void bl_api_detokenize(bl_server *s, bl_exchange *x)
{
    bl_text text = {0}, t = {0};
    bl_error err;
    bl_error_clear(&err);
    bl_status status = read_detokenize(s, x, &text, &err);
    if (status != BL_OK) {
        bl_api_fail_status(x, status, &err);
    } else {
        bl_text_puts(&t, "{\"text\":");
        bl_text_quote(&t, text.p ? text.p : "", text.n);
        bl_text_puts(&t, "}");
        answer_json(x, &t);
    }
    free(text.p);
}
