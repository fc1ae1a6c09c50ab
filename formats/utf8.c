#include "formats/utf8.h"

#include <string.h>

/* For a lead byte: total length (0 = never a lead) and the range of the second byte, which is what excludes overlong forms,
 * surrogates and values above U+10FFFF. */
static unsigned lead(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (b < 0x80)
        return 1;
    if (b < 0xC2 || b > 0xF4)
        return 0;
    if (b < 0xE0)
        return 2;
    if (b < 0xF0) {
        if (b == 0xE0)
            *lo = 0xA0;
        if (b == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (b == 0xF0)
        *lo = 0x90;
    if (b == 0xF4)
        *hi = 0x8F;
    return 4;
}

bl_utf8_kind bl_utf8_step(const char *p, size_t n, unsigned *len, uint32_t *cp)
{
    const uint8_t *b = (const uint8_t *)p;
    uint8_t lo, hi;
    unsigned total = lead(b[0], &lo, &hi);
    if (total <= 1) {
        *len = 1;
        if (total == 1 && cp)
            *cp = b[0];
        return total == 1 ? BL_UTF8_VALID : BL_UTF8_INVALID;
    }
    uint32_t value = b[0] & (0x7Fu >> total);
    for (unsigned i = 1; i < total; i++) {
        *len = i;
        if (i == n)
            return BL_UTF8_SHORT;
        if (b[i] < lo || b[i] > hi)
            return BL_UTF8_INVALID;
        value = value << 6 | (b[i] & 0x3F);
        lo = 0x80;
        hi = 0xBF;
    }
    *len = total;
    if (cp)
        *cp = value;
    return BL_UTF8_VALID;
}

size_t bl_utf8_check(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (i + 8 <= n && (memcpy(&word, p + i, 8), (word & 0x8080808080808080u) == 0))
            i += 8;
        unsigned len;
        if (i < n && bl_utf8_step(p + i, n - i, &len, NULL) != BL_UTF8_VALID)
            return i;
        if (i < n)
            i += len;
    }
    return n;
}

unsigned bl_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}
