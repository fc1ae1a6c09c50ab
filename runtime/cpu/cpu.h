/* Inside the CPU backend. Every operation is a few dispatches over independent items: row tiles of a matrix, tokens, heads. With
 * one token the elementwise parts have one item each and run in the calling thread. */
#ifndef BL_RUNTIME_CPU_CPU_H
#define BL_RUNTIME_CPU_CPU_H

#include "kernels/cast.h"
#include "runtime/backend.h"
#include "runtime/cache.h"

struct cpu_product;

enum {
    CPU_ALIGN = 64,
    CPU_BLOCK = 96,    /* tokens packed together: as many as a panel of decoded weights serves at once; a multiple of 3 */
    CPU_TILE = 32,     /* weight rows of an item when there are many tokens: the least that experts can take */
    CPU_FEW = 3,       /* tokens up to which an item is sized by the bytes of its weights */
    CPU_TILE_MAX = 4096
};

/* Activations prepared for products: blocks of at most CPU_BLOCK tokens, each packed on its own. */
typedef struct cpu_packed {
    uint8_t *data;
    int64_t tokens, cols;
    int64_t block;  /* tokens of all blocks but the last */
    int64_t blocks;
    size_t stride;  /* bytes from block to block */
} cpu_packed;

typedef struct cpu_memory {
    struct cpu_memory *next;
} cpu_memory;

typedef struct bl_cpu {
    bl_backend base; /* first: a bl_backend * is a bl_cpu * */
    bl_linear_kernels linear;
    bl_op_kernels ops;
    bl_pool *pool;
    int threads;
    bl_config config;
    bl_shard shard;
    int64_t max_tokens;
    int64_t group_in; /* columns of wo_a as stored */
    cpu_memory *owned; /* freed with the backend */
    uint64_t kept;     /* their bytes */

    float *frequency[2]; /* [R / 2]: plain, compressed */
    float *rotation[2];  /* [max_tokens][R / 2][2] of the pass's positions */

    /* scratch for max_tokens tokens */
    uint16_t *rounded;                   /* [widest activation] rounded to fp8 */
    uint8_t *plain_pack, *rounded_pack;  /* packed activations */
    size_t group_stride;                 /* bytes in plain_pack from one output group to the next */
    cpu_packed *group_packed;            /* [groups] */
    struct cpu_product *products;        /* [groups] */
    uint16_t *down, *kv, *group, *padded, *head_x;
    float *mix_dots, *squares;
    float *pair_kv, *pair_z; /* [head_dim] compressor products */
    uint16_t *pooled, *key;  /* [head_dim], [index_head_dim] of new entries */
    int64_t *new_entries;    /* [2] span and entry */
    uint16_t *index_q, *index_dots;
    uint8_t *index_rows; /* [index heads] packed queries */
    float *index_w;
    float *router;
    uint16_t *engram_kv;
    struct cpu_experts *experts;

    /* grown for long sequences */
    float *scores; /* [score_rows, longest] */
    int64_t score_rows, longest;
    uint8_t *choose; /* per worker */

    uint8_t *worker; /* [threads][worker_bytes] */
    size_t worker_bytes;
} bl_cpu;

static inline bl_cpu *cpu_of(bl_backend *b)
{
    return (bl_cpu *)b;
}

/* Memory of the backend's own: 64-byte aligned, undefined, freed with the backend. NULL when there is none. */
void *bl_cpu_keep(bl_cpu *c, uint64_t bytes);

static inline void *cpu_worker(const bl_cpu *c, int worker)
{
    return c->worker + (size_t)worker * c->worker_bytes;
}

/* Dispatch items that together touch about so many bytes: on the pool, or in this thread when waking others would cost more. */
void bl_cpu_run(bl_cpu *c, int64_t bytes, int64_t items, void (*fn)(void *arg, int64_t item, int worker), void *arg);
/* Run fn over ranges of tokens [0, n), at most `most` in an item. */
typedef void cpu_token_fn(bl_cpu *c, void *arg, int64_t from, int64_t to, int worker);
void bl_cpu_tokens(bl_cpu *c, int64_t n, int64_t most, cpu_token_fn *fn, void *arg);

