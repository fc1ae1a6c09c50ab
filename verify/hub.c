#include "verify/hub.h"

#include "formats/digest.h"
#include "formats/file.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RECORD ((uint64_t)4096)
#define PATH_ROOM 4352

static bl_hub_record parse(const char *text)
{
    bl_hub_record r = {0};
    size_t n = text ? strcspn(text, "\r\n") : 0;
    if ((n == 64 || n == 2 * BL_GIT_OID_BYTES) && bl_hex_decode(r.object, text, n)) {
        r.kind = n == 64 ? BL_HUB_SHA256 : BL_HUB_GIT;
    }
    return r;
}

bl_hub_record bl_hub_find(const char *folder, const char *name)
{
    char path[PATH_ROOM], target[PATH_ROOM], *text = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n > 0) {
        target[n] = 0;
        const char *slash = strrchr(target, '/');
        return parse(slash ? slash + 1 : target);
    }
    snprintf(path, sizeof path, "%s/.cache/huggingface/download/%s.metadata", folder, name);
    if (bl_file_slurp(path, MAX_RECORD, &text, NULL, NULL) != BL_OK) {
        return (bl_hub_record){0};
    }
    const char *line = strchr(text, '\n');
    bl_hub_record r = parse(line ? line + 1 : NULL);
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
