/* Validation of a whole document, once: RFC 8259 grammar, UTF-8, depth, size, duplicate keys. No recursion.
 */
#include "formats/json.h"

#include "formats/json_keys.h"
#include "formats/utf8.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_BYTES 100000000u
#define DEFAULT_DEPTH 64u

typedef struct frame {
    size_t first; /* index of its first key */
    bool object;
} frame;

typedef struct check {
    const char *text, *p, *end;
    const char *path;
    bl_error *err;
    frame *stack;
    unsigned depth, max_depth;
    bool duplicates_allowed, surrogates_refused;
    bl_json_keys keys;
} check;

static bl_status bad(check *c, const char *at, const char *what)
{
    return bl_fail(c->err, BL_E_INPUT, c->path, NULL, at - c->text, "JSON: %s", what);
}

static bl_status no_memory(check *c)
{
    return bl_fail(c->err, BL_E_NOMEM, c->path, NULL, -1, "out of memory while checking JSON");
}

static void skip_space(check *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t')) {
        c->p++;
    }
}

/* Length of the code point at p, 0 when it is malformed. */
static size_t utf8_length(const char *p, const char *end)
{
    unsigned n;
    return bl_utf8_step(p, (size_t)(end - p), &n, NULL) == BL_UTF8_VALID ? n : 0;
}

bool bl_text_is_clean(const char *s, size_t n)
{
    const char *p = s, *end = s + n;
    while (p < end) {
        size_t len = utf8_length(p, end);
        if (len == 0 || (unsigned char)*p < 0x20 || *p == 0x7f) {
            return false;
        }
        p += len;
    }
    return true;
}

/* Bytes before the first one that is a quote, a backslash, a control or not ASCII; eight at a time. */
static const char *plain_run(const char *p, const char *end)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (end - p >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
        uint64_t stop = (w - ones * 0x20) | (quote - ones) | (slash - ones) | w;
        if (stop & high) {
            /* Borrows run upwards out of bytes that are flagged themselves: the lowest flag is exact
             * (little-endian). */
            return p + (__builtin_ctzll(stop & high) >> 3);
        }
        p += 8;
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' && *p != '\\') {
        p++;
    }
    return p;
}

/* Four hex digits behind "\u" at c->p. */
static bl_status check_hex(check *c, const char *at, unsigned *u)
{
    *u = 0;
    for (int i = 0; i < 4; i++, c->p++) {
        unsigned h = c->p < c->end ? (unsigned char)*c->p : 0, lower = h | 0x20;
        if (h >= '0' && h <= '9') {
            *u = *u << 4 | (h - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            *u = *u << 4 | (lower - 'a' + 10);
        } else {
            return bad(c, at, "\\u needs four hex digits");
        }
    }
    return BL_OK;
}

static bl_status check_escape(check *c)
{
    const char *at = c->p++;
    unsigned u, low;
    if (c->p >= c->end) {
        return bad(c, at, "the text ends inside an escape");
    }
    char e = *c->p++;
    if (e != 'u') {
        return e && strchr("\"\\/bfnrt", e) ? BL_OK : bad(c, at, "unknown escape");
    }
    BL_TRY(check_hex(c, at, &u));
    if (!c->surrogates_refused || u < 0xd800 || u > 0xdfff) {
        return BL_OK;
    }
    if (u >= 0xdc00 || c->end - c->p < 2 || c->p[0] != '\\' || c->p[1] != 'u') {
        return bad(c, at, "lone surrogate");
    }
    c->p += 2;
    BL_TRY(check_hex(c, at, &low));
    return low >= 0xdc00 && low <= 0xdfff ? BL_OK : bad(c, at, "lone surrogate");
}

/* The string at c->p; *escaped says whether it holds a backslash. */
static bl_status check_string(check *c, bool *escaped)
{
    const char *start = c->p++;
    *escaped = false;
    for (;;) {
        c->p = plain_run(c->p, c->end);
        if (c->p >= c->end) {
            return bad(c, start, "the text ends inside a string");
        }
        unsigned ch = (unsigned char)*c->p;
        if (ch == '"') {
            c->p++;
            return BL_OK;
        }
        if (ch == '\\') {
            *escaped = true;
            BL_TRY(check_escape(c));
        } else if (ch < 0x20) {
            return bad(c, c->p, "control byte inside a string");
        } else {
            size_t n = utf8_length(c->p, c->end);
            if (n == 0) {
                return bad(c, c->p, "invalid UTF-8");
            }
            c->p += n;
        }
    }
}

static void skip_digits(check *c)
{
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9') {
        c->p++;
    }
}

static bl_status check_number(check *c)
{
    const char *start = c->p;
    c->p += *c->p == '-';
    const char *digits = c->p;
    skip_digits(c);
    if (c->p == digits) {
        return bad(c, start, "a number needs digits");
    }
    if (*digits == '0' && c->p - digits > 1) {
        return bad(c, start, "a number must not start with 0");
    }
    if (c->p < c->end && *c->p == '.') {
        const char *fraction = ++c->p;
        skip_digits(c);
        if (c->p == fraction) {
            return bad(c, start, "a fraction needs digits");
        }
    }
    if (c->p < c->end && (*c->p == 'e' || *c->p == 'E')) {
        c->p++;
        c->p += c->p < c->end && (*c->p == '+' || *c->p == '-');
        const char *exponent = c->p;
        skip_digits(c);
        if (c->p == exponent) {
            return bad(c, start, "an exponent needs digits");
        }
    }
    return BL_OK;
}