/* ---- products (products.c) */
static inline bool cpu_quantised(const bl_matrix *w)
{
    return w->kind == BL_W_FP8 || w->kind == BL_W_FP4;
}
/* Blocks that n tokens of cols columns are packed in at data; no packing yet. */
cpu_packed bl_cpu_blocks(const bl_cpu *c, void *data, int64_t n, int64_t cols);
/* Bytes of those blocks, for at most n tokens. */
size_t bl_cpu_packed_bytes(const bl_linear_kernels *k, int64_t n, int64_t cols);
/* Pack x [out->tokens, out->cols] (row stride ldx), rounded to fp8 first for quantised weights, into out's data. */
void bl_cpu_pack_into(bl_cpu *c, const cpu_packed *out, const uint16_t *x, int64_t ldx, bool round);
/* The same into the backend's buffer: the result stays until the next call with the same `round`. */
cpu_packed bl_cpu_pack(bl_cpu *c, const uint16_t *x, int64_t ldx, int64_t n, int64_t cols, bool round);

/* One product of a dispatch: rows [row0, row0 + rows) of w with x, to y16 (rounded to bf16) or y32, element [t * ld + r - row0]. */
typedef struct cpu_product {
    const bl_matrix *w;
    int64_t row0, rows;
    const cpu_packed *x;
    uint16_t *y16;
    float *y32;
    int64_t ld;
    int64_t tile, first_item; /* set by bl_cpu_products */
} cpu_product;
void bl_cpu_products(bl_cpu *c, cpu_product *list, int n);
/* What a product touches, for bl_cpu_run: its weights once for every few tokens. */
int64_t bl_cpu_work(const bl_matrix *w, int64_t rows, int64_t tokens);
/* Rows of an item: by bytes when reading the weights is what takes time, in any case several items for each thread; a multiple of
 * `multiple` <= 32. */
int64_t bl_cpu_tile_rows(const bl_cpu *c, const bl_matrix *w, int64_t rows, int64_t tokens, int64_t multiple);
/* Within an item: rows [row0, row1) for one block of x as bf16, y [tokens of the block, ld]. */
void bl_cpu_tile(bl_cpu *c, const bl_matrix *w, int64_t row0, int64_t row1, const cpu_packed *x, int64_t block, uint16_t *y,
                 int64_t ld, void *scratch);
/* Bytes of its scratch. */
size_t bl_cpu_tile_bytes(const bl_cpu *c, int64_t cols);

static inline cpu_product cpu_whole(const bl_matrix *w, const cpu_packed *x, uint16_t *y16, float *y32)
{
    return (cpu_product){.w = w, .rows = w->rows, .x = x, .y16 = y16, .y32 = y32, .ld = w->rows};
}

/* ---- the operations, by file; arguments as in backend.h */
/* streams.c */
void bl_cpu_embed(bl_backend *b, const bl_pass *p, uint16_t *x);
void bl_cpu_fan_out(bl_backend *b, const bl_pass *p, uint16_t *H, float *pre, const uint16_t *x);
void bl_cpu_mix(bl_backend *b, const bl_pass *p, const bl_mixing *m, const uint16_t *H, float *pre, float *post, float *comb);
void bl_cpu_collapse(bl_backend *b, const bl_pass *p, const bl_matrix *norm, uint16_t *x, const uint16_t *H, const float *pre);
void bl_cpu_expand(bl_backend *b, const bl_pass *p, uint16_t *H, const uint16_t *y, const float *post, const float *comb);
void bl_cpu_round(bl_backend *b, const bl_pass *p, uint16_t *y, const float *partial);
void bl_cpu_head(bl_backend *b, const bl_pass *p, const uint16_t *H, const float *pre);
void bl_cpu_engram_rows(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *e);
void bl_cpu_engram(bl_backend *b, const bl_pass *p, const bl_layer *l, uint16_t *H, const uint16_t *e);
/* attention.c */
void bl_cpu_project_in(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, uint16_t *qr, uint16_t *q, uint8_t *kv);
void bl_cpu_attend(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *q, const uint8_t *kv, const int32_t *selected,
                   uint16_t *o);
void bl_cpu_store_window(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint8_t *kv);
void bl_cpu_project_out(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *o, float *partial);
size_t bl_cpu_attend_bytes(const bl_cpu *c);
/* compress.c, select.c */
void bl_cpu_compress(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x);
void bl_cpu_select(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const uint16_t *qr, int32_t *selected,
                   int32_t *candidates);
/* Make the score buffers fit sequences of that many entries. */
bl_status bl_cpu_reserve_scores(bl_cpu *c, int64_t entries, bl_error *err);
/* experts.c */
bl_status bl_cpu_experts_init(bl_cpu *c, bl_error *err);
size_t bl_cpu_expert_bytes(const bl_cpu *c);
void bl_cpu_route(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, int32_t *ids, float *gates);
void bl_cpu_experts(bl_backend *b, const bl_pass *p, const bl_layer *l, const uint16_t *x, const int32_t *ids, const float *gates,
                    float *partial);

#endif
