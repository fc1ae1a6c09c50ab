/* What scheduler.c (inbox, thread, life of a job) and scheduler_step.c (one step) share. */
#ifndef BL_RUNTIME_SCHEDULER_IMPL_H
#define BL_RUNTIME_SCHEDULER_IMPL_H

#include "runtime/scheduler.h"

#include <pthread.h>

/* A job with a place in the batch; the engine thread's alone. */
typedef struct bl_running {
    bl_job *job;
    bl_sequence *sequence;
    uint32_t *seen;    /* [vocab], adjust.h; NULL when the job does not look back */
    int64_t fed;       /* prompt tokens that have been run */
    int64_t generated; /* tokens handed out */
    int32_t last;      /* the newest of them; not run yet */
    double previous;   /* when it was handed out */
    bl_finish why;     /* set when the job is to end */
    bl_error err;      /* when FAILED */

    /* this step */
    int64_t take; /* tokens to run */
    int64_t row;  /* of the logits, -1 = none wanted */
    bl_output_token out;
    int nans;     /* logits that are no numbers */
} bl_running;

struct bl_scheduler {
    bl_model *model;
    int vocab;
    bl_scheduler_options options;
    pthread_t thread;

    pthread_mutex_t lock; /* guards this block */
    pthread_cond_t wake;
    bl_job *head, **tail; /* waiting, oldest first */
    bool stopped, cancel_all, quit;
    bl_error fault; /* of the device, for good */
    bl_scheduler_stats stats;

    bl_running *running; /* [max_running], count used, oldest first */
    int count;
    bl_span *spans;   /* [max_running] */
    bl_running **filling; /* [max_running], sorted by what is left of the prompt */
    float *logits;        /* [max_running, vocab] */
    bl_draw *draws;       /* [max_running] for each row of the logits */
    bl_drawn *drawn;
    int32_t *scratch;     /* [threads, 2 * vocab] for sampling */
};

/* Run one step over s->running (at least one): tokens are handed out, and why is set for those that end. */
void bl_scheduler_step(bl_scheduler *s);
bool bl_job_cancelled(const bl_job *job);

#endif
