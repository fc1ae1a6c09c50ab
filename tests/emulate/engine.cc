#include "tests/emulate/engine.h"

#include "tests/emulate/fibers.h"

#include <algorithm>
#include <link.h>
#include <memory>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace emu {

place here;

enum state { READY, PARKED, WAITING, ENDED };

struct fiber {
    place where;
    void *stack, *sp;
    state is;
    bool slow; /* runs only when no other can */
    const char *what; /* it waits for */
    const borrowed<bool()> *done;
    unsigned cluster_phase, begun; /* begun: ordered events that are not done */
};

/* Where threads meet. */
struct point {
    const char *what;
    uint32_t mask;
    unsigned count;
    size_t in_bytes, out_bytes;
    std::vector<fiber *> who; /* by lane */
    std::vector<const void *> in;
    std::vector<void *> out;
};

struct barrier {
    unsigned threads, arrived;
    std::vector<fiber *> waiting;
};

struct event {
    uint64_t due;
    std::function<void()> work;
    fiber *of; /* whose next release waits for it, or NULL */
};

/* A block's memory and OS thread. */
struct place_of_block {
    char *dynamic, *statics; /* beginning of the variables' window */
    char *variables;         /* those of the program, on this OS thread */
    bool begun;              /* a thread has run */
    unsigned dynamic_bytes, living;
    sem_t turn;
    void *sp; /* of the OS thread */
    std::vector<fiber *> ready;
    barrier named[NAMED_BARRIERS];
    point all;
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
    unsigned living, at_cluster, cluster_phase, rank /* whose turn it was */;
    fiber *chosen; /* what the OS thread that has the turn shall run */
    std::vector<fiber> fibers;
    std::vector<fiber *> waiting, at_cluster_barrier;
    std::vector<event> pending;
    std::vector<point> warps, groups; /* warps: by lowest lane of the mask */
} now;

static place_of_block blocks[MOST_RANKS];
static fiber *self;

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

static void make_ready(fiber *f)
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

/* A thread that is ready, mostly of the block whose turn it was; NULL: there is none. */
static fiber *take_ready()
{
    unsigned rank = now.rank;
    if (now.s.cluster > 1 && (blocks[rank].ready.empty() || below(128) == 0)) {
        const unsigned from = below(now.s.cluster);
        for (unsigned i = 0; i < now.s.cluster; i++)
            if (!blocks[(from + i) % now.s.cluster].ready.empty()) {
                rank = (from + i) % now.s.cluster;
                break;
            }
    }
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
        if (fiber *f = take_ready()) return f;
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
    emu_switch(&f->sp, blocks[f->where.rank].sp);
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
    emu_switch(&blocks[f->where.rank].sp, f->sp);
}

/* Until the cluster has ended; of other OS threads than the first for ever. */
static void drive(unsigned rank)
{
    for (;;) {
        fiber *f = next_fiber();
        const unsigned to = f ? f->where.rank : 0;
        if (to != rank) {
            now.chosen = f;
            sem_post(&blocks[to].turn);
            sem_wait(&blocks[rank].turn);
            f = now.chosen;
        }
        if (!f) return;
        resume(f);
    }
}

/* Lets others run; self is on some list. */
static void leave(const char *what, state is)
{
    fiber *f = self;
    f->is = is;
    f->what = what;
    emu_switch(&f->sp, blocks[f->where.rank].sp);
}

/* The program's thread_local variables, its first part of a thread's. */
static size_t variables_bytes, variables_aligned;

static int read_header(struct dl_phdr_info *program, size_t, void *)
{
    for (int i = 0; i < program->dlpi_phnum; i++)
        if (program->dlpi_phdr[i].p_type == PT_TLS) {
            variables_bytes = program->dlpi_phdr[i].p_memsz;
            variables_aligned = program->dlpi_phdr[i].p_align;
        }
    return 1; /* the program is the first */
}

