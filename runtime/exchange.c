/* The life of one request: answered from any thread, sent by the socket thread. */
#include "runtime/http_impl.h"

#include "runtime/metrics.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_BLOCK 16384

bl_exchange *bl_exchange_new(bl_http *h, struct MHD_Connection *c, bl_link *link, const char *method, const char *path)
{
    bl_exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->method = strdup(method);
    x->path = strdup(path);
    if (!x->method || !x->path) {
        free(x->method);
        free(x->path);
        free(x);
        return NULL;
    }
    x->http = h;
    x->connection = c;
    x->link = link;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

void bl_exchange_ref(bl_exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void bl_exchange_unref(bl_exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->release)
        x->release(x->arg);
    atomic_fetch_sub(&x->http->held, x->body.n);
    pthread_mutex_destroy(&x->lock);
    free(x->method);
    free(x->path);
    free(x->body.p);
    free(x->answer.p);
    free(x->out.p);
    free(x);
}

const char *bl_exchange_method(const bl_exchange *x)
{
    return x->method;
}

const char *bl_exchange_path(const bl_exchange *x)
{
    return x->path;
}

const char *bl_exchange_header(bl_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *bl_exchange_body(const bl_exchange *x, size_t *n)
{
    *n = x->body.n;
    return x->body.p ? x->body.p : "";
}

/* ---- hang-ups */

/* Call gone() unless it was. Unlocks. */
static void tell_gone(bl_exchange *x)
{
    bool tell = x->is_gone && !x->gone_told && x->gone;
    x->gone_told = x->gone_told || tell;
    pthread_mutex_unlock(&x->lock);
    if (tell)
        x->gone(x->arg);
}

void bl_exchange_attach(bl_exchange *x, void *arg, void (*gone)(void *arg), void (*release)(void *arg))
{
    pthread_mutex_lock(&x->lock);
    x->arg = arg;
    x->gone = gone;
    x->release = release;
    tell_gone(x);
}

bool bl_exchange_hang_up(bl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool early = !x->is_gone && (!x->answered || (x->pull && !x->ended));
    x->is_gone = true;
    tell_gone(x);
    return early;
}

void bl_exchange_over(bl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->parked = false;
    pthread_mutex_unlock(&x->lock);
    bl_exchange_unref(x);
}

/* ---- answers */

/* Let the socket thread look at the connection again. Locked. */
static void resume(bl_exchange *x)
{
    if (x->parked && x->connection) {
        x->parked = false;
        MHD_resume_connection(x->connection);
    }
}

void bl_exchange_answer(bl_exchange *x, int status, const char *type, bl_text *body, const char *name, const char *value)
{
    if (body->failed) { /* a short answer may still find room */
        free(body->p);
        memset(body, 0, sizeof *body);
        status = 503;
        x->http->options.refusal(x->http->options.arg, status, "no memory for the answer", body, &type);
        name = "Retry-After";
        value = "1";
    }
    pthread_mutex_lock(&x->lock);
    x->answered = true;
    x->status = status;
    x->type = type;
    x->name = name;
    x->value = value;
    x->answer = *body;
    memset(body, 0, sizeof *body);
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

void bl_exchange_stream(bl_exchange *x, bool (*pull)(void *arg, bl_text *out))
{
    pthread_mutex_lock(&x->lock);
    x->answered = true;
    x->status = 200;
    x->type = "text/event-stream";
    x->pull = pull;
    x->last_sent = bl_clock();
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

void bl_exchange_wake(bl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->woken = true;
    if (x->queued)
        resume(x);
    pthread_mutex_unlock(&x->lock);
}

void bl_exchange_ping(bl_exchange *x, double now)
{
    pthread_mutex_lock(&x->lock);
    if (x->pull && x->queued && x->parked && now - x->last_sent >= x->http->options.ping) {
        x->pinged = true;
        resume(x);
    }
    pthread_mutex_unlock(&x->lock);
}

/* libmicrohttpd wants more of a stream. It asks again at once when it gets nothing, unless the connection is suspended: then on resume. */
static ssize_t read_stream(void *arg, uint64_t pos, char *buf, size_t cap)
{
    bl_exchange *x = arg;
    if (x->out_from == x->out.n) {
        x->out_from = x->out.n = 0;
        if (x->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        pthread_mutex_lock(&x->lock);
        x->woken = false;
        bool ping = x->pinged;
        x->pinged = false;
        pthread_mutex_unlock(&x->lock);
        bool ended = !x->pull(x->arg, &x->out);
        if (x->out.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (ping && x->out.n == 0 && !ended)
            bl_text_puts(&x->out, ": ping\n\n");
        pthread_mutex_lock(&x->lock);
        x->ended = ended;
        pthread_mutex_unlock(&x->lock);
        if (ended)
            bl_link_enter(x->http, x->link, BL_PHASE_SEND, x);
        if (x->out.n == 0 && ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
    }
    pthread_mutex_lock(&x->lock);
    if (x->out.n == 0 && !x->woken) {
        x->parked = true;
        MHD_suspend_connection(x->connection);
    } else if (x->out.n > 0) {
        x->last_sent = bl_clock();
    }
    pthread_mutex_unlock(&x->lock);
    size_t n = x->out.n - x->out_from < cap ? x->out.n - x->out_from : cap;
    if (n)
        memcpy(buf, x->out.p + x->out_from, n);
    x->out_from += n;
    return (ssize_t)n;
}

static struct MHD_Response *make_response(bl_exchange *x)
{
    struct MHD_Response *r;
    if (x->pull) {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
    } else {
        r = MHD_create_response_from_buffer(x->answer.n, x->answer.p, MHD_RESPMEM_MUST_FREE);
        if (r)
            memset(&x->answer, 0, sizeof x->answer);
    }
    if (!r)
        return NULL;
    if (x->type)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->type);
    if (x->pull) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    if (x->name)
        MHD_add_response_header(r, x->name, x->value);
    return r;
}

enum MHD_Result bl_exchange_respond(bl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool first = x->answered && !x->queued;
    x->queued = x->answered;
    if (!x->answered) {
        x->parked = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    if (!first)
        return MHD_YES;
    if (!x->pull)
        bl_link_enter(x->http, x->link, BL_PHASE_SEND, x);
    /* Not under the lock: libmicrohttpd holds a lock of its own when it calls read_stream. The answer does not change any more. */
    struct MHD_Response *r = x->answer.failed ? NULL : make_response(x);
    enum MHD_Result result = r ? MHD_queue_response(x->connection, (unsigned)x->status, r) : MHD_NO;
    if (r)
        MHD_destroy_response(r);
    pthread_mutex_lock(&x->http->lock);
    x->http->stats.answers[x->status / 100 % 6]++;
    pthread_mutex_unlock(&x->http->lock);
    return result;
}
