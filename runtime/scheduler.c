#include "runtime/scheduler.h"

#include "runtime/scheduler_impl.h"

#include <stdlib.h>
#include <string.h>

bool bl_job_cancelled(const bl_job *job)
{
    return atomic_load_explicit(&job->own.cancelled, memory_order_relaxed);
}

/* ---- the engine thread */

/* End a job whose place or turn is already given up. */
static void finish_job(bl_scheduler *s, bl_job *job, bl_finish why, const bl_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->stats.cancelled += why == BL_FINISH_CANCELLED;
    s->stats.failed += why == BL_FINISH_FAILED;
    if (why != BL_FINISH_CANCELLED && why != BL_FINISH_FAILED) {
        s->stats.finished++;
        bl_histogram_add(&s->stats.whole, bl_clock() - job->arrived);
    }
    pthread_mutex_unlock(&s->lock);
    job->finish(job->arg, why, err);
}

static void leave(bl_scheduler *s, bl_running *r)
{
    int64_t length = bl_sequence_length(r->sequence);
    bl_sequence_destroy(&r->sequence);
    free(r->seen);
    pthread_mutex_lock(&s->lock);
    s->stats.running--;
    s->stats.used_tokens -= length;
    pthread_mutex_unlock(&s->lock);
    finish_job(s, r->job, r->why, r->why == BL_FINISH_FAILED ? &r->err : NULL);
}

/* Let go of those that have ended or are cancelled; the others keep their order. */
static void reap(bl_scheduler *s, bool all)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        bl_running *r = &s->running[i];
        if (r->why == BL_FINISH_NONE && (all || bl_job_cancelled(r->job)))
            r->why = BL_FINISH_CANCELLED;
        if (r->why != BL_FINISH_NONE)
            leave(s, r);
        else if (kept++ != i)
            s->running[kept - 1] = *r;
    }
    s->count = kept;
}

/* Take the oldest waiting jobs out, first those that are cancelled or will never run, then as many as there are free places. Locked. */
static void take_waiting(bl_scheduler *s, bl_job **cancelled, bl_job **admitted)
{
    int room = s->options.max_running - s->count;
    bl_job **link = &s->head, **last = admitted;
    *cancelled = *admitted = NULL;
    for (bl_job *j; (j = *link);) {
        if (s->cancel_all || s->fault.code || bl_job_cancelled(j)) {
            *link = j->own.next;
            j->own.next = *cancelled;
            *cancelled = j;
        } else if (room > 0) {
            *link = j->own.next;
            j->own.next = NULL;
            *last = j;
            last = &j->own.next;
            room--;
            s->stats.running++;
        } else {
            link = &j->own.next;
            continue;
        }
        s->stats.waiting--;
    }
    s->tail = link;
}

/* No memory for another sequence while some run: the rest waits for their end. */
static void put_back(bl_scheduler *s, bl_job *jobs)
{
    bl_job *last = jobs;
    int n = 1;
    for (; last->own.next; last = last->own.next)
        n++;
    pthread_mutex_lock(&s->lock);
    last->own.next = s->head;
    s->head = jobs;
    if (!last->own.next)
        s->tail = &last->own.next;
    s->stats.waiting += n;
    s->stats.running -= n;
    pthread_mutex_unlock(&s->lock);
}

/* A place for a job, all or nothing. */
static bl_status take_place(bl_scheduler *s, bl_running *r, bl_job *j, bl_error *err)
{
    memset(r, 0, sizeof *r);
    r->job = j;
    if (bl_adjust_looks_back(&j->adjust)) {
        r->seen = calloc((size_t)s->vocab, sizeof *r->seen);
        if (!r->seen)
            return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory to count tokens");
        bl_seen_prompt(r->seen, j->prompt, j->prompt_count);
    }
    bl_status status = bl_sequence_create(&r->sequence, s->model, err);
    if (status == BL_OK)
        status = bl_sequence_reserve(r->sequence, j->prompt_count + j->max_tokens, err);
    if (status != BL_OK) {
        bl_sequence_destroy(&r->sequence);
        free(r->seen);
    }
    return status;
}

static void admit(bl_scheduler *s, bl_job *jobs)
{
    for (bl_job *j, *next; (j = jobs); jobs = next) {
        bl_error err;
        bl_error_clear(&err);
        next = j->own.next;
        if (take_place(s, &s->running[s->count], j, &err) != BL_OK) {
            if (s->count > 0) {
                put_back(s, jobs);
                return;
            }
            pthread_mutex_lock(&s->lock);
            s->stats.running--;
            pthread_mutex_unlock(&s->lock);
            finish_job(s, j, BL_FINISH_FAILED, &err);
            continue;
        }
        s->count++;
        pthread_mutex_lock(&s->lock);
        bl_histogram_add(&s->stats.queue_time, bl_clock() - j->arrived);
        pthread_mutex_unlock(&s->lock);
    }
}

