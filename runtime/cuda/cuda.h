/* Inside the CUDA backend: one stream, on which everything happens in the order of the calls, and a side stream for what nothing
 * needs at once (the mixing, window rows, of many tokens the shared expert), which joins again before it is used. Host tables of a pass
 * are copied over in one piece; nothing in a pass waits for the device but its end. */
#ifndef BL_RUNTIME_CUDA_CUDA_H
#define BL_RUNTIME_CUDA_CUDA_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"
#include "runtime/backend.h"
#include "runtime/cache.h"
#include "runtime/memory_plan.h"

#include <pthread.h>

enum {
    CUDA_WIDE = 64 << 20, /* elements: any projection but Engram's at the released widths */
    CUDA_SIDE_WIDE = 16 << 20,
    CUDA_STEP = 512, /* tokens up to which steps of decoding are padded and recorded */
    CUDA_GRAPHS = 64 /* recorded passes that are kept; beyond that all are forgotten */
};

typedef struct cuda_graph cuda_graph;

/* A slab that weights are laid out in. */
typedef struct cuda_slab {
    struct cuda_slab *next;
    uint8_t *memory;
    uint64_t bytes, used;
} cuda_slab;

/* Memory of the host that the GPU reads. */
typedef struct cuda_host {
    struct cuda_host *next;
    void *memory;
    uint64_t bytes;
    bool own;
} cuda_host;

/* Memory of Engram tables that other processes use too. */
typedef struct cuda_shared {
    uint8_t *memory;
    uint64_t bytes, used; /* used: by tables that were placed */
    bool filled;
} cuda_shared;

/* Where the tables of a pass of so many tokens lie, in host and device memory alike: offsets from the beginning. */
typedef struct cuda_layout {
    uint64_t ids, position, span_of, spans, source_pages, wanted, draws, drawn, engram;
    uint64_t pages; /* last: only those in use are copied */
} cuda_layout;

/* What a buffer is for. */
typedef enum cuda_use { CUDA_ACTIVATIONS = 0, CUDA_ATTENTION, CUDA_INDEX, CUDA_EXPERTS, CUDA_ENGRAM, CUDA_USES } cuda_use;

typedef struct cuda_buffer {
    size_t at; /* of its pointer in bl_cuda */
    cuda_use use;
    uint64_t bytes;
} cuda_buffer;

enum { CUDA_BUFFERS = 48 };

/* What the backend takes. */
typedef struct cuda_sizes {
    cuda_layout layout; /* of the largest pass */
    cuda_buffer buffers[CUDA_BUFFERS]; /* one after the other, each in whole lines */
    size_t count;
    uint64_t used[CUDA_USES]; /* their sums */
    int64_t score_floats;
    uint64_t rows_bytes;  /* Engram rows of one table */
    uint64_t table_bytes; /* a pass's tables, on both sides; more is allocated when a pass needs more */
    int64_t logits_rows;  /* likewise */
} cuda_sizes;

