/* Products of a warpgroup. One is made in order at some moment from when all threads have asked for it until one waits for it; what it adds
 * to is not to be seen until then. */
#include "kernels/cuda/sm90/instructions.cuh"
#include "tests/emulate/tensor.h"

#include <deque>
#include <memory>
#include <vector>

namespace bl {

enum { GROUP = emu::GROUP, ROWS = 64 };

/* A thread's accumulators that products add to; d shows none of it. */
struct sums {
    float *d;
    std::vector<float> v;
    uint64_t last; /* product that adds to them */
};

struct product {
    int n, keep;
    bool in_registers, by_columns;
    uint64_t a, b;
    unsigned asked; /* by so many threads */
    std::vector<fragment_a> registers;
    sums *to[GROUP];
};

struct thread_state {
    bool ready; /* wgmma_begin since the last wait */
    uint64_t asked;
    std::deque<uint64_t> groups; /* committed: products up to here */
    std::vector<std::unique_ptr<sums>> open;
};

struct warpgroup {
    uint64_t cluster, made; /* products made */
    unsigned early;         /* 1 of so many is made when all have asked for it; 0: none */
    std::deque<product> waiting;
    thread_state thread[GROUP];
};

static std::vector<std::unique_ptr<warpgroup>> all;

static void check_end()
{
    for (const auto &w : all)
        for (const thread_state &t : w->thread)
            if (w->cluster == emu::cluster_number() && !t.open.empty()) emu::fail("or another thread has not waited for its products");
}

static warpgroup &mine()
{
    const unsigned i = (emu::here.rank * emu::MOST_THREADS + emu::here.thread) / GROUP;
    if (emu::here.thread / GROUP * GROUP + GROUP > emu::here.threads) emu::fail("is of no whole warpgroup");
    emu::at_cluster_end(check_end);
    while (all.size() <= i) all.emplace_back(new warpgroup());
    if (all[i]->cluster != emu::cluster_number()) {
        all[i].reset(new warpgroup());
        all[i]->cluster = emu::cluster_number();
        static const unsigned how[3] = {0, 1, 8};
        all[i]->early = how[emu::below(3)];
    }
    return *all[i];
}

/* ---- operands in shared memory, swizzled */

static uint16_t element(uint32_t at)
{
    return *(const uint16_t *)shared_bytes((emu::here.rank << 24 | at) ^ (at >> 7 & 7) << 4, 2);
}

static uint32_t field(uint64_t operand, int shift)
{
    if (operand >> 62 != 1 || operand >> 49 & 7) emu::fail("multiplies an operand of another layout");
    return (uint32_t)(operand >> shift & 0x3fff) << 4;
}

/* Element k of row r, where rows are K. */
static uint16_t by_row(uint64_t operand, int r, int k)
{
    return element(field(operand, 0) + (uint32_t)(r / 8) * field(operand, 32) + (uint32_t)(r % 8 * 128 + k * 2));
}

/* Element k of column c, where rows are of one k. */
static uint16_t by_column(uint64_t operand, int c, int k)
{
    return element(field(operand, 0) + (uint32_t)(k / 8) * field(operand, 32) + (uint32_t)(c / 64) * field(operand, 16) +
                   (uint32_t)(k % 8 * 128 + c % 64 * 2));
}

/* ---- the product. Of row 16 w + g + 8 h thread 32 w + 4 g + t has columns 8 j + 2 t, + 1 in d[4 j + 2 h], and of A the elements 2 t, + 1
 * (2 t + 8, + 9) in register h (h + 2) */

static void make(const product &p)
{
    std::vector<emu::columns_of_b> b((size_t)p.n / emu::WIDE);
    for (int c = 0; c < p.n; c++)
        for (int k = 0; k < emu::STEP; k++)
            emu::set_element(b[(size_t)c / emu::WIDE], k, c % emu::WIDE, p.by_columns ? by_column(p.b, c, k) : by_row(p.b, c, k),
                             emu::BF16);
    for (int row = 0; row < ROWS; row++) {
        const int first = row / 16 * 32 + row % 8 * 4, h = row / 8 % 2;
        emu::row_of_a a;
        for (int k = 0; k < emu::STEP; k++)
            emu::set_element(a, k, p.in_registers ? (uint16_t)(p.registers[(size_t)(first + k % 8 / 2)].r[h + k / 8 * 2] >> k % 2 * 16)
                                                  : by_row(p.a, row, k), emu::BF16);
        for (int j = 0; j < p.n / emu::WIDE; j++) {
            float c[emu::WIDE] = {};
            const auto place = [&](int i) -> float & { return p.to[first + i / 2]->v[(size_t)(4 * j + 2 * h + i % 2)]; };
            for (int i = 0; i < emu::WIDE && p.keep; i++) c[i] = place(i);
            emu::step(c, a, b[(size_t)j], emu::BF16);
            for (int i = 0; i < emu::WIDE; i++) place(i) = c[i];
        }
    }
}

static void make_until(warpgroup &w, uint64_t end)
{
    for (; w.made < end; w.made++) {
        make(w.waiting.front());
        w.waiting.pop_front();
    }
}

/* ---- instructions */

void wgmma_begin(void)
{
    mine().thread[emu::here.thread % GROUP].ready = true;
}

static sums *sums_at(thread_state &t, float *d, int n)
{
    for (const auto &s : t.open)
        if (s->d == d && s->v.size() == (size_t)n / 2) return s.get();
    if (!t.ready) emu::fail("multiplies without wgmma_begin");
    t.open.emplace_back(new sums{d, std::vector<float>(d, d + n / 2), 0});
    for (int i = 0; i < n / 2; i++) d[i] = emu::float_of(0x7fc0dead);
    return t.open.back().get();
}

void wgmma(float *d, int n, const fragment_a *a, uint64_t at, uint64_t b, bool by_columns, int keep)
{
    warpgroup &w = mine();
    const unsigned thread = emu::here.thread % GROUP;
    thread_state &t = w.thread[thread];
    sums *to = sums_at(t, d, n);
    const size_t i = (size_t)(t.asked - w.made);
    if (i == w.waiting.size()) w.waiting.push_back({n, keep, a != NULL, by_columns, at, b, 0, std::vector<fragment_a>(a ? GROUP : 0), {}});
    product &p = w.waiting[i];
    if (p.n != n || !p.keep != !keep || p.in_registers != (a != NULL) || p.by_columns != by_columns || p.a != at || p.b != b)
        emu::fail("multiplies what others of its warpgroup do not");
    p.to[thread] = to;
    if (a) p.registers[thread] = *a;
    to->last = t.asked++;
    if (++p.asked == GROUP && w.early && emu::below(w.early) == 0) make_until(w, t.asked);
}

void wgmma_commit(void)
{
    thread_state &t = mine().thread[emu::here.thread % GROUP];
    t.groups.push_back(t.asked);
}

void wgmma_finish(unsigned left)
{
    warpgroup &w = mine();
    thread_state &t = w.thread[emu::here.thread % GROUP];
    t.ready = false;
    if (t.groups.size() <= left) return;
    const uint64_t end = t.groups[t.groups.size() - left - 1];
    emu::wait_until("products", [&] { return w.made >= end || w.waiting[(size_t)(end - 1 - w.made)].asked == GROUP; });
    make_until(w, end);
    while (t.groups.size() > left) t.groups.pop_front();
    for (size_t i = t.open.size(); i-- > 0;) {
        sums &s = *t.open[i];
        if (s.last >= end) continue;
        std::copy(s.v.begin(), s.v.end(), s.d);
        t.open.erase(t.open.begin() + (long)i);
    }
}

} // namespace bl
