#include "runtime/shared_tables.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define PREFIX "baleen-tables-"
#define PIECE ((uint64_t)64 << 20)

enum { VERSION = 1, OPENING = 0, USING = 1 /* bytes that are locked */ };

typedef struct head {
    char magic[8];
    uint32_t version, ready;
    uint64_t bytes;
    bl_digest contents;
} head;

struct bl_shared {
    bl_shared *next; /* of this process */
    bl_shared_key key;
    char path[128];
    int fd;
    uint8_t *memory; /* [BL_SHARED_HEAD + key.bytes], mapped */
    bool opening;    /* byte OPENING is locked */
    bool found;      /* filled by another process */
    atomic_bool used; /* byte USING is locked */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static bl_shared *all;

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static uint64_t object_bytes(const bl_shared_key *key)
{
    return BL_SHARED_HEAD + key->bytes;
}

/* The user is in the name: objects of others cannot be opened. */
static void path_of(char path[128], const bl_shared_key *key)
{
    int n = snprintf(path, 128, "%s/%s%u-", BL_SHARED_FOLDER, PREFIX, (unsigned)geteuid());
    for (int i = 0; i < 8; i++) n += snprintf(path + n, (size_t)(128 - n), "%02x", key->contents.b[i]);
}

static bl_status failed(const bl_shared *s, const char *doing, bl_error *err)
{
    return bl_fail_errno(err, errno, 0, s->path, doing);
}

/* ---- locks */

/* type: F_WRLCK, F_RDLCK. false: another holds it, or errno is something else than EAGAIN. */
static bool take_lock(int fd, short type, int byte, bool wait)
{
    const struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int r;
    do r = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l);
    while (r != 0 && errno == EINTR);
    return r == 0;
}

static void drop_lock(int fd, int byte)
{
    const struct flock l = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    (void)fcntl(fd, F_OFD_SETLK, &l);
}

/* Is any byte locked by another? */
static bool is_locked(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = OPENING, .l_len = USING + 1};
    return fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

/* ---- what there is */

static bool has_head(int fd, const bl_shared_key *key)
{
    head h;
    struct stat st;
    return fstat(fd, &st) == 0 && (uint64_t)st.st_size == object_bytes(key) && pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h &&
           memcmp(h.magic, "BLTABLES", 8) == 0 && h.version == VERSION && h.ready == 1 && h.bytes == key->bytes &&
           memcmp(&h.contents, &key->contents, sizeof h.contents) == 0;
}

bl_shared_room bl_shared_look(const bl_shared_key *key)
{
    bl_shared_room r = {0};
    char path[128];
    struct stat st;
    struct statvfs v;
    path_of(path, key);
    if (stat(path, &st) == 0) r.there = (uint64_t)st.st_blocks * 512;
    if (r.there > object_bytes(key)) r.there = object_bytes(key);
    if (statvfs(BL_SHARED_FOLDER, &v) == 0) r.free = (uint64_t)v.f_bavail * v.f_frsize;
    return r;
}

/* ---- opening */

/* The file at s->path with byte OPENING locked: one that has been removed meanwhile is no longer there for others. */
static bl_status open_locked(bl_shared *s, bl_error *err)
{
    for (;;) {
        struct stat st;
        s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->fd < 0) return failed(s, "opening shared memory", err);
        if (!take_lock(s->fd, F_WRLCK, OPENING, true)) return failed(s, "locking shared memory", err);
        if (fstat(s->fd, &st) != 0) return failed(s, "opening shared memory", err);
        if (st.st_uid != geteuid()) return bl_fail(err, BL_E_IO, s->path, NULL, -1, "belongs to another user");
        s->opening = true;
        if (st.st_nlink > 0) return BL_OK;
        close(s->fd);
    }
}

static bl_status no_room(const bl_shared *s, bl_error *err)
{
    const bl_shared_room r = bl_shared_look(&s->key);
    return bl_fail(err, BL_E_NOMEM, s->path, NULL, -1,
                   "out of shared memory: Engram tables take %.2f GiB there, of which %.2f are there and %.2f free (mount -o remount,size=SIZE "
                   BL_SHARED_FOLDER ")", gib(object_bytes(&s->key)), gib(r.there), gib(r.free));
}

typedef struct populate_job {
    uint8_t *memory;
    uint64_t bytes;
    atomic_int error;
} populate_job;

static void populate_piece(void *arg, int64_t item, int worker)
{
    populate_job *j = arg;
    const uint64_t at = (uint64_t)item * PIECE, n = j->bytes - at < PIECE ? j->bytes - at : PIECE;
    int r = 0;
    (void)worker;
    if (atomic_load(&j->error)) return;
    do r = madvise(j->memory + at, n, MADV_POPULATE_WRITE);
    while (r != 0 && (errno == EINTR || errno == EAGAIN));
    if (r != 0) atomic_store(&j->error, errno);
}

/* All pages, huge ones where the system gives them, which it does only through a mapping that asks for them. A write to a page that there
 * is no room for would be a SIGBUS. */
