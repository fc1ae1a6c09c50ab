/* The memory plan: what a model takes where, worked out from its config and shapes before anything is allocated. On a GPU the
 * backend allocates what the plan says and nothing else, unless the cache grows on demand. */
#ifndef BL_RUNTIME_MEMORY_PLAN_H
#define BL_RUNTIME_MEMORY_PLAN_H

#include "runtime/forward.h"
#include "runtime/shard.h"
#include "runtime/shared_tables.h"
#include "runtime/weights.h"

typedef enum bl_memory_place {
    BL_MEMORY_DEVICE = 0, /* memory of the GPU */
    BL_MEMORY_PINNED,     /* memory of the host that the GPU reads */
    BL_MEMORY_SHARED,     /* likewise, once for all processes that use it */
    BL_MEMORY_HOST,
    BL_MEMORY_MAPPED, /* files: the page cache has as much of them as it likes */
    BL_MEMORY_PLACES
} bl_memory_place;

typedef struct bl_memory_line {
    bl_memory_place place;
    const char *what;
    uint64_t bytes;
} bl_memory_line;

enum { BL_MEMORY_LINES = 24 };

typedef struct bl_memory_plan {
    bl_device device; /* CPU or CUDA */
    bl_memory_line lines[BL_MEMORY_LINES];
    int count;
    uint64_t total[BL_MEMORY_PLACES];
    uint64_t memory;  /* what the device has free; 0 = not known */
    uint64_t reserve; /* of it, kept free for recorded passes */
    uint64_t host_memory; /* what the host has available; 0 = not known, or no GPU */

    /* cache: all 0 = it grows on demand */
    int sequences;
    int64_t context; /* of a sequence, at most */
    int64_t tokens;  /* of all sequences together */
    int64_t pages;
    uint64_t cache_bytes;

    uint64_t weight_bytes; /* on the device; 0 = not known */

    bl_engram_place engram; /* chosen; AUTO: there are no tables */
    uint64_t engram_bytes;
    bl_shared_room shared; /* where they are shared: for them */
    char engram_why[160];
} bl_memory_plan;

/* What is planned for. */
typedef struct bl_memory_request {
    bl_device device;
    int64_t max_tokens; /* of a pass */
    bl_cache_room cache;
    uint64_t memory;        /* as above */
    uint64_t host_memory;   /* what the host has available; 0 = not known */
    bl_engram_place engram;
    bl_shared_room shared; /* for tables that are to be shared */
    uint64_t scratch_bytes; /* of the CPU backend; not used for a GPU */
} bl_memory_request;

/* Does it fit in what is known of the device's memory; what is pinned, without what is there already, in the host's; what is shared in what
 * the host lets be shared? */
static inline bool bl_memory_plan_device_fits(const bl_memory_plan *p)
{
    return !p->memory || p->total[BL_MEMORY_DEVICE] + p->reserve <= p->memory;
}
static inline uint64_t bl_memory_plan_host_needs(const bl_memory_plan *p)
{
    const uint64_t shared = p->total[BL_MEMORY_SHARED], there = p->shared.there;
    return p->total[BL_MEMORY_PINNED] + (shared > there ? shared - there : 0);
}
static inline bool bl_memory_plan_shared_fits(const bl_memory_plan *p)
{
    return !p->shared.free || p->total[BL_MEMORY_SHARED] <= p->shared.there + p->shared.free;
}
static inline bool bl_memory_plan_host_fits(const bl_memory_plan *p)
{
    return !p->host_memory || bl_memory_plan_host_needs(p) <= p->host_memory;
}
static inline bool bl_memory_plan_fits(const bl_memory_plan *p)
{
    return bl_memory_plan_device_fits(p) && bl_memory_plan_host_fits(p) && bl_memory_plan_shared_fits(p);
}
/* Pure. BL_E_NOMEM, with the numbers: memory of the device, or of the host for what is pinned or shared, is known and too small. *out is filled in
 * even then. */
bl_status bl_memory_plan_make(bl_memory_plan *out, const bl_memory_request *r, const bl_config *c, const bl_shard *shard,
                              const bl_weights *w, bl_error *err);

#endif
