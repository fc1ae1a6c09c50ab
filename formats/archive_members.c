/* Walking through an archive: member after member, and the blocks of one. */
#include "formats/archive_parts.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES ((size_t)1 << 20)

bl_status bl_members_refuse(const bl_members *x, const char *name, const char *why)
{
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "%s", why);
}

/* libarchive knows a .zip by the directory at its end. */
static bool is_cut_zip(const bl_members *x)
{
    char magic[4];
    return archive_format(x->r) == 0 && bl_file_read(x->a->file, magic, sizeof magic, 0, NULL) == BL_OK && !memcmp(magic, "PK\3\4", 4);
}

bl_status bl_members_damaged(const bl_members *x, const char *name)
{
    int e = archive_errno(x->r);
    const char *text = archive_error_string(x->r);
    if (x->status != BL_OK) { /* of what it was to be read from */
        return bl_fail(x->err, x->status, x->a->path, name, -1, "%s", x->failure.message);
    }
    if (e == EIO || e == ENOMEM) {
        return bl_fail_errno(x->err, e, 1, x->a->path, "cannot read the archive");
    }
    if (is_cut_zip(x)) {
        return bl_members_refuse(x, name, "the archive ends without its directory: a truncated download?");
    }
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "the archive is damaged: %s", text ? text : "no reason given");
}

bl_status bl_members_interrupted(const bl_members *x)
{
    return x->cancelled && x->cancelled() ? bl_fail(x->err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted") : BL_OK;
}

static la_ssize_t from_unpacker(struct archive *r, void *arg, const void **data)
{
    bl_members *x = arg;
    size_t n;
    x->status = bl_unpacker_next(x->unpacker, data, &n, &x->failure);
    if (x->status != BL_OK) {
        archive_set_error(r, EIO, "cannot unpack");
        return -1;
    }
    return (la_ssize_t)n;
}

/* What is compressed as a whole holds a tar archive. */
static int open_unpacked(bl_members *x)
{
    archive_read_support_format_tar(x->r);
    return archive_read_open(x->r, x, NULL, from_unpacker, NULL);
}

static int open_plain(bl_members *x, int fd)
{
    archive_read_support_format_tar(x->r);
    archive_read_support_format_zip_seekable(x->r); /* by its directory, as unzip goes: one that is cut has none */
    return archive_read_open_fd(x->r, fd, READ_BYTES);
}

bl_status bl_members_open(bl_members *x)
{
    int fd = bl_file_fd(x->a->file); /* the same file each time, whatever has its name by now */
    x->r = archive_read_new();
    if (!x->r) {
        return bl_fail(x->err, BL_E_NOMEM, x->a->path, NULL, -1, "out of memory");
    }
    BL_TRY(bl_unpacker_open(&x->unpacker, x->a->file, x->err));
    if (lseek(fd, 0, SEEK_SET) != 0) {
        return bl_fail_errno(x->err, errno, 1, x->a->path, "cannot read the archive");
    }
    return (x->unpacker ? open_unpacked(x) : open_plain(x, fd)) == ARCHIVE_OK ? BL_OK : bl_members_damaged(x, NULL);
}

void bl_members_close(bl_members *x)
{
    archive_read_free(x->r);
    bl_unpacker_close(&x->unpacker);
    x->r = NULL;
}

/* Read what follows the archive's end in a compressed stream: its checksum is behind that. */
static bl_status drain(bl_members *x)
{
    const void *data;
    size_t n = 1;
    uint64_t all = 0;
    while (x->unpacker && n) {
        BL_TRY(bl_unpacker_next(x->unpacker, &data, &n, x->err));
        BL_TRY(bl_members_interrupted(x));
        all += n;
        if (all > BL_MEMBERS_SMALL && all / BL_MEMBERS_RATIO > bl_file_size(x->a->file)) {
            return bl_members_refuse(x, NULL, "unpacks to over 1000 times the size of the archive: refused");
        }
    }
    return BL_OK;
}

bl_status bl_members_next(bl_members *x, struct archive_entry **e)
{
    int rc = archive_read_next_header(x->r, e);
    if (rc == ARCHIVE_EOF) {
        *e = NULL;
        return drain(x);
    }
    return rc == ARCHIVE_OK ? BL_OK : bl_members_damaged(x, NULL);
}

bl_status bl_members_skip(const bl_members *x, const char *name)
{
    return archive_read_data_skip(x->r) == ARCHIVE_OK ? BL_OK : bl_members_damaged(x, name);
}

bl_status bl_members_blocks(const bl_members *x, const bl_member *m, bool sparse, void *arg,
                            bl_status (*each)(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough))
{
    static const char length[] = "its data is not as long as the archive says";
    const void *data;
    size_t n;
    la_int64_t at;
    uint64_t end = 0;
    int rc;
    bool enough = false;
    while (!enough && (rc = archive_read_data_block(x->r, &data, &n, &at)) == ARCHIVE_OK) {
        if ((uint64_t)at < end || (uint64_t)at > m->size || n > m->size - (uint64_t)at) {
            return bl_members_refuse(x, m->name, length);
        }
        BL_TRY(bl_members_interrupted(x));
        if (n) {
            BL_TRY(each(arg, data, n, (uint64_t)at, &enough));
        }
        end = (uint64_t)at + n;
    }
    if (enough) {
        return bl_members_skip(x, m->name);
    }
    if (rc != ARCHIVE_EOF) {
        return bl_members_damaged(x, m->name);
    }
    return sparse || end == m->size ? BL_OK : bl_members_refuse(x, m->name, length);
}
