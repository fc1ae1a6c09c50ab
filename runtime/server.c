#include "runtime/server.h"

#include "runtime/api_impl.h"

#include <stdlib.h>
#include <time.h>

#define WORKERS 2
#define SPARE 256    /* connections beyond the requests that can be under way: probes, uploads, idle ones */
#define LAST_WORDS 5 /* seconds for the last events of streams to leave */

bl_status bl_server_start(bl_server **out, const bl_server_options *options, bl_error *err)
{
    *out = NULL;
    bl_server *s = calloc(1, sizeof *s);
    if (!s)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for the server");
    s->options = *options;
    s->started = bl_clock();
    s->created = (int64_t)time(NULL);
    const bl_http_options o = {.host = options->host,
                               .port = options->port,
                               .max_body = options->max_body,
                               .max_connections = options->max_requests + options->max_queue + SPARE,
                               .workers = WORKERS,
                               .patience = options->timeout,
                               .ping = options->ping,
                               .arg = s,
                               .head = bl_api_head,
                               .request = bl_api_request,
                               .refusal = bl_api_refusal};
    bl_status status = bl_http_start(&s->http, &o, err);
    if (status != BL_OK) {
        free(s);
        return status;
    }
    *out = s;
    return BL_OK;
}

int bl_server_port(const bl_server *s)
{
    return bl_http_port(s->http);
}

int bl_server_connections(const bl_server *s)
{
    return bl_http_room(s->http);
}

bl_status bl_server_ready(bl_server *s, bl_model *m, bl_error *err)
{
    const bl_config *c = bl_model_config(m);
    const bl_scheduler_options o = {.max_running = s->options.max_requests,
                                    .max_waiting = s->options.max_queue,
                                    .step_tokens = s->options.step_tokens,
                                    .report = s->options.report};
    s->model = m;
    s->tokenizer = bl_model_tokenizer(m);
    s->vocab = c->vocab_size;
    s->context = c->max_position_embeddings;
    if (s->options.max_context > 0 && s->options.max_context < s->context)
        s->context = s->options.max_context;
    if (!s->tokenizer)
        return bl_fail(err, BL_E_INPUT, NULL, NULL, -1, "a model that is served needs a tokenizer.json");
    BL_TRY(bl_http_budget(s->http, 1, err)); /* the model's files are open now */
    BL_TRY(bl_scheduler_create(&s->scheduler, m, &o, err));
    s->load_seconds = bl_clock() - s->started;
    int loading = API_LOADING;
    atomic_compare_exchange_strong(&s->state, &loading, API_READY);
    return BL_OK;
}

void bl_server_drain(bl_server *s)
{
    atomic_store(&s->state, API_DRAINING);
    bl_http_quiesce(s->http);
    if (s->scheduler)
        bl_scheduler_stop(s->scheduler, false);
}

bool bl_server_wait_idle(bl_server *s, double seconds)
{
    return bl_http_wait_idle(s->http, seconds);
}

void bl_server_stop(bl_server **sp)
{
    bl_server *s = *sp;
    if (!s)
        return;
    bl_server_drain(s);
    if (s->scheduler)
        bl_scheduler_stop(s->scheduler, true);
    bl_http_wait_idle(s->http, LAST_WORDS);
    bl_http_end_workers(s->http);
    bl_scheduler_destroy(&s->scheduler);
    bl_http_stop(&s->http);
    free(s);
    *sp = NULL;
}
