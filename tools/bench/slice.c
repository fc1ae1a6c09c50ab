#include "tools/bench/slice.h"

#include "kernels/cast.h"
#include "verify/digest.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 1000, ORDER = 4, COLUMNS = 24, TABLE_WIDTH = 256, TEMPLATE = 1 << 20 };

struct slice {
    bl_model *model;
    bl_sequence *sequences[SLICE_SEQUENCES];
    int64_t count; /* of them */
    int32_t ids[BL_PASS_TOKENS_GPU];
    float *logits;
    int expert_sets;
    int *layer_of; /* [handle_count] of each handle's view; -1: of none */
    uint64_t state; /* of the random ids */
    unsigned cpu;
};

/* ---- the config */

typedef struct text {
    char p[4096];
    size_t n;
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    t->n += (size_t)vsnprintf(t->p + t->n, sizeof t->p - t->n, format, args);
    va_end(args);
}

/* "key": [layers whose role is among which] */
static int put_layers(text *t, const char *key, const char *roles, const char *which)
{
    int n = 0;
    put(t, "\"%s\":[", key);
    for (int i = 0; roles[i]; i++)
        if (strchr(which, roles[i])) put(t, "%s%d", n++ ? "," : "", i);
    put(t, "],");
    return n;
}

static int ratio(char role)
{
    return strchr("pq", role) ? 2 : strchr("srf", role) ? 1 : 0;
}

static bl_status make_config(bl_config *c, const char *roles, int vocab, int64_t table_rows, bl_arena *arena, bl_error *err)
{
    text t = {.n = 0};
    const char *s = strchr(roles, 's');
    put(&t, "{\"model_type\":\"deepseek_v41\",\"vocab_size\":%d,\"hidden_size\":5120,\"moe_intermediate_size\":2304,"
            "\"num_hidden_layers\":%zu,\"num_attention_heads\":64,\"head_dim\":512,\"qk_rope_head_dim\":64,\"q_lora_rank\":1280,"
            "\"o_lora_rank\":1024,\"o_groups\":8,\"n_routed_experts\":384,\"n_shared_experts\":1,\"num_experts_per_tok\":6,"
            "\"sliding_window\":128,\"max_position_embeddings\":1048576,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-6,"
            "\"rms_norm_eps\":1e-20,\"swiglu_limit\":10.0,\"routed_scaling_factor\":1.5,\"norm_topk_prob\":true,\"rope_theta\":10000,"
            "\"compress_rope_theta\":160000,\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":512,"
            "\"candidate_source_layer_id\":%d,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,\"bos_token_id\":0,"
            "\"eos_token_id\":1,\"pad_token_id\":2,\"num_nextn_predict_layers\":0,\"engram_max_ngram_size\":%d,\"engram_n_heads\":8,"
            "\"engram_head_dim\":256,\"engram_pad_token_id\":2,\"engram_vocab_size\":1000,\"engram_compressed_vocab_size\":%d,",
        vocab, strlen(roles), s ? (int)(s - roles) : -1, ORDER, CLASSES);
    put_layers(&t, "kv_source_layer_ids", roles, "ps");
    put_layers(&t, "index_source_layer_ids", roles, "psf");
    const int tables = put_layers(&t, "engram_layer_ids", roles, "e");
    put(&t, "\"engram_num_embeddings\":[");
    for (int i = 0; i < tables; i++) put(&t, "%s%lld", i ? "," : "", (long long)table_rows);
    put(&t, "],\"compress_ratios\":[");
    for (int i = 0; roles[i]; i++) put(&t, "%s%d", i ? "," : "", ratio(roles[i]));
    put(&t, "]}");
    return bl_config_parse(t.p, t.n, "the benchmark's config", arena, c, err);
}

/* ---- made-up weights */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 24;
}

/* Engram tables have a scale for each row. */
static uint64_t scale_bytes(const bl_matrix *m, bool table)
{
    return table ? (uint64_t)m->rows * ((uint64_t)m->cols / 32) : bl_matrix_scale_bytes(m);
}

/* Values of a size that keeps activations near 1 through a product of these columns. */
static void fill(uint8_t *to, uint64_t bytes, const uint8_t *pattern)
{
    for (uint64_t at = 0; at < bytes; at += TEMPLATE) memcpy(to + at, pattern, bytes - at < TEMPLATE ? bytes - at : TEMPLATE);
}

