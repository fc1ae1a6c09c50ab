/* The weights of the text model as views: where each matrix's codes and scales are, in the backend's memory, in the form they
 * are stored in. Nothing is expanded when a model is opened. */
#ifndef BL_RUNTIME_WEIGHTS_H
#define BL_RUNTIME_WEIGHTS_H

#include "formats/checkpoint.h"
#include "kernels/linear.h"
#include "runtime/shard.h"
#include "runtime/shared_tables.h"

/* Coefficients of the residual streams around one sublayer: fn F32 [24, 4 * hidden], base F32 [24], scale F32 [3]. */
typedef struct bl_mixing {
    bl_matrix fn, base, scale;
} bl_mixing;

/* SwiGLU experts: w1 (gate) and w3 (up) [intermediate, hidden], w2 [hidden, intermediate]. */
typedef struct bl_expert {
    bl_matrix w1, w3, w2;
} bl_expert;

/* One backbone layer. Vectors are matrices of one row. Absent parts have codes NULL. Shapes are rank-local. "dense": fp8 with
 * 32x32 scales, or bf16. */
typedef struct bl_layer {
    int index, ratio;
    int kv_slot;        /* its KV source among the config's kv_source_layer_ids; -1 for window-only layers */
    bool kv_source;     /* is that source itself */
    bool index_source;  /* chooses the compressed entries, for itself and the layers after it */
    bool candidates;    /* index source that publishes candidate blocks */
    bool filtered;      /* index source that chooses among published candidates */
    int engram_slot;    /* among engram_layer_ids; -1 = none */
    bl_mixing mix_attn, mix_ffn;
    bl_matrix attn_norm, ffn_norm; /* BF16 [hidden] */
    bl_matrix wq_a;                /* dense [q_lora, hidden] */
    bl_matrix q_norm;              /* BF16 [q_lora] */
    bl_matrix wq_b;                /* dense [heads * head_dim, q_lora] */
    bl_matrix wkv;                 /* dense [head_dim, hidden] */
    bl_matrix kv_norm;             /* BF16 [head_dim] */
    bl_matrix sink;                /* F32 [heads] */
    bl_matrix wo_a; /* dense [groups * o_lora, heads * head_dim / groups], cols padded with zeros to a multiple of 32 */
    bl_matrix wo_b; /* dense [hidden, groups * o_lora] */
    struct {
        bl_matrix wkv, wgate; /* BF16 [head_dim, hidden]; wgate at ratio 2 */
        bl_matrix norm;       /* BF16 [head_dim] */
        bl_matrix wk;         /* BF16 [index_head_dim, head_dim] */
        bl_matrix k_norm;     /* BF16 [index_head_dim] */
    } compressor; /* KV sources */
    struct {
        bl_matrix wq_b; /* dense [index_n_heads * index_head_dim, q_lora] */
        bl_matrix weights_proj; /* BF16 [index_n_heads, hidden] */
    } indexer; /* index sources */
    bl_matrix gate;      /* BF16 [experts, hidden] */
    bl_matrix gate_bias; /* F32 [experts] */
    bl_expert *experts;  /* [shard.experts.count]: fp4 with 1x32 scales, fp8, or bf16 */
    bl_expert shared;    /* dense */
    struct {
        bl_matrix table; /* fp8 [rows, engram_head_dim] with 1x32 scales, the shard's rows: HOST addresses of the mapped file, never copied
                           * whole, unless the backend keeps tables */
        bl_matrix wkv;   /* dense [5 * hidden, columns * engram_head_dim] */
        bl_matrix q_weight, k_weight; /* BF16 [4, hidden] */
        const float *qk;              /* F32 [4, hidden]: their product */
    } engram; /* Engram layers */
} bl_layer;

/* One stored tensor and the view it fills; count > 1 for stacked experts, whose views lie at equal distances. */
typedef struct bl_handle {
    const bl_tensor *tensor; /* of the checkpoint */
    uint64_t first, bytes;   /* of its bytes those in use: all, but of Engram tables */
    const uint8_t *stored;   /* them in host memory */
    bl_matrix *view;
    size_t view_step; /* bytes from one view to the next */
    int count;
    bool scale; /* fills view->scale, not view->codes */
    bool host;  /* stays in host memory, mapped (Engram tables) */
} bl_handle;

typedef struct bl_weights {
    bl_matrix embed; /* BF16 [vocab, hidden] */
    bl_matrix norm;  /* BF16 [hidden] */
    bl_matrix head;  /* BF16 [vocab, hidden] */
    bl_layer *layers; /* [shard.layers.count] */
    int layer_count;
    bl_handle *handles; /* [handle_count] every tensor in use: what an update exchanges; sorted by place once loaded */
    size_t handle_count, handle_capacity;
    bl_region **regions; /* [region_count] mapped files */
    size_t region_count;
    void **copies; /* [copy_count] host memory of what had to be laid out anew */
    size_t copy_count;
    bl_arena arena; /* of the arrays above */
    int64_t version; /* goes up whenever views are pointed elsewhere */
} bl_weights;

/* Find every tensor the text model needs and hold its dtype and shape against the config: all views' kinds and shapes are set,
 * no addresses yet. BL_E_INPUT names the tensor. Nothing of any payload is read. out starts zeroed; destroy it in any case. */
bl_status bl_weights_resolve(bl_weights *out, const bl_checkpoint *c, const bl_shard *shard, bl_error *err);
/* The same without a checkpoint: kinds as released, handles without tensors. The caller fills in the addresses (benchmarks). */
bl_status bl_weights_describe(bl_weights *out, const bl_config *c, const bl_shard *shard, bl_error *err);
/* Map the files, or load them into the backend's memory, and fill in the addresses. Engram tables are always mapped, whatever access
 * says: they are never resident. check: where a backend loads, hold every tensor of the files against the digests that
 * a packed model has. */
struct bl_backend;
bl_status bl_weights_load(bl_weights *w, const bl_checkpoint *c, bl_access access, bool check, struct bl_backend *b, bl_error *err);
/* What processes that share these Engram tables know them by: the files they come from (device, number, size, time of the last change) and
 * their places there; bytes: in whole lines each. Other copies of a file are other tables. */
bl_status bl_weights_tables_key(bl_shared_key *out, const bl_weights *w, const bl_checkpoint *c, bl_error *err);
/* Columns of a matrix as kernels take it: a multiple of 32. */
static inline int64_t bl_weights_padded(const bl_matrix *m)
{
    return (m->cols + 31) / 32 * 32;
}
/* After the backend is gone or no longer used: unmaps. */
void bl_weights_destroy(bl_weights *w);

#endif
