#include "verify/proven.h"

#include "formats/digest.h"
#include "formats/output.h"
#include "verify/sha256.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "baleen-cache "
#define HEAD MAGIC "1\n"
#define MAX_BYTES ((uint64_t)64 << 20)
#define MAX_ENTRIES 100000
#define LINE_ROOM 256
#define SETTLED ((int64_t)2000000000) /* ns: coarser than the times of any file system */

typedef struct entry {
    uint8_t sha256[32], model[32];
    uint64_t size, device, inode;
    int64_t mtime, ctime; /* ns */
} entry;

struct bl_proven {
    char *path;
    char note[1400];
    bool keep_off; /* what is there is none of ours */
    int64_t opened;
    uint8_t model[32];
    entry *entries; /* [count]: the first old ones were there */
    size_t count, cap, old;
};

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the cache");
}

static int64_t ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static entry entry_of(const bl_proven *p, const struct stat *st)
{
    entry e = {.size = (uint64_t)st->st_size, .device = (uint64_t)st->st_dev, .inode = (uint64_t)st->st_ino, .mtime = ns(st->st_mtim),
               .ctime = ns(st->st_ctim)};
    memcpy(e.model, p->model, sizeof e.model);
    return e;
}

static bool same_state(const entry *a, const entry *b)
{
    return a->size == b->size && a->device == b->device && a->inode == b->inode && a->mtime == b->mtime && a->ctime == b->ctime;
}

static bl_status add(bl_proven *p, const entry *e, bl_error *err)
{
    entry *grown = bl_grow(p->entries, &p->cap, p->count, sizeof *grown);
    if (!grown) {
        return nomem(err);
    }
    p->entries = grown;
    p->entries[p->count++] = *e;
    return BL_OK;
}

/* ---- what else the proof of a file rests on */

static void add_number(bl_sha256 *h, uint64_t n)
{
    bl_sha256_update(h, &n, sizeof n);
}

static void add_text(bl_sha256 *h, const char *s)
{
    bl_sha256_update(h, s, strlen(s) + 1);
}

static void add_tensor(bl_sha256 *h, const bl_checkpoint *c, const bl_tensor *t)
{
    const bl_manifest_tensor *m = bl_checkpoint_record(c, t);
    add_text(h, t->name);
    add_text(h, bl_checkpoint_file(c, t)->name);
    add_number(h, t->dtype);
    add_number(h, t->ndim);
    bl_sha256_update(h, t->shape, t->ndim * sizeof *t->shape);
    add_number(h, t->offset);
    add_number(h, t->nbytes);
    if (m && m->chunk_count) {
        bl_sha256_update(h, m->chunks, m->chunk_count * sizeof *m->chunks);
    }
}

static bl_status name_model(const bl_checkpoint *c, uint8_t model[32], bl_error *err)
{
    bl_sha256 *h;
    BL_TRY(bl_sha256_create(&h, err));
    add_text(h, BL_VERSION);
    add_number(h, c->has_config);
    if (c->has_config) {
        bl_sha256_update(h, c->config.text, c->config.text_bytes);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        add_tensor(h, c, &c->tensors[i]);
    }
    bl_status s = bl_sha256_final(h, model, err);
    bl_sha256_destroy(&h);
    return s;
}

/* ---- reading */

/* An entry's line without its newline. */
static const char *entry_line(const entry *e, char line[LINE_ROOM])
{
    char sha[65], model[65];
    snprintf(line, LINE_ROOM, "%s %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64, bl_hex_encode(sha, e->sha256, 32),
             bl_hex_encode(model, e->model, 32), e->size, e->device, e->inode, e->mtime, e->ctime);
    return line;
}

/* Only what entry_line writes. */
static bool read_entry(const char *line, entry *e)
{
    char sha[65], model[65], again[LINE_ROOM];
    return sscanf(line, "%64[0-9a-f] %64[0-9a-f] %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNd64, sha, model, &e->size,
                  &e->device, &e->inode, &e->mtime, &e->ctime) == 7 &&
           strlen(sha) == 64 && strlen(model) == 64 && bl_hex_decode(e->sha256, sha, 64) && bl_hex_decode(e->model, model, 64) &&
           strcmp(entry_line(e, again), line) == 0;
}