static bl_status populate(bl_shared *s, bl_pool *pool, bl_error *err)
{
    populate_job j = {.memory = s->memory, .bytes = object_bytes(&s->key)};
    bl_pool_run(pool, (int64_t)((j.bytes + PIECE - 1) / PIECE), populate_piece, &j);
    int e = atomic_load(&j.error);
    if (e == EINVAL) e = posix_fallocate(s->fd, 0, (off_t)j.bytes); /* an older system */
    if (e == 0) return BL_OK;
    return e == EFAULT || e == ENOSPC || e == ENOMEM ? no_room(s, err) : bl_fail_errno(err, e, 0, s->path, "taking shared memory");
}

static bl_status map(bl_shared *s, bl_error *err)
{
    void *p = mmap(NULL, object_bytes(&s->key), PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (p == MAP_FAILED) return failed(s, "mapping shared memory", err);
    s->memory = p;
    (void)madvise(p, object_bytes(&s->key), MADV_HUGEPAGE);
    return BL_OK;
}

/* An object that nobody has filled to the end. */
static bl_status make(bl_shared *s, bl_pool *pool, bl_error *err)
{
    const head h = {.magic = "BLTABLES", .version = VERSION, .bytes = s->key.bytes, .contents = s->key.contents};
    const bl_shared_room r = bl_shared_look(&s->key);
    if (r.free && r.there + r.free < object_bytes(&s->key)) return no_room(s, err);
    if (ftruncate(s->fd, (off_t)object_bytes(&s->key)) != 0) return failed(s, "taking shared memory", err);
    BL_TRY(map(s, err));
    BL_TRY(populate(s, pool, err));
    memcpy(s->memory, &h, sizeof h);
    return BL_OK;
}

static bl_status attach(bl_shared *s, bl_pool *pool, bl_error *err)
{
    BL_TRY(open_locked(s, err));
    s->found = has_head(s->fd, &s->key);
    if (!s->found && !take_lock(s->fd, F_WRLCK, USING, false))
        return bl_fail(err, BL_E_IO, s->path, NULL, -1, "is in use, and is not what its name says");
    if (!take_lock(s->fd, F_RDLCK, USING, false)) return failed(s, "locking shared memory", err);
    atomic_store(&s->used, true);
    if (!s->found) return make(s, pool, err);
    BL_TRY(map(s, err));
    (void)populate(s, pool, NULL); /* pages that are there, into this process's tables: several threads are quicker at it than what pins them */
    drop_lock(s->fd, OPENING);
    s->opening = false;
    return BL_OK;
}

bl_status bl_shared_open(bl_shared **out, const bl_shared_key *key, bl_pool *pool, bl_error *err)
{
    bl_shared *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for shared Engram tables");
    s->key = *key;
    s->fd = -1;
    path_of(s->path, key);
    pthread_mutex_lock(&lock);
    s->next = all;
    all = s;
    pthread_mutex_unlock(&lock);
    const bl_status status = attach(s, pool, err);
    if (status != BL_OK) bl_shared_close(&s);
    *out = s;
    return status;
}

uint8_t *bl_shared_memory(const bl_shared *s)
{
    return s->memory + BL_SHARED_HEAD;
}

bool bl_shared_filled(const bl_shared *s)
{
    return s->found;
}

const char *bl_shared_path(const bl_shared *s)
{
    return s->path;
}

void bl_shared_ready(bl_shared *s)
{
    if (s->opening) {
        ((head *)(void *)s->memory)->ready = 1;
        drop_lock(s->fd, OPENING);
        s->opening = false;
    }
    (void)mprotect(s->memory, object_bytes(&s->key), PROT_READ); /* one process's fault is not all others' */
}

/* ---- closing */

/* While a process opens the object it will not be the last one's. */
static void remove_unused(bl_shared *s)
{
    struct stat mine, named;
    if (!atomic_load(&s->used) || !take_lock(s->fd, F_WRLCK, OPENING, false)) return;
    if (take_lock(s->fd, F_WRLCK, USING, false) && fstat(s->fd, &mine) == 0 && stat(s->path, &named) == 0 && mine.st_ino == named.st_ino &&
        mine.st_dev == named.st_dev)
        unlink(s->path);
}

void bl_shared_close(bl_shared **shared)
{
    bl_shared *s = *shared;
    if (!s) return;
    pthread_mutex_lock(&lock);
    bl_shared **link = &all;
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    remove_unused(s);
    pthread_mutex_unlock(&lock);
    if (s->memory) munmap(s->memory, object_bytes(&s->key));
    if (s->fd >= 0) close(s->fd);
    free(s);
    *shared = NULL;
}

void bl_shared_leave_all(void)
{
    pthread_mutex_lock(&lock);
    for (bl_shared *s = all; s; s = s->next) remove_unused(s);
    pthread_mutex_unlock(&lock);
}

void bl_shared_each_left(void (*on)(void *arg, const char *path, uint64_t bytes), void *arg)
{
    DIR *folder = opendir(BL_SHARED_FOLDER);
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        char path[sizeof BL_SHARED_FOLDER + sizeof e->d_name + 1];
        struct stat st;
        if (strncmp(e->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", BL_SHARED_FOLDER, e->d_name);
        const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_blocks > 0 && !is_locked(fd))
            on(arg, path, (uint64_t)st.st_blocks * 512);
        if (fd >= 0) close(fd);
    }
    if (folder) closedir(folder);
}
