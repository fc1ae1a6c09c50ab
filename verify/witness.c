#include "verify/witness.h"

#include "formats/delta.h"
#include "formats/digest.h"
#include "formats/file.h"
#include "formats/names.h"
#include "verify/companions.h"
#include "verify/scales.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUMS_MAX ((uint64_t)256 << 20)
#define MAX_GIT_FILE ((uint64_t)256 << 20)
#define MAX_DEPTH 16

typedef struct gatherer {
    bl_finder *f;
    const bl_checkpoint *c;
    bl_arena *arena;
    bl_witnesses *out;
    size_t cap;
    bl_sum_line *lines;
    size_t line_count;
    size_t from_sums; /* witnesses that come from them: those are sorted by name */
    bool listing;     /* there is a SHA256SUMS, and it can be read */
    bool all;         /* everything must be listed, since a signature is to cover it */
    bool first;       /* there is no SHA256SUMS yet: it is to be written and signed */
} gatherer;

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

static bl_status add(gatherer *g, const char *name, bl_witness **out, bl_error *err)
{
    bl_witness *grown = bl_arena_grow(g->arena, g->out->items, &g->cap, g->out->count, sizeof *grown);
    if (!grown) {
        return nomem(err);
    }
    g->out->items = grown;
    bl_witness *w = *out = &g->out->items[g->out->count++];
    *w = (bl_witness){.name = bl_arena_strndup(g->arena, name, strlen(name)), .path = bl_path_join(g->arena, g->c->path, name)};
    return w->name && w->path ? BL_OK : nomem(err);
}

/* Names of files that are read whole, each with a limit of its own of at most BL_MANIFEST_MAX_BYTES. */
static bool read_whole(const char *name)
{
    static const char *const others[] = {"config.json",   "manifest.json",      "model.safetensors.index.json", BL_BUCKETS_NAME,
                                         BL_DELTA_NAME, BL_DELTA_TARGET_NAME, BL_BUCKETS_BYTES_NAME,          BL_BUCKETS_ELEMENTS_NAME};
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

/* Can a file not be what it should, for a reason that is a finding of a lower level already? Hashing it would then only take time, for a
 * hole of a terabyte hours: too large to be read, another size than the manifest's, weights that could not be opened. */
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
    if (g->c->kind != BL_SOURCE_HF) { /* in a rank's folder, of which the manifest does not know */
        return !strncmp(name, "rank-", 5) && strchr(name, '/') && bl_ends_with(name, ".safetensors") && !was_opened(g->c, name);
    }
    return !strcmp(name, BL_SCALES_NAME) ? bl_companion_scales_check(g->c, NULL) != BL_OK
                                         : !strchr(name, '/') && bl_ends_with(name, ".safetensors") && !was_opened(g->c, name);
}

bl_status bl_witness_read(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err)
{
    char *path = bl_path_join(arena, c->path, BL_SUMS_NAME), *text;
    *out = (bl_witnesses){0};
    if (!path) {
        return nomem(err);
    }
    if (access(path, F_OK) != 0) {
        return BL_OK;
    }
    bl_error e;
    bl_error_clear(&e);
    bl_status s = bl_file_slurp(path, SUMS_MAX, &text, &out->bytes, &e);
    if (s == BL_E_INPUT) {
        out->unread = true;
        f->level = 3;
        bl_finder_problem(f, &e);
        return BL_OK;
    }
    if (s != BL_OK) {
        if (err) {
            *err = e;
        }
        return s;
    }
    out->text = bl_arena_strndup(arena, text, out->bytes);
    free(text);
    return out->text ? BL_OK : nomem(err);
}

static bl_status from_sums(gatherer *g, bl_error *err)
{
    bl_error e;
    bl_error_clear(&e);
    const char *path = bl_path_join(g->arena, g->c->path, BL_SUMS_NAME);
    bl_status s = path ? bl_sums_parse(g->out->text, g->out->bytes, path, g->arena, &g->lines, &g->line_count, &e) : nomem(&e);
    g->listing = s == BL_OK;
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
        const char *name = g->lines[i].name, *file = bl_path_join(g->arena, g->c->path, name);
        struct stat st;
        bl_witness *w;
        if (!file) {
            return nomem(err);
        }
        if (!bl_checkpoint_covers(g->c, name)) {
            continue;
        }
        bool there = stat(file, &st) == 0;
        if (!there || !S_ISREG(st.st_mode)) {
            bl_find_absent(g->f, 3, file, there ? ENOENT : errno, BL_SUMS_NAME);
            continue;
        }
        if (!hopeless(g, name, (uint64_t)st.st_size)) {
            BL_TRY(add(g, name, &w, err));
            w->listed = true;
            memcpy(w->sums, g->lines[i].digest, sizeof w->sums);
        }
    }
    g->from_sums = g->out->count;
    return BL_OK;
}

static bool listed(const gatherer *g, const char *name)
{
    return bl_sums_find(g->lines, g->line_count, name) != NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const bl_witness *)a)->name, ((const bl_witness *)b)->name);
}

