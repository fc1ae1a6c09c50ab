/* Reading an archive: once for names, small files and headers, and where that could not keep everything once more for the weights. */
#include "formats/archive_parts.h"

#include "formats/safetensors.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_MEMBERS 100000
#define MAX_SMALL ((uint64_t)1 << 30)
#define MAX_RATIO 1000
#define READ_BYTES ((size_t)1 << 20)
#define SPOOL_ALIGN ((uint64_t)4096)
#define AHEAD ((uint64_t)64 << 20) /* bytes that are unpacked before they are needed, so that both sides work at once */
#define HEAD ((uint64_t)4096) /* bytes kept of a member in any case: enough to say what it is if it is no safetensors file */

typedef struct scanner {
    bl_archive *a;
    const bl_archive_options *o;
    struct archive *r;
    bl_error *err;
    bool filling; /* everything is kept so far */
    uint64_t unpacked; /* bytes of small files */
} scanner;

/* Bytes of a member that stay in the spool: its header, and scales that a plan looks at before it reads any weights. */
typedef struct probe {
    bl_member *m;
    uint64_t head; /* bytes of the header */
    bool sized, parsed;
    uint64_t *stay; /* [2 * stay_count] begin and end in the member, ascending */
    size_t stay_count;
} probe;

static bl_status nomem(const scanner *x)
{
    return bl_fail(x->err, BL_E_NOMEM, x->a->path, NULL, -1, "out of memory");
}

static bl_status refuse(const scanner *x, const char *name, const char *why)
{
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "%s", why);
}

static bl_status damaged(const scanner *x, const char *name)
{
    int e = archive_errno(x->r);
    const char *text = archive_error_string(x->r);
    if (e == EIO || e == ENOMEM) {
        return bl_fail_errno(x->err, e, 1, x->a->path, "cannot read the archive");
    }
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "the archive is damaged: %s", text ? text : "no reason given");
}

static bl_status interrupted(const scanner *x)
{
    return x->o->cancelled && x->o->cancelled() ? bl_fail(x->err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted") : BL_OK;
}

static bl_status open_reader(scanner *x)
{
    x->r = archive_read_new();
    if (!x->r) {
        return nomem(x);
    }
    archive_read_support_filter_gzip(x->r);
    archive_read_support_filter_zstd(x->r);
    archive_read_support_filter_xz(x->r);
    archive_read_support_format_tar(x->r);
    archive_read_support_format_zip_seekable(x->r); /* by its directory, as unzip goes: one that is cut has none */
    int fd = bl_file_fd(x->a->file); /* the same file each time, whatever has its name by now */
    if (lseek(fd, 0, SEEK_SET) != 0) {
        return bl_fail_errno(x->err, errno, 1, x->a->path, "cannot read the archive");
    }
    return archive_read_open_fd(x->r, fd, READ_BYTES) == ARCHIVE_OK ? BL_OK : damaged(x, NULL);
}

static void close_reader(scanner *x)
{
    archive_read_free(x->r);
    x->r = NULL;
}

/* ---- what a member may be */

/* A size that no real data of this archive can have is a bomb, or a lie. */
static bl_status check_amount(const scanner *x, const char *name, uint64_t size)
{
    if (bl_entry_is_small(name) && size > MAX_SMALL) {
        return refuse(x, name, "has more than 1 GiB, which no small file of a checkpoint has");
    }
    uint64_t all = x->a->spooled + x->unpacked;
    if (bl_add_overflow(all, size, &all) || (all > MAX_SMALL && all / MAX_RATIO > bl_file_size(x->a->file))) {
        return refuse(x, name, "unpacks to over 1000 times the size of the archive: refused");
    }
    return interrupted(x);
}

static bl_status add_member(scanner *x, const char *name, bl_member_kind kind, uint64_t base, uint64_t size)
{
    bl_archive *a = x->a;
    if (a->count == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        bl_member *grown = realloc(a->members, cap * sizeof *grown);
        if (!grown) {
            return nomem(x);
        }
        a->members = grown;
        a->cap = cap;
    }
    if (a->count >= MAX_MEMBERS) {
        return refuse(x, name, "is one of more than 100000 members: no checkpoint has so many");
    }
    char *copy = strdup(name);
    if (!copy) {
        return nomem(x);
    }
    a->members[a->count++] = (bl_member){.name = copy, .kind = kind, .base = base, .size = size};
    return BL_OK;
}

/* ---- small files */

static bl_status put(const scanner *x, int fd, const char *p, size_t n, int64_t at)
{
    while (n > 0) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return bl_fail_errno(x->err, k < 0 ? errno : EIO, 0, x->a->folder.path, "cannot unpack");
        }
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return BL_OK;
}

