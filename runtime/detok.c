/* From ids back to text, by bytes: a code point may be spread over several tokens. */
#include "formats/utf8.h"
#include "runtime/text.h"
#include "runtime/tokenizer.h"

#include <string.h>

static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

/* Append the complete code points of p; what a later byte could still complete goes to the tail. */
static void decode(bl_detok *d, const char *p, size_t n, bl_text *out)
{
    size_t i = 0, run = 0; /* p[run..i) is valid and not yet appended */
    while (i < n) {
        unsigned step;
        bl_utf8_kind kind = bl_utf8_step(p + i, n - i, &step, NULL);
        if (kind != BL_UTF8_VALID)
            bl_text_add(out, p + run, i - run);
        if (kind == BL_UTF8_INVALID)
            bl_text_add(out, replacement, sizeof replacement);
        if (kind == BL_UTF8_SHORT) {
            memmove(d->tail, p + i, n - i);
            d->tail_len = (unsigned)(n - i);
            return;
        }
        i += step;
        if (kind == BL_UTF8_INVALID)
            run = i;
    }
    bl_text_add(out, p + run, n - run);
}

void bl_detok_bytes(bl_detok *d, const char *p, size_t n, bl_text *out)
{
    /* Feed single bytes while a code point is open: at most three until it closes or breaks. */
    size_t used = 0;
    while (d->tail_len > 0 && used < n) {
        char open[4];
        unsigned k = d->tail_len;
        memcpy(open, d->tail, k);
        open[k++] = p[used++];
        d->tail_len = 0;
        decode(d, open, k, out);
    }
    if (used < n)
        decode(d, p + used, n - used, out);
}

void bl_detok_end(bl_detok *d, bl_text *out)
{
    if (d->tail_len > 0)
        bl_text_add(out, replacement, sizeof replacement);
    d->tail_len = 0;
}

static bl_status give_back(const bl_text *t, char **buf, size_t *len, size_t *cap)
{
    *buf = t->p;
    *len = t->n;
    *cap = t->cap;
    return t->failed ? BL_E_NOMEM : BL_OK;
}

bl_status bl_detok_push(bl_detok *d, const bl_tokenizer *t, int id, char **buf, size_t *len, size_t *cap)
{
    size_t n;
    const char *p = bl_tokenizer_bytes(t, id, &n);
    bl_text out = {.p = *buf, .n = *len, .cap = *cap};
    bl_detok_bytes(d, p, n, &out);
    return give_back(&out, buf, len, cap);
}

bl_status bl_detok_finish(bl_detok *d, char **buf, size_t *len, size_t *cap)
{
    bl_text out = {.p = *buf, .n = *len, .cap = *cap};
    bl_detok_end(d, &out);
    return give_back(&out, buf, len, cap);
}
