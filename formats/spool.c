#include "formats/spool.h"

#include "formats/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define POLL_NS 200000000 /* between looks at cancelled */

typedef struct range {
    uint64_t begin, end;
    uint64_t uses; /* readers to come */
} range;

typedef struct ranges {
    range *items; /* ascending, without overlap */
    size_t count, cap;
} ranges;

struct bl_spool {
    int fd;
    char *folder;
    uint64_t pause;
    bool (*cancelled)(void);
    bl_status (*run)(void *arg, bl_error *err);
    void *arg;
    pthread_t thread;
    bool started, stop, sealed;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    ranges kept, wanted;
    uint64_t ready;  /* the stream has come to here */
    uint64_t needed; /* somebody waits for bytes before this */
    uint64_t first;  /* the least that anybody waits for; UINT64_MAX: nobody waits */
    uint64_t stored, peak;
    bl_status status; /* of the stream */
    bl_error error;
};

static bl_status nomem(const bl_spool *s, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, s->folder, NULL, -1, "out of memory");
}

/* O_TMPFILE where the file system has it. */
static int open_nameless(const char *folder)
{
    char path[4096];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) {
        return fd;
    }
    int n = snprintf(path, sizeof path, "%s/.baleen-XXXXXX", folder);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

bl_status bl_spool_create(bl_spool **out, const char *folder, uint64_t pause, bool (*cancelled)(void), bl_error *err)
{
    *out = NULL;
    bl_spool *s = calloc(1, sizeof *s);
    if (!s || !(s->folder = strdup(folder))) {
        free(s);
        return bl_fail(err, BL_E_NOMEM, folder, NULL, -1, "out of memory");
    }
    s->fd = open_nameless(folder);
    if (s->fd < 0) {
        bl_status status = bl_fail_errno(err, errno, 0, folder, "cannot make a temporary file in");
        free(s->folder);
        free(s);
        return status;
    }
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, &a);
    pthread_condattr_destroy(&a);
    s->pause = pause;
    s->first = UINT64_MAX;
    s->cancelled = cancelled;
    bl_error_clear(&s->error);
    *out = s;
    return BL_OK;
}

void bl_spool_destroy(bl_spool **sp)
{
    bl_spool *s = *sp;
    if (!s) {
        return;
    }
    if (s->started) { /* the stream may still look for the spool where the caller has it */
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_broadcast(&s->moved);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    *sp = NULL;
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
    close(s->fd);
    free(s->kept.items);
    free(s->wanted.items);
    free(s->folder);
    free(s);
}

int bl_spool_fd(const bl_spool *s)
{
    return s->fd;
}

void bl_spool_source(bl_spool *s, bl_status (*run)(void *arg, bl_error *err), void *arg)
{
    s->run = run;
    s->arg = arg;
}

bool bl_spool_streams(const bl_spool *s)
{
    return s->run != NULL;
}

static bl_status append(bl_spool *s, ranges *r, range one, bl_error *err)
{
    range *grown = bl_grow(r->items, &r->cap, r->count, sizeof *grown);
    if (!grown) {
        return nomem(s, err);
    }
    r->items = grown;
    r->items[r->count++] = one;
    return BL_OK;
}

/* Index of the first range that ends after offset. */
static size_t first_after(const ranges *r, uint64_t offset)
{
    size_t lo = 0, hi = r->count;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->items[mid].end > offset) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

static bl_status store(bl_spool *s, const char *p, uint64_t n, uint64_t offset, bl_error *err)
{
    while (n > 0) {
        ssize_t k = pwrite(s->fd, p, (size_t)n, (off_t)offset);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return bl_fail_errno(err, k < 0 ? errno : EIO, 0, s->folder, "cannot keep what is unpacked in a temporary file there");
        }
        p += k;
        offset += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return BL_OK;
}

static void count_stored(bl_spool *s, uint64_t n)
{
    s->stored += n;
    s->peak = s->stored > s->peak ? s->stored : s->peak;
}

bl_status bl_spool_keep(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err)
{
    ranges *k = &s->kept;
    BL_TRY(store(s, data, n, offset, err));
    count_stored(s, n);
    if (k->count && k->items[k->count - 1].end == offset) {
        k->items[k->count - 1].end += n;
        return BL_OK;
    }
    return append(s, k, (range){.begin = offset, .end = offset + n}, err);
}

bl_status bl_spool_fill(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err)
{
    s->ready = offset + n;
    count_stored(s, n);
    return store(s, data, n, offset, err);
}

void bl_spool_complete(bl_spool *s)
{
    s->ready = UINT64_MAX;
}

/* Make a hole of the whole pages between two offsets; a file system without holes keeps what is there. */
static void make_hole(const bl_spool *s, uint64_t begin, uint64_t end)
{
    uint64_t lo = (begin + PAGE - 1) / PAGE * PAGE, hi = end / PAGE * PAGE;
    if (lo < hi) {
        (void)!fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)lo, (off_t)(hi - lo));
    }
}

