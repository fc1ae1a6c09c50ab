#include "tools/bench.h"

static bl_status none(bl_error *err)
{
    return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "this build has no CUDA backend");
}

bl_status bench_device_copy_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    (void)b;
    (void)s;
    return none(err);
}

bl_status bench_upload_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    (void)b;
    (void)s;
    return none(err);
}

int bench_device(int argc, char **argv)
{
    bench b = {0};
    const char *args[1];
    int count;
    cli_command c = {.program = "baleen bench device", .usage = "[options]", .summary = "Kernels of the GPU backend."};
    const int done = bench_begin(&b, &c, NULL, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    return bench_end(&b, none(&err), &err);
}
