/* The daemon: listening, reading requests, the workers. */
#include "runtime/http_impl.h"

#include "runtime/metrics.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_PARAMETERS 64 /* no route takes any */
#define MAX_TARGET 16384

/* ---- reading a request */

static void refuse(bl_exchange *x, int status, const char *message, const char *name, const char *value)
{
    bl_text body = {0};
    const char *type = "text/plain";
    x->http->options.refusal(x->http->options.arg, status, message, &body, &type);
    bl_exchange_answer(x, status, type, &body, name, value);
}

/* An answer past libmicrohttpd, and the end of the connection. What has come behind the head is read first: closing a socket with bytes
 * in it can cost the client the answer. */
static void refuse_raw(bl_http *h, bl_link *l, int status, const char *reason, const char *message)
{
    char head[256], bytes[4096];
    bl_text text = {0}, body = {0};
    const char *type = "text/plain";
    h->options.refusal(h->options.arg, status, message, &body, &type);
    snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n", status, reason,
             type, body.n);
    bl_text_puts(&text, head);
    bl_text_add(&text, body.p, body.n);
    pthread_mutex_lock(&h->lock);
    h->stats.requests++;
    h->stats.answers[status / 100]++;
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < 64 && recv(l->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0; i++)
        continue;
    if (!text.failed)
        (void)!send(l->fd, text.p, text.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    bl_link_give_up(h, l);
    free(text.p);
    free(body.p);
}

static void drop_body(bl_exchange *x)
{
    atomic_fetch_sub(&x->http->held, x->body.n);
    free(x->body.p);
    memset(&x->body, 0, sizeof x->body);
}

static bool is_answered(bl_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool answered = x->answered;
    pthread_mutex_unlock(&x->lock);
    return answered;
}

/* More of the body; false = enough of this connection. */
static bool take_body(bl_exchange *x, const char *p, size_t n)
{
    bl_http *h = x->http;
    if (is_answered(x)) {
        x->discarded += n;
        return x->discarded <= BL_DISCARD_MAX;
    }
    if (x->body.n + n > h->options.max_body) {
        drop_body(x);
        refuse(x, 413, "the request body is too large", NULL, NULL);
        return true;
    }
    if (atomic_fetch_add(&h->held, n) + n > 4 * h->options.max_body) {
        atomic_fetch_sub(&h->held, n);
        drop_body(x);
        refuse(x, 503, "too many large requests at once", "Retry-After", "1");
        return true;
    }
    bl_text_add(&x->body, p, n);
    if (x->body.failed) {
        atomic_fetch_sub(&h->held, n);
        drop_body(x);
        refuse(x, 503, "no memory for the request", "Retry-After", "1");
    }
    return true;
}

static void check_length(bl_exchange *x)
{
    const char *length = bl_exchange_header(x, "Content-Length");
    if (length && strtoull(length, NULL, 10) > x->http->options.max_body) /* libmicrohttpd has checked that it is a number */
        refuse(x, 413, "the request body is too large", NULL, NULL);
}

typedef struct framing {
    int lengths, encodings;
    bool chunked, odd_name;
} framing;

static enum MHD_Result see_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    framing *f = arg;
    size_t n = strlen(name);
    f->odd_name = f->odd_name || n == 0 || name[n - 1] == ' ' || name[n - 1] == '\t';
    f->lengths += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0) {
        f->encodings++;
        f->chunked = strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

/* Refuse a head that leaves open where the body ends: libmicrohttpd would take one reading of several, or wait for the client to close. */
static bool refuse_framing(bl_exchange *x)
{
    framing f = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, see_header, &f);
    if (f.odd_name)
        refuse(x, 400, "a header's name ends in white space", "Connection", "close");
    else if (f.encodings && !f.chunked)
        refuse(x, 501, "the only transfer encoding that is supported is chunked", "Connection", "close");
    else if (f.encodings + f.lengths > 1)
        refuse(x, 400, "the request has several Content-Length or Transfer-Encoding headers", "Connection", "close");
    return is_answered(x);
}

static bl_link *link_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* A target is also held against limits before libmicrohttpd takes it apart: when parameters fill the memory of a connection it neither
 * answers nor closes. It takes no answer yet either, so that this one goes out by itself, as the last one of the connection. */
