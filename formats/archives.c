#include "formats/archives.h"

#include "formats/json.h"
#include "formats/names.h"
#include "formats/output.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_MEMBERS 100000
#define MAX_SMALL ((uint64_t)1 << 30)
#define MAX_RATIO 1000
#define MAX_DEPTH 2 /* folders above a file: a top folder, and a rank's */
#define READ_BYTES ((size_t)1 << 20)

typedef struct member {
    char *name;
    uint64_t base, size;
    bool range; /* in the archive; else unpacked */
} member;

struct bl_archive {
    char *path, *folder, *root;
    size_t root_skip; /* bytes of names above the root */
    member *members;
    size_t count, cap;
    bl_file *file;
    uint64_t unpacked;
};

/* While it is being opened. */
typedef struct opener {
    bl_archive *a;
    const bl_archive_options *o;
    struct archive *r;
    bool noted;
    bl_error *err;
} opener;

static bl_status nomem(const opener *x)
{
    return bl_fail(x->err, BL_E_NOMEM, x->a->path, NULL, -1, "out of memory");
}

static bl_status refuse(const opener *x, const char *name, const char *why)
{
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "%s", why);
}

static bl_status damaged(const opener *x, const char *name)
{
    int e = archive_errno(x->r);
    const char *text = archive_error_string(x->r);
    if (e == EIO || e == ENOMEM) {
        return bl_fail_errno(x->err, e, 1, x->a->path, "cannot read the archive");
    }
    return bl_fail(x->err, BL_E_INPUT, x->a->path, name, -1, "the archive is damaged: %s", text ? text : "no reason given");
}

bool bl_archive_recognise(const char *path)
{
    unsigned char b[512] = {0};
    bl_file *f;
    if (bl_file_open(&f, path, NULL) != BL_OK) {
        return false;
    }
    uint64_t size = bl_file_size(f), n = size < sizeof b ? size : sizeof b;
    bool read = bl_file_read(f, b, n, 0, NULL) == BL_OK;
    bl_file_close(&f);
    return read && n >= 4 &&
           (!memcmp(b, "PK\x03\x04", 4) || !memcmp(b, "\x1f\x8b", 2) || !memcmp(b, "\x28\xb5\x2f\xfd", 4) || !memcmp(b + 257, "ustar", 5));
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

/* The member's name without "./" in front, if it is one that may be made; *why otherwise. */
static const char *plain_name(const char *name, const char **why)
{
    int depth = 0;
    *why = NULL;
    if (!name || !*name) {
        *why = "a member without a usable name";
        return NULL;
    }
    while (name[0] == '.' && name[1] == '/') {
        name += 2 + strspn(name + 2, "/");
    }
    if (name[0] == '/') {
        *why = "has an absolute name";
    } else if (!bl_text_is_clean(name, strlen(name)) || strlen(name) > 900) {
        *why = "its name has control characters or is too long";
    }
    for (const char *p = name; *p && !*why;) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.') {
            *why = "its name leads out of the archive";
        } else if (n == 0 || (n == 1 && p[0] == '.')) {
            *why = n ? "has '.' inside its name" : "has an empty part in its name";
        }
        p += n;
        depth += *p == '/' && p[1];
        p += *p == '/';
    }
    if (!*why && depth > MAX_DEPTH) {
        *why = "lies too many folders deep for a checkpoint";
    }
    return name;
}

static bool is_weights(const char *name)
{
    return bl_ends_with(name, ".safetensors") || bl_ends_with(name, ".st");
}

/* Create the member's file, and the folders above it. */
static bl_status create(const opener *x, const char *name, int *fd)
{
    bl_arena arena = {0};
    char *path = bl_path_join(&arena, x->a->folder, name);
    if (!path) {
        return nomem(x);
    }
    for (char *p = path + strlen(x->a->folder) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(path, 0777);
        *p = '/';
    }
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int e = errno;
    bl_status s = *fd >= 0      ? BL_OK
                  : e == EEXIST || e == ENOTDIR || e == EISDIR ? refuse(x, name, "occurs twice in the archive")
                                : bl_fail_errno(x->err, e, 0, path, "cannot create");
    bl_arena_reset(&arena);
    return s;
}

static bl_status put(const opener *x, int fd, const char *p, size_t n, int64_t at)
{
    while (n > 0) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return bl_fail_errno(x->err, k < 0 ? errno : EIO, 0, x->a->folder, "cannot unpack");
        }
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return BL_OK;
}

