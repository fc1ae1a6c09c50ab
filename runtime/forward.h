/* The model, its per-sequence cache, and the one forward pass for prefill and decode. */
#ifndef BL_RUNTIME_FORWARD_H
#define BL_RUNTIME_FORWARD_H

#include "formats/checkpoint.h"
#include "formats/pool.h"
#include "kernels/linear.h"
#include "kernels/ops.h"
#include "runtime/engram.h"
#include "runtime/sample.h"
#include "runtime/tokenizer.h"

/* ---- model: weights as views into mapped files, in their stored codes */
typedef struct bl_model bl_model;

typedef enum bl_check { BL_CHECK_NONE = 0, BL_CHECK_FAST, BL_CHECK_FULL } bl_check;

/* Where a model is computed. AUTO: a GPU if there is one and the build has the backend, else the CPU. */
typedef enum bl_device { BL_DEVICE_CPU = 0, BL_DEVICE_CUDA, BL_DEVICE_AUTO } bl_device;

/* Room for sequences that is made when a model is opened, so that nothing runs out later. All 0: the cache grows on demand. */
typedef struct bl_cache_room {
    int sequences;   /* at once */
    int64_t context; /* tokens of one; 0 = max_position_embeddings */
    int64_t tokens;  /* of all; 0 = sequences * context, or what the device has memory for */
} bl_cache_room;

/* Where Engram tables lie when a GPU computes. */
typedef enum bl_engram_place {
    BL_ENGRAM_AUTO = 0, /* chosen by the memory plan, which says why */
    BL_ENGRAM_DEVICE,   /* in the GPU's memory */
    BL_ENGRAM_HOST,     /* in pinned memory of the host, in huge pages: the GPU reads rows over its bus */
    BL_ENGRAM_SHARED,   /* likewise, in one piece of memory that all processes with these tables share (shared_tables.h) */
    BL_ENGRAM_MAPPED    /* in mapped files: the host gathers a pass's rows and sends them */
} bl_engram_place;

typedef struct bl_model_options {
    bl_access access;
    bl_check check;  /* beyond names, sizes and headers, without which nothing opens: FULL: level 3 of verify/verify.h first. On a
                        GPU tensors of a packed model are held against their digests while they are loaded, and no code is looked at */
    unsigned cpu;    /* capability mask for kernels; 0 = plain C, ~0u = all this CPU has */
    int threads;     /* <= 0 = all */
    bl_device device;
    bl_engram_place engram;
    bl_cache_room cache; /* used on a GPU; on the CPU memory that is not used costs nothing */
    bool need_tokenizer; /* fail when tokenizer.json is absent (Engram models need it anyway) */
    /* For tests that prove the parity checks: may replace CPU kernels before anything runs. NULL = none. */
    void (*adjust)(bl_linear_kernels *linear, bl_op_kernels *ops);
} bl_model_options;

/* Open a packed model, a released HF folder or a BF16 cast. Every weight the text model needs is found and its dtype and
 * shape held against the config; draft and vision tensors are ignored. */
bl_status bl_model_open(bl_model **out, const char *path, const bl_model_options *options, bl_error *err);
void bl_model_close(bl_model **m);
/* What can be told at once of path, before a server says that it listens: that there is a folder, and no packed model for several ranks.
 * BL_E_INPUT as bl_model_open would say it later. */
bl_status bl_model_look(const char *path, bl_error *err);
/* What bl_model_open would take: nothing of any payload is read, and no GPU is needed when memory (what it has free) is stated, for which
 * AUTO means CUDA. 0 = that of the GPU there is, or not known where there is none. BL_E_NOMEM, with *out filled in: it would be
 * refused. */
