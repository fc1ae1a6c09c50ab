#include "formats/unpacker.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define IN_BYTES ((size_t)256 << 10)
#define OUT_BYTES ((size_t)1 << 20)
#define GZIP_WINDOW (15 + 16) /* zlib's largest window, in a gzip wrapper */

struct bl_unpacker {
    const bl_file *file;
    uint64_t at; /* bytes read of it */
    /* gzip */
    bool gzip, between; /* members: one has ended, and what follows is not known */
    bool open;          /* z is */
    z_stream z;
    uint8_t *out;
    /* the others */
    struct archive *r;
    bl_status status; /* of reading the file, or of inflating */
    bl_error error;
    uint8_t in[IN_BYTES];
};

static bl_status nomem(const bl_unpacker *u, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, bl_file_path(u->file), NULL, -1, "out of memory for unpacking");
}

static bl_status damaged(const bl_unpacker *u, const char *why, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, bl_file_path(u->file), NULL, -1, "the archive is damaged: %s", why);
}

static bl_status cut(const bl_unpacker *u, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, bl_file_path(u->file), NULL, -1, "the archive ends too early: a truncated download?");
}

static bl_status forward(const bl_unpacker *u, bl_error *err)
{
    if (u->status != BL_OK && err && err->code == BL_OK) {
        *err = u->error;
    }
    return u->status;
}

/* What comes next of the file, into in from byte kept on; *n is 0 at its end. */
static bl_status read_on(bl_unpacker *u, size_t kept, size_t *n, bl_error *err)
{
    uint64_t left = bl_file_size(u->file) - u->at;
    *n = left < IN_BYTES - kept ? (size_t)left : IN_BYTES - kept;
    BL_TRY(bl_file_read(u->file, u->in + kept, *n, u->at, err));
    u->at += *n;
    return BL_OK;
}

/* ---- gzip */

/* At least want bytes of input, unless the file has no more. */
static bl_status fill(bl_unpacker *u, size_t want, bl_error *err)
{
    size_t n, kept = u->z.avail_in;
    if (kept >= want) {
        return BL_OK;
    }
    if (kept) {
        memmove(u->in, u->z.next_in, kept);
    }
    BL_TRY(read_on(u, kept, &n, err));
    u->z.next_in = u->in;
    u->z.avail_in = (uInt)(kept + n);
    return BL_OK;
}

/* Behind a member: another one, or zeros to the end, as they fill up blocks. */
static bl_status next_member(bl_unpacker *u, bool *end, bl_error *err)
{
    BL_TRY(fill(u, 2, err));
    *end = false;
    if (u->z.avail_in >= 2 && u->z.next_in[0] == 0x1f && u->z.next_in[1] == 0x8b) {
        u->between = false;
        return inflateReset(&u->z) == Z_OK ? BL_OK : nomem(u, err);
    }
    while (u->z.avail_in) {
        for (; u->z.avail_in && *u->z.next_in == 0; u->z.avail_in--) {
            u->z.next_in++;
        }
        if (u->z.avail_in) {
            return damaged(u, "something else follows the gzip data", err);
        }
        BL_TRY(fill(u, 1, err));
    }
    *end = true;
    return BL_OK;
}

/* Some more of the output, unless the end is met. */
static bl_status inflate_some(bl_unpacker *u, bool *end, bl_error *err)
{
    *end = false;
    BL_TRY(u->between ? next_member(u, end, err) : fill(u, 1, err));
    if (*end) {
        return BL_OK;
    }
    if (!u->z.avail_in) {
        return cut(u, err);
    }
    int rc = inflate(&u->z, Z_NO_FLUSH);
    u->between = rc == Z_STREAM_END;
    if (rc == Z_OK || rc == Z_STREAM_END) {
        return BL_OK;
    }
    return rc == Z_MEM_ERROR ? nomem(u, err) : damaged(u, u->z.msg ? u->z.msg : "it is no gzip data", err);
}

