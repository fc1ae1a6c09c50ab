/* The checksums of a zip archive's members. libarchive compares them where it reads data; what is read in place has them from here.
 *
 * The directory at the archive's end has for each member where its local header is, whose lengths say where its data is. All integers are
 * little-endian. PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3. */
#include "formats/archive_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,    /* of the end record, before its comment */
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    COMMENT_MOST = 65535,
    STORED = 0
};

typedef struct directory {
    bl_archive *a;
    bl_error *err;
    uint64_t at, end; /* where the next entry is, and the first byte behind all of them */
    uint64_t shift;   /* what offsets lack where something was put before the archive */
    bl_member **ranges; /* [count], by base */
    size_t count, found;
} directory;

static uint64_t get(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    while (bytes-- > 0) {
        v = v << 8 | p[bytes];
    }
    return v;
}

static bool is(const uint8_t *p, const char *signature)
{
    return memcmp(p, signature, 4) == 0;
}

static bl_status broken(const directory *d)
{
    return bl_fail(d->err, BL_E_INPUT, d->a->path, NULL, -1, "the archive is damaged: its directory is not where it should be");
}

static bl_status fetch(const directory *d, void *dst, uint64_t n, uint64_t offset)
{
    uint64_t all = bl_file_size(d->a->file);
    return offset > all || n > all - offset ? broken(d) : bl_file_read(d->a->file, dst, n, offset, d->err);
}

/* Where the directory is. record: of the end of the directory, at byte at; where that lacks room, another one before it says so. */
static bl_status locate(directory *d, const uint8_t *record, uint64_t at)
{
    uint8_t locator[LOCATOR_BYTES], more[END64_BYTES];
    uint64_t size = get(record + 12, 4), offset = get(record + 16, 4);
    if (at >= sizeof locator) {
        BL_TRY(fetch(d, locator, sizeof locator, at - sizeof locator));
    }
    if (at >= sizeof locator && is(locator, "PK\6\7")) {
        uint64_t where = get(locator + 8, 8);
        BL_TRY(fetch(d, more, sizeof more, where));
        if (!is(more, "PK\6\6")) {
            return broken(d);
        }
        size = get(more + 40, 8);
        offset = get(more + 48, 8);
        at = where;
    }
    if (size > at || offset > at - size) {
        return broken(d);
    }
    d->at = at - size;
    d->end = at;
    d->shift = d->at - offset;
    return BL_OK;
}

/* The record at the end of the archive, behind which there is only its comment. */
static bl_status find_end(directory *d)
{
    uint64_t all = bl_file_size(d->a->file), most = END_BYTES + COMMENT_MOST, n = all < most ? all : most;
    uint8_t *tail = malloc(n + 1);
    bl_status s = !tail ? bl_fail(d->err, BL_E_NOMEM, d->a->path, NULL, -1, "out of memory") : fetch(d, tail, n, all - n);
    for (uint64_t back = END_BYTES; s == BL_OK; back++) {
        if (back > n) {
            s = broken(d);
            break;
        }
        const uint8_t *p = tail + (n - back);
        if (is(p, "PK\5\6") && get(p + 20, 2) <= back - END_BYTES) {
            s = locate(d, p, all - back);
            break;
        }
    }
    free(tail);
    return s;
}

/* The 64-bit offset of an entry whose own is full: it comes behind the sizes that are full too. */
static bl_status wide_offset(const directory *d, const uint8_t *entry, uint64_t *offset)
{
    uint8_t extra[COMMENT_MOST];
    uint64_t names = get(entry + 28, 2), n = get(entry + 30, 2), skip = 0;
    BL_TRY(fetch(d, extra, n, d->at + ENTRY_BYTES + names));
    skip += get(entry + 24, 4) == UINT32_MAX ? 8 : 0;
    skip += get(entry + 20, 4) == UINT32_MAX ? 8 : 0;
    for (uint64_t at = 0; at + 4 <= n; at += 4 + get(extra + at + 2, 2)) {
        uint64_t bytes = get(extra + at + 2, 2);
        if (get(extra + at, 2) == 1 && bytes >= skip + 8 && bytes <= n - at - 4) {
            *offset = get(extra + at + 4 + skip, 8);
            return BL_OK;
        }
    }
    return broken(d);
}

static int base_is(const void *key, const void *at)
{
    uint64_t base = *(const uint64_t *)key, other = (*(bl_member *const *)at)->base;
    return (base > other) - (base < other);
}

static int by_base(const void *a, const void *b)
{
    return base_is(&(*(bl_member *const *)a)->base, b);
}

/* The entry at d->at; moves on to the next one. */
static bl_status take_entry(directory *d)
{
    uint8_t entry[ENTRY_BYTES], local[LOCAL_BYTES];
    BL_TRY(fetch(d, entry, sizeof entry, d->at));
    if (!is(entry, "PK\1\2")) {
        return broken(d);
    }
    uint64_t offset = get(entry + 42, 4);
    if (get(entry + 10, 2) == STORED) {
        BL_TRY(offset == UINT32_MAX ? wide_offset(d, entry, &offset) : BL_OK);
        if (bl_add_overflow(offset, d->shift, &offset)) {
            return broken(d);
        }
        BL_TRY(fetch(d, local, sizeof local, offset));
        uint64_t base = offset + LOCAL_BYTES + get(local + 26, 2) + get(local + 28, 2);
        bl_member **m = d->count ? bsearch(&base, d->ranges, d->count, sizeof *d->ranges, base_is) : NULL;
        if (m && !(*m)->has_crc) {
            (*m)->has_crc = true;
            (*m)->crc = (uint32_t)get(entry + 16, 4);
            d->found++;
        }
    }
    d->at += ENTRY_BYTES + get(entry + 28, 2) + get(entry + 30, 2) + get(entry + 32, 2);
    return BL_OK;
}

static bl_status take_all(directory *d)
{
    BL_TRY(find_end(d));
    while (d->found < d->count && d->at < d->end) {
        BL_TRY(take_entry(d));
    }
    for (size_t i = 0; i < d->count; i++) {
        if (!d->ranges[i]->has_crc) {
            return bl_fail(d->err, BL_E_INPUT, d->a->path, d->ranges[i]->name, -1, "its checksum is not in the archive's directory");
        }
    }
    return BL_OK;
}

bl_status bl_zip_sums(bl_archive *a, bl_error *err)
{
    directory d = {.a = a, .err = err, .ranges = malloc((a->count + 1) * sizeof *d.ranges)};
    if (!d.ranges) {
        return bl_fail(err, BL_E_NOMEM, a->path, NULL, -1, "out of memory");
    }
    for (size_t i = 0; i < a->count; i++) {
        if (a->members[i].kind == BL_MEMBER_RANGE) {
            d.ranges[d.count++] = &a->members[i];
        }
    }
    if (d.count) {
        qsort(d.ranges, d.count, sizeof *d.ranges, by_base);
    }
    bl_status s = d.count ? take_all(&d) : BL_OK;
    free(d.ranges);
    return s;
}