void bl_spool_drop(bl_spool *s)
{
    uint64_t at = 0;
    s->stored = 0;
    for (size_t i = 0; i < s->kept.count; i++) {
        make_hole(s, at, s->kept.items[i].begin);
        at = s->kept.items[i].end;
        s->stored += s->kept.items[i].end - s->kept.items[i].begin;
    }
    make_hole(s, at, s->ready);
    s->ready = 0;
}

bl_status bl_spool_expect(bl_spool *s, uint64_t begin, uint64_t n, bl_error *err)
{
    return n ? append(s, &s->wanted, (range){.begin = begin, .end = begin + n, .uses = 1}, err) : BL_OK;
}

static int by_begin(const void *a, const void *b)
{
    const range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

void bl_spool_seal(bl_spool *s)
{
    ranges *w = &s->wanted;
    size_t kept = 0;
    if (w->count) {
        qsort(w->items, w->count, sizeof *w->items, by_begin);
    }
    for (size_t i = 0; i < w->count; i++) {
        if (kept && w->items[kept - 1].begin == w->items[i].begin) {
            w->items[kept - 1].uses += w->items[i].uses;
        } else {
            w->items[kept++] = w->items[i];
        }
    }
    w->count = kept;
    s->sealed = true;
}

/* Whole pages of a range that was read for the last time, with those that it shares with others that nobody needs any more. */
static void give_back(bl_spool *s, size_t at)
{
    const ranges *w = &s->wanted, *k = &s->kept;
    uint64_t begin = w->items[at].begin, end = w->items[at].end, lo = begin / PAGE * PAGE, hi = (end + PAGE - 1) / PAGE * PAGE;
    bool below = true, above = true;
    for (size_t i = at; below && i-- > 0 && w->items[i].end > lo;) {
        below = w->items[i].uses == 0;
    }
    for (size_t i = at + 1; above && i < w->count && w->items[i].begin < hi; i++) {
        above = w->items[i].uses == 0;
    }
    size_t i = first_after(k, lo);
    below = below && (i == k->count || k->items[i].begin >= begin);
    i = first_after(k, end);
    above = above && (i == k->count || k->items[i].begin >= hi);
    make_hole(s, below ? lo : begin, above ? hi : end);
}

void bl_spool_done(bl_spool *s, uint64_t begin, uint64_t n)
{
    pthread_mutex_lock(&s->lock);
    size_t at = n ? first_after(&s->wanted, begin) : s->wanted.count;
    if (at < s->wanted.count && s->wanted.items[at].begin == begin && --s->wanted.items[at].uses == 0) {
        s->stored -= n < s->stored ? n : s->stored;
        if (s->run) {
            give_back(s, at); /* under the lock: the stream may be writing into the pages around */
        }
        pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *stream(void *arg)
{
    bl_spool *s = arg;
    bl_error e;
    bl_error_clear(&e);
    bl_status status = s->run(s->arg, &e);
    pthread_mutex_lock(&s->lock);
    if (status == BL_OK) {
        s->ready = UINT64_MAX;
    } else {
        s->status = status;
        s->error = e;
    }
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Wait for the stream, or its reader, to move; under the lock. */
static void pause_a_while(bl_spool *s)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += POLL_NS;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&s->moved, &s->lock, &t);
}

/* Store the parts of it that somebody will read. */
static bl_status store_wanted(bl_spool *s, const char *data, uint64_t n, uint64_t offset, bl_error *err)
{
    uint64_t end = offset + n;
    if (!s->sealed) {
        count_stored(s, n);
        return store(s, data, n, offset, err);
    }
    for (size_t i = first_after(&s->wanted, offset); i < s->wanted.count && s->wanted.items[i].begin < end; i++) {
        const range *r = &s->wanted.items[i];
        uint64_t from = r->begin > offset ? r->begin : offset, to = r->end < end ? r->end : end;
        if (r->uses) {
            count_stored(s, to - from);
            BL_TRY(store(s, data + (from - offset), to - from, from, err));
        }
    }
    return BL_OK;
}

bl_status bl_spool_put(bl_spool *s, const void *data, uint64_t n, uint64_t offset, bl_error *err)
{
    bl_status status = BL_OK;
    pthread_mutex_lock(&s->lock);
    s->ready = offset > s->ready ? offset : s->ready;
    while (!s->stop && s->stored > s->pause && s->needed <= s->ready) {
        pause_a_while(s);
    }
    if (s->stop) {
        status = bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
    } else if ((status = store_wanted(s, data, n, offset, err)) == BL_OK) {
        s->ready = offset + n;
        if (s->ready >= s->first) { /* only then: many wait, and blocks are small */
            s->first = UINT64_MAX;
            pthread_cond_broadcast(&s->moved);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Are bytes [at, end), which the stream has passed, still there? */
static bool is_there(const bl_spool *s, uint64_t at, uint64_t end)
{
    while (s->sealed && at < end) {
        size_t k = first_after(&s->kept, at), w = first_after(&s->wanted, at);
        if (k < s->kept.count && s->kept.items[k].begin <= at) {
            at = s->kept.items[k].end;
        } else if (w < s->wanted.count && s->wanted.items[w].begin <= at && s->wanted.items[w].uses) {
            at = s->wanted.items[w].end;
        } else {
            return false;
        }
    }
    return true;
}

static bool is_kept(const bl_spool *s, uint64_t begin, uint64_t end)
{
    size_t k = first_after(&s->kept, begin);
    return begin == end || (k < s->kept.count && s->kept.items[k].begin <= begin && s->kept.items[k].end >= end);
}

static bl_status begin_stream(bl_spool *s, bl_error *err)
{
    if (!s->run) {
        return bl_fail(err, BL_E_INTERNAL, s->folder, NULL, -1, "bytes of an archive are wanted before it is known what is in it");
    }
    if (!s->started) {
        int e = pthread_create(&s->thread, NULL, stream, s);
        if (e != 0) {
            return bl_fail_errno(err, e, 0, s->folder, "cannot start a thread");
        }
        s->started = true;
    }
    return BL_OK;
}

/* Let the stream come to end; under the lock. */
static bl_status await(bl_spool *s, uint64_t end, bl_error *err)
{
    while (s->status == BL_OK && s->ready < end) {
        if (end > s->needed) {
            s->needed = end;
            pthread_cond_broadcast(&s->moved); /* the stream may have paused */
        }
        s->first = end < s->first ? end : s->first;
        pause_a_while(s);
        if (s->cancelled && s->cancelled()) {
            return bl_fail(err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
        }
    }
    if (s->ready >= end) {
        return BL_OK;
    }
    if (err && err->code == BL_OK) {
        *err = s->error;
    }
    return s->status;
}

bl_status bl_spool_wait(bl_spool *s, uint64_t begin, uint64_t end, bl_error *err)
{
    bl_status status = BL_OK;
    pthread_mutex_lock(&s->lock);
    if (!is_kept(s, begin, end) && s->ready != UINT64_MAX) {
        status = begin_stream(s, err);
        status = status == BL_OK ? await(s, end, err) : status;
    }
    if (status == BL_OK && s->run && !is_there(s, begin, end)) {
        status = bl_fail(err, BL_E_INTERNAL, s->folder, NULL, -1, "bytes of an archive are wanted that were not expected to be");
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

bool bl_spool_wants(bl_spool *s, uint64_t begin, uint64_t end)
{
    pthread_mutex_lock(&s->lock);
    bool wants = !s->sealed;
    for (size_t i = first_after(&s->wanted, begin); !wants && i < s->wanted.count && s->wanted.items[i].begin < end; i++) {
        wants = s->wanted.items[i].uses > 0;
    }
    pthread_mutex_unlock(&s->lock);
    return wants;
}

bl_status bl_spool_finish(bl_spool *s, bl_error *err)
{
    pthread_mutex_lock(&s->lock);
    bl_status status = s->started ? await(s, UINT64_MAX, err) : BL_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

uint64_t bl_spool_peak(bl_spool *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t n = s->peak;
    pthread_mutex_unlock(&s->lock);
    return n;
}
