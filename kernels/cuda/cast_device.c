/* Casts of host memory: codes go over, are decoded and come back as bf16. Each piece has a stream and device memory of its own while it
 * is under way, so that copies both ways and kernels of several threads' pieces overlap. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

enum { PLACES = 4, LINE = 256 /* to which what lies in device memory is aligned */ };

typedef struct place {
    cudaStream_t stream;
    uint8_t *memory;
    uint64_t bytes;
    bool taken;
} place;

typedef struct cuda_caster {
    bl_cast_device base; /* first: a bl_cast_device * is a cuda_caster * */
    int device;
    pthread_mutex_t lock;
    pthread_cond_t freed;
    place places[PLACES];
} cuda_caster;

static place *take(cuda_caster *c)
{
    pthread_mutex_lock(&c->lock);
    place *p = NULL;
    while (!p) {
        for (int i = 0; i < PLACES && !p; i++)
            if (!c->places[i].taken) p = &c->places[i];
        if (!p) pthread_cond_wait(&c->freed, &c->lock);
    }
    p->taken = true;
    pthread_mutex_unlock(&c->lock);
    return p;
}

static void give_back(cuda_caster *c, place *p)
{
    pthread_mutex_lock(&c->lock);
    p->taken = false;
    pthread_cond_signal(&c->freed);
    pthread_mutex_unlock(&c->lock);
}

static uint64_t line(uint64_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

static bl_status reserve(place *p, uint64_t bytes, bl_error *err)
{
    if (p->bytes >= bytes) return BL_OK;
    cudaFree(p->memory);
    p->memory = NULL;
    p->bytes = 0;
    BL_TRY(bl_cuda_check(cudaMalloc((void **)&p->memory, bytes), "casting weights", err));
    p->bytes = bytes;
    return BL_OK;
}

static bl_status run(place *p, uint16_t *y, const bl_matrix *w, bl_error *err)
{
    const uint64_t rows = (uint64_t)w->rows, cols = (uint64_t)w->cols, values = rows * cols;
    const uint64_t codes = w->kind == BL_W_FP8 ? values : values / 2;
    const uint64_t scales = w->kind == BL_W_FP8 ? (rows + 31) / 32 * (cols / 32) : values / 32;
    if (values == 0) return BL_OK;
    BL_TRY(reserve(p, line(2 * values) + line(codes) + line(scales), err));
    uint8_t *const at = p->memory + line(2 * values), *const scale = at + line(codes);
    const bl_matrix there = {.kind = w->kind, .rows = w->rows, .cols = w->cols, .codes = at, .scale = scale};
    BL_TRY(bl_cuda_check(cudaMemcpyAsync(at, w->codes, codes, cudaMemcpyHostToDevice, p->stream), "casting weights", err));
    BL_TRY(bl_cuda_check(cudaMemcpyAsync(scale, w->scale, scales, cudaMemcpyHostToDevice, p->stream), "casting weights", err));
    bl_cuda_cast(p->stream, (uint16_t *)(void *)p->memory, &there, 0, w->rows);
    BL_TRY(bl_cuda_check(cudaGetLastError(), "casting weights", err));
    return bl_cuda_check(cudaMemcpyAsync(y, p->memory, 2 * values, cudaMemcpyDeviceToHost, p->stream), "casting weights", err);
}

static bl_status cast(bl_cast_device *d, uint16_t *y, const bl_matrix *w, bl_error *err)
{
    cuda_caster *c = (cuda_caster *)d;
    BL_TRY(bl_cuda_check(cudaSetDevice(c->device), "casting weights", err)); /* of this thread */
    place *p = take(c);
    bl_status s = run(p, y, w, err);
    const cudaError_t e = cudaStreamSynchronize(p->stream); /* in any case: copies may be under way */
    if (s == BL_OK) s = bl_cuda_check(e, "casting weights", err);
    give_back(c, p);
    return s;
}

static bl_status pin(bl_cast_device *d, void *memory, uint64_t bytes, bl_error *err)
{
    (void)d;
    return bl_cuda_check(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), "pinning buffers", err);
}

static void unpin(bl_cast_device *d, void *memory)
{
    (void)d;
    cudaHostUnregister(memory);
}

static void destroy(bl_cast_device *d)
{
    cuda_caster *c = (cuda_caster *)d;
    for (int i = 0; i < PLACES; i++) {
        cudaFree(c->places[i].memory);
        if (c->places[i].stream) cudaStreamDestroy(c->places[i].stream);
    }
    pthread_cond_destroy(&c->freed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bl_status create(cuda_caster *c, bl_error *err)
{
    BL_TRY(bl_cuda_find_device(&c->device, err));
    for (int i = 0; i < PLACES; i++)
        BL_TRY(bl_cuda_check(cudaStreamCreateWithFlags(&c->places[i].stream, cudaStreamNonBlocking), "creating a stream", err));
    return BL_OK;
}

bl_status bl_cuda_cast_device(bl_cast_device **out, bl_error *err)
{
    cuda_caster *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        free(c);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for casts on the GPU");
    }
    pthread_cond_init(&c->freed, NULL);
    c->base = (bl_cast_device){.cast = cast, .pin = pin, .unpin = unpin, .destroy = destroy};
    const bl_status s = create(c, err);
    if (s == BL_OK) *out = &c->base;
    else destroy(&c->base);
    return s;
}