/* What the Hugging Face client recorded: counts for what is not listed, and when it is asked for. */
static bl_status hub_record(gatherer *g, const char *name, uint64_t size, bool in_sums, bl_error *err)
{
    bool asked = g->f->o->hub;
    bl_hub_record r = {0};
    if (hopeless(g, name, size) || (!asked && (in_sums || g->c->kind == BL_SOURCE_PACKED))) {
        return BL_OK;
    }
    bl_error flaw = {0};
    r = bl_hub_find(g->c->path, name, &flaw);
    bl_witness key = {.name = name}, *w = NULL;
    if (r.kind == BL_HUB_DAMAGED) {
        g->out->damaged++;
        bl_find(g->f, 3, flaw.path, NULL, -1, -1, "%s", flaw.message);
    } else if (r.kind != BL_HUB_NONE) {
        w = in_sums && g->from_sums ? bsearch(&key, g->out->items, g->from_sums, sizeof *w, by_name) : NULL;
        BL_TRY(w ? BL_OK : add(g, name, &w, err));
        w->hub = r;
    } else if (asked) {
        g->out->unrecorded++;
        if (g->f->o->on_unrecorded) {
            g->f->o->on_unrecorded(g->f->o->arg, name);
        }
    }
    return BL_OK;
}

static bl_status want(gatherer *g, const char *name, bl_error *err)
{
    bl_witness *last = g->out->count ? &g->out->items[g->out->count - 1] : NULL, *w = NULL;
    if (strpbrk(name, "\n\\")) {
        bl_find(g->f, 3, bl_path_join(g->arena, g->c->path, name), NULL, -1, -1, "has a name that " BL_SUMS_NAME " cannot list");
        return BL_OK;
    }
    if (last && !strcmp(last->name, name)) {
        w = last; /* just now, for its record */
    } else {
        BL_TRY(add(g, name, &w, err));
    }
    w->wanted = true;
    return BL_OK;
}

/* Did the manifest leave the SHA-256 of this payload file out on purpose? Its chunk digests prove it then. */
static bool left_out(const gatherer *g, const char *name)
{
    for (size_t i = 0; g->c->manifest && i < g->c->manifest->file_count; i++) {
        const bl_manifest_file *file = &g->c->manifest->files[i];
        if (!strcmp(file->name, name) && !file->has_sha256) {
            return true;
        }
    }
    return false;
}

/* Something that SHA256SUMS does not list. */
static bl_status unlisted(gatherer *g, const char *name, bool regular, uint64_t size, bl_error *err)
{
    const char *path = bl_path_join(g->arena, g->c->path, name);
    bool packed = g->c->kind == BL_SOURCE_PACKED, chunks = packed && left_out(g, name);
    if (!path) {
        return nomem(err);
    }
    if (regular && g->f->o->sign && (chunks || g->first)) {
        return hopeless(g, name, size) ? BL_OK : want(g, name, err);
    }
    if (chunks && g->all) {
        bl_find(g->f, 3, path, NULL, -1, -1, "is not listed in " BL_SUMS_NAME ": the signature does not cover it");
    } else if (!chunks && g->listing && (packed || g->all)) {
        bl_find(g->f, 3, path, NULL, -1, -1, "is not listed in " BL_SUMS_NAME);
    } else if (g->all && !regular) {
        bl_find(g->f, 3, path, NULL, -1, -1, "is no file: " BL_SUMS_NAME " cannot list it");
    }
    return BL_OK;
}

/* Is an entry no part of the model? Hidden ones are none, except where everything is to be covered: then what git and the Hugging Face
 * client keep for themselves. */
static bool aside(const gatherer *g, const char *sub, const char *name)
{
    static const char *const kept[] = {".git", ".gitattributes", ".github", ".gitignore", ".cache", ".huggingface"};
    if (!strcmp(name, ".") || !strcmp(name, "..") || (!*sub && (!strcmp(name, BL_SUMS_NAME) || !strcmp(name, BL_SIGNATURE_NAME)))) {
        return true;
    }
    for (size_t i = 0; !*sub && i < sizeof kept / sizeof *kept; i++) {
        if (!strcmp(name, kept[i])) {
            return true;
        }
    }
    return name[0] == '.' && !g->all;
}

static bl_status walk(gatherer *g, const char *sub, int depth, bl_error *err);

static bl_status visit(gatherer *g, const char *name, int depth, bl_error *err)
{
    struct stat st, link;
    const char *path = bl_path_join(g->arena, g->c->path, name);
    if (!path) {
        return nomem(err);
    }
    bool there = stat(path, &st) == 0, packed = g->c->kind == BL_SOURCE_PACKED;
    bool regular = there && S_ISREG(st.st_mode), folder = there && S_ISDIR(st.st_mode) && lstat(path, &link) == 0 && S_ISDIR(link.st_mode);
    if (!bl_checkpoint_covers(g->c, name)) {
        return BL_OK;
    }
    if (folder && depth < MAX_DEPTH && (!packed || (depth == 0 && !strncmp(name, "rank-", 5)))) {
        return walk(g, name, depth + 1, err);
    }
    bool in_sums = listed(g, name);
    if (regular) {
        BL_TRY(hub_record(g, name, (uint64_t)st.st_size, in_sums, err));
    }
    return in_sums ? BL_OK : unlisted(g, name, regular, regular ? (uint64_t)st.st_size : 0, err);
}

