#include "runtime/model.h"

#include "kernels/cuda/cuda.h"

#include "verify/slots.h"
#include "verify/verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bl_status out_of_memory(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for the model's working buffers");
}

/* ---- scratch */

enum { SCRATCH_BUFFERS = 17 };

typedef struct scratch_buffer {
    size_t at; /* of its pointer in bl_scratch */
    uint64_t bytes;
} scratch_buffer;

static void list_scratch(scratch_buffer list[SCRATCH_BUFFERS], const bl_config *c, const bl_shard *shard, int64_t tokens)
{
    const uint64_t T = (uint64_t)tokens, D = (uint64_t)c->hidden_size, S = BL_HC_MULT;
    const uint64_t query = (uint64_t)shard->heads.count * (uint64_t)c->head_dim;
    const uint64_t gathered = (uint64_t)bl_config_engram_columns(c) * (uint64_t)c->engram_head_dim;
    const scratch_buffer buffers[SCRATCH_BUFFERS] = {
        {offsetof(bl_scratch, streams), T * S * D * 2},
        {offsetof(bl_scratch, x), T * D * 2},
        {offsetof(bl_scratch, y), T * D * 2},
        {offsetof(bl_scratch, qr), T * (uint64_t)c->q_lora_rank * 2},
        {offsetof(bl_scratch, q), T * query * 2},
        {offsetof(bl_scratch, o), T * query * 2},
        {offsetof(bl_scratch, e), T * gathered * 2},
        {offsetof(bl_scratch, kv), T * bl_window_row_bytes(c->head_dim)},
        {offsetof(bl_scratch, pre[0]), T * S * 4},
        {offsetof(bl_scratch, pre[1]), T * S * 4},
        {offsetof(bl_scratch, post), T * S * 4},
        {offsetof(bl_scratch, comb), T * S * S * 4},
        {offsetof(bl_scratch, partial), T * D * 4},
        {offsetof(bl_scratch, gates), T * (uint64_t)c->num_experts_per_tok * 4},
        {offsetof(bl_scratch, selected), T * (uint64_t)c->index_topk * 4},
        {offsetof(bl_scratch, candidates), T * (uint64_t)c->candidate_topk_blocks * 4},
        {offsetof(bl_scratch, experts), T * (uint64_t)c->num_experts_per_tok * 4},
    };
    memcpy(list, buffers, sizeof buffers);
}

uint64_t bl_scratch_bytes(const bl_config *c, const bl_shard *shard, int64_t tokens)
{
    scratch_buffer list[SCRATCH_BUFFERS];
    uint64_t total = 0;
    list_scratch(list, c, shard, tokens);
    for (int i = 0; i < SCRATCH_BUFFERS; i++) total += bl_line(list[i].bytes);
    return total;
}

static bl_status allocate_device(bl_model *m, bl_error *err)
{
    scratch_buffer list[SCRATCH_BUFFERS];
    list_scratch(list, &m->config, &m->shard, m->pass_tokens);
    uint8_t *p = m->scratch.memory = m->backend->alloc(m->backend, bl_scratch_bytes(&m->config, &m->shard, m->pass_tokens));
    if (!p) return out_of_memory(err);
    for (int i = 0; i < SCRATCH_BUFFERS; i++) {
        memcpy((uint8_t *)&m->scratch + list[i].at, &p, sizeof p);
        p += bl_line(list[i].bytes);
    }
    return BL_OK;
}

static bl_status allocate_host(bl_model *m, bl_error *err)
{
    const size_t T = (size_t)m->pass_tokens;
    bl_scratch *s = &m->scratch;
    s->ids = calloc(T, sizeof *s->ids);
    s->span_of = calloc(T, sizeof *s->span_of);
    s->position = calloc(T, sizeof *s->position);
    s->wanted = calloc(T, sizeof *s->wanted);
    s->spans = calloc(T, sizeof *s->spans);
    s->engram_rows = calloc(T * (size_t)(bl_config_engram_columns(&m->config) * m->config.engram_count + 1), sizeof *s->engram_rows);
    return s->ids && s->span_of && s->position && s->wanted && s->spans && s->engram_rows ? BL_OK : out_of_memory(err);
}

static void release_host(bl_scratch *s)
{
    free(s->ids);
    free(s->span_of);
    free(s->position);
    free(s->wanted);
    free(s->spans);
    free(s->engram_rows);
}

static bl_cpu_options cpu_options(const bl_model *m, const bl_model_options *o)
{
    return (bl_cpu_options){.cpu = o->cpu, .max_tokens = BL_PASS_TOKENS, .pool = m->pool, .adjust = o->adjust};
}

