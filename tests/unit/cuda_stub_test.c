/* The CUDA backend's host side on a runtime that only records: memory, weights, launches, graphs, and every failure there is. */
#include "kernels/cuda/cuda.h"
#include "runtime/cuda/cuda.h"
#include "runtime/model.h"
#include "tests/stub/cudart.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL BL_SOURCE_ROOT "/tests/data/nano/checkpoint"
#define MEMORY ((uint64_t)8 << 30)

enum { VOCAB = 512, MOST = 64 };

static bl_model_options options_of(bl_device device, int sequences)
{
    return (bl_model_options){.device = device, .cpu = ~0u, .threads = 2, .cache = {sequences, sequences ? 512 : 0, 0}};
}

static bl_model *open_on(bl_device device, int sequences)
{
    bl_model *m;
    bl_error err = {0};
    const bl_model_options o = options_of(device, sequences);
    if (bl_model_open(&m, MODEL, &o, &err) != BL_OK) fail_msg("%s", err.message);
    return m;
}

static void assert_nothing_left(void)
{
    assert_int_equal(cuda_stub_seen.live, 0);
    assert_int_equal(cuda_stub_seen.pinned, 0);
    assert_int_equal(cuda_stub_seen.faults, 0);
}

/* ---- memory and weights */

static void test_plan_is_what_happens(void **state)
{
    cuda_stub_reset(MEMORY);
    bl_model *m = open_on(BL_DEVICE_CUDA, 4);
    assert_int_equal(cuda_stub_seen.allocated, m->plan.total[BL_MEMORY_DEVICE]);
    assert_int_equal(cuda_stub_seen.live, m->plan.total[BL_MEMORY_DEVICE]);
    assert_int_equal(cuda_stub_seen.pinned, m->plan.total[BL_MEMORY_PINNED]);
    bl_sequence *s[4], *more;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bl_sequence_create(&s[i], m, NULL), BL_OK);
        assert_int_equal(bl_sequence_reserve(s[i], 512, NULL), BL_OK);
    }
    assert_int_equal(bl_sequence_create(&more, m, NULL), BL_E_NOMEM); /* the plan has four places */
    assert_int_equal(cuda_stub_seen.allocated, m->plan.total[BL_MEMORY_DEVICE]);
    for (int i = 0; i < 4; i++) bl_sequence_destroy(&s[i]);
    bl_model_close(&m);
    assert_nothing_left();
}

static void assert_same_bytes(const bl_matrix *a, const bl_matrix *b)
{
    if (!b->codes) return;
    assert_memory_equal(a->codes, b->codes, bl_matrix_code_bytes(b));
    if (b->scale) assert_memory_equal(a->scale, b->scale, bl_matrix_scale_bytes(b));
}

static void test_weights(void **state)
{
    cuda_stub_reset(MEMORY);
    bl_model *gpu = open_on(BL_DEVICE_CUDA, 0), *cpu = open_on(BL_DEVICE_CPU, 0);
    const bl_weights *a = &gpu->weights, *b = &cpu->weights;
    assert_int_equal(a->handle_count, b->handle_count);
    assert_same_bytes(&a->embed, &b->embed);
    assert_same_bytes(&a->head, &b->head);
    for (int i = 0; i < b->layer_count; i++) {
        const bl_layer *x = &a->layers[i], *y = &b->layers[i];
        assert_same_bytes(&x->wq_a, &y->wq_a);
        assert_same_bytes(&x->wo_a, &y->wo_a);
        assert_same_bytes(&x->mix_ffn.fn, &y->mix_ffn.fn);
        for (int e = 0; e < cpu->config.n_routed_experts; e++) {
            assert_same_bytes(&x->experts[e].w1, &y->experts[e].w1);
            assert_same_bytes(&x->experts[e].w2, &y->experts[e].w2);
        }
        if (y->engram.qk) assert_memory_equal(x->engram.qk, y->engram.qk, (size_t)(BL_HC_MULT * cpu->config.hidden_size) * sizeof(float));
    }
    bl_model_close(&gpu);
    bl_model_close(&cpu);
    assert_nothing_left();
}