static void *see_target(void *arg, const char *target, struct MHD_Connection *c)
{
    bl_http *h = arg;
    size_t n = 0, length = strlen(target);
    for (const char *p = target; (p = strchr(p, '&')); p++)
        n++;
    bl_link *l = link_of(c);
    if (l && (n > MAX_PARAMETERS || length > MAX_TARGET))
        refuse_raw(h, l, 414, "URI Too Long", "the target is too long");
    return NULL;
}

static void enqueue(bl_http *h, bl_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    bool late = h->stopping;
    if (!late) {
        bl_exchange_ref(x);
        x->next = NULL;
        *h->queue_tail = x;
        h->queue_tail = &x->next;
        pthread_cond_signal(&h->work);
    }
    pthread_mutex_unlock(&h->lock);
    if (late)
        refuse(x, 503, "the server is shutting down", NULL, NULL);
}

/* A request may name the whole URL, as it does to a proxy: leave the path. */
static const char *path_of(const char *url)
{
    size_t scheme = strncasecmp(url, "http://", 7) == 0 ? 7 : strncasecmp(url, "https://", 8) == 0 ? 8 : 0;
    if (scheme == 0)
        return url;
    const char *path = strchr(url + scheme, '/');
    return path ? path : "/";
}

/* An escaped NUL would cut the path short: it stays as it is written. */
static size_t unescape(void *arg, struct MHD_Connection *c, char *s)
{
    return strstr(s, "%00") ? strlen(s) : MHD_http_unescape(s);
}

/* libmicrohttpd calls this once with the head, then for each piece of the body, then with no more data until there is an answer. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *data, size_t *size, void **state)
{
    bl_http *h = arg;
    bl_exchange *x = *state;
    if (!x) {
        bl_link *l = link_of(c);
        if (!l || l->given_up || !(x = bl_exchange_new(h, c, l, method, path_of(url))))
            return MHD_NO;
        *state = x;
        pthread_mutex_lock(&h->lock);
        h->stats.requests++;
        pthread_mutex_unlock(&h->lock);
        bl_link_enter(h, x->link, BL_PHASE_BODY, NULL);
        if (refuse_framing(x))
            return bl_exchange_respond(x);
        h->options.head(h->options.arg, x);
        if (!is_answered(x) && bl_link_surplus(h, x->link))
            refuse(x, 503, "too many connections at once", "Retry-After", "1");
        if (!is_answered(x))
            check_length(x);
        /* Who waits for permission to send a body is told no before it is sent. */
        if (is_answered(x) && bl_exchange_header(x, "Expect"))
            return bl_exchange_respond(x);
        return MHD_YES;
    }
    if (*size) {
        bool go_on = take_body(x, data, *size);
        *size = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    if (x->link->phase < BL_PHASE_SEND) { /* only this thread changes it */
        bl_link_enter(h, x->link, BL_PHASE_WORK, x);
        if (!is_answered(x))
            enqueue(h, x);
    }
    return bl_exchange_respond(x);
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code)
{
    bl_exchange *x = *state;
    if (!x)
        return;
    *state = NULL;
    bl_link_enter(arg, x->link, BL_PHASE_HEAD, NULL);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) /* seen here before the watcher sees it, or the client does not read */
        bl_http_hang_up(arg, x);
    bl_exchange_over(x);
}

/* ---- workers */

static void *worker(void *arg)
{
    bl_http *h = arg;
    for (;;) {
        pthread_mutex_lock(&h->lock);
        while (!h->queue && !h->stopping)
            pthread_cond_wait(&h->work, &h->lock);
        bl_exchange *x = h->queue;
        if (x && !(h->queue = x->next))
            h->queue_tail = &h->queue;
        pthread_mutex_unlock(&h->lock);
        if (!x)
            return NULL;
        h->options.request(h->options.arg, x);
        bl_exchange_unref(x);
    }
}

static bl_status start_workers(bl_http *h, bl_error *err)
{
    h->workers = calloc((size_t)h->options.workers, sizeof *h->workers);
    for (int i = 0; h->workers && i < h->options.workers; i++, h->worker_count++)
        if (pthread_create(&h->workers[i], NULL, worker, h) != 0)
            break;
    if (h->worker_count < h->options.workers)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "the worker threads could not be started");
    return BL_OK;
}

/* ---- listening */

