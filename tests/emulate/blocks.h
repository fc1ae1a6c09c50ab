/* What the parts of the engine share: threads as fibers, and blocks of the cluster that runs. */
#ifndef BL_TESTS_EMULATE_BLOCKS_H
#define BL_TESTS_EMULATE_BLOCKS_H

#include "tests/emulate/engine.h"

#include <vector>

namespace emu {

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

/* A block's memory and the OS thread whose thread_local variables it has. */
struct running_block {
    char *dynamic, *statics; /* beginning of the variables' window */
    char *variables;         /* those of the program */
    bool begun;              /* a thread has run */
    unsigned dynamic_bytes, living;
    void *thread;
    std::vector<fiber *> ready;
};

extern running_block blocks[MOST_RANKS];
extern fiber *self;

/* The thread may go on; the calling one waits, and is on some list. */
void make_ready(fiber *f);
void leave(const char *what, state is);

/* memory.cc. On a block's OS thread, once; for a new block. */
enum : size_t { MOST_DYNAMIC = (1 << 18) - 1024 };
void find_memory(running_block &b);
void prepare_memory(running_block &b, unsigned bytes);

/* meetings.cc: for a new launch, for a new cluster. */
void prepare_meetings(const shape &s);
void begin_meetings(const shape &s);

} // namespace emu

#endif
