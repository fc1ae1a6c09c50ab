/* Copies of a thread's own (cp.async): each is made at once or when it is waited for, as the seed has it. */
#include "kernels/cuda/instructions.cuh"

#include <deque>
#include <vector>

namespace bl {

struct copy {
    uint32_t to;
    const void *from; /* NULL: zeros */
    unsigned bytes;
};

struct copying {
    uint64_t cluster = 0;
    std::vector<copy> open;              /* of no group yet */
    std::deque<std::vector<copy>> groups; /* not waited for */
};

static copying &mine()
{
    static std::vector<copying> all;
    const size_t i = emu::here.rank * emu::MOST_THREADS + emu::here.thread;
    if (all.size() <= i) all.resize(i + 1);
    copying &c = all[i];
    if (c.cluster != emu::cluster_number()) {
        c.cluster = emu::cluster_number();
        c.open.clear();
        c.groups.clear();
    }
    return c;
}

static void make(const copy &c)
{
    void *to = shared_bytes(c.to, c.bytes);
    if (c.from) memcpy(to, c.from, c.bytes);
    else memset(to, 0, c.bytes);
}

void copy_bytes(uint32_t to, const void *from, unsigned bytes, bool there)
{
    const copy c = {to, there ? from : NULL, bytes};
    if ((uintptr_t)from % bytes) emu::fail("copies from where it is not aligned");
    if (emu::below(2)) make(c);
    else mine().open.push_back(c);
}

void copies_end_group(void)
{
    copying &c = mine();
    c.groups.push_back(std::move(c.open));
    c.open.clear();
}

void copies_wait(unsigned left)
{
    copying &c = mine();
    while (c.groups.size() > left) {
        for (const copy &x : c.groups.front()) make(x);
        c.groups.pop_front();
    }
}

uint64_t waits_for_last;

} // namespace bl
