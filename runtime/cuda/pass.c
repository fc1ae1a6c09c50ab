/* What a pass brings along: its tables, the experts' addresses, Engram rows, logits. */
#include "runtime/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ENTRIES = 1024 };

/* ---- tables */

/* Host and device memory for tables with that many bytes. */
static bl_status reserve_tables(bl_cuda *c, uint64_t bytes, bl_error *err)
{
    if (bytes <= c->table_bytes) return BL_OK;
    uint8_t *host = NULL;
    if (c->table_bytes) bytes += bytes / 2; /* not the last time */
    uint8_t *device = bl_cuda_alloc(&c->base, bytes);
    if (!device || !(host = bl_cuda_alloc_pinned(c, bytes))) {
        bl_cuda_release(&c->base, device);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of %s memory for page tables of %llu bytes", device ? "pinned" : "device",
                       (unsigned long long)bytes);
    }
    bl_cuda_forget_graphs(c);
    bl_cuda_release(&c->base, c->device_tables);
    cudaFreeHost(c->host_tables);
    c->host_tables = host;
    c->device_tables = device;
    c->table_bytes = bytes;
    return BL_OK;
}

static int64_t count_pages(const bl_cuda *c, const bl_pass *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->span_count; i++)
        for (int s = 0; s < c->config.kv_source_count; s++) n += p->spans[i].cache->entries[s].count;
    return n;
}

static void fill_spans(bl_cuda *c, const bl_pass *p)
{
    bl_cuda_span *spans = (bl_cuda_span *)(void *)(c->host_tables + c->layout.spans);
    int64_t *source_pages = (int64_t *)(void *)(c->host_tables + c->layout.source_pages);
    bl_cuda_page *pages = (bl_cuda_page *)(void *)(c->host_tables + c->layout.pages);
    const int sources = c->config.kv_source_count;
    int64_t n = 0;
    for (int64_t i = 0; i < p->span_count; i++) {
        const bl_pass_span *s = &p->spans[i];
        spans[i] = (bl_cuda_span){.first = s->first, .start = s->start, .count = s->count, .windows = s->cache->windows,
                                  .open = s->cache->open, .pages = n};
        for (int k = 0; k < sources; k++) {
            const bl_entries *e = &s->cache->entries[k];
            source_pages[i * sources + k] = n - spans[i].pages;
            for (int64_t j = 0; j < e->count; j++) pages[n++] = (bl_cuda_page){e->pages[j]->latents, e->pages[j]->keys};
        }
    }
}

/* Padding rows draw nothing. */
static void fill_draws(bl_cuda *c, const bl_pass *p)
{
    bl_cuda_draw *draws = (bl_cuda_draw *)(void *)(c->host_tables + c->layout.draws);
    for (int64_t i = 0; p->draws && i < p->wanted_count; i++) {
        const bl_draw *d = &p->draws[i < p->delivered ? i : 0];
        draws[i] = (bl_cuda_draw){.sampling = d->sampling, .position = d->position, .draw = i < p->delivered && d->draw};
    }
    /* whatever an earlier pass of another size had there is no token of this one, also where a kernel does not come to writing it */
    memset(c->host_tables + c->layout.drawn, 0, (size_t)p->tokens * sizeof(bl_cuda_drawn));
}

/* Rows that kernels gather themselves: [tables][tokens * columns]. */
static void fill_engram(bl_cuda *c, const bl_pass *p)
{
    int64_t *rows = (int64_t *)(void *)(c->host_tables + c->layout.engram);
    const int64_t n = p->tokens * p->engram_columns;
    for (int i = 0; cuda_gathers(c) && p->engram_rows && i < c->config.engram_count; i++)
        memcpy(rows + i * n, p->engram_rows + i * p->engram_stride, (size_t)n * sizeof *rows);
}

