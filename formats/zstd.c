#include "formats/zstd.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES ((size_t)256 << 10)

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for compression");
}

/* ---- writing */

struct bl_zstd_writer {
    struct archive *a;
    struct archive_entry *entry;
    bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err);
    void *arg;
    bl_status status; /* of the sink */
    bl_error error;
};

static la_ssize_t to_sink(struct archive *a, void *arg, const void *data, size_t n)
{
    bl_zstd_writer *w = arg;
    w->status = w->sink(w->arg, data, n, &w->error);
    if (w->status != BL_OK) {
        archive_set_error(a, EIO, "the sink failed");
        return -1;
    }
    return (la_ssize_t)n;
}

/* The sink's failure, or libarchive's own. */
static bl_status write_failure(const bl_zstd_writer *w, bl_error *err)
{
    if (w->status != BL_OK) {
        if (err && err->code == BL_OK) {
            *err = w->error;
        }
        return w->status;
    }
    const char *text = archive_error_string(w->a);
    return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "compression failed: %s", text ? text : "no reason given");
}

static bool start(bl_zstd_writer *w, int level)
{
    char text[16];
    snprintf(text, sizeof text, "%d", level);
    archive_entry_set_pathname(w->entry, "data");
    archive_entry_set_filetype(w->entry, AE_IFREG);
    return archive_write_set_format_raw(w->a) == ARCHIVE_OK && archive_write_add_filter_zstd(w->a) == ARCHIVE_OK &&
           archive_write_set_filter_option(w->a, "zstd", "compression-level", text) == ARCHIVE_OK &&
           archive_write_set_bytes_in_last_block(w->a, 1) == ARCHIVE_OK && /* no padding */
           archive_write_open(w->a, w, NULL, to_sink, NULL) == ARCHIVE_OK && archive_write_header(w->a, w->entry) == ARCHIVE_OK;
}

bl_status bl_zstd_writer_open(bl_zstd_writer **out, int level, bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err),
                              void *arg, bl_error *err)
{
    bl_zstd_writer *w = *out = calloc(1, sizeof *w);
    if (!w) {
        return nomem(err);
    }
    w->sink = sink;
    w->arg = arg;
    w->a = archive_write_new();
    w->entry = archive_entry_new();
    bl_status s = !w->a || !w->entry ? nomem(err) : start(w, level) ? BL_OK : write_failure(w, err);
    if (s != BL_OK) {
        bl_zstd_writer_abort(out);
    }
    return s;
}

bl_status bl_zstd_write(bl_zstd_writer *w, const void *data, size_t n, bl_error *err)
{
    for (size_t done = 0; done < n;) {
        la_ssize_t k = archive_write_data(w->a, (const char *)data + done, n - done);
        if (k <= 0) {
            return write_failure(w, err);
        }
        done += (size_t)k;
    }
    return BL_OK;
}

static void free_writer(bl_zstd_writer **wp)
{
    archive_entry_free((*wp)->entry);
    free(*wp);
    *wp = NULL;
}

bl_status bl_zstd_writer_close(bl_zstd_writer **wp, bl_error *err)
{
    bl_zstd_writer *w = *wp;
    bl_status s = archive_write_close(w->a) == ARCHIVE_OK ? BL_OK : write_failure(w, err);
    archive_write_free(w->a);
    free_writer(wp);
    return s;
}

static bl_status nowhere(void *arg, const void *data, size_t n, bl_error *err)
{
    (void)arg, (void)data, (void)n, (void)err;
    return BL_OK;
}

void bl_zstd_writer_abort(bl_zstd_writer **wp)
{
    if (*wp) {
        (*wp)->sink = nowhere; /* freeing ends the stream */
        archive_write_free((*wp)->a);
        free_writer(wp);
    }
}

/* ---- reading */

struct bl_zstd_reader {
    struct archive *a;
    bl_file *file;
    uint64_t at, end;
    const char *tensor;
    bl_status status; /* of reading the file */
    bl_error error;
    uint8_t buf[READ_BYTES];
};

static la_ssize_t from_file(struct archive *a, void *arg, const void **data)
{
    bl_zstd_reader *r = arg;
    uint64_t n = r->end - r->at < READ_BYTES ? r->end - r->at : READ_BYTES;
    *data = r->buf;
    r->status = bl_file_read(r->file, r->buf, n, r->at, &r->error);
    if (r->status != BL_OK) {
        archive_set_error(a, EIO, "cannot read");
        return -1;
    }
    r->at += n;
    return (la_ssize_t)n;
}

static bl_status read_failure(const bl_zstd_reader *r, bl_error *err)
{
    if (r->status != BL_OK) {
        if (err && err->code == BL_OK) {
            *err = r->error;
        }
        return r->status;
    }
    const char *text = archive_error_string(r->a);
    if (archive_errno(r->a) == ENOMEM) {
        return nomem(err);
    }
    return bl_fail(err, BL_E_INPUT, bl_file_path(r->file), r->tensor, -1, "is no zstd stream that can be read: %s",
                   text ? text : "no reason given");
}

bl_status bl_zstd_reader_open(bl_zstd_reader **out, bl_file *file, uint64_t offset, uint64_t nbytes, const char *tensor, bl_error *err)
{
    struct archive_entry *entry;
    bl_zstd_reader *r = *out = malloc(sizeof *r);
    if (!r) {
        return nomem(err);
    }
    memset(r, 0, offsetof(bl_zstd_reader, buf));
    r->file = bl_file_ref(file);
    r->at = offset;
    r->end = offset + nbytes;
    r->tensor = tensor;
    r->a = archive_read_new();
    bl_status s = BL_OK;
    if (!r->a) {
        s = nomem(err);
    } else if (archive_read_support_filter_zstd(r->a) != ARCHIVE_OK || archive_read_support_format_raw(r->a) != ARCHIVE_OK ||
               archive_read_open(r->a, r, NULL, from_file, NULL) != ARCHIVE_OK || archive_read_next_header(r->a, &entry) != ARCHIVE_OK) {
        s = read_failure(r, err);
    } else if (archive_filter_code(r->a, 0) != ARCHIVE_FILTER_ZSTD || archive_filter_count(r->a) != 2) {
        s = bl_fail(err, BL_E_INPUT, bl_file_path(file), tensor, -1, "is no zstd stream");
    }
    if (s != BL_OK) {
        bl_zstd_reader_close(out);
    }
    return s;
}

bl_status bl_zstd_read(bl_zstd_reader *r, void *dst, size_t n, size_t *got, bl_error *err)
{
    for (*got = 0; *got < n;) {
        la_ssize_t k = archive_read_data(r->a, (char *)dst + *got, n - *got);
        if (k < 0) {
            return read_failure(r, err);
        }
        if (k == 0) {
            break;
        }
        *got += (size_t)k;
    }
    return BL_OK;
}

void bl_zstd_reader_close(bl_zstd_reader **rp)
{
    if (*rp) {
        archive_read_free((*rp)->a);
        bl_file_close(&(*rp)->file);
        free(*rp);
        *rp = NULL;
    }
}
