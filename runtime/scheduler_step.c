/* One step: who runs how many tokens, the forward pass, sampling, handing out. */
#include "runtime/scheduler_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t prompt_left(const bl_running *r)
{
    return r->job->prompt_count - r->fed;
}

static int by_prompt_left(const void *a, const void *b)
{
    int64_t x = prompt_left(*(bl_running *const *)a), y = prompt_left(*(bl_running *const *)b);
    return x < y ? -1 : x > y;
}

/* Generating sequences run their newest token. What remains of the budget is shared among the prompts: even shares, and what a short
 * prompt leaves over goes to the others, so that all advance in every step. */
static void share_budget(bl_scheduler *s)
{
    int filling = 0;
    for (int i = 0; i < s->count; i++) {
        bl_running *r = &s->running[i];
        r->take = 1;
        if (prompt_left(r) > 0)
            s->filling[filling++] = r;
    }
    int64_t budget = s->options.step_tokens - (s->count - filling);
    if (budget < filling)
        budget = filling;
    qsort(s->filling, (size_t)filling, sizeof *s->filling, by_prompt_left);
    for (int i = 0; i < filling; i++) {
        int64_t share = budget / (filling - i), left = prompt_left(s->filling[i]);
        s->filling[i]->take = left < share ? left : share;
        budget -= s->filling[i]->take;
    }
}

static bool changes_logits(const bl_adjust *a)
{
    return bl_adjust_looks_back(a) || a->bias;
}

/* The device may draw where nothing is done to the logits before and nobody asks for them. */
static bl_draw draw_of(const bl_running *r)
{
    const bl_job *j = r->job;
    const bool masked = r->generated < j->min_tokens && j->stop_count > 0;
    return (bl_draw){.draw = !changes_logits(&j->adjust) && !masked && !j->logprobs,
                     .sampling = j->sampling,
                     .position = (uint64_t)(j->prompt_count + r->generated)};
}

/* Fill spans, and rows with the place of their logits and how they are drawn from. */
static void build_batch(bl_scheduler *s)
{
    int64_t rows = 0;
    share_budget(s);
    for (int i = 0; i < s->count; i++) {
        bl_running *r = &s->running[i];
        bool fills = prompt_left(r) > 0, wants = !fills || r->take == prompt_left(r);
        s->spans[i] = (bl_span){.sequence = r->sequence,
                                .ids = fills ? r->job->prompt + r->fed : &r->last,
                                .count = r->take,
                                .logits_from = wants ? r->take - 1 : r->take};
        r->row = wants ? rows++ : -1;
        if (wants)
            s->draws[r->row] = draw_of(r);
    }
}

/* A failed batch has changed no sequence, and a sequence's result does not depend on the batch: run each alone, so that only those
 * that fail by themselves are lost. */
static void run_alone(bl_scheduler *s)
{
    for (int i = 0; i < s->count; i++) {
        bl_running *r = &s->running[i];
        float *logits = s->logits + (r->row < 0 ? 0 : r->row) * s->vocab;
        bl_error_clear(&r->err);
        if (r->row >= 0)
            s->drawn[r->row] = (bl_drawn){.token = BL_NOT_DRAWN};
        if (bl_forward(s->model, &s->spans[i], 1, logits, NULL, &r->err) != BL_OK) {
            r->why = BL_FINISH_FAILED;
            r->row = -1;
        }
    }
}

/* The device is gone: nobody's next token will come. */
static bool note_fault(bl_scheduler *s)
{
    const bl_error *fault = bl_model_fault(s->model);
    if (!fault)
        return false;
    pthread_mutex_lock(&s->lock);
    s->fault = *fault;
    pthread_mutex_unlock(&s->lock);
    if (s->options.report)
        s->options.report(fault);
    for (int i = 0; i < s->count; i++) {
        s->running[i].why = BL_FINISH_FAILED;
        s->running[i].err = *fault;
        s->running[i].row = -1;
    }
    return true;
}

static int count_nans(const float *logits, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += isnan(logits[i]) != 0;
    return count;
}