/* ---- steps */

typedef struct batch {
    bl_model *m;
    bl_sequence *s[MOST];
    float logits[MOST * VOCAB];
} batch;

static void begin(batch *b, bl_model *m, int sequences)
{
    *b = (batch){.m = m};
    for (int i = 0; i < sequences; i++) assert_int_equal(bl_sequence_create(&b->s[i], m, NULL), BL_OK);
}

static void end(batch *b)
{
    for (int i = 0; i < MOST; i++) bl_sequence_destroy(&b->s[i]);
}

static bl_status step(batch *b, int sequences, int64_t tokens, bl_error *err)
{
    static const int32_t ids[64] = {5, 6, 7, 8};
    bl_span spans[MOST];
    for (int i = 0; i < sequences; i++) spans[i] = (bl_span){b->s[i], ids, tokens, tokens - 1};
    return bl_forward(b->m, spans, sequences, b->logits, NULL, err);
}

static void test_one_launch_and_one_wait(void **state)
{
    cuda_stub_reset(MEMORY);
    bl_model *m = open_on(BL_DEVICE_CUDA, 8);
    batch b;
    begin(&b, m, 8);
    long plain = 0;
    assert_int_equal(step(&b, 8, 2, NULL), BL_OK); /* tables that are made once */
    for (int i = 0; i < 4; i++) {
        cuda_stub_reset(MEMORY);
        assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
        assert_int_equal(cuda_stub_seen.waits, 1);
        if (i == 0) plain = cuda_stub_seen.kernels;
        assert_int_equal(cuda_stub_seen.kernels, plain); /* nothing is left out or done twice */
        assert_int_equal(cuda_stub_seen.direct, i == 0 ? plain : 0);
        assert_int_equal(cuda_stub_seen.graph_launches, i > 0);
        assert_int_equal(cuda_stub_seen.allocated, 0);
        assert_int_equal(cuda_stub_seen.faults, 0);
    }
    end(&b);
    bl_model_close(&m);
    assert_nothing_left();
}

/* Steps of five to eight sequences are one graph; only what was asked for comes back. */
static void test_padding_and_drawing(void **state)
{
    static const int32_t id = 7;
    cuda_stub_reset(MEMORY);
    bl_model *m = open_on(BL_DEVICE_CUDA, 8);
    batch b;
    begin(&b, m, 8);
    static const int sizes[] = {8, 5, 6, 7, 8};
    for (int i = 0; i < 5; i++) {
        const int n = sizes[i];
        cuda_stub_reset(MEMORY);
        memset(b.logits, 0xff, sizeof b.logits);
        assert_int_equal(step(&b, n, 1, NULL), BL_OK);
        assert_int_equal(cuda_stub_seen.graph_launches, i > 0);
        assert_int_equal(cuda_stub_seen.allocated, 0);
        uint32_t last, behind = 0;
        memcpy(&last, &b.logits[n * VOCAB - 1], 4);
        if (n < 8) memcpy(&behind, &b.logits[n * VOCAB], 4);
        assert_int_equal(last, 0);
        assert_int_equal(behind, n < 8 ? 0xffffffff : 0);
    }
    bl_span spans[3];
    bl_draw draws[3] = {{.draw = true}, {.draw = false}, {.draw = true}};
    bl_drawn drawn[3];
    for (int i = 0; i < 3; i++) spans[i] = (bl_span){b.s[i], &id, 1, 0};
    for (int i = 0; i < 3; i++) {
        cuda_stub_reset(MEMORY);
        memset(b.logits, 0xff, sizeof b.logits);
        assert_int_equal(bl_forward_draw(m, spans, 3, draws, drawn, b.logits, NULL), BL_OK);
        assert_int_equal(drawn[0].token, 0);
        assert_int_equal(drawn[1].token, BL_NOT_DRAWN);
        assert_int_equal(cuda_stub_seen.copies_out, 2); /* the tokens, the row in the middle */
        assert_int_equal(cuda_stub_seen.waits, 1);
        assert_true(b.logits[0] != b.logits[0] && b.logits[VOCAB] == 0 && b.logits[2 * VOCAB] != b.logits[2 * VOCAB]);
    }
    end(&b);
    bl_model_close(&m);
    assert_nothing_left();
}

