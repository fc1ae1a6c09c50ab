#include "runtime/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for n more bytes; false once memory has run out. */
static bool reserve(bl_text *t, size_t n)
{
    if (t->failed)
        return false;
    if (t->cap - t->n >= n)
        return true;
    size_t cap = t->cap + t->cap / 2 + n + 64;
    char *p = cap > n ? realloc(t->p, cap) : NULL;
    if (!p) {
        t->failed = true;
        return false;
    }
    t->p = p;
    t->cap = cap;
    return true;
}

void bl_text_add(bl_text *t, const char *p, size_t n)
{
    if (n == 0 || !reserve(t, n))
        return;
    memcpy(t->p + t->n, p, n);
    t->n += n;
}

void bl_text_puts(bl_text *t, const char *s)
{
    bl_text_add(t, s, strlen(s));
}

void bl_text_printf(bl_text *t, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    const int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0 || !reserve(t, (size_t)n + 1)) /* the last for printf's NUL */
        return;
    va_start(ap, format);
    vsnprintf(t->p + t->n, (size_t)n + 1, format, ap);
    va_end(ap);
    t->n += (size_t)n;
}

void bl_text_unescaped(bl_text *t, bl_json v)
{
    if (v.kind == BL_JSON_STRING && reserve(t, v.n)) /* the quotes make room for the NUL */
        t->n += bl_json_string(v, t->p + t->n, v.n);
}

void bl_text_end(bl_text *t)
{
    if (reserve(t, 1))
        t->p[t->n] = 0;
}

/* The letter behind the backslash for a character that has a short escape, 0 for others. */
static char short_escape(char c)
{
    switch (c) {
    case '"':
    case '\\':
        return c;
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    default:
        return 0;
    }
}

void bl_text_quote_body(bl_text *t, const char *p, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t run = 0;
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        bl_text_add(t, p + run, i - run);
        run = i + 1;
        char letter = short_escape(p[i]);
        if (letter)
            bl_text_add(t, (char[]){'\\', letter}, 2);
        else
            bl_text_add(t, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
    bl_text_add(t, p + run, n - run);
}

void bl_text_quote(bl_text *t, const char *p, size_t n)
{
    bl_text_puts(t, "\"");
    bl_text_quote_body(t, p, n);
    bl_text_puts(t, "\"");
}

static void quote_value(bl_text *t, bl_json v)
{
    bl_text plain = {0};
    bl_text_unescaped(&plain, v);
    bl_text_quote(t, plain.p, plain.n);
    t->failed = t->failed || plain.failed;
    free(plain.p);
}

void bl_text_json(bl_text *t, bl_json v)
{
    if (v.kind == BL_JSON_STRING) {
        quote_value(t, v);
        return;
    }
    if (v.kind != BL_JSON_ARRAY && v.kind != BL_JSON_OBJECT) {
        bl_text_add(t, v.p, v.n);
        return;
    }
    bool object = v.kind == BL_JSON_OBJECT, first = true;
    bl_json key, value;
    bl_text_puts(t, object ? "{" : "[");
    for (bl_json_iter it = bl_json_begin(v); bl_json_next(&it, &key, &value); first = false) {
        if (!first)
            bl_text_puts(t, ", ");
        if (object) {
            quote_value(t, key);
            bl_text_puts(t, ": ");
        }
        bl_text_json(t, value);
    }
    bl_text_puts(t, object ? "}" : "]");
}
