#include "formats/names.h"

#include <string.h>

bool bl_ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && memcmp(s + n - m, tail, m) == 0;
}

size_t bl_stem(const char *s, const char *tail)
{
    return bl_ends_with(s, tail) ? strlen(s) - strlen(tail) : 0;
}

char *bl_path_join(bl_arena *arena, const char *folder, const char *name)
{
    size_t m = strlen(folder), n = m + strlen(name) + 2;
    char *path = bl_arena_alloc(arena, n);
    if (path) {
        snprintf(path, n, "%s%s%s", folder, m && folder[m - 1] != '/' ? "/" : "", name);
    }
    return path;
}

static size_t escape(char out[8], unsigned char c)
{
    if (c < 0x20) {
        return (size_t)snprintf(out, 8, "\\u%04x", c);
    }
    size_t n = 0;
    if (c == '"' || c == '\\') {
        out[n++] = '\\';
    }
    out[n++] = (char)c;
    return n;
}

size_t bl_json_quote(char *dst, const char *s)
{
    size_t n = 1;
    for (; *s; s++) {
        char piece[8];
        size_t length = escape(piece, (unsigned char)*s);
        if (dst) {
            memcpy(dst + n, piece, length);
        }
        n += length;
    }
    if (dst) {
        dst[0] = dst[n] = '"';
    }
    return n + 1;
}

void bl_json_put(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s; s++) {
        char piece[8];
        fwrite(piece, 1, escape(piece, (unsigned char)*s), f);
    }
    fputc('"', f);
}
