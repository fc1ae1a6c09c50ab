#include "formats/archives.h"

#include "formats/archive_parts.h"
#include "formats/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPILL_SHARE 4 /* most of the free space is for others: 1 / SPILL_SHARE of it may be taken without need */

bool bl_archive_recognise(const char *path)
{
    static const struct {
        const char *magic;
        size_t n, at;
    } known[] = {{"PK\x03\x04", 4, 0}, {"\x1f\x8b", 2, 0}, {"\x28\xb5\x2f\xfd", 4, 0}, {"\xfd" "7zXZ", 6, 0}, {"ustar", 5, 257}};
    unsigned char b[512] = {0};
    bl_file *f;
    if (bl_file_open(&f, path, NULL) != BL_OK) {
        return false;
    }
    uint64_t size = bl_file_size(f), n = size < sizeof b ? size : sizeof b;
    bool read = bl_file_read(f, b, n, 0, NULL) == BL_OK, is_one = false;
    bl_file_close(&f);
    for (size_t i = 0; read && i < sizeof known / sizeof *known; i++) {
        is_one |= memcmp(b + known[i].at, known[i].magic, known[i].n) == 0;
    }
    return is_one && n >= 4;
}

char *bl_archive_spill(const char *path)
{
    char *folder = bl_folder_plain(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) {
        slash[slash == folder] = 0;
    } else if (folder) {
        free(folder);
        folder = strdup(".");
    }
    if (folder && access(folder, W_OK | X_OK) != 0) {
        free(folder);
        folder = strdup("/tmp");
    }
    return folder;
}

static bl_status nomem(const char *path, bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
}

/* Do all members lie below the first n bytes of the first one's name, which end in a slash? */
static bool all_below(const bl_archive *a, size_t n)
{
    for (size_t i = 0; i < a->count; i++) {
        if (strncmp(a->members[i].name, a->members[0].name, n) != 0) {
            return false;
        }
    }
    return true;
}

/* The folders above that all members share, unless it is a rank's. */
static bl_status find_root(bl_archive *a, bl_error *err)
{
    const char *first = a->members[0].name, *slash = strchr(first, '/');
    size_t n = 0;
    while (slash && strncmp(first + n, "rank-", 5) != 0 && all_below(a, (size_t)(slash - first) + 1)) {
        n = (size_t)(slash - first) + 1;
        slash = strchr(slash + 1, '/');
    }
    a->root_skip = n;
    if (asprintf(&a->root, "%s%s%.*s", a->folder.path, n ? "/" : "", (int)(n ? n - 1 : 0), first) < 0) {
        a->root = NULL;
        return nomem(a->path, err);
    }
    return BL_OK;
}

bl_status bl_archive_open(bl_archive **out, const char *path, const bl_archive_options *o, bl_error *err)
{
    *out = NULL;
    uint64_t room;
    bl_archive_options fitting = *o;
    bl_archive *a = calloc(1, sizeof *a);
    if (!a || !(a->path = strdup(path)) || !(a->spill = strdup(o->spill))) {
        bl_archive_close(&a);
        return nomem(path, err);
    }
    bl_status s = bl_file_open(&a->file, path, err);
    if (s == BL_OK) {
        s = bl_archive_folder_make(&a->folder, a->spill, path, err);
    }
    if (s == BL_OK) {
        s = bl_free_space(o->spill, &room, err);
    }
    if (s == BL_OK) {
        fitting.spill_max = room / SPILL_SHARE < o->spill_max ? room / SPILL_SHARE : o->spill_max;
        s = bl_archive_scan(a, &fitting, err);
    }
    if (s == BL_OK) {
        s = find_root(a, err);
    }
    if (s != BL_OK) {
        bl_archive_show(a, err);
        bl_archive_close(&a);
    }
    *out = a;
    return s;
}

const char *bl_archive_root(const bl_archive *a)
{
    return a->root;
}

size_t bl_archive_below(const bl_archive *a, const char *name, const char *paths[2])
{
    size_t found = 0;
    for (size_t i = 0; i < a->count; i++) {
        const char *path = a->members[i].name, *slash = strrchr(path + a->root_skip, '/');
        if (slash && strcmp(slash + 1, name) == 0 && found++ < 2) {
            paths[found - 1] = path;
        }
    }
    return found;
}

const bl_file *bl_archive_whole(const bl_archive *a)
{
    return a->file;
}

const char *bl_archive_spill_folder(const bl_archive *a)
{
    return a->spill;
}

uint64_t bl_archive_compressed(const bl_archive *a, bool *again)
{
    *again = a->spool && bl_spool_streams(a->spool);
    return a->spooled;
}

bl_status bl_archive_finish(const bl_archive *a, bl_error *err)
{
    return a->spool ? bl_spool_finish(a->spool, err) : BL_OK;
}

bl_status bl_archive_file(const bl_archive *a, const char *name, bl_file **out, bl_error *err)
{
    char *path, *shown = NULL;
    *out = NULL;
    if (asprintf(&path, "%s/%s", a->root, name) < 0) {
        return nomem(a->path, err);
    }
    bl_status s = asprintf(&shown, "%s/%s", a->path, name) < 0 ? (shown = NULL, nomem(a->path, err)) : BL_OK;
    for (size_t i = 0; i < a->count && !*out && s == BL_OK; i++) {
        const bl_member *m = &a->members[i];
        if (m->kind == BL_MEMBER_UNPACKED || strcmp(m->name + a->root_skip, name) != 0) {
            continue;
        }
        s = m->kind == BL_MEMBER_RANGE ? bl_file_range(out, a->file, m->base, m->size, shown, err)
                                       : bl_file_spooled(out, a->spool, m->base, m->size, shown, err);
        if (s == BL_OK && m->has_crc) {
            bl_file_note_crc32(*out, m->crc);
        }
    }
    if (s == BL_OK && !*out) {
        s = bl_file_open(out, path, err);
    }
    free(path);
    free(shown);
    return s;
}

bool bl_archive_sums(const bl_archive *a)
{
    return a->zip;
}

void bl_archive_show(const bl_archive *a, bl_error *err)
{
    const char *folder = a ? a->root ? a->root : a->folder.path : NULL;
    size_t n = folder ? strlen(folder) : 0;
    if (!n || !err || strncmp(err->path, folder, n) != 0 || (err->path[n] && err->path[n] != '/')) {
        return;
    }
    char path[sizeof err->path];
    snprintf(path, sizeof path, "%.*s%s", (int)(sizeof path / 2), a->path, err->path + n);
    snprintf(err->path, sizeof err->path, "%s", path);
}

void bl_archive_close(bl_archive **ap)
{
    bl_archive *a = *ap;
    *ap = NULL;
    if (!a) {
        return;
    }
    bl_spool_destroy(&a->spool);
    bl_archive_folder_remove(&a->folder);
    for (size_t i = 0; i < a->count; i++) {
        free(a->members[i].name);
    }
    bl_file_close(&a->file);
    free(a->members);
    free(a->path);
    free(a->spill);
    free(a->root);
    free(a);
}
