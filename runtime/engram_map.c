/* Token id -> class: tokens whose text is the same after normalisation share a class. */
#include "formats/utf8.h"
#include "runtime/engram.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

/* Keys seen so far: text in one growing buffer, an open-addressed table of class ids over it. */
typedef struct keys {
    char *text;
    size_t len, cap;
    size_t *start;  /* [classes + 1] */
    int32_t *slots; /* -1 = empty */
    uint64_t mask;
    int classes;
} keys;

/* Class of key[0..n), a new one if it was not seen before. The key must lie at text + len. */
static int32_t class_of(keys *k, size_t n)
{
    const char *key = k->text + k->len;
    uint64_t i = XXH3_64bits(key, n) & k->mask;
    for (; k->slots[i] >= 0; i = (i + 1) & k->mask) {
        int32_t c = k->slots[i];
        if (k->start[c + 1] - k->start[c] == n && memcmp(k->text + k->start[c], key, n) == 0)
            return c;
    }
    k->slots[i] = k->classes;
    k->len += n;
    k->start[++k->classes] = k->len;
    return k->classes - 1;
}

/* Room for n bytes at text + len. */
static char *room(keys *k, size_t n)
{
    if (k->cap - k->len < n) {
        size_t cap = k->cap + k->cap / 2 + n + 4096;
        char *p = realloc(k->text, cap);
        if (!p)
            return NULL;
        k->text = p;
        k->cap = cap;
    }
    return k->text + k->len;
}

/* White space as Python's str.strip() sees it. */
static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Fold runs of blanks to one space and strip both ends (a lone space stays); c[0..n) in place, returns the new length. */
static size_t fold(int32_t *c, size_t n)
{
    size_t out = 0;
    bool blank = false;
    for (size_t i = 0; i < n; i++) {
        bool b = c[i] == ' ' || c[i] == '\t' || c[i] == '\r' || c[i] == '\n';
        if (!b)
            c[out++] = c[i];
        else if (!blank)
            c[out++] = ' ';
        blank = b;
    }
    if (out == 1 && c[0] == ' ')
        return 1;
    size_t from = 0;
    while (from < out && is_space(c[from]))
        from++;
    while (out > from && is_space(c[out - 1]))
        out--;
    memmove(c, c + from, (out - from) * sizeof *c);
    return out - from;
}

/* Code points of valid text, normalised: NFKC then NFD (which is NFKD), marks dropped, lower case by character. c has room for
 * cap; returns the length, -1 when there is not enough room. Python's lower() differs from the simple mapping used here for
 * U+0130 alone, which NFKD has taken apart by then. */
static ptrdiff_t normalise(const char *text, size_t n, int32_t *c, size_t cap)
{
    size_t len = 0;
    bool ascii = true;
    for (size_t i = 0; i < n && ascii; i++)
        ascii = (unsigned char)text[i] < 0x80;
    if (ascii && n <= cap) {
        for (size_t i = 0; i < n; i++)
            c[len++] = text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i];
        return (ptrdiff_t)fold(c, len);
    }
    utf8proc_ssize_t k = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, c, (utf8proc_ssize_t)cap,
                                            UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    if (k < 0 || (size_t)k > cap)
        return -1;
    for (utf8proc_ssize_t i = 0; i < k; i++) {
        utf8proc_category_t cat = utf8proc_category(c[i]);
        if (cat != UTF8PROC_CATEGORY_MN && cat != UTF8PROC_CATEGORY_MC && cat != UTF8PROC_CATEGORY_ME)
            c[len++] = utf8proc_tolower(c[i]);
    }
    return (ptrdiff_t)fold(c, len);
}

/* Is all of it code points, none of them U+FFFD? That is: would decoding it show no replacement character? */
static bool is_whole(const char *p, size_t n)
{
    return bl_utf8_check(p, n) == n && memmem(p, n, "\xEF\xBF\xBD", 3) == NULL;
}

/* Put the key of a token at text + len; its length, -1 when out of memory. */
static ptrdiff_t make_key(keys *k, const bl_tokenizer *t, int id, int32_t **points, size_t *cap)
{
    size_t n, name_len;
    const char *bytes = bl_tokenizer_bytes(t, id, &n), *name = bl_tokenizer_name(t, id, &name_len);
    char *key = room(k, (n + name_len) * 4 + 16);
    if (!key)
        return -1;
    if (!is_whole(bytes, n)) {
        memcpy(key, name, name_len);
        return (ptrdiff_t)name_len;
    }
    /* One code point can become 18. */
    size_t want = 18 * n + 1;
    if (*cap < want) {
        int32_t *p = realloc(*points, want * sizeof *p);
        if (!p)
            return -1;
        *points = p;
        *cap = want;
    }
    ptrdiff_t count = normalise(bytes, n, *points, *cap);
    if (count < 0 || !(key = room(k, (size_t)count * 4 + n)))
        return -1;
    if (count == 0) {
        memcpy(key, bytes, n);
        return (ptrdiff_t)n;
    }
    size_t len = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        len += bl_utf8_put((uint32_t)(*points)[i], key + len);
    return (ptrdiff_t)len;
}

bl_status bl_engram_token_map(const bl_tokenizer *t, int32_t **map, int *classes, bl_error *err)
{
    int size = bl_tokenizer_size(t);
    keys k = {0};
    int32_t *points = NULL, *out = malloc((size_t)size * sizeof *out);
    size_t cap = 0, slots = 16;
    while (slots < 2 * (size_t)size)
        slots *= 2;
    k.mask = slots - 1;
    k.slots = malloc(slots * sizeof *k.slots);
    k.start = calloc((size_t)size + 1, sizeof *k.start);
    bl_status s = BL_OK;
    if (!out || !k.slots || !k.start)
        s = bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the Engram token map");
    else
        memset(k.slots, -1, slots * sizeof *k.slots);
    for (int id = 0; s == BL_OK && id < size; id++) {
        size_t n;
        if (!bl_tokenizer_bytes(t, id, &n)) {
            s = bl_fail(err, BL_E_INPUT, NULL, NULL, -1, "the tokenizer has no token %d, so the Engram classes are not known", id);
            break;
        }
        ptrdiff_t len = make_key(&k, t, id, &points, &cap);
        if (len < 0)
            s = bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the Engram token map");
        else
            out[id] = class_of(&k, (size_t)len);
    }
    free(points);
    free(k.text);
    free(k.start);
    free(k.slots);
    if (s != BL_OK) {
        free(out);
        return s;
    }
    *map = out;
    *classes = k.classes;
    return BL_OK;
}

bl_status bl_engram_token_classes(const char *text, size_t n, int *classes, bl_error *err)
{
    bl_tokenizer *t;
    int32_t *map = NULL;
    BL_TRY(bl_tokenizer_parse(&t, text, n, "tokenizer.json", err));
    bl_status s = bl_engram_token_map(t, &map, classes, err);
    free(map);
    bl_tokenizer_close(&t);
    return s;
}