static void make_pattern(uint8_t *p, bl_weight_kind kind, int64_t cols)
{
    uint64_t state = (uint64_t)kind + 17;
    int exponent = 0; /* -log2(cols) / 2 */
    for (int64_t n = cols; n > 1; n /= 4) exponent--;
    for (size_t i = 0; i < TEMPLATE; i += 4) {
        uint32_t v = (uint32_t)next_random(&state);
        if (kind == BL_W_FP8) v &= 0xbfbfbfbf; /* no NaN */
        if (kind == BL_W_BF16) v = (v & 0x807f807f) | 0x00010001u * ((uint32_t)(127 + exponent) << 7);
        if (kind == BL_W_F32) v = (v & 0x807fffff) | (uint32_t)(127 + exponent) << 23;
        memcpy(p + i, &v, 4);
    }
}

/* fp8 codes below 2 in size are about 0.3, fp4 codes about 3. */
static int scale_byte(const bl_matrix *m)
{
    int exponent = m->kind == BL_W_FP8 ? 127 + 1 : 127 - 2;
    for (int64_t n = m->cols; n > 1; n /= 4) exponent--;
    return exponent;
}

/* Memory of an Engram table, where the backend keeps those, filled with bytes of a pattern. */
static bl_status make_table(slice *s, uint64_t bytes, const uint8_t *pattern, const void **at, bl_error *err)
{
    bl_backend *b = s->model->backend;
    bl_table_room room;
    BL_TRY(b->place_table(b, bytes, &room, err));
    *at = room.address;
    if (room.filled) return BL_OK;
    if (room.host) fill(room.to, bytes, pattern);
    for (uint64_t i = 0; !room.host && i < bytes; i += TEMPLATE)
        b->upload(b, (uint8_t *)room.to + i, pattern, bytes - i < TEMPLATE ? bytes - i : TEMPLATE);
    return BL_OK;
}

static bl_status make_kept_table(slice *s, const bl_handle *h, uint8_t *pattern, bl_error *err)
{
    bl_matrix *m = h->view;
    const void *scale;
    make_pattern(pattern, m->kind, m->cols);
    BL_TRY(make_table(s, bl_matrix_code_bytes(m), pattern, &m->codes, err));
    memset(pattern, scale_byte(m), TEMPLATE);
    BL_TRY(make_table(s, scale_bytes(m, true), pattern, &scale, err));
    m->scale = scale;
    return BL_OK;
}

static bl_status make_view(slice *s, bench *b, const bl_handle *h, uint8_t *pattern, int sets, bl_error *err)
{
    bl_matrix *m = h->view;
    const uint64_t codes = bl_matrix_code_bytes(m), scales = scale_bytes(m, h->host);
    const int n = h->count < sets ? h->count : sets;
    if (h->host && s->model->backend->place_table) return make_kept_table(s, h, pattern, err);
    void *code_memory, *scale_memory = NULL;
    make_pattern(pattern, m->kind, m->rows == 1 ? 1 : m->cols); /* norms and biases stay near 1 */
    BL_TRY(bench_memory(b, (size_t)n * codes, &code_memory, err));
    fill(code_memory, (uint64_t)n * codes, pattern);
    if (scales) {
        BL_TRY(bench_memory(b, (size_t)n * scales, &scale_memory, err));
        memset(scale_memory, scale_byte(m), (size_t)n * scales);
    }
    const void *at = code_memory, *scale_at = scale_memory;
    bl_backend *device = s->model->backend;
    if (!h->host) BL_TRY(device->import(device, &at, code_memory, (uint64_t)n * codes, 1, err));
    if (!h->host && scales) BL_TRY(device->import(device, &scale_at, scale_memory, (uint64_t)n * scales, 1, err));
    for (int i = 0; i < h->count; i++) {
        bl_matrix *view = (bl_matrix *)((char *)m + (size_t)i * h->view_step);
        view->codes = (const uint8_t *)at + (uint64_t)(i % n) * codes;
        view->scale = scales ? (const uint8_t *)scale_at + (uint64_t)(i % n) * scales : NULL;
    }
    return BL_OK;
}

/* Layers share the experts of the first one. */
static void share_experts(bl_weights *w)
{
    for (int i = 1; i < w->layer_count; i++) w->layers[i].experts = w->layers[0].experts;
}