static bl_status check_amount(const opener *x, const char *name, uint64_t size)
{
    uint64_t packed = (uint64_t)archive_filter_bytes(x->r, -1);
    if (!is_weights(name) && size > MAX_SMALL) {
        return refuse(x, name, "has more than 1 GiB, which no small file of a checkpoint has");
    }
    if (x->a->unpacked > MAX_SMALL && x->a->unpacked / MAX_RATIO > packed) {
        return refuse(x, name, "unpacks to over 1000 times the size of the archive: refused");
    }
    return x->o->cancelled && x->o->cancelled() ? bl_fail(x->err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted") : BL_OK;
}

static bl_status unpack(opener *x, const char *name, int fd)
{
    const void *data;
    size_t n;
    la_int64_t at, end = 0;
    int rc;
    while ((rc = archive_read_data_block(x->r, &data, &n, &at)) == ARCHIVE_OK) {
        if (at < end) {
            return refuse(x, name, "its parts overlap");
        }
        end = at + (la_int64_t)n;
        x->a->unpacked += n;
        BL_TRY(check_amount(x, name, (uint64_t)end));
        BL_TRY(put(x, fd, data, n, at));
    }
    return rc == ARCHIVE_EOF ? BL_OK : damaged(x, name);
}

/* Is the data that comes next a range of the archive's file, at archive_filter_bytes(, 0)? */
static bool is_range(const opener *x, struct archive_entry *e)
{
    int format = archive_format(x->r) & ARCHIVE_FORMAT_BASE_MASK;
    const char *name = archive_format_name(x->r);
    return archive_filter_code(x->r, 0) == ARCHIVE_FILTER_NONE && archive_entry_sparse_count(e) == 0 && archive_entry_size_is_set(e) &&
           archive_entry_size(e) > 0 &&
           (format == ARCHIVE_FORMAT_TAR || (format == ARCHIVE_FORMAT_ZIP && name && strstr(name, "(uncompressed)")));
}

/* Where libarchive says that the data begins, does it? Compared with the first block of it. */
static bool begins_there(const opener *x, uint64_t base, uint64_t size)
{
    const void *data;
    size_t n;
    la_int64_t at;
    char have[4096];
    if (archive_read_data_block(x->r, &data, &n, &at) != ARCHIVE_OK || at != 0 || n == 0) {
        return false;
    }
    n = n < sizeof have ? n : sizeof have;
    return n <= size && bl_file_read(x->a->file, have, n, base, NULL) == BL_OK && memcmp(have, data, n) == 0;
}

static bl_status add_member(opener *x, const char *name, uint64_t base, uint64_t size, bool range)
{
    bl_archive *a = x->a;
    if (a->count == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 64;
        member *grown = realloc(a->members, cap * sizeof *grown);
        if (!grown) {
            return nomem(x);
        }
        a->members = grown;
        a->cap = cap;
    }
    if (a->count >= MAX_MEMBERS) {
        return refuse(x, name, "is one of more than 100000 members: no checkpoint has so many");
    }
    char *copy = strdup(name);
    if (!copy) {
        return nomem(x);
    }
    a->members[a->count++] = (member){.name = copy, .base = base, .size = size, .range = range};
    return BL_OK;
}

static bl_status weights(opener *x, struct archive_entry *e, const char *name, int fd)
{
    if (bl_ends_with(name, ".safetensors") && is_range(x, e)) {
        uint64_t base = (uint64_t)archive_filter_bytes(x->r, 0), size = (uint64_t)archive_entry_size(e), all = bl_file_size(x->a->file);
        if (base > all || size > all - base) {
            return refuse(x, name, "ends beyond the archive: a truncated download?");
        }
        if (!begins_there(x, base, size)) {
            return refuse(x, name, "its data is not where the archive says");
        }
        if (ftruncate(fd, (off_t)size) != 0) {
            return bl_fail_errno(x->err, errno, 0, x->a->folder, "cannot make a hole");
        }
        BL_TRY(add_member(x, name, base, size, true));
        return archive_read_data_skip(x->r) == ARCHIVE_OK ? BL_OK : damaged(x, name);
    }
    if (!x->noted && is_weights(name) && x->o->note) {
        char text[1200];
        snprintf(text, sizeof text, "the archive is compressed: unpacking it into %s", x->a->folder);
        x->o->note(text);
        x->noted = true;
    }
    BL_TRY(add_member(x, name, 0, 0, false));
    return unpack(x, name, fd);
}

static bl_status read_member(opener *x, struct archive_entry *e)
{
    const char *why, *raw = archive_entry_pathname(e), *name = plain_name(raw, &why);
    int fd = -1;
    if (why) {
        return refuse(x, raw, why);
    }
    if (archive_entry_hardlink(e) || archive_entry_symlink(e)) {
        return refuse(x, name, "is a link: pack the files themselves (tar --dereference --hard-dereference)");
    }
    if (archive_entry_filetype(e) == AE_IFDIR) {
        return BL_OK;
    }
    if (archive_entry_filetype(e) != AE_IFREG) {
        return refuse(x, name, "is neither a file nor a folder");
    }
    if (!*name || name[strlen(name) - 1] == '/') {
        return refuse(x, raw, "a file without a name");
    }
    if (archive_entry_is_encrypted(e)) {
        return refuse(x, name, "is encrypted");
    }
    BL_TRY(check_amount(x, name, archive_entry_size_is_set(e) ? (uint64_t)archive_entry_size(e) : 0));
    BL_TRY(create(x, name, &fd));
    bl_status s = weights(x, e, name, fd);
    /* Times as packed: a conversion that is resumed knows its source by them. */
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = archive_entry_mtime(e), .tv_nsec = archive_entry_mtime_nsec(e)}};
    futimens(fd, times);
    if (close(fd) != 0 && s == BL_OK) {
        s = bl_fail_errno(x->err, errno, 0, x->a->folder, "cannot unpack");
    }
    return s;
}

