#include "formats/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <errno.h>

/* Length of the well-formed UTF-8 sequence at s (at most n bytes); 0 when it is none or a control character.
 * C1 controls, line separators and marks that turn the direction of text count as controls: terminals and log
 * readers act on them. */
static size_t printable(const unsigned char *s, size_t n)
{
    unsigned c = s[0];
    if (c < 0x80) {
        return c >= 0x20 && c != 0x7f;
    }
    size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || len > n) {
        return 0;
    }
    uint32_t u = c & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        u = u << 6 | (s[i] & 0x3fu);
    }
    int overlong = (len == 3 && u < 0x800) || (len == 4 && u < 0x10000);
    int illegal = (u >= 0xd800 && u <= 0xdfff) || u > 0x10ffff;
    int turns = u == 0x200e || u == 0x200f || (u >= 0x202a && u <= 0x202e) || (u >= 0x2066 && u <= 0x2069) ||
                u == 0x61c;
    int control = u < 0xa0 || u == 0x2028 || u == 0x2029 || turns;
    return overlong || illegal || control ? 0 : len;
}

char *bl_text_escape(char *dst, size_t cap, const char *src, int quotes)
{
    size_t n = strlen(src), o = 0;
    for (size_t i = 0; i < n;) {
        size_t len = printable((const unsigned char *)src + i, n - i);
        char hex[8];
        const char *piece = src + i;
        size_t size = len;
        if (len == 0) {
            size = (size_t)snprintf(hex, sizeof hex, "\\x%02x", (unsigned char)src[i]);
            piece = hex;
        } else if (quotes && src[i] == '\'') {
            piece = "\\'";
            size = 2;
        }
        if (o + size >= cap) {
            break;
        }
        memcpy(dst + o, piece, size);
        o += size;
        i += len ? len : 1;
    }
    dst[o] = 0;
    return dst;
}

static bl_status fill(bl_error *err, bl_status code, const char *path, const char *tensor, int64_t offset,
                      const char *message)
{
    err->code = code;
    err->offset = offset;
    bl_text_escape(err->path, sizeof err->path, path ? path : "", 0);
    bl_text_escape(err->tensor, sizeof err->tensor, tensor ? tensor : "", 1);
    bl_text_escape(err->message, sizeof err->message, message, 0);
    return code;
}

bl_status bl_fail(bl_error *err, bl_status code, const char *path, const char *tensor, int64_t offset,
                  const char *fmt, ...)
{
    if (!err || err->code != BL_OK) {
        return code;
    }
    char text[2 * sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t end = n < 0 ? 0 : strlen(text); end > 0 && text[end - 1] == '\n'; end--) { /* of a library that ends its lines */
        text[end - 1] = 0;
    }
    return fill(err, code, path, tensor, offset, n < 0 ? "unprintable message" : text);
}

bl_status bl_fail_errno(bl_error *err, int errno_value, int reading, const char *path, const char *doing)
{
    static const int of_the_input[] = {ENOENT, ENOTDIR, EISDIR, ELOOP, EACCES, EPERM, ENAMETOOLONG};
    bl_status code = errno_value == ENOMEM ? BL_E_NOMEM : BL_E_IO;
    for (size_t i = 0; reading && i < sizeof of_the_input / sizeof *of_the_input; i++) {
        if (errno_value == of_the_input[i]) {
            code = BL_E_INPUT;
        }
    }
    char text[128];
    const char *why = errno_value == EMFILE ? "more files are needed than a process may have open (ulimit -n)"
                                            : strerror_r(errno_value, text, sizeof text);
    return bl_fail(err, code, path, NULL, -1, "%s: %s", doing, why);
}

void bl_error_clear(bl_error *err)
{
    if (err) {
        memset(err, 0, sizeof *err);
        err->offset = -1;
    }
}

char *bl_error_line(const bl_error *err, char *buf, size_t cap)
{
    char at[40] = "";
    if (err->offset >= 0 && err->code != BL_OK) {
        snprintf(at, sizeof at, "at byte %lld: ", (long long)err->offset);
    }
    const char *message = err->message[0] ? err->message : err->code == BL_OK ? "no error" : "failed";
    snprintf(buf, cap, "%s%s%s%s%s%s%s", err->path, err->path[0] ? ": " : "", err->tensor[0] ? "'" : "",
             err->tensor, err->tensor[0] ? "': " : "", at, message);
    return buf;
}

int bl_exit_code(bl_status s)
{
    switch (s) {
    case BL_OK:
        return 0;
    case BL_E_FINDING:
        return 1;
    case BL_E_USAGE:
        return 2;
    case BL_E_INPUT:
        return 3;
    default:
        return 4;
    }
}

const char *bl_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}