static bool expert_of_later_layer(const bl_weights *w, const bl_matrix *view)
{
    for (int i = 1; i < w->layer_count; i++) {
        const bl_expert *e = w->layers[i].experts;
        if (view == &e->w1 || view == &e->w3 || view == &e->w2) return true;
    }
    return false;
}

/* The layer that a view is in; before layers share experts. */
static int find_layer(const bl_weights *w, const bl_matrix *view, int experts)
{
    const char *at = (const char *)view;
    for (int i = 0; i < w->layer_count; i++) {
        const bl_layer *l = &w->layers[i];
        if ((at >= (const char *)l && at < (const char *)(l + 1)) ||
            (at >= (const char *)l->experts && at < (const char *)(l->experts + experts)))
            return i;
    }
    return -1;
}

static bl_status note_layers(slice *s, bl_error *err)
{
    const bl_weights *w = &s->model->weights;
    s->layer_of = malloc(w->handle_count * sizeof *s->layer_of);
    if (!s->layer_of) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    for (size_t i = 0; i < w->handle_count; i++) s->layer_of[i] = find_layer(w, w->handles[i].view, s->model->config.n_routed_experts);
    return BL_OK;
}

static bl_status make_weights(slice *s, bench *b, uint64_t expert_bytes, bl_error *err)
{
    bl_weights *w = &s->model->weights;
    static uint8_t pattern[TEMPLATE];
    const bl_expert *e = &w->layers[0].experts[0];
    const uint64_t one = bl_matrix_code_bytes(&e->w1) * 3 + bl_matrix_scale_bytes(&e->w1) * 3;
    s->expert_sets = expert_bytes / one < 8 ? 8 : expert_bytes / one > 384 ? 384 : (int)(expert_bytes / one);
    for (size_t i = 0; i < w->handle_count; i++)
        if (!expert_of_later_layer(w, w->handles[i].view)) BL_TRY(make_view(s, b, &w->handles[i], pattern, s->expert_sets, err));
    BL_TRY(note_layers(s, err));
    share_experts(w);
    for (int i = 0; i < w->layer_count; i++) {
        if (w->layers[i].engram_slot < 0) continue;
        void *qk;
        const size_t n = (size_t)BL_HC_MULT * (size_t)s->model->config.hidden_size;
        BL_TRY(bench_memory(b, n * sizeof(float), &qk, err));
        for (size_t k = 0; k < n; k++) ((float *)qk)[k] = 1;
        const void *at;
        BL_TRY(s->model->backend->import(s->model->backend, &at, qk, n * sizeof(float), sizeof(float), err));
        w->layers[i].engram.qk = at;
    }
    return BL_OK;
}

/* Slices with as many tables of one size share them. */
static bl_status share_tables(bl_model *m, bench *b, bl_error *err)
{
    bl_shared_key key = {0};
    for (size_t i = 0; i < m->weights.handle_count; i++) {
        const bl_handle *h = &m->weights.handles[i];
        if (h->host) key.bytes += bl_line(bl_matrix_code_bytes(h->view)) + bl_line(scale_bytes(h->view, true));
    }
    if (!key.bytes) return BL_OK;
    const struct {
        char what[16];
        uint64_t bytes, tables;
    } about = {"a benchmark's", key.bytes, (uint64_t)m->config.engram_count};
    key.contents = bl_digest_bytes(&about, sizeof about);
    m->plan.engram_bytes = key.bytes;
    return bl_shared_open(&m->shared, &key, b->pool, err);
}

/* Addresses without a tokenizer: every id its own class, column ranges of equal size. */
static bl_status make_engram(bl_model *m, bl_error *err)
{
    const size_t L = (size_t)m->config.engram_count, cells = L * COLUMNS;
    bl_engram *e = calloc(1, sizeof *e);
    m->engram = e;
    if (!e) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *e = (bl_engram){.layers = (int)L, .order = ORDER, .heads = COLUMNS / (ORDER - 1), .columns = COLUMNS, .pad = 2};
    e->map_size = e->classes = m->config.vocab_size;
    e->map = calloc((size_t)e->map_size, sizeof *e->map);
    e->multipliers = calloc(L * ORDER, sizeof *e->multipliers);
    e->primes = calloc(cells, sizeof *e->primes);
    e->offsets = calloc(cells, sizeof *e->offsets);
    if (!e->map || !e->multipliers || !e->primes || !e->offsets) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    for (int i = 0; i < e->map_size; i++) e->map[i] = i;
    for (size_t i = 0; i < L * ORDER; i++) e->multipliers[i] = (int64_t)(2 * i + 1000003);
    for (size_t i = 0; i < cells; i++) {
        e->primes[i] = m->config.engram_num_embeddings[0] / COLUMNS;
        e->offsets[i] = (int64_t)(i % COLUMNS) * e->primes[i];
    }
    return BL_OK;
}

