/* The operations a forward pass is made of, and the memory they work on. runtime/forward calls nothing else, so that a backend
 * for another device needs no change there. Pointers marked "device" are addresses in the backend's memory: only the backend
 * may follow them. bf16 is uint16_t; T = tokens of the pass, D = hidden size, S = 4 streams, d = head dimension.
 *
 * Operations may run asynchronously but take effect in the order of the calls; what fails is reported by end(). Results are
 * those of the C references in kernels/, whatever the split of tokens, rows or heads: none depends on the other tokens. */
#ifndef BL_RUNTIME_BACKEND_H
#define BL_RUNTIME_BACKEND_H

#include "formats/config.h"
#include "formats/manifest.h"
#include "formats/pool.h"
#include "kernels/linear.h"
#include "kernels/ops.h"
#include "runtime/forward.h"
#include "runtime/shard.h"
#include "runtime/weights.h"

struct bl_cache;

/* Bytes up to a whole line of 256: what buffers and tables in device memory are placed at. */
static inline uint64_t bl_line(uint64_t bytes)
{
    return bl_pieces(bytes, 256) * 256;
}

/* Consecutive tokens of one sequence within a pass. */
typedef struct bl_pass_span {
    const struct bl_cache *cache;
    int64_t first; /* its first token in the pass */
    int64_t count;
    int64_t start; /* that token's position */
} bl_pass_span;

/* What a pass computes. Host memory, valid until end(). Tokens behind those of the spans are padding. */
typedef struct bl_pass {
    int64_t tokens;
    const int32_t *ids;      /* [tokens] */
    const int64_t *position; /* [tokens] */
    const int32_t *span_of;  /* [tokens] */
    const bl_pass_span *spans;
    int64_t span_count;
    int64_t *engram_rows; /* [Engram layers][.. tokens ..][columns] table rows, engram_stride from layer to layer */
    int64_t engram_columns, engram_stride;
    const bl_weights *weights;
    const int64_t *wanted; /* [wanted_count] tokens of the pass whose logits are wanted */
    int64_t wanted_count;
    float *logits; /* [delivered, vocab] */
    int64_t delivered; /* of the wanted rows, the first so many; the others are padding */
    const bl_draw *draws; /* [delivered] NULL: no token is drawn */
    bl_drawn *drawn;      /* [delivered] */
    bool plain; /* nobody looks at what lies between the operations: no hooks, no other ranks */
} bl_pass;

/* Bytes of a file on their way to device memory. */
typedef struct bl_load {
    bl_file *file; /* those of one file follow each other */
    uint64_t offset, bytes;
    void *to;                /* device, or host where host says so; NULL: they are only checked */
    bool host;
    bool there;              /* to has them already: they are only checked, where they are */
    const bl_digest *chunks; /* of each BL_CHUNK_BYTES, the last one partial; NULL: they are not checked */
    const char *name;        /* of the tensor */
} bl_load;

/* Room for an Engram table. */
typedef struct bl_table_room {
    void *to;            /* for load: device memory, or the host's */
    const void *address; /* for the backend's kernels */
    bool host;
    bool filled; /* the table is there already (shared with another process) */
} bl_table_room;

/* What the newest pass asked of the device. */
typedef struct bl_launches {
    bool recorded;   /* one launch of a graph, else one for each kernel */
    int64_t kernels;
    int64_t waits;   /* of the host for the device */
} bl_launches;

typedef struct bl_backend bl_backend;
struct bl_backend {
    const char *name;
    void (*destroy)(bl_backend *b);