/* Does the text end in the line that its own digest makes? *n becomes the length of what is before that line. */
static bool ends_well(const char *text, size_t *n, bl_error *err)
{
    uint8_t digest[32];
    char line[4 + 64 + 2] = "end ";
    size_t size = sizeof line - 1;
    if (*n < strlen(HEAD) + size || bl_sha256_bytes(text, *n - size, digest, err) != BL_OK) {
        return false;
    }
    bl_hex_encode(line + 4, digest, 32);
    line[68] = '\n';
    *n -= size;
    return memcmp(text + *n, line, size) == 0;
}

/* Take the entries of the text; false when it is not exactly a cache. */
static bool parse(bl_proven *p, char *text, size_t n, bl_error *err)
{
    bool good = ends_well(text, &n, err) && strncmp(text, HEAD, strlen(HEAD)) == 0;
    for (size_t at = strlen(HEAD); good && at < n;) {
        char *end = memchr(text + at, '\n', n - at);
        entry e;
        good = end != NULL;
        if (good) {
            *end = 0;
            good = read_entry(text + at, &e) && add(p, &e, err) == BL_OK;
            at = (size_t)(end - text) + 1;
        }
    }
    p->old = p->count = good ? p->count : 0;
    return good;
}

static void ignore(bl_proven *p, bool keep_off, const char *why)
{
    p->keep_off = keep_off;
    snprintf(p->note, sizeof p->note, "the cache %.1000s is ignored%s: %.300s", p->path, keep_off ? " and left alone" : "", why);
}

static bl_status load(bl_proven *p, bl_error *err)
{
    struct stat st;
    char *text;
    size_t n;
    bl_error e;
    bl_error_clear(&e);
    if (lstat(p->path, &st) != 0 && errno == ENOENT) {
        return BL_OK;
    }
    if (bl_file_slurp(p->path, MAX_BYTES, &text, &n, &e) != BL_OK) {
        ignore(p, true, e.message);
        return BL_OK;
    }
    if (n < strlen(MAGIC) || memcmp(text, MAGIC, strlen(MAGIC)) != 0) {
        ignore(p, true, "it is no cache of proven files");
    } else if (n < strlen(HEAD) || memcmp(text, HEAD, strlen(HEAD)) != 0) {
        ignore(p, true, "another version wrote it");
    } else if (stat(p->path, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH))) {
        ignore(p, true, "others may write it");
    } else if (!parse(p, text, n, err)) {
        ignore(p, false, "it is damaged");
    }
    free(text);
    return BL_OK;
}

/* A folder's cache of the models below c's path: named for where that is. */
static char *file_in(const char *folder, const bl_checkpoint *c)
{
    char *real = realpath(c->path, NULL), hex[65], *path = NULL;
    uint8_t digest[32];
    if (real && bl_sha256_bytes(real, strlen(real), digest, NULL) == BL_OK) {
        bl_hex_encode(hex, digest, 32);
        if (asprintf(&path, "%s/%.16s.baleen-cache", folder, hex) < 0) {
            path = NULL;
        }
    }
    free(real);
    return path;
}

/* Is folder the one of c, or below it, wherever links lead? */
static bool inside(const char *folder, const bl_checkpoint *c)
{
    char *here = realpath(folder, NULL), *model = realpath(c->path, NULL);
    size_t n = model ? strlen(model) : 0;
    bool in = here && n && !strncmp(here, model, n) && (!here[n] || here[n] == '/' || model[n - 1] == '/');
    free(here);
    free(model);
    return in;
}

/* Can a file be made at path, and is that another place than c's? Better to know before hours of reading than after. */
static bl_status check_place(const char *path, const bl_checkpoint *c, bl_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    bl_status s = !folder                            ? nomem(err)
                  : access(folder, W_OK | X_OK) != 0 ? bl_fail_errno(err, errno, 0, path, "cannot write the cache")
                  : inside(folder, c)
                      ? bl_fail(err, BL_E_USAGE, path, NULL, -1, "a cache cannot lie in the folder that it is about")
                      : BL_OK;
    free(folder);
    return s;
}

