/* Walking and converting values of a validated document. Validation is json_check.c. */
#include "formats/json.h"

#include "formats/utf8.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
    }
    return p;
}

#define EACH(byte) (0x0101010101010101u * (byte))

/* High bits at the bytes of w that are 0; exact up to the lowest one, which is all that is used
 * (little-endian). */
static uint64_t zero_bytes(uint64_t w)
{
    return (w - EACH(1)) & ~w & EACH(0x80u);
}

/* Behind the closing quote of the string that starts at p. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end;) {
        uint64_t w;
        if (end - p >= 8) { /* step over eight plain bytes, or to the first that is not */
            memcpy(&w, p, 8);
            uint64_t stop = zero_bytes(w ^ EACH('"')) | zero_bytes(w ^ EACH('\\'));
            if (!stop) {
                p += 8;
                continue;
            }
            p += __builtin_ctzll(stop) >> 3;
        }
        if (*p == '"') {
            return p + 1;
        }
        p += *p == '\\' ? 2 : 1;
    }
    return end;
}

/* The next quote or bracket at p or behind it. */
static const char *next_mark(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        uint64_t folded = w | EACH(0x20u); /* [ and ] become { and } */
        uint64_t stop =
            zero_bytes(w ^ EACH('"')) | zero_bytes(folded ^ EACH('{')) | zero_bytes(folded ^ EACH('}'));
        if (stop) {
            return p + (__builtin_ctzll(stop) >> 3);
        }
    }
    while (p < end && *p != '"' && (*p | 0x20) != '{' && (*p | 0x20) != '}') {
        p++;
    }
    return p;
}

/* Behind the closing bracket of the container that starts at p. The text is valid: matching brackets outside
 * strings do. */
static const char *skip_container(const char *p, const char *end)
{
    size_t depth = 0;
    while ((p = next_mark(p, end)) < end) {
        if (*p == '"') {
            p = skip_string(p, end);
            continue;
        }
        bool opens = *p == '{' || *p == '[';
        depth += opens ? 1 : (size_t)-1;
        p++;
        if (depth == 0) {
            break;
        }
    }
    return p;
}

static bl_json value_at(const char *p, const char *end)
{
    const char *start = p;
    bl_json_kind kind;
    switch (*p) {
    case '"':
        kind = BL_JSON_STRING;
        p = skip_string(p, end);
        break;
    case '{':
    case '[':
        kind = *p == '{' ? BL_JSON_OBJECT : BL_JSON_ARRAY;
        p = skip_container(p, end);
        break;
    default:
        kind = *p == 'n'   ? BL_JSON_NULL
               : *p == 't' ? BL_JSON_TRUE
               : *p == 'f' ? BL_JSON_FALSE
                           : BL_JSON_NUMBER;
        while (p<end && * p> ' ' && *p != ',' && *p != ']' && *p != '}') {
            p++;
        }
        break;
    }
    return (bl_json){start, (size_t)(p - start), kind};
}

bl_json_iter bl_json_begin(bl_json v)
{
    if (v.kind != BL_JSON_OBJECT && v.kind != BL_JSON_ARRAY) {
        return (bl_json_iter){NULL, NULL, false};
    }
    return (bl_json_iter){v.p + 1, v.p + v.n - 1, v.kind == BL_JSON_OBJECT};
}

bool bl_json_next(bl_json_iter *it, bl_json *key, bl_json *value)
{
    const char *p = skip_space(it->p, it->end);
    if (p < it->end && *p == ',') {
        p = skip_space(p + 1, it->end);
    }
    if (p >= it->end) {
        it->p = it->end;
        return false;
    }
    *key = (bl_json){NULL, 0, BL_JSON_NONE};
    if (it->object) {
        *key = value_at(p, it->end);
        p = skip_space(key->p + key->n, it->end) + 1; /* the colon */
        p = skip_space(p, it->end);
    }
    *value = value_at(p, it->end);
    it->p = value->p + value->n;
    return true;
}

bl_json bl_json_get(bl_json v, const char *key)
{
    bl_json found = {NULL, 0, BL_JSON_NONE}, k, value;
    if (v.kind != BL_JSON_OBJECT) {
        return found;
    }
    bl_json_iter it = bl_json_begin(v);
    while (bl_json_next(&it, &k, &value)) {
        if (bl_json_equals(k, key)) {
            found = value; /* the last one counts where duplicates are allowed */
        }
    }
    return found;
}

size_t bl_json_count(bl_json v)
{
    bl_json k, value;
    bl_json_iter it = bl_json_begin(v);
    size_t n = 0;
    while (bl_json_next(&it, &k, &value)) {
        n++;
    }
    return n;
}

