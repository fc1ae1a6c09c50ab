/* Device memory. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_BYTES ((uint64_t)256 << 20)

/* Running out is no fault that lasts; a device that refuses for another reason has failed. */
static void note_refusal(bl_cuda *c, cudaError_t e)
{
    (void)cudaGetLastError();
    if (e != cudaErrorMemoryAllocation && !c->fault.code) (void)bl_cuda_check(e, "allocating memory", &c->fault);
}

void *bl_cuda_alloc(bl_backend *b, uint64_t bytes)
{
    bl_cuda *c = cuda_of(b);
    void *p = NULL;
    bytes = bl_line(bytes ? bytes : 1);
    pthread_mutex_lock(&c->lock);
    const cudaError_t e = cudaMalloc(&p, bytes);
    if (e == cudaSuccess) c->allocated += bytes;
    else note_refusal(c, e);
    pthread_mutex_unlock(&c->lock);
    return e == cudaSuccess ? p : NULL;
}

void *bl_cuda_alloc_pinned(bl_cuda *c, uint64_t bytes)
{
    void *p = NULL;
    pthread_mutex_lock(&c->lock);
    const cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
    if (e != cudaSuccess) note_refusal(c, e);
    pthread_mutex_unlock(&c->lock);
    return e == cudaSuccess ? p : NULL;
}

void bl_cuda_release(bl_backend *b, void *device)
{
    pthread_mutex_lock(&cuda_of(b)->lock);
    cudaFree(device);
    pthread_mutex_unlock(&cuda_of(b)->lock);
}

/* What fails here lasts, and is reported by the end of the pass. */
void bl_cuda_upload(bl_backend *b, void *device, const void *host, uint64_t bytes)
{
    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_of(b)->stream);
    cudaStreamSynchronize(cuda_of(b)->stream);
}

void bl_cuda_download(bl_backend *b, void *host, const void *device, uint64_t bytes)
{
    if (cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_of(b)->stream) != cudaSuccess ||
        cudaStreamSynchronize(cuda_of(b)->stream) != cudaSuccess)
        memset(host, 0, bytes);
}

void bl_cuda_fork(bl_cuda *c)
{
    cudaEventRecord(c->forked, c->stream);
    cudaStreamWaitEvent(c->side, c->forked, 0);
    c->apart = true;
}

void bl_cuda_join(bl_cuda *c)
{
    if (!c->apart) return;
    c->apart = false;
    cudaEventRecord(c->joined, c->side);
    cudaStreamWaitEvent(c->stream, c->joined, 0);
}

void bl_cuda_mark(bl_cuda *c)
{
    cudaEventRecord(c->marked, c->side);
}

void bl_cuda_await(bl_cuda *c)
{
    cudaStreamWaitEvent(c->stream, c->marked, 0);
}

/* ---- weights */

/* A slab more, in front where it has room left. */
static cuda_slab *add_slab(bl_cuda *c, uint64_t bytes, bool full)
{
    cuda_slab *s = malloc(sizeof *s);
    if (!s) return NULL;
    *s = (cuda_slab){.bytes = bytes};
    if (!(s->memory = bl_cuda_alloc(&c->base, bytes))) {
        free(s);
        return NULL;
    }
    cuda_slab **link = full && c->slabs ? &c->slabs->next : &c->slabs;
    s->next = *link;
    *link = s;
    return s;
}

/* Room for a weight: small ones share slabs, large ones have their own. With a plan there is one slab for all. */
void *bl_cuda_place(bl_backend *b, uint64_t bytes)
{
    bl_cuda *c = cuda_of(b);
    cuda_slab *s = c->slabs;
    bytes = bl_line(bytes);
    if (!s || s->bytes - s->used < bytes) {
        const bool large = bytes > SLAB_BYTES / 4;
        if (!(s = add_slab(c, large ? bytes : SLAB_BYTES, large))) return NULL;
    }
    void *at = s->memory + s->used;
    s->used += bytes;
    return at;
}

/* Weights that are made in memory: few, and benchmarks. */
bl_status bl_cuda_import(bl_backend *b, const void **device, const void *host, uint64_t bytes, size_t align, bl_error *err)
{
    void *to = bl_cuda_place(b, bytes);
    (void)align; /* every weight is aligned for the widest loads */
    if (!to)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory for a weight of %llu bytes", (unsigned long long)bytes);
    *device = to;
    bl_cuda_upload(b, to, host, bytes);
    return bl_cuda_check(cudaGetLastError(), "loading weights", err);
}

bl_status bl_cuda_memory_create(bl_cuda *c, uint64_t weight_bytes, bl_error *err)
{
    if (!weight_bytes || add_slab(c, weight_bytes, false)) return BL_OK;
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory for weights of %llu bytes", (unsigned long long)weight_bytes);
}

void bl_cuda_memory_destroy(bl_cuda *c)
{
    while (c->slabs) {
        cuda_slab *next = c->slabs->next;
        cudaFree(c->slabs->memory);
        free(c->slabs);
        c->slabs = next;
    }
}
