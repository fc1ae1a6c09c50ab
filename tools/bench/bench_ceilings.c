#include "tools/bench.h"

enum { CEILINGS_MAX = 8 };

static bl_status body(bench *b, const char *folder, uint64_t bytes, bl_error *err)
{
    int counts[2], n = bench_thread_counts(b, counts);
    for (int i = 0; i < n; i++) {
        bench_subject s[CEILINGS_MAX];
        int k = 0;
        BL_TRY(bench_threads(b, counts[i], err));
        BL_TRY(bench_copy_ceiling(b, &s[k++], err));
        BL_TRY(bench_read_ceiling(b, &s[k++], err));
        BL_TRY(bench_xxh3_ceiling(b, &s[k++], err));
        BL_TRY(bench_sha256_ceiling(b, &s[k++], err));
        BL_TRY(bench_fma_ceiling(b, &s[k++], err));
        BL_TRY(bench_dot_ceiling(b, &s[k++], err));
        BL_TRY(bench_run(b, "memory and arithmetic, reused buffers of 128 MiB", s, k, err));
    }
    if (!folder) return BL_OK;
    bench_subject s[2];
    BL_TRY(bench_disk_ceiling(b, &s[0], folder, bytes, false, err));
    BL_TRY(bench_disk_ceiling(b, &s[1], folder, bytes, true, err));
    return bench_run(b, "disk, with fsync", s, 2, err);
}

int bench_ceilings(int argc, char **argv)
{
    bench b = {0};
    const char *folder = NULL, *args[8];
    uint64_t bytes = 1000000000;
    int count;
    const cli_option own[] = {
        {"disk", CLI_STRING, &folder, "DIR", "also write a file in DIR (default: no disk)"},
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &bytes, "SIZE", "of that file (default 1GB)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench ceilings", .usage = "[options]",
                     .summary = "Measures what this machine can do: the ceilings that every other benchmark is held against."};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    return bench_end(&b, body(&b, folder, bytes, &err), &err);
}
