#include "convert/writer.h"

#include "verify/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A page that tiles share, being collected. */
typedef struct edge {
    struct edge *next;
    uint64_t offset;
    uint32_t filled;
    uint8_t *page; /* [BL_IO_ALIGN], aligned to it */
} edge;

struct bl_writer {
    bl_output *out;
    uint64_t size;
    bool direct;
    pthread_mutex_t lock;
    edge *edges;
    char *path;
};

/* Can fd take direct writes? Asked with the first page, which is written again later. Only sizes of a page and more matter. */
static bool try_direct(int fd, uint64_t size)
{
    int flags = fcntl(fd, F_GETFL);
    if (size < BL_IO_ALIGN || flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
        return false;
    }
    uint8_t *page = aligned_alloc(BL_IO_ALIGN, BL_IO_ALIGN);
    bool ok = false;
    if (page) {
        memset(page, 0, BL_IO_ALIGN);
        ok = pwrite(fd, page, BL_IO_ALIGN, 0) == (ssize_t)BL_IO_ALIGN;
    }
    free(page);
    return ok || fcntl(fd, F_SETFL, flags) != 0;
}

bl_status bl_writer_open(bl_writer **out, const char *path, uint64_t size, bl_error *err)
{
    bl_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    bl_status s = bl_output_open(&w->out, path, size, err);
    if (s != BL_OK) {
        free(w->path);
        free(w);
        return s;
    }
    w->size = size;
    w->direct = try_direct(bl_output_fd(w->out), size);
    pthread_mutex_init(&w->lock, NULL);
    *out = w;
    return BL_OK;
}

static edge *new_edge(uint64_t offset)
{
    edge *e = calloc(1, sizeof *e);
    if (e) {
        e->page = aligned_alloc(BL_IO_ALIGN, BL_IO_ALIGN);
        e->offset = offset;
    }
    if (e && !e->page) {
        free(e);
        e = NULL;
    }
    return e;
}

static void free_edge(edge *e)
{
    free(e->page);
    free(e);
}

/* Add n bytes inside one page; write the page when that fills it. */
static bl_status put_edge(bl_writer *w, const uint8_t *data, uint32_t n, uint64_t offset, bl_error *err)
{
    uint64_t page = offset - offset % BL_IO_ALIGN;
    edge *full = NULL;
    pthread_mutex_lock(&w->lock);
    edge **at = &w->edges;
    while (*at && (*at)->offset != page) {
        at = &(*at)->next;
    }
    edge *e = *at;
    if (!e && (e = new_edge(page)) != NULL) {
        *at = e;
    }
    if (e) {
        memcpy(e->page + offset % BL_IO_ALIGN, data, n);
        e->filled += n;
        if (e->filled == BL_IO_ALIGN) {
            full = e;
            *at = e->next;
        }
    }
    pthread_mutex_unlock(&w->lock);
    if (!e) {
        return bl_fail(err, BL_E_NOMEM, w->path, NULL, -1, "out of memory");
    }
    bl_status s = BL_OK;
    if (full) {
        s = bl_output_write(w->out, full->page, BL_IO_ALIGN, page, err);
        free_edge(full);
    }
    return s;
}

bl_status bl_writer_put(bl_writer *w, const uint8_t *data, uint64_t n, uint64_t offset, bl_error *err)
{
    if (!w->direct) {
        return bl_output_write(w->out, data, n, offset, err);
    }
    uint64_t end = offset + n, head = (BL_IO_ALIGN - offset % BL_IO_ALIGN) % BL_IO_ALIGN;
    head = head < n ? head : n;
    uint64_t tail = head < n ? end % BL_IO_ALIGN : 0, middle = n - head - tail;
    if (head) {
        BL_TRY(put_edge(w, data, (uint32_t)head, offset, err));
    }
    if (tail) {
        BL_TRY(put_edge(w, data + head + middle, (uint32_t)tail, offset + head + middle, err));
    }
    return middle ? bl_output_write(w->out, data + head, middle, offset + head, err) : BL_OK;
}

/* The only page left may be the last one, cut short by the end of the file: write it whole, then set the size. */
static bl_status put_last(bl_writer *w, bl_error *err)
{
    edge *e = w->edges;
    if (!e) {
        return BL_OK;
    }
    if (e->next || e->offset + e->filled != w->size) {
        return bl_fail(err, BL_E_INTERNAL, w->path, NULL, (int64_t)e->offset, "bytes of this page were never written");
    }
    memset(e->page + e->filled, 0, BL_IO_ALIGN - e->filled);
    BL_TRY(bl_output_write(w->out, e->page, BL_IO_ALIGN, e->offset, err));
    if (ftruncate(bl_output_fd(w->out), (off_t)w->size) != 0) {
        return bl_fail_errno(err, errno, 0, w->path, "cannot set the size");
    }
    return BL_OK;
}

static void destroy(bl_writer **wp)
{
    bl_writer *w = *wp;
    while (w->edges) {
        edge *e = w->edges;
        w->edges = e->next;
        free_edge(e);
    }
    pthread_mutex_destroy(&w->lock);
    free(w->path);
    free(w);
    *wp = NULL;
}

bl_status bl_writer_commit(bl_writer **wp, bl_error *err)
{
    bl_writer *w = *wp;
    bl_status s = put_last(w, err);
    if (s == BL_OK) {
        s = bl_output_commit(&w->out, err);
    } else {
        bl_output_abort(&w->out);
    }
    destroy(wp);
    return s;
}

void bl_writer_abort(bl_writer **wp)
{
    if (*wp) {
        bl_output_abort(&(*wp)->out);
        destroy(wp);
    }
}
