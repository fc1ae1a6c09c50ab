/* Ceilings that are passes over memory: copy, read, hash. Each thread takes one contiguous part. */
#include "tools/bench/state.h"

#include <openssl/evp.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* XXH3 for the best vectors this CPU has, as verify/digest.c takes it */
#endif
#endif
#include <xxhash.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

typedef struct memory_pass {
    bench *b;
    uint8_t *dst, *src;
    void (*part)(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink);
    int parts;
    uint64_t sink[64]; /* what a pass computed, so that it is not optimised away */
} memory_pass;

/* ---- parts */

static void copy_memcpy(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    memcpy(dst, src, bytes);
}

#if defined(__x86_64__)
static inline __attribute__((always_inline)) void stream(uint8_t *dst, const uint8_t *src, size_t bytes, int ahead)
{
    for (size_t i = 0; i < bytes; i += 64) {
        if (ahead) __builtin_prefetch(src + i + ahead);
        const __m128i *s = (const __m128i *)(src + i);
        __m128i a = _mm_load_si128(s), b = _mm_load_si128(s + 1), c = _mm_load_si128(s + 2), d = _mm_load_si128(s + 3);
        __m128i *o = (__m128i *)(dst + i);
        _mm_stream_si128(o, a);
        _mm_stream_si128(o + 1, b);
        _mm_stream_si128(o + 2, c);
        _mm_stream_si128(o + 3, d);
    }
    _mm_sfence();
}

static void copy_stream(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    stream(dst, src, bytes, 0);
}

static void copy_stream_prefetch(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    stream(dst, src, bytes, 2048);
}
#endif

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

static void run_part(void *arg, int64_t item, int worker)
{
    memory_pass *m = arg;
    size_t each = BENCH_PASS / (size_t)m->parts / 4096 * 4096, at = each * (size_t)item;
    size_t bytes = item == m->parts - 1 ? BENCH_PASS - at : each;
    m->part(m->dst + at, m->src + at, bytes, &m->sink[item % 64]);
}

static bl_status run_pass(void *arg, bl_error *err)
{
    memory_pass *m = arg;
    bl_pool_run(m->b->pool, m->parts, run_part, m);
    return BL_OK;
}

static bl_status make_pass(bench *b, bench_subject *s, const char *name, double bytes,
                           void (*part)(uint8_t *, const uint8_t *, size_t, uint64_t *), bl_error *err)
{
    struct bench_state *st = b->state;
    for (int i = 0; i < 2; i++)
        if (!st->pass[i]) BL_TRY(bench_memory(b, BENCH_PASS, &st->pass[i], err));
    memory_pass *m = bench_record(b, sizeof *m);
    if (!m) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *m = (memory_pass){.b = b, .dst = st->pass[0], .src = st->pass[1], .part = part, .parts = bl_pool_threads(b->pool)};
    *s = (bench_subject){.name = name, .run = run_pass, .arg = m, .work = 1e-9 * bytes, .unit = "GB"};
    return BL_OK;
}

/* Best of a few runs; only chooses which loop is timed later. */
static double quick_time(const bench_subject *s)
{
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        struct timespec t0, t1;
        clock_gettime(CLOCK_MONOTONIC, &t0);
        s->run(s->arg, NULL);
        clock_gettime(CLOCK_MONOTONIC, &t1);
        double t = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
        if (i && t < best) best = t;
    }
    return best;
}

typedef struct way {
    const char *name;
    void (*part)(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink);
} way;

/* The fastest of n ways to do the same. */
static bl_status make_fastest(bench *b, bench_subject *s, double bytes, const way *ways, int n, bl_error *err)
{
    double best = 1e30;
    for (int i = 0; i < n; i++) {
        bench_subject one;
        BL_TRY(make_pass(b, &one, ways[i].name, bytes, ways[i].part, err));
        double t = quick_time(&one);
        if (t < best) {
            best = t;
            *s = one;
        }
    }
    return BL_OK;
}

bl_status bench_copy_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const way ways[] = {
        {"copy (memcpy)", copy_memcpy},
#if defined(__x86_64__)
        {"copy (streaming stores)", copy_stream},
        {"copy (streaming stores, prefetch)", copy_stream_prefetch},
#endif
    };
    return make_fastest(b, s, 2.0 * BENCH_PASS, ways, sizeof ways / sizeof ways[0], err);
}

bl_status bench_read_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const way ways[] = {{"read (1 stream)", read_1}, {"read (4 streams)", read_4}, {"read (8 streams)", read_8}};
    return make_fastest(b, s, BENCH_PASS, ways, sizeof ways / sizeof ways[0], err);
}

bl_status bench_xxh3_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    return make_pass(b, s, "XXH3-128", BENCH_PASS, xxh3_part, err);
}

bl_status bench_sha256_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    return make_pass(b, s, "SHA-256", BENCH_PASS, sha256_part, err);
}