static void *engine(void *arg)
{
    bl_scheduler *s = arg;
    for (;;) {
        bl_job *cancelled, *admitted;
        pthread_mutex_lock(&s->lock);
        while (!s->quit && !s->head && s->count == 0)
            pthread_cond_wait(&s->wake, &s->lock);
        bool all = s->cancel_all, quit = s->quit;
        take_waiting(s, &cancelled, &admitted);
        pthread_mutex_unlock(&s->lock);
        for (bl_job *j = cancelled, *next; j; j = next) {
            next = j->own.next;
            bool broken = s->fault.code && !bl_job_cancelled(j); /* only this thread sets it */
            finish_job(s, j, broken ? BL_FINISH_FAILED : BL_FINISH_CANCELLED, broken ? &s->fault : NULL);
        }
        reap(s, all);
        admit(s, admitted);
        if (s->count > 0) {
            bl_scheduler_step(s);
            reap(s, false);
        } else if (quit) {
            return NULL;
        }
    }
}

/* ---- from other threads */

bl_submit bl_scheduler_submit(bl_scheduler *s, bl_job *const *jobs, int count)
{
    bl_submit result = BL_SUBMIT_TAKEN;
    pthread_mutex_lock(&s->lock);
    if (s->fault.code)
        result = BL_SUBMIT_BROKEN;
    else if (s->stopped)
        result = BL_SUBMIT_STOPPED;
    else if ((int64_t)s->stats.waiting + s->stats.running + count > (int64_t)s->options.max_running + s->options.max_waiting)
        result = BL_SUBMIT_FULL;
    for (int i = 0; result == BL_SUBMIT_TAKEN && i < count; i++) {
        jobs[i]->own.next = NULL;
        atomic_store_explicit(&jobs[i]->own.cancelled, false, memory_order_relaxed);
        *s->tail = jobs[i];
        s->tail = &jobs[i]->own.next;
        s->stats.waiting++;
    }
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return result;
}

void bl_scheduler_cancel(bl_scheduler *s, bl_job *job)
{
    atomic_store_explicit(&job->own.cancelled, true, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void bl_scheduler_stop(bl_scheduler *s, bool cancel)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    s->cancel_all = s->cancel_all || cancel;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void bl_scheduler_read(bl_scheduler *s, bl_scheduler_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

bool bl_scheduler_broken(bl_scheduler *s, bl_error *out)
{
    pthread_mutex_lock(&s->lock);
    bool broken = s->fault.code != 0;
    if (broken)
        *out = s->fault;
    pthread_mutex_unlock(&s->lock);
    return broken;
}

/* ---- life */

static bl_status try_one_token(bl_scheduler *s, bl_error *err)
{
    bl_sequence *q;
    const int32_t id = 0;
    BL_TRY(bl_sequence_create(&q, s->model, err));
    const bl_span span = {.sequence = q, .ids = &id, .count = 1, .logits_from = 0};
    bl_status status = bl_forward(s->model, &span, 1, s->logits, NULL, err);
    bl_sequence_destroy(&q);
    return status;
}

static void release(bl_scheduler **s)
{
    pthread_mutex_destroy(&(*s)->lock);
    pthread_cond_destroy(&(*s)->wake);
    free((*s)->running);
    free((*s)->spans);
    free((*s)->filling);
    free((*s)->logits);
    free((*s)->draws);
    free((*s)->drawn);
    free((*s)->scratch);
    free(*s);
    *s = NULL;
}

bl_status bl_scheduler_create(bl_scheduler **out, bl_model *m, const bl_scheduler_options *options, bl_error *err)
{
    *out = NULL;
    if (options->max_running < 1 || options->max_running > BL_MAX_RUNNING || options->max_waiting < 0 || options->step_tokens < 1)
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "the scheduler needs 1 to %d places and a positive budget", BL_MAX_RUNNING);
    bl_pool *pool = bl_model_pool(m);
    size_t n = (size_t)options->max_running, vocab = (size_t)bl_model_config(m)->vocab_size;
    size_t threads = pool ? (size_t)bl_pool_threads(pool) : 1;
    bl_scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for the scheduler");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    s->model = m;
    s->vocab = (int)vocab;
    s->options = *options;
    s->tail = &s->head;
    s->running = calloc(n, sizeof *s->running);
    s->spans = calloc(n, sizeof *s->spans);
    s->filling = calloc(n, sizeof *s->filling);
    s->logits = calloc(n * vocab, sizeof *s->logits);
    s->draws = calloc(n, sizeof *s->draws);
    s->drawn = calloc(n, sizeof *s->drawn);
    s->scratch = calloc(threads * 2 * vocab, sizeof *s->scratch);
    bl_status status = BL_OK;
    if (!s->running || !s->spans || !s->filling || !s->logits || !s->draws || !s->drawn || !s->scratch)
        status = bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for a batch of %d sequences", options->max_running);
    if (status == BL_OK)
        status = try_one_token(s, err);
    if (status == BL_OK && pthread_create(&s->thread, NULL, engine, s) != 0)
        status = bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "the engine thread could not be started");
    if (status != BL_OK)
        release(&s);
    *out = s;
    return status;
}

void bl_scheduler_destroy(bl_scheduler **s)
{
    if (!*s)
        return;
    pthread_mutex_lock(&(*s)->lock);
    (*s)->stopped = (*s)->cancel_all = (*s)->quit = true;
    pthread_cond_signal(&(*s)->wake);
    pthread_mutex_unlock(&(*s)->lock);
    pthread_join((*s)->thread, NULL);
    release(s);
}
