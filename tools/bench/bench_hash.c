/* Digests in memory: what a byte of a packed model costs beside reading it. */
#include "tools/bench.h"

#include "verify/digest.h"
#include "verify/sha256.h"

#include <string.h>

enum { ROWS = 4096, COLS = 5120, STRIPE = 32 };

typedef struct hash_run {
    bench *b;
    bl_cast_kernels k;
    uint8_t *data; /* bf16 [ROWS, COLS] */
    bl_sum sums[1024];
    bl_digest chunks[64];
} hash_run;

enum { BYTES = ROWS * COLS * 2 };

static void matrix_stripe(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    bl_value_matrix(&r->k, &r->sums[worker % 1024], r->data + item * STRIPE * COLS * 2, STRIPE, COLS,
                    bl_tiles_at((uint64_t)item * STRIPE, 0, COLS));
}

/* The same bytes as codes. Their scale bytes are the bytes of the first rows: 0x3c is an ordinary one. */
static void fp8_stripe(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    bl_value_fp8(&r->k, &r->sums[worker % 1024], r->data + item * STRIPE * COLS * 2, r->data, 2 * STRIPE, COLS,
                 bl_tiles_at((uint64_t)item * STRIPE * 2, 0, COLS));
}

static void fp4_stripe(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    bl_value_fp4(&r->k, &r->sums[worker % 1024], r->data + item * STRIPE * COLS * 2, r->data, 4 * STRIPE, COLS,
                 bl_tiles_at((uint64_t)item * STRIPE * 4, 0, COLS));
}

static void byte_stripe(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    bl_value_bytes(&r->sums[worker % 1024], r->data + item * STRIPE * COLS * 2, (uint64_t)item * STRIPE * COLS * 2, STRIPE * COLS * 2);
}

static void row_stripe(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    bl_value_rows(&r->sums[worker % 1024], r->data + item * STRIPE * COLS * 2, (uint64_t)item * (STRIPE * COLS * 2 / 256),
                  STRIPE * COLS * 2 / 256, 256, false);
}

static void chunk(void *arg, int64_t item, int worker)
{
    hash_run *r = arg;
    uint64_t at = (uint64_t)item * BL_CHUNK_BYTES, n = BYTES - at < BL_CHUNK_BYTES ? BYTES - at : BL_CHUNK_BYTES;
    r->chunks[item] = bl_digest_bytes(r->data + at, n);
}

static bl_status run_matrix(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, ROWS / STRIPE, matrix_stripe, r);
    return BL_OK;
}

static bl_status run_fp8(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, ROWS / STRIPE, fp8_stripe, r);
    return BL_OK;
}

static bl_status run_fp4(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, ROWS / STRIPE, fp4_stripe, r);
    return BL_OK;
}

static bl_status run_bytes(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, ROWS / STRIPE, byte_stripe, r);
    return BL_OK;
}

static bl_status run_rows(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, ROWS / STRIPE, row_stripe, r);
    return BL_OK;
}

static bl_status run_chunks(void *arg, bl_error *err)
{
    hash_run *r = arg;
    bl_pool_run(r->b->pool, (int64_t)bl_chunk_count(BYTES), chunk, r);
    return BL_OK;
}

static bl_status body(bench *b, bl_error *err)
{
    static const struct {
        const char *name;
        bl_status (*run)(void *arg, bl_error *err);
    } subjects[] = {{"chunk digests (XXH3-128)", run_chunks},
                    {"value digest, class matrix", run_matrix},
                    {"value digest, fp8 codes", run_fp8},
                    {"value digest, fp4 codes", run_fp4},
                    {"value digest, class bytes", run_bytes},
                    {"value digest, class rows of 256 B", run_rows}};
    int counts[2], n = bench_thread_counts(b, counts);
    hash_run *r = bench_record(b, sizeof *r);
    void *data;
    if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(bench_memory(b, BYTES, &data, err));
    *r = (hash_run){.b = b, .data = data};
    bl_cast_init(&r->k, b->cpu);
    memset(data, 0x3c, BYTES);
    for (int i = 0; i < n; i++) {
        bench_subject s[BENCH_SUBJECTS];
        int k = 0;
        BL_TRY(bench_threads(b, counts[i], err));
        BL_TRY(bench_read_ceiling(b, &s[k++], err));
        BL_TRY(bench_xxh3_ceiling(b, &s[k++], err));
        BL_TRY(bench_sha256_ceiling(b, &s[k++], err));
        for (size_t j = 0; j < sizeof subjects / sizeof *subjects; j++) {
            s[k++] = (bench_subject){.name = subjects[j].name, .run = subjects[j].run, .arg = r, .work = 1e-9 * BYTES, .unit = "GB",
                                     .ceiling = {{0, 1e-9 * BYTES}}, .ceilings = 1};
        }
        BL_TRY(bench_run(b, "digests of 42 MB in memory", s, k, err));
    }
    return BL_OK;
}

int bench_hash(int argc, char **argv)
{
    bench b = {0};
    const char *args[8];
    int count;
    cli_command c = {.program = "baleen bench hash", .usage = "[options]",
                     .summary = "Measures the digests of manifests beside the rates at which memory is read and hashed."};
    int done = bench_begin(&b, &c, NULL, argc, argv, args, &count);
    if (done >= 0) return done;
    bl_error err = {0};
    return bench_end(&b, body(&b, &err), &err);
}
