#include "kernels/cuda/host.h"
#include "tools/bench.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct copy {
    void *from, *to;
    size_t piece;           /* of an upload: the buffer that is sent again and again */
    cudaStream_t stream[2]; /* taking turns; the second may be the first */
} copy;

#define COPY_BYTES ((size_t)2 << 30)

static bl_status failed(cudaError_t e, bl_error *err)
{
    return bl_cuda_check(e, "measuring copies", err);
}

bl_status bench_find_gpu(bench *b, bl_error *err)
{
    struct cudaDeviceProp p;
    int device;
    BL_TRY(bl_cuda_find_device(&device, err));
    BL_TRY(failed(cudaGetDeviceProperties(&p, device), err));
    snprintf(b->gpu, sizeof b->gpu, "%.63s", p.name);
    return BL_OK;
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
    BL_TRY(bench_find_gpu(b, err));
    BL_TRY(failed(cudaMalloc(&c->from, COPY_BYTES), err)); /* until the end of the program */
    BL_TRY(failed(cudaMalloc(&c->to, COPY_BYTES), err));
    BL_TRY(failed(cudaMemset(c->from, 0x5a, COPY_BYTES), err));
    *s = (bench_subject){.name = "copy on the device", .run = run_copy, .arg = c, .work = 2e-9 * (double)COPY_BYTES, .unit = "GB"};
    return BL_OK;
}

static bl_status run_upload(void *arg, bl_error *err)
{
    const copy *c = arg;
    int turn = 0;
    for (size_t at = 0; at < COPY_BYTES; at += c->piece)
        BL_TRY(failed(cudaMemcpyAsync((char *)c->to + at, c->from, c->piece, cudaMemcpyHostToDevice, c->stream[turn ^= 1]), err));
    return failed(cudaDeviceSynchronize(), err);
}

static double seconds_of(copy *c, bl_error *err)
{
    struct timespec a, b;
    if (run_upload(c, err) != BL_OK) return -1;
    clock_gettime(CLOCK_MONOTONIC, &a);
    if (run_upload(c, err) != BL_OK) return -1;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* The fastest of buffers small enough for the processor's cache, as a loader's are, and larger ones, on one stream and on two. */
bl_status bench_upload_ceiling(bench *b, bench_subject *s, bl_error *err)
{
    static const size_t pieces[] = {(size_t)2 << 20, (size_t)16 << 20, (size_t)64 << 20, (size_t)512 << 20};
    enum { PIECES = sizeof pieces / sizeof *pieces };
    copy *c = bench_record(b, sizeof *c), best = {0};
    double least = 0;
    if (!c) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    BL_TRY(bench_find_gpu(b, err));
    for (int i = 0; i < 2; i++) BL_TRY(failed(cudaStreamCreateWithFlags(&c->stream[i], cudaStreamNonBlocking), err));
    BL_TRY(failed(cudaMalloc(&c->to, COPY_BYTES), err));
    for (int i = 0; i < 2 * PIECES; i++) {
        copy now = *c;
        now.piece = pieces[i / 2];
        if (i % 2) now.stream[1] = now.stream[0];
        BL_TRY(failed(cudaHostAlloc(&now.from, now.piece, cudaHostAllocDefault), err));
        memset(now.from, 0x5a, now.piece);
        const double t = seconds_of(&now, err);
        if (t < 0) return err->code;
        const bool better = least == 0 || t < least;
        cudaFreeHost(better ? best.from : now.from);
        if (better) best = now, least = t;
    }
    *c = best;
    *s = (bench_subject){.name = "host to device, pinned", .run = run_upload, .arg = c, .work = 1e-9 * (double)COPY_BYTES, .unit = "GB"};
    return BL_OK;
}
