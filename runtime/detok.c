/* From ids back to text, by bytes: a code point may be spread over several tokens. */
#include "runtime/tokenizer.h"
#include "runtime/utf8.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

static bl_status append(char **buf, size_t *len, size_t *cap, const char *p, size_t n)
{
    if (*cap - *len < n) {
        size_t want = *cap + *cap / 2 + n + 32;
        char *grown = realloc(*buf, want);
        if (!grown)
            return BL_E_NOMEM;
        *buf = grown;
        *cap = want;
    }
    memcpy(*buf + *len, p, n);
    *len += n;
    return BL_OK;
}

/* Append the complete code points of p; what a later byte could still complete goes to the tail. */
static bl_status decode(bl_detok *d, const char *p, size_t n, char **buf, size_t *len, size_t *cap)
{
    size_t i = 0, run = 0; /* p[run..i) is valid and not yet appended */
    while (i < n) {
        unsigned step;
        bl_utf8_kind kind = bl_utf8_step(p + i, n - i, &step, NULL);
        if (kind != BL_UTF8_VALID)
            BL_TRY(append(buf, len, cap, p + run, i - run));
        if (kind == BL_UTF8_INVALID)
            BL_TRY(append(buf, len, cap, replacement, sizeof replacement));
        if (kind == BL_UTF8_SHORT) {
            memmove(d->tail, p + i, n - i);
            d->tail_len = (unsigned)(n - i);
            return BL_OK;
        }
        i += step;
        if (kind == BL_UTF8_INVALID)
            run = i;
    }
    return append(buf, len, cap, p + run, n - run);
}

bl_status bl_detok_push(bl_detok *d, const bl_tokenizer *t, int id, char **buf, size_t *len, size_t *cap)
{
    size_t n;
    const char *p = bl_tokenizer_bytes(t, id, &n);
    if (!p || n == 0)
        return BL_OK;
    /* Feed single bytes while a code point is open: at most three until it closes or breaks. */
    size_t used = 0;
    while (d->tail_len > 0 && used < n) {
        char open[4];
        unsigned k = d->tail_len;
        memcpy(open, d->tail, k);
        open[k++] = p[used++];
        d->tail_len = 0;
        BL_TRY(decode(d, open, k, buf, len, cap));
    }
    return decode(d, p + used, n - used, buf, len, cap);
}

bl_status bl_detok_finish(bl_detok *d, char **buf, size_t *len, size_t *cap)
{
    if (d->tail_len == 0)
        return BL_OK;
    d->tail_len = 0;
    return append(buf, len, cap, replacement, sizeof replacement);
}
