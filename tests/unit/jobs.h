/* Jobs for a scheduler on a model whose next token is a hash of the whole history, and what came out of them. */
#ifndef BL_TESTS_UNIT_JOBS_H
#define BL_TESTS_UNIT_JOBS_H

#include "runtime/scheduler.h"
#include "tests/stub/stub_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_OUT 512

/* A job and what came out of it. */
typedef struct client {
    bl_job job;
    bl_model *model;
    int32_t prompt[5000];
    int32_t out[MAX_OUT]; /* by the engine thread until done */
    float logprob[MAX_OUT], top_logprob;
    int tops;
    int32_t sink_at; /* return false at this many tokens */
    int live_at_end;
    bl_finish why;
    bl_status status;
    atomic_int count, done;
} client;

static inline bool on_token(void *arg, const bl_output_token *t)
{
    client *c = arg;
    int n = atomic_load(&c->count);
    if (n < MAX_OUT) {
        c->out[n] = t->id;
        c->logprob[n] = t->logprob;
    }
    c->tops = t->top_count;
    c->top_logprob = t->top_count ? t->top_logprob[0] : 0;
    atomic_store(&c->count, n + 1);
    return n + 1 != c->sink_at;
}

static inline void on_finish(void *arg, bl_finish why, const bl_error *err)
{
    client *c = arg;
    c->why = why;
    c->status = err ? err->code : BL_OK;
    c->live_at_end = atomic_load(&stub_counted(c->model)->live);
    atomic_store(&c->done, 1);
}

static inline client *new_client(bl_model *m, int prompt_count, int max_tokens, uint64_t salt)
{
    client *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->model = m;
    for (int i = 0; i < prompt_count; i++)
        c->prompt[i] = (int32_t)((salt * 31 + (uint64_t)i * 7) % 256) + 3;
    c->job = (bl_job){.prompt = c->prompt,
                      .prompt_count = prompt_count,
                      .max_tokens = max_tokens,
                      .sampling = {.top_p = 1},
                      .arrived = bl_clock(),
                      .arg = c,
                      .token = on_token,
                      .finish = on_finish};
    return c;
}

static inline void submit(bl_scheduler *s, client *c)
{
    bl_job *j = &c->job;
    assert_int_equal(bl_scheduler_submit(s, &j, 1), BL_SUBMIT_TAKEN);
}

static inline void wait_for(atomic_int *value, int least)
{
    for (int i = 0; i < 20000 && atomic_load(value) < least; i++)
        usleep(500);
    assert_true(atomic_load(value) >= least);
}

static inline void expect(client *c, bl_finish why, int count)
{
    int32_t want[MAX_OUT];
    wait_for(&c->done, 1);
    assert_int_equal(c->why, why);
    assert_int_equal(c->count, count);
    stub_expect(c->model, &c->job, count, want);
    assert_memory_equal(c->out, want, (size_t)count * sizeof *want);
}

static inline bl_scheduler *start(bl_model *m, int running, int waiting, int64_t budget)
{
    const bl_scheduler_options o = {.max_running = running, .max_waiting = waiting, .step_tokens = budget};
    bl_scheduler *s;
    bl_error err = {0};
    assert_int_equal(bl_scheduler_create(&s, m, &o, &err), BL_OK);
    return s;
}

static inline void end(bl_scheduler *s, bl_model *m)
{
    bl_scheduler_destroy(&s);
    assert_int_equal(stub_counted(m)->live, 0);
    bl_model_close(&m);
}

#endif
