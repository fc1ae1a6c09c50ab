/* Where threads meet: warps, warpgroups, blocks, barriers. */
#include "tests/emulate/blocks.h"

#include <algorithm>
#include <stdio.h>
#include <string.h>

namespace emu {

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

static std::vector<point> warps, groups; /* warps: by lowest lane of the mask */
static point whole[MOST_RANKS];
static barrier named[MOST_RANKS][NAMED_BARRIERS];
static std::vector<fiber *> at_cluster_barrier;
static unsigned at_cluster, cluster_phase;

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

void prepare_meetings(const shape &s)
{
    prepare_points(warps, s.cluster * MOST_THREADS, LANES);
    prepare_points(groups, s.cluster * (MOST_THREADS / GROUP), GROUP);
    for (unsigned r = 0; r < s.cluster; r++) prepare_point(whole[r], s.threads);
}

void begin_meetings(const shape &s)
{
    at_cluster = cluster_phase = 0;
    for (unsigned r = 0; r < s.cluster; r++)
        for (barrier &b : named[r]) b.arrived = 0;
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
    meet(warps[warp * LANES + (unsigned)__builtin_ctz(mask)], lane, LANES, (unsigned)__builtin_popcount(mask), what, mask, in, out,
         in_bytes, out_bytes, f);
}

void meet_group(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f)
{
    meet(groups[here.rank * (MOST_THREADS / GROUP) + here.thread / GROUP], here.thread % GROUP, GROUP, GROUP, what, 0, in, out, in_bytes, out_bytes, f);
}

void meet_block(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f)
{
    meet(whole[here.rank], here.thread, here.threads, here.threads, what, 0, in, out, in_bytes, out_bytes, f);
}

void sync_warp(uint32_t mask)
{
    meet_warp("a warp", mask, NULL, NULL, 0, 0, [](const void *, void *) {});
}

/* ---- barriers */

static barrier &arrive(int id, unsigned threads)
{
    if (id < 0 || id >= NAMED_BARRIERS) fail("has no such barrier");
    barrier &b = named[here.rank][id];
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
    if (self->cluster_phase++ != cluster_phase) fail("arrives twice at the cluster's barrier");
    if (++at_cluster < here.threads * here.cluster) return;
    at_cluster = 0;
    cluster_phase++;
    for (fiber *f : at_cluster_barrier) make_ready(f);
    at_cluster_barrier.clear();
}

void cluster_wait()
{
    if (self->cluster_phase == cluster_phase) return;
    at_cluster_barrier.push_back(self);
    leave("the cluster's barrier", PARKED);
}

} // namespace emu
