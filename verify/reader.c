#include "verify/reader.h"

#include "verify/cover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

struct bl_reader {
    bl_file *file;
    int direct;              /* second descriptor, past the cache; -1 = none */
    _Atomic bool ask_cache;  /* RWF_NOWAIT works here */
    _Atomic bool use_direct;
    bl_cover *cover; /* NULL: nobody wants to know of its CRC-32 */
};

bl_status bl_reader_open(bl_reader **out, bl_file *f, bl_error *err)
{
    bl_reader *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) {
        return bl_fail(err, BL_E_NOMEM, bl_file_path(f), NULL, -1, "out of memory");
    }
    r->file = bl_file_ref(f);
    /* A part of another file has no name and no alignment of its own. */
    r->direct = bl_file_base(f) ? -1 : open(bl_file_path(f), O_RDONLY | O_CLOEXEC | O_DIRECT | O_NONBLOCK);
    atomic_init(&r->ask_cache, true);
    atomic_init(&r->use_direct, r->direct >= 0);
    return BL_OK;
}

void bl_reader_close(bl_reader **rp)
{
    bl_reader *r = *rp;
    if (r) {
        if (r->direct >= 0) {
            close(r->direct);
        }
        bl_cover_destroy(&r->cover);
        bl_file_close(&r->file);
        free(r);
        *rp = NULL;
    }
}

/* As many of the n bytes at offset as the page cache holds, from the front. */
static uint64_t read_cached(bl_reader *r, uint8_t *dst, uint64_t n, uint64_t offset)
{
    uint64_t got = 0;
    while (got < n && atomic_load_explicit(&r->ask_cache, memory_order_relaxed)) {
        struct iovec v = {.iov_base = dst + got, .iov_len = (size_t)(n - got)};
        ssize_t k = preadv2(bl_file_fd(r->file), &v, 1, (off_t)(bl_file_base(r->file) + offset + got), RWF_NOWAIT);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k < 0 && errno != EAGAIN) {
            atomic_store(&r->ask_cache, false);
        }
        if (k <= 0) {
            break;
        }
        got += (uint64_t)k;
    }
    return got;
}

/* Read [offset, offset + n) through the direct descriptor, whole pages around it; true when all of it came. */
static bool read_direct(bl_reader *r, uint8_t *page, uint64_t first, uint64_t end)
{
    uint64_t at = first, size = bl_file_size(r->file);
    uint64_t stop = (end + BL_IO_ALIGN - 1) / BL_IO_ALIGN * BL_IO_ALIGN;
    while (at < end) {
        ssize_t k = pread(r->direct, page + (at - first), (size_t)(stop - at), (off_t)at);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return false;
        }
        at += (uint64_t)k;
        if (at < end && (at % BL_IO_ALIGN != 0 || at >= size)) {
            return false;
        }
    }
    return true;
}

/* Bytes [from, from + n) that are not cached, into place, which is congruent to from modulo BL_IO_ALIGN and has whole pages
 * around it. The first page may overlap bytes that are there already: they are the same bytes. */
static bl_status read_uncached(bl_reader *r, uint8_t *place, uint64_t n, uint64_t from, bl_error *err)
{
    uint64_t skip = from % BL_IO_ALIGN;
    if (atomic_load_explicit(&r->use_direct, memory_order_relaxed)) {
        if (read_direct(r, place - skip, from - skip, from + n)) {
            return BL_OK;
        }
        atomic_store(&r->use_direct, false); /* the plain path works, or says what is wrong */
    }
    BL_TRY(bl_file_read(r->file, place, n, from, err));
    posix_fadvise(bl_file_fd(r->file), (off_t)(bl_file_base(r->file) + from), (off_t)n, POSIX_FADV_DONTNEED);
    return BL_OK;
}

bl_status bl_reader_watch(bl_reader *r, bl_error *err)
{
    uint32_t crc;
    return !r->cover && bl_file_crc32(r->file, &crc) ? bl_cover_create(&r->cover, err) : BL_OK;
}

bl_status bl_reader_prove(bl_reader *r, bl_error *err)
{
    return r->cover ? bl_cover_prove(r->cover, r->file, err) : BL_OK;
}

static void seen(bl_reader *r, const uint8_t *data, uint64_t n, uint64_t offset)
{
    if (r->cover) {
        (void)bl_cover_add(r->cover, data, n, offset); /* what it has no room for is read again */
    }
}

bl_status bl_reader_read(bl_reader *r, uint8_t *buf, uint64_t n, uint64_t offset, const uint8_t **data, bl_error *err)
{
    uint8_t *dst = buf + offset % BL_IO_ALIGN;
    *data = dst;
    BL_TRY(bl_file_wait(r->file, offset, n, err));
    uint64_t got = read_cached(r, dst, n, offset);
    BL_TRY(got == n ? BL_OK : read_uncached(r, dst + got, n - got, offset + got, err));
    seen(r, dst, n, offset);
    return BL_OK;
}

bl_status bl_reader_copy(bl_reader *r, uint8_t *dst, uint8_t *buf, uint64_t n, uint64_t offset, bl_error *err)
{
    BL_TRY(bl_file_wait(r->file, offset, n, err));
    uint64_t got = read_cached(r, dst, n, offset);
    if (got < n) {
        uint8_t *place = buf + (offset + got) % BL_IO_ALIGN;
        BL_TRY(read_uncached(r, place, n - got, offset + got, err));
        memcpy(dst + got, place, n - got);
    }
    seen(r, dst, n, offset);
    return BL_OK;
}
