/* What is behind bl_model and bl_sequence. For the runtime itself, and for benchmarks that make up a model in memory. */
#ifndef BL_RUNTIME_MODEL_H
#define BL_RUNTIME_MODEL_H

#include "runtime/backend.h"
#include "runtime/cache.h"
#include "runtime/comm.h"
#include "runtime/forward.h"
#include "runtime/memory_plan.h"
#include "runtime/shared_tables.h"
#include "runtime/weights.h"

/* Tokens of one pass at most: enough that reading an expert's weights is shared by several tokens, few enough that scratch stays
 * in the hundreds of megabytes at real widths. */
enum { BL_PASS_TOKENS = 512, BL_PASS_TOKENS_GPU = 8192 /* there an expert wants a hundred tokens, and memory is plenty */ };

/* Buffers of a pass, sized for pass_tokens when the model is opened. Shapes as in backend.h. */
typedef struct bl_scratch {
    /* device, in one piece of bl_scratch_bytes */
    uint8_t *memory;
    uint16_t *streams, *x, *y, *qr, *q, *o, *e;
    uint8_t *kv;
    float *pre[2], *post, *comb, *partial, *gates;
    int32_t *selected, *candidates, *experts;
    /* host */
    int32_t *ids, *span_of;
    int64_t *position, *wanted, *engram_rows;
    bl_pass_span *spans;
} bl_scratch;

struct bl_model {
    bl_checkpoint *checkpoint;
    bl_config config;
    bl_shard shard;
    bl_weights weights;
    bl_tokenizer *tokenizer;
    bl_engram *engram;
    bl_pool *pool;
    bl_backend *backend;
    bl_comm *comm;
    bl_page_pool pages;
    int64_t pass_tokens; /* of one pass at most */
    bl_scratch scratch;
    bl_memory_plan plan; /* zeros: none was made */
    bl_shared_key shared_key; /* of its Engram tables, where the plan is to share them */
    bl_shared *shared;
    bl_error no_gpu; /* why AUTO is the CPU where there is a GPU */
};

struct bl_sequence {
    bl_model *model;
    bl_cache cache;
    int64_t length;
    bool in_batch; /* while bl_forward looks for sequences that occur twice */
};

/* Device memory of a bl_scratch. */
uint64_t bl_scratch_bytes(const bl_config *c, const bl_shard *shard, int64_t tokens);

/* Tokens of one pass at most on a device. */
int64_t bl_pass_tokens(const bl_config *c, bl_device device);

/* Everything that needs no payload: checkpoint, config, weights without addresses, and m->plan for a device with so much free memory
 * (0 = not known). */
bl_status bl_model_describe(bl_model *m, const char *path, const bl_model_options *o, uint64_t memory, bl_error *err);
/* Pool, backend, page pool and scratch for m->config, m->shard and m->plan. */
bl_status bl_model_prepare(bl_model *m, const bl_model_options *o, bl_error *err);

/* One pass through the backbone and, for the wanted tokens, the head. */
bl_status bl_run_pass(bl_model *m, const bl_pass *p, const bl_hooks *hooks, bl_error *err);

#endif
