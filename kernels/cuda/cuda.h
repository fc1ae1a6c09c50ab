/* The model's operations on an NVIDIA GPU: launchers with a C interface. Each puts kernels on a stream and returns; what fails
 * shows in the stream's next synchronisation. Nothing here allocates, synchronises or copies to the host. All pointers but the
 * structs themselves are device memory, 16-byte aligned; row lengths are multiples of 32 unless said. bf16 is uint16_t.
 *
 * Results equal the C references of kernels/ops.h to the bit for everything without a long sum. Products follow the order of
 * kernels/cuda/dot.h; row sums (of squares, of the Engram gate) are those of ops.h within segments of BL_CUDA_ROW_SEGMENT elements,
 * the segments' sums added to +0 ascending. No result depends on the number of tokens, on the grid or on the architecture. */
#ifndef BL_KERNELS_CUDA_CUDA_H
#define BL_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/dot.h"
#include "kernels/cuda/fp4_tiles.h"
#include "kernels/linear.h"
#include "kernels/sampling.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
typedef struct CUstream_st *bl_cuda_stream; /* a cudaStream_t */

enum {
    BL_CUDA_ROW_SEGMENT = 512,
    BL_CUDA_MAX_HEADS = 64,     /* of the indexer */
    BL_CUDA_MAX_INDEX_DIM = 128, /* of the indexer */
    BL_CUDA_MAX_HEAD_DIM = 512,
    BL_CUDA_MAX_SLOTS = 2048,    /* of attention: window and selected entries */
    BL_CUDA_MAX_CHOICES = 32, /* experts of a token */
    BL_CUDA_MAX_CHOSEN = 65535, /* ... of all tokens together: a grid's second dimension */
    BL_CUDA_MAX_RANK = 16384, /* of the query's projection: a row in shared memory */
    BL_CUDA_MAX_DRAWN = 1 << 23, /* logits that a token is drawn from */
    BL_CUDA_ATTEND_TOKENS = 512, /* whose scores are in scratch together */
    BL_CUDA_SORT_CHUNK = 1024, /* choices that a block sorts */
    BL_CUDA_HEAD_TILE = 16,   /* heads of attention that a block takes together */
    BL_CUDA_FEW = 8,          /* tokens up to which products are those of few.cu */
    BL_CUDA_BESIDE = 3,       /* products that bl_cuda_prepare_attention takes along */
    BL_CUDA_MIX_MANY = 1024, /* tokens from which mixing reads its streams once */
    BL_CUDA_MAX_ROW = 65536   /* elements of a row sum */
};

/* ---- where tokens stand and what their sequences remember: tables in device memory, refilled for each pass */
typedef struct bl_cuda_span {
    int64_t first, start; /* its first token in the pass, and that token's position */
    int64_t count;
    uint8_t *windows; /* [layers][ring rows][window row bytes] */
    float *open;      /* [KV sources][2][head_dim] */
    int64_t pages;    /* index into the page table of its first page; a source's pages follow one another */
} bl_cuda_span;

typedef struct bl_cuda_page {
    uint8_t *latents, *keys; /* [64] packed rows each */
} bl_cuda_page;

typedef struct bl_cuda_tables {
    int64_t tokens;
    const int32_t *ids;           /* [tokens] */
    const int64_t *position;      /* [tokens] */
    const int32_t *span_of;       /* [tokens] */
    const bl_cuda_span *spans;
    const bl_cuda_page *pages;
    const int64_t *source_pages;  /* [spans][sources] first page of a span's source, relative to its pages */
    int64_t sources;
    float *rotation[2];           /* [tokens][R / 2][2] cos, sin of plain and compressed layers */
} bl_cuda_tables;

/* ---- products */
/* y[t * ld + r] = product of row row0 + r of w with x[t * ldx ...], for r < rows, t < tokens. Exactly one of y16 (rounded) and y32
 * is not NULL. With groups > 1 the same for each group g, with x + g * x_step, row0 + g * row_step, y + g * y_step. */
