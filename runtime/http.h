/* HTTP/1.1 on libmicrohttpd: request bodies in, whole answers and event streams out, and hang-ups noticed while an answer is being made.
 *
 * Threads: one for the sockets (libmicrohttpd's), one that watches for hang-ups and keeps the time, and a few workers that run the
 * requests, so that a long prompt holds up nobody else's stream. */
#ifndef BL_RUNTIME_HTTP_H
#define BL_RUNTIME_HTTP_H

#include "runtime/text.h"

#include <stdint.h>

typedef struct bl_http bl_http;
typedef struct bl_exchange bl_exchange; /* one request and its answer; counted references */

typedef struct bl_http_options {
    const char *host; /* name or address to listen on */
    int port;         /* 0 = any free one */
    uint64_t max_body; /* bytes of one body; more is answered 413. All bodies being held together may take four times that */
    int max_connections; /* at most; bl_http_budget says what there is room for. One more takes the place of another that waits idly */
    int workers; /* >= 1 */
    double patience; /* seconds for a request's head, and again for its body, to arrive; also for a client to take what is sent */
    double ping;     /* seconds of silence after which a stream gets a comment line */
    void *arg;
    /* The head is there. May answer already (the body is then thrown away); must not block. Socket thread. */
    void (*head)(void *arg, bl_exchange *x);
    /* The body is there too and nothing is answered yet. Must answer, now or later, from any thread. Worker thread. */
    void (*request)(void *arg, bl_exchange *x);
    /* An answer that http.c itself gives (413, 503, ...): append its body. type is the content type to fill in. */
    void (*refusal)(void *arg, int status, const char *message, bl_text *body, const char **type);
} bl_http_options;

/* Listen and serve; *out is set before the first callback. BL_E_USAGE for a host that does not resolve, BL_E_IO where listening fails. */
bl_status bl_http_start(bl_http **out, const bl_http_options *options, bl_error *err);
int bl_http_port(const bl_http *h);
/* How many connections there is room for: max_connections, or what of the descriptors that the process may open (ulimit -n) and has
 * not opened for something else, divided by share. BL_E_IO when that is none. Not while another thread opens files. */
bl_status bl_http_budget(bl_http *h, int share, bl_error *err);
/* The newest result of bl_http_budget. */
int bl_http_room(bl_http *h);
/* Accept no more connections; those that are open stay. */
void bl_http_quiesce(bl_http *h);
/* Wait until no request is being worked on or answered, at most that many seconds; true when so. */
bool bl_http_wait_idle(bl_http *h, double seconds);
/* Let the workers run what is queued and end them; what comes later is refused. */
void bl_http_end_workers(bl_http *h);
/* End everything. Every exchange must have been answered and every reference to one given back. What has not been sent is lost. NULL is
 * fine. */
void bl_http_stop(bl_http **h);

typedef struct bl_http_stats {
    uint64_t requests, hang_ups, answers[6]; /* answers[s / 100] */
    uint64_t displaced; /* connections closed to make room for others */
    int connections, working;
} bl_http_stats;
void bl_http_read(bl_http *h, bl_http_stats *out);

/* ---- one exchange */

const char *bl_exchange_method(const bl_exchange *x);
const char *bl_exchange_path(const bl_exchange *x); /* percent-decoded, without scheme, host and query */
/* In head() only: a header's value, NULL when absent. Borrowed. */
const char *bl_exchange_header(bl_exchange *x, const char *name);
/* In request(): borrowed, as long as the exchange. */
const char *bl_exchange_body(const bl_exchange *x, size_t *n);

void bl_exchange_ref(bl_exchange *x);
/* At the last one, release() of what is attached is called. */
void bl_exchange_unref(bl_exchange *x);

/* Attach what belongs to the exchange; once. gone() is called at most once, from any thread, when the client hangs up before the answer
 * is out, or at once if that has happened; the exchange still wants its answer. release() comes last. Both may be NULL. */
void bl_exchange_attach(bl_exchange *x, void *arg, void (*gone)(void *arg), void (*release)(void *arg));

/* Answer whole. body is taken (its memory too) and left empty. type, name and value are static strings; name and value are one further
 * header, NULL = none. Any thread; exactly one of answer and stream per exchange. */
void bl_exchange_answer(bl_exchange *x, int status, const char *type, bl_text *body, const char *name, const char *value);
/* Answer 200 with an event stream. pull() is called from the socket thread whenever the client can take more: it appends what there is
 * (maybe nothing) and returns false when that was all. */
void bl_exchange_stream(bl_exchange *x, bool (*pull)(void *arg, bl_text *out));
/* pull() has something new. Any thread. */
void bl_exchange_wake(bl_exchange *x);

#endif