static void point_tables(bl_cuda *c, const bl_pass *p)
{
    const uint8_t *at = c->device_tables;
    bl_cuda_tables *t = &c->tables;
    t->tokens = p->tokens;
    t->ids = (const int32_t *)(const void *)(at + c->layout.ids);
    t->position = (const int64_t *)(const void *)(at + c->layout.position);
    t->span_of = (const int32_t *)(const void *)(at + c->layout.span_of);
    t->spans = (const bl_cuda_span *)(const void *)(at + c->layout.spans);
    t->source_pages = (const int64_t *)(const void *)(at + c->layout.source_pages);
    t->pages = (const bl_cuda_page *)(const void *)(at + c->layout.pages);
    t->sources = c->config.kv_source_count;
}

static bl_status send_tables(bl_cuda *c, const bl_pass *p, bl_error *err)
{
    const size_t T = (size_t)p->tokens;
    c->layout = bl_cuda_lay_out(&c->config, p->tokens);
    const uint64_t bytes = c->layout.pages + (uint64_t)count_pages(c, p) * sizeof(bl_cuda_page);
    BL_TRY(reserve_tables(c, bytes, err));
    memcpy(c->host_tables + c->layout.ids, p->ids, T * sizeof *p->ids);
    memcpy(c->host_tables + c->layout.position, p->position, T * sizeof *p->position);
    memcpy(c->host_tables + c->layout.span_of, p->span_of, T * sizeof *p->span_of);
    memcpy(c->host_tables + c->layout.wanted, p->wanted, (size_t)p->wanted_count * sizeof *p->wanted);
    fill_spans(c, p);
    fill_draws(c, p);
    fill_engram(c, p);
    point_tables(c, p);
    const cudaError_t e = cudaMemcpyAsync(c->device_tables, c->host_tables, bytes, cudaMemcpyHostToDevice, c->stream);
    return bl_cuda_check(e, "a pass's tables", err);
}

/* ---- experts: their addresses, once for the weights in use */

static bl_cuda_expert addresses(const bl_expert *e)
{
    return (bl_cuda_expert){.codes = {e->w1.codes, e->w3.codes, e->w2.codes}, .scale = {e->w1.scale, e->w3.scale, e->w2.scale}};
}

/* A change of weights in place has to be told. */
static bl_status know_experts(bl_cuda *c, const bl_weights *w, bl_error *err)
{
    if (c->known == w && c->known_version == w->version) return BL_OK;
    const size_t each = (size_t)c->shard.experts.count, n = (size_t)w->layer_count * each;
    bl_cuda_expert *table = malloc(n * sizeof *table);
    if (!table) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the table of experts");
    for (int i = 0; i < w->layer_count; i++)
        for (size_t e = 0; e < each; e++) table[(size_t)i * each + e] = addresses(&w->layers[i].experts[e]);
    bl_cuda_upload(&c->base, c->experts, table, n * sizeof *table);
    free(table);
    BL_TRY(bl_cuda_check(cudaGetLastError(), "the table of experts", err));
    bl_cuda_forget_graphs(c); /* they hold addresses of other weights */
    c->known = w;
    c->known_version = w->version;
    return BL_OK;
}

/* ---- Engram rows */

typedef struct gather_job {
    const bl_matrix *table;
    bl_rows held; /* by this rank */
    const int64_t *rows;
    uint8_t *codes, *scale;
    int64_t count;
} gather_job;

enum { GATHER_ROWS = 256 };

static void gather_part(void *arg, int64_t item, int worker)
{
    const gather_job *j = arg;
    const int64_t width = j->table->cols, last = (item + 1) * GATHER_ROWS < j->count ? (item + 1) * GATHER_ROWS : j->count;
    (void)worker;
    for (int64_t i = item * GATHER_ROWS; i < last; i++) {
        const int64_t row = j->rows[i] - j->held.first;
        if (row < 0 || row >= j->held.count) { /* zeros, whatever their scale */
            memset(j->codes + i * width, 0, (size_t)width);
            memset(j->scale + i * (width / 32), 0, (size_t)(width / 32));
            continue;
        }
        memcpy(j->codes + i * width, (const uint8_t *)j->table->codes + row * width, (size_t)width);
        memcpy(j->scale + i * (width / 32), j->table->scale + row * (width / 32), (size_t)(width / 32));
    }
}