typedef struct bl_cuda_product {
    bl_matrix w; /* codes and scale in device memory */
    int64_t row0, rows;
    const uint16_t *x;
    int64_t ldx, tokens;
    uint16_t *y16;
    float *y32;
    int64_t ld;
    int64_t groups, x_step, row_step, y_step;
    uint16_t *wide; /* scratch for weights expanded to bf16, used where tokens are many; NULL: none */
    int64_t wide_elements;
    bool early; /* may start reading the weight before the kernel that is before it in the stream has ended */
} bl_cuda_product;
void bl_cuda_multiply(bl_cuda_stream s, const bl_cuda_product *p);
/* Both products, in one launch where tokens are few and p and q have the same x. */
void bl_cuda_multiply_two(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q);
/* parts[segment][t][r] = the sums of single segments (ceil(cols / BL_DOT_SEGMENT) of them), for a kernel that adds them itself. */
void bl_cuda_multiply_parts(bl_cuda_stream s, const bl_cuda_product *p, float *parts);
/* p and the parts of q, for few tokens in one launch. False, having started nothing, where it is not for that. */
bool bl_cuda_multiply_with_parts(bl_cuda_stream s, const bl_cuda_product *p, const bl_cuda_product *q, float *parts);

/* y [rows, cols] = rows from `row` on (a multiple of 32) of an fp8 or fp4 weight as bf16, exact for every legal code and scale. */
void bl_cuda_cast(bl_cuda_stream s, uint16_t *y, const bl_matrix *w, int64_t row, int64_t rows);

/* y [rows, n] = fp8 rounding of x (row stride ldx). May be in place. */
void bl_cuda_round_fp8(bl_cuda_stream s, uint16_t *y, const uint16_t *x, int64_t ldx, int64_t rows, int64_t n);

/* ---- streams; shapes as in runtime/backend.h */
void bl_cuda_embed(bl_cuda_stream s, uint16_t *x, const uint16_t *table, const int32_t *ids, int64_t first, int64_t count, int64_t T,
                   int64_t D);
void bl_cuda_fan_out(bl_cuda_stream s, uint16_t *H, float *pre, const uint16_t *x, int64_t T, int64_t D);
/* Coefficients of a sublayer's mixing from its streams. */
typedef struct bl_cuda_mixing {
    const float *fn, *scale3, *base24; /* fn [24, 4 D] */
    const uint16_t *H;                 /* [T, 4, D] */
    float *parts;                      /* [ceil(4 D / BL_DOT_SEGMENT), T, 24]: of multiply_parts for fn and H */
    float *pre, *post, *comb;          /* [T, 4], [T, 4], [T, 4, 4] */
    int64_t T, D;
    float eps_rms, eps;
    int iters; /* of Sinkhorn */
} bl_cuda_mixing;
void bl_cuda_mix(bl_cuda_stream s, const bl_cuda_mixing *m);
/* The same from H alone, reading it once; false, having started nothing, for fewer tokens than BL_CUDA_MIX_MANY. parts is scratch of the
 * same size, which holds fn as three bf16 meanwhile; where it is NULL a slower kernel does it. */
bool bl_cuda_mix_many(bl_cuda_stream s, const bl_cuda_mixing *m);
/* x[i] = rmsnorm(collapse(token tokens[i], or i when tokens is NULL)); rounded (may be NULL) its fp8 rounding. */
void bl_cuda_collapse(bl_cuda_stream s, uint16_t *x, uint16_t *rounded, const uint16_t *H, const float *pre, const uint16_t *norm,
                      const int64_t *tokens, int64_t n, int64_t D, float eps);
/* H = expand(y, H, post, comb) in place. */
void bl_cuda_expand(bl_cuda_stream s, uint16_t *H, const uint16_t *y, const float *post, const float *comb, int64_t T, int64_t D);
/* Both in one: H = expand(y, H, post, comb), then x and its rounding as above. y = bf16 of partial, or where that is NULL of the sum
 * of bl_cuda_sum_experts. */
typedef struct bl_cuda_advance {
    uint16_t *H;
    const float *partial; /* [T, D] */
    const uint16_t *out, *shared;
    const int32_t *slot_of;
    int k;
    const float *post, *comb, *pre;
    const uint16_t *norm;
    uint16_t *x, *rounded;
    int64_t T, D;
    float eps;
    bool early; /* all inputs but partial, out and shared are older than the kernel before the one that is before this one in the stream */
} bl_cuda_advance;
void bl_cuda_advance_streams(bl_cuda_stream s, const bl_cuda_advance *a);
void bl_cuda_to_bf16(bl_cuda_stream s, uint16_t *y, const float *x, int64_t n);
/* y [rows, n] = rmsnorm of x; rounded (may be NULL) its fp8 rounding. */
void bl_cuda_rmsnorm(bl_cuda_stream s, uint16_t *y, uint16_t *rounded, const uint16_t *x, const uint16_t *w, int64_t rows, int64_t n,
                     float eps);

