#include "formats/archive_write.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define TAR_BLOCK 512u
#define ALIGN 4096u
#define USTAR_MOST 077777777777ull /* bytes of a member that an ustar header can say */
#define ZEROS ((uint64_t)64 << 20)
#define GZIP_LEVEL "1"             /* codes of weights hardly compress: higher levels cost much and gain little */

struct bl_archive_writer {
    struct archive *a;
    int fd;
    char *path;
    bl_archive_kind kind;
    uint64_t at;   /* bytes in the file */
    uint64_t left; /* of the member */
    bool begun;    /* a member */
    int failed;    /* errno of a write */
};

bl_archive_kind bl_archive_kind_of(const char *path)
{
    static const struct {
        const char *tail;
        bl_archive_kind kind;
    } known[] = {
        {".tar", BL_ARCHIVE_TAR},       {".tar.gz", BL_ARCHIVE_TAR_GZ}, {".tgz", BL_ARCHIVE_TAR_GZ},   {".tar.zst", BL_ARCHIVE_TAR_ZST},
        {".tzst", BL_ARCHIVE_TAR_ZST},  {".zip", BL_ARCHIVE_ZIP},       {".tar.xz", BL_ARCHIVE_OTHER}, {".txz", BL_ARCHIVE_OTHER},
        {".tar.bz2", BL_ARCHIVE_OTHER}, {".tar.lz4", BL_ARCHIVE_OTHER}, {".7z", BL_ARCHIVE_OTHER},     {".rar", BL_ARCHIVE_OTHER},
    };
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].tail);
        if (length > n && strcasecmp(name + length - n, known[i].tail) == 0) {
            return known[i].kind;
        }
    }
    return BL_ARCHIVE_NONE;
}

static la_ssize_t write_out(struct archive *a, void *arg, const void *data, size_t n)
{
    bl_archive_writer *w = arg;
    if (w->failed) {
        archive_set_error(a, w->failed, "write error");
        return -1;
    }
    for (size_t done = 0; done < n;) {
        ssize_t k = write(w->fd, (const char *)data + done, n - done);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            w->failed = k < 0 ? errno : EIO;
            archive_set_error(a, w->failed, "write error");
            return -1;
        }
        done += (size_t)k;
    }
    w->at += n;
    return (la_ssize_t)n;
}

static bl_status failure(const bl_archive_writer *w, const char *name, bl_error *err)
{
    const char *text = archive_error_string(w->a);
    if (w->failed) {
        return bl_fail_errno(err, w->failed, 0, w->path, "write error");
    }
    return bl_fail(err, BL_E_IO, w->path, name, -1, "cannot write the archive: %s", text ? text : "no reason given");
}

static bool configure(bl_archive_writer *w)
{
    struct archive *a = w->a;
    bool ok = true;
    if (w->kind == BL_ARCHIVE_ZIP) {
        ok = archive_write_set_format_zip(a) == ARCHIVE_OK && archive_write_zip_set_compression_store(a) == ARCHIVE_OK;
    } else {
        ok = archive_write_set_format_pax_restricted(a) == ARCHIVE_OK;
    }
    if (w->kind == BL_ARCHIVE_TAR_GZ) {
        ok = ok && archive_write_add_filter_gzip(a) == ARCHIVE_OK &&
             archive_write_set_filter_option(a, "gzip", "timestamp", NULL) == ARCHIVE_OK &&
             archive_write_set_filter_option(a, "gzip", "compression-level", GZIP_LEVEL) == ARCHIVE_OK;
    } else if (w->kind == BL_ARCHIVE_TAR_ZST) {
        ok = ok && archive_write_add_filter_zstd(a) == ARCHIVE_OK;
    }
    /* Without blocks the place of the next header is known. */
    return ok && archive_write_set_bytes_per_block(a, w->kind == BL_ARCHIVE_TAR ? 0 : 1 << 20) == ARCHIVE_OK &&
           archive_write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK && archive_write_open(a, w, NULL, write_out, NULL) == ARCHIVE_OK;
}

bl_status bl_archive_writer_open(bl_archive_writer **out, const char *path, bl_archive_kind kind, bl_error *err)
{
    *out = NULL;
    bl_archive_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->fd = -1;
        w->kind = kind;
        w->a = archive_write_new();
        w->path = strdup(path);
    }
    if (!w || !w->a || !w->path) {
        bl_archive_writer_abort(&w);
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    bl_status s = w->fd < 0     ? bl_fail_errno(err, errno, 0, path, "cannot create")
                  : configure(w) ? BL_OK
                                 : failure(w, NULL, err);
    if (s != BL_OK) {
        bl_archive_writer_abort(&w);
    }
    *out = w;
    return s;
}