/* Not by the locale: findings come in the same order everywhere. */
static int by_entry(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Every entry of sub ("" is the folder itself). In a packed model also what is no file at all: nothing may be there unlisted. */
static bl_status walk(gatherer *g, const char *sub, int depth, bl_error *err)
{
    const char *folder = *sub ? bl_path_join(g->arena, g->c->path, sub) : g->c->path;
    struct dirent **entries;
    int count = folder ? scandir(folder, &entries, NULL, by_entry) : -1;
    if (count < 0 && *sub && g->all) {
        bl_find(g->f, 3, folder, NULL, -1, -1, "cannot be listed: %s", strerror(errno));
    }
    if (count < 0) {
        return *sub ? BL_OK : bl_fail_errno(err, errno, 1, g->c->path, "cannot list the folder");
    }
    bl_status s = BL_OK;
    for (int i = 0; i < count; i++) {
        const char *name = s != BL_OK || aside(g, sub, entries[i]->d_name) ? NULL : bl_path_join(g->arena, sub, entries[i]->d_name);
        if (name) {
            s = visit(g, name, depth, err);
        }
        free(entries[i]);
    }
    free(entries);
    return s;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const bl_witness *)a)->path, ((const bl_witness *)b)->path);
}

bl_status bl_witness_gather(bl_finder *f, const bl_checkpoint *c, bl_arena *arena, bl_witnesses *out, bl_error *err)
{
    gatherer g = {.f = f, .c = c, .arena = arena, .out = out, .all = f->o->sign || f->o->key};
    g.first = !out->text && !out->unread && c->kind == BL_SOURCE_HF;
    f->level = 3;
    if (out->text) {
        BL_TRY(from_sums(&g, err));
    } else if (c->kind == BL_SOURCE_PACKED && !out->unread) {
        bl_find(f, 3, bl_path_join(arena, c->path, BL_SUMS_NAME), NULL, -1, -1, "is missing: nothing proves the manifests");
    }
    BL_TRY(walk(&g, "", 0, err));
    if (out->count) {
        qsort(out->items, out->count, sizeof *out->items, by_path);
    }
    return BL_OK;
}

bl_witness *bl_witness_of(const bl_witnesses *w, const char *path)
{
    bl_witness key = {.path = path};
    return w->count ? bsearch(&key, w->items, w->count, sizeof *w->items, by_path) : NULL;
}

bool bl_witness_hashes(const bl_witness *w)
{
    return w->listed || w->wanted || w->hub.kind == BL_HUB_SHA256;
}

static bool hub_denies(const bl_witness *w, const uint8_t sha256[32])
{
    return w->hub.kind == BL_HUB_SHA256 && memcmp(sha256, w->hub.object, 32) != 0;
}

static bool sums_deny(const bl_witness *w, const uint8_t sha256[32])
{
    return w->listed && memcmp(sha256, w->sums, sizeof w->sums) != 0;
}

bool bl_witness_denies(const bl_witness *w, const uint8_t sha256[32])
{
    return sums_deny(w, sha256) || hub_denies(w, sha256);
}

static void contradicted(bl_finder *f, bl_witness *w, uint64_t size, const char *what, const char *by)
{
    w->wrong = true;
    bl_find(f, 3, w->path, NULL, 0, (int64_t)size, "its %s differs from %s", what, by);
}

#define HUB_NAME "the name of its object in the Hugging Face cache"

void bl_witness_judge(bl_finder *f, bl_witness *w, const uint8_t sha256[32], uint64_t size)
{
    w->hashed = true;
    memcpy(w->sha256, sha256, sizeof w->sha256);
    w->hub_right |= w->hub.kind == BL_HUB_SHA256 && !hub_denies(w, sha256);
    if (sums_deny(w, sha256)) {
        contradicted(f, w, size, "SHA-256", BL_SUMS_NAME);
    }
    if (hub_denies(w, sha256)) {
        contradicted(f, w, size, "SHA-256", HUB_NAME);
    }
}

bl_status bl_witness_check_git(bl_finder *f, bl_witness *w, bl_error *err)
{
    char *data;
    size_t n;
    uint8_t oid[BL_GIT_OID_BYTES];
    BL_TRY(bl_file_slurp(w->path, MAX_GIT_FILE, &data, &n, err));
    bl_status s = bl_git_oid(data, n, oid, err);
    free(data);
    BL_TRY(s);
    w->hub_right = memcmp(oid, w->hub.object, sizeof oid) == 0;
    if (!w->hub_right) {
        contradicted(f, w, n, "content", HUB_NAME);
    }
    return BL_OK;
}

bool bl_witness_proven(const bl_witness *w)
{
    return (w->listed ? w->hashed : w->hub_right) && !w->wrong;
}