    /* ---- memory: device addresses aligned to 64 bytes, contents undefined; NULL when there is no more. Thread-safe. */
    void *(*alloc)(bl_backend *b, uint64_t bytes);
    void (*release)(bl_backend *b, void *device); /* NULL is fine */
    /* Bytes of device memory that were ever allocated, those of the backend itself and of weights included; NULL: not counted. */
    uint64_t (*allocated)(bl_backend *b);
    void (*upload)(bl_backend *b, void *device, const void *host, uint64_t bytes);
    void (*download)(bl_backend *b, void *host, const void *device, uint64_t bytes);
    /* Device address of a weight's bytes at host, which stay mapped as long as the backend lives; align is what the kernels
     * need (a power of two). A copy is made only where the bytes cannot be used in place; the backend owns it. */
    bl_status (*import)(bl_backend *b, const void **device, const void *host, uint64_t bytes, size_t align, bl_error *err);

    /* Backends with memory of their own have these two; the others use mapped files. place: room for a weight, owned by the backend.
     * load: fill such room from files, several readers at once; what has digests is held against them (BL_E_INPUT names the tensor). */
    void *(*place)(bl_backend *b, uint64_t bytes);
    /* Where Engram tables are kept by the backend: room for one. NULL: they are mapped. */
    bl_status (*place_table)(bl_backend *b, uint64_t bytes, bl_table_room *room, bl_error *err);
    bl_status (*load)(bl_backend *b, const bl_load *items, size_t count, bl_access access, bl_error *err);
    /* A routed expert's weight is loaded: it is put into the order that the backend's kernels take, in place. NULL: they take it as stored. */
    bl_status (*arrange)(bl_backend *b, const bl_matrix *w, bl_error *err);
    /* Of tables in host memory: bytes that lie in huge pages, as the system counts them once they are filled. False: not known, or no such
     * table. NULL: it has none. */
    bool (*huge_pages)(bl_backend *b, uint64_t *bytes);

    /* What is wrong with the device for good, so that every pass from now on fails; NULL: nothing. The whole member may be NULL. */
    const bl_error *(*fault)(bl_backend *b);
    bl_launches (*launches)(bl_backend *b); /* NULL: not counted. kernels 0: nor those of a pass that was not recorded */

    /* ---- a pass: begin may fail (scratch for long sequences) and has then changed nothing. recorded: the backend knows the
     * operations from an earlier plain pass of the same shape and repeats them in end(); the caller leaves them out. */
    bl_status (*begin)(bl_backend *b, const bl_pass *p, bool *recorded, bl_error *err);
    bl_status (*end)(bl_backend *b, bl_error *err);

    /* ---- the streams
     * x [T, D] = embedding rows of the tokens; zero for ids outside this rank's vocabulary range. */
    void (*embed)(bl_backend *b, const bl_pass *p, uint16_t *x);
    /* H [T, S, D] = S copies of x; pre [T, S] = 1, 0, 0, 0. */
    void (*fan_out)(bl_backend *b, const bl_pass *p, uint16_t *H, float *pre, const uint16_t *x);
    /* Mixing coefficients of H: pre, post [T, S], comb [T, S, S] fp32. */
    void (*mix)(bl_backend *b, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb);
    /* x [T, D] = rmsnorm(collapse(H, pre)). */
    void (*collapse)(bl_backend *b, const bl_pass *p, const bl_matrix *norm, uint16_t *x, const uint16_t *H, const float *pre);
    /* H = expand(y, H, post, comb), in place. */
    void (*expand)(bl_backend *b, const bl_pass *p, uint16_t *H, const uint16_t *y, const float *post, const float *comb);
    /* y [T, D] = bf16(partial [T, D]): after the exchange of partial sums. */
    void (*round)(bl_backend *b, const bl_pass *p, uint16_t *y, const float *partial);