/* Each number of sequences has a bucket, and there are fewer of those than graphs that are kept. */
static void test_buckets(void **state)
{
    int buckets = 0;
    for (int64_t n = 1, last = 0; n <= CUDA_STEP; n++) {
        const int64_t padded = bl_cuda_padded(NULL, n);
        assert_in_range(padded, n, n < 5 ? n + 1 : n <= 64 ? n + 7 : n + 31);
        assert_int_equal(bl_cuda_padded(NULL, padded), padded);
        assert_true(padded >= last);
        buckets += padded > last;
        last = padded;
    }
    assert_true(buckets * 2 <= CUDA_GRAPHS); /* with tokens drawn, and without */
    assert_int_equal(bl_cuda_padded(NULL, CUDA_STEP), CUDA_STEP);
}

/* No memory for one more recorded pass: the others make room, and are recorded anew; alone it fails and says so. */
static void test_recording_without_memory(void **state)
{
    static const char *const calls[] = {"cudaGraphInstantiate", "cudaGraphLaunch"};
    for (int i = 0; i < 2; i++) {
        bl_error err = {0};
        cuda_stub_reset(MEMORY);
        bl_model *m = open_on(BL_DEVICE_CUDA, 8);
        batch b;
        begin(&b, m, 8);
        for (int k = 0; k < 4; k++) assert_int_equal(step(&b, k / 2 ? 8 : 2, 1, NULL), BL_OK);
        for (int k = 0; k < 2; k++) { /* a third shape: seen, recorded */
            if (k) cuda_stub_fail(calls[i], 1, cudaErrorMemoryAllocation);
            assert_int_equal(step(&b, 1, 1, NULL), BL_OK);
        }
        cuda_stub_reset(MEMORY);
        assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
        assert_int_equal(cuda_stub_seen.graph_launches, 1);
        end(&b);
        bl_model_close(&m);
        m = open_on(BL_DEVICE_CUDA, 8);
        begin(&b, m, 8);
        assert_int_equal(step(&b, 2, 1, NULL), BL_OK);
        cuda_stub_fail(calls[i], 1, cudaErrorMemoryAllocation);
        assert_int_equal(step(&b, 2, 1, &err), BL_E_NOMEM);
        assert_non_null(strstr(err.message, "out of memory"));
        cuda_stub_reset(MEMORY);
        end(&b);
        bl_model_close(&m);
        assert_nothing_left();
    }
}

/* Engram tables where kernels gather from them themselves. */
static void test_tables(void **state)
{
    for (int place = BL_ENGRAM_DEVICE; place <= BL_ENGRAM_MAPPED; place++) {
        bl_model *gpu, *cpu = open_on(BL_DEVICE_CPU, 0);
        bl_model_options o = options_of(BL_DEVICE_CUDA, 2);
        bl_error err = {0};
        o.engram = (bl_engram_place)place;
        cuda_stub_reset(MEMORY);
        if (bl_model_open(&gpu, MODEL, &o, &err) != BL_OK) fail_msg("%s", err.message);
        assert_int_equal(cuda_stub_seen.allocated, gpu->plan.total[BL_MEMORY_DEVICE]);
        assert_int_equal(gpu->plan.engram, place);
        for (int i = 0; i < cpu->weights.layer_count; i++) {
            const bl_matrix *a = &gpu->weights.layers[i].engram.table, *b = &cpu->weights.layers[i].engram.table;
            if (!b->codes) continue;
            assert_memory_equal(a->codes, b->codes, bl_matrix_code_bytes(b));
            assert_memory_equal(a->scale, b->scale, (size_t)(b->rows * (b->cols / 32)));
        }
        batch b;
        begin(&b, gpu, 2);
        for (int i = 0; i < 3; i++) {
            const long before = cuda_stub_seen.copies_in;
            assert_int_equal(step(&b, 2, 1, NULL), BL_OK);
            if (i == 2) assert_int_equal(cuda_stub_seen.copies_in - before, 1); /* its tables; rows go within the graph */
        }
        end(&b);
        bl_model_close(&gpu);
        bl_model_close(&cpu);
        assert_nothing_left();
    }
}

