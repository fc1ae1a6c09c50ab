/* Casts of weights to bf16, memory to memory. The floor is the copy of as many bytes as a cast reads and writes. */
#include "tools/bench.h"

#include "kernels/cast.h"
#include "kernels/sampling_math.h"
#include "tools/bench/bench_encode.h"

#include <string.h>
#include <sys/mman.h>

enum { STRIPE = 32, COLS = 5120 }; /* rows of an item: one row of 32x32 blocks */

typedef void row_fn(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols);

typedef struct layout {
    const char *name;
    bool fp4;
    int scale_rows; /* rows that share a row of scales */
    bool f32;       /* float32 scales of 128 columns, as earlier generations have; the scale bytes make sound ones */
} layout;

static const layout layouts[] = {{"fp4 1x32", true, 1, false},
                                 {"fp8 32x32", false, 32, false},
                                 {"fp8 1x32", false, 1, false},
                                 {"fp8 128x128, float32", false, 128, true}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

typedef struct buffers {
    uint8_t *codes, *scale;
    uint16_t *out;
    int64_t rows;
} buffers;

typedef struct cast_run {
    bench *b;
    bl_cast_kernels k;
    row_fn *row;
    const layout *w;
    const buffers *m;
    bool tile; /* every stripe to the same place of its thread, which stays in cache */
} cast_run;

static double bytes_read(const layout *w, const buffers *m)
{
    double n = (double)m->rows * COLS;
    return (w->fp4 ? n / 2 : n) + n / 32 / w->scale_rows;
}

static double bytes_written(const buffers *m)
{
    return 2.0 * (double)m->rows * COLS;
}

static void cast_stripe(void *arg, int64_t item, int worker)
{
    const cast_run *r = arg;
    int64_t row = item * STRIPE, code_bytes = r->w->fp4 ? COLS / 2 : COLS;
    uint16_t *out = r->m->out + (r->tile ? worker * STRIPE : row) * COLS;
    for (int64_t i = row; i < row + STRIPE; i++, out += COLS)
        if (r->w->f32) r->k.fp8_f32_row(out, r->m->codes + i * COLS, r->m->scale + i / 128 * (COLS / 32), COLS, 128);
        else r->row(out, r->m->codes + i * code_bytes, r->m->scale + i / r->w->scale_rows * (COLS / 32), COLS);
    r->k.stream_fence();
}

static bl_status run_cast(void *arg, bl_error *err)
{
    cast_run *r = arg;
    bl_pool_run(r->b->pool, r->m->rows / STRIPE, cast_stripe, r);
    return BL_OK;
}

/* The output's pages go back to the system: the next run finds them missing. */
static void drop_pages(void *arg)
{
    const cast_run *r = arg;
    madvise(r->m->out, (size_t)bytes_written(r->m), MADV_DONTNEED);
}

static void fill_row(uint16_t *out, const uint8_t *codes, const uint8_t *scale, int64_t cols)
{
    memset(out, 0x3f, (size_t)cols * 2);
}

static bl_status subject(bench_subject *s, const char *name, const cast_run *run, bl_error *err)
{
    cast_run *r = bench_record(run->b, sizeof *r);
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *r = *run;
    double work = 1e-9 * (bytes_read(r->w, r->m) + bytes_written(r->m));
    *s = (bench_subject){.name = name, .run = run_cast, .arg = r, .work = work, .unit = "GB"};
    return BL_OK;
}

static void bound(bench_subject *s, int ceiling, double work)
{
    s->ceiling[0].subject = ceiling;
    s->ceiling[0].work = work;
    s->ceilings = 1;
}

/* Codes of any kind but NaN, scales as a trained model has them. */
static bl_status fill(bench *b, buffers *m, uint64_t bytes, bl_error *err)
{
    m->rows = (int64_t)(bytes / 2 / COLS / STRIPE * STRIPE);
    size_t n = (size_t)m->rows * COLS;
    BL_TRY(bench_memory(b, n, (void **)&m->codes, err));
    BL_TRY(bench_memory(b, n / 32, (void **)&m->scale, err));
    BL_TRY(bench_memory(b, 2 * n, (void **)&m->out, err));
    for (size_t i = 0; i < n; i++) {
        uint64_t x = bl_splitmix64(i);
        uint8_t code = (uint8_t)(x >> 56);
        m->codes[i] = (code & 0x7f) == 0x7f ? code ^ 1 : code;
        m->scale[i / 32] = (uint8_t)(112 + (x >> 40) % 8);
    }
    return BL_OK;
}

/* Streaming stores, the way for outputs that exceed the caches; beside them ordinary ones. */
static bl_status memory_to_memory(bench *b, const buffers *m, const bl_cast_kernels *k, bl_error *err)
{
    static const char *const ordinary[] = {"fp4 1x32, ordinary stores", "fp8 32x32, ordinary stores"};
    bench_subject s[BENCH_SUBJECTS];
    int n = 0;
    BL_TRY(bench_copy_ceiling(b, &s[n++], err));
    for (int i = 0; i < LAYOUTS; i++) {
        row_fn *row = layouts[i].fp4 ? k->fp4_row_stream : k->fp8_row_stream;
        BL_TRY(subject(&s[n++], layouts[i].name, &(cast_run){b, *k, row, &layouts[i], m, false}, err));
    }
    for (int i = 0; i < 2; i++) {
        row_fn *row = layouts[i].fp4 ? k->fp4_row : k->fp8_row;
        BL_TRY(subject(&s[n++], ordinary[i], &(cast_run){b, *k, row, &layouts[i], m, false}, err));
    }
    for (int i = 1; i < n; i++) bound(&s[i], 0, s[i].work);
    return bench_run(b, "memory to memory, buffers reused, bytes read + written", s, n, err);
}

/* As a conversion works: the tile is hashed and written next. The input's way from memory bounds it. */
static bl_status into_tiles(bench *b, const buffers *m, const bl_cast_kernels *k, bl_error *err)
{
    bench_subject s[BENCH_SUBJECTS];
    int n = 0;
    BL_TRY(bench_read_ceiling(b, &s[n++], err));
    for (int i = 0; i < LAYOUTS; i++) {
        row_fn *row = layouts[i].fp4 ? k->fp4_row : k->fp8_row;
        BL_TRY(subject(&s[n], layouts[i].name, &(cast_run){b, *k, row, &layouts[i], m, true}, err));
        bound(&s[n++], 0, 1e-9 * bytes_read(&layouts[i], m));
    }
    return bench_run(b, "memory to a tile of 320 KiB in cache, bytes read + written", s, n, err);
}

/* What a program pays that takes new memory for every tensor. */
static bl_status first_touch(bench *b, const buffers *m, const bl_cast_kernels *k, bl_error *err)
{
    bench_subject s[3];
    bench few = *b;
    if (few.rounds > 5) few.rounds = 5;
    BL_TRY(subject(&s[0], "fill of new pages", &(cast_run){b, *k, fill_row, &layouts[1], m, false}, err));
    s[0].work = 1e-9 * bytes_written(m);
    BL_TRY(subject(&s[1], layouts[0].name, &(cast_run){b, *k, k->fp4_row_stream, &layouts[0], m, false}, err));
    BL_TRY(subject(&s[2], layouts[1].name, &(cast_run){b, *k, k->fp8_row_stream, &layouts[1], m, false}, err));
    for (int i = 0; i < 3; i++) s[i].reset = drop_pages;
    for (int i = 1; i < 3; i++) bound(&s[i], 0, s[0].work);
    return bench_run(&few, "first touch: the output's pages are new in every run", s, 3, err);
}

static bl_status body(bench *b, uint64_t bytes, bl_error *err)
{
    buffers m;
    bench_encode back;
    bl_cast_kernels k;
    int counts[2], n = bench_thread_counts(b, counts);
    BL_TRY(fill(b, &m, bytes, err));
    BL_TRY(bench_encode_open(b, &back, bytes, err));
    bl_cast_init(&k, b->cpu);
    for (int i = 0; i < n; i++) {
        BL_TRY(bench_threads(b, counts[i], err));
        BL_TRY(memory_to_memory(b, &m, &k, err));
        BL_TRY(into_tiles(b, &m, &k, err));
        BL_TRY(first_touch(b, &m, &k, err));
        BL_TRY(bench_encode_run(b, &back, err));
    }
    return BL_OK;
}

int bench_cast(int argc, char **argv)
{
    bench b = {0};
    uint64_t bytes = 256 << 20;
    const char *args[8];
    int count;
    const cli_option own[] = {
        {"size", CLI_SIZE(1, CLI_SIZE_MOST), &bytes, "SIZE", "of the bf16 output (default 256MiB)"},
        CLI_END,
    };
    cli_command c = {.program = "baleen bench cast", .usage = "[options]",
                     .summary = "Casts fp4 and fp8 weights to bf16 and back in memory and compares with the copy rate of the same run.",
                     .details = "Rates count bytes read and written. A copy reads as much as it writes; a cast mostly writes, so\n"
                                "that its share of the copy rate may exceed 100%. '--cpu c' measures the C reference.\n"};
    int done = bench_begin(&b, &c, own, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    if (bytes < 16 << 20) bytes = 16 << 20;
    return bench_end(&b, body(&b, bytes, &err), &err);
}
