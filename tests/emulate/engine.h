/* Runs kernels on the CPU: every thread of the blocks of a cluster is a fiber, one at a time, in an order drawn from a seed. What the
 * instructions of a GPU do is written in terms of this (the headers of headers/). Static shared memory is thread_local: a block of a
 * cluster has those of an OS thread of its own. */
#ifndef BL_TESTS_EMULATE_ENGINE_H
#define BL_TESTS_EMULATE_ENGINE_H

#include <functional>
#include <stddef.h>
#include <stdint.h>

namespace emu {

enum { LANES = 32, GROUP = 128, MOST_RANKS = 16, MOST_THREADS = 1024, NAMED_BARRIERS = 16 };

/* Of the thread that runs now. */
struct place {
    unsigned thread;             /* in its block */
    unsigned rank;               /* of its block in its cluster */
    unsigned block[3], grid[3];  /* blockIdx, gridDim */
    unsigned threads, cluster;   /* of a block; blocks of a cluster */
    unsigned serial;             /* of the thread in its cluster */
};
extern place here;

/* A function that is only borrowed for a call. */
template <class F> class borrowed;
template <class R, class... A> class borrowed<R(A...)> {
    const void *object;
    R (*run)(const void *, A...);

  public:
    template <class F> borrowed(const F &f) : object(&f), run([](const void *o, A... a) -> R { return (*(const F *)o)(a...); }) {}
    R operator()(A... a) const { return run(object, a...); }
};

/* Lets others go on until done() holds, which is called from anywhere (here is not this thread). When no thread of the cluster can go on
 * and nothing is on its way, the program ends with one line that names the kernel, `what` and a thread that waits. */
void wait_until(const char *what, borrowed<bool()> done);

/* At some moment from now on, drawn from the seed, and before wait_until gives up: bulk copies, arrivals at other blocks. At the latest
 * when the cluster ends. `here` is any thread of the cluster. ordered: before the thread's next cluster_arrive that releases. */
void later(std::function<void()> work, bool ordered = false);

/* A number below n, from the seed of the schedule. */
unsigned below(unsigned n);

/* Ends the program with a line that names the kernel and the thread: misuse that hardware would leave undefined. */
[[noreturn]] void fail(const char *what);

/* All threads of a warp in mask (of a warpgroup, of a block) come here, each with its `in`; the last calls its f(in of all, out of all),
 * once; arrays by lane (thread of the group, of the block), those not in the mask zeros. */
typedef borrowed<void(const void *all_in, void *all_out)> meeting;
void meet_warp(const char *what, uint32_t mask, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f);
void meet_group(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f);
void meet_block(const char *what, const void *in, void *out, size_t in_bytes, size_t out_bytes, meeting f);
/* Without anything to say. */
void sync_warp(uint32_t mask);

/* Barrier `id` of the block among so many threads (0: all); arrive does not wait. */
void barrier_sync(int id, unsigned threads);
void barrier_arrive(int id, unsigned threads);
/* release: what the thread has begun in order is done before. */
void cluster_arrive(bool release = false);
void cluster_wait();

/* Shared memory has 32-bit addresses: dynamic memory from 1,024 on, below 2^18; static variables behind 2^20; the block's rank from bit 24
 * on. map_address is mapa. */
uint32_t shared_address(const void *p);
void *at(uint32_t address);
uint32_t map_address(uint32_t address, unsigned rank);
/* Of this block; a multiple of 1,024. */
void *dynamic_memory();

/* Name of a kernel (dladdr, demangled): for launch.cuh. */
const char *kernel_name(const void *kernel);
/* Ends the program where a kernel was not allowed so much dynamic shared memory (cudaFuncSetAttribute). */
void check_dynamic(const void *kernel, unsigned bytes);

/* A launch, which runs at once; body is called once in every thread. */
struct shape {
    unsigned blocks[3], threads, cluster, dynamic_bytes;
};
void run(const char *kernel, const shape &s, borrowed<void()> body);

/* Of the cluster that runs: another number for every one. What instructions keep for threads is of one cluster. */
uint64_t cluster_number();
/* Called when a cluster has ended and nothing is on its way, as one of its threads: checks what instructions have left. */
void at_cluster_end(void (*check)());

/* What cudart.cc hands out as cuTensorMapEncodeTiled; of whoever emulates copies of tiles. */
void *tile_map_encoder();

} // namespace emu

#endif
