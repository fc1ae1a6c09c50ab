#include "tools/bench.h"

#include <cuda_runtime_api.h>
#include <string.h>

typedef struct copy {
    void *from, *to;
} copy;

#define COPY_BYTES ((size_t)2 << 30)
#define PINNED_BYTES ((size_t)16 << 20)

static bl_status failed(cudaError_t e, bl_error *err)
{
    return e == cudaSuccess ? BL_OK : bl_fail(err, BL_E_IO, NULL, NULL, -1, "CUDA: %s", cudaGetErrorString(e));
}

static bl_status run_copy(void *arg, bl_error *err)
{
    const copy *c = arg;
    BL_TRY(failed(cudaMemcpyAsync(c->to, c->from, COPY_BYTES, cudaMemcpyDeviceToDevice, 0), err));
    return failed(cudaStreamSynchronize(0), err);
}

bl_status bench_device_copy_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    copy *c = bench_record(b, sizeof *c);
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(failed(cudaMalloc(&c->from, COPY_BYTES), err)); /* until the end of the program */
    BL_TRY(failed(cudaMalloc(&c->to, COPY_BYTES), err));
    BL_TRY(failed(cudaMemset(c->from, 0x5a, COPY_BYTES), err));
    *s = (bench_subject){.name = "copy on the device", .run = run_copy, .arg = c, .work = 2e-9 * (double)COPY_BYTES, .unit = "GB"};
    return BL_OK;
}

/* From memory that stays in the processor's cache, as a loader's buffers do: faster than from all of it. */
static bl_status run_upload(void *arg, bl_error *err)
{
    const copy *c = arg;
    for (size_t at = 0; at < COPY_BYTES; at += PINNED_BYTES)
        BL_TRY(failed(cudaMemcpyAsync((char *)c->to + at, c->from, PINNED_BYTES, cudaMemcpyHostToDevice, 0), err));
    return failed(cudaStreamSynchronize(0), err);
}

bl_status bench_upload_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    copy *c = bench_record(b, sizeof *c);
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(failed(cudaHostAlloc(&c->from, PINNED_BYTES, cudaHostAllocDefault), err));
    BL_TRY(failed(cudaMalloc(&c->to, COPY_BYTES), err));
    memset(c->from, 0x5a, PINNED_BYTES);
    *s = (bench_subject){.name = "host to device, pinned", .run = run_upload, .arg = c, .work = 1e-9 * (double)COPY_BYTES, .unit = "GB"};
    return BL_OK;
}