static bl_device chosen_device(const bl_model_options *o)
{
    return o->device == BL_DEVICE_AUTO ? bl_cuda_usable(NULL) ? BL_DEVICE_CUDA : BL_DEVICE_CPU : o->device;
}

/* AUTO is decided once: the answer may change while a model is opened. */
static bl_model_options settled(const bl_model_options *options, bl_error *why)
{
    bl_model_options o = *options;
    if (o.device == BL_DEVICE_AUTO) o.device = bl_cuda_usable(why) ? BL_DEVICE_CUDA : BL_DEVICE_CPU;
    return o;
}

int64_t bl_pass_tokens(const bl_config *c, bl_device device)
{
    const int64_t most = BL_CUDA_MAX_CHOSEN / c->num_experts_per_tok;
    if (device != BL_DEVICE_CUDA) return BL_PASS_TOKENS;
    return most < BL_PASS_TOKENS_GPU ? most : BL_PASS_TOKENS_GPU;
}

static bl_status create_backend(bl_model *m, const bl_model_options *o, bl_error *err)
{
    const bl_cpu_options cpu = cpu_options(m, o);
    const bl_cuda_options cuda = {.max_tokens = m->pass_tokens, .pool = m->pool, .plan = &m->plan, .shared = m->shared};
    if (chosen_device(o) == BL_DEVICE_CUDA) return bl_backend_cuda(&m->backend, &m->config, &m->shard, &cuda, err);
    return bl_backend_cpu(&m->backend, &m->config, &m->shard, &cpu, err);
}

bl_status bl_model_prepare(bl_model *m, const bl_model_options *o, bl_error *err)
{
    if (!m->pool) BL_TRY(bl_pool_create(&m->pool, o->threads, err));
    m->pass_tokens = bl_pass_tokens(&m->config, chosen_device(o));
    BL_TRY(create_backend(m, o, err));
    BL_TRY(bl_page_pool_init(&m->pages, m->backend, &m->config, m->shard.layers.count, err));
    if (m->plan.device == BL_DEVICE_CUDA && m->plan.sequences)
        BL_TRY(bl_page_pool_fix(&m->pages, m->plan.sequences, m->plan.pages, err));
    BL_TRY(allocate_device(m, err));
    m->comm = bl_comm_single();
    return allocate_host(m, err);
}

/* ---- opening */

static bl_status open_tokenizer(bl_model *m, const char *path, const bl_model_options *o, bl_error *err)
{
    char file[4096];
    const bool needed = o->need_tokenizer || m->config.engram_count > 0;
    if ((size_t)snprintf(file, sizeof file, "%s/tokenizer.json", path) >= sizeof file)
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "the path is too long");
    if (!needed && access(file, F_OK) != 0) return BL_OK;
    BL_TRY(bl_tokenizer_open(&m->tokenizer, file, err));
    if (m->config.engram_count == 0) return BL_OK;
    if (bl_tokenizer_size(m->tokenizer) < m->config.vocab_size)
        return bl_fail(err, BL_E_INPUT, file, NULL, -1, "has %d ids, vocab_size is %d: Engram needs a class for each",
                       bl_tokenizer_size(m->tokenizer), m->config.vocab_size);
    bl_error e = {0};
    bl_status s = bl_engram_create(&m->engram, &m->config, m->tokenizer, &e);
    return s == BL_OK ? BL_OK : bl_fail(err, s, path, e.tensor[0] ? e.tensor : NULL, -1, "%s", e.message);
}

/* A folder that was made with a selection of layers is no whole model. */
static bl_status check_whole(const bl_config *c, const char *path, bl_error *err)
{
    bl_json root;
    BL_TRY(bl_json_parse(c->text, c->text_bytes, NULL, path, &root, err));
    if (bl_json_get(root, BL_LAYERS_KEY).kind == BL_JSON_NONE) return BL_OK;
    return bl_fail(err, BL_E_INPUT, path, NULL, -1, "holds a selection of the model's layers (" BL_LAYERS_KEY
                   " in config.json); only a whole model can be run");
}

static bl_status check_ranks(const bl_manifest *m, const char *path, bl_error *err)
{
    return m->layout.ranks == 1 ? BL_OK
                                : bl_fail(err, BL_E_INPUT, path, NULL, -1,
                                          "was packed for %d ranks; it can be run packed for one (see baleen merge)", m->layout.ranks);
}

bl_status bl_model_look(const char *path, bl_error *err)
{
    struct stat st;
    bl_manifest m;
    bl_arena arena = {0};
    if (stat(path, &st) != 0)
        return bl_file_absent(path, errno, err);
    if (!S_ISDIR(st.st_mode)) return BL_OK; /* bl_model_open says what it is */
    bl_status s = bl_rank_folder_check(path, err);
    if (s == BL_OK && bl_manifest_read(path, &arena, &m, NULL) == BL_OK) s = check_ranks(&m, path, err);
    bl_arena_reset(&arena);
    return s;
}