/* A failure is told when everything before it was handed out. */
static bl_status next_gzip(bl_unpacker *u, size_t *n, bl_error *err)
{
    u->z.next_out = u->out;
    u->z.avail_out = (uInt)OUT_BYTES;
    for (bool end = false; u->status == BL_OK && !end && u->z.avail_out;) {
        u->status = inflate_some(u, &end, &u->error);
    }
    *n = OUT_BYTES - u->z.avail_out;
    return *n ? BL_OK : forward(u, err);
}

static bl_status open_gzip(bl_unpacker *u, bl_error *err)
{
    u->gzip = true;
    u->out = malloc(OUT_BYTES);
    u->open = u->out && inflateInit2(&u->z, GZIP_WINDOW) == Z_OK;
    return u->open ? BL_OK : nomem(u, err);
}

/* ---- the others */

static la_ssize_t from_file(struct archive *a, void *arg, const void **data)
{
    bl_unpacker *u = arg;
    size_t n;
    *data = u->in;
    u->status = read_on(u, 0, &n, &u->error);
    if (u->status != BL_OK) {
        archive_set_error(a, EIO, "cannot read");
        return -1;
    }
    return (la_ssize_t)n;
}

static bl_status failure(const bl_unpacker *u, bl_error *err)
{
    if (u->status != BL_OK) {
        return forward(u, err);
    }
    if (archive_errno(u->r) == ENOMEM) {
        return nomem(u, err);
    }
    const char *text = archive_error_string(u->r);
    return text && !strstr(text, "runcated") && !strstr(text, "No progress") ? damaged(u, text, err) : cut(u, err);
}

static bl_status open_other(bl_unpacker *u, bl_error *err)
{
    struct archive_entry *e;
    u->r = archive_read_new();
    if (!u->r) {
        return nomem(u, err);
    }
    bool opened = archive_read_support_filter_zstd(u->r) == ARCHIVE_OK && archive_read_support_filter_xz(u->r) == ARCHIVE_OK &&
                  archive_read_support_format_raw(u->r) == ARCHIVE_OK && archive_read_open(u->r, u, NULL, from_file, NULL) == ARCHIVE_OK &&
                  archive_read_next_header(u->r, &e) == ARCHIVE_OK;
    return opened ? BL_OK : failure(u, err);
}

static bl_status next_other(bl_unpacker *u, const void **data, size_t *n, bl_error *err)
{
    la_int64_t at;
    int rc;
    do {
        rc = archive_read_data_block(u->r, data, n, &at);
    } while (rc == ARCHIVE_OK && *n == 0);
    *n = rc == ARCHIVE_OK ? *n : 0;
    return rc == ARCHIVE_OK || rc == ARCHIVE_EOF ? BL_OK : failure(u, err);
}

/* ---- either */

bl_status bl_unpacker_open(bl_unpacker **out, const bl_file *f, bl_error *err)
{
    uint8_t b[6] = {0};
    uint64_t n = bl_file_size(f) < sizeof b ? bl_file_size(f) : sizeof b;
    *out = NULL;
    BL_TRY(bl_file_read(f, b, n, 0, err));
    bool gzip = memcmp(b, "\x1f\x8b", 2) == 0, other = memcmp(b, "\x28\xb5\x2f\xfd", 4) == 0 || memcmp(b, "\xfd" "7zXZ", 6) == 0;
    if (!gzip && !other) {
        return BL_OK;
    }
    bl_unpacker *u = calloc(1, sizeof *u);
    if (!u) {
        return bl_fail(err, BL_E_NOMEM, bl_file_path(f), NULL, -1, "out of memory for unpacking");
    }
    u->file = f;
    bl_status s = gzip ? open_gzip(u, err) : open_other(u, err);
    if (s != BL_OK) {
        bl_unpacker_close(&u);
    }
    *out = u;
    return s;
}

bl_status bl_unpacker_next(bl_unpacker *u, const void **data, size_t *n, bl_error *err)
{
    *data = u->out;
    *n = 0;
    return u->gzip ? next_gzip(u, n, err) : next_other(u, data, n, err);
}

void bl_unpacker_close(bl_unpacker **up)
{
    bl_unpacker *u = *up;
    *up = NULL;
    if (!u) {
        return;
    }
    if (u->open) {
        inflateEnd(&u->z);
    }
    archive_read_free(u->r);
    free(u->out);
    free(u);
}