static bl_status unpack(scanner *x, const char *name, int fd)
{
    const void *data;
    size_t n;
    la_int64_t at, end = 0;
    int rc;
    BL_TRY(add_member(x, name, BL_MEMBER_UNPACKED, 0, 0));
    while ((rc = archive_read_data_block(x->r, &data, &n, &at)) == ARCHIVE_OK) {
        if (at < end) {
            return refuse(x, name, "its parts overlap");
        }
        BL_TRY(check_amount(x, name, (uint64_t)at + n));
        BL_TRY(put(x, fd, data, n, at));
        end = at + (la_int64_t)n;
    }
    x->unpacked += (uint64_t)end;
    return rc == ARCHIVE_EOF ? BL_OK : damaged(x, name);
}

/* ---- weights that lie in the archive as they are */

/* Is the data that comes next a range of the archive's file, at archive_filter_bytes(, 0)? */
static bool is_range(const scanner *x, struct archive_entry *e)
{
    int format = archive_format(x->r) & ARCHIVE_FORMAT_BASE_MASK;
    const char *name = archive_format_name(x->r);
    return archive_filter_code(x->r, 0) == ARCHIVE_FILTER_NONE && archive_entry_sparse_count(e) == 0 && archive_entry_size(e) > 0 &&
           (format == ARCHIVE_FORMAT_TAR || (format == ARCHIVE_FORMAT_ZIP && name && strstr(name, "(uncompressed)")));
}

/* Where libarchive says that the data begins, does it? Compared with the first block of it. */
static bool begins_there(const scanner *x, uint64_t base, uint64_t size)
{
    const void *data;
    size_t n;
    la_int64_t at;
    char have[4096];
    if (archive_read_data_block(x->r, &data, &n, &at) != ARCHIVE_OK || at != 0 || n == 0) {
        return false;
    }
    n = n < sizeof have ? n : sizeof have;
    return n <= size && bl_file_read(x->a->file, have, n, base, NULL) == BL_OK && memcmp(have, data, n) == 0;
}

static bl_status take_range(scanner *x, const char *name, uint64_t size)
{
    uint64_t base = (uint64_t)archive_filter_bytes(x->r, 0), all = bl_file_size(x->a->file);
    if (base > all || size > all - base) {
        return refuse(x, name, "ends beyond the archive: a truncated download?");
    }
    if (!begins_there(x, base, size)) {
        return refuse(x, name, "its data is not where the archive says");
    }
    BL_TRY(add_member(x, name, BL_MEMBER_RANGE, base, size));
    return archive_read_data_skip(x->r) == ARCHIVE_OK ? BL_OK : damaged(x, name);
}

/* ---- weights that come out of the spool */

static bl_status read_spool(const scanner *x, void *dst, size_t n, uint64_t offset)
{
    ssize_t k;
    do {
        k = pread(bl_spool_fd(x->a->spool), dst, n, (off_t)offset);
    } while (k < 0 && errno == EINTR);
    return k == (ssize_t)n ? BL_OK : bl_fail_errno(x->err, k < 0 ? errno : EIO, 0, x->a->spill, "cannot read a temporary file in");
}

/* After eight bytes it is known how long the header is. */
static bl_status measure_head(scanner *x, probe *p)
{
    uint8_t b[8];
    uint64_t n = 0;
    p->sized = true;
    if (p->m->size < sizeof b) {
        return BL_OK;
    }
    BL_TRY(read_spool(x, b, sizeof b, p->m->base));
    for (int i = 8; i-- > 0;) {
        n = n << 8 | b[i];
    }
    if (n <= BL_ST_MAX_HEADER && n + 8 <= p->m->size && n + 8 > p->head) {
        p->head = n + 8;
    }
    return BL_OK;
}

/* Float32 scales. A header that is no good has none: whoever opens the member says what is wrong. */
static bl_status list_scales(scanner *x, probe *p)
{
    bl_file *f;
    bl_arena arena = {0};
    bl_st_header h;
    p->parsed = true;
    BL_TRY(bl_file_spooled(&f, x->a->spool, p->m->base, p->m->size, p->m->name, x->err));
    bl_status s = bl_st_read(f, 0, &arena, &h, NULL);
    bl_file_close(&f);
    if (s == BL_OK) {
        p->stay = calloc(2 * h.count + 1, sizeof *p->stay);
        for (size_t i = 0; p->stay && i < h.count; i++) {
            const bl_tensor *t = &h.tensors[i];
            if (t->dtype == BL_DT_F32 && strstr(t->name, "scale")) {
                p->stay[2 * p->stay_count] = t->offset;
                p->stay[2 * p->stay_count++ + 1] = t->offset + t->nbytes;
            }
        }
        s = p->stay ? BL_OK : nomem(x);
    }
    bl_arena_reset(&arena);
    return s == BL_E_INPUT ? BL_OK : s;
}