static bl_status check_kind(const bl_checkpoint *c, const char *path, bl_error *err)
{
    if (c->kind == BL_SOURCE_FILE)
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "is a file: a model is a folder with config.json and weights");
    if (c->kind == BL_SOURCE_PACKED) BL_TRY(check_ranks(c->manifest, path, err));
    if (c->config.fp8_block_rows != 32)
        return bl_fail(err, BL_E_INPUT, path, NULL, -1, "has fp8 scales for blocks of [%d, 32]; it can be run with [32, 32] (see "
                       "baleen convert --fp8-block)", c->config.fp8_block_rows);
    return check_whole(&c->config, path, err);
}

/* The first thing that verification found. */
typedef struct first_finding {
    bl_error *err;
    bool seen;
} first_finding;

static void on_finding(void *arg, const bl_finding *f)
{
    first_finding *first = arg;
    if (!first->seen) (void)bl_fail(first->err, BL_E_INPUT, f->path, f->tensor, f->begin, "%s", f->message);
    first->seen = true;
}

/* A GPU's loader holds the tensors of a packed model against their digests itself: they need not be read twice. */
static bl_status prove(const bl_model *m, const char *path, const bl_model_options *o, bl_error *err)
{
    first_finding first = {.err = err};
    bl_verify_report report;
    const bool on_the_way = m->plan.device == BL_DEVICE_CUDA && m->checkpoint->kind == BL_SOURCE_PACKED;
    const bl_verify_options v = {.level = 3, .weights_elsewhere = on_the_way, .jobs = o->threads, .cpu = o->cpu,
                                 .engram_multipliers = bl_engram_multipliers, .on_finding = on_finding, .arg = &first};
    const bl_status s = bl_verify(path, &v, &report, err);
    return s == BL_E_FINDING ? BL_E_INPUT : s;
}

static bl_status resolve(bl_model *m, const char *path, bl_error *err)
{
    BL_TRY(bl_checkpoint_open(&m->checkpoint, path, NULL, err));
    BL_TRY(check_kind(m->checkpoint, path, err));
    m->config = m->checkpoint->config;
    m->shard = bl_shard_single(&m->config);
    return bl_weights_resolve(&m->weights, m->checkpoint, &m->shard, err);
}

/* Of the host, page cache that can go included; 0 where the system does not say. */
static uint64_t available_memory(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1) kib = 0;
    if (f) fclose(f);
    return kib * 1024;
}

static bl_status make_plan(bl_model *m, const bl_model_options *o, uint64_t memory, bl_error *err)
{
    bl_memory_request r = {.device = chosen_device(o), .max_tokens = bl_pass_tokens(&m->config, chosen_device(o)),
                           .cache = o->cache, .memory = memory, .host_memory = available_memory(), .engram = o->engram};
    BL_TRY(bl_pool_create(&m->pool, o->threads, err));
    if (r.device == BL_DEVICE_CUDA && r.engram == BL_ENGRAM_SHARED) { /* after host_memory: another process may be filling it */
        BL_TRY(bl_weights_tables_key(&m->shared_key, &m->weights, m->checkpoint, err));
        r.shared = bl_shared_look(&m->shared_key);
    }
    const bl_cpu_options cpu = cpu_options(m, o);
    if (r.device == BL_DEVICE_CPU) BL_TRY(bl_cpu_scratch_bytes(&r.scratch_bytes, &m->config, &m->shard, &cpu, err));
    return bl_memory_plan_make(&m->plan, &r, &m->config, &m->shard, &m->weights, err);
}

bl_status bl_model_describe(bl_model *m, const char *path, const bl_model_options *o, uint64_t memory, bl_error *err)
{
    BL_TRY(resolve(m, path, err));
    return make_plan(m, o, memory, err);
}

/* The plan is what happened, or there is a fault in one of the two. */
static bl_status check_plan(const bl_model *m, bl_error *err)
{
    const bl_backend *b = m->backend;
    const uint64_t planned = m->plan.total[BL_MEMORY_DEVICE], have = b->allocated ? b->allocated(m->backend) : planned;
    if (have == planned) return BL_OK;
    return bl_fail(err, BL_E_INTERNAL, NULL, NULL, -1, "%llu bytes of device memory were allocated where the plan says %llu",
                   (unsigned long long)have, (unsigned long long)planned);
}

