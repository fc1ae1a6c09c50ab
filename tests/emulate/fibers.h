/* Stacks, and variables of OS threads, that are switched between without a system call. */
#ifndef BL_TESTS_EMULATE_FIBERS_H
#define BL_TESTS_EMULATE_FIBERS_H

#include <stddef.h>

namespace emu {

/* Goes on at `to`, which an earlier switch or new_stack has left; *from is where this goes on. */
extern "C" void emu_switch(void **from, void *to);

/* A stack on which the first switch calls start, which never returns. */
void *begin_stack(void *stack, void (*start)());

/* A stack that nobody uses, the one given back last first; a page that may not be touched lies below. */
void *take_stack();
void give_stack(void *stack);

/* From now on thread_local variables are those of another OS thread, which sleeps: the one whose __builtin_thread_pointer() that is. */
void borrow_variables(void *of);

} // namespace emu

#endif