/* One of ranks that have parts of the tables. */
static void open_part(bl_model *m, bl_engram_place place, int part, int parts)
{
    bl_model_options o = options_of(BL_DEVICE_CUDA, 2);
    bl_error err = {0};
    o.engram = place;
    assert_int_equal(bl_model_describe(m, MODEL, &o, MEMORY, &err), BL_OK);
    bl_weights_destroy(&m->weights);
    m->shard.engram_part = part;
    m->shard.engram_parts = parts;
    const bl_memory_request r = {.device = BL_DEVICE_CUDA, .max_tokens = bl_pass_tokens(&m->config, BL_DEVICE_CUDA), .cache = o.cache,
                                 .memory = MEMORY, .engram = place};
    assert_int_equal(bl_weights_resolve(&m->weights, m->checkpoint, &m->shard, &err), BL_OK);
    assert_int_equal(bl_memory_plan_make(&m->plan, &r, &m->config, &m->shard, &m->weights, &err), BL_OK);
    assert_int_equal(bl_weights_tables_key(&m->shared_key, &m->weights, m->checkpoint, &err), BL_OK);
    if (place == BL_ENGRAM_SHARED) assert_int_equal(bl_shared_open(&m->shared, &m->shared_key, m->pool, &err), BL_OK);
    assert_int_equal(bl_model_prepare(m, &o, &err), BL_OK);
    assert_int_equal(bl_weights_load(&m->weights, m->checkpoint, o.access, true, m->backend, &err), BL_OK);
    assert_int_equal(cuda_stub_seen.allocated, m->plan.total[BL_MEMORY_DEVICE]);
}

/* Tables have the rank's rows and no others; where the host gathers, others are zeros. */
static void test_parts_of_tables(void **state)
{
    enum { PARTS = 3 };
    for (int place = BL_ENGRAM_DEVICE; place <= BL_ENGRAM_MAPPED; place++)
        for (int part = 0; part < PARTS; part++) {
            bl_model *cpu = open_on(BL_DEVICE_CPU, 0), *m = calloc(1, sizeof *m);
            cuda_stub_reset(MEMORY);
            open_part(m, (bl_engram_place)place, part, PARTS);
            for (int i = 0; i < cpu->weights.layer_count; i++) {
                const bl_matrix *a = &m->weights.layers[i].engram.table, *b = &cpu->weights.layers[i].engram.table;
                if (!b->codes) continue;
                const bl_rows held = bl_shard_engram_rows(&m->shard, b->rows);
                int64_t rows[] = {held.first, held.first - 1, held.first + held.count, held.first + held.count - 1};
                assert_int_equal(a->rows, held.count);
                assert_memory_equal(a->codes, (const uint8_t *)b->codes + held.first * b->cols, (size_t)(held.count * b->cols));
                assert_memory_equal(a->scale, b->scale + held.first * (b->cols / 32), (size_t)(held.count * (b->cols / 32)));
                bl_cuda *c = (bl_cuda *)m->backend;
                const bl_pass p = {.tokens = 1, .engram_rows = rows, /* of whichever table */
                                   .engram_columns = 4, .engram_stride = 0};
                if (place != BL_ENGRAM_MAPPED) continue;
                c->pass = &p;
                bl_cuda_gather(c, &m->weights.layers[i]);
                const uint8_t *got = c->host_rows + cuda_row_offset(c, &m->weights.layers[i]);
                assert_memory_equal(got, a->codes, (size_t)b->cols);
                assert_memory_equal(got + 3 * b->cols, (const uint8_t *)a->codes + (held.count - 1) * b->cols, (size_t)b->cols);
                for (int64_t k = b->cols; k < 3 * b->cols; k++) assert_int_equal(got[k], 0);
            }
            bl_model_close(&m);
            bl_model_close(&cpu);
            assert_nothing_left();
        }
}

