/* The parts of check_cuda, and what they share. */
#ifndef BL_TESTS_CHECK_CUDA_H
#define BL_TESTS_CHECK_CUDA_H

#include "kernels/cuda/cuda.h"
#include "tests/check/check_state.h"

/* n; the other where the program runs with --small: every kind of case, of sizes for an emulator. */
int64_t sized(int64_t n, int64_t small);

/* Device memory of the current case, poisoned; a copy of host memory there; and a host copy of device memory (waits). */
void *gpu_buffer(size_t bytes);
void *gpu_copy(const void *host, size_t bytes);
void *gpu_result(check *c, const void *p, size_t bytes);
/* Frees the case's device memory. */
void gpu_case_end(void);

/* Host buffers of the current case. */
uint16_t *random_row(check *c, int64_t n, float scale);
float *random_floats(check *c, int64_t n, float scale);

/* A weight of random codes in device memory. */
bl_matrix gpu_weight(check *c, bl_weight_kind kind, int64_t rows, int64_t cols);

/* A mixing to be made from random parts; and the check that it is, against bl_cuda_mix. */
bl_cuda_mixing gpu_mixing(check *c, int64_t T, int64_t D);
void check_mixed(check *c, const bl_cuda_mixing *m);

void check_cuda_few(check *c);
void check_cuda_rows(check *c);
void check_cuda_index(check *c);
void check_cuda_entries(check *c);
void check_cuda_attention(check *c);
void check_cuda_many(check *c);
void check_cuda_sample(check *c);

#endif
