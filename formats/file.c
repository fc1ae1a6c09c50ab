#include "formats/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define READ_PIECE ((uint64_t)1 << 30) /* Linux moves at most 2 GiB - 4 KiB a call */

struct bl_file {
    atomic_uint refs;
    int fd;
    uint64_t base, size;
    bl_spool *spool; /* NULL, or what its bytes come into */
    bool has_crc;
    uint32_t crc;
    char path[];
};

struct bl_region {
    const uint8_t *data;
    void *map; /* NULL for an empty region */
    size_t map_bytes;
    bl_file *file;
};

const char *bl_file_type_name(unsigned mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISBLK(mode)  ? "a block device"
                            : "a device";
}

/* Takes fd over; NULL when out of memory. */
static bl_file *new_file(int fd, uint64_t base, uint64_t size, const char *path)
{
    size_t n = strlen(path) + 1;
    bl_file *f = malloc(sizeof *f + n);
    if (f) {
        atomic_init(&f->refs, 1);
        f->fd = fd;
        f->base = base;
        f->size = size;
        f->spool = NULL;
        f->has_crc = false;
        memcpy(f->path, path, n);
    }
    return f;
}

bl_status bl_file_absent(const char *path, int errno_value, bl_error *err)
{
    char target[512];
    ssize_t n = errno_value == ENOENT ? readlink(path, target, sizeof target - 1) : -1;
    if (n <= 0) {
        return bl_fail_errno(err, errno_value, 1, path, "cannot open");
    }
    target[n] = 0;
    return bl_fail(err, BL_E_INPUT, path, NULL, -1, "is a symbolic link to nothing: %s is not there", target);
}

bl_status bl_file_open(bl_file **out, const char *path, bl_error *err)
{
    *out = NULL;
    /* Without O_NONBLOCK opening a FIFO waits for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0) {
        if (errno == ENXIO) {
            return bl_fail(err, BL_E_INPUT, path, NULL, -1, "is not a regular file");
        }
        return bl_file_absent(path, errno, err);
    }
    if (fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        return bl_fail_errno(err, e, 1, path, "cannot stat");
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "is %s, not a regular file", bl_file_type_name(st.st_mode));
    }
    bl_file *f = new_file(fd, 0, (uint64_t)st.st_size, path);
    if (!f) {
        close(fd);
        return bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    *out = f;
    return BL_OK;
}

bool bl_file_folder_absent(const char *path, bl_error *problem)
{
    const char *slash = strrchr(path, '/');
    char folder[sizeof problem->path];
    int entries = 0;
    if (!slash || slash == path || (size_t)(slash - path) >= sizeof folder) {
        return false;
    }
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    DIR *d = opendir(folder);
    if (!d && errno != ENOENT) {
        return false;
    }
    while (d && entries <= 2 && readdir(d)) {
        entries++;
    }
    bool absent = entries <= 2; /* . and .. */
    if (absent) {
        bl_error_clear(problem);
        bl_fail(problem, BL_E_INPUT, folder, NULL, -1, d ? "the folder is empty" : "the folder is not there");
    }
    if (d) {
        closedir(d);
    }
    return absent;
}

/* A part of the open file fd, which stays its owner's. */
static bl_status part_of(bl_file **out, int fd, uint64_t base, uint64_t size, const char *path, bl_error *err)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return bl_fail_errno(err, errno, 0, path, "cannot open");
    }
    *out = new_file(own, base, size, path);
    if (!*out) {
        close(own);
    }
    return *out ? BL_OK : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
}

bl_status bl_file_range(bl_file **out, bl_file *whole, uint64_t base, uint64_t size, const char *path, bl_error *err)
{
    uint64_t end;
    *out = NULL;
    if (bl_add_overflow(base, size, &end) || end > whole->size) {
        return bl_fail(err, BL_E_INPUT, whole->path, path, -1, "ends beyond the file");
    }
    return part_of(out, whole->fd, whole->base + base, size, path, err);
}

