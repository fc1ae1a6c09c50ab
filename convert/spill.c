#include "convert/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct item {
    uint8_t *bytes; /* in memory, or NULL */
    uint64_t at;    /* else: 1 + where it begins in the file; 0 = nothing was put yet */
} item;

struct bl_spill {
    const char *folder;
    item *items; /* [count] */
    size_t count;
    pthread_mutex_t lock;
    int fd; /* -1 = not needed so far */
    uint64_t end;
};

bl_status bl_spill_create(bl_spill **out, const char *folder, size_t count, bl_error *err)
{
    bl_spill *s = calloc(1, sizeof *s);
    item *items = calloc(count + 1, sizeof *items);
    *out = s;
    if (!s || !items) {
        free(s);
        free(items);
        *out = NULL;
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    *s = (bl_spill){.folder = folder, .items = items, .count = count, .fd = -1};
    pthread_mutex_init(&s->lock, NULL);
    return BL_OK;
}

void bl_spill_destroy(bl_spill **sp)
{
    bl_spill *s = *sp;
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i].bytes);
    }
    if (s->fd >= 0) {
        close(s->fd);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->items);
    free(s);
    *sp = NULL;
}

static bl_status open_file(bl_spill *s, bl_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/.scales-XXXXXX", s->folder);
    s->fd = mkstemp(path);
    if (s->fd < 0) {
        return bl_fail_errno(err, errno, 0, path, "cannot create");
    }
    fcntl(s->fd, F_SETFD, FD_CLOEXEC);
    unlink(path);
    return BL_OK;
}

/* The item, with its room; under the lock. */
static bl_status reserve(bl_spill *s, size_t i, uint64_t total, item *out, bl_error *err)
{
    item *t = &s->items[i];
    if (!t->bytes && !t->at && total <= BL_SPILL_SMALL) {
        t->bytes = malloc(total);
        if (!t->bytes) {
            return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for %llu bytes of scales", (unsigned long long)total);
        }
    } else if (!t->bytes && !t->at) {
        if (s->fd < 0) {
            BL_TRY(open_file(s, err));
        }
        t->at = 1 + s->end;
        s->end += total;
    }
    *out = *t;
    return BL_OK;
}

/* Write or read all n bytes. */
static bl_status move(const bl_spill *s, void *data, uint64_t n, uint64_t offset, int writing, bl_error *err)
{
    for (uint64_t done = 0; done < n;) {
        char *p = (char *)data + done;
        ssize_t k = writing ? pwrite(s->fd, p, n - done, (off_t)(offset + done)) : pread(s->fd, p, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return bl_fail_errno(err, k < 0 ? errno : EIO, 0, s->folder, writing ? "cannot keep scales in" : "cannot read scales kept in");
        }
        done += (uint64_t)k;
    }
    return BL_OK;
}

bl_status bl_spill_put(bl_spill *s, size_t i, uint64_t total, uint64_t offset, const void *data, uint64_t n, bl_error *err)
{
    item t = {0};
    pthread_mutex_lock(&s->lock);
    bl_status r = reserve(s, i, total, &t, err);
    pthread_mutex_unlock(&s->lock);
    BL_TRY(r);
    if (!t.bytes) {
        return move(s, (void *)(uintptr_t)data, n, t.at - 1 + offset, 1, err);
    }
    memcpy(t.bytes + offset, data, n);
    return BL_OK;
}

bl_status bl_spill_take(bl_spill *s, size_t i, uint64_t total, uint64_t offset, void *data, uint64_t n, bl_error *err)
{
    pthread_mutex_lock(&s->lock);
    item t = s->items[i];
    pthread_mutex_unlock(&s->lock);
    if (!t.bytes && !t.at) {
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "scales are wanted that were not made");
    }
    if (!t.bytes) {
        return move(s, data, n, t.at - 1 + offset, 0, err);
    }
    memcpy(data, t.bytes + offset, n);
    if (offset + n == total) {
        pthread_mutex_lock(&s->lock);
        free(s->items[i].bytes);
        s->items[i].bytes = NULL;
        pthread_mutex_unlock(&s->lock);
    }
    return BL_OK;
}