static bl_status open_model(bl_model *m, const char *path, const bl_model_options *o, bl_error *err)
{
    uint64_t memory = 0;
    if (chosen_device(o) == BL_DEVICE_CUDA) BL_TRY(bl_cuda_free_memory(&memory, err));
    BL_TRY(bl_model_describe(m, path, o, memory, err));
    BL_TRY(open_tokenizer(m, path, o, err));
    if (o->check == BL_CHECK_FULL) BL_TRY(prove(m, path, o, err));
    if (m->plan.engram == BL_ENGRAM_SHARED) BL_TRY(bl_shared_open(&m->shared, &m->shared_key, m->pool, err));
    BL_TRY(bl_model_prepare(m, o, err));
    BL_TRY(bl_weights_load(&m->weights, m->checkpoint, o->access, o->check == BL_CHECK_FULL, m->backend, err));
    if (m->shared) bl_shared_ready(m->shared);
    return check_plan(m, err);
}

bl_status bl_model_plan(bl_memory_plan *out, const char *path, const bl_model_options *options, uint64_t memory, bl_error *err)
{
    bl_model *m = calloc(1, sizeof *m);
    if (!m) return out_of_memory(err);
    bl_model_options o = settled(options, NULL);
    if (memory && options->device == BL_DEVICE_AUTO) o.device = BL_DEVICE_CUDA;
    if (!memory && o.device == BL_DEVICE_CUDA) (void)bl_cuda_free_memory(&memory, NULL);
    const bl_status s = bl_model_describe(m, path, &o, memory, err);
    *out = m->plan;
    bl_model_close(&m);
    return s;
}

bl_status bl_model_open(bl_model **out, const char *path, const bl_model_options *options, bl_error *err)
{
    bl_model *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m) return out_of_memory(err);
    const bl_model_options o = settled(options, &m->no_gpu);
    bl_status s = open_model(m, path, &o, err);
    const bl_error *fault = s != BL_OK && m->backend ? bl_model_fault(m) : NULL;
    if (fault) { /* says more than what came of it */
        s = fault->code;
        if (err) *err = *fault;
    }
    if (s != BL_OK) bl_model_close(&m);
    *out = m;
    return s;
}

void bl_model_close(bl_model **model)
{
    bl_model *m = *model;
    if (!m) return;
    if (m->backend) m->backend->release(m->backend, m->scratch.memory);
    release_host(&m->scratch);
    bl_page_pool_destroy(&m->pages);
    if (m->backend) m->backend->destroy(m->backend);
    bl_shared_close(&m->shared);
    if (m->comm) m->comm->destroy(m->comm);
    bl_pool_destroy(&m->pool);
    bl_weights_destroy(&m->weights);
    bl_engram_destroy(&m->engram);
    bl_tokenizer_close(&m->tokenizer);
    bl_checkpoint_close(&m->checkpoint);
    free(m);
    *model = NULL;
}

const bl_error *bl_model_fault(const bl_model *m)
{
    return m->backend->fault ? m->backend->fault(m->backend) : NULL;
}

const bl_memory_plan *bl_model_memory(const bl_model *m)
{
    return &m->plan;
}

const bl_error *bl_model_no_gpu(const bl_model *m)
{
    return m->no_gpu.code ? &m->no_gpu : NULL;
}

bool bl_model_huge_pages(const bl_model *m, uint64_t *bytes)
{
    return m->backend->huge_pages && m->backend->huge_pages(m->backend, bytes);
}

const char *bl_model_shared_tables(const bl_model *m, bool *filled)
{
    if (!m->shared) return NULL;
    *filled = bl_shared_filled(m->shared);
    return bl_shared_path(m->shared);
}

const char *bl_model_device(const bl_model *m)
{
    return m->backend->name;
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
    return m->pool;
}

/* ---- sequences */

bl_status bl_sequence_create(bl_sequence **out, bl_model *m, bl_error *err)
{
    *out = NULL;
    bl_sequence *s = calloc(1, sizeof *s);
    if (!s) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory for a sequence");
    s->model = m;
    bl_status status = bl_cache_init(&s->cache, &m->config, &m->pages, err);
    if (status != BL_OK) bl_sequence_destroy(&s);
    *out = s;
    return status;
}

void bl_sequence_destroy(bl_sequence **s)
{
    if (!*s) return;
    bl_cache_destroy(&(*s)->cache);
    free(*s);
    *s = NULL;
}

int64_t bl_sequence_length(const bl_sequence *s)
{
    return s->length;
}

void bl_sequence_reset(bl_sequence *s)
{
    bl_cache_reset(&s->cache);
    s->length = 0;
}

bl_status bl_sequence_reserve(bl_sequence *s, int64_t tokens, bl_error *err)
{
    return s->model->pages.fixed ? bl_cache_reserve(&s->cache, tokens, err) : BL_OK;
}

uint64_t bl_sequence_bytes(const bl_model *m, int64_t n)
{
    return bl_cache_bytes(&m->config, m->shard.layers.count, n);
}
