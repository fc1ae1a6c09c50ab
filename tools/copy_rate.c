#include "tools/copy_rate.h"

#include "formats/pool.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PART ((size_t)8 << 20) /* that each thread copies */
#define PIECES 4                /* of a part, so that no thread waits long for another */
#define TRIES 3
#define SECONDS 0.1 /* no further try after that */
#define MOST_THREADS 8 /* 128 MiB in all: more than most caches, and less than the command took itself */

typedef struct job {
    unsigned char *from, *to;
} job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void touch_piece(void *arg, int64_t i, int worker)
{
    const job *j = arg;
    (void)worker;
    memset(j->from + (size_t)i * (PART / PIECES), 1, PART / PIECES);
    memset(j->to + (size_t)i * (PART / PIECES), 2, PART / PIECES);
}

static void copy_piece(void *arg, int64_t i, int worker)
{
    const job *j = arg;
    (void)worker;
    memcpy(j->to + (size_t)i * (PART / PIECES), j->from + (size_t)i * (PART / PIECES), PART / PIECES);
}

double copy_rate(int jobs, int *used)
{
    int threads = bl_cpus_available();
    threads = jobs > 0 && jobs < threads ? jobs : threads;
    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    *used = threads;
    const size_t half = (size_t)threads * PART;
    double best = 0, start;
    bl_pool *pool = NULL;
    void *memory = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return 0;
    }
    if (bl_pool_create(&pool, threads, NULL) == BL_OK) {
        job j = {.from = memory, .to = (unsigned char *)memory + half};
        start = now();
        bl_pool_run(pool, threads * PIECES, touch_piece, &j);
        for (int i = 0; i < TRIES && (i == 0 || now() - start < SECONDS); i++) {
            const double begin = now();
            bl_pool_run(pool, threads * PIECES, copy_piece, &j);
            const double seconds = now() - begin;
            best = seconds > 0 && (double)half / seconds > best ? (double)half / seconds : best;
        }
        bl_pool_destroy(&pool);
    }
    munmap(memory, 2 * half);
    return best;
}
