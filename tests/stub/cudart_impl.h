/* What the parts of the recording CUDA runtime share. Results are cudaError_t; "locked": with stub_lock held. */
#ifndef BL_TESTS_STUB_CUDART_IMPL_H
#define BL_TESTS_STUB_CUDART_IMPL_H

#include "tests/stub/cudart.h"

#include <pthread.h>

/* What a graph holds. */
typedef struct stub_node {
    const char *kernel; /* NULL: a copy */
    void *to;
    const void *from;
    size_t bytes;
} stub_node;

extern pthread_mutex_t stub_lock;
extern uint64_t stub_memory; /* bytes of the device */

/* The result of a call that has nothing else against it; locked. */
int stub_enter(const char *function);
/* A call that does nothing but succeed or fail. */
int stub_call(const char *function);
/* What went wrong is also the newest error; locked. Returns it. */
int stub_refuse(int e);
/* Puts n into the graph that is being captured; false: there is none. Locked. */
bool stub_capture(stub_node n);
/* A new pass begins (cuda_stub_kernel). */
void stub_forget_kernels(void);

#endif
