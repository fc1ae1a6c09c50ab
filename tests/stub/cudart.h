/* A CUDA runtime without a GPU: device memory is host memory, copies are made, kernels are recorded and not run, and the Nth call
 * can be made to fail. Link it before the runtime library; what it does not define is missing, not taken from the real one.
 * Programs that are not tests of their own take the same from the environment: CUDA_STUB_FAIL="FUNCTION N CODE" (FUNCTION may be
 * "any"; CODE a cudaError_t), CUDA_STUB_MEMORY bytes of the device, CUDA_STUB_NONE for a machine without a GPU. */
#ifndef BL_TESTS_STUB_CUDART_H
#define BL_TESTS_STUB_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happened since cuda_stub_reset. */
typedef struct cuda_stub {
    long calls;         /* of the runtime that can fail */
    long kernels;       /* launched, those of graphs included */
    long direct;        /* launched outside of graphs */
    long graph_launches;
    long waits;         /* of the host for the device */
    long copies_in, copies_out;
    long faults;        /* copies outside of allocations, frees of nothing, launches with no threads */
    uint64_t allocated; /* device memory, ever, in bytes as asked for */
    uint64_t live, pinned; /* allocated now */
    long registered;       /* pieces of host memory, now */
} cuda_stub;

extern cuda_stub cuda_stub_seen;

/* Counters to 0, failures off; what is allocated stays. memory: of the device. */
void cuda_stub_reset(uint64_t memory);
/* Let the nth call (from 1) of function from now on fail with that cudaError_t; "any": of all. Errors that last on a real device last:
 * every later call fails as well, until the reset. */
void cuda_stub_fail(const char *function, long nth, int code);
/* Kernels of the newest pass (since the last copy of its tables), in order. */
const char *cuda_stub_kernel(int i);
/* May it begin before the one before has ended? */
bool cuda_stub_early(int i);

#endif