/* ---- attention */
/* Fill t->rotation for the tokens' positions from frequencies [2][R / 2]. */
void bl_cuda_rotations(bl_cuda_stream s, const bl_cuda_tables *t, const float *frequency, int64_t R);
/* Rotate q [T, heads, d] in place. */
void bl_cuda_rope(bl_cuda_stream s, uint16_t *q, const float *rotation, int64_t T, int64_t heads, int64_t d, int64_t R);
/* Window rows of a pass's tokens: norm of down [T, d], rotation, packing to kv; with ring > 0 also what bl_cuda_store_window does, for passes
 * of no more tokens than the ring has rows beyond the window. The rotations are older than the kernel before. */
typedef struct bl_cuda_window {
    const bl_cuda_tables *t;
    uint8_t *kv;
    const uint16_t *down, *norm;
    const float *rotation;
    int64_t d, R;
    float eps;
    int64_t ring, layer_offset;
} bl_cuda_window;
void bl_cuda_window_rows(bl_cuda_stream s, const bl_cuda_window *w);
/* What is between the projections down and up of up to BL_CUDA_FEW tokens, in one launch: bl_cuda_rmsnorm of rows of n; window rows; the
 * parts of a product as bl_cuda_multiply_parts makes them (dots NULL: none); and up to BL_CUDA_BESIDE other products, in launches of their
 * own where not all of them are of the same x and bf16. May begin early. */
typedef struct bl_cuda_between {
    uint16_t *y, *rounded;
    const uint16_t *x, *norm;
    int64_t n;
    float eps;
    bl_cuda_window window;
    const bl_cuda_product *dots;
    float *parts;
    const bl_cuda_product *with;
    int with_count;
} bl_cuda_between;
void bl_cuda_prepare_attention(bl_cuda_stream s, const bl_cuda_between *b);
typedef struct bl_cuda_attention {
    const bl_cuda_tables *t;
    const uint16_t *q; /* [T, heads, d] */
    const uint8_t *kv; /* window rows of the pass */
    const int32_t *selected; /* [T, topk]; NULL for window-only layers */
    const float *sink, *rotation;
    uint16_t *o;
    int64_t heads, d, R, window, ring, topk;
    int64_t layer_offset; /* bytes of the layer's ring in a span's windows */
    int64_t source;
    float scale;
    float *scores;        /* scratch of bl_cuda_attend_scores bytes */
    const bl_cuda_mixing *mixing; /* NULL, or for bl_cuda_mix beside it, of the same tokens */
    bool early; /* all inputs but q are older than the kernel before */
    bool fresh; /* early, and `selected` is the kernel before's */
} bl_cuda_attention;
void bl_cuda_attend(bl_cuda_stream s, const bl_cuda_attention *a);
size_t bl_cuda_attend_scores(int64_t T, int64_t heads, int64_t slots);
void bl_cuda_store_window(bl_cuda_stream s, const bl_cuda_tables *t, const uint8_t *kv, int64_t d, int64_t ring, int64_t layer_offset);

/* ---- compressor: a token whose position closes a group of `ratio` completes an entry; rows of other tokens are left alone */
/* pooled [T, d] from the pair's products kv, z [T, d] fp32; then the newest even token's go to open. */
void bl_cuda_pool_pairs(bl_cuda_stream s, const bl_cuda_tables *t, uint16_t *pooled, const float *kv, const float *z, int64_t d,
                        int64_t source);
typedef struct bl_cuda_entries {
    const bl_cuda_tables *t;
    const uint16_t *latent; /* [T, d] normed */
    const uint16_t *key;    /* [T, width] projected, not normed */
    const uint16_t *k_norm;
    const float *frequency; /* [R / 2] of compressed layers */
    int64_t d, width, R, ratio, source;
    float eps;
} bl_cuda_entries;
void bl_cuda_store_entries(bl_cuda_stream s, const bl_cuda_entries *e);

/* ---- indexer */
/* rows [T, heads] packed index rows of the rotated q [T, heads, width]; weights [T, heads] = bf16(bf16(dots) * scale). */
typedef struct bl_cuda_index_query {
    uint8_t *rows;
    float *weights;
    const uint16_t *q, *dots;
    const float *rotation;
    int64_t T, heads, width, R;
    float scale;
} bl_cuda_index_query;
void bl_cuda_index_queries(bl_cuda_stream s, const bl_cuda_index_query *q);
/* What is behind the projections up of up to BL_CUDA_FEW tokens, in one launch: bl_cuda_rope; queries of the indexer (NULL: none); and entries
 * of the compressor (NULL: none), from its first products on. May begin early. Of a span with more than one token no row may be a copy. */
