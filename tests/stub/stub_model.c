#include "tests/stub/stub_model.h"
#include "tests/unit/tiny_tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENIZER_ROOM 65536

struct bl_model {
    stub_options options;
    bl_config config;
    bl_tokenizer *tokenizer;
    stub_counts counts;
    int64_t taken; /* of options.room */
    bl_error fault;
};

struct bl_sequence {
    bl_model *model;
    int64_t length, reserved;
    uint64_t history;
};

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

static uint64_t append(uint64_t history, int32_t id)
{
    return mix(history + 1 + (uint64_t)id);
}

/* A lower-case letter (a byte token of the small tokenizer), or EOS. */
static int next_id(const bl_model *m, uint64_t history, int64_t length)
{
    if (m->options.eos_length && length >= m->options.eos_length)
        return STUB_EOS;
    return 3 + 'a' + (int)(history % 26);
}

bl_model *stub_open(const stub_options *o)
{
    bl_model *m = calloc(1, sizeof *m);
    m->options = *o;
    m->config.vocab_size = STUB_VOCAB;
    m->config.max_position_embeddings = o->context;
    m->config.eos_token_id = STUB_EOS;
    m->config.bos_token_id = 0;
    char *text = o->tokenizer ? malloc(TOKENIZER_ROOM) : NULL;
    if (text && bl_tokenizer_parse(&m->tokenizer, text, tiny_tokenizer(text, TOKENIZER_ROOM), "tiny", NULL) != BL_OK) {
        free(m);
        m = NULL;
    }
    free(text);
    return m;
}

static long setting(const char *name, long otherwise)
{
    const char *s = getenv(name);
    return s ? atol(s) : otherwise;
}

bl_status bl_model_look(const char *path, bl_error *err)
{
    return BL_OK;
}

bl_status bl_model_open(bl_model **out, const char *path, const bl_model_options *options, bl_error *err)
{
    usleep((unsigned)setting("STUB_LOAD_US", 0));
    const stub_options o = {.context = setting("STUB_CONTEXT", 4096),
                            .step_us = (unsigned)setting("STUB_STEP_US", 0),
                            .eos_length = setting("STUB_EOS_LENGTH", 0),
                            .max_sequences = setting("STUB_MAX_SEQUENCES", 0),
                            .fault_after = setting("STUB_FAULT_AFTER", 0),
                            .nan_id = (int32_t)setting("STUB_NAN_ID", 0),
                            .tokenizer = true};
    *out = stub_open(&o);
    return *out ? BL_OK : bl_fail(err, BL_E_NOMEM, path, NULL, -1, "no memory");
}

void bl_model_close(bl_model **m)
{
    if (*m)
        bl_tokenizer_close(&(*m)->tokenizer);
    free(*m);
    *m = NULL;
}

const bl_config *bl_model_config(const bl_model *m)
{
    return &m->config;
}

const bl_tokenizer *bl_model_tokenizer(const bl_model *m)
{
    return m->tokenizer;
}

bl_pool *bl_model_pool(const bl_model *m)
{
    return NULL;
}

bl_status bl_sequence_create(bl_sequence **out, bl_model *m, bl_error *err)
{
    *out = NULL;
    if (m->options.max_sequences && m->counts.live >= m->options.max_sequences)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no memory for a sequence");
    *out = calloc(1, sizeof **out);
    (*out)->model = m;
    m->counts.live++;
    m->counts.created++;
    return BL_OK;
}

void bl_sequence_destroy(bl_sequence **s)
{
    if (*s) {
        (*s)->model->counts.live--;
        (*s)->model->taken -= (*s)->reserved;
    }
    free(*s);
    *s = NULL;
}

int64_t bl_sequence_length(const bl_sequence *s)
{
    return s->length;
}

void bl_sequence_reset(bl_sequence *s)
{
    s->length = 0;
    s->history = 0;
}

bl_status bl_sequence_reserve(bl_sequence *s, int64_t tokens, bl_error *err)
{
    bl_model *m = s->model;
    if (m->options.room && m->taken + tokens > m->options.room)
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "no room for %lld tokens", (long long)tokens);
    m->taken += tokens;
    s->reserved += tokens;
    return BL_OK;
}

bl_status bl_model_plan(struct bl_memory_plan *out, const char *path, const bl_model_options *options, uint64_t memory, bl_error *err)
{
    return bl_fail(err, BL_E_USAGE, path, NULL, -1, "this model is none");
}

uint64_t bl_sequence_bytes(const bl_model *m, int64_t n)
{
    return (uint64_t)n * 16;
}