static bl_status keep(scanner *x, const probe *p, const char *data, uint64_t at, uint64_t end, uint64_t from, uint64_t to)
{
    from = from > at ? from : at;
    to = to < end ? to : end;
    return from < to ? bl_spool_keep(x->a->spool, data + (from - at), to - from, p->m->base + from, x->err) : BL_OK;
}

/* A block of a member: what stays is kept. */
static bl_status look(scanner *x, probe *p, const char *data, uint64_t n, uint64_t at)
{
    uint64_t end = at + n;
    if (x->filling) {
        BL_TRY(bl_spool_fill(x->a->spool, data, n, p->m->base + at, x->err));
    }
    if (!p->sized) {
        BL_TRY(keep(x, p, data, at, end, 0, 8));
        BL_TRY(end >= 8 || end == p->m->size ? measure_head(x, p) : BL_OK);
        BL_TRY(keep(x, p, data, at, end, 8, p->sized ? p->head : 8));
    } else {
        BL_TRY(keep(x, p, data, at, end, 0, p->head));
    }
    if (p->sized && !p->parsed && end >= p->head) {
        BL_TRY(list_scales(x, p));
    }
    for (size_t i = 0; i < p->stay_count; i++) {
        BL_TRY(keep(x, p, data, at, end, p->stay[2 * i], p->stay[2 * i + 1]));
    }
    return BL_OK;
}

/* The blocks of a member that holds size bytes, in order. each may end the reading early. */
static bl_status read_blocks(scanner *x, const bl_member *m, bool sparse, void *arg,
                             bl_status (*each)(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough))
{
    const void *data;
    size_t n;
    la_int64_t at;
    uint64_t end = 0;
    int rc;
    bool enough = false;
    while (!enough && (rc = archive_read_data_block(x->r, &data, &n, &at)) == ARCHIVE_OK) {
        if ((uint64_t)at < end || (uint64_t)at > m->size || n > m->size - (uint64_t)at) {
            return refuse(x, m->name, "its data is not as long as the archive says");
        }
        BL_TRY(interrupted(x));
        if (n) {
            BL_TRY(each(arg, data, n, (uint64_t)at, &enough));
        }
        end = (uint64_t)at + n;
    }
    if (enough) {
        return archive_read_data_skip(x->r) == ARCHIVE_OK ? BL_OK : damaged(x, m->name);
    }
    if (rc != ARCHIVE_EOF) {
        return damaged(x, m->name);
    }
    return sparse || end == m->size ? BL_OK : refuse(x, m->name, "its data is not as long as the archive says");
}

typedef struct probing {
    scanner *x;
    probe *p;
} probing;

static bl_status probe_block(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough)
{
    probing *g = arg;
    const probe *p = g->p;
    BL_TRY(look(g->x, g->p, data, n, at));
    *enough = !g->x->filling && p->parsed && (p->stay_count == 0 || p->stay[2 * p->stay_count - 1] <= at + n);
    return BL_OK;
}

static bl_status take_spooled(scanner *x, const char *name, uint64_t size, bool sparse)
{
    bl_archive *a = x->a;
    if (!a->spool) {
        uint64_t pause = x->o->spill_max > AHEAD ? x->o->spill_max : AHEAD;
        BL_TRY(bl_spool_create(&a->spool, a->spill, pause, x->o->cancelled, x->err));
        x->filling = true;
    }
    uint64_t base = SPOOL_ALIGN;
    if (a->count_spooled) {
        const bl_member *last = &a->members[a->last_spooled];
        base = (last->base + last->size + SPOOL_ALIGN - 1) / SPOOL_ALIGN * SPOOL_ALIGN;
    }
    a->spooled += size;
    if (x->filling && a->spooled > x->o->spill_max) {
        bl_spool_drop(a->spool);
        x->filling = false;
    }
    BL_TRY(add_member(x, name, BL_MEMBER_SPOOLED, base, size));
    a->last_spooled = a->count - 1;
    a->count_spooled++;
    probe p = {.m = &a->members[a->count - 1], .head = size < HEAD ? size : HEAD};
    bl_status s = read_blocks(x, p.m, sparse, &(probing){x, &p}, probe_block);
    free(p.stay);
    return s;
}

/* ---- the first reading */

