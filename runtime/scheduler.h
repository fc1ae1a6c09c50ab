/* One engine thread that runs all sequences together, one step at a time.
 *
 * A step is one forward pass over a batch: the next token of every sequence that is generating, plus pieces of the prompts of those
 * that are not there yet, shared evenly under a budget of tokens so that generation never waits for a long prompt and a short prompt
 * never waits for a long one. What a job produces depends on the job alone, never on what else runs (forward.h, sample.h). */
#ifndef BL_RUNTIME_SCHEDULER_H
#define BL_RUNTIME_SCHEDULER_H

#include "runtime/adjust.h"
#include "runtime/forward.h"
#include "runtime/metrics.h"
#include "runtime/sample.h"

#include <stdatomic.h>

#define BL_MAX_RUNNING 4096
#define BL_MAX_TOP_LOGPROBS 20

typedef struct bl_scheduler bl_scheduler;

/* A token as it was chosen. Log-probabilities are log softmax(logits / temperature) of the adjusted logits, before top-k, top-p and
 * min-p; temperature 1 when greedy. */
typedef struct bl_output_token {
    int id;
    float logprob;                      /* only when the job wants it */
    int top_count;                      /* likely tokens, most likely first; at most the job's top_logprobs */
    int32_t top[BL_MAX_TOP_LOGPROBS];
    float top_logprob[BL_MAX_TOP_LOGPROBS];
} bl_output_token;

typedef enum bl_finish {
    BL_FINISH_NONE = 0,
    BL_FINISH_STOP_TOKEN, /* the last token is one of stop_ids */
    BL_FINISH_SINK,       /* token() returned false */
    BL_FINISH_LENGTH,     /* max_tokens */
    BL_FINISH_CANCELLED,
    BL_FINISH_FAILED
} bl_finish;

/* One sequence to generate. The submitter owns the memory and keeps it, and what it points to, until finish() has returned. Callbacks
 * come from the engine thread, one at a time, without locks held; they must be quick. Zero the struct first. */
typedef struct bl_job {
    const int32_t *prompt; /* [prompt_count] ids below the vocabulary size; at least one */
    int64_t prompt_count;
    int64_t max_tokens; /* >= 1; prompt_count + max_tokens is the caller's to keep within the context */
    bl_adjust adjust;
    int64_t min_tokens; /* the first so many are none of stop_ids */
    bl_sampling sampling;
    const int32_t *stop_ids; /* [stop_count] */
    int stop_count;
    bool logprobs;
    int top_logprobs; /* 0..BL_MAX_TOP_LOGPROBS */
    double arrived;   /* bl_clock() of the request, for the latency histograms */
    void *arg;
    /* The next token, stop tokens included; false ends the job (BL_FINISH_SINK). */
    bool (*token)(void *arg, const bl_output_token *t);
    /* Called exactly once for every job that was taken, after the last token. Its sequence is already freed. err says why when FAILED. */
    void (*finish)(void *arg, bl_finish why, const bl_error *err);

    struct { /* the scheduler's */
        struct bl_job *next;
        atomic_bool cancelled;
    } own;
} bl_job;

typedef struct bl_scheduler_options {
    int max_running;     /* sequences in a batch, 1..BL_MAX_RUNNING */
    int max_waiting;     /* jobs waiting for a place, >= 0 */
    int64_t step_tokens; /* most tokens in a step, >= 1; every sequence gets at least one */
    void (*report)(const bl_error *fault); /* may be NULL; first failure of the device for good, first NaN in an output */
} bl_scheduler_options;

/* Start the engine thread on an open model, which nobody else may use meanwhile and which must outlive it. One token is run first, so
 * that what cannot work fails here. */
bl_status bl_scheduler_create(bl_scheduler **out, bl_model *m, const bl_scheduler_options *options, bl_error *err);
/* Cancel everything, wait for the last finish(), end the thread. NULL is fine. */
void bl_scheduler_destroy(bl_scheduler **s);

typedef enum bl_submit { BL_SUBMIT_TAKEN = 0, BL_SUBMIT_FULL, BL_SUBMIT_STOPPED, BL_SUBMIT_BROKEN } bl_submit;
/* Hand over count jobs, all or none: FULL when they would exceed max_running + max_waiting together with what is there. Any thread. */
bl_submit bl_scheduler_submit(bl_scheduler *s, bl_job *const *jobs, int count);
/* Ask for a job that was taken and whose finish() has not returned to end; it does within one step. Any thread, callbacks included. */
void bl_scheduler_cancel(bl_scheduler *s, bl_job *job);
/* Take no more jobs (submit says STOPPED) and, with cancel, end those that are there. */
void bl_scheduler_stop(bl_scheduler *s, bool cancel);

/* Counters since the start and what is there now. */
typedef struct bl_scheduler_stats {
    uint64_t prompt_tokens, generated_tokens, steps, step_tokens; /* step_tokens = tokens of all steps */
    uint64_t finished, cancelled, failed;
    uint64_t nan_outputs;  /* tokens that could not be chosen because a logit was no number */
    int running, waiting;
    int64_t used_tokens;   /* tokens held by running sequences */
    int largest_batch;     /* most sequences that ran in one step */
    bl_histogram queue_time, first_token, inter_token, whole; /* per job */
} bl_scheduler_stats;
void bl_scheduler_read(bl_scheduler *s, bl_scheduler_stats *out);
/* The device has failed for good (bl_model_fault): *out says why, every job has ended or is about to, and submit says BROKEN. */
bool bl_scheduler_broken(bl_scheduler *s, bl_error *out);

#endif
