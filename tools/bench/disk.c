/* The disk's ceiling: a program that does nothing but write. */
#include "tools/bench/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WRITE_BLOCK = 16 << 20 };

typedef struct disk_pass {
    char path[4096];
    void *block;
    uint64_t bytes;
    bool direct;
} disk_pass;

static void remove_file(void *arg)
{
    disk_pass *d = arg;
    unlink(d->path);
}

static bl_status write_all(const disk_pass *d, int fd, bl_error *err)
{
    for (uint64_t done = 0; done < d->bytes;) {
        uint64_t left = d->bytes - done;
        ssize_t n = write(fd, d->block, left < WRITE_BLOCK ? left : WRITE_BLOCK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return bl_fail_errno(err, errno, 0, d->path, "writing");
        done += (uint64_t)n;
    }
    if (fsync(fd)) return bl_fail_errno(err, errno, 0, d->path, "fsync");
    return BL_OK;
}

static bl_status run_disk(void *arg, bl_error *err)
{
    disk_pass *d = arg;
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int fd = open(d->path, flags | (d->direct ? O_DIRECT : 0), 0600);
    if (fd < 0 && d->direct && errno == EINVAL) fd = open(d->path, flags, 0600); /* a file system without O_DIRECT */
    if (fd < 0) return bl_fail_errno(err, errno, 0, d->path, "creating");
    bl_status s = write_all(d, fd, err);
    if (close(fd) && s == BL_OK) s = bl_fail_errno(err, errno, 0, d->path, "closing");
    unlink(d->path);
    return s;
}

bl_status bench_disk_ceiling(bench *b, bench_subject *s, const char *folder, uint64_t bytes, bool direct, bl_error *err)
{
    disk_pass *d = bench_record(b, sizeof *d);
    if (!d) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    int n = snprintf(d->path, sizeof d->path, "%s/baleen-bench-%ld.tmp", folder, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof d->path) return bl_fail(err, BL_E_USAGE, folder, NULL, -1, "the path is too long");
    d->bytes = bytes / 4096 * 4096; /* O_DIRECT writes whole pages */
    d->direct = direct;
    BL_TRY(bench_memory(b, WRITE_BLOCK, &d->block, err));
    *s = (bench_subject){.name = direct ? "plain writer, O_DIRECT" : "plain writer", .run = run_disk, .reset = remove_file, .arg = d,
                         .work = 1e-9 * (double)d->bytes, .unit = "GB"};
    return BL_OK;
}