typedef struct bl_cuda_compression {
    const bl_cuda_entries *e; /* its latent: the products before the norm where entries are of one token; its key: not used */
    const float *kv, *z;      /* [T, d] where they are of pairs, for bl_cuda_pool_pairs; else NULL */
    const uint16_t *norm;     /* [d] */
    bl_matrix wk;             /* [width, d], for which bl_cuda_holds_key is true */
} bl_cuda_compression;
bool bl_cuda_holds_key(const bl_matrix *wk);
typedef struct bl_cuda_behind {
    uint16_t *q; /* [T, heads, d] */
    const float *rotation;
    int64_t T, heads, d, R;
    const bl_cuda_index_query *index;
    const bl_cuda_compression *entries;
} bl_cuda_behind;
void bl_cuda_finish_queries(bl_cuda_stream s, const bl_cuda_behind *b);
typedef struct bl_cuda_selection {
    const bl_cuda_tables *t;
    const uint8_t *queries;
    const float *weights;
    int64_t first, rows;     /* tokens handled by this call */
    int64_t heads, width, ratio, source, topk;
    int64_t longest;         /* no sequence has more entries; row length of scores */
    float *scores;           /* [rows, longest] */
    uint32_t *best;          /* [rows, blocks of longest] scratch of the publisher */
    int32_t *selected;       /* [T, topk] */
    int32_t *candidates;     /* [T, blocks] */
    int64_t blocks, size;
    bool publish, filtered;
} bl_cuda_selection;
void bl_cuda_select(bl_cuda_stream s, const bl_cuda_selection *a);

/* ---- experts */
/* An expert's fp4 weight, whose codes and scales lie in device memory as they are stored, into the order that products with experts take,
 * in place (fp4_tiles.h; any bytes can be had back). Nothing where bl_fp4_tiled says no. Once for each weight. */
void bl_cuda_tile_fp4(bl_cuda_stream s, const bl_matrix *w);
typedef struct bl_cuda_expert {
    const void *codes[3]; /* w1, w3, w2; fp4 ones tiled */
    const uint8_t *scale[3];
} bl_cuda_expert;
typedef struct bl_cuda_groups { /* of a pass, made by bl_cuda_sort */
    int32_t *token;   /* [slots] */
    float *gate;      /* [slots] */
    int32_t *slot_of; /* [T, k] ascending, then -1 */
    int32_t *units;   /* [max units][3] expert, first slot, slots */
    int32_t *count;   /* [1] units */
    int32_t *classes; /* [8] first unit of each size, where many: units are sorted by it */
    int32_t *counts;  /* scratch of bl_cuda_sort_counts elements */
} bl_cuda_groups;
void bl_cuda_route(bl_cuda_stream s, int32_t *ids, float *gates, const float *logits, const float *bias, int64_t T, int64_t E, int64_t k,
                   bool norm_topk, float route_scale);
/* Both for few tokens (bl_cuda_routes_few), at once: also g, as bl_cuda_sort makes it of the choices; and beside it, as bl_cuda_mix does, the
 * coefficients of a mixing (NULL: none). */
bool bl_cuda_routes_few(int64_t T, int64_t E, int64_t k);
void bl_cuda_route_few(bl_cuda_stream s, const bl_cuda_groups *g, int32_t *ids, float *gates, const float *logits, const float *bias,
                       int64_t T, int64_t E, int64_t k, bool norm_topk, float route_scale, int64_t first, int64_t count,
                       const bl_cuda_mixing *mixing);
/* Whether products with experts [rows, cols] take the kernels for many tokens (sm90): units are larger there, and x by slots has the
 * four elements 4 t .. 4 t + 3 of each 16 at 2 t, 2 t + 1, 2 t + 8, 2 t + 9 ("spread"). */
bool bl_cuda_many_experts(int64_t T, bl_weight_kind kind, int64_t rows, int64_t cols);
/* Slots of the T * k choices sorted by expert, then token; experts outside [first, first + count) are dropped. */
void bl_cuda_sort(bl_cuda_stream s, const bl_cuda_groups *g, const int32_t *ids, const float *gates, int64_t T, int64_t k, int64_t first,
                  int64_t count, bool many);
