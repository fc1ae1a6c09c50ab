#include "tools/memory_pass.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { MOST_THREADS = 8, COPY_TRIES = 2, COPY_BYTES = 8 << 20 /* of a thread; 128 MiB in all: more than most caches */ };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- copies */

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

const memory_way *memory_copies(int *count)
{
    static const memory_way ways[] = {
        {"copy (memcpy)", copy_memcpy},
#if defined(__x86_64__)
        {"copy (streaming stores)", copy_stream},
        {"copy (streaming stores, prefetch)", copy_stream_prefetch},
#endif
    };
    *count = sizeof ways / sizeof *ways;
    return ways;
}

/* ---- passes */

static void run_part(void *arg, int64_t item, int worker)
{
    memory_pass *m = arg;
    const size_t parts = (size_t)bl_pool_threads(m->pool), each = m->bytes / parts / 4096 * 4096, at = each * (size_t)item;
    m->part(m->dst + at, m->src + at, item == (int64_t)parts - 1 ? m->bytes - at : each, &m->sink[item % 64]);
}

void memory_pass_run(memory_pass *m)
{
    bl_pool_run(m->pool, bl_pool_threads(m->pool), run_part, m);
}

const memory_way *memory_pass_fastest(memory_pass *m, const memory_way *ways, int n, int tries, double *seconds)
{
    double best = 0;
    const memory_way *fastest = NULL;
    for (int i = 0; i < n * (tries + 1); i++) {
        const memory_way *way = &ways[i / (tries + 1)];
        m->part = way->part;
        const double begin = now();
        memory_pass_run(m);
        const double took = now() - begin;
        if (i % (tries + 1) == 0 || (fastest && took >= best)) continue;
        best = took;
        fastest = way;
    }
    m->part = fastest->part;
    if (seconds) *seconds = best;
    return fastest;
}

static void fill(uint8_t *dst, const uint8_t *src, size_t bytes, uint64_t *sink)
{
    memset(dst, 1, bytes);
}

double memory_copy_rate(int jobs, int *used)
{
    int threads = bl_cpus_available(), n;
    threads = jobs > 0 && jobs < threads ? jobs : threads;
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    *used = threads;
    memory_pass m = {.bytes = (size_t)threads * COPY_BYTES};
    double seconds = 0;
    uint8_t *memory = mmap(NULL, 2 * m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    if (bl_pool_create(&m.pool, threads, NULL) == BL_OK) {
        m.part = fill;
        for (int half = 1; half >= 0; half--) { /* each page by the thread that copies it */
            m.dst = memory + (size_t)half * m.bytes;
            memory_pass_run(&m);
        }
        m.src = memory + m.bytes;
        const memory_way *ways = memory_copies(&n);
        memory_pass_fastest(&m, ways, n, COPY_TRIES, &seconds);
        bl_pool_destroy(&m.pool);
    }
    munmap(memory, 2 * m.bytes);
    return seconds > 0 ? (double)m.bytes / seconds : 0;
}
