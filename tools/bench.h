/* Benchmarks: subjects that take turns, each shown as a share of what the machine could do at best in the same run.
 *
 * A subject is anything that can be run again: a kernel over a buffer, a whole conversion, and also the ceilings (copy, read,
 * hash, FMA, plain disk writer). bench_run lets all subjects of a set run once per round, in rotating order, so that
 * everybody meets the same neighbours on the machine; shares are taken within a round. Medians are shown with the 10th to
 * 90th percentile, since a median alone hides a noisy machine.
 *
 * A new benchmark is a function in tools/bench/bench_NAME.c, a prototype below and a row in tools/bench/bench.c:
 *
 *     int bench_cast(int argc, char **argv)
 *     {
 *         bench b = {0};
 *         cli_command c = {.program = "baleen bench cast", ...};
 *         int done = bench_begin(&b, &c, own_options, argc, argv, args, &count);
 *         if (done >= 0) return done;
 *         return bench_end(&b, body(&b, &err), &err);
 *     }
 */
#ifndef BL_TOOLS_BENCH_H
#define BL_TOOLS_BENCH_H

#include "formats/pool.h"
#include "tools/cli.h"

enum { BENCH_CEILINGS = 3, BENCH_SUBJECTS = 16 };

typedef struct bench_subject {
    const char *name;
    bl_status (*run)(void *arg, bl_error *err); /* one timed run */
    void (*reset)(void *arg);                   /* before each run, not timed: remove an output, drop pages; may be NULL */
    void (*after)(void *arg);                   /* after each run, not timed; may be NULL */
    void *arg;
    double work;      /* done by one run, in unit */
    const char *unit; /* "GB" (1e9 bytes), "GFLOP", "token": shown per second */
    /* What bounds it: subjects of the same set, and how much of their work (in their unit) one run of this one needs at the
     * least. The floor of a run's time is the largest work / rate; the share shown is floor / time. */
    struct {
        int subject;
        double work;
    } ceiling[BENCH_CEILINGS];
    int ceilings;
    int beside; /* 1 + another subject of the set, which does the same and less: the rate is also shown as a share of its; 0 none */
} bench_subject;

typedef struct bench {
    /* options of every benchmark */
    bool json;
    int64_t threads; /* --threads; 0: not given, one, then all */
    int64_t rounds;
    /* set by the benchmark, before bench_run */
    bool no_warmup; /* subjects that take seconds: every run counts */
    bool cpu_time;  /* also show what a unit of work costs in seconds of all CPUs of this process */
    /* set by bench_begin */
    const char *program;
    char gpu[64]; /* its name, where one is measured (bench_find_gpu) */
    unsigned cpu; /* what kernels may use */
    bl_pool *pool; /* of bench_threads, NULL before it */
    struct bench_state *state;
} bench;

/* Parses own (a table ended by a NULL name, at most 16 entries, or NULL) and the common options, finds the CPU level. Returns -1
 * to go on, else the exit status. c->options is filled in; c, own and argv must outlive b. */
int bench_begin(bench *b, cli_command *c, const cli_option *own, int argc, char **argv, const char **args, int *count);
/* Prints the JSON document when asked for one, or the error; frees everything; returns the exit status. */
int bench_end(bench *b, bl_status s, const bl_error *err);

/* The thread counts to measure with: writes one or two, returns how many. */
int bench_thread_counts(const bench *b, int counts[2]);
/* Replaces b->pool by one of that many threads. */
bl_status bench_threads(bench *b, int threads, bl_error *err);
/* Page-aligned memory, touched, freed by bench_end. */
bl_status bench_memory(bench *b, size_t bytes, void **out, bl_error *err);
/* A zeroed record for a subject's arg, freed by bench_end. NULL when memory is out. */
void *bench_record(bench *b, size_t bytes);

/* Runs n subjects (at most BENCH_SUBJECTS) with the current pool for one warm-up and b->rounds rounds and prints the set. When
 * the process is interrupted (cli_interrupted), prints what is there and returns BL_E_CANCELLED. */
bl_status bench_run(bench *b, const char *title, const bench_subject *s, int n, bl_error *err);
/* Work per second of a subject of the newest set, the median; 0: it did not run. */
double bench_rate(const bench *b, int subject);

/* ---- ceilings, filled in as subjects for the current pool; valid until bench_threads is called again. Memory passes go over
 * BENCH_PASS bytes for each thread, buffers shared by all of them. */
enum { BENCH_PASS = 128 << 20 };
/* Bytes read and written both count. The fastest of memcpy and loops of streaming stores, tried here. */
bl_status bench_copy_ceiling(bench *b, bench_subject *s, bl_error *err);
/* The fastest of reading in one, four or eight places at once, tried here. */
bl_status bench_read_ceiling(bench *b, bench_subject *s, bl_error *err);
bl_status bench_xxh3_ceiling(bench *b, bench_subject *s, bl_error *err);
bl_status bench_sha256_ceiling(bench *b, bench_subject *s, bl_error *err);
/* Multiply-adds from registers, two FLOP each, at the widest the level has. */
bl_status bench_fma_ceiling(bench *b, bench_subject *s, bl_error *err);
/* Dot products of bf16 pairs: vdpbf16ps where the level has it, otherwise the FMA peak, which is what bf16 costs without it. */
bl_status bench_dot_ceiling(bench *b, bench_subject *s, bl_error *err);
/* The current GPU, for which there must be machine code: its name stands in the heading from now on. */
bl_status bench_find_gpu(bench *b, bl_error *err);
/* A copy within the memory of the current GPU; bytes read and written both count. */
bl_status bench_device_copy_ceiling(bench *b, bench_subject *s, bl_error *err);
/* A product of bf16 matrices by the GPU backend, 8192 cubed; two FLOP for each multiply-add. */
bl_status bench_device_product_ceiling(bench *b, bench_subject *s, bl_error *err);
/* Copies from pinned host memory to the current GPU: the fastest of several sizes of buffers and numbers of streams, tried here. */
bl_status bench_upload_ceiling(bench *b, bench_subject *s, bl_error *err);
/* Measure kernels of the GPU backend, each beside its ceiling. */
bl_status bench_device_kernels(bench *b, bl_error *err);
/* A plain writer: one file of bytes in folder, large sequential writes from reused memory, fsync. direct: O_DIRECT where the
 * file system has it. */
bl_status bench_disk_ceiling(bench *b, bench_subject *s, const char *folder, uint64_t bytes, bool direct, bl_error *err);

/* ---- benchmarks: the rows of tools/bench/bench.c */
int bench_bucket(int argc, char **argv);
int bench_cast(int argc, char **argv);
int bench_ceilings(int argc, char **argv);
int bench_convert(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_device(int argc, char **argv);
int bench_hash(int argc, char **argv);
int bench_load(int argc, char **argv);
int bench_prefill(int argc, char **argv);
int bench_linear(int argc, char **argv);
int bench_ops(int argc, char **argv);
int bench_scan(int argc, char **argv);
int bench_start(int argc, char **argv);

#endif
