/* The first reading of an archive: names, small files, and of weights the headers. */
#include "formats/archive_parts.h"

#include "formats/safetensors.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_MEMBERS 100000
#define SPOOL_ALIGN ((uint64_t)4096)
#define AHEAD ((uint64_t)64 << 20) /* bytes that are unpacked before they are needed, so that both sides work at once */
#define HEAD ((uint64_t)4096) /* bytes kept of a member in any case: enough to say what it is if it is no safetensors file */

typedef struct scanner {
    bl_members m;
    bl_archive *a;
    const bl_archive_options *o;
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
    return bl_members_refuse(&x->m, name, why);
}

/* ---- what a member may be */

/* A size that no real data of this archive can have is a bomb, or a lie. */
static bl_status check_amount(const scanner *x, const char *name, uint64_t size)
{
    if (bl_entry_is_small(name) && size > BL_MEMBERS_SMALL) {
        return refuse(x, name, "has more than 1 GiB, which no small file of a checkpoint has");
    }
    uint64_t all = x->a->spooled + x->unpacked;
    if (bl_add_overflow(all, size, &all) || (all > BL_MEMBERS_SMALL && all / BL_MEMBERS_RATIO > bl_file_size(x->a->file))) {
        return refuse(x, name, "unpacks to over 1000 times the size of the archive: refused");
    }
    return bl_members_interrupted(&x->m);
}

static bl_status add_member(scanner *x, const char *name, bl_member_kind kind, uint64_t base, uint64_t size)
{
    bl_archive *a = x->a;
    bl_member *grown = bl_grow(a->members, &a->cap, a->count, sizeof *grown);
    if (!grown) {
        return nomem(x);
    }
    a->members = grown;
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
            return bl_fail_errno(x->err, k < 0 ? errno : EIO, 0, x->a->spill, "cannot unpack there");
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
    while ((rc = archive_read_data_block(x->m.r, &data, &n, &at)) == ARCHIVE_OK) {
        if (at < end) {
            return refuse(x, name, "its parts overlap");
        }
        BL_TRY(check_amount(x, name, (uint64_t)at + n));
        BL_TRY(put(x, fd, data, n, at));
        end = at + (la_int64_t)n;
    }
    x->unpacked += (uint64_t)end;
    return rc == ARCHIVE_EOF ? BL_OK : bl_members_damaged(&x->m, name);
}

/* ---- weights that lie in the archive as they are */

/* Is the data that comes next a range of the archive's file, at archive_filter_bytes(, 0)? */
static bool is_range(const scanner *x, struct archive_entry *e)
{
    int format = archive_format(x->m.r) & ARCHIVE_FORMAT_BASE_MASK;
    const char *name = archive_format_name(x->m.r);
    return !x->m.unpacker && archive_entry_sparse_count(e) == 0 && archive_entry_size(e) > 0 &&
           (format == ARCHIVE_FORMAT_TAR || (format == ARCHIVE_FORMAT_ZIP && name && strstr(name, "(uncompressed)")));
}

/* Where libarchive says that the data begins, does it? Compared with the first block of it. */
static bool begins_there(const scanner *x, uint64_t base, uint64_t size)
{
    const void *data;
    size_t n;
    la_int64_t at;
    char have[4096];
    if (archive_read_data_block(x->m.r, &data, &n, &at) != ARCHIVE_OK || at != 0 || n == 0) {
        return false;
    }
    n = n < sizeof have ? n : sizeof have;
    return n <= size && bl_file_read(x->a->file, have, n, base, NULL) == BL_OK && memcmp(have, data, n) == 0;
}

static bl_status take_range(scanner *x, const char *name, uint64_t size)
{
    uint64_t base = (uint64_t)archive_filter_bytes(x->m.r, 0), all = bl_file_size(x->a->file);
    if (base > all || size > all - base) {
        return refuse(x, name, "ends beyond the archive: a truncated download?");
    }
    if (!begins_there(x, base, size)) {
        return refuse(x, name, "its data is not where the archive says");
    }
    BL_TRY(add_member(x, name, BL_MEMBER_RANGE, base, size));
    return bl_members_skip(&x->m, name);
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
    bl_status s = bl_members_blocks(&x->m, p.m, sparse, &(probing){x, &p}, probe_block);
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
    return ftruncate(fd, (off_t)size) == 0 ? BL_OK : bl_fail_errno(x->err, errno, 0, x->a->spill, "cannot make a file with a hole there");
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
        s = bl_fail_errno(x->err, errno, 0, x->a->spill, "cannot unpack there");
    }
    return s;
}

static bl_status read_all(scanner *x)
{
    struct archive_entry *e;
    BL_TRY(bl_members_open(&x->m));
    for (;;) {
        BL_TRY(bl_members_next(&x->m, &e));
        if (!e) {
            break;
        }
        BL_TRY(read_member(x, e));
        BL_TRY(bl_members_interrupted(&x->m));
    }
    const bool zip = x->a->zip = (archive_format(x->m.r) & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_ZIP;
    BL_TRY(x->a->count ? BL_OK : refuse(x, NULL, "is an archive without files"));
    return zip ? bl_zip_sums(x->a, x->err) : BL_OK;
}

bl_status bl_archive_scan(bl_archive *a, const bl_archive_options *o, bl_error *err)
{
    scanner x = {.m = {.a = a, .cancelled = o->cancelled, .err = err}, .a = a, .o = o, .err = err};
    bl_status s = read_all(&x);
    bl_members_close(&x.m);
    if (s == BL_OK && x.filling) {
        bl_spool_complete(a->spool);
    } else if (s == BL_OK && a->spool) {
        bl_spool_source(a->spool, bl_archive_stream, a);
    }
    return s;
}
