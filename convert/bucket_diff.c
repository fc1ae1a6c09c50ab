#include "convert/bucket_diff.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((uint64_t)64 << 10)
#define RECORD 16 /* bytes before those of a range */

/* ---- making */

struct bl_diff {
    bl_delta_encoding encoding;
    int level;
    bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err);
    void *arg;
    bl_zstd_writer *out; /* NULL: nothing has differed so far */
    uint64_t seen;       /* bytes of the tensor */
    uint64_t bytes;      /* written to the stream */
    uint8_t zeros[PIECE], mixed[PIECE];
};

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a delta");
}

bl_status bl_diff_create(bl_diff **out, bl_delta_encoding encoding, int level,
                         bl_status (*sink)(void *arg, const void *data, size_t n, bl_error *err), void *arg, bl_error *err)
{
    bl_diff *d = *out = calloc(1, sizeof *d);
    if (!d) {
        return nomem(err);
    }
    d->encoding = encoding;
    d->level = level;
    d->sink = sink;
    d->arg = arg;
    return BL_OK;
}

void bl_diff_destroy(bl_diff **dp)
{
    if (*dp) {
        bl_zstd_writer_abort(&(*dp)->out);
        free(*dp);
        *dp = NULL;
    }
}

static bl_status put(bl_diff *d, const uint8_t *data, uint64_t n, bl_error *err)
{
    if (!d->out) {
        BL_TRY(bl_zstd_writer_open(&d->out, d->level, d->sink, d->arg, err));
    }
    d->bytes += n;
    return bl_zstd_write(d->out, data, n, err);
}

static bl_status put_zeros(bl_diff *d, uint64_t n, bl_error *err)
{
    for (uint64_t take; n > 0; n -= take) {
        take = n < PIECE ? n : PIECE;
        BL_TRY(put(d, d->zeros, take, err));
    }
    return BL_OK;
}

static bl_status add_xor(bl_diff *d, const uint8_t *before, const uint8_t *after, uint64_t n, bl_error *err)
{
    for (uint64_t at = 0, take; at < n; at += take, d->seen += take) {
        take = n - at < PIECE ? n - at : PIECE;
        bool same = memcmp(before + at, after + at, take) == 0;
        if (same && !d->out) {
            continue;
        }
        BL_TRY(d->out ? BL_OK : put_zeros(d, d->seen, err)); /* what came before the first difference */
        for (uint64_t i = 0; !same && i < take; i++) {
            d->mixed[i] = before[at + i] ^ after[at + i];
        }
        BL_TRY(put(d, same ? d->zeros : d->mixed, take, err));
    }
    return BL_OK;
}

static void put_u64(uint8_t *dst, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        dst[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint64_t get_u64(const uint8_t *src)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | src[i];
    }
    return v;
}

static bl_status add_ranges(bl_diff *d, const uint8_t *before, const uint8_t *after, uint64_t n, uint64_t unit, bl_error *err)
{
    uint8_t record[RECORD];
    uint64_t first = 0, end = 0; /* of the run that is being found */
    for (uint64_t at = 0, take; at < n || end > first; at += take) {
        take = n - at < unit ? n - at : unit;
        bool differs = at < n && memcmp(before + at, after + at, take) != 0;
        if (differs) {
            first = end > first ? first : at;
            end = at + take;
            continue;
        }
        if (end > first) {
            put_u64(record, d->seen + first);
            put_u64(record + 8, end - first);
            BL_TRY(put(d, record, sizeof record, err));
            BL_TRY(put(d, after + first, end - first, err));
            first = end = 0;
        }
        if (at >= n) {
            break;
        }
    }
    d->seen += n;
    return BL_OK;
}

bl_status bl_diff_add(bl_diff *d, const uint8_t *before, const uint8_t *after, uint64_t offset, uint64_t n, uint64_t unit, bl_error *err)
{
    if (offset != d->seen) {
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "bytes of a tensor out of order");
    }
    return d->encoding == BL_DELTA_XOR ? add_xor(d, before, after, n, err) : add_ranges(d, before, after, n, unit, err);
}

bl_status bl_diff_end(bl_diff *d, uint64_t *bytes, bl_error *err)
{
    *bytes = d->bytes;
    d->seen = d->bytes = 0;
    return d->out ? bl_zstd_writer_close(&d->out, err) : BL_OK;
}

