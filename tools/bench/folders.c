#include "tools/bench/folders.h"

#include "convert/synth.h"
#include "runtime/engram.h"
#include "tools/cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WIDE_FIXED 1.65e9 /* bytes of the preset "wide" that are no routed experts */
#define WIDE_EXPERT 0.075e9 /* bytes of one expert in all of its layers */

void bench_folder_remove(const char *path)
{
    char name[4600];
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (unlink(name)) bench_folder_remove(name);
    }
    if (d) closedir(d);
    rmdir(path);
}

void bench_folder_warm(const char *path, bool cool, void *piece)
{
    char name[4600];
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && cool) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        while (fd >= 0 && !cool && read(fd, piece, BENCH_FOLDER_PIECE) > 0) {
        }
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
}

/* Pages of a file, and how many of them the page cache holds. */
static void count_cached(const char *name, size_t *pages, size_t *cached)
{
    struct stat st;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    size_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? ((size_t)st.st_size + 4095) / 4096 : 0;
    void *p = n ? mmap(NULL, n * 4096, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    unsigned char *in = malloc(n + 1);
    if (p != MAP_FAILED && in && mincore(p, n * 4096, in) == 0) {
        *pages += n;
        for (size_t i = 0; i < n; i++) *cached += in[i] & 1;
    }
    free(in);
    if (p != MAP_FAILED) munmap(p, n * 4096);
    close(fd);
}

double bench_folder_cached(const char *path)
{
    char name[4600];
    size_t pages = 0, cached = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        count_cached(name, &pages, &cached);
    }
    if (d) closedir(d);
    return pages ? (double)cached / (double)pages : 0;
}

void bench_settle(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    syncfs(fd);
    close(fd);
}

bl_status bench_source(const char *path, uint64_t bytes, bl_error *err)
{
    char experts[64];
    double wanted = ((double)bytes - WIDE_FIXED) / WIDE_EXPERT;
    snprintf(experts, sizeof experts, "n_routed_experts=%d", wanted < 8 ? 8 : wanted > 384 ? 384 : (int)wanted);
    const char *overrides[] = {experts};
    bl_synth_options o = {.preset = "wide", .overrides = overrides, .override_count = 1, .seed = 1, .shards = 4,
                          .token_classes = bl_engram_token_classes, .cancelled = cli_interrupted};
    bl_synth_report report;
    return bl_synth(path, &o, &report, err);
}