static bl_status create(slice *s, bench *b, bl_device device, const char *roles, uint64_t expert_bytes, int vocab,
                        const slice_table *table, bl_error *err)
{
    s->model = calloc(1, sizeof *s->model);
    s->cpu = b->cpu;
    if (!s->model) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    bl_model *m = s->model;
    const int64_t rows = (int64_t)(table->bytes / (TABLE_WIDTH + TABLE_WIDTH / 32));
    BL_TRY(make_config(&m->config, roles, vocab, rows < COLUMNS ? COLUMNS : rows, &m->weights.arena, err));
    m->plan.engram = table->place;
    m->shard = bl_shard_single(&m->config);
    BL_TRY(bl_weights_describe(&m->weights, &m->config, &m->shard, err));
    const bl_model_options o = {.cpu = b->cpu, .threads = bl_pool_threads(b->pool), .device = device};
    if (device == BL_DEVICE_CUDA && table->place == BL_ENGRAM_SHARED) BL_TRY(share_tables(m, b, err));
    BL_TRY(bl_model_prepare(m, &o, err));
    BL_TRY(make_weights(s, b, expert_bytes, err));
    if (m->shared) bl_shared_ready(m->shared);
    if (m->config.engram_count) BL_TRY(make_engram(m, err));
    s->logits = malloc(SLICE_SEQUENCES * (size_t)vocab * sizeof *s->logits);
    return s->logits ? BL_OK : bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

bl_status slice_create(slice **out, bench *b, bl_device device, const char *roles, uint64_t expert_bytes, int vocab,
                        const slice_table *table, bl_error *err)
{
    slice *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    bl_status status = create(s, b, device, roles, expert_bytes, vocab, table, err);
    if (status != BL_OK) slice_destroy(&s);
    *out = s;
    return status;
}

void slice_destroy(slice **slice_)
{
    slice *s = *slice_;
    if (!s) return;
    for (int64_t i = 0; i < s->count; i++) bl_sequence_destroy(&s->sequences[i]);
    bl_model_close(&s->model);
    free(s->logits);
    free(s->layer_of);
    free(s);
    *slice_ = NULL;
}

/* ---- sequences */

/* Rows on their way to the backend's memory. */
typedef struct rows {
    bl_op_kernels ops;
    uint16_t x[4096];
    uint8_t memory[512 * 1024];
} rows;

static void fill_windows(slice *s, const bl_cache *cache, rows *r)
{
    const bl_config *c = &s->model->config;
    const size_t bytes = bl_window_row_bytes(c->head_dim), n = (size_t)bl_ring_rows(c);
    r->ops.pack_window(r->memory, r->x, c->head_dim);
    for (size_t i = 1; i < n; i++) memcpy(r->memory + i * bytes, r->memory, bytes);
    for (int l = 0; l < s->model->weights.layer_count; l++)
        s->model->backend->upload(s->model->backend, bl_cache_window(cache, l, 0), r->memory, n * bytes);
}

static void fill_pages(slice *s, const bl_cache *cache, int source, int64_t entries, rows *r)
{
    const bl_config *c = &s->model->config;
    const size_t latent = bl_latent_row_bytes(c->head_dim), key = bl_index_row_bytes(c->index_head_dim);
    for (int64_t e = 0; e < entries; e += BL_PAGE_ENTRIES) {
        for (int64_t i = 0; i < BL_PAGE_ENTRIES; i++) {
            r->x[(e + i) % 4096] ^= 0x8000; /* so that scores differ */
            r->ops.pack_latent(r->memory + (size_t)i * latent, r->x, c->head_dim);
            r->ops.pack_index(r->memory + BL_PAGE_ENTRIES * latent + (size_t)i * key, r->x, c->index_head_dim);
        }
        bl_backend *b = s->model->backend;
        b->upload(b, bl_cache_latent(cache, source, e), r->memory, BL_PAGE_ENTRIES * latent);
        b->upload(b, bl_cache_key(cache, source, e), r->memory + BL_PAGE_ENTRIES * latent, BL_PAGE_ENTRIES * key);
    }
}

/* Made-up rows: what they hold makes no difference to the time. */
static void fill_cache(slice *s, const bl_cache *cache, int64_t length)
{
    static rows r;
    static const float zeros[2 * 4096];
    const bl_config *c = &s->model->config;
    bl_op_init(&r.ops, s->cpu);
    for (int i = 0; i < 4096; i++) r.x[i] = bl_f32_to_bf16((float)((i * 37) % 64 - 32) / 32);
    fill_windows(s, cache, &r);
    for (int k = 0; k < c->kv_source_count; k++) {
        fill_pages(s, cache, k, length / c->compress_ratios[c->kv_source_layer_ids[k]], &r);
        s->model->backend->upload(s->model->backend, cache->open + (int64_t)k * 2 * c->head_dim, zeros, 2 * (size_t)c->head_dim * sizeof(float));
    }
}

bl_status slice_start(slice *s, int64_t length, int64_t sequences, bl_error *err)
{
    for (int64_t i = 0; i < s->count; i++) bl_sequence_destroy(&s->sequences[i]);
    for (s->count = 0; s->count < sequences; s->count++) {
        bl_sequence *q;
        BL_TRY(bl_sequence_create(&q, s->model, err));
        s->sequences[s->count] = q;
        q->length = length;
        const bl_status status = bl_cache_reserve(&q->cache, length + BL_PAGE_ENTRIES, err);
        if (status != BL_OK) bl_sequence_destroy(&q);
        BL_TRY(status);
        fill_cache(s, &q->cache, length);
    }
    return BL_OK;
}

bl_status slice_run(slice *s, int64_t n, bl_error *err)
{
    bl_span spans[SLICE_SEQUENCES];
    for (int64_t i = 0; i < n * s->count; i++) s->ids[i] = (int32_t)(next_random(&s->state) % (uint64_t)s->model->config.vocab_size);
    for (int64_t i = 0; i < s->count; i++)
        spans[i] = (bl_span){.sequence = s->sequences[i], .ids = s->ids + i * n, .count = n, .logits_from = n - 1};
    return bl_forward(s->model, spans, s->count, s->logits, NULL, err);
}

/* ---- costs */

/* Experts that so many choices of k out of E touch, on average. */
static double touched(double E, double k, int64_t tokens)
{
    return E * (1 - pow(1 - k / E, (double)tokens));
}

slice_cost slice_layer_cost(const slice *s, int layer, int64_t tokens)
{
    const bl_weights *w = &s->model->weights;
    slice_cost cost = {0};
    for (size_t i = 0; i < w->handle_count; i++) {
        const bl_handle *h = &w->handles[i];
        const bl_matrix *m = h->view;
        if (h->host || m == &w->embed || s->layer_of[i] != layer) continue;
        const int k = s->model->config.num_experts_per_tok;
        const double reads = h->count > 1 ? touched(h->count, k, tokens) : 1, times = h->count > 1 ? k : 1;
        cost.bytes += reads * (double)(bl_matrix_code_bytes(m) + bl_matrix_scale_bytes(m));
        const double wanted = m == &w->head ? (double)s->count : (double)tokens;
        if (m->rows > 1) cost.flop += wanted * times * 2 * (double)m->rows * (double)m->cols;
    }
    return cost;
}

slice_cost slice_step_cost(const slice *s, int64_t tokens)
{
    slice_cost all = {0};
    for (int layer = -1; layer < slice_layers(s); layer++) {
        const slice_cost one = slice_layer_cost(s, layer, tokens);
        all.bytes += one.bytes;
        all.flop += one.flop;
    }
    return all;
}

int slice_layers(const slice *s)
{
    return s->model->weights.layer_count;
}

bool slice_huge_pages(const slice *s, uint64_t *bytes)
{
    return bl_model_huge_pages(s->model, bytes);
}

int64_t slice_tokens_in(const slice *s, uint64_t bytes)
{
    enum { MANY = 1 << 20 };
    const uint64_t many = (uint64_t)bl_cache_pages(&s->model->config, MANY) * bl_cache_page_bytes(&s->model->config);
    return many ? (int64_t)((double)bytes / (double)many * MANY) : 0;
}

bool slice_launches(const slice *s, bl_launches *out)
{
    bl_backend *b = s->model->backend;
    if (b->launches) *out = b->launches(b);
    return b->launches != NULL;
}

int slice_expert_sets(const slice *s)
{
    return s->expert_sets;
}