bl_status bl_proven_open(bl_proven **out, const char *path, const bl_checkpoint *c, const char **note, bl_error *err)
{
    struct stat st;
    struct timespec t;
    *note = NULL;
    bl_proven *p = *out = calloc(1, sizeof *p);
    if (!p) {
        return nomem(err);
    }
    clock_gettime(CLOCK_REALTIME, &t);
    p->opened = ns(t);
    p->path = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? file_in(path, c) : strdup(path);
    bl_status s = p->path ? check_place(p->path, c, err) : nomem(err);
    if (s == BL_OK) {
        s = name_model(c, p->model, err);
    }
    if (s == BL_OK) {
        s = load(p, err);
    }
    if (s != BL_OK) {
        bl_proven_close(out);
        return s;
    }
    *note = p->note[0] ? p->note : NULL;
    return BL_OK;
}

void bl_proven_close(bl_proven **pp)
{
    bl_proven *p = *pp;
    *pp = NULL;
    if (p) {
        free(p->path);
        free(p->entries);
        free(p);
    }
}

/* ---- using */

bool bl_proven_find(const bl_proven *p, const struct stat *file, uint8_t sha256[32])
{
    entry e = entry_of(p, file);
    for (size_t i = 0; i < p->old; i++) {
        const entry *have = &p->entries[i];
        if (same_state(have, &e) && memcmp(have->model, e.model, sizeof e.model) == 0) {
            memcpy(sha256, have->sha256, 32);
            return true;
        }
    }
    return false;
}

bl_status bl_proven_add(bl_proven *p, const struct stat *before, const struct stat *after, const uint8_t sha256[32], bl_error *err)
{
    entry e = entry_of(p, before), now = entry_of(p, after);
    if (!same_state(&e, &now) || e.ctime > p->opened - SETTLED) {
        return BL_OK;
    }
    memcpy(e.sha256, sha256, sizeof e.sha256);
    return add(p, &e, err);
}

/* Has something been added about the file of an entry that was there: of the same model, or of a state that is no more? */
static bool superseded(const bl_proven *p, const entry *e)
{
    for (size_t i = p->old; i < p->count; i++) {
        const entry *n = &p->entries[i];
        if (n->device == e->device && n->inode == e->inode && (!same_state(n, e) || memcmp(n->model, e->model, sizeof e->model) == 0)) {
            return true;
        }
    }
    return false;
}

/* The new entries first: when there are too many the oldest go. */
static bl_status make_text(const bl_proven *p, char **text, size_t *n, bl_error *err)
{
    char line[LINE_ROOM];
    FILE *f = open_memstream(text, n);
    size_t count = 0;
    if (!f) {
        return nomem(err);
    }
    fputs(HEAD, f);
    for (size_t i = p->old; i < p->count && count < MAX_ENTRIES; i++, count++) {
        fprintf(f, "%s\n", entry_line(&p->entries[i], line));
    }
    for (size_t i = 0; i < p->old && count < MAX_ENTRIES; i++) {
        if (!superseded(p, &p->entries[i])) {
            fprintf(f, "%s\n", entry_line(&p->entries[i], line));
            count++;
        }
    }
    uint8_t digest[32];
    char hex[65];
    bl_status s = fflush(f) == 0 ? bl_sha256_bytes(*text, *n, digest, err) : nomem(err);
    if (s == BL_OK) {
        fprintf(f, "end %s\n", bl_hex_encode(hex, digest, 32));
    }
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    return s != BL_OK ? s : bad ? nomem(err) : BL_OK;
}

static bl_status write_own(const char *path, const char *text, size_t n, bl_error *err)
{
    bl_output *o;
    BL_TRY(bl_output_open(&o, path, 0, err));
    bl_status s = fchmod(bl_output_fd(o), 0600) == 0 ? BL_OK : bl_fail_errno(err, errno, 0, path, "cannot make it this user's alone");
    if (s == BL_OK) {
        s = bl_output_write(o, text, n, 0, err);
    }
    if (s != BL_OK) {
        bl_output_abort(&o);
        return s;
    }
    return bl_output_commit(&o, err);
}

bl_status bl_proven_write(bl_proven *p, bl_error *err)
{
    char *text = NULL;
    size_t n = 0;
    if (p->keep_off || p->count == p->old) {
        return BL_OK;
    }
    bl_status s = make_text(p, &text, &n, err);
    if (s == BL_OK) {
        s = write_own(p->path, text, n, err);
    }
    free(text);
    return s;
}