/* The top folder that all members share, unless it is a rank's. */
static bl_status find_root(opener *x)
{
    bl_archive *a = x->a;
    size_t n = a->count ? strcspn(a->members[0].name, "/") + 1 : 0;
    for (size_t i = 0; i < a->count && n; i++) {
        const char *name = a->members[i].name;
        if (strlen(name) <= n || strncmp(name, a->members[0].name, n) != 0 || name[n - 1] != '/' || !strncmp(name, "rank-", 5)) {
            n = 0;
        }
    }
    a->root_skip = n;
    if (asprintf(&a->root, "%s%s%.*s", a->folder, n ? "/" : "", (int)(n ? n - 1 : 0), n ? a->members[0].name : "") < 0) {
        a->root = NULL;
        return nomem(x);
    }
    return BL_OK;
}

static bl_status read_all(opener *x)
{
    struct archive_entry *e;
    archive_read_support_filter_gzip(x->r);
    archive_read_support_filter_zstd(x->r);
    archive_read_support_format_tar(x->r);
    archive_read_support_format_zip(x->r);
    if (archive_read_open_filename(x->r, x->a->path, READ_BYTES) != ARCHIVE_OK) {
        return damaged(x, NULL);
    }
    int rc;
    while ((rc = archive_read_next_header(x->r, &e)) == ARCHIVE_OK) {
        BL_TRY(read_member(x, e));
    }
    if (rc != ARCHIVE_EOF) {
        return damaged(x, NULL);
    }
    if (x->a->count == 0) {
        return refuse(x, NULL, "is an archive without files");
    }
    return find_root(x);
}

bl_status bl_archive_open(bl_archive **out, const char *path, const bl_archive_options *o, bl_error *err)
{
    *out = NULL;
    bl_archive *a = calloc(1, sizeof *a);
    opener x = {.a = a, .o = o, .r = archive_read_new(), .err = err};
    const char *slash = strrchr(path, '/');
    bl_status s = BL_OK;
    if (!a || !x.r || !(a->path = strdup(path)) ||
        asprintf(&a->folder, "%s/.%.100s.unpacked-XXXXXX", o->spill, slash ? slash + 1 : path) < 0) {
        s = bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    } else if ((s = bl_file_open(&a->file, path, err)) == BL_OK && !mkdtemp(a->folder)) {
        s = bl_fail_errno(err, errno, 0, a->folder, "cannot make a folder to unpack into");
        free(a->folder);
        a->folder = NULL;
    }
    if (s == BL_OK) {
        s = read_all(&x);
    }
    archive_read_free(x.r);
    if (s != BL_OK) {
        bl_archive_close(&a);
    }
    *out = a;
    return s;
}

const char *bl_archive_root(const bl_archive *a)
{
    return a->root;
}

bl_status bl_archive_file(const bl_archive *a, const char *name, bl_file **out, bl_error *err)
{
    bl_arena arena = {0};
    char *path = bl_path_join(&arena, a->root, name);
    if (!path) {
        return bl_fail(err, BL_E_NOMEM, a->path, NULL, -1, "out of memory");
    }
    bl_status s = BL_OK;
    *out = NULL;
    for (size_t i = 0; i < a->count && !*out && s == BL_OK; i++) {
        const member *m = &a->members[i];
        if (m->range && strcmp(m->name + a->root_skip, name) == 0) {
            s = bl_file_range(out, a->file, m->base, m->size, path, err);
        }
    }
    if (s == BL_OK && !*out) {
        s = bl_file_open(out, path, err);
    }
    bl_arena_reset(&arena);
    return s;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

void bl_archive_close(bl_archive **ap)
{
    bl_archive *a = *ap;
    *ap = NULL;
    if (!a) {
        return;
    }
    if (a->folder && a->file) {
        nftw(a->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
    for (size_t i = 0; i < a->count; i++) {
        free(a->members[i].name);
    }
    bl_file_close(&a->file);
    free(a->members);
    free(a->path);
    free(a->folder);
    free(a->root);
    free(a);
}
