/* Cuts a batch into passes and keeps the sequences' lengths and histories. */
#include "runtime/model.h"

#include <inttypes.h>
#include <string.h>

/* How far a call has come: spans before `span` are done, of that one `done` tokens. */
typedef struct progress {
    int64_t span, done;
} progress;

static bl_status check_span(const bl_model *m, const bl_span *s, bl_error *err)
{
    if (!s->sequence || s->sequence->model != m || s->count < 0 || s->logits_from < 0)
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "a span of the batch is not of this model, or negative");
    if (s->count > m->config.max_position_embeddings - s->sequence->length)
        return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "%" PRId64 " tokens do not fit after %" PRId64 ": the model takes %" PRId64,
                       s->count, s->sequence->length, m->config.max_position_embeddings);
    for (int64_t i = 0; i < s->count; i++)
        if (s->ids[i] < 0 || s->ids[i] >= m->config.vocab_size)
            return bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "token %" PRId32 " is not below vocab_size %d", s->ids[i],
                           m->config.vocab_size);
    return BL_OK;
}

static bl_status check_distinct(const bl_span *spans, int64_t count, bl_error *err)
{
    int64_t marked = 0;
    while (marked < count && !spans[marked].sequence->in_batch) spans[marked++].sequence->in_batch = true;
    for (int64_t i = 0; i < marked; i++) spans[i].sequence->in_batch = false;
    return marked == count ? BL_OK : bl_fail(err, BL_E_USAGE, NULL, NULL, -1, "a sequence is twice in one batch");
}

/* ---- Engram addresses: known from the ids alone, so computed on the host for the whole pass */

static void engram_rows(const bl_model *m, const bl_span *s, int64_t i, int64_t token)
{
    const bl_engram *e = m->engram;
    const int32_t *before = s->sequence->cache.classes;
    int32_t history[64]; /* bl_engram_create refuses longer n-grams */
    for (int64_t back = 0; back < e->order; back++)
        history[back] = back <= i ? e->map[s->ids[i - back]] : before[back - i - 1];
    for (int l = 0; l < e->layers; l++)
        bl_engram_rows(e, l, history, m->scratch.engram_rows + ((int64_t)l * m->pass_tokens + token) * e->columns);
}

/* The newest class first. */
static void remember_classes(const bl_model *m, const bl_span *s)
{
    const bl_engram *e = m->engram;
    int32_t *classes = s->sequence->cache.classes;
    for (int64_t back = e->order - 2; back >= 0; back--)
        classes[back] = back < s->count ? e->map[s->ids[s->count - 1 - back]] : classes[back - s->count];
}

/* ---- passes */

/* Add the next tokens of a span, as many as fit. Returns how many. */
static int64_t add_tokens(bl_model *m, bl_pass *p, const bl_span *s, int64_t done)
{
    bl_scratch *b = &m->scratch;
    int64_t n = s->count - done;
    if (n > m->pass_tokens - p->tokens) n = m->pass_tokens - p->tokens;
    if (n == 0) return 0;
    b->spans[p->span_count] = (bl_pass_span){
        .cache = &s->sequence->cache, .first = p->tokens, .count = n, .start = s->sequence->length + done};
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = p->tokens + i;
        b->ids[t] = s->ids[done + i];
        b->position[t] = s->sequence->length + done + i;
        b->span_of[t] = (int32_t)p->span_count;
        if (m->engram) engram_rows(m, s, done + i, t);
        if (done + i >= s->logits_from) b->wanted[p->wanted_count++] = t;
    }
    p->tokens += n;
    p->span_count++;
    return n;
}

static bl_pass next_pass(bl_model *m, const bl_span *spans, int64_t count, progress *at)
{
    bl_scratch *b = &m->scratch;
    bl_pass p = {.ids = b->ids, .position = b->position, .span_of = b->span_of, .spans = b->spans, .weights = &m->weights,
                 .wanted = b->wanted};
    if (m->engram) {
        p.engram_rows = b->engram_rows;
        p.engram_columns = m->engram->columns;
        p.engram_stride = m->pass_tokens * m->engram->columns;
    }
    while (at->span < count && p.tokens < m->pass_tokens) {
        at->done += add_tokens(m, &p, &spans[at->span], at->done);
        if (at->done == spans[at->span].count) *at = (progress){at->span + 1, 0};
    }
    p.delivered = p.wanted_count;
    return p;
}

