#include "tests/emulate/engine.h"

#include "tests/emulate/blocks.h"
#include "tests/emulate/fibers.h"

#include <algorithm>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vector>

namespace emu {

place here;

struct event {
    uint64_t due;
    std::function<void()> work;
    fiber *of; /* whose next release waits for it, or NULL */
};

enum order { ANY, NEWEST, UNEVEN, ORDERS };
enum delays { MIXED, SOON, LATE, DELAYS };

static struct {
    const char *name;
    shape s;
    const borrowed<void()> *body;
    order threads;
    delays copies;
    uint64_t random, launches, steps;
    unsigned living, rank /* whose turn it was */, stay /* there, so often */, slow_rank;
    void *driver; /* the stack of what drives */
    std::vector<fiber> fibers;
    std::vector<fiber *> waiting;
    std::vector<event> pending;
} now;

running_block blocks[MOST_RANKS];
fiber *self;

/* ---- random numbers */

static uint64_t next_random()
{
    now.random ^= now.random >> 12;
    now.random ^= now.random << 25;
    now.random ^= now.random >> 27;
    return now.random * 0x2545f4914f6cdd1dull >> 11;
}

unsigned below(unsigned n)
{
    return (unsigned)((next_random() & 0xffffffff) * n >> 32);
}

static uint64_t seed()
{
    const char *s = getenv("EMULATE_SEED");
    return s ? strtoull(s, NULL, 10) : 1;
}

/* ---- ends */

[[noreturn]] static void end(const place &p, const char *how, const char *what)
{
    fflush(stdout);
    fprintf(stderr, "emulation: %s: block %u,%u,%u thread %u %s%s\n", now.name, p.block[0], p.block[1], p.block[2], p.thread, how, what);
    _exit(3);
}

void fail(const char *what)
{
    end(here, "", what);
}

[[noreturn]] static void deadlock()
{
    for (const fiber &f : now.fibers)
        if (f.is != ENDED) end(f.where, "waits for ever: ", f.what);
    abort();
}

/* ---- what runs next */

void make_ready(fiber *f)
{
    f->is = READY;
    blocks[f->where.rank].ready.push_back(f);
}

/* Of those that wait until something holds; all: also the slow ones. */
static bool wake(bool all)
{
    bool any = false;
    for (size_t i = 0; i < now.waiting.size();) {
        fiber *f = now.waiting[i];
        if ((f->slow && !all) || !(*f->done)()) {
            i++;
            continue;
        }
        now.waiting[i] = now.waiting.back();
        now.waiting.pop_back();
        make_ready(f);
        any = true;
    }
    return any;
}

static void do_event(size_t i)
{
    const event e = std::move(now.pending[i]);
    if (i + 1 < now.pending.size()) now.pending[i] = std::move(now.pending.back());
    now.pending.pop_back();
    e.work();
    if (e.of) e.of->begun--;
}

/* A block of which a thread is ready, the slow one only if there is no other; any, if there is none. */
static unsigned pick_rank()
{
    const unsigned from = below(now.s.cluster);
    unsigned found = from;
    for (unsigned i = 0; i < now.s.cluster; i++) {
        const unsigned rank = (from + i) % now.s.cluster;
        if (blocks[rank].ready.empty()) continue;
        found = rank;
        if (rank != now.slow_rank) break;
    }
    return found;
}

/* A thread that is ready, often of the block whose turn it was; NULL: there is none. */
static fiber *take_ready()
{
    unsigned rank = now.rank;
    if (now.s.cluster > 1 && (blocks[rank].ready.empty() || rank == now.slow_rank || below(now.stay) == 0)) rank = pick_rank();
    std::vector<fiber *> &ready = blocks[rank].ready;
    if (ready.empty()) return NULL;
    now.rank = rank;
    if (now.threads != NEWEST || below(16) == 0) std::swap(ready[below((unsigned)ready.size())], ready.back());
    if (ready.back()->slow)
        for (fiber *&f : ready)
            if (!f->slow) {
                std::swap(f, ready.back());
                break;
            }
    fiber *f = ready.back();
    ready.pop_back();
    return f;
}

/* NULL: the cluster has ended. */
static fiber *next_fiber()
{
    for (;;) {
        now.steps++;
        if (!now.pending.empty() && below(4) == 0) {
            const size_t i = below((unsigned)now.pending.size());
            if (now.pending[i].due <= now.steps) do_event(i);
        }
        if (!now.waiting.empty() && below(64) == 0) wake(false);
        if (fiber *f = take_ready()) {
            if (!f->slow || !wake(false)) return f;
            make_ready(f); /* what it has done lets others go on */
            continue;
        }
        if (wake(false) || wake(true)) continue;
        if (!now.pending.empty()) do_event(below((unsigned)now.pending.size()));
        else if (now.living == 0) return NULL;
        else deadlock();
    }
}

/* ---- switching */

static void fiber_start()
{
    (*now.body)();
    fiber *f = self;
    f->is = ENDED;
    now.living--;
    blocks[f->where.rank].living--;
    give_stack(f->stack);
    emu_switch(&f->sp, now.driver);
    __builtin_unreachable();
}

static void resume(fiber *f)
{
    if (!f->stack) {
        f->stack = take_stack();
        f->sp = begin_stack(f->stack, fiber_start);
    }
    self = f;
    here = f->where;
    blocks[here.rank].begun = true;
    if (here.rank) borrow_variables(blocks[here.rank].thread);
    emu_switch(&now.driver, f->sp);
    if (f->where.rank) borrow_variables(blocks[0].thread);
}

/* Until the cluster has ended. */
static void drive()
{
    while (fiber *f = next_fiber()) resume(f);
}

/* Lets others run; self is on some list. */
void leave(const char *what, state is)
{
    fiber *f = self;
    f->is = is;
    f->what = what;
    emu_switch(&f->sp, now.driver);
}

static sem_t lent; /* the newest thread's variables */

static void *lend_variables(void *block)
{
    find_memory(*(running_block *)block);
    sem_post(&lent);
    for (;;) pause();
}

/* So many blocks have memory and, but the first, OS threads that lend them theirs. */
static void prepare_blocks(unsigned n)
{
    static unsigned made;
    for (; made < n; made++) {
        pthread_t t;
        if (made == 0) {
            find_memory(blocks[0]);
            sem_init(&lent, 0, 0);
        } else {
            if (pthread_create(&t, NULL, lend_variables, &blocks[made])) abort();
            sem_wait(&lent);
        }
    }
}

/* ---- waiting */

void wait_until(const char *what, borrowed<bool()> done)
{
    if (done()) return;
    self->done = &done;
    now.waiting.push_back(self);
    leave(what, WAITING);
}

void later(std::function<void()> work, bool ordered)
{
    const uint64_t soon = below(4) == 0 ? 0 : below(1u << below(14));
    const uint64_t delay = now.copies == SOON ? 0 : now.copies == LATE ? UINT64_MAX / 2 : below(16) == 0 ? UINT64_MAX / 2 : soon;
    if (delay == 0) {
        work();
        return;
    }
    self->begun += ordered;
    now.pending.push_back({now.steps + delay, std::move(work), ordered ? self : NULL});
}

/* ---- launches */

static void prepare_cluster(unsigned cluster)
{
    const shape &s = now.s;
    const unsigned across = s.blocks[0] / s.cluster, slow = below(s.threads * s.cluster / LANES + 1);
    const bool slow_block = s.cluster > 1 && below(2);
    now.living = s.threads * s.cluster;
    now.rank = below(s.cluster);
    now.slow_rank = now.threads == UNEVEN && slow_block ? below(s.cluster) : (unsigned)MOST_RANKS;
    begin_meetings(s);
    for (unsigned r = 0; r < s.cluster; r++) {
        running_block &b = blocks[r];
        prepare_memory(b, s.dynamic_bytes);
        b.living = s.threads;
    }
    for (unsigned i = 0; i < now.living; i++) {
        fiber &f = now.fibers[i];
        const unsigned rank = i / s.threads, x = cluster % across * s.cluster + rank, yz = cluster / across;
        f.where = {i % s.threads, rank, {x, yz % s.blocks[1], yz / s.blocks[1]}, {s.blocks[0], s.blocks[1], s.blocks[2]}, s.threads,
                   s.cluster, i};
        f.is = READY;
        f.stack = NULL;
        f.cluster_phase = f.begun = 0;
        f.slow = now.threads == UNEVEN && !slow_block && i / LANES == slow;
        f.what = "its turn";
        blocks[rank].ready.push_back(&f);
    }
}

static uint64_t number;
static void (*check_end)();

uint64_t cluster_number()
{
    return number;
}

void at_cluster_end(void (*check)())
{
    check_end = check;
}

void run(const char *kernel, const shape &s, borrowed<void()> body)
{
    const unsigned all = s.threads * s.cluster;
    now.name = kernel;
    if (s.threads == 0 || s.threads > MOST_THREADS || s.cluster == 0 || s.cluster > MOST_RANKS || s.blocks[0] % s.cluster ||
        s.dynamic_bytes > MOST_DYNAMIC) {
        fprintf(stderr, "emulation: %s: impossible launch\n", kernel);
        _exit(3);
    }
    now.s = s;
    now.body = &body;
    now.random = (seed() + 1) * 0x9e3779b97f4a7c15ull + ++now.launches * 0xd1342543de82ef95ull;
    for (int i = 0; i < 4; i++) next_random();
    now.threads = (order)below(ORDERS);
    now.copies = (delays)below(DELAYS);
    now.stay = 4u << below(7);
    prepare_blocks(s.cluster);
    if (now.fibers.size() < all) now.fibers.resize(all);
    prepare_meetings(s);
    std::vector<unsigned> clusters(s.blocks[0] / s.cluster * s.blocks[1] * s.blocks[2]);
    for (unsigned i = 0; i < clusters.size(); i++) clusters[i] = i;
    for (unsigned i = (unsigned)clusters.size(); i > 1; i--) std::swap(clusters[below(i)], clusters[i - 1]);
    for (unsigned c : clusters) {
        number++;
        prepare_cluster(c);
        drive();
        if (check_end) check_end();
    }
}

} // namespace emu