static void fill_logits(const bl_model *m, uint64_t history, int64_t length, float *row)
{
    for (int i = 0; i < STUB_VOCAB; i++)
        row[i] = (float)(mix(history + (uint64_t)i * 77) >> 40) * 0x1p-24f; /* [0, 1): sampling has choices */
    row[STUB_POISON] = -INFINITY; /* only prompts hold it */
    row[next_id(m, history, length)] += 1.5f;
}

bl_status bl_forward(bl_model *m, const bl_span *spans, int64_t count, float *logits, const bl_hooks *hooks, bl_error *err)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += spans[i].count;
        for (int64_t t = 0; t < spans[i].count; t++)
            if (spans[i].ids[t] == STUB_POISON)
                return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "poison");
    }
    if (m->options.fault_after && m->counts.passes >= m->options.fault_after)
        bl_fail(&m->fault, BL_E_IO, NULL, NULL, -1, "the stub is broken");
    if (m->fault.code)
        return bl_fail(err, m->fault.code, NULL, NULL, -1, "%s", m->fault.message);
    if (m->options.step_us)
        usleep(m->options.step_us);
    m->counts.passes++;
    if (m->counts.largest < count)
        m->counts.largest = (int)count;
    if (m->counts.most_tokens < tokens)
        m->counts.most_tokens = (int)tokens;
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < spans[i].count; t++) {
            bl_sequence *s = spans[i].sequence;
            s->history = append(s->history, spans[i].ids[t]);
            s->length++;
            if (t >= spans[i].logits_from) {
                fill_logits(m, s->history, s->length, logits);
                if (m->options.nan_id && spans[i].ids[t] == m->options.nan_id) logits[0] = NAN;
                logits += STUB_VOCAB;
            }
        }
    return BL_OK;
}

/* Draws what may be drawn where the seed is even, as a device would. */
bl_status bl_forward_draw(bl_model *m, const bl_span *spans, int64_t count, const bl_draw *draws, bl_drawn *drawn, float *logits,
                          bl_error *err)
{
    int32_t scratch[2 * STUB_VOCAB];
    int64_t rows = 0;
    const bl_status s = bl_forward(m, spans, count, logits, NULL, err);
    for (int64_t i = 0; i < count; i++) rows += spans[i].count - spans[i].logits_from;
    for (int64_t i = 0; s == BL_OK && i < rows; i++) {
        float *row = logits + i * STUB_VOCAB;
        drawn[i] = (bl_drawn){.token = BL_NOT_DRAWN};
        if (!draws[i].draw || draws[i].sampling.seed % 2) continue;
        for (int k = 0; k < STUB_VOCAB; k++) drawn[i].nans += isnan(row[k]) != 0;
        drawn[i].token = bl_sample(row, STUB_VOCAB, &draws[i].sampling, draws[i].position, scratch, NULL);
        memset(row, 0xff, STUB_VOCAB * sizeof *row); /* used up: NaN */
    }
    return s;
}

const struct bl_memory_plan *bl_model_memory(const bl_model *m)
{
    return NULL;
}

const bl_error *bl_model_no_gpu(const bl_model *m)
{
    return NULL;
}

const char *bl_model_shared_tables(const bl_model *m, bool *filled)
{
    return NULL;
}

bool bl_model_huge_pages(const bl_model *m, uint64_t *bytes)
{
    return false;
}

const char *bl_model_device(const bl_model *m)
{
    return "cpu";
}

const bl_error *bl_model_fault(const bl_model *m)
{
    return m->fault.code ? &m->fault : NULL;
}

stub_counts *stub_counted(bl_model *m)
{
    return &m->counts;
}

void stub_expect(const bl_model *m, const bl_job *job, int64_t n, int32_t *out)
{
    float logits[STUB_VOCAB];
    int32_t scratch[2 * STUB_VOCAB];
    uint32_t seen[STUB_VOCAB] = {0};
    uint64_t history = 0;
    for (int64_t i = 0; i < job->prompt_count; i++)
        history = append(history, job->prompt[i]);
    bl_seen_prompt(seen, job->prompt, job->prompt_count);
    for (int64_t i = 0; i < n; i++) {
        fill_logits(m, history, job->prompt_count + i, logits);
        bl_adjust_logits(logits, STUB_VOCAB, &job->adjust, seen);
        for (int k = 0; i < job->min_tokens && k < job->stop_count; k++)
            logits[job->stop_ids[k]] = -INFINITY;
        out[i] = bl_sample(logits, STUB_VOCAB, &job->sampling, (uint64_t)(job->prompt_count + i), scratch, NULL);
        bl_seen_output(seen, out[i]);
        history = append(history, out[i]);
    }
}