static unsigned hex4(const char *p)
{
    unsigned u = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = (unsigned char)p[i];
        u = u << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return u;
}

/* The escape at *p (a backslash): its bytes in out, *p moved behind it. */
static size_t unescape(const char **p, const char *end, char out[4])
{
    const char *s = *p + 1;
    char c = *s++;
    size_t n = 1;
    switch (c) {
    case 'b':
        out[0] = '\b';
        break;
    case 'f':
        out[0] = '\f';
        break;
    case 'n':
        out[0] = '\n';
        break;
    case 'r':
        out[0] = '\r';
        break;
    case 't':
        out[0] = '\t';
        break;
    case 'u': {
        unsigned u = hex4(s), low;
        s += 4;
        if (u >= 0xd800 && u < 0xdc00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u' &&
            (low = hex4(s + 2)) >= 0xdc00 && low <= 0xdfff) {
            u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
            s += 6;
        }
        n = bl_utf8_put(u >= 0xd800 && u <= 0xdfff ? 0xfffd : u, out);
        break;
    }
    default: /* " \ / */
        out[0] = c;
        break;
    }
    *p = s;
    return n;
}

bool bl_json_equals(bl_json v, const char *s)
{
    if (v.kind != BL_JSON_STRING) {
        return false;
    }
    const char *p = v.p + 1, *end = v.p + v.n - 1;
    size_t left = strlen(s);
    while (p < end) {
        char out[4];
        size_t n = 1;
        if (*p == '\\') {
            n = unescape(&p, end, out);
        } else {
            out[0] = *p++;
        }
        if (n > left || memcmp(s, out, n) != 0) {
            return false;
        }
        s += n;
        left -= n;
    }
    return left == 0;
}

size_t bl_json_string(bl_json v, char *buf, size_t cap)
{
    size_t n = 0, room = cap ? cap - 1 : 0;
    const char *p = v.kind == BL_JSON_STRING ? v.p + 1 : NULL, *end = p ? v.p + v.n - 1 : NULL;
    while (p < end) {
        char out[4];
        const char *piece = p;
        size_t size;
        if (*p == '\\') {
            size = unescape(&p, end, out);
            piece = out;
        } else {
            const char *stop = memchr(p, '\\', (size_t)(end - p));
            size = (size_t)((stop ? stop : end) - p);
            p += size;
        }
        if (n < room) {
            memcpy(buf + n, piece, size < room - n ? size : room - n);
        }
        n += size;
    }
    if (cap) {
        buf[n < room ? n : room] = 0;
    }
    return n;
}

bool bl_json_u64(bl_json v, uint64_t *out)
{
    uint64_t u = 0;
    if (v.kind != BL_JSON_NUMBER) {
        return false;
    }
    for (size_t i = 0; i < v.n; i++) {
        unsigned d = (unsigned)(unsigned char)v.p[i] - '0';
        if (d > 9 || __builtin_mul_overflow(u, (uint64_t)10, &u) ||
            __builtin_add_overflow(u, (uint64_t)d, &u)) {
            return false;
        }
    }
    *out = u;
    return true;
}

bool bl_json_i64(bl_json v, int64_t *out)
{
    uint64_t u;
    if (v.kind != BL_JSON_NUMBER) {
        return false;
    }
    bool minus = v.p[0] == '-';
    bl_json digits = {v.p + minus, v.n - minus, v.kind};
    if (!bl_json_u64(digits, &u) || u > (uint64_t)INT64_MAX + minus) {
        return false;
    }
    *out = minus ? (int64_t)(0 - u) : (int64_t)u;
    return true;
}

bool bl_json_double(bl_json v, double *out)
{
    if (v.kind != BL_JSON_NUMBER) {
        return false;
    }
    char small[128];
    char *text = v.n < sizeof small ? small : malloc(v.n + 1);
    if (!text) {
        return false;
    }
    memcpy(text, v.p, v.n);
    text[v.n] = 0;
    /* The decimal point must not depend on the program's locale; glibc's "C" locale is a static object. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double d = c ? strtod_l(text, NULL, c) : strtod(text, NULL);
    if (c) {
        freelocale(c);
    }
    if (text != small) {
        free(text);
    }
    if (!isfinite(d)) {
        return false;
    }
    *out = d;
    return true;
}

bool bl_json_bool(bl_json v, bool *out)
{
    if (v.kind != BL_JSON_TRUE && v.kind != BL_JSON_FALSE) {
        return false;
    }
    *out = v.kind == BL_JSON_TRUE;
    return true;
}
