#include "tools/logits.h"

#include "formats/output.h"
#include "formats/safetensors.h"
#include "tools/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHUNK 512

typedef struct run {
    const logits_job *j;
    int64_t chunk; /* tokens of each sequence in a call, 0: all */
    bl_model *model;
    bl_sequence **sequences;
    bl_span *spans;
    bl_tensor *tensors;
    parity *parity;
    bl_output *out;
    float *rows; /* logits of one call */
    int64_t nans;
    bl_arena arena;
    bl_error *err;
} run;

static bl_status out_of_memory(const run *r)
{
    return bl_fail(r->err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the logits (--chunk bounds them)");
}

static int64_t taken(const run *r, int64_t i, int64_t done)
{
    const int64_t left = r->j->sequences[i].count - done, chunk = r->chunk;
    return left <= 0 ? 0 : chunk > 0 && chunk < left ? chunk : left;
}

/* ---- before */

static bl_status lay_out(run *r)
{
    const int64_t n = r->j->sequence_count;
    bl_st_head head;
    r->tensors = bl_arena_array(&r->arena, (size_t)n, sizeof *r->tensors);
    if (!r->tensors) return out_of_memory(r);
    for (int64_t i = 0; i < n; i++) {
        char *name = bl_arena_alloc(&r->arena, 32);
        uint64_t *shape = bl_arena_array(&r->arena, 2, sizeof *shape);
        if (!name || !shape) return out_of_memory(r);
        if (n == 1) snprintf(name, 32, "logits");
        else snprintf(name, 32, "logits.%lld", (long long)i);
        shape[0] = (uint64_t)r->j->sequences[i].count;
        shape[1] = (uint64_t)bl_model_config(r->model)->vocab_size;
        r->tensors[i] = (bl_tensor){.name = name, .shape = shape, .ndim = 2, .dtype = BL_DT_F32};
    }
    BL_TRY(bl_st_layout(r->tensors, (size_t)n, NULL, 0, 8, 1, &r->arena, &head, r->err));
    BL_TRY(bl_output_open(&r->out, r->j->out, head.file_bytes, r->err));
    return bl_st_head_write(&head, r->out, r->err);
}

static bl_status prepare(run *r)
{
    const logits_job *j = r->j;
    const size_t n = (size_t)j->sequence_count, row = (size_t)bl_model_config(r->model)->vocab_size * sizeof(float);
    int64_t most = 0;
    for (int64_t i = 0; i < j->sequence_count; i++) most += taken(r, i, 0);
    r->sequences = calloc(n, sizeof(bl_sequence *));
    r->spans = calloc(n, sizeof *r->spans);
    r->rows = calloc((size_t)most, row);
    if (!r->sequences || !r->spans || !r->rows) return out_of_memory(r);
    for (size_t i = 0; i < n; i++) BL_TRY(bl_sequence_create(&r->sequences[i], r->model, r->err));
    if (j->trace || j->inject)
        BL_TRY(parity_open(&r->parity, j->trace != NULL, j->inject, j->sequences[0].ids, j->sequences[0].count, r->err));
    return lay_out(r);
}

/* ---- one call, and all of them */

static int64_t count_nans(const float *x, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += isnan(x[i]) != 0;
    return count;
}

static bl_status step(run *r, int64_t done, bool *more)
{
    const size_t row = (size_t)bl_model_config(r->model)->vocab_size * sizeof(float);
    int64_t n = 0;
    for (int64_t i = 0; i < r->j->sequence_count; i++) {
        const int64_t count = taken(r, i, done);
        if (count) r->spans[n++] = (bl_span){.sequence = r->sequences[i], .ids = r->j->sequences[i].ids + done, .count = count};
    }
    *more = n > 0;
    if (n == 0) return BL_OK;
    const bl_hooks hooks = r->parity ? parity_hooks(r->parity) : (bl_hooks){0};
    BL_TRY(bl_forward(r->model, r->spans, n, r->rows, r->parity ? &hooks : NULL, r->err));
    if (r->parity) BL_TRY(parity_status(r->parity, r->err));
    const uint8_t *rows = (const uint8_t *)r->rows;
    for (int64_t i = 0; i < r->j->sequence_count; i++) {
        const uint64_t bytes = (uint64_t)taken(r, i, done) * row;
        if (bytes) BL_TRY(bl_output_write(r->out, rows, bytes, r->tensors[i].offset + (uint64_t)done * row, r->err));
        r->nans += count_nans((const float *)(const void *)rows, (int64_t)(bytes / sizeof(float)));
        rows += bytes;
    }
    return BL_OK;
}

static bl_status all_steps(run *r)
{
    bool more = true;
    for (int64_t done = 0; more;) {
        if (r->j->cancelled && r->j->cancelled()) return bl_fail(r->err, BL_E_CANCELLED, NULL, NULL, -1, "interrupted");
        BL_TRY(step(r, done, &more));
        if (r->chunk <= 0) break;
        done += r->chunk;
    }
    if (r->j->trace) BL_TRY(parity_write(r->parity, r->j->trace, r->err));
    return bl_output_commit(&r->out, r->err);
}

bl_status logits_run(const logits_job *j, int64_t *nans, bl_error *err)
{
    run r = {.j = j, .chunk = j->chunk > 0 ? j->chunk : j->trace || j->inject ? 0 : CHUNK, .err = err};
    bl_status s = bl_model_open(&r.model, j->model, &j->options, err);
    if (s == BL_OK) s = prepare(&r);
    if (s == BL_OK) s = all_steps(&r);
    if (nans) *nans = r.nans;
    bl_output_abort(&r.out);
    parity_close(&r.parity);
    for (int64_t i = 0; r.sequences && i < j->sequence_count; i++) bl_sequence_destroy(&r.sequences[i]);
    free(r.sequences);
    free(r.spans);
    free(r.rows);
    bl_model_close(&r.model);
    bl_arena_reset(&r.arena);
    return s;
}
