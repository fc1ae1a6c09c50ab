/* A model for tests of what stands on runtime/forward.h: it implements that header, and its next token is a hash of the whole history
 * of the sequence, so that any mix-up of sequences, positions or order shows. Link it before the runtime library.
 * bl_model_open takes the options from the environment: STUB_CONTEXT, STUB_STEP_US, STUB_EOS_LENGTH, STUB_MAX_SEQUENCES, STUB_FAULT_AFTER,
 * STUB_NAN_ID, and STUB_LOAD_US for the time that opening takes. */
#ifndef BL_TESTS_STUB_MODEL_H
#define BL_TESTS_STUB_MODEL_H

#include "runtime/scheduler.h"

#include <stdatomic.h>

enum {
    STUB_VOCAB = 305, /* as many ids as tests/unit/tiny_tokenizer.h */
    STUB_EOS = 1,
    STUB_POISON = 299 /* a forward pass that meets this id fails */
};

/* Set before use. */
typedef struct stub_options {
    int64_t eos_length;     /* the token behind this many is EOS; 0 = never */
    int64_t context;        /* max_position_embeddings */
    unsigned step_us;       /* how long a pass takes */
    int64_t max_sequences;  /* no memory for more; 0 = no limit */
    int64_t room;           /* for tokens of all sequences, taken ahead; 0 = no limit */
    int64_t fault_after;    /* the device fails for good in the pass behind so many; 0 = never */
    int32_t nan_id;         /* logits behind this id hold a NaN; 0 = none */
    bool tokenizer;         /* that of tests/unit/tiny_tokenizer.h */
} stub_options;

bl_model *stub_open(const stub_options *o);

/* What happened so far; any thread. */
typedef struct stub_counts {
    atomic_int live;     /* sequences that exist */
    atomic_int created;
    atomic_int passes, largest; /* passes, most spans in one */
    atomic_int most_tokens;     /* most tokens in one pass */
} stub_counts;
stub_counts *stub_counted(bl_model *m);

/* The first n ids of a job, as the model and the way of choosing define them. */
void stub_expect(const bl_model *m, const bl_job *job, int64_t n, int32_t *out);

#endif