struct bl_memory_plan;
bl_status bl_model_plan(struct bl_memory_plan *out, const char *path, const bl_model_options *options, uint64_t memory, bl_error *err);
/* What is wrong with the device for good, NULL = nothing: every forward pass from now on fails. Of the thread that runs them. */
const bl_error *bl_model_fault(const bl_model *m);
/* The plan that its memory was taken by. */
const struct bl_memory_plan *bl_model_memory(const bl_model *m);
/* Bytes of Engram tables in pinned memory of the host that lie in huge pages; false: not known, or there are none there. */
bool bl_model_huge_pages(const bl_model *m, uint64_t *bytes);
/* What the memory is called that its Engram tables share with other processes, and whether one of those had filled it; NULL: they share none. */
const char *bl_model_shared_tables(const bl_model *m, bool *filled);
/* What is wrong with the GPU that there is, for which AUTO took the CPU; NULL: there is none, or it is used, or nobody asked. */
const bl_error *bl_model_no_gpu(const bl_model *m);
/* "cpu", "cuda" */
const char *bl_model_device(const bl_model *m);
const bl_config *bl_model_config(const bl_model *m);
const bl_tokenizer *bl_model_tokenizer(const bl_model *m); /* NULL when absent and not needed */
bl_pool *bl_model_pool(const bl_model *m);

/* ---- sequences */
/* Everything a sequence remembers: window rings, latent and index-key pages, open pairs, token history. Packed formats of
 * arch.md section 5. Grows by pages; a page is shared by reference count. */
typedef struct bl_sequence bl_sequence;
bl_status bl_sequence_create(bl_sequence **out, bl_model *m, bl_error *err);
void bl_sequence_destroy(bl_sequence **s);
int64_t bl_sequence_length(const bl_sequence *s); /* tokens processed so far */
/* Back to empty, keeping memory. */
void bl_sequence_reset(bl_sequence *s);
/* Take what a sequence of so many tokens needs now, where there is a fixed room for all: it cannot run out later. */
bl_status bl_sequence_reserve(bl_sequence *s, int64_t tokens, bl_error *err);
/* Bytes a sequence of n tokens takes. */
uint64_t bl_sequence_bytes(const bl_model *m, int64_t n);

/* ---- forward */
/* A run of consecutive tokens of one sequence; the first is at position bl_sequence_length. */
typedef struct bl_span {
    bl_sequence *sequence;
    const int32_t *ids; /* [count] */
    int64_t count;
    int64_t logits_from; /* logits wanted for tokens [logits_from, count) of this span; count = none */
} bl_span;

/* An intermediate on its way: data [shape[0], ...] in host memory, BF16, F32, I32 or I64. */
typedef struct bl_hook_value {
    const char *name; /* as in the golden files: "layers.3.attn.out" */
    void *data;
    bl_dtype dtype;
    int ndim;
    int64_t shape[3]; /* shape[0] = tokens of this pass, in batch order */
} bl_hook_value;

/* Parity hooks. visit is called for every intermediate once it is computed, pass by pass (a call of bl_forward may take several);
 * what it changes in data is what the forward pass goes on with. NULL = no hooks. */
typedef struct bl_hooks {
    void *arg;
    void (*visit)(void *arg, const bl_hook_value *v);
} bl_hooks;

/* A forward pass over any mix of spans of distinct sequences. Appends the tokens to their sequences. logits receives
 * [wanted, vocab] fp32 rows in span order. A token's result does not depend, to the bit, on what else is in the batch, on
 * how a sequence is cut into calls, or on threads. One call at a time per model; sequences may be created, reset and destroyed by
 * other threads meanwhile, if they are not in the batch. On failure no sequence has changed. Batches may be of any size; the
 * implementation works in passes that bound its scratch. BL_E_USAGE names a token id or position that is out of range. */
bl_status bl_forward(bl_model *m, const bl_span *spans, int64_t count, float *logits, const bl_hooks *hooks, bl_error *err);

/* How the token behind a row of logits is to be drawn, if it is. */
typedef struct bl_draw {
    bool draw; /* else the logits are wanted */
    bl_sampling sampling;
    uint64_t position;
} bl_draw;

/* What came of it. */
typedef struct bl_drawn {
    int32_t token; /* as bl_sample; BL_NOT_DRAWN: the row's logits are there instead */
    int32_t nans;  /* logits of the row that are no numbers */
} bl_drawn;
enum { BL_NOT_DRAWN = -2 };

/* The same, with tokens drawn where the logits are, for which none of them leaves a GPU. draws, drawn [wanted] in the order of the rows.
 * A device that draws nothing says so of every row; the caller then draws. */
bl_status bl_forward_draw(bl_model *m, const bl_span *spans, int64_t count, const bl_draw *draws, bl_drawn *drawn, float *logits,
                          bl_error *err);

#endif
