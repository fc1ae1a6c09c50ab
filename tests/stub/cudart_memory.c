/* Memory of the device and of the host, and copies. */
#include "tests/stub/cudart_impl.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 4096 };

typedef struct block {
    uint8_t *at;
    size_t bytes;
    bool pinned;
} block;

static block blocks[BLOCKS];

static block *block_at(const void *p, size_t bytes, bool exact)
{
    for (int i = 0; i < BLOCKS; i++) {
        block *b = &blocks[i];
        const uint8_t *at = p;
        if (b->at && (exact ? at == b->at : at >= b->at && at + bytes <= b->at + b->bytes)) return b;
    }
    return NULL;
}

/* Memory of the device is gigabytes that nobody touches: malloc's settings for tests (MALLOC_PERTURB_) would. */
static void *take(size_t bytes, bool pinned)
{
    if (pinned) return calloc(1, bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static cudaError_t allocate(const char *function, void **out, size_t bytes, bool pinned)
{
    pthread_mutex_lock(&stub_lock);
    cudaError_t e = stub_enter(function);
    int i = 0;
    while (i < BLOCKS && blocks[i].at) i++;
    if (e == cudaSuccess && (i == BLOCKS || (!pinned && cuda_stub_seen.live + bytes > stub_memory))) e = stub_refuse(cudaErrorMemoryAllocation);
    if (e == cudaSuccess && !(*out = take(bytes, pinned))) e = stub_refuse(cudaErrorMemoryAllocation);
    if (e == cudaSuccess) {
        blocks[i] = (block){*out, bytes, pinned};
        if (!pinned) cuda_stub_seen.allocated += bytes;
        *(pinned ? &cuda_stub_seen.pinned : &cuda_stub_seen.live) += bytes;
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}

static cudaError_t release(void *p, bool pinned)
{
    if (!p) return cudaSuccess;
    pthread_mutex_lock(&stub_lock);
    block *b = block_at(p, 0, true);
    if (b && b->pinned == pinned) {
        *(pinned ? &cuda_stub_seen.pinned : &cuda_stub_seen.live) -= b->bytes;
        b->at = NULL;
        if (pinned) free(p);
        else munmap(p, b->bytes);
    } else {
        cuda_stub_seen.faults++;
    }
    pthread_mutex_unlock(&stub_lock);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return allocate("cudaMalloc", p, bytes, false);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate("cudaHostAlloc", p, bytes, true);
}

cudaError_t cudaFree(void *p)
{
    return release(p, false);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, true);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)p;
    (void)bytes;
    (void)flags;
    const cudaError_t e = stub_call("cudaHostRegister");
    cuda_stub_seen.registered += e == cudaSuccess;
    return e;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    *device = host;
    return stub_call("cudaHostGetDevicePointer");
}

cudaError_t cudaHostUnregister(void *p)
{
    (void)p;
    cuda_stub_seen.registered--;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const cudaError_t e = stub_call("cudaMemGetInfo");
    if (e != cudaSuccess) return e;
    *left = stub_memory > cuda_stub_seen.live ? stub_memory - cuda_stub_seen.live : 0;
    *all = stub_memory;
    return cudaSuccess;
}

/* Both ends of a copy: device memory must be allocated. */
static void check_copy(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDeviceToHost && !block_at(to, bytes, false)) cuda_stub_seen.faults++;
    if (kind != cudaMemcpyHostToDevice && !block_at(from, bytes, false)) cuda_stub_seen.faults++;
    if (kind == cudaMemcpyHostToDevice) cuda_stub_seen.copies_in++;
    if (kind == cudaMemcpyDeviceToHost) cuda_stub_seen.copies_out++;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaMemcpyAsync");
    if (e == cudaSuccess) {
        check_copy(to, from, bytes, kind);
        if (!stub_capture((stub_node){NULL, to, from, bytes}) && kind != cudaMemcpyDeviceToDevice)
            memcpy(to, from, bytes); /* else what kernels have not made, gigabytes of it */
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaMemcpy2DAsync");
    if (e == cudaSuccess && height > 0) {
        check_copy(to, from, 1, kind);
        check_copy((char *)to + to_pitch * (height - 1), (const char *)from + from_pitch * (height - 1), width, kind);
    }
    pthread_mutex_unlock(&stub_lock);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    (void)s;
    pthread_mutex_lock(&stub_lock);
    const cudaError_t e = stub_enter("cudaMemsetAsync");
    if (e == cudaSuccess && !block_at(p, bytes, false)) cuda_stub_seen.faults++;
    else if (e == cudaSuccess && value) memset(p, value, bytes); /* it begins as zeros: nothing is touched for them */
    pthread_mutex_unlock(&stub_lock);
    return e;
}

/* Only benchmarks, gigabytes that nobody reads. */
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    (void)value;
    return cudaMemsetAsync(p, 0, bytes, NULL);
}
