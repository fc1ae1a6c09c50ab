/* Faults for a program under test, preloaded with LD_PRELOAD. BL_FAULT holds rules CALL:WHEN:WHAT, separated by commas.
 *
 *   CALL   open (of what is there), read, write, sync, reserve, rename, create (files and folders), remove, or change: any of the last six
 *   WHEN   N the N-th such call, N+ from it on, /N every N-th
 *   WHAT   EIO, ENOSPC, EINTR and so on: the call fails so, nothing done
 *          SHORT  half of the bytes asked for are moved, whole pages of them where there are several
 *          SLOW   the call takes 200 ms more
 *          STOP   the process stops before the call, until it gets SIGCONT
 *          KILL   the process is killed in place of the call
 *          POWER  the same, and what was not synced is lost: file contents become zeros, renames are undone
 *
 * BL_FAULT_PATH limits it to paths that contain the text; BL_FAULT_LOG names a file that gets a line CALL PATH for every fault.
 * Only regular files, and folders for sync, count. The real calls are made past the C library, so that nothing recurses. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096u
enum { MAX_RULES = 8, MAX_DIRTY = 256, MAX_RENAMES = 64, SHORT = -1, KILL = -2, POWER = -3, STOP = -4, SLOW = -5, NONE = 0 };

/* The names that programs with 64-bit offsets call. */
EXPORT ssize_t pread64(int fd, void *p, size_t n, off_t at);
EXPORT ssize_t pwrite64(int fd, const void *p, size_t n, off_t at);
EXPORT int fallocate64(int fd, int mode, off_t at, off_t n);
EXPORT int open64(const char *path, int flags, ...);
EXPORT ssize_t preadv64v2(int fd, const struct iovec *v, int n, off_t at, int flags);

typedef struct rule {
    char call[16];
    unsigned long n, seen;
    char when; /* ' ', '+' or '/' */
    int what;
} rule;

static rule rules[MAX_RULES];
static int rule_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* What a power cut would lose. */
static struct { int fd; dev_t dev; ino_t ino; } dirty[MAX_DIRTY];
static int dirty_count;
static struct { char from[512], to[512]; } renames[MAX_RENAMES];
static int rename_count;

static int what_of(const char *s)
{
    static const struct { const char *name; int value; } names[] = {
        {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR}, {"EROFS", EROFS}, {"EMFILE", EMFILE},
        {"EACCES", EACCES}, {"ENOMEM", ENOMEM}, {"SHORT", SHORT}, {"KILL", KILL}, {"POWER", POWER},
        {"STOP", STOP}, {"SLOW", SLOW}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(s, names[i].name)) {
            return names[i].value;
        }
    }
    fprintf(stderr, "faults: unknown fault %s\n", s);
    _exit(99);
}

static void parse(void)
{
    const char *text = getenv("BL_FAULT");
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text ? text : "");
    for (char *save, *p = strtok_r(copy, ",", &save); p && rule_count < MAX_RULES; p = strtok_r(NULL, ",", &save)) {
        rule *r = &rules[rule_count++];
        char when[32], what[16], *end;
        if (sscanf(p, "%15[^:]:%31[^:]:%15s", r->call, when, what) != 3) {
            fprintf(stderr, "faults: cannot read %s\n", p);
            _exit(99);
        }
        r->n = strtoul(when + (*when == '/'), &end, 10);
        r->when = *when == '/' ? '/' : *end == '+' ? '+' : ' ';
        r->what = what_of(what);
    }
}

static bool path_of(int fd, char *path, size_t cap)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, cap - 1);
    path[n > 0 ? n : 0] = 0;
    return n > 0;
}

static void note(const char *call, const char *path)
{
    const char *log = getenv("BL_FAULT_LOG");
    char line[1100];
    int fd = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        int n = snprintf(line, sizeof line, "%s %s\n", call, path);
        syscall(SYS_write, fd, line, n);
        syscall(SYS_close, fd);
    }
}

/* ---- power cuts */

static void lose_contents(int fd)
{
    static const char zeros[1 << 16];
    struct stat st;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~(O_DIRECT | O_APPEND));
    if (fstat(fd, &st) == 0) {
        for (off_t at = 0; at < st.st_size; at += (off_t)sizeof zeros) {
            size_t n = st.st_size - at < (off_t)sizeof zeros ? (size_t)(st.st_size - at) : sizeof zeros;
            syscall(SYS_pwrite64, fd, zeros, n, at);
        }
    }
}

static void die(bool power)
{
    for (int i = 0; power && i < dirty_count; i++) {
        lose_contents(dirty[i].fd);
    }
    for (int i = rename_count - 1; power && i >= 0; i--) {
        syscall(SYS_renameat, AT_FDCWD, renames[i].to, AT_FDCWD, renames[i].from);
    }
    kill(getpid(), SIGKILL);
    for (;;) {
        pause();
    }
}

static bool tracking(void)
{
    for (int i = 0; i < rule_count; i++) {
        if (rules[i].what == POWER) {
            return true;
        }
    }
    return false;
}

static void mark(int fd, bool is_dirty)
{
    struct stat st;
    if (!tracking() || fstat(fd, &st) != 0) {
        return;
    }
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < dirty_count && (dirty[i].dev != st.st_dev || dirty[i].ino != st.st_ino)) {
        i++;
    }
    if (is_dirty && i == dirty_count && i < MAX_DIRTY) {
        dirty[i].fd = fcntl(fd, F_DUPFD_CLOEXEC, 200);
        dirty[i].dev = st.st_dev;
        dirty[i].ino = st.st_ino;
        dirty_count++;
    } else if (!is_dirty && i < dirty_count) {
        syscall(SYS_close, dirty[i].fd);
        dirty[i] = dirty[--dirty_count];
    }
    pthread_mutex_unlock(&lock);
}

