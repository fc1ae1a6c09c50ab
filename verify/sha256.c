#include "verify/sha256.h"

#include "formats/digest.h"
#include "formats/file.h"
#include "formats/output.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)1 << 20)

struct bl_sha256 {
    EVP_MD_CTX *ctx;
    bool ok;
};

bl_status bl_sha256_create(bl_sha256 **out, bl_error *err)
{
    bl_sha256 *h = calloc(1, sizeof *h);
    *out = h;
    if (h) {
        h->ctx = EVP_MD_CTX_new();
        h->ok = h->ctx && EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1;
    }
    if (!h || !h->ok) {
        bl_sha256_destroy(out);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "cannot set up SHA-256");
    }
    return BL_OK;
}

void bl_sha256_destroy(bl_sha256 **h)
{
    if (*h) {
        EVP_MD_CTX_free((*h)->ctx);
        free(*h);
        *h = NULL;
    }
}

void bl_sha256_update(bl_sha256 *h, const void *data, size_t n)
{
    h->ok = EVP_DigestUpdate(h->ctx, data, n) == 1 && h->ok;
}

bl_status bl_sha256_final(bl_sha256 *h, uint8_t digest[32], bl_error *err)
{
    bool ok = EVP_DigestFinal_ex(h->ctx, digest, NULL) == 1 && h->ok;
    h->ok = EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1;
    return ok ? BL_OK : bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "SHA-256 failed in libcrypto");
}

bl_status bl_sha256_bytes(const void *data, size_t n, uint8_t digest[32], bl_error *err)
{
    if (EVP_Digest(data, n, digest, NULL, EVP_sha256(), NULL) != 1) {
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "SHA-256 failed in libcrypto");
    }
    return BL_OK;
}

static bl_status hash_file(bl_sha256 *h, const bl_file *f, uint8_t *buf, uint8_t digest[32], bl_error *err)
{
    uint64_t size = bl_file_size(f);
    for (uint64_t at = 0; at < size; at += PIECE) {
        size_t n = size - at < PIECE ? (size_t)(size - at) : PIECE;
        BL_TRY(bl_file_read(f, buf, n, at, err));
        bl_sha256_update(h, buf, n);
    }
    return bl_sha256_final(h, digest, err);
}

bl_status bl_sha256_file(const char *path, uint8_t digest[32], bl_error *err)
{
    bl_file *f;
    bl_sha256 *h = NULL;
    BL_TRY(bl_file_open(&f, path, err));
    uint8_t *buf = malloc(PIECE);
    bl_status s = buf ? bl_sha256_create(&h, err) : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    if (s == BL_OK) {
        s = hash_file(h, f, buf, digest, err);
    }
    bl_sha256_destroy(&h);
    free(buf);
    bl_file_close(&f);
    return s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const bl_sum_line *)a)->name, ((const bl_sum_line *)b)->name);
}

bl_status bl_sums_text(bl_sum_line *lines, size_t count, char **text, size_t *n, bl_error *err)
{
    *n = 0;
    for (size_t i = 0; i < count; i++) {
        *n += 64 + 2 + strlen(lines[i].name) + 1;
    }
    char *p = *text = malloc(*n + 65);
    if (!p) {
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for " BL_SUMS_NAME);
    }
    qsort(lines, count, sizeof *lines, by_name);
    for (size_t i = 0; i < count; i++) {
        bl_hex_encode(p, lines[i].digest, 32);
        p += 64;
        p += sprintf(p, "  %s\n", lines[i].name);
    }
    return BL_OK;
}

bl_status bl_sums_write(bl_sum_line *lines, size_t count, const char *path, bl_error *err)
{
    char *text;
    size_t n;
    BL_TRY(bl_sums_text(lines, count, &text, &n, err));
    bl_status s = bl_output_file(path, text, n, err);
    free(text);
    return s;
}

/* A name that stays inside the folder: relative, no empty, "." or ".." component. */
static bool inside(const char *name)
{
    for (const char *p = name;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) {
            return false;
        }
        p += n;
        if (!*p) {
            return true;
        }
    }
}

static bool parse_line(const char *line, size_t n, bl_arena *arena, bl_sum_line *out)
{
    if (n < 67 || line[64] != ' ' || (line[65] != ' ' && line[65] != '*') || memchr(line, 0, n) || memchr(line, '\\', n)) {
        return false;
    }
    for (int i = 0; i < 64; i++) {
        if (line[i] >= 'A' && line[i] <= 'F') {
            return false;
        }
    }
    char *name = bl_arena_strndup(arena, line + 66, n - 66);
    out->name = name;
    return bl_hex_decode(out->digest, line, 64) && name && inside(name);
}

bl_status bl_sums_parse(const char *text, size_t size, const char *path, bl_arena *arena, bl_sum_line **lines, size_t *count, bl_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += text[i] == '\n';
    }
    bl_sum_line *out = bl_arena_array(arena, n + 1, sizeof *out);
    bl_status s = out ? BL_OK : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    *lines = out;
    *count = 0;
    for (size_t at = 0; s == BL_OK && at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (end && end > text + at && end[-1] == '\r') {
            s = bl_fail(err, BL_E_INPUT, path, NULL, (int64_t)at, "its lines end in CR LF: something has rewritten the file");
            break;
        }
        if (!end || !parse_line(text + at, (size_t)(end - text) - at, arena, &out[*count])) {
            s = bl_fail(err, BL_E_INPUT, path, NULL, (int64_t)at, "is not a line of 64 lower-case digits, two spaces and a name");
            break;
        }
        ++*count;
        at = (size_t)(end - text) + 1;
    }
    if (*count) {
        qsort(out, *count, sizeof *out, by_name);
    }
    for (size_t i = 1; s == BL_OK && i < *count; i++) {
        if (!strcmp(out[i].name, out[i - 1].name)) {
            s = bl_fail(err, BL_E_INPUT, path, out[i].name, -1, "is listed twice");
        }
    }
    return s;
}

const bl_sum_line *bl_sums_find(const bl_sum_line *lines, size_t count, const char *name)
{
    bl_sum_line key = {.name = name};
    return count ? bsearch(&key, lines, count, sizeof *lines, by_name) : NULL;
}
