#include "verify/witness.h"

#include "formats/digest.h"
#include "formats/file.h"
#include "formats/names.h"
#include "verify/companions.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_GIT_FILE ((uint64_t)256 << 20)
#define MAX_DOWNLOAD_RECORD ((uint64_t)4096)

typedef struct gatherer {
    bl_finder *f;
    const bl_checkpoint *c;
    bl_arena *arena;
    bl_witnesses *out;
    size_t cap;
    bl_sum_line *lines;
    size_t line_count;
} gatherer;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

static bl_status add(gatherer *g, const char *name, bool sha256, const uint8_t *digest, const char *origin, bl_error *err)
{
    if (g->out->count == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 64;
        bl_witness *items = bl_arena_array(g->arena, cap, sizeof *items);
        if (!items) {
            return nomem(err);
        }
        if (g->out->count) {
            memcpy(items, g->out->items, g->out->count * sizeof *items);
        }
        g->out->items = items;
        g->cap = cap;
    }
    bl_witness *w = &g->out->items[g->out->count++];
    *w = (bl_witness){.name = bl_arena_strndup(g->arena, name, strlen(name)), .sha256 = sha256, .origin = origin};
    w->path = bl_path_join(g->arena, g->c->path, name);
    memcpy(w->digest, digest, sha256 ? 32 : 20);
    return w->name && w->path ? BL_OK : nomem(err);
}

/* Names of files that are read whole, each with a limit of its own of at most BL_MANIFEST_MAX_BYTES. */
static bool read_whole(const char *name)
{
    static const char *const others[] = {"config.json", "manifest.json", "model.safetensors.index.json"};
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    bool known = false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        known |= !strcmp(base, others[i]);
    }
    for (size_t i = 0; i < BL_COMPANIONS; i++) {
        known |= !strcmp(base, bl_companions[i]);
    }
    return known;
}

static bool was_opened(const bl_checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->file_count; i++) {
        if (!strcmp(c->files[i].name, name)) {
            return true;
        }
    }
    return false;
}

/* Can a listed file not have the right digest, for a reason that is a finding of level 1 already? Hashing it would then only take
 * time, for a hole of a terabyte hours: too large to be read, another size than the manifest's, weights that could not be opened. */
static bool hopeless(const gatherer *g, const char *name, uint64_t size)
{
    const bl_manifest *m = g->c->manifest;
    if (size > BL_MANIFEST_MAX_BYTES && read_whole(name)) {
        return true;
    }
    for (size_t i = 0; m && i < m->file_count; i++) {
        if (!strcmp(m->files[i].name, name)) {
            return m->files[i].bytes != size;
        }
    }
    return g->c->kind == BL_SOURCE_HF && !strchr(name, '/') && bl_ends_with(name, ".safetensors") && !was_opened(g->c, name);
}

static bl_status from_sums(gatherer *g, bool *present, bl_error *err)
{
    char *path = bl_path_join(g->arena, g->c->path, BL_SUMS_NAME);
    bl_error e;
    bl_error_clear(&e);
    if (!path) {
        return nomem(err);
    }
    *present = access(path, F_OK) == 0;
    if (!*present) {
        return BL_OK;
    }
    bl_status s = bl_sums_read(path, g->arena, &g->lines, &g->line_count, &e);
    if (s == BL_E_INPUT) {
        g->line_count = 0; /* whatever line is damaged: none of them is to be trusted */
        bl_finder_problem(g->f, &e);
        return BL_OK;
    }
    if (s != BL_OK) {
        if (err) {
            *err = e;
        }
        return s;
    }
    for (size_t i = 0; i < g->line_count; i++) {
        const char *file = bl_path_join(g->arena, g->c->path, g->lines[i].name);
        struct stat st;
        if (!file) {
            return nomem(err);
        }
        if (!bl_checkpoint_covers(g->c, g->lines[i].name)) {
            continue;
        }
        if (stat(file, &st) != 0 || !S_ISREG(st.st_mode)) {
            bl_find(g->f, 3, file, NULL, -1, -1, "is listed in " BL_SUMS_NAME " but is not there");
            continue;
        }
        if (!hopeless(g, g->lines[i].name, (uint64_t)st.st_size)) {
            BL_TRY(add(g, g->lines[i].name, true, g->lines[i].digest, BL_SUMS_NAME, err));
        }
    }
    return BL_OK;
}

/* Hugging Face's cache names a file's content by its SHA-256 (large files) or git's SHA-1: snapshots are links to such names, and
 * a download into a folder leaves the name on the second line of .cache/huggingface/download/NAME.metadata. */
static bool hub_name(gatherer *g, const char *folder, const char *name, char oid[65])
{
    char target[4096], *download = NULL;
    const char *path = bl_path_join(g->arena, folder, name), *text = NULL;
    ssize_t n = path ? readlink(path, target, sizeof target - 1) : -1;
    if (n > 0) {
        target[n] = 0;
        const char *slash = strrchr(target, '/');
        text = slash ? slash + 1 : target;
    } else {
        char meta[4096];
        snprintf(meta, sizeof meta, "%s/.cache/huggingface/download/%s.metadata", folder, name);
        if (bl_file_slurp(meta, MAX_DOWNLOAD_RECORD, &download, NULL, NULL) == BL_OK && (text = strchr(download, '\n')) != NULL) {
            text++;
        }
    }
    size_t len = text ? strcspn(text, "\r\n") : 0;
    uint8_t digest[32];
    bool named = (len == 64 || len == 40) && bl_hex_decode(digest, text, len);
    if (named) {
        memcpy(oid, text, len);
        oid[len] = 0;
    }
    free(download);
    return named;
}

