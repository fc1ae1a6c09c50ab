/* Ceilings that are passes over memory: copy, read, hash. Each thread takes one contiguous part. */
#include "tools/bench/state.h"
#include "tools/memory_pass.h"

#include <openssl/evp.h>
#include <string.h>
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* XXH3 for the best vectors this CPU has, as verify/digest.c takes it */
#endif
#endif
#include <xxhash.h>

enum { TRIES = 4 }; /* of each way */

/* ---- parts */

/* One core keeps more reads in flight when it walks several places at once. */
static inline __attribute__((always_inline)) void read_streams(const uint8_t *src, size_t bytes, uint64_t *sink, size_t streams)
{
    uint64_t x[8] = {0}, v[8];
    size_t each = bytes / streams / 64 * 64;
    for (size_t i = 0; i < each; i += 64)
        for (size_t k = 0; k < streams; k++) {
            const uint8_t *p = src + k * each + i;
            __builtin_prefetch(p + 1024);
            memcpy(v, p, sizeof v);
            for (int j = 0; j < 8; j++) x[j] ^= v[j];
        }
    for (int j = 0; j < 8; j++) *sink ^= x[j];
}

static void read_1(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    read_streams(src, bytes, sink, 1);
}

static void read_4(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    read_streams(src, bytes, sink, 4);
}

static void read_8(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    read_streams(src, bytes, sink, 8);
}

static void xxh3_part(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    *sink ^= XXH3_128bits(src, bytes).low64;
}

static void sha256_part(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(src, bytes, digest, &n, EVP_sha256(), NULL)) *sink ^= digest[0];
}

/* ---- passes */

static bl_status run_pass(void *arg, bl_error *err)
{
    memory_pass_run(arg);
    return BL_OK;
}

/* The fastest of n ways to do the same. */
static bl_status make_pass(bench *b, bench_subject *s, double bytes, const memory_way *ways, int n, bl_error *err)
{
    struct bench_state *st = b->state;
    for (int i = 0; i < 2; i++)
        if (!st->pass[i]) BL_TRY(bench_memory(b, BENCH_PASS, &st->pass[i], err));
    memory_pass *m = bench_record(b, sizeof *m);
    if (!m) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *m = (memory_pass){.pool = b->pool, .dst = st->pass[0], .src = st->pass[1], .bytes = BENCH_PASS, .part = ways->part};
    const memory_way *way = n > 1 ? memory_pass_fastest(m, ways, n, TRIES, NULL) : ways;
    *s = (bench_subject){.name = way->name, .run = run_pass, .arg = m, .work = 1e-9 * bytes, .unit = "GB"};
    return BL_OK;
}

bl_status bench_copy_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    int n;
    const memory_way *ways = memory_copies(&n);
    return make_pass(b, s, 2.0 * BENCH_PASS, ways, n, err);
}

bl_status bench_read_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const memory_way ways[] = {{"read (1 stream)", read_1}, {"read (4 streams)", read_4}, {"read (8 streams)", read_8}};
    return make_pass(b, s, BENCH_PASS, ways, sizeof ways / sizeof ways[0], err);
}

bl_status bench_xxh3_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const memory_way way = {"XXH3-128", xxh3_part};
    return make_pass(b, s, BENCH_PASS, &way, 1, err);
}

bl_status bench_sha256_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const memory_way way = {"SHA-256", sha256_part};
    return make_pass(b, s, BENCH_PASS, &way, 1, err);
}
