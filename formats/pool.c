#include "formats/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long an idle worker, or a caller that waits for the last items, spins before it sleeps. Operations of
 * one decode step follow each other within this time, so that a run costs no system call; an idle server soon
 * uses no CPU. */
#define SPIN_NS 100000

#define OPEN 0x80000000u /* of state: items are to be had; the rest counts the workers inside */

typedef struct worker {
    bl_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct bl_pool {
    /* The job: written by the caller while state is 0 or only latecomers that saw no OPEN are inside. */
    void (*fn)(void *arg, int64_t item, int worker);
    void *arg;
    int64_t items;
    /* Each on its own cache line: next is contended by every item, the others are polled. */
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) _Atomic uint32_t state;
    _Alignas(64) _Atomic uint32_t generation; /* bumped for every run; workers wait for it to change */
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t caller_sleeps;
    _Atomic bool stop;
    int threads, started;
    int64_t spin_ns;
    worker *workers;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spin while *word == value, at most ns; true when it changed. */
static bool spin_while(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
    if (ns <= 0) {
        return atomic_load_explicit(word, memory_order_acquire) != value;
    }
    int64_t end = now_ns() + ns;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value) {
                return true;
            }
            relax();
        }
    } while (now_ns() < end);
    return false;
}

static void take_items(bl_pool *p, int index)
{
    int64_t items = p->items, i;
    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < items) {
        p->fn(p->arg, i, index);
    }
}

/* Join the current run if it still deals items. A worker that comes late sees no OPEN and touches nothing of
 * the job. */
static void join(bl_pool *p, int index)
{
    if (atomic_fetch_add_explicit(&p->state, 1, memory_order_acquire) & OPEN) {
        take_items(p, index);
    }
    /* What the items wrote is visible to the caller once the count is back to zero. */
    uint32_t left = atomic_fetch_sub(&p->state, 1) - 1;
    if (left == 0 && atomic_load(&p->caller_sleeps)) {
        futex_wake(&p->state, 1);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    bl_pool *p = w->pool;
    uint32_t seen = 0;
    while (!atomic_load(&p->stop)) {
        if (!spin_while(&p->generation, seen, p->spin_ns)) {
            atomic_fetch_add(&p->sleepers, 1);
            while (atomic_load(&p->generation) == seen) {
                futex_wait(&p->generation, seen);
            }
            atomic_fetch_sub(&p->sleepers, 1);
        }
        seen = atomic_load(&p->generation);
        join(p, w->index);
    }
    return NULL;
}

static void next_generation(bl_pool *p, int wake)
{
    /* Sequentially consistent against a worker that counts itself asleep and then looks at the generation
     * once more. */
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers)) {
        futex_wake(&p->generation, wake);
    }
}

void bl_pool_run(bl_pool *p, int64_t items, void (*fn)(void *arg, int64_t item, int worker), void *arg)
{
    if (!p || p->threads == 1 || items <= 1) {
        for (int64_t i = 0; i < items; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->items = items;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_fetch_or_explicit(&p->state, OPEN, memory_order_release);
    next_generation(p, items - 1 < INT_MAX ? (int)(items - 1) : INT_MAX);
    take_items(p, 0);
    uint32_t left = atomic_fetch_and(&p->state, ~OPEN) & ~OPEN;
    int64_t deadline = 0;
    while (left != 0) {
        if (deadline == 0 || now_ns() < deadline) {
            deadline = deadline ? deadline : now_ns() + p->spin_ns;
            for (int i = 0; i < 32 && left; i++) {
                relax();
                left = atomic_load(&p->state);
            }
            continue;
        }
        atomic_store(&p->caller_sleeps, 1);
        left = atomic_load(&p->state);
        if (left != 0) {
            futex_wait(&p->state, left);
            left = atomic_load(&p->state);
        }
        atomic_store(&p->caller_sleeps, 0);
    }
}

static bl_status start(bl_pool *p, bl_error *err)
{
    /* Signals belong to the program's own threads. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (int i = 1; i < p->threads && rc == 0; i++) {
        p->workers[i] = (worker){.pool = p, .index = i};
        rc = pthread_create(&p->workers[i].thread, NULL, work, &p->workers[i]);
        p->started += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? bl_fail_errno(err, rc == EAGAIN ? ENOMEM : rc, 0, NULL, "starting a thread") : BL_OK;
}

bl_status bl_pool_create(bl_pool **out, int threads, bl_error *err)
{
    *out = NULL;
    int cpus = bl_cpus_available();
    if (threads <= 0) {
        threads = cpus;
    }
    if (threads > BL_POOL_MAX_THREADS) {
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "%d threads asked for, the most is %d", threads,
                       BL_POOL_MAX_THREADS);
    }
    bl_pool *p = aligned_alloc(64, sizeof *p);
    worker *workers = calloc((size_t)threads, sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a pool of %d threads", threads);
    }
    *p = (bl_pool){.threads = threads, .workers = workers};
    p->spin_ns = threads <= cpus ? SPIN_NS : 0; /* spinning would keep the others off the CPUs they share */
    bl_status s = start(p, err);
    if (s != BL_OK) {
        bl_pool_destroy(&p);
    }
    *out = p;
    return s;
}

void bl_pool_destroy(bl_pool **pp)
{
    bl_pool *p = *pp;
    if (!p) {
        return;
    }
    atomic_store(&p->stop, true);
    next_generation(p, INT_MAX);
    for (int i = 1; i <= p->started; i++) {
        pthread_join(p->workers[i].thread, NULL);
    }
    free(p->workers);
    free(p);
    *pp = NULL;
}

int bl_pool_threads(const bl_pool *p)
{
    return p ? p->threads : 1;
}