typedef struct bl_cuda {
    bl_backend base; /* first: a bl_backend * is a bl_cuda * */
    bl_config config;
    bl_shard shard;
    int64_t max_tokens;
    int device;
    bl_pool *pool; /* borrowed: reads weights and Engram rows */
    bl_cuda_stream stream, side;
    void *forked, *joined, *marked; /* events */
    bool apart; /* the side stream has been forked and not joined since */
    pthread_mutex_t lock; /* of alloc and release */

    /* weights */
    cuda_slab *slabs;
    const bl_weights *known; /* whose experts are in the table, and their version */
    int64_t known_version;
    bl_cuda_expert *experts; /* device [layers][experts] */

    cuda_sizes sizes;
    uint64_t allocated; /* device memory, ever */
    bl_error fault;     /* that lasts */
    bl_engram_place engram;
    cuda_host *pinned; /* pinned, where Engram tables are on the host */
    cuda_shared shared;

    /* tables of a pass */
    cuda_layout layout;
    uint8_t *host_tables, *device_tables;
    uint64_t table_bytes;
    bl_cuda_tables tables;
    const bl_pass *pass;
    int64_t longest; /* bound of the entries of a sequence, a power of two */
    cuda_graph *graphs, *graph; /* all; the one being recorded or repeated */
    int graph_count;
    bl_launches launches; /* of the newest pass */
    uint8_t *host_rows, *device_rows; /* gathered Engram rows of each table: [max_tokens * columns] codes, then scales */
    float *host_logits, *device_logits; /* [wanted, vocab]; grown */
    int64_t logits_rows;
    float *frequency; /* device [2][R / 2] */

    /* scratch for max_tokens tokens; device: sizes.buffers says how much */
    uint8_t *memory;
    uint16_t *rounded, *down, *kv_down, *qr_rounded, *group, *padded, *head_x, *pooled, *key, *index_q, *index_dots, *engram_kv;
    uint16_t *up, *gate, *act; /* of slots, then of the shared expert */
    uint16_t *out, *shared_out, *x_rounded;
    float *attend_scores;
    uint16_t *wide, *side_wide; /* weights expanded to bf16, on the main and the side stream */
    float *parts, *pair_kv, *pair_z, *router, *index_w, *scores;
    uint8_t *index_rows;
    uint32_t *best;
    bl_cuda_groups groups;

    /* Plain passes: what is put off until it can be done together with what comes next. */
    struct {
        bool expand, mix; /* whether there is an expansion, a mixing to do */
        bool parts; /* of the mixing only the coefficients, its products are there */
        bl_cuda_advance advance; /* of the expansion: its inputs */
        float *partial; /* where its sum goes when it is done alone */
        bool close; /* the two kernels before it may begin the next one at once: what is before these may not have ended then */
        uint16_t *y;
        const bl_mixing *mixing;
        const uint16_t *streams; /* that are mixed */
        float *pre, *post, *comb; /* of the mixing */
    } later;
    bool x_is_rounded, sorted; /* x_rounded has the sublayer's input; groups have the pass's choices */
    bool stored, chosen; /* of a layer: the rings have its window rows; entries or choices are as new as its queries */
} bl_cuda;

static inline bl_cuda *cuda_of(bl_backend *b)
{
    return (bl_cuda *)b;
}

static inline bool cuda_quantised(const bl_matrix *w)
{
    return w->kind == BL_W_FP8 || w->kind == BL_W_FP4;
}

/* ---- plan.c. Pure; plan says what the cache is planned for. */
void bl_cuda_measure(cuda_sizes *out, const bl_config *c, const bl_shard *shard, int64_t max_tokens, const bl_memory_plan *plan);
cuda_layout bl_cuda_lay_out(const bl_config *c, int64_t tokens);
int64_t bl_cuda_padded(bl_backend *b, int64_t tokens); /* backend.h */
uint64_t bl_cuda_logits_bytes(const bl_shard *shard, int64_t rows);
/* What the CUDA runtime takes for as many recorded passes as are kept, and for the machine code of kernels. */
uint64_t bl_cuda_graph_bytes(const bl_shard *shard);

/* ---- memory.c */
void *bl_cuda_alloc(bl_backend *b, uint64_t bytes);
/* Of the host; NULL when there is no more. For cudaFreeHost. */
void *bl_cuda_alloc_pinned(bl_cuda *c, uint64_t bytes);
void bl_cuda_release(bl_backend *b, void *device);
void bl_cuda_upload(bl_backend *b, void *device, const void *host, uint64_t bytes);
void bl_cuda_download(bl_backend *b, void *host, const void *device, uint64_t bytes);
bl_status bl_cuda_import(bl_backend *b, const void **device, const void *host, uint64_t bytes, size_t align, bl_error *err);
/* weight_bytes: room for weights made at once; 0 = as they come. */
bl_status bl_cuda_memory_create(bl_cuda *c, uint64_t weight_bytes, bl_error *err);
void bl_cuda_memory_destroy(bl_cuda *c);
void *bl_cuda_place(bl_backend *b, uint64_t bytes);

/* The side stream goes on from here; the main stream goes on when the side stream is done. */
void bl_cuda_fork(bl_cuda *c);
void bl_cuda_join(bl_cuda *c);
/* The main stream goes on at `await` when the side stream is done with what it had at `mark`. */
void bl_cuda_mark(bl_cuda *c);
void bl_cuda_await(bl_cuda *c);