/* What the kernel for a few tokens keeps in shared memory fits without being asked for. */
static void test_routes_of_few_fit(void **state)
{
    for (int64_t T = 1; T <= 16; T++)
        for (int64_t E = 1; E <= 8192; E++)
            if (bl_cuda_routes_few(T, E, 1)) assert_true((T * E + 2 * 8 * BL_CUDA_MAX_CHOICES) * 4 <= 48 << 10);
    assert_true(bl_cuda_routes_few(8, 384, 6));
}

/* ---- failures */

/* Open, one prompt, three steps: as far as it gets. */
static bl_status work(bl_error *err)
{
    bl_model *m;
    batch *b = calloc(1, sizeof *b);
    const bl_model_options o = options_of(BL_DEVICE_CUDA, 4);
    bl_status s = bl_model_open(&m, MODEL, &o, err);
    if (s == BL_OK) {
        b->m = m;
        for (int i = 0; s == BL_OK && i < 2; i++) s = bl_sequence_create(&b->s[i], m, err);
        if (s == BL_OK) s = step(b, 1, 20, err);
        for (int i = 0; s == BL_OK && i < 3; i++) s = step(b, 2, 1, err);
        end(b);
    }
    bl_model_close(&m);
    free(b);
    return s;
}

static void test_every_call_may_fail(void **state)
{
    cuda_stub_reset(MEMORY);
    assert_int_equal(work(NULL), BL_OK);
    const long calls = cuda_stub_seen.calls;
    assert_true(calls > 500);
    for (long n = 1; n <= calls; n += n < 40 ? 1 : calls / 60) {
        bl_error err = {0};
        cuda_stub_reset(MEMORY);
        cuda_stub_fail("any", n, cudaErrorIllegalAddress);
        const bl_status s = work(&err);
        if (s == BL_OK) fail_msg("call %ld of %ld failed and nobody noticed", n, calls);
        assert_non_null(strstr(err.message, "illegal memory access")); /* whatever came of it */
        assert_nothing_left();
    }
}

/* Failures that pass: a recording that lacks an operation is thrown away, and nothing is told twice. */
static void test_recording_may_fail(void **state)
{
    static const struct {
        const char *function;
        long nth;
    } fails[] = {{"cudaLaunchKernel", 1}, {"cudaLaunchKernel", 30}, {"cudaStreamBeginCapture", 1}, {"cudaStreamEndCapture", 1},
                 {"cudaGraphInstantiate", 1}, {"cudaGraphLaunch", 1}, {"cudaMemcpyAsync", 1}, {"cudaStreamWaitEvent", 1}};
    for (size_t f = 0; f < sizeof fails / sizeof *fails; f++) {
        bl_error err = {0};
        batch b;
        cuda_stub_reset(MEMORY);
        bl_model *m = open_on(BL_DEVICE_CUDA, 8);
        begin(&b, m, 8);
        assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
        const long plain = cuda_stub_seen.kernels;
        cuda_stub_fail(fails[f].function, fails[f].nth, cudaErrorInvalidValue);
        assert_int_equal(step(&b, 8, 1, &err), BL_E_IO);
        assert_non_null(strstr(err.message, "CUDA: "));
        assert_null(bl_model_fault(m));
        for (int i = 0; i < 2; i++) {
            cuda_stub_reset(MEMORY);
            assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
            assert_int_equal(cuda_stub_seen.graph_launches, 1);
            assert_int_equal(cuda_stub_seen.kernels, plain - cuda_stub_seen.direct);
        }
        end(&b);
        bl_model_close(&m);
        assert_nothing_left();
    }
}

