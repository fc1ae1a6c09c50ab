/* Weights from files to the GPU: the pool's threads read pieces into pinned buffers, two each taking turns, check them while they
 * are in the processor's caches, and send them on. */
#include "runtime/cuda/cuda.h"

#include "verify/digest.h"
#include "verify/reader.h"

#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    PART = 2 << 20,
    BUFFERS = 2,
    READERS = 12 /* more are in each other's way: runtime/README.md has the figures */
};

typedef struct worker {
    uint8_t *buffer[BUFFERS];
    cudaEvent_t sent[BUFFERS]; /* the buffer's bytes have left it */
    int next;
    bl_chunker *chunker;
} worker;

typedef struct load {
    bl_cuda *c;
    const bl_load *items;
    size_t count;
    bl_access access;
    int64_t *first;      /* [count + 1] number of an item's first chunk */
    bl_reader **readers; /* [count] of an item's file: those of one file are the same */
    worker *workers;     /* [readers] */
    int count_readers;
    uint8_t *memory;
    atomic_int_least64_t next; /* chunk */
    atomic_bool failed;
    pthread_mutex_t lock; /* of the first failure */
    bl_status status;
    bl_error *err;
} load;

static void fail(load *l, bl_status s, const bl_error *e)
{
    pthread_mutex_lock(&l->lock);
    if (l->status == BL_OK) {
        l->status = s;
        if (l->err) *l->err = *e;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->failed, true);
}

/* The item that a chunk belongs to. */
static size_t item_of(const load *l, int64_t chunk)
{
    size_t low = 0, high = l->count;
    while (high - low > 1) {
        const size_t mid = low + (high - low) / 2;
        if (l->first[mid] <= chunk) low = mid;
        else high = mid;
    }
    return low;
}

static bl_status read_part(const load *l, size_t i, uint8_t *buffer, uint64_t at, uint64_t n, const uint8_t **data, bl_error *err)
{
    const bl_load *w = &l->items[i];
    if (w->there) {
        *data = (const uint8_t *)w->to + at;
        return BL_OK;
    }
    if (l->readers[i]) return bl_reader_read(l->readers[i], buffer, n, w->offset + at, data, err);
    *data = buffer;
    return bl_file_read(w->file, buffer, n, w->offset + at, err);
}

static bl_status send_part(const load *l, const bl_load *w, worker *k, int b, const uint8_t *data, uint64_t at, uint64_t n, bl_error *err)
{
    if (!w->to || w->there) return BL_OK; /* only checked */
    if (w->host) {
        memcpy((uint8_t *)w->to + at, data, n);
        return BL_OK;
    }
    const cudaError_t e = cudaMemcpyAsync((uint8_t *)w->to + at, data, n, cudaMemcpyHostToDevice, l->c->stream);
    BL_TRY(bl_cuda_check(e, "loading weights", err));
    return bl_cuda_check(cudaEventRecord(k->sent[b], l->c->stream), "loading weights", err);
}

/* One chunk of an item, which starts at `at`. */
static bl_status load_chunk(const load *l, size_t i, uint64_t at, worker *k, bl_error *err)
{
    const bl_load *w = &l->items[i];
    const uint64_t n = w->bytes - at < BL_CHUNK_BYTES ? w->bytes - at : BL_CHUNK_BYTES;
    bl_digest digest = {{0}};
    for (uint64_t done = 0; done < n; done += PART) {
        const uint64_t part = n - done < PART ? n - done : PART;
        const int b = k->next++ % BUFFERS;
        const uint8_t *data;
        BL_TRY(bl_cuda_check(cudaEventSynchronize(k->sent[b]), "loading weights", err));
        BL_TRY(read_part(l, i, k->buffer[b], at + done, part, &data, err));
        BL_TRY(send_part(l, w, k, b, data, at + done, part, err));
        if (w->chunks) bl_chunker_update(k->chunker, data, done, part, n, &digest);
    }
    if (!w->chunks || bl_digest_equal(&digest, &w->chunks[at / BL_CHUNK_BYTES])) return BL_OK;
    return bl_fail(err, BL_E_INPUT, bl_file_path(w->file), w->name, (int64_t)(w->offset + at), "differs from its digest in the manifest");
}