static void sample_one(void *arg, int64_t item, int worker)
{
    bl_scheduler *s = arg;
    bl_running *r = &s->running[item];
    const bl_job *j = r->job;
    if (r->row < 0)
        return;
    r->nans = s->drawn[r->row].nans;
    r->out = (bl_output_token){.id = s->drawn[r->row].token};
    if (r->out.id != BL_NOT_DRAWN)
        return;
    float *logits = s->logits + r->row * s->vocab;
    r->nans = count_nans(logits, s->vocab);
    bl_adjust_logits(logits, s->vocab, &j->adjust, r->seen);
    for (int i = 0; r->generated < j->min_tokens && i < j->stop_count; i++)
        logits[j->stop_ids[i]] = -INFINITY;
    bl_output_token *o = &r->out;
    o->id = bl_sample(logits, s->vocab, &j->sampling, s->draws[r->row].position, s->scratch + (size_t)worker * 2 * (size_t)s->vocab,
                      j->logprobs ? &o->logprob : NULL);
    if (j->logprobs && j->top_logprobs > 0 && o->id >= 0) {
        o->top_count = bl_top_logits(logits, s->vocab, j->top_logprobs, o->top);
        bl_logprobs(logits, s->vocab, j->sampling.temperature, o->top, o->top_count, o->top_logprob);
    }
}

static bool is_stop(const bl_job *j, int id)
{
    for (int i = 0; i < j->stop_count; i++)
        if (j->stop_ids[i] == id)
            return true;
    return false;
}

static void hand_out(bl_scheduler *s, bl_running *r, double now)
{
    bl_job *j = r->job;
    if (r->out.id < 0 || r->nans) {
        bl_error_clear(&r->err);
        bl_fail(&r->err, BL_E_INTERNAL, NULL, NULL, -1, "%d of the model's %d logits are no numbers (NaN)", r->nans, s->vocab);
        r->why = BL_FINISH_FAILED;
        if (s->options.report && s->stats.nan_outputs == 1)
            s->options.report(&r->err);
        return;
    }
    r->last = r->out.id;
    if (r->seen)
        bl_seen_output(r->seen, r->last);
    r->previous = now;
    r->generated++;
    bool more = j->token(j->arg, &r->out);
    if (is_stop(j, r->out.id))
        r->why = BL_FINISH_STOP_TOKEN;
    else if (!more)
        r->why = BL_FINISH_SINK;
    else if (r->generated >= j->max_tokens)
        r->why = BL_FINISH_LENGTH;
}

static void count_step(bl_scheduler *s, int64_t tokens, int64_t prompt_tokens, double now)
{
    bl_scheduler_stats *t = &s->stats;
    t->steps++;
    t->step_tokens += (uint64_t)tokens;
    t->prompt_tokens += (uint64_t)prompt_tokens;
    if (t->largest_batch < s->count)
        t->largest_batch = s->count;
    t->used_tokens = 0;
    for (int i = 0; i < s->count; i++) {
        const bl_running *r = &s->running[i];
        t->used_tokens += bl_sequence_length(r->sequence);
        t->nan_outputs += r->row >= 0 && r->nans > 0;
        if (r->row < 0 || r->out.id < 0)
            continue;
        t->generated_tokens++;
        if (r->generated > 0)
            bl_histogram_add(&t->inter_token, now - r->previous);
        else
            bl_histogram_add(&t->first_token, now - r->job->arrived);
    }
}

void bl_scheduler_step(bl_scheduler *s)
{
    int64_t tokens = 0, prompt_tokens = 0;
    build_batch(s);
    for (int i = 0; i < s->count; i++) {
        tokens += s->running[i].take;
        prompt_tokens += prompt_left(&s->running[i]) > 0 ? s->running[i].take : 0;
    }
    if (bl_forward_draw(s->model, s->spans, s->count, s->draws, s->drawn, s->logits, NULL) != BL_OK && !note_fault(s)) {
        run_alone(s);
        note_fault(s);
    }
    bl_pool_run(bl_model_pool(s->model), s->count, sample_one, s);
    double now = bl_clock();
    pthread_mutex_lock(&s->lock);
    count_step(s, tokens, prompt_tokens, now);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->count; i++) {
        bl_running *r = &s->running[i];
        if (r->why == BL_FINISH_NONE && prompt_left(r) > 0)
            r->fed += r->take;
        if (r->row >= 0 && !bl_job_cancelled(r->job))
            hand_out(s, r, now);
    }
}