static void find_statics(unsigned rank)
{
    alignas(1024) static thread_local char anchor;
    char *const self_at = (char *)__builtin_thread_pointer();
    if (!variables_bytes) dl_iterate_phdr(read_header, NULL);
    const size_t up = variables_aligned - 1;
#if defined(__x86_64__)
    blocks[rank].variables = self_at - ((variables_bytes + up) & ~up);
#else
    blocks[rank].variables = self_at + ((16 + up) & ~up);
#endif
    blocks[rank].statics = (char *)((uintptr_t)&anchor - (1 << 19));
    if ((size_t)(&anchor - blocks[rank].variables) >= variables_bytes) abort();
}

static void *be_block(void *rank)
{
    const unsigned r = (unsigned)(uintptr_t)rank;
    find_statics(r);
    sem_post(&blocks[0].turn);
    for (;;) {
        sem_wait(&blocks[r].turn);
        resume(now.chosen);
        drive(r);
    }
}

enum : size_t { MEMORY = 1 << 18, FIRST = 1024, STATICS = 1 << 20, RANK_SHIFT = 24 };

/* So many blocks have memory and, but the first, OS threads. */
static void prepare_blocks(unsigned n)
{
    static unsigned made;
    for (; made < n; made++) {
        place_of_block &b = blocks[made];
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *p = (char *)mmap(NULL, MEMORY + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + MEMORY, page, PROT_NONE)) abort();
        b.dynamic = p + MEMORY;
        sem_init(&b.turn, 0, 0);
        pthread_t t;
        if (made == 0) {
            find_statics(0);
        } else {
            if (pthread_create(&t, NULL, be_block, (void *)(uintptr_t)made)) abort();
            sem_wait(&blocks[0].turn);
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

/* ---- meetings */

static void prepare_point(point &p, size_t n)
{
    p.count = 0;
    p.what = NULL;
    p.who.resize(n);
    p.in.resize(n);
    p.out.resize(n);
}

static void prepare_points(std::vector<point> &p, size_t count, size_t n)
{
    const size_t from = p.size();
    if (count <= from) return;
    p.resize(count);
    for (size_t i = from; i < count; i++) prepare_point(p[i], n);
}

/* `index` of n comes, of whom `need` will. */
static void meet(point &p, unsigned index, unsigned n, unsigned need, const char *what, uint32_t mask, const void *in, void *out,
                 size_t in_bytes, size_t out_bytes, const meeting &f)
{
    if (p.count == 0) {
        p.what = what;
        p.mask = mask;
        p.in_bytes = in_bytes;
        p.out_bytes = out_bytes;
        std::fill(p.who.begin(), p.who.end(), (fiber *)NULL);
    }
    if (p.mask != mask || strcmp(p.what, what) || p.in_bytes != in_bytes || p.out_bytes != out_bytes) {
        fprintf(stderr, "emulation: threads that should meet are at %s (mask %x) and %s (mask %x)\n", p.what, p.mask, what, mask);
        fail(what);
    }
    p.who[index] = self;
    p.in[index] = in;
    p.out[index] = out;
    if (++p.count < need) {
        leave(what, PARKED);
        return;
    }
    static std::vector<char> all_in, all_out;
    all_in.assign(n * in_bytes, 0);
    all_out.assign(n * out_bytes, 0);
    for (unsigned i = 0; i < n; i++)
        if (p.who[i] && in_bytes) memcpy(&all_in[i * in_bytes], p.in[i], in_bytes);
    f(all_in.data(), all_out.data());
    p.count = 0;
    for (unsigned i = 0; i < n; i++) {
        if (!p.who[i]) continue;
        if (out_bytes) memcpy(p.out[i], &all_out[i * out_bytes], out_bytes);
        if (p.who[i] != self) make_ready(p.who[i]);
    }
}

void meet_warp(const char *what, uint32_t mask, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f)
{
    const unsigned lane = here.thread % LANES, warp = here.rank * (MOST_THREADS / LANES) + here.thread / LANES, left = here.threads - here.thread / LANES * LANES;
    if (left < LANES) mask &= (1u << left) - 1;
    if (!(mask >> lane & 1)) fail("is not in its mask");
    meet(now.warps[warp * LANES + (unsigned)__builtin_ctz(mask)], lane, LANES, (unsigned)__builtin_popcount(mask), what, mask, in, out,
         in_bytes, out_bytes, f);
}

void meet_group(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f)
{
    meet(now.groups[here.rank * (MOST_THREADS / GROUP) + here.thread / GROUP], here.thread % GROUP, GROUP, GROUP, what, 0, in, out, in_bytes, out_bytes, f);
}

void meet_block(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f)
{
    meet(blocks[here.rank].all, here.thread, here.threads, here.threads, what, 0, in, out, in_bytes, out_bytes, f);
}

void sync_warp(uint32_t mask)
{
    meet_warp("a warp", mask, NULL, NULL, 0, 0, [](const void *, void *) {});
}

/* ---- barriers */

static barrier &arrive(int id, unsigned threads)
{
    if (id < 0 || id >= NAMED_BARRIERS) fail("has no such barrier");
    barrier &b = blocks[here.rank].named[id];
    if (threads == 0) threads = here.threads;
    if (b.arrived && b.threads != threads) fail("is at a barrier of other threads");
    b.threads = threads;
    if (++b.arrived < threads) return b;
    b.arrived = 0;
    for (fiber *f : b.waiting) make_ready(f);
    b.waiting.clear();
    return b;
}

void barrier_sync(int id, unsigned threads)
{
    static const char *const names[NAMED_BARRIERS] = {"barrier 0", "barrier 1", "barrier 2", "barrier 3", "barrier 4", "barrier 5",
        "barrier 6", "barrier 7", "barrier 8", "barrier 9", "barrier 10", "barrier 11", "barrier 12", "barrier 13", "barrier 14", "barrier 15"};
    barrier &b = arrive(id, threads);
    if (!b.arrived) return;
    b.waiting.push_back(self);
    leave(names[id], PARKED);
}

void barrier_arrive(int id, unsigned threads)
{
    arrive(id, threads);
}

void cluster_arrive(bool release)
{
    fiber *f = self;
    if (release) wait_until("its own arrivals elsewhere", [f] { return f->begun == 0; });
    if (self->cluster_phase++ != now.cluster_phase) fail("arrives twice at the cluster's barrier");
    if (++now.at_cluster < here.threads * here.cluster) return;
    now.at_cluster = 0;
    now.cluster_phase++;
    for (fiber *f : now.at_cluster_barrier) make_ready(f);
    now.at_cluster_barrier.clear();
}

void cluster_wait()
{
    if (self->cluster_phase == now.cluster_phase) return;
    now.at_cluster_barrier.push_back(self);
    leave("the cluster's barrier", PARKED);
}

/* ---- shared memory */

uint32_t shared_address(const void *p)
{
    const place_of_block &b = blocks[here.rank];
    const size_t in_dynamic = (size_t)((const char *)p - b.dynamic), in_statics = (size_t)((const char *)p - b.statics);
    if (in_dynamic <= b.dynamic_bytes) return (uint32_t)(here.rank << RANK_SHIFT | (FIRST + in_dynamic));
    if (in_statics >= STATICS) fail("takes the shared address of what is not shared");
    return (uint32_t)(here.rank << RANK_SHIFT | (STATICS + in_statics));
}

void *at(uint32_t address)
{
    const uint32_t rank = address >> RANK_SHIFT, offset = address & ((1 << RANK_SHIFT) - 1);
    if (rank >= here.cluster) fail("uses an address of no block");
    const place_of_block &b = blocks[rank];
    if (!b.begun) fail("or its copy uses shared memory of a block that has not begun");
    if (b.living == 0) fail("or its copy uses shared memory of a block that has ended");
    if (offset >= STATICS) return b.statics + (offset - STATICS);
    if (offset < FIRST || offset - FIRST >= b.dynamic_bytes) fail("uses an address outside of shared memory");
    return b.dynamic + (offset - FIRST);
}

uint32_t map_address(uint32_t address, unsigned rank)
{
    if (rank >= here.cluster) fail("maps to no block of the cluster");
    return (address & ((1 << RANK_SHIFT) - 1)) | rank << RANK_SHIFT;
}

void *dynamic_memory()
{
    return blocks[here.rank].dynamic;
}

/* ---- launches */

/* The end of dynamic memory is, but for what alignment needs, that of the mapping. */
static void prepare_memory(place_of_block &b, unsigned bytes)
{
    char *end = (char *)(((uintptr_t)b.dynamic + b.dynamic_bytes + 1023) & ~(uintptr_t)1023);
    b.dynamic = end - (bytes + 1023) / 1024 * 1024;
    b.dynamic_bytes = bytes;
    memset(b.dynamic, 0xa5, bytes);
    if (below(4) == 0) memset(b.variables, 0xa5, variables_bytes); /* all are kernels'; else the last block's are left */
    b.begun = false;
}

static void prepare_cluster(unsigned cluster)
{
    const shape &s = now.s;
    const unsigned across = s.blocks[0] / s.cluster, slow = below(s.threads * s.cluster / LANES + 1);
    now.living = s.threads * s.cluster;
    now.at_cluster = now.cluster_phase = now.rank = 0;
    for (unsigned r = 0; r < s.cluster; r++) {
        place_of_block &b = blocks[r];
        prepare_memory(b, s.dynamic_bytes);
        b.living = s.threads;
        for (barrier &n : b.named) n.arrived = 0;
    }
    for (unsigned i = 0; i < now.living; i++) {
        fiber &f = now.fibers[i];
        const unsigned rank = i / s.threads, x = cluster % across * s.cluster + rank, yz = cluster / across;
        f.where = {i % s.threads, rank, {x, yz % s.blocks[1], yz / s.blocks[1]}, {s.blocks[0], s.blocks[1], s.blocks[2]}, s.threads,
                   s.cluster, i};
        f.is = READY;
        f.stack = NULL;
        f.cluster_phase = f.begun = 0;
        f.slow = now.threads == UNEVEN && i / LANES == slow;
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
        s.dynamic_bytes > MEMORY - FIRST) {
        fprintf(stderr, "emulation: %s: impossible launch\n", kernel);
        _exit(3);
    }
    now.s = s;
    now.body = &body;
    now.random = (seed() + 1) * 0x9e3779b97f4a7c15ull + ++now.launches * 0xd1342543de82ef95ull;
    for (int i = 0; i < 4; i++) next_random();
    now.threads = (order)below(ORDERS);
    now.copies = (delays)below(DELAYS);
    prepare_blocks(s.cluster);
    if (now.fibers.size() < all) now.fibers.resize(all);
    prepare_points(now.warps, s.cluster * MOST_THREADS, LANES);
    prepare_points(now.groups, s.cluster * (MOST_THREADS / GROUP), GROUP);
    for (unsigned r = 0; r < s.cluster; r++) prepare_point(blocks[r].all, s.threads);
    std::vector<unsigned> clusters(s.blocks[0] / s.cluster * s.blocks[1] * s.blocks[2]);
    for (unsigned i = 0; i < clusters.size(); i++) clusters[i] = i;
    for (unsigned i = (unsigned)clusters.size(); i > 1; i--) std::swap(clusters[below(i)], clusters[i - 1]);
    for (unsigned c : clusters) {
        number++;
        prepare_cluster(c);
        drive(0);
        if (check_end) check_end();
    }
}

} // namespace emu
