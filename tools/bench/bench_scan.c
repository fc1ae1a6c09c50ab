/* Reading the headers and the index of a whole model, beside reading their bytes alone. */
#include "tools/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/synth.h"
#include "formats/checkpoint.h"
#include "runtime/engram.h"
#include "tools/bench/folders.h"
#include "verify/bind.h"

enum { PIECE = 1 << 20, SMALL_FILES = 3 };

typedef struct scan_run {
    const char *path;
    const bl_checkpoint *known; /* whose headers, index and config the floor reads */
    char *piece;
} scan_run;

static const char *const small_files[SMALL_FILES] = {"config.json", "model.safetensors.index.json", "manifest.json"};

/* n bytes from the beginning of a file, or all of it; returns how many there were. */
static uint64_t read_from(const char *path, uint64_t n, char *piece)
{
    uint64_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t k = 1; fd >= 0 && k > 0 && got < n; got += k > 0 ? (uint64_t)k : 0)
        k = read(fd, piece, n - got < PIECE ? (size_t)(n - got) : PIECE);
    if (fd >= 0) close(fd);
    return got;
}

static uint64_t read_all(const scan_run *r)
{
    char name[4600];
    uint64_t bytes = 0;
    for (int i = 0; i < SMALL_FILES; i++) {
        snprintf(name, sizeof name, "%s/%s", r->path, small_files[i]);
        bytes += read_from(name, UINT64_MAX, r->piece);
    }
    for (size_t i = 0; i < r->known->file_count; i++)
        bytes += read_from(r->known->files[i].path, r->known->files[i].header_bytes, r->piece);
    return bytes;
}

static bl_status floor_run(void *arg, bl_error *err)
{
    (void)err;
    read_all(arg);
    return BL_OK;
}

static bl_status scan(void *arg, bl_error *err)
{
    const scan_run *r = arg;
    bl_checkpoint *c = NULL;
    bl_status s = bl_checkpoint_open(&c, r->path, &(bl_checkpoint_options){.any_generation = true}, err);
    bl_checkpoint_close(&c);
    return s;
}

static bl_status scan_and_bind(void *arg, bl_error *err)
{
    const scan_run *r = arg;
    bl_checkpoint *c = NULL;
    bl_arena arena = {0};
    bl_binding b;
    bl_status s = bl_checkpoint_open(&c, r->path, &(bl_checkpoint_options){.any_generation = true}, err);
    if (s == BL_OK) s = bl_bind(c, &arena, NULL, NULL, &b, err);
    bl_arena_reset(&arena);
    bl_checkpoint_close(&c);
    return s;
}

static bl_status measure(bench *b, const char *path, bl_error *err)
{
    bl_checkpoint *c = NULL;
    scan_run *r = bench_record(b, sizeof *r);
    char title[128];
    void *piece;
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(bench_threads(b, 1, err));
    BL_TRY(bench_memory(b, PIECE, &piece, err));
    BL_TRY(bl_checkpoint_open(&c, path, &(bl_checkpoint_options){.any_generation = true}, err));
    *r = (scan_run){.path = path, .known = c, .piece = piece};
    double gb = (double)read_all(r) * 1e-9, tensors = (double)c->tensor_count * 1e-6;
    bench_subject s[] = {{.name = "read of the same bytes", .run = floor_run, .arg = r, .work = gb, .unit = "GB"},
                         {.name = "headers and index", .run = scan, .arg = r, .work = tensors, .unit = "Mtensor", .ceiling = {{0, gb}},
                          .ceilings = 1},
                         {.name = "with binding to the config", .run = scan_and_bind, .arg = r, .work = tensors, .unit = "Mtensor",
                          .ceiling = {{0, gb}}, .ceilings = 1}};
    snprintf(title, sizeof title, "%zu tensors in %zu files, %.1f MB of headers, index and config", c->tensor_count, c->file_count,
             gb * 1e3);
    bl_status st = bench_run(b, title, s, 3, err);
    bl_checkpoint_close(&c);
    return st;
}

/* The headers of the released shape, in a folder of their own in folder. */
static bl_status make_and_measure(bench *b, const char *folder, bl_error *err)
{
    char root[4096], path[4200];
    int n = snprintf(root, sizeof root, "%s/baleen-bench-XXXXXX", folder);
    if (n < 0 || n >= (int)sizeof root) return bl_fail(err, BL_E_USAGE, folder, NULL, -1, "the path is too long");
    if (!mkdtemp(root)) return bl_fail_errno(err, errno, 0, root, "cannot make a folder");
    snprintf(path, sizeof path, "%s/model", root);
    bl_synth_report report;
    const bl_synth_options o = {.preset = "full", .seed = 1, .shards = 48, .headers = true, .token_classes = bl_engram_token_classes,
                                .cancelled = cli_interrupted};
    bl_status s = bl_synth(path, &o, &report, err);
    if (s == BL_OK) s = measure(b, path, err);
    bench_folder_remove(root);
    return s;
}

int bench_scan(int argc, char **argv)
{
    bench b = {.cpu_time = true};
    const char *args[8], *source = NULL;
    int count;
    const cli_option own[] = {
        {"source", CLI_STRING, &source, "PATH", "read this checkpoint (default: headers of the released shape, made for it)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench scan", .usage = "[DIR] [options]", .max_args = 1,
                     .summary = "Reads the headers and the index of a model. They are made in DIR (default /tmp), with no weights behind "
                                "them."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    cli_catch_signals();
    return bench_end(&b, source ? measure(&b, source, &err) : make_and_measure(&b, count ? args[0] : "/tmp", &err), &err);
}