    /* ---- attention
     * qr [T, q_lora] = norm of the query's down projection; q [T, heads, d] = its up projection, rotated; kv = the tokens' packed
     * window rows [T, row bytes], not yet in the ring: a chunk may overwrite what its first tokens still attend to. */
    void (*project_in)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, uint16_t *qr, uint16_t *q,
                       uint8_t *kv);
    /* KV sources: the latents and index keys that these tokens complete go to the pages, an even last token to open. */
    void (*compress)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x);
    /* Index sources: selected [T, index_topk] = chosen entries ascending, then -1. candidates [T, candidate_topk_blocks] =
     * blocks, likewise, is written by a publisher and read by layers that are filtered. */
    void (*select)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const uint16_t *qr, int32_t *selected,
                   int32_t *candidates);
    /* o [T, heads, d] = sparse attention over window, then selected entries, rotated back. */
    void (*attend)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *q, const uint8_t *kv,
                   const int32_t *selected, uint16_t *o);
    /* kv to the rings. */
    void (*store_window)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint8_t *kv);
    /* partial [T, D] fp32 = wo_b of the grouped wo_a products. */
    void (*project_out)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *o, float *partial);

    /* ---- experts: ids, gates [T, k], best first; partial [T, D] fp32 = this rank's experts ascending by id, then the shared
     * one. */
    void (*route)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, int32_t *ids, float *gates);
    void (*experts)(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates,
                    float *partial);

    /* ---- Engram: e [T, columns * width] = table rows; then their gated projection is added to H in place. */
    void (*engram_rows)(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *e);
    void (*engram)(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *H, const uint16_t *e);

    /* ---- head: of the wanted tokens, from their streams; this rank's vocabulary range of p->logits, there after end(). */
    void (*head)(bl_backend *b, const bl_pass *p, const uint16_t *H, const float *pre);

    /* ---- drawing, NULL where the device draws nothing: after head, p->drawn is there after end(); logits only of rows not drawn. */
    void (*sample)(bl_backend *b, const bl_pass *p);
    /* Tokens that a step of so many sequences with one token each is padded to (at most max_tokens); NULL: none is. Padding tokens
     * are copies of one of the tokens, place and sequence included: they compute and write what it does. */
    int64_t (*padded)(bl_backend *b, int64_t tokens);
};

/* What a CPU backend may be told. */
typedef struct bl_cpu_options {
    unsigned cpu;       /* capability mask; 0 = plain C; what this CPU lacks is ignored */
    int64_t max_tokens; /* of a pass: bounds its scratch */
    bl_pool *pool;      /* borrowed */
    /* For tests that prove the parity checks: may replace kernels before anything runs. NULL = none. */
    void (*adjust)(bl_linear_kernels *linear, bl_op_kernels *ops);
} bl_cpu_options;

/* What a CUDA backend may be told. It works on the device that is current in the thread that creates it. */
typedef struct bl_cuda_options {
    int64_t max_tokens; /* of a pass: bounds its scratch */
    bl_pool *pool;      /* borrowed; copies weights and Engram rows */
    const struct bl_memory_plan *plan; /* memory_plan.h; zeros where none was made: then everything grows on demand */
    struct bl_shared *shared; /* borrowed; shared_tables.h, where the plan's Engram tables are shared: filled, or to be filled by load */
} bl_cuda_options;

/* BL_E_USAGE: no usable GPU, or a build without CUDA; BL_E_NOMEM names what did not fit. Weights must not be imported while a pass
 * runs. Products are summed in another order than on the CPU (kernels/cuda/README.md), otherwise results are the same. */
bl_status bl_backend_cuda(bl_backend **out, const bl_config *c, const bl_shard *shard, const bl_cuda_options *o, bl_error *err);
/* Is there a GPU, and does this build know what to do with it? *why (may be NULL): what is wrong with the one that there is; left alone
 * where there is none. */
bool bl_cuda_usable(bl_error *why);
/* Memory that the current GPU has free, what the CUDA runtime itself needs not counted. Fails as bl_backend_cuda does. */
bl_status bl_cuda_free_memory(uint64_t *bytes, bl_error *err);

/* Memory that a CPU backend makes for its passes, some of which is used only by large ones. */
bl_status bl_cpu_scratch_bytes(uint64_t *bytes, const bl_config *c, const bl_shard *shard, const bl_cpu_options *o, bl_error *err);
bl_status bl_backend_cpu(bl_backend **out, const bl_config *c, const bl_shard *shard, const bl_cpu_options *o, bl_error *err);

#endif
