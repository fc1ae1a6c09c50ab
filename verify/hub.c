#include "verify/hub.h"

#include "formats/digest.h"
#include "formats/file.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RECORD ((uint64_t)4096)
#define PATH_ROOM 4352

/* The n bytes at text as the name of an object; BL_HUB_NONE when they are none. */
static bl_hub_record object(const char *text, size_t n)
{
    bl_hub_record r = {0};
    if ((n == 64 || n == 2 * BL_GIT_OID_BYTES) && bl_hex_decode(r.object, text, n)) {
        r.kind = n == 64 ? BL_HUB_SHA256 : BL_HUB_GIT;
    }
    return r;
}

static bl_hub_record damaged(bl_error *flaw, const char *path, const char *what)
{
    bl_fail(flaw, BL_E_FINDING, path, NULL, -1, "a damaged record of the Hugging Face client, which proves nothing: %s", what);
    return (bl_hub_record){.kind = BL_HUB_DAMAGED};
}

/* In the client's cache: a link to a blob. Links of others are no records. */
static bl_hub_record from_link(const char *path, bl_error *flaw)
{
    char target[PATH_ROOM];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) {
        return (bl_hub_record){0};
    }
    target[n] = 0;
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    bl_hub_record r = object(name, strlen(name));
    bool blob = slash && slash - target >= 5 && !strncmp(slash - 5, "blobs", 5) && (slash - target == 5 || slash[-6] == '/');
    return r.kind || !blob ? r : damaged(flaw, path, "it links to a blob whose name is no object's (64 or 40 hexadecimal digits)");
}

/* The next line, cut off at *text without white space behind it, NULL when there is none. */
static char *next_line(char **text)
{
    char *line = *text, *end = line ? strchr(line, '\n') : NULL;
    if (!end) {
        return NULL;
    }
    *text = end + 1;
    while (end > line && (end[-1] == '\r' || end[-1] == ' ')) {
        end--;
    }
    *end = 0;
    return line;
}

static bl_hub_record parse(char *text, const char *path, bl_error *flaw)
{
    char *at = text, *revision = next_line(&at), *name = next_line(&at), *time = next_line(&at), *end = NULL;
    if (!time || *at) {
        return damaged(flaw, path, "it must be three lines");
    }
    bl_hub_record r = object(name, strlen(name));
    if (r.kind == BL_HUB_NONE) {
        return damaged(flaw, path, "its second line is no object's name (64 or 40 hexadecimal digits)");
    }
    strtod(time, &end);
    return *revision && *time && !*end ? r : damaged(flaw, path, !*revision ? "it names no revision" : "its third line is no time");
}

bl_hub_record bl_hub_find(const char *folder, const char *name, bl_error *flaw)
{
    char path[PATH_ROOM], *text = NULL;
    size_t n = 0;
    struct stat st;
    bl_error e = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bl_hub_record r = from_link(path, flaw);
    snprintf(path, sizeof path, "%s/.cache/huggingface/download/%s.metadata", folder, name);
    if (r.kind != BL_HUB_NONE || lstat(path, &st) != 0) {
        return r;
    }
    if (bl_file_slurp(path, MAX_RECORD, &text, &n, &e) != BL_OK) {
        return damaged(flaw, path, e.message);
    }
    r = strlen(text) == n ? parse(text, path, flaw) : damaged(flaw, path, "it is no text");
    free(text);
    return r;
}

bl_status bl_git_oid(const void *data, size_t n, uint8_t oid[BL_GIT_OID_BYTES], bl_error *err)
{
    char head[64];
    uint8_t digest[EVP_MAX_MD_SIZE];
    size_t head_bytes = (size_t)snprintf(head, sizeof head, "blob %zu", n) + 1; /* with its NUL */
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha1(), NULL) == 1 && EVP_DigestUpdate(ctx, head, head_bytes) == 1 &&
              EVP_DigestUpdate(ctx, data, n) == 1 && EVP_DigestFinal_ex(ctx, digest, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    memcpy(oid, digest, ok ? BL_GIT_OID_BYTES : 0);
    return ok ? BL_OK : bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "SHA-1 failed in libcrypto");
}