static void copy_token(bl_model *m, bl_pass *p, int64_t from)
{
    bl_scratch *b = &m->scratch;
    const int64_t to = p->tokens++, columns = p->engram_columns;
    b->ids[to] = b->ids[from];
    b->position[to] = b->position[from];
    b->span_of[to] = b->span_of[from];
    b->wanted[p->wanted_count++] = to;
    for (int l = 0; m->engram && l < m->engram->layers; l++) {
        int64_t *rows = b->engram_rows + l * p->engram_stride;
        memcpy(rows + to * columns, rows + from * columns, (size_t)columns * sizeof *rows);
    }
}

/* A step of decoding grows to one of few sizes, with copies of the token that costs least. */
static void pad(bl_model *m, bl_pass *p)
{
    const bl_backend *b = m->backend;
    if (!b->padded || !p->plain || p->tokens != p->span_count || p->tokens != p->wanted_count || p->tokens == 0) return;
    const int64_t size = b->padded(m->backend, p->tokens);
    int64_t shortest = 0;
    for (int64_t t = 1; t < p->tokens; t++)
        if (p->position[t] < p->position[shortest]) shortest = t;
    while (p->tokens < size) copy_token(m, p, shortest);
}

typedef struct outputs {
    float *logits;
    const bl_draw *draws;
    bl_drawn *drawn;
} outputs;

/* One pass, and on to the next one's rows. */
static bl_status run(bl_model *m, bl_pass *p, outputs *o, const bl_hooks *hooks, bl_error *err)
{
    const int64_t rows = p->wanted_count;
    p->logits = o->logits;
    p->draws = o->draws;
    p->drawn = o->drawn;
    for (int64_t i = 0; o->drawn && i < rows; i++) o->drawn[i] = (bl_drawn){.token = BL_NOT_DRAWN};
    p->plain = !hooks && m->shard.ranks == 1;
    pad(m, p);
    BL_TRY(bl_run_pass(m, p, hooks, err));
    if (rows == 0) return BL_OK; /* the pointers may be NULL */
    o->logits += rows * m->config.vocab_size;
    if (o->draws) o->draws += rows, o->drawn += rows;
    return BL_OK;
}

static bl_status forward(bl_model *m, const bl_span *spans, int64_t count, outputs o, const bl_hooks *hooks, bl_error *err)
{
    for (int64_t i = 0; i < count; i++) BL_TRY(check_span(m, &spans[i], err));
    BL_TRY(check_distinct(spans, count, err));
    for (int64_t i = 0; i < count; i++)
        BL_TRY(bl_cache_reserve(&spans[i].sequence->cache, spans[i].sequence->length + spans[i].count, err));
    progress at = {0, 0};
    while (at.span < count) {
        bl_pass p = next_pass(m, spans, count, &at);
        if (p.tokens == 0) break;
        BL_TRY(run(m, &p, &o, hooks, err));
    }
    for (int64_t i = 0; i < count; i++) {
        if (m->engram) remember_classes(m, &spans[i]);
        spans[i].sequence->length += spans[i].count;
    }
    return BL_OK;
}

bl_status bl_forward(bl_model *m, const bl_span *spans, int64_t count, float *logits, const bl_hooks *hooks, bl_error *err)
{
    return forward(m, spans, count, (outputs){.logits = logits}, hooks, err);
}

bl_status bl_forward_draw(bl_model *m, const bl_span *spans, int64_t count, const bl_draw *draws, bl_drawn *drawn, float *logits,
                          bl_error *err)
{
    return forward(m, spans, count, (outputs){logits, draws, drawn}, NULL, err);
}