void bl_cuda_gather(bl_cuda *c, const bl_layer *l)
{
    const bl_pass *p = c->pass;
    const int64_t width = l->engram.table.cols, count = p->tokens * p->engram_columns;
    uint8_t *host = c->host_rows + cuda_row_offset(c, l);
    gather_job j = {&l->engram.table, bl_cuda_held_rows(c, l), p->engram_rows + l->engram_slot * p->engram_stride, host, host + count * width, count};
    bl_pool_run(count > GATHER_ROWS ? c->pool : NULL, (count + GATHER_ROWS - 1) / GATHER_ROWS, gather_part, &j);
}

void bl_cuda_send_rows(bl_cuda *c, const bl_layer *l)
{
    const int64_t width = l->engram.table.cols, count = c->pass->tokens * c->pass->engram_columns;
    cudaMemcpyAsync(c->device_rows + cuda_row_offset(c, l), c->host_rows + cuda_row_offset(c, l), (size_t)(count * (width + width / 32)),
                    cudaMemcpyHostToDevice, c->stream);
}

/* ---- logits */

static bl_status reserve_logits(bl_cuda *c, int64_t rows, bl_error *err)
{
    if (rows <= c->logits_rows) return BL_OK;
    const uint64_t bytes = bl_cuda_logits_bytes(&c->shard, rows);
    float *host = NULL, *device = bl_cuda_alloc(&c->base, bytes);
    if (!device || !(host = bl_cuda_alloc_pinned(c, bytes))) {
        bl_cuda_release(&c->base, device);
        return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of %s memory for logits of %llu bytes", device ? "pinned" : "device",
                       (unsigned long long)bytes);
    }
    bl_cuda_forget_graphs(c);
    bl_cuda_release(&c->base, c->device_logits);
    cudaFreeHost(c->host_logits);
    c->device_logits = device;
    c->host_logits = host;
    c->logits_rows = rows;
    return BL_OK;
}

/* What the pass has made, on its way: tokens, and logits of rows that none was drawn from, neighbours in one copy. */
static void fetch(const bl_cuda *c, const bl_pass *p)
{
    const size_t n = (size_t)c->shard.vocab.count, at = c->layout.drawn;
    const size_t drawn = p->draws ? (size_t)p->delivered * sizeof(bl_cuda_drawn) : 0;
    if (drawn) cudaMemcpyAsync(c->host_tables + at, c->device_tables + at, drawn, cudaMemcpyDeviceToHost, c->stream);
    for (int64_t i = 0, end; i < p->delivered; i = end + 1) {
        for (end = i; end < p->delivered && !(p->draws && p->draws[end].draw);) end++;
        if (end == i) continue;
        cudaMemcpyAsync(c->host_logits + (size_t)i * n, c->device_logits + (size_t)i * n, (size_t)(end - i) * n * sizeof(float),
                        cudaMemcpyDeviceToHost, c->stream);
    }
}

static void deliver(const bl_cuda *c, const bl_pass *p)
{
    const size_t n = (size_t)c->shard.vocab.count;
    const bl_cuda_drawn *drawn = (const bl_cuda_drawn *)(const void *)(c->host_tables + c->layout.drawn);
    for (int64_t i = 0; i < p->delivered; i++) {
        if (p->draws && p->draws[i].draw) p->drawn[i] = (bl_drawn){drawn[i].token, drawn[i].nans};
        else memcpy(p->logits + i * c->config.vocab_size + c->shard.vocab.first, c->host_logits + (size_t)i * n, n * sizeof(float));
    }
}

/* ---- begin and end */

static int64_t longest_of(const bl_pass *p)
{
    int64_t n = LEAST_ENTRIES;
    for (int64_t i = 0; i < p->span_count; i++)
        while (n < p->spans[i].start + p->spans[i].count) n *= 2;
    return n;
}