/* ---- tables.c: Engram tables. Those in shared, so many bytes, are pinned at once, others when they are placed. */
bl_status bl_cuda_tables_create(bl_cuda *c, const bl_shared *shared, uint64_t bytes, bl_error *err);
void bl_cuda_tables_destroy(bl_cuda *c);
bl_status bl_cuda_place_table(bl_backend *b, uint64_t bytes, bl_table_room *room, bl_error *err);
bool bl_cuda_huge_pages(bl_backend *b, uint64_t *bytes);

/* ---- load.c */
bl_status bl_cuda_load(bl_backend *b, const bl_load *items, size_t count, bl_access access, bl_error *err);
bl_status bl_cuda_arrange(bl_backend *b, const bl_matrix *w, bl_error *err);

/* ---- pass.c */
bl_status bl_cuda_pass_create(bl_cuda *c, bl_error *err);
void bl_cuda_pass_destroy(bl_cuda *c);
bl_status bl_cuda_begin(bl_backend *b, const bl_pass *p, bool *recorded, bl_error *err);
bl_status bl_cuda_end(bl_backend *b, bl_error *err);
/* Mapped tables: gather the rows that the pass needs in host_rows; a copy to device_rows follows. */
void bl_cuda_gather(bl_cuda *c, const bl_layer *l);
void bl_cuda_send_rows(bl_cuda *c, const bl_layer *l);
/* The rows of a layer's table that this rank has. */
static inline bl_rows bl_cuda_held_rows(const bl_cuda *c, const bl_layer *l)
{
    return bl_shard_engram_rows(&c->shard, c->config.engram_num_embeddings[l->engram_slot]);
}
/* Do kernels reach the tables, so that the host gathers nothing? */
static inline bool cuda_gathers(const bl_cuda *c)
{
    return c->engram == BL_ENGRAM_DEVICE || c->engram == BL_ENGRAM_HOST || c->engram == BL_ENGRAM_SHARED;
}
static inline uint64_t cuda_row_offset(const bl_cuda *c, const bl_layer *l)
{
    return (uint64_t)l->engram_slot * c->sizes.rows_bytes;
}

/* ---- graph.c: whether the pass is recorded already (then end launches it), or is recorded now. */
bl_status bl_cuda_graph_begin(bl_cuda *c, const bl_pass *p, bool *recorded, bl_error *err);
bl_status bl_cuda_graph_end(bl_cuda *c, bl_error *err);
/* Whenever a buffer that they know has moved. */
void bl_cuda_forget_graphs(bl_cuda *c);

/* ---- ops.c, sparse.c: the operations; arguments as in backend.h */
void bl_cuda_set_operations(bl_backend *table);
void bl_cuda_set_attention(bl_backend *table);
/* y = w x, x [T, cols] given plain and (NULL: made here, in c->rounded) rounded to fp8; which one w takes depends on its kind. */
void bl_cuda_linear_on(bl_cuda *c, bl_cuda_stream s, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T,
                       uint16_t *y16, float *y32);
/* The same as a product, to be done on a stream. */
bl_cuda_product bl_cuda_product_of(bl_cuda *c, bl_cuda_stream s, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T,
                                   uint16_t *y16, float *y32);
/* The mixing that was put off, if any, on the side stream: its input must be there, and the side stream forked since. */
void bl_cuda_start_mixing(bl_cuda *c, const bl_pass *p);
/* Its products (no rows: none was put off), which the caller puts on the main stream; a kernel there makes coefficients of them. */
bl_cuda_product bl_cuda_take_parts(bl_cuda *c, const bl_pass *p);
bl_cuda_mixing bl_cuda_mixing_of(const bl_cuda *c, const bl_pass *p);
/* The next expansion's input: partial [T, D], done, or still to be made of the experts' rows. */
void bl_cuda_put_off_sum(bl_cuda *c, float *partial, bool done);
/* ... on the main stream. */
void bl_cuda_linear(bl_cuda *c, const bl_matrix *w, const uint16_t *x, const uint16_t *rounded, int64_t T, uint16_t *y16, float *y32);

#endif
