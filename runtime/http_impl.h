/* What the http files share. Lock order: bl_http.lock before bl_exchange.lock. */
#ifndef BL_RUNTIME_HTTP_IMPL_H
#define BL_RUNTIME_HTTP_IMPL_H

#include "runtime/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

/* A body behind a refusal is read and thrown away up to here, so that the client gets to read the answer. */
#define BL_DISCARD_MAX (64u << 20)

/* More connections than descriptors and options allow for are accepted, so that there is somebody to make room for. */
#define BL_HTTP_SLACK 16

/* What a connection waits for: a head, a body, the client to take all of an answer, the answer. In this order they are given up. */
typedef enum bl_phase { BL_PHASE_HEAD = 0, BL_PHASE_BODY, BL_PHASE_SEND, BL_PHASE_WORK } bl_phase;

/* A connection. Guarded by bl_http.lock. */
typedef struct bl_link {
    struct bl_link *prev, *next;
    uint64_t id;
    int fd;
    bl_phase phase;
    double since; /* of the phase */
    bool hung_up;
    bool given_up; /* changed by the socket thread alone */
    bl_exchange *exchange; /* in phases SEND and WORK */
} bl_link;

struct bl_exchange {
    bl_http *http;
    bl_link *link; /* socket thread */
    char *method, *path;
    bl_text body;
    uint64_t discarded;
    bl_exchange *next; /* in the workers' queue */
    atomic_int refs;

    pthread_mutex_t lock; /* guards what follows */
    struct MHD_Connection *connection; /* NULL when it is over */
    void *arg;
    void (*gone)(void *arg), (*release)(void *arg);
    bool is_gone, gone_told;
    bool answered, queued; /* there is an answer; libmicrohttpd has it */
    int status;
    const char *type, *name, *value;
    bl_text answer;
    bool (*pull)(void *arg, bl_text *out); /* a stream */
    bool parked, woken, pinged; /* suspended; news since pull was called; a comment line is due */
    double last_sent;
    bool ended; /* pull has given all there was */

    bl_text out; /* socket thread: pulled and not sent, from out_from on */
    size_t out_from;
};

struct bl_http {
    bl_http_options options;
    struct MHD_Daemon *daemon;
    int listen_fd, port;
    bool quiesced;
    atomic_uint_fast64_t held; /* bytes of bodies */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t idle, work;
    bl_link links; /* head of a ring */
    uint64_t next_id;
    int working; /* exchanges in phases SEND and WORK */
    int room;    /* for connections */
    int given_up; /* connections that are about to be gone */
    bl_exchange *queue, **queue_tail;
    bool stopping;
    bl_http_stats stats;

    int epoll_fd, event_fd;
    pthread_t watcher, *workers;
    int worker_count;
    bool watching;
};

/* exchange.c */
bl_exchange *bl_exchange_new(bl_http *h, struct MHD_Connection *c, bl_link *link, const char *method, const char *path);
/* Hand the answer to libmicrohttpd, or suspend the connection until there is one. Socket thread. */
enum MHD_Result bl_exchange_respond(bl_exchange *x);
/* The connection is done with the exchange. Socket thread. */
void bl_exchange_over(bl_exchange *x);
/* The client left; true when it missed something. */
bool bl_exchange_hang_up(bl_exchange *x);
/* Send a comment line if nothing else was sent for so long. */
void bl_exchange_ping(bl_exchange *x, double now);

/* http_links.c */
/* bl_exchange_hang_up, counted. */
void bl_http_hang_up(bl_http *h, bl_exchange *x);
/* A link goes over to a phase. Socket thread. */
void bl_link_enter(bl_http *h, bl_link *l, bl_phase phase, bl_exchange *x);
/* Close it; what has been received of it is not looked at any more. */
void bl_link_give_up(bl_http *h, bl_link *l);
/* Are there more connections than there is room for, and none that could be given up for this one? */
bool bl_link_surplus(bl_http *h, const bl_link *l);
/* libmicrohttpd's MHD_NotifyConnectionCallback; arg is the bl_http. */
void bl_link_notify(void *arg, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code);

/* http_watch.c */
bl_status bl_watch_start(bl_http *h, bl_error *err);
void bl_watch_stop(bl_http *h);
void bl_watch_add(bl_http *h, bl_link *l);
void bl_watch_remove(bl_http *h, bl_link *l);

#endif