/* Slots of a unit at most, and units at most, for T tokens of k choices among E experts. */
int64_t bl_cuda_unit_slots(int64_t T, bool many);
int64_t bl_cuda_max_units(int64_t T, int64_t k, int64_t E, bool many);
/* Choices of a block of the sort (whole tokens), and elements of groups.counts. */
int64_t bl_cuda_sort_chunk(int64_t k);
int64_t bl_cuda_sort_counts(int64_t T, int64_t k, int64_t E);
typedef struct bl_cuda_expert_product {
    const bl_cuda_expert *experts; /* [experts] */
    const bl_cuda_groups *groups;  /* host struct */
    bl_weight_kind kind;
    int64_t rows, cols;
    int which[2], count; /* weights multiplied: indexes into codes */
    const uint16_t *x;
    bool by_token; /* x rows are tokens, else slots */
    uint16_t *y[2]; /* [slots, rows] */
    int64_t T, k, E;
    bool many;         /* bl_cuda_many_experts; then x by slots is spread */
    uint16_t *grouped; /* scratch [slots, cols] for x by_token when many */
    /* The shared expert's products, done in the same launch: only where bl_cuda_joins_experts says so, all of them with the same x. */
    const bl_cuda_product *shared;
    int shared_count; /* 0, 1, 2 */
    /* What was there before the kernel that is before this one in the stream began: the groups (again), or else x of the shared ones. */
    bool again;
    int spare; /* multiprocessors that are left to other streams where tokens are few */
} bl_cuda_expert_product;
/* Whether a product of the shared expert can be done in the launch of p. */
bool bl_cuda_joins_experts(const bl_cuda_expert_product *p, const bl_cuda_product *shared);
void bl_cuda_multiply_experts(bl_cuda_stream s, const bl_cuda_expert_product *p);
/* a [n, inter] = swiglu(g, u) with the gates of the first `gated` rows (others: 1), rounded to fp8 when round; spread: in the order of many
 * experts. May begin early. */
void bl_cuda_swiglu(bl_cuda_stream s, uint16_t *a, const uint16_t *g, const uint16_t *u, const float *gate, int64_t gated, int64_t n,
                    int64_t inter, float limit, bool round, bool spread);
/* partial [T, D] = rows of y by slot_of ascending, then the shared expert's row (NULL: none). */
void bl_cuda_sum_experts(bl_cuda_stream s, float *partial, const uint16_t *y, const int32_t *slot_of, const uint16_t *shared, int64_t T,
                         int64_t k, int64_t D);

/* ---- Engram */
/* e [rows, width] of gathered table rows: codes [rows, width], scales [rows, width / 32]. */
void bl_cuda_engram_rows(bl_cuda_stream s, uint16_t *e, const uint8_t *codes, const uint8_t *scale, int64_t rows, int64_t width);
/* An Engram table, or a part of its rows; it may lie in pinned memory of the host. */
typedef struct bl_cuda_table {
    const uint8_t *codes, *scale; /* [rows, width], [rows, width / 32] */
    int64_t width;
    bool cut; /* of the whole table it has rows [first, first + rows), which are not looked at otherwise */
    int64_t first, rows;
} bl_cuda_table;
/* The same, gathered on the way: row i of e [count, width] is row rows[i] of the whole table; zeros where the table does not have it. */
void bl_cuda_engram_gather(bl_cuda_stream s, uint16_t *e, const bl_cuda_table *t, const int64_t *rows, int64_t count);
/* kv [T, 5, D]: keys of four streams, then the value. */
void bl_cuda_engram_gate(bl_cuda_stream s, uint16_t *H, const uint16_t *kv, const float *qk, int64_t T, int64_t D, float eps);

/* ---- sampling */
typedef struct bl_cuda_draw {
    bl_sampling sampling;
    uint64_t position;
    bool draw; /* else the row's logits stay as they are */
} bl_cuda_draw;
typedef struct bl_cuda_drawn {
    int32_t token; /* -1: no logit is a number. Rows that are not drawn from: the largest */
    int32_t nans;  /* logits that are none */
} bl_cuda_drawn;
/* A token for each row of logits [rows, n], as runtime/sample.c draws it; the logits of drawn rows may be used up.
 * n <= BL_CUDA_MAX_DRAWN. */
void bl_cuda_sample(bl_cuda_stream s, bl_cuda_drawn *drawn, float *logits, const bl_cuda_draw *draws, int64_t rows, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
