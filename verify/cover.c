#include "verify/cover.h"

#include "formats/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define REST ((uint64_t)1 << 20) /* bytes read at once of what nobody wanted */

typedef struct piece {
    uint64_t begin, end;
    uint32_t crc;
    bool known; /* somebody is at it otherwise */
} piece;

struct bl_cover {
    pthread_mutex_t lock;
    piece *pieces; /* [count] ascending and apart; neighbours that touch are one as soon as both are known */
    size_t count, cap;
};

bl_status bl_cover_create(bl_cover **out, bl_error *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    }
    pthread_mutex_init(&(*out)->lock, NULL);
    return BL_OK;
}

void bl_cover_destroy(bl_cover **cp)
{
    if (*cp) {
        pthread_mutex_destroy(&(*cp)->lock);
        free((*cp)->pieces);
        free(*cp);
        *cp = NULL;
    }
}

/* Index of the first piece that ends behind at. */
static size_t find(const bl_cover *c, uint64_t at)
{
    size_t low = 0, high = c->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c->pieces[middle].end > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Claim the first bytes of [*begin, *end) that no piece has; an empty range when there are none. */
static bool claim(bl_cover *c, uint64_t *begin, uint64_t *end)
{
    size_t i = find(c, *begin);
    while (i < c->count && c->pieces[i].begin <= *begin) {
        *begin = c->pieces[i++].end;
    }
    if (*begin >= *end) {
        *end = *begin;
        return true;
    }
    if (i < c->count && c->pieces[i].begin < *end) {
        *end = c->pieces[i].begin;
    }
    piece *grown = bl_grow(c->pieces, &c->cap, c->count, sizeof *grown);
    if (!grown) {
        return false;
    }
    c->pieces = grown;
    memmove(&grown[i + 1], &grown[i], (c->count - i) * sizeof *grown);
    grown[i] = (piece){.begin = *begin, .end = *end};
    c->count++;
    return true;
}

/* Make one of pieces i and i + 1 where they touch and both are known. */
static void join(bl_cover *c, size_t i)
{
    piece *p = c->pieces + i;
    if (i + 1 < c->count && p[0].known && p[1].known && p[0].end == p[1].begin) {
        p[0].crc = (uint32_t)crc32_combine(p[0].crc, p[1].crc, (z_off_t)(p[1].end - p[1].begin));
        p[0].end = p[1].end;
        memmove(&p[1], &p[2], (c->count - i - 2) * sizeof *p);
        c->count--;
    }
}

static void settle(bl_cover *c, uint64_t begin, uint32_t crc)
{
    size_t i = find(c, begin);
    c->pieces[i].crc = crc;
    c->pieces[i].known = true;
    join(c, i);
    if (i > 0) {
        join(c, i - 1);
    }
}

bool bl_cover_add(bl_cover *c, const uint8_t *data, uint64_t n, uint64_t offset)
{
    for (uint64_t begin = offset, end; begin < offset + n; begin = end) {
        end = offset + n;
        pthread_mutex_lock(&c->lock);
        bool claimed = claim(c, &begin, &end);
        pthread_mutex_unlock(&c->lock);
        if (!claimed) {
            return false;
        }
        if (begin == end) {
            break;
        }
        uint32_t crc = (uint32_t)crc32_z(0, data + (begin - offset), (size_t)(end - begin));
        pthread_mutex_lock(&c->lock);
        settle(c, begin, crc);
        pthread_mutex_unlock(&c->lock);
    }
    return true;
}

static uint64_t covered(const bl_cover *c)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < c->count; i++) {
        sum += c->pieces[i].end - c->pieces[i].begin;
    }
    return sum;
}

bl_status bl_cover_prove(bl_cover *c, const bl_file *f, bl_error *err)
{
    uint32_t want;
    uint64_t size = bl_file_size(f);
    if (!bl_file_crc32(f, &want) || c->count == 0 || covered(c) < size - covered(c)) {
        return BL_OK;
    }
    uint8_t *buf = malloc(REST);
    bl_status s = buf ? BL_OK : bl_fail(err, BL_E_NOMEM, bl_file_path(f), NULL, -1, "out of memory");
    while (s == BL_OK && (c->pieces[0].begin > 0 || c->pieces[0].end < size)) {
        uint64_t at = c->pieces[0].begin > 0 ? 0 : c->pieces[0].end, n = size - at < REST ? size - at : REST;
        s = bl_file_read(f, buf, n, at, err);
        if (s == BL_OK && !bl_cover_add(c, buf, n, at)) {
            s = bl_fail(err, BL_E_NOMEM, bl_file_path(f), NULL, -1, "out of memory");
        }
    }
    free(buf);
    if (s == BL_OK && c->pieces[0].crc != want) {
        s = bl_fail(err, BL_E_INPUT, bl_file_path(f), NULL, -1, "its CRC-32 differs from the one that the archive has of it: it is damaged");
    }
    return s;
}