/* Kernels are counted for benchmarks alone. */
static void test_counting_may_fail(void **state)
{
    batch b;
    cuda_stub_reset(MEMORY);
    bl_model *m = open_on(BL_DEVICE_CUDA, 8);
    begin(&b, m, 8);
    assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
    cuda_stub_fail("cudaGraphGetNodes", 2, cudaErrorInvalidValue);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(step(&b, 8, 1, NULL), BL_OK);
        const bl_launches l = m->backend->launches(m->backend);
        assert_true(l.recorded && l.kernels == 0 && l.waits == 1);
    }
    assert_null(bl_model_fault(m));
    end(&b);
    bl_model_close(&m);
    assert_nothing_left();
}

/* What a pass has done that failed on the way is not known: no other may follow it. */
static void test_half_a_pass_lasts(void **state)
{
    static const char *const functions[] = {"cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync"};
    for (int f = 0; f < 3; f++) {
        batch b;
        cuda_stub_reset(MEMORY);
        bl_model *m = open_on(BL_DEVICE_CUDA, 1);
        begin(&b, m, 1);
        assert_int_equal(step(&b, 1, 20, NULL), BL_OK);
        cuda_stub_fail(functions[f], f == 2 ? 2 : 1, cudaErrorInvalidValue);
        assert_int_not_equal(step(&b, 1, 19, NULL), BL_OK);
        assert_non_null(bl_model_fault(m));
        end(&b);
        bl_model_close(&m);
        assert_nothing_left();
    }
}

/* Want of memory at any call: said as such, wherever one of the two sides ran out. Graphs and launches have others to make room. */
static void test_every_call_may_want_memory(void **state)
{
    cuda_stub_reset(MEMORY);
    assert_int_equal(work(NULL), BL_OK);
    const long calls = cuda_stub_seen.calls;
    for (long n = 1; n <= calls; n += n < 60 ? 1 : calls / 60) {
        bl_error err = {0};
        cuda_stub_reset(MEMORY);
        cuda_stub_fail("any", n, cudaErrorMemoryAllocation);
        if (work(&err) != BL_OK) {
            assert_int_equal(err.code, BL_E_NOMEM);
            assert_non_null(strstr(err.message, "out of"));
        }
        assert_nothing_left();
    }
}

static void test_out_of_memory(void **state)
{
    bl_error err = {0};
    cuda_stub_reset((uint64_t)1 << 28); /* known before anything is taken */
    assert_int_equal(work(&err), BL_E_NOMEM);
    assert_non_null(strstr(err.message, "does not fit"));
    assert_int_equal(cuda_stub_seen.allocated, 0);
    for (long n = 1; n <= 8; n++) { /* somebody else took it meanwhile */
        bl_error_clear(&err);
        cuda_stub_reset(MEMORY);
        cuda_stub_fail(n % 2 ? "cudaMalloc" : "cudaHostAlloc", (n + 1) / 2, cudaErrorMemoryAllocation);
        const bl_status s = work(&err);
        if (n % 2 || n < 6) assert_int_equal(s, BL_E_NOMEM);
        assert_nothing_left();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_is_what_happens), cmocka_unit_test(test_weights), cmocka_unit_test(test_tables), cmocka_unit_test(test_parts_of_tables),
        cmocka_unit_test(test_one_launch_and_one_wait), cmocka_unit_test(test_routes_of_few_fit),
        cmocka_unit_test(test_padding_and_drawing),  cmocka_unit_test(test_recording_may_fail), cmocka_unit_test(test_counting_may_fail), cmocka_unit_test(test_buckets),
          cmocka_unit_test(test_half_a_pass_lasts),
        cmocka_unit_test(test_recording_without_memory), cmocka_unit_test(test_every_call_may_fail),
        cmocka_unit_test(test_every_call_may_want_memory), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