/* A global pax header of n bytes, two blocks at least, that says nothing. */
static void fill_comment(char *block, size_t n)
{
    char *h = block, *body = block + TAR_BLOCK;
    unsigned sum = 0;
    size_t size = n - TAR_BLOCK;
    memset(block, 0, TAR_BLOCK);
    strcpy(h, "pax_global_header");
    snprintf(h + 100, 8, "%07o", 0644u);
    snprintf(h + 108, 8, "%07o", 0u);
    snprintf(h + 116, 8, "%07o", 0u);
    snprintf(h + 124, 12, "%011zo", size);
    snprintf(h + 136, 12, "%011o", 0u);
    memset(h + 148, ' ', 8);
    h[156] = 'g';
    memcpy(h + 257, "ustar\0" "00", 8);
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        sum += (unsigned char)h[i];
    }
    snprintf(h + 148, 8, "%06o", sum & 0777777u);
    memset(body, ' ', size);
    body[snprintf(body, size, "%zu comment=", size)] = ' ';
    body[size - 1] = '\n';
}

/* Move on so that the data of a member that comes next begins at a page. Its header is one block, three where its size needs one. */
static bl_status align(bl_archive_writer *w, const char *name, uint64_t size, bl_error *err)
{
    char block[ALIGN + TAR_BLOCK];
    uint64_t header = size > USTAR_MOST ? 3 * TAR_BLOCK : TAR_BLOCK, n = (ALIGN - (w->at + header) % ALIGN) % ALIGN;
    if (w->kind != BL_ARCHIVE_TAR || size < ALIGN || n == 0) {
        return BL_OK;
    }
    n += n == TAR_BLOCK ? ALIGN : 0;
    fill_comment(block, n);
    return write_out(w->a, w, block, n) == (la_ssize_t)n ? BL_OK : failure(w, name, err);
}

static bl_status finish_member(bl_archive_writer *w, bl_error *err)
{
    if (w->left) {
        return bl_fail(err, BL_E_INTERNAL, w->path, NULL, -1, "a member of the archive is %llu byte%s short",
                       (unsigned long long)w->left, bl_plural(w->left));
    }
    return !w->begun || archive_write_finish_entry(w->a) == ARCHIVE_OK ? BL_OK : failure(w, NULL, err);
}

bl_status bl_archive_writer_begin(bl_archive_writer *w, const char *name, uint64_t size, bl_error *err)
{
    BL_TRY(finish_member(w, err));
    BL_TRY(align(w, name, size, err));
    struct archive_entry *e = archive_entry_new();
    if (!e) {
        return bl_fail(err, BL_E_NOMEM, w->path, NULL, -1, "out of memory");
    }
    archive_entry_set_pathname(e, name);
    archive_entry_set_size(e, (la_int64_t)size);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_mtime(e, 0, 0);
    bl_status s = archive_write_header(w->a, e) == ARCHIVE_OK ? BL_OK : failure(w, name, err);
    archive_entry_free(e);
    w->left = size;
    w->begun = true;
    return s;
}

bl_status bl_archive_writer_put(bl_archive_writer *w, const void *data, uint64_t n, bl_error *err)
{
    const char *p = data;
    if (n > w->left) {
        return bl_fail(err, BL_E_INTERNAL, w->path, NULL, -1, "more bytes than a member of the archive has");
    }
    while (n > 0) {
        la_ssize_t k = archive_write_data(w->a, p, (size_t)n);
        if (k <= 0) {
            return failure(w, NULL, err);
        }
        p += k;
        n -= (uint64_t)k;
        w->left -= (uint64_t)k;
    }
    return BL_OK;
}

bl_status bl_archive_writer_close(bl_archive_writer **wp, bl_error *err)
{
    bl_archive_writer *w = *wp;
    bl_status s = finish_member(w, err);
    if (s == BL_OK && archive_write_close(w->a) != ARCHIVE_OK) {
        s = failure(w, NULL, err);
    }
    if (s == BL_OK && fsync(w->fd) != 0) {
        s = bl_fail_errno(err, errno, 0, w->path, "cannot sync");
    }
    bl_archive_writer_abort(wp);
    return s;
}

void bl_archive_writer_abort(bl_archive_writer **wp)
{
    bl_archive_writer *w = *wp;
    *wp = NULL;
    if (!w) {
        return;
    }
    if (w->a) {
        /* Freeing it writes the end of an archive, zeros for what is missing of a member included: nothing of that may reach the file.
         * Giving it up instead loses libarchive's buffer, but compressing gigabytes of zeros would take minutes. */
        w->failed = w->failed ? w->failed : ECANCELED;
        if (w->left > ZEROS && (w->kind == BL_ARCHIVE_TAR_GZ || w->kind == BL_ARCHIVE_TAR_ZST)) {
            archive_write_fail(w->a);
        }
        archive_write_free(w->a);
    }
    if (w->fd >= 0) {
        close(w->fd);
    }
    free(w->path);
    free(w);
}