/* The folder at path is synced: its renames are safe. */
static void settle(const char *path)
{
    size_t n = strlen(path);
    pthread_mutex_lock(&lock);
    for (int i = rename_count - 1; i >= 0; i--) {
        if (!strncmp(renames[i].to, path, n) && renames[i].to[n] == '/' && !strchr(renames[i].to + n + 1, '/')) {
            renames[i] = renames[--rename_count];
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- deciding */

static bool applies(const rule *r, const char *call)
{
    return !strcmp(r->call, call) || (!strcmp(r->call, "change") && strcmp(call, "read") != 0 && strcmp(call, "open") != 0);
}

/* The fault that this call on path gets. */
static int fault(const char *call, const char *path)
{
    const char *only = getenv("BL_FAULT_PATH");
    int what = NONE;
    pthread_once(&once, parse);
    if (only && !strstr(path, only)) {
        return NONE;
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count; i++) {
        rule *r = &rules[i];
        if (!applies(r, call)) {
            continue;
        }
        r->seen++;
        bool now = r->when == '/' ? r->seen % r->n == 0 : r->when == '+' ? r->seen >= r->n : r->seen == r->n;
        if (now && what == NONE) {
            what = r->what;
        }
    }
    if (what != NONE) {
        note(call, path);
    }
    if (what == KILL || what == POWER) {
        die(what == POWER);
    }
    pthread_mutex_unlock(&lock);
    if (what == STOP) {
        raise(SIGSTOP);
    }
    if (what == SLOW) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    return what;
}

static int fault_fd(const char *call, int fd)
{
    char path[1024];
    struct stat st;
    if (fd <= 2 || fstat(fd, &st) != 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) || !path_of(fd, path, sizeof path)) {
        return NONE;
    }
    return fault(call, path);
}

static size_t shorter(size_t n)
{
    size_t half = n / 2;
    return n > PAGE ? half > PAGE ? half - half % PAGE : PAGE : n;
}

/* ---- the calls */

static ssize_t do_pread(int fd, void *p, size_t n, off_t at)
{
    int f = fault_fd("read", fd);
    if (f > 0) {
        errno = f;
        return -1;
    }
    return syscall(SYS_pread64, fd, p, f == SHORT ? shorter(n) : n, at);
}

static ssize_t do_pwrite(int fd, const void *p, size_t n, off_t at)
{
    int f = fault_fd("write", fd);
    if (f > 0) {
        errno = f;
        return -1;
    }
    mark(fd, true);
    return syscall(SYS_pwrite64, fd, p, f == SHORT ? shorter(n) : n, at);
}

static int do_fallocate(int fd, int mode, off_t at, off_t n)
{
    int f = fault_fd("reserve", fd);
    if (f > 0) {
        errno = f;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, at, n);
}

static int do_open(const char *path, int flags, int mode)
{
    int f = fault(flags & O_CREAT ? "create" : "open", path);
    if (f > 0) {
        errno = f;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pread64(int fd, void *p, size_t n, off_t at) { return do_pread(fd, p, n, at); }
ssize_t pwrite64(int fd, const void *p, size_t n, off_t at) { return do_pwrite(fd, p, n, at); }
int fallocate64(int fd, int mode, off_t at, off_t n) { return do_fallocate(fd, mode, at, n); }

ssize_t preadv64v2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
    int f = fault_fd("read", fd);
    struct iovec part = n > 0 ? *v : (struct iovec){0};
    if (f > 0) {
        errno = f;
        return -1;
    }
    part.iov_len = shorter(part.iov_len);
    return syscall(SYS_preadv2, fd, f == SHORT ? &part : v, f == SHORT ? 1 : n, (long)at, 0L, flags);
}

EXPORT ssize_t write(int fd, const void *p, size_t n);
ssize_t write(int fd, const void *p, size_t n)
{
    int f = fault_fd("write", fd);
    if (f > 0) {
        errno = f;
        return -1;
    }
    mark(fd, true);
    return syscall(SYS_write, fd, p, f == SHORT ? shorter(n) : n);
}

EXPORT int fsync(int fd);
int fsync(int fd)
{
    char path[1024];
    int f = fault_fd("sync", fd);
    if (f > 0) {
        errno = f;
        return -1;
    }
    mark(fd, false);
    if (path_of(fd, path, sizeof path)) {
        settle(path);
    }
    return (int)syscall(SYS_fsync, fd);
}

EXPORT int fdatasync(int fd);
int fdatasync(int fd)
{
    return fsync(fd);
}

int open64(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    return do_open(path, flags, mode);
}

EXPORT int mkdir(const char *path, mode_t mode);
int mkdir(const char *path, mode_t mode)
{
    int f = fault("create", path);
    if (f > 0) {
        errno = f;
        return -1;
    }
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

static int do_rename(const char *from, const char *to, unsigned flags)
{
    int f = fault("rename", to);
    if (f > 0) {
        errno = f;
        return -1;
    }
    int rc = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
    pthread_mutex_lock(&lock);
    if (rc == 0 && rename_count < MAX_RENAMES && tracking()) {
        snprintf(renames[rename_count].from, sizeof renames->from, "%s", from);
        snprintf(renames[rename_count++].to, sizeof renames->to, "%s", to);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

EXPORT int rename(const char *from, const char *to);
int rename(const char *from, const char *to)
{
    return do_rename(from, to, 0);
}

EXPORT int renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    (void)a, (void)b; /* both AT_FDCWD, in this project */
    return do_rename(from, to, flags);
}

EXPORT int unlink(const char *path);
int unlink(const char *path)
{
    int f = fault("remove", path);
    if (f > 0) {
        errno = f;
        return -1;
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