static bl_status open_socket(bl_http *h, const struct addrinfo *a, bl_error *err)
{
    int yes = 1;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } bound;
    socklen_t n = sizeof bound;
    h->listen_fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listen_fd < 0)
        return bl_fail_errno(err, errno, 0, NULL, "opening a socket");
    setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(h->listen_fd, a->ai_addr, a->ai_addrlen) != 0 || listen(h->listen_fd, 1024) != 0 ||
        getsockname(h->listen_fd, &bound.any, &n) != 0) {
        char what[320];
        snprintf(what, sizeof what, "listening on %.200s port %d", h->options.host, h->options.port);
        return bl_fail_errno(err, errno, 0, NULL, what);
    }
    h->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
    return BL_OK;
}

static bl_status listen_at(bl_http *h, bl_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list;
    char port[16];
    snprintf(port, sizeof port, "%d", h->options.port);
    int code = getaddrinfo(h->options.host, port, &hints, &list);
    if (code != 0)
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "host '%.200s': %s", h->options.host, gai_strerror(code));
    bl_status s = open_socket(h, list, err);
    freeaddrinfo(list);
    return s;
}

static bl_status start_daemon(bl_http *h, bl_error *err)
{
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->options.max_connections + BL_HTTP_SLACK,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->options.patience,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)65536,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, bl_link_notify, h,
        MHD_OPTION_URI_LOG_CALLBACK, see_target, h,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_END);
    if (!h->daemon)
        return bl_fail(err, BL_E_IO, NULL, NULL, -1, "the HTTP server could not be started");
    return BL_OK;
}

bl_status bl_http_start(bl_http **out, const bl_http_options *options, bl_error *err)
{
    *out = NULL;
    bl_http *h = calloc(1, sizeof *h);
    if (!h)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for the HTTP server");
    h->options = *options;
    h->listen_fd = h->epoll_fd = h->event_fd = -1;
    h->links.prev = h->links.next = &h->links;
    h->queue_tail = &h->queue;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = h; /* before the first request can come */
    bl_status s = listen_at(h, err);
    if (s == BL_OK)
        s = bl_http_budget(h, 2, err); /* half is left for what is opened later */
    if (s == BL_OK)
        s = bl_watch_start(h, err);
    if (s == BL_OK)
        s = start_workers(h, err);
    if (s == BL_OK)
        s = start_daemon(h, err);
    if (s != BL_OK)
        bl_http_stop(out);
    return s;
}

int bl_http_port(const bl_http *h)
{
    return h->port;
}

void bl_http_quiesce(bl_http *h)
{
    if (h->quiesced)
        return;
    h->quiesced = true;
    /* The daemon's thread may still hold the socket, so that it is closed later; shut, it turns new connections away. */
    if (MHD_quiesce_daemon(h->daemon) >= 0)
        shutdown(h->listen_fd, SHUT_RDWR);
}

bool bl_http_wait_idle(bl_http *h, double seconds)
{
    struct timespec until;
    double t = bl_clock() + seconds;
    until.tv_sec = (time_t)t;
    until.tv_nsec = (long)((t - (double)until.tv_sec) * 1e9);
    pthread_mutex_lock(&h->lock);
    while (h->working > 0 && pthread_cond_timedwait(&h->idle, &h->lock, &until) == 0)
        continue;
    bool idle = h->working == 0;
    pthread_mutex_unlock(&h->lock);
    return idle;
}

void bl_http_read(bl_http *h, bl_http_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->stats;
    out->working = h->working;
    pthread_mutex_unlock(&h->lock);
}

void bl_http_end_workers(bl_http *h)
{
    pthread_mutex_lock(&h->lock);
    h->stopping = true;
    pthread_cond_broadcast(&h->work);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->worker_count; i++)
        pthread_join(h->workers[i], NULL);
    h->worker_count = 0;
}

void bl_http_stop(bl_http **hp)
{
    bl_http *h = *hp;
    if (!h)
        return;
    bl_http_end_workers(h);
    if (h->daemon) {
        bl_http_quiesce(h); /* else the daemon closes the socket itself */
        MHD_stop_daemon(h->daemon);
    }
    bl_watch_stop(h);
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->work);
    pthread_cond_destroy(&h->idle);
    free(h->workers);
    free(h);
    *hp = NULL;
}
