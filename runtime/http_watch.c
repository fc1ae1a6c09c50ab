/* The watcher: libmicrohttpd does not look at a suspended connection, so hang-ups are seen here; so is the time. */
#include "runtime/http_impl.h"

#include "runtime/metrics.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TICK_MS 500
#define EVENTS 64

void bl_watch_add(bl_http *h, bl_link *l)
{
    /* A client that shuts only its sending side counts as gone: there is no telling whether it still listens. Edge-triggered: told once. */
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLET, .data.u64 = l->id};
    epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, l->fd, &e);
}

void bl_watch_remove(bl_http *h, bl_link *l)
{
    struct epoll_event none = {0};
    epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, l->fd, &none);
}

/* By number, since the connection may be over when its event is looked at. */
static void hang_up(bl_http *h, uint64_t id)
{
    bl_exchange *x = NULL;
    pthread_mutex_lock(&h->lock);
    for (bl_link *l = h->links.next; l != &h->links; l = l->next)
        if (l->id == id) {
            x = l->hung_up ? NULL : l->exchange; /* told again when the other direction closes too */
            l->hung_up = true;
            break;
        }
    if (x)
        bl_exchange_ref(x);
    pthread_mutex_unlock(&h->lock);
    if (x) {
        bl_http_hang_up(h, x);
        bl_exchange_unref(x);
    }
}

/* libmicrohttpd takes a short read for the end of what there is and waits for the next edge. When the client's FIN was there before that
 * read, no edge will follow, and the end of a half-sent request would be seen only when its time is up. Shutting the direction that is
 * shut already changes nothing but makes an edge. Repeated, since this edge too may come before the read. */
static void nudge(const bl_link *l)
{
    shutdown(l->fd, SHUT_RD);
}

/* Connections that take too long to say what they want are closed, also those that trickle; silent streams get a sign of life. */
static void tick(bl_http *h, double now)
{
    pthread_mutex_lock(&h->lock);
    for (bl_link *l = h->links.next; l != &h->links; l = l->next) {
        if (l->phase < BL_PHASE_SEND && now - l->since > h->options.patience)
            shutdown(l->fd, SHUT_RDWR);
        else if (l->phase < BL_PHASE_SEND && l->hung_up)
            nudge(l);
        if (l->exchange)
            bl_exchange_ping(l->exchange, now);
    }
    pthread_mutex_unlock(&h->lock);
}

static void *watch(void *arg)
{
    bl_http *h = arg;
    struct epoll_event events[EVENTS];
    double last = bl_clock();
    for (;;) {
        int n = epoll_wait(h->epoll_fd, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0) /* the event fd */
                return NULL;
            hang_up(h, events[i].data.u64);
        }
        double now = bl_clock();
        if (now - last >= TICK_MS * 1e-3) {
            tick(h, now);
            last = now;
        }
    }
}

bl_status bl_watch_start(bl_http *h, bl_error *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->event_fd < 0 || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->event_fd, &e) != 0)
        return bl_fail_errno(err, errno, 0, NULL, "watching connections");
    if (pthread_create(&h->watcher, NULL, watch, h) != 0)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "the watcher thread could not be started");
    h->watching = true;
    return BL_OK;
}

void bl_watch_stop(bl_http *h)
{
    if (h->watching && eventfd_write(h->event_fd, 1) == 0)
        pthread_join(h->watcher, NULL);
    h->watching = false;
    if (h->epoll_fd >= 0)
        close(h->epoll_fd);
    if (h->event_fd >= 0)
        close(h->event_fd);
    h->epoll_fd = h->event_fd = -1;
}