/* A reader's whole work: chunks as they come. */
static void run_reader(void *arg, int64_t number, int thread)
{
    load *l = arg;
    bl_error err = {0};
    (void)thread;
    bl_status s = bl_cuda_check(cudaSetDevice(l->c->device), "loading weights", &err); /* of this thread */
    while (s == BL_OK && !atomic_load_explicit(&l->failed, memory_order_relaxed)) {
        const int64_t chunk = atomic_fetch_add(&l->next, 1);
        if (chunk >= l->first[l->count]) return;
        const size_t i = item_of(l, chunk);
        s = load_chunk(l, i, (uint64_t)(chunk - l->first[i]) * BL_CHUNK_BYTES, &l->workers[number], &err);
    }
    if (s != BL_OK) fail(l, s, &err);
}

static bl_status open_readers(load *l, bl_error *err)
{
    for (size_t i = 0; l->access == BL_ACCESS_AUTO && i < l->count; i++) {
        if (i > 0 && l->items[i].file == l->items[i - 1].file) l->readers[i] = l->readers[i - 1];
        else BL_TRY(bl_reader_open(&l->readers[i], l->items[i].file, err));
    }
    return BL_OK;
}

static bl_status prepare(load *l, bl_error *err)
{
    const uint64_t room = BL_READ_ROOM((uint64_t)PART);
    l->first = calloc(l->count + 1, sizeof *l->first);
    l->readers = calloc(l->count + 1, sizeof(bl_reader *));
    l->workers = calloc((size_t)l->count_readers, sizeof *l->workers);
    if (!l->first || !l->readers || !l->workers) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for loading");
    for (size_t i = 0; i < l->count; i++) l->first[i + 1] = l->first[i] + (int64_t)bl_chunk_count(l->items[i].bytes);
    BL_TRY(open_readers(l, err));
    const cudaError_t e = cudaHostAlloc((void **)&l->memory, (uint64_t)l->count_readers * BUFFERS * room, cudaHostAllocDefault);
    BL_TRY(bl_cuda_check(e, "pinning buffers to load through", err));
    for (int t = 0; t < l->count_readers; t++) {
        worker *w = &l->workers[t];
        BL_TRY(bl_chunker_create(&w->chunker, err));
        for (int b = 0; b < BUFFERS; b++) {
            w->buffer[b] = l->memory + ((uint64_t)t * BUFFERS + (uint64_t)b) * room;
            BL_TRY(bl_cuda_check(cudaEventCreateWithFlags(&w->sent[b], cudaEventDisableTiming), "creating an event", err));
        }
    }
    return BL_OK;
}

static void clean_up(load *l)
{
    cudaStreamSynchronize(l->c->stream); /* buffers may be on their way */
    for (int t = 0; l->workers && t < l->count_readers; t++) {
        bl_chunker_destroy(&l->workers[t].chunker);
        for (int b = 0; b < BUFFERS; b++)
            if (l->workers[t].sent[b]) cudaEventDestroy(l->workers[t].sent[b]);
    }
    for (size_t i = 0; l->readers && i < l->count; i++) {
        const bool last = i + 1 == l->count || l->readers[i + 1] != l->readers[i];
        if (last && l->readers[i]) bl_reader_close(&l->readers[i]);
    }
    cudaFreeHost(l->memory);
    pthread_mutex_destroy(&l->lock);
    free(l->first);
    free(l->readers);
    free(l->workers);
}

bl_status bl_cuda_load(bl_backend *b, const bl_load *items, size_t count, bl_access access, bl_error *err)
{
    bl_cuda *c = cuda_of(b);
    const int threads = bl_pool_threads(c->pool);
    load l = {.c = c, .items = items, .count = count, .access = access, .count_readers = threads < READERS ? threads : READERS, .err = err};
    if (pthread_mutex_init(&l.lock, NULL)) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for loading");
    l.status = prepare(&l, err);
    if (l.status == BL_OK) bl_pool_run(c->pool, l.count_readers, run_reader, &l);
    if (l.status == BL_OK) l.status = bl_cuda_check(cudaStreamSynchronize(c->stream), "loading weights", err);
    clean_up(&l);
    return l.status;
}

bl_status bl_cuda_arrange(bl_backend *b, const bl_matrix *w, bl_error *err)
{
    bl_cuda_tile_fp4(cuda_of(b)->stream, w);
    return bl_cuda_check(cudaGetLastError(), "laying out weights", err);
}
