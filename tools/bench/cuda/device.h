/* What benchmarks of the GPU's kernels share. */
#ifndef BL_TOOLS_BENCH_CUDA_DEVICE_H
#define BL_TOOLS_BENCH_CUDA_DEVICE_H

#include "tools/bench.h"

/* Device memory of random bytes (no NaN among e4m3 codes, bf16 of moderate size) or of zeros, until the end of the program. NULL when
 * there is no more. */
void *device_bytes(size_t bytes, int random);
/* Device memory with a copy of host memory, likewise. */
void *device_copy(const void *host, size_t bytes);
/* Device memory of scale bytes near 1, likewise. */
uint8_t *device_scales(size_t bytes);
/* Waits for what was launched. */
bl_status device_finish(bl_error *err);

/* Kernels that move rows: the set "streams, rows and drawing on the GPU". */
bl_status bench_device_rows(bench *b, bl_error *err);
/* Products on stored weights: the set "products on the GPU". */
bl_status bench_device_products(bench *b, bl_error *err);

#endif