static bool listed(const gatherer *g, const char *name)
{
    return bl_sums_find(g->lines, g->line_count, name) != NULL;
}

/* A file that SHA256SUMS does not list. no_sha: the manifest left the hash of this payload file out on purpose. */
static bl_status unlisted(gatherer *g, const char *name, uint64_t size, bool sums, bl_error *err)
{
    char oid[65];
    uint8_t digest[32];
    if (g->c->kind == BL_SOURCE_PACKED) {
        for (size_t i = 0; g->c->manifest && i < g->c->manifest->file_count; i++) {
            const bl_manifest_file *file = &g->c->manifest->files[i];
            if (!strcmp(file->name, name) && !file->has_sha256) {
                return BL_OK;
            }
        }
        if (sums) {
            bl_find(g->f, 3, bl_path_join(g->arena, g->c->path, name), NULL, -1, -1, "is not listed in " BL_SUMS_NAME);
        }
        return BL_OK;
    }
    if (hopeless(g, name, size) || !hub_name(g, g->c->path, name, oid)) {
        return BL_OK;
    }
    bl_hex_decode(digest, oid, strlen(oid));
    return add(g, name, strlen(oid) == 64, digest, "the name of its object in the Hugging Face cache", err);
}

/* Every file of sub ("" or a rank folder). In a packed model also what is no file at all: nothing may be there unlisted. */
static bl_status walk(gatherer *g, const char *sub, bool sums, bl_error *err)
{
    const char *folder = *sub ? bl_path_join(g->arena, g->c->path, sub) : g->c->path;
    DIR *d = folder ? opendir(folder) : NULL;
    if (!d) {
        return *sub ? BL_OK : bl_fail_errno(err, errno, 1, g->c->path, "cannot list the folder");
    }
    bl_status s = BL_OK;
    for (struct dirent *e; s == BL_OK && (e = readdir(d));) {
        char name[600];
        struct stat st;
        if (e->d_name[0] == '.' || (!*sub && !strcmp(e->d_name, BL_SUMS_NAME))) {
            continue;
        }
        snprintf(name, sizeof name, "%s%s%s", sub, *sub ? "/" : "", e->d_name);
        const char *path = bl_path_join(g->arena, g->c->path, name);
        if (!path) {
            s = nomem(err);
            continue;
        }
        bool there = stat(path, &st) == 0, packed = g->c->kind == BL_SOURCE_PACKED;
        if (!bl_checkpoint_covers(g->c, name)) {
            continue;
        }
        if (packed && !*sub && there && S_ISDIR(st.st_mode) && !strncmp(name, "rank-", 5)) {
            s = walk(g, name, sums, err);
        } else if ((packed || (there && S_ISREG(st.st_mode))) && !listed(g, name)) {
            s = unlisted(g, name, there ? (uint64_t)st.st_size : 0, sums, err);
        }
    }
    closedir(d);
    return s;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const bl_witness *)a)->path, ((const bl_witness *)b)->path);
}

bl_status bl_witness_gather(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err)
{
    *out = (bl_witnesses){0};
    gatherer g = {.f = f, .c = c, .arena = arena, .out = out};
    bool sums = false;
    f->level = 3;
    BL_TRY(from_sums(&g, &sums, err));
    if (!sums && c->kind == BL_SOURCE_PACKED) {
        bl_find(f, 3, bl_path_join(arena, c->path, BL_SUMS_NAME), NULL, -1, -1, "is missing: nothing proves the manifests");
    }
    BL_TRY(walk(&g, "", g.line_count > 0, err));
    if (out->count) {
        qsort(out->items, out->count, sizeof *out->items, by_path);
    }
    return BL_OK;
}

const bl_witness *bl_witness_of(const bl_witnesses *w, const char *path)
{
    bl_witness key = {.path = path};
    return w->count ? bsearch(&key, w->items, w->count, sizeof *w->items, by_path) : NULL;
}

bl_status bl_witness_check_git(bl_finder *f, const bl_witness *w, bool *right, bl_error *err)
{
    char *data, head[64];
    size_t n;
    uint8_t digest[EVP_MAX_MD_SIZE];
    BL_TRY(bl_file_slurp(w->path, MAX_GIT_FILE, &data, &n, err));
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    size_t head_bytes = (size_t)snprintf(head, sizeof head, "blob %zu", n) + 1; /* with its NUL */
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha1(), NULL) == 1 && EVP_DigestUpdate(ctx, head, head_bytes) == 1 &&
              EVP_DigestUpdate(ctx, data, n) == 1 && EVP_DigestFinal_ex(ctx, digest, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    free(data);
    if (!ok) {
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "SHA-1 failed in libcrypto");
    }
    *right = memcmp(digest, w->digest, 20) == 0;
    if (!*right) {
        bl_find(f, 3, w->path, NULL, 0, (int64_t)n, "its content differs from %s", w->origin);
    }
    return BL_OK;
}