/* ---- applying */

struct bl_patch {
    bl_delta_encoding encoding;
    bl_zstd_reader *in;
    bl_file *file;
    const bl_delta_tensor *t;
    uint64_t total, bytes; /* of the tensor; read from the stream */
    uint64_t begin, end;   /* ranges: what is left of the record that was read last */
    bool over;             /* ranges: no further record */
    uint8_t mixed[PIECE];
};

static bl_status refuse(const bl_patch *p, const char *why, bl_error *err)
{
    return bl_fail(err, BL_E_INPUT, bl_file_path(p->file), p->t->name, -1, "%s", why);
}

bl_status bl_patch_open(bl_patch **out, bl_delta_encoding encoding, bl_file *file, uint64_t offset, const bl_delta_tensor *t,
                        uint64_t total, bl_error *err)
{
    bl_patch *p = *out = malloc(sizeof *p);
    if (!p) {
        return nomem(err);
    }
    memset(p, 0, offsetof(bl_patch, mixed));
    p->encoding = encoding;
    p->file = bl_file_ref(file);
    p->t = t;
    p->total = total;
    bl_status s = bl_zstd_reader_open(&p->in, file, offset, t->nbytes, t->name, err);
    if (s != BL_OK) {
        bl_patch_close(out);
    }
    return s;
}

/* All n bytes of the stream; *none (may be NULL): it ended before the first. */
static bl_status take(bl_patch *p, void *dst, size_t n, bool *none, bl_error *err)
{
    size_t got;
    BL_TRY(bl_zstd_read(p->in, dst, n, &got, err));
    p->bytes += got;
    if (none && got == 0) {
        *none = true;
        return BL_OK;
    }
    return got == n ? BL_OK : refuse(p, "its stream ends too early", err);
}

static bl_status apply_xor(bl_patch *p, uint8_t *data, uint64_t n, bl_error *err)
{
    for (uint64_t at = 0, some; at < n; at += some) {
        some = n - at < PIECE ? n - at : PIECE;
        BL_TRY(take(p, p->mixed, some, NULL, err));
        for (uint64_t i = 0; i < some; i++) {
            data[at + i] ^= p->mixed[i];
        }
    }
    return BL_OK;
}

/* The next record, which lies behind the last one and inside the tensor. */
static bl_status next_record(bl_patch *p, bl_error *err)
{
    uint8_t record[RECORD];
    BL_TRY(take(p, record, sizeof record, &p->over, err));
    if (p->over) {
        return BL_OK;
    }
    uint64_t begin = get_u64(record), n = get_u64(record + 8);
    if (begin < p->end || begin > p->total || n == 0 || n > p->total - begin) {
        return refuse(p, "a range that is out of order or reaches past the tensor", err);
    }
    p->begin = begin;
    p->end = begin + n;
    return BL_OK;
}

static bl_status apply_ranges(bl_patch *p, uint8_t *data, uint64_t offset, uint64_t n, bl_error *err)
{
    for (;;) {
        if (p->begin == p->end && !p->over) {
            BL_TRY(next_record(p, err));
        }
        if (p->over || p->begin >= offset + n) {
            return BL_OK;
        }
        uint64_t stop = p->end < offset + n ? p->end : offset + n;
        BL_TRY(take(p, data + (p->begin - offset), (size_t)(stop - p->begin), NULL, err));
        p->begin = stop;
    }
}

bl_status bl_patch_apply(bl_patch *p, uint8_t *data, uint64_t offset, uint64_t n, bl_error *err)
{
    return p->encoding == BL_DELTA_XOR ? apply_xor(p, data, n, err) : apply_ranges(p, data, offset, n, err);
}

bl_status bl_patch_end(bl_patch *p, bl_error *err)
{
    uint8_t more;
    bool none = false;
    if (!p->over) {
        BL_TRY(take(p, &more, 1, &none, err));
    }
    bool right = (p->over || none) && p->bytes == p->t->bytes && p->begin == p->end;
    return right ? BL_OK : refuse(p, "its stream is not as long as it should be", err);
}

void bl_patch_close(bl_patch **pp)
{
    if (*pp) {
        bl_zstd_reader_close(&(*pp)->in);
        bl_file_close(&(*pp)->file);
        free(*pp);
        *pp = NULL;
    }
}