static bl_status begin(bl_cuda *c, const bl_pass *p, bool *recorded, bl_error *err)
{
    BL_TRY(know_experts(c, p->weights, err));
    BL_TRY(reserve_logits(c, p->wanted_count, err));
    BL_TRY(send_tables(c, p, err));
    c->pass = p;
    c->launches = (bl_launches){0};
    c->later.expand = c->later.mix = c->later.parts = c->apart = c->x_is_rounded = c->sorted = false;
    c->longest = longest_of(p);
    BL_TRY(bl_cuda_graph_begin(c, p, recorded, err));
    if (!*recorded) bl_cuda_rotations(c->stream, &c->tables, c->frequency, c->config.qk_rope_head_dim);
    else if (p->engram_rows && !cuda_gathers(c))
        for (int i = 0; i < p->weights->layer_count; i++)
            if (p->weights->layers[i].engram_slot >= 0) bl_cuda_gather(c, &p->weights->layers[i]);
    return BL_OK;
}

/* The results of what was launched. */
static bl_status collect(bl_cuda *c, const bl_pass *p, bl_error *err)
{
    BL_TRY(bl_cuda_check(cudaGetLastError(), "starting a pass", err));
    fetch(c, p);
    c->launches.waits++;
    BL_TRY(bl_cuda_check(cudaStreamSynchronize(c->stream), "a pass", err));
    BL_TRY(bl_cuda_check(cudaGetLastError(), "a pass", err));
    deliver(c, p);
    return BL_OK;
}

/* A pass that was recorded has done nothing when that fails, and can be tried again. After any other failure nobody knows what of it was
 * done: a sequence's window may hold rows of positions that are still to come. */
static bl_status end(bl_cuda *c, bl_error *err)
{
    const bl_pass *p = c->pass;
    bl_error e = {0};
    c->pass = NULL;
    BL_TRY(bl_cuda_graph_end(c, err)); /* also ends a recording that failed */
    const bl_status s = collect(c, p, &e);
    if (s == BL_OK) return BL_OK;
    if (!c->fault.code) c->fault = e;
    if (err && !err->code) *err = e;
    return s;
}

/* A device that has failed fails again when it is asked: such errors last until the process ends. Others are told now, not once more by
 * the next pass, and buffers may be used again. */
static bl_status look(bl_cuda *c, bl_status s, bl_error *err)
{
    bl_error again = {0};
    if (s == BL_OK || c->fault.code) return s;
    (void)cudaGetLastError();
    if (bl_cuda_check(cudaStreamSynchronize(c->stream), "a pass", &again) != BL_OK) c->fault = err && err->code ? *err : again;
    return s;
}

bl_status bl_cuda_begin(bl_backend *b, const bl_pass *p, bool *recorded, bl_error *err)
{
    bl_cuda *c = cuda_of(b);
    return look(c, begin(c, p, recorded, err), err);
}

bl_status bl_cuda_end(bl_backend *b, bl_error *err)
{
    bl_cuda *c = cuda_of(b);
    return look(c, end(c, err), err);
}

bl_status bl_cuda_pass_create(bl_cuda *c, bl_error *err)
{
    BL_TRY(reserve_tables(c, c->sizes.table_bytes, err));
    BL_TRY(reserve_logits(c, c->sizes.logits_rows, err));
    const uint64_t rows = c->sizes.rows_bytes * (uint64_t)c->config.engram_count;
    return rows ? bl_cuda_check(cudaHostAlloc((void **)&c->host_rows, rows, cudaHostAllocDefault), "pinning Engram rows", err) : BL_OK;
}

void bl_cuda_pass_destroy(bl_cuda *c)
{
    bl_cuda_forget_graphs(c);
    void *device[] = {c->device_tables, c->device_logits};
    void *host[] = {c->host_tables, c->host_rows, c->host_logits};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) bl_cuda_release(&c->base, device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) cudaFreeHost(host[i]);
}