static bl_status weights(scanner *x, struct archive_entry *e, const char *name, int fd)
{
    if (!archive_entry_size_is_set(e)) {
        return refuse(x, name, "does not say how long it is");
    }
    uint64_t size = (uint64_t)archive_entry_size(e);
    BL_TRY(is_range(x, e) ? take_range(x, name, size) : take_spooled(x, name, size, archive_entry_sparse_count(e) > 0));
    return ftruncate(fd, (off_t)size) == 0 ? BL_OK : bl_fail_errno(x->err, errno, 0, x->a->folder.path, "cannot make a hole in");
}

static bl_status read_member(scanner *x, struct archive_entry *e)
{
    const char *why, *name = bl_entry_name(e, &why);
    int fd;
    bool twice;
    if (why) {
        return refuse(x, *name ? name : NULL, why);
    }
    if (archive_entry_filetype(e) == AE_IFDIR) {
        return BL_OK;
    }
    bool is_weights = bl_entry_is_weights(name);
    uint64_t size = archive_entry_size_is_set(e) ? (uint64_t)archive_entry_size(e) : 0;
    if (!is_weights || !is_range(x, e)) {
        BL_TRY(check_amount(x, name, size));
    }
    BL_TRY(bl_archive_folder_create(&x->a->folder, name, is_weights ? 0 : size, &fd, &twice, x->err));
    if (twice) {
        return refuse(x, name, "occurs twice in the archive");
    }
    bl_status s = is_weights ? weights(x, e, name, fd) : unpack(x, name, fd);
    if (close(fd) != 0 && s == BL_OK) {
        s = bl_fail_errno(x->err, errno, 0, x->a->folder.path, "cannot unpack");
    }
    return s;
}

static bl_status read_all(scanner *x)
{
    struct archive_entry *e;
    int rc;
    BL_TRY(open_reader(x));
    while ((rc = archive_read_next_header(x->r, &e)) == ARCHIVE_OK) {
        BL_TRY(read_member(x, e));
        BL_TRY(interrupted(x));
    }
    if (rc != ARCHIVE_EOF) {
        return damaged(x, NULL);
    }
    return x->a->count ? BL_OK : refuse(x, NULL, "is an archive without files");
}

/* ---- the second reading, in the spool's thread */

typedef struct streaming {
    scanner *x;
    const bl_member *m;
} streaming;

static bl_status stream_block(void *arg, const char *data, uint64_t n, uint64_t at, bool *enough)
{
    const streaming *g = arg;
    *enough = false;
    return bl_spool_put(g->x->a->spool, data, n, g->m->base + at, g->x->err);
}

static bl_status stream_member(scanner *x, struct archive_entry *e, const bl_member *m)
{
    if (m->kind != BL_MEMBER_SPOOLED || !bl_spool_wants(x->a->spool, m->base, m->base + m->size)) {
        return archive_read_data_skip(x->r) == ARCHIVE_OK ? BL_OK : damaged(x, m->name);
    }
    BL_TRY(read_blocks(x, m, archive_entry_sparse_count(e) > 0, &(streaming){x, m}, stream_block));
    return bl_spool_put(x->a->spool, "", 0, m->base + m->size, x->err); /* a hole at its end */
}

static bl_status stream_all(scanner *x)
{
    struct archive_entry *e;
    size_t at = 0;
    int rc;
    BL_TRY(open_reader(x));
    while ((rc = archive_read_next_header(x->r, &e)) == ARCHIVE_OK) {
        const char *why, *name = bl_entry_name(e, &why);
        if (!why && archive_entry_filetype(e) == AE_IFDIR) {
            continue;
        }
        const bl_member *m = at < x->a->count ? &x->a->members[at++] : NULL;
        if (why || !m || strcmp(m->name, name) != 0 || (m->kind == BL_MEMBER_SPOOLED && (uint64_t)archive_entry_size(e) != m->size)) {
            return refuse(x, NULL, "changed while it was being read");
        }
        BL_TRY(stream_member(x, e, m));
    }
    if (rc != ARCHIVE_EOF) {
        return damaged(x, NULL);
    }
    return at == x->a->count ? BL_OK : refuse(x, NULL, "changed while it was being read");
}

static bl_status stream(void *arg, bl_error *err)
{
    static const bl_archive_options none; /* who waits polls; the spool stops the stream */
    scanner x = {.a = arg, .o = &none, .err = err};
    bl_status s = stream_all(&x);
    close_reader(&x);
    return s;
}

bl_status bl_archive_scan(bl_archive *a, const bl_archive_options *o, bl_error *err)
{
    scanner x = {.a = a, .o = o, .err = err};
    bl_status s = read_all(&x);
    close_reader(&x);
    if (s == BL_OK && x.filling) {
        bl_spool_complete(a->spool);
    } else if (s == BL_OK && a->spool) {
        bl_spool_source(a->spool, stream, a);
    }
    return s;
}
