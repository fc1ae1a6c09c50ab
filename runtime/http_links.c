/* Connections: what each waits for, and room for new ones. */
#include "runtime/http_impl.h"

#include "runtime/metrics.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

void bl_http_hang_up(bl_http *h, bl_exchange *x)
{
    bool early = bl_exchange_hang_up(x);
    pthread_mutex_lock(&h->lock);
    h->stats.hang_ups += early;
    pthread_mutex_unlock(&h->lock);
}

void bl_link_enter(bl_http *h, bl_link *l, bl_phase phase, bl_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    h->working += (phase >= BL_PHASE_SEND) - (l->phase >= BL_PHASE_SEND);
    l->phase = phase;
    l->since = bl_clock();
    l->exchange = phase >= BL_PHASE_SEND ? x : NULL;
    bool hung_up = l->hung_up && l->exchange;
    if (h->working == 0)
        pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
    if (hung_up)
        bl_http_hang_up(h, x);
}

/* ---- room; locked */

static bool is_full(const bl_http *h)
{
    return h->stats.connections - h->given_up > h->room;
}

/* The one that is given up first: the earliest phase, in it the longest wait. */
static bl_link *find_idle(bl_http *h, const bl_link *but)
{
    bl_link *best = NULL;
    for (bl_link *l = h->links.next; l != &h->links; l = l->next)
        if (l != but && !l->given_up && l->phase < BL_PHASE_WORK &&
            (!best || l->phase < best->phase || (l->phase == best->phase && l->since < best->since)))
            best = l;
    return best;
}

/* libmicrohttpd learns of it as if the client had left. */
static void give_up(bl_http *h, bl_link *l)
{
    h->given_up += !l->given_up;
    l->given_up = true;
    shutdown(l->fd, SHUT_RDWR);
}

static void make_room(bl_http *h, const bl_link *newcomer)
{
    bl_link *l = is_full(h) ? find_idle(h, newcomer) : NULL;
    if (!l)
        return;
    h->stats.displaced++;
    give_up(h, l);
}

void bl_link_give_up(bl_http *h, bl_link *l)
{
    pthread_mutex_lock(&h->lock);
    give_up(h, l);
    pthread_mutex_unlock(&h->lock);
}

bool bl_link_surplus(bl_http *h, const bl_link *l)
{
    pthread_mutex_lock(&h->lock);
    make_room(h, l);
    bool surplus = is_full(h);
    pthread_mutex_unlock(&h->lock);
    return surplus;
}

/* ---- from libmicrohttpd */

static void add(bl_http *h, bl_link *l)
{
    pthread_mutex_lock(&h->lock);
    l->id = ++h->next_id;
    l->next = &h->links;
    l->prev = h->links.prev;
    l->prev->next = l->next->prev = l;
    h->stats.connections++;
    bl_watch_add(h, l);
    make_room(h, l);
    pthread_mutex_unlock(&h->lock);
}

static void drop(bl_http *h, bl_link *l)
{
    pthread_mutex_lock(&h->lock);
    if (l->next) {
        bl_watch_remove(h, l);
        l->prev->next = l->next;
        l->next->prev = l->prev;
        h->stats.connections--;
        h->given_up -= l->given_up;
    }
    pthread_mutex_unlock(&h->lock);
    free(l);
}

void bl_link_notify(void *arg, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    bl_link *l = *context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = l = calloc(1, sizeof *l);
        if (!l || !info)
            return; /* on_request turns it away */
        l->fd = info->connect_fd;
        l->since = bl_clock();
        add(arg, l);
    } else if (l) {
        drop(arg, l);
        *context = NULL;
    }
}

/* ---- descriptors */

/* Open in this process; a guess where the system does not say. */
static int64_t count_descriptors(void)
{
    int64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 64;
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* ".", "..", the directory itself */
}

bl_status bl_http_budget(bl_http *h, int share, bl_error *err)
{
    struct rlimit limit;
    int64_t left = h->options.max_connections, opened = count_descriptors();
    pthread_mutex_lock(&h->lock);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < INT64_MAX) {
        const int64_t most = ((int64_t)limit.rlim_cur - opened + h->stats.connections) / share;
        const int64_t room = most - (most / 2 < BL_HTTP_SLACK ? most / 2 : BL_HTTP_SLACK);
        left = room < left ? room : left;
    }
    h->room = (int)(left > 0 ? left : 0);
    pthread_mutex_unlock(&h->lock);
    if (left > 0)
        return BL_OK;
    return bl_fail(err, BL_E_IO, NULL, NULL, -1, "no file is left to open for connections: raise the limit (ulimit -n)");
}

int bl_http_room(bl_http *h)
{
    pthread_mutex_lock(&h->lock);
    int room = h->room;
    pthread_mutex_unlock(&h->lock);
    return room;
}