bl_status bl_file_spooled(bl_file **out, bl_spool *spool, uint64_t base, uint64_t size, const char *path, bl_error *err)
{
    *out = NULL;
    BL_TRY(part_of(out, bl_spool_fd(spool), base, size, path, err));
    (*out)->spool = spool;
    return BL_OK;
}

bool bl_file_crc32(const bl_file *f, uint32_t *crc)
{
    *crc = f->has_crc ? f->crc : 0;
    return f->has_crc;
}

void bl_file_note_crc32(bl_file *f, uint32_t crc)
{
    f->has_crc = true;
    f->crc = crc;
}

bl_spool *bl_file_spool(const bl_file *f)
{
    return f->spool;
}

bl_status bl_file_wait(const bl_file *f, uint64_t offset, uint64_t n, bl_error *err)
{
    return f->spool ? bl_spool_wait(f->spool, f->base + offset, f->base + offset + n, err) : BL_OK;
}

bl_file *bl_file_ref(bl_file *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void bl_file_close(bl_file **fp)
{
    bl_file *f = *fp;
    *fp = NULL;
    if (f && atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) == 1) {
        close(f->fd);
        free(f);
    }
}

uint64_t bl_file_size(const bl_file *f)
{
    return f->size;
}

const char *bl_file_path(const bl_file *f)
{
    return f->path;
}

uint64_t bl_file_base(const bl_file *f)
{
    return f->base;
}

int bl_file_fd(const bl_file *f)
{
    return f->fd;
}

bl_status bl_file_read(const bl_file *f, void *dst, uint64_t n, uint64_t offset, bl_error *err)
{
    uint8_t *p = dst;
    uint64_t end;
    if (bl_add_overflow(offset, n, &end) || end > INT64_MAX - f->base) {
        return bl_fail(err, BL_E_INPUT, f->path, NULL, -1, "read of %llu byte%s at %llu is out of range",
                       (unsigned long long)n, bl_plural(n), (unsigned long long)offset);
    }
    if (f->base && end > f->size) {
        return bl_fail(err, BL_E_INPUT, f->path, NULL, (int64_t)offset, "truncated while reading: %llu byte%s missing",
                       (unsigned long long)(end - f->size), bl_plural(end - f->size));
    }
    BL_TRY(bl_file_wait(f, offset, n, err));
    while (n > 0) {
        ssize_t got = pread(f->fd, p, (size_t)(n < READ_PIECE ? n : READ_PIECE), (off_t)(f->base + offset));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            bl_status s = bl_fail_errno(err, errno, 1, f->path, "read error");
            if (err && err->offset < 0) {
                err->offset = (int64_t)offset;
            }
            return s;
        }
        if (got == 0) {
            return bl_fail(err, BL_E_INPUT, f->path, NULL, (int64_t)offset,
                           "truncated while reading: %llu byte%s missing", (unsigned long long)n, bl_plural(n));
        }
        p += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return BL_OK;
}

bl_status bl_file_slurp(const char *path, uint64_t max, char **out, size_t *size, bl_error *err)
{
    bl_file *f = NULL;
    *out = NULL;
    BL_TRY(bl_file_open(&f, path, err));
    bl_status s = BL_OK;
    if (f->size > max || f->size >= SIZE_MAX) {
        s = bl_fail(err, BL_E_INPUT, path, NULL, -1, "is %llu bytes, more than the limit of %llu",
                    (unsigned long long)f->size, (unsigned long long)max);
    }
    char *text = s == BL_OK ? malloc((size_t)f->size + 1) : NULL;
    if (s == BL_OK && !text) {
        s = bl_fail(err, BL_E_NOMEM, path, NULL, -1, "out of memory");
    }
    if (s == BL_OK) {
        s = bl_file_read(f, text, f->size, 0, err);
    }
    if (s == BL_OK) {
        text[f->size] = 0;
        *out = text;
        if (size) {
            *size = (size_t)f->size;
        }
    } else {
        free(text);
    }
    bl_file_close(&f);
    return s;
}

