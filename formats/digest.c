#include "formats/digest.h"

#include <string.h>

char *bl_hex_encode(char *dst, const void *src, size_t n)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++) {
        dst[2 * i] = "0123456789abcdef"[p[i] >> 4];
        dst[2 * i + 1] = "0123456789abcdef"[p[i] & 15];
    }
    dst[2 * n] = 0;
    return dst;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool bl_hex_decode(void *dst, const char *src, size_t chars)
{
    uint8_t *p = dst;
    for (size_t i = 0; i < chars / 2; i++) {
        int high = digit(src[2 * i]), low = digit(src[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        p[i] = (uint8_t)(high << 4 | low);
    }
    return chars % 2 == 0;
}

bool bl_digest_equal(const bl_digest *a, const bl_digest *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}
