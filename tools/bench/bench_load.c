/* A model's weights from files in the page cache to GPU memory: everything between an open model without weights and one with them. */
#include "runtime/model.h"
#include "tools/bench.h"

#include <stdlib.h>

typedef struct load_run {
    const char *path;
    bl_model_options options;
    bl_model *m;
    bl_status status; /* of what is not timed */
    bl_error err;
} load_run;

static void discard(void *arg)
{
    load_run *r = arg;
    bl_model_close(&r->m);
}

/* A model without weights. */
static bl_status open_empty(load_run *r, bl_error *err)
{
    discard(r);
    r->m = calloc(1, sizeof *r->m);
    if (!r->m) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(bl_model_describe(r->m, r->path, &r->options, 0, err));
    return bl_model_prepare(r->m, &r->options, err);
}

static void reset(void *arg)
{
    load_run *r = arg;
    r->status = open_empty(r, &r->err);
}

static bl_status run(void *arg, bl_error *err)
{
    load_run *r = arg;
    if (r->status != BL_OK) *err = r->err;
    BL_TRY(r->status);
    return bl_weights_load(&r->m->weights, r->m->checkpoint, r->options.access, r->options.check == BL_CHECK_FULL, r->m->backend, err);
}

static bl_status measure(bench *b, load_run *runs, const char *path, bl_access access, bl_error *err)
{
    int counts[2], n = bench_thread_counts(b, counts);
    bench_subject s[3];
    bool packed = false;
    static const char *const names[] = {"load", "load, digests checked"};
    BL_TRY(bench_threads(b, counts[n - 1], err)); /* the model makes its own pool, of as many */
    BL_TRY(bench_upload_ceiling(b, &s[0], err));
    for (int i = 0; i < 2; i++) {
        load_run *r = &runs[i];
        r->path = path;
        r->options = (bl_model_options){.access = access, .cpu = b->cpu, .threads = counts[n - 1], .device = BL_DEVICE_CUDA,
                                        .check = i ? BL_CHECK_FULL : BL_CHECK_FAST};
        BL_TRY(open_empty(r, err));
        const double gb = 1e-9 * (double)r->m->plan.weight_bytes;
        s[1 + i] = (bench_subject){.name = names[i], .run = run, .reset = reset, .after = discard, .arg = r, .work = gb, .unit = "GB",
                                   .ceiling = {{0, gb}}, .ceilings = 1};
        packed = r->m->checkpoint->kind == BL_SOURCE_PACKED;
        discard(r);
    }
    return bench_run(b, "weights from files to the GPU", s, packed ? 3 : 2, err);
}

int bench_load(int argc, char **argv)
{
    bench b = {.rounds = 5};
    const char *args[1];
    int access = BL_ACCESS_AUTO;
    int count;
    const cli_option own[] = {
        {"access", CLI_WORD(cli_accesses), &access, "HOW",
         "auto: past the page cache what is not in it; mmap, pread: through it (default auto)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench load", .usage = "[MODEL] [options]", .max_args = 1,
                     .summary = "Load a model's weights to the GPU, beside a copy from pinned memory.",
                     .details = "The first round, not counted, brings the files to the page cache where --access fills it. Only a\n"
                                "packed model has digests to check. Engram tables are not loaded.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    load_run *runs = bench_record(&b, 2 * sizeof *runs);
    bl_status s = runs ? measure(&b, runs, count ? args[0] : cli_default_model(), (bl_access)access, &err)
                       : bl_fail(&err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    if (runs) discard(&runs[0]), discard(&runs[1]);
    return bench_end(&b, s, &err);
}
