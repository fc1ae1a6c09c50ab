/* Where Engram tables lie that kernels gather from: device memory, or memory of the host, this process's own or shared with others. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A piece of the host's memory becomes one that the GPU reads; it is unmapped in the end if it is this backend's own. */
static bl_status pin(bl_cuda *c, void *memory, uint64_t bytes, bool own, bl_error *err)
{
    cuda_host *h = calloc(1, sizeof *h);
    if (!h) {
        if (own) munmap(memory, bytes);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for Engram tables");
    }
    *h = (cuda_host){.next = c->pinned, .memory = memory, .bytes = bytes, .own = own};
    c->pinned = h;
    return bl_cuda_check(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), "pinning Engram tables", err);
}

bl_status bl_cuda_tables_create(bl_cuda *c, const bl_shared *shared, uint64_t bytes, bl_error *err)
{
    if (c->engram != BL_ENGRAM_SHARED) return BL_OK;
    c->shared = (cuda_shared){.memory = bl_shared_memory(shared), .bytes = bytes, .filled = bl_shared_filled(shared)};
    return pin(c, c->shared.memory, bytes, false, err);
}

void bl_cuda_tables_destroy(bl_cuda *c)
{
    while (c->pinned) {
        cuda_host *next = c->pinned->next;
        cudaHostUnregister(c->pinned->memory);
        if (c->pinned->own) munmap(c->pinned->memory, c->pinned->bytes);
        free(c->pinned);
        c->pinned = next;
    }
}

/* Huge pages where the system has them: fewer for the GPU's bus to look up. They are filled after they are pinned. */
static bl_status place_own(bl_cuda *c, uint64_t bytes, bl_table_room *room, bl_error *err)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for an Engram table of %llu bytes", (unsigned long long)bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    room->to = p;
    return pin(c, p, bytes, true, err);
}

/* The next one: all processes place the same tables in the same order. */
static bl_status place_shared(bl_cuda *c, uint64_t bytes, bl_table_room *room, bl_error *err)
{
    if (bytes > c->shared.bytes - c->shared.used)
        return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "Engram tables take more than the %llu bytes that they share",
                       (unsigned long long)c->shared.bytes);
    room->to = c->shared.memory + c->shared.used;
    room->filled = c->shared.filled;
    c->shared.used += bytes;
    return BL_OK;
}

bl_status bl_cuda_place_table(bl_backend *b, uint64_t bytes, bl_table_room *room, bl_error *err)
{
    bl_cuda *c = cuda_of(b);
    void *device = NULL;
    *room = (bl_table_room){.host = c->engram != BL_ENGRAM_DEVICE};
    if (room->host) {
        BL_TRY(c->engram == BL_ENGRAM_SHARED ? place_shared(c, bl_line(bytes), room, err) : place_own(c, bl_line(bytes), room, err));
        BL_TRY(bl_cuda_check(cudaHostGetDevicePointer(&device, room->to, 0), "pinning Engram tables", err));
    } else {
        room->to = device = bl_cuda_place(b, bytes);
    }
    room->address = device;
    if (device) return BL_OK;
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of device memory for an Engram table of %llu bytes", (unsigned long long)bytes);
}

/* ---- huge pages */

/* Does it overlap a table? */
static bool has_table(const bl_cuda *c, uint64_t from, uint64_t to)
{
    const cuda_host *h = c->pinned;
    while (h && ((uint64_t)(uintptr_t)h->memory >= to || (uint64_t)(uintptr_t)h->memory + h->bytes <= from)) h = h->next;
    return h != NULL;
}

/* The system counts by mapping, and makes one of neighbours that were asked for alike. */
bool bl_cuda_huge_pages(bl_backend *b, uint64_t *bytes)
{
    const bl_cuda *c = cuda_of(b);
    const char *const key = c->engram == BL_ENGRAM_SHARED ? "ShmemPmdMapped:" : "AnonHugePages:";
    uint64_t all = 0;
    unsigned long long from, to, kib;
    bool counts = false, seen = false;
    char line[512];
    FILE *f = c->pinned ? fopen("/proc/self/smaps", "r") : NULL;
    *bytes = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) counts = has_table(c, from, to);
        else if (counts && strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), " %llu kB", &kib) == 1) {
            *bytes += kib * 1024;
            seen = true;
        }
    }
    if (f) fclose(f);
    for (const cuda_host *h = c->pinned; h; h = h->next) all += h->bytes;
    if (*bytes > all) *bytes = all;
    return seen;
}
