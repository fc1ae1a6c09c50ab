#include "tools/bench.h"

int bench_device(int argc, char **argv)
{
    bench b = {.rounds = 21};
    const char *args[1];
    int count;
    cli_command c = {.program = "baleen bench device", .usage = "[options]",
                     .summary = "Kernels of the GPU backend at the released sizes, beside its copy rate or its products.",
                     .details = "A step of selection is scoring and choosing for four sequences; the floor is reading their keys.\n"};
    const int done = bench_begin(&b, &c, NULL, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    return bench_end(&b, bench_device_kernels(&b, &err), &err);
}