/* A key, its colon and the space before the value. */
static bl_status check_member(check *c)
{
    const char *at = c->p;
    bool escaped;
    if (at >= c->end || *at != '"') {
        return bad(c, at, "expected a key in double quotes");
    }
    BL_TRY(check_string(c, &escaped));
    bl_json key = {at, (size_t)(c->p - at), BL_JSON_STRING};
    if (!c->duplicates_allowed && bl_json_keys_add(&c->keys, key, escaped) != BL_OK) {
        return no_memory(c);
    }
    skip_space(c);
    if (c->p >= c->end || *c->p != ':') {
        return bad(c, c->p, "expected ':' after a key");
    }
    c->p++;
    skip_space(c);
    return BL_OK;
}

static bl_status open_frame(check *c)
{
    if (c->depth == c->max_depth) {
        return bl_fail(c->err, BL_E_INPUT, c->path, NULL, c->p - c->text,
                       "JSON: nested deeper than %u levels", c->max_depth);
    }
    c->stack[c->depth++] = (frame){c->keys.count, *c->p == '{'};
    c->p++;
    skip_space(c);
    return BL_OK;
}

static bl_status close_frame(check *c)
{
    bl_json twice;
    char name[200];
    bl_status s = bl_json_keys_close(&c->keys, c->stack[--c->depth].first, &twice);
    c->p++;
    if (s == BL_E_INPUT) {
        bl_json_string(twice, name, sizeof name);
        return bl_fail(c->err, BL_E_INPUT, c->path, name, twice.p - c->text, "JSON: duplicate key");
    }
    return s == BL_OK ? BL_OK : no_memory(c);
}

static bl_status check_word(check *c, const char *word, size_t n)
{
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0) {
        return bad(c, c->p, "expected a value");
    }
    c->p += n;
    return BL_OK;
}

/* A scalar, or the opening of a container: then *opened is set when a value must follow. */
static bl_status check_value(check *c, bool *opened)
{
    bool escaped;
    *opened = false;
    if (c->p >= c->end) {
        return bad(c, c->p, "the text ends where a value should be");
    }
    switch (*c->p) {
    case '"':
        return check_string(c, &escaped);
    case 't':
        return check_word(c, "true", 4);
    case 'f':
        return check_word(c, "false", 5);
    case 'n':
        return check_word(c, "null", 4);
    case '{':
    case '[': {
        char close = *c->p == '{' ? '}' : ']';
        BL_TRY(open_frame(c));
        if (c->p < c->end && *c->p == close) {
            return close_frame(c);
        }
        *opened = true;
        return close == '}' ? check_member(c) : BL_OK;
    }
    case '-':
        return check_number(c);
    default:
        return *c->p >= '0' && *c->p <= '9' ? check_number(c) : bad(c, c->p, "expected a value");
    }
}

/* After a value: close what ends here, or move to the next value. *done when the whole document is complete.
 */
static bl_status check_after(check *c, bool *done)
{
    while (c->depth > 0) {
        bool object = c->stack[c->depth - 1].object;
        skip_space(c);
        char ch = c->p < c->end ? *c->p : 0;
        if (ch == ',') {
            c->p++;
            skip_space(c);
            return object ? check_member(c) : BL_OK;
        }
        if (c->p >= c->end) {
            return bad(c, c->p, object ? "the text ends inside an object" : "the text ends inside an array");
        }
        if (ch != (object ? '}' : ']')) {
            return bad(c, c->p, object ? "expected ',' or '}'" : "expected ',' or ']'");
        }
        BL_TRY(close_frame(c));
    }
    *done = true;
    return BL_OK;
}

static bl_status check_document(check *c, bl_json *root)
{
    skip_space(c);
    const char *start = c->p;
    for (bool done = false, opened; !done;) {
        BL_TRY(check_value(c, &opened));
        if (!opened) {
            BL_TRY(check_after(c, &done));
        }
    }
    bl_json_kind kind = *start == '{'   ? BL_JSON_OBJECT
                        : *start == '[' ? BL_JSON_ARRAY
                        : *start == '"' ? BL_JSON_STRING
                        : *start == 't' ? BL_JSON_TRUE
                        : *start == 'f' ? BL_JSON_FALSE
                        : *start == 'n' ? BL_JSON_NULL
                                        : BL_JSON_NUMBER;
    *root = (bl_json){start, (size_t)(c->p - start), kind};
    skip_space(c);
    return c->p == c->end ? BL_OK : bad(c, c->p, "something follows the value");
}

bl_status bl_json_parse(const char *text, size_t n, const bl_json_limits *limits, const char *path,
                        bl_json *root, bl_error *err)
{
    size_t max_bytes = limits && limits->max_bytes ? limits->max_bytes : DEFAULT_BYTES;
    check c = {.text = text, .p = text, .end = text + n, .path = path, .err = err};
    c.max_depth = limits && limits->max_depth ? limits->max_depth : DEFAULT_DEPTH;
    c.duplicates_allowed = limits && limits->last_duplicate_wins;
    c.surrogates_refused = limits && limits->refuse_lone_surrogates;
    if (max_bytes >= UINT32_MAX) {
        max_bytes = UINT32_MAX - 1; /* offsets of keys are kept in 32 bits */
    }
    if (n > max_bytes) {
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "JSON: %zu bytes, more than the limit of %zu", n,
                       max_bytes);
    }
    bl_json_keys_begin(&c.keys, text);
    c.stack = malloc(c.max_depth * sizeof *c.stack);
    bl_status s = c.stack ? check_document(&c, root) : no_memory(&c);
    free(c.stack);
    bl_json_keys_end(&c.keys);
    return s;
}