/* Page faults over a network come one small read at a time: mapped files there load at a tenth of the speed.
 * FUSE counts as network: what is behind it is unknown. */
static bool on_network(int fd)
{
    static const uint32_t magic[] = {
        0x6969,     /* NFS */
        0x517b,     /* SMB */
        0xff534d42, /* CIFS */
        0xfe534d42, /* SMB2 */
        0x65735546, /* FUSE, virtiofs */
        0x0bd00bd0, /* Lustre */
        0x19830326, /* BeeGFS */
        0x47504653, /* GPFS */
        0x00c36400, /* Ceph */
        0x01021997, /* 9P */
        0x5346414f, /* AFS (OpenAFS) */
        0x6b414653, /* AFS (kernel) */
        0x73757245, /* Coda */
        0x01161970, /* GFS2 */
        0x7461636f, /* OCFS2 */
        0x20030528, /* OrangeFS */
        0xaad7aaea, /* PanFS */
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof magic / sizeof *magic; i++) {
        if ((uint32_t)fs.f_type == magic[i]) {
            return true;
        }
    }
    return false;
}

static bl_status map_shared(bl_region *r, uint64_t offset, uint64_t n, bl_error *err)
{
    offset += r->file->base;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = offset % page;
    void *map = mmap(NULL, (size_t)(n + skip), PROT_READ, MAP_SHARED, r->file->fd, (off_t)(offset - skip));
    if (map == MAP_FAILED) {
        return bl_fail_errno(err, errno, 1, r->file->path, "cannot map");
    }
    r->map = map;
    r->map_bytes = (size_t)(n + skip);
    r->data = (const uint8_t *)map + skip;
    return BL_OK;
}

static bl_status read_private(bl_region *r, uint64_t offset, uint64_t n, bl_error *err)
{
    void *map = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return bl_fail_errno(err, errno, 1, r->file->path, "cannot reserve memory for reading");
    }
    r->map = map;
    r->map_bytes = (size_t)n;
    r->data = map;
    madvise(map, (size_t)n, MADV_HUGEPAGE); /* fewer TLB misses; a kernel without it just declines */
    BL_TRY(bl_file_read(r->file, map, n, offset, err));
    mprotect(map, (size_t)n, PROT_READ);
    return BL_OK;
}

bl_status bl_region_open(bl_region **out, bl_file *f, uint64_t offset, uint64_t n, bl_access access,
                         bl_error *err)
{
    static const uint8_t nothing[1];
    uint64_t end;
    *out = NULL;
    if (bl_add_overflow(offset, n, &end) || end > f->size) {
        return bl_fail(err, BL_E_INPUT, f->path, NULL, (int64_t)(offset < INT64_MAX ? offset : INT64_MAX),
                       "%llu byte%s wanted here: past the end of the file", (unsigned long long)n, bl_plural(n));
    }
    bl_region *r = malloc(sizeof *r);
    if (!r) {
        return bl_fail(err, BL_E_NOMEM, f->path, NULL, -1, "out of memory");
    }
    *r = (bl_region){.data = nothing, .file = bl_file_ref(f)};
    bl_status s = bl_file_wait(f, offset, n, err);
    if (access == BL_ACCESS_AUTO) {
        access = on_network(f->fd) ? BL_ACCESS_PREAD : BL_ACCESS_MMAP;
    }
    if (s == BL_OK && n != 0) {
        s = access == BL_ACCESS_PREAD ? read_private(r, offset, n, err) : map_shared(r, offset, n, err);
    }
    if (s != BL_OK) {
        bl_region_close(&r);
    }
    *out = r;
    return s;
}

void bl_region_close(bl_region **rp)
{
    bl_region *r = *rp;
    *rp = NULL;
    if (r) {
        if (r->map) {
            munmap(r->map, r->map_bytes);
        }
        bl_file_close(&r->file);
        free(r);
    }
}

const uint8_t *bl_region_data(const bl_region *r)
{
    return r->data;
}
