/* The forward pass as its callers see it: batches, lengths, what is refused, memory that comes back. */
#include "runtime/forward.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define MODEL BL_SOURCE_ROOT "/tests/data/nano/checkpoint"

enum { VOCAB = 512, TOKENS = 90 };

typedef struct fixture {
    bl_model *model;
    int32_t ids[TOKENS];
    float whole[TOKENS * VOCAB]; /* logits of ids in one call */
} fixture;

static bl_sequence *new_sequence(bl_model *m)
{
    bl_sequence *s;
    assert_int_equal(bl_sequence_create(&s, m, NULL), BL_OK);
    return s;
}

static bl_span span_of(bl_sequence *s, const int32_t *ids, int64_t count, int64_t from)
{
    return (bl_span){.sequence = s, .ids = ids, .count = count, .logits_from = from};
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    bl_error err = {0};
    const bl_model_options o = {.cpu = ~0u, .threads = 2};
    if (bl_model_open(&f->model, MODEL, &o, &err) != BL_OK) return -1;
    for (int i = 0; i < TOKENS; i++) f->ids[i] = (i * 197 + 5) % VOCAB;
    bl_sequence *s = new_sequence(f->model);
    const bl_span whole = span_of(s, f->ids, TOKENS, 0);
    if (bl_forward(f->model, &whole, 1, f->whole, NULL, &err) != BL_OK) return -1;
    bl_sequence_destroy(&s);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    bl_model_close(&f->model);
    free(f);
    return 0;
}

static void assert_rows(const fixture *f, const float *got, int64_t first, int64_t count)
{
    assert_memory_equal(got, f->whole + first * VOCAB, (size_t)(count * VOCAB) * sizeof(float));
}

static void test_only_wanted_rows(void **state)
{
    fixture *f = *state;
    static float rows[TOKENS * VOCAB];
    bl_sequence *s = new_sequence(f->model);
    bl_span part = span_of(s, f->ids, 40, 40); /* none */
    assert_int_equal(bl_forward(f->model, &part, 1, NULL, NULL, NULL), BL_OK);
    part = span_of(s, f->ids + 40, 30, 29);
    assert_int_equal(bl_forward(f->model, &part, 1, rows, NULL, NULL), BL_OK);
    assert_rows(f, rows, 69, 1);
    part = span_of(s, f->ids + 70, 20, 5);
    assert_int_equal(bl_forward(f->model, &part, 1, rows, NULL, NULL), BL_OK);
    assert_rows(f, rows, 75, 15);
    assert_int_equal(bl_sequence_length(s), TOKENS);
    bl_sequence_destroy(&s);
}

static void test_empty_batches(void **state)
{
    fixture *f = *state;
    bl_sequence *s = new_sequence(f->model);
    bl_span spans[2] = {span_of(s, f->ids, 0, 0), {0}};
    assert_int_equal(bl_forward(f->model, NULL, 0, NULL, NULL, NULL), BL_OK);
    assert_int_equal(bl_forward(f->model, spans, 1, NULL, NULL, NULL), BL_OK);
    assert_int_equal(bl_sequence_length(s), 0);
    bl_sequence *t = new_sequence(f->model);
    float *rows = malloc(sizeof(float) * VOCAB);
    spans[1] = span_of(t, f->ids, 1, 0);
    assert_int_equal(bl_forward(f->model, spans, 2, rows, NULL, NULL), BL_OK);
    assert_rows(f, rows, 0, 1);
    free(rows);
    bl_sequence_destroy(&s);
    bl_sequence_destroy(&t);
}

static void test_refused_batches_change_nothing(void **state)
{
    fixture *f = *state;
    bl_sequence *s = new_sequence(f->model), *t = new_sequence(f->model);
    static float rows[TOKENS * VOCAB];
    const int32_t high[2] = {1, VOCAB}, low[2] = {1, -1};
    bl_span spans[2] = {span_of(s, f->ids, 10, 0), span_of(t, high, 2, 0)};
    bl_error err = {0};
    assert_int_equal(bl_forward(f->model, spans, 2, rows, NULL, &err), BL_E_USAGE);
    assert_non_null(strstr(err.message, "512"));
    spans[1].ids = low;
    assert_int_equal(bl_forward(f->model, spans, 2, rows, NULL, NULL), BL_E_USAGE);
    spans[1] = span_of(s, f->ids, 1, 0);
    bl_error_clear(&err);
    assert_int_equal(bl_forward(f->model, spans, 2, rows, NULL, &err), BL_E_USAGE);
    assert_non_null(strstr(err.message, "twice"));
    assert_int_equal(bl_sequence_length(s), 0);
    assert_int_equal(bl_forward(f->model, spans, 1, rows, NULL, NULL), BL_OK);
    assert_rows(f, rows, 0, 10);
    bl_sequence_destroy(&s);
    bl_sequence_destroy(&t);
}

/* Three sequences of different ages, a token or a few each in turn, one of them started over half way. */
static void test_mixed_steps(void **state)
{
    fixture *f = *state;
    static float rows[3 * TOKENS * VOCAB];
    bl_sequence *s[3] = {new_sequence(f->model), new_sequence(f->model), new_sequence(f->model)};
    const int64_t step[3] = {1, 3, 17};
    for (int round = 0; round < 40; round++) {
        bl_span spans[3];
        if (round == 20) bl_sequence_reset(s[1]);
        for (int i = 0; i < 3; i++) {
            const int64_t at = bl_sequence_length(s[i]), left = TOKENS - at;
            spans[i] = span_of(s[i], f->ids + at, left < step[i] ? left : step[i], 0);
        }
        int64_t at[3] = {bl_sequence_length(s[0]), bl_sequence_length(s[1]), bl_sequence_length(s[2])};
        assert_int_equal(bl_forward(f->model, spans, 3, rows, NULL, NULL), BL_OK);
        const float *p = rows;
        for (int i = 0; i < 3; i++) {
            assert_rows(f, p, at[i], spans[i].count);
            p += spans[i].count * VOCAB;
        }
    }
    for (int i = 0; i < 3; i++) bl_sequence_destroy(&s[i]);
}

static void test_pages_come_back(void **state)
{
    fixture *f = *state;
    static float row[VOCAB];
    for (int i = 0; i < 50; i++) {
        bl_sequence *s = new_sequence(f->model);
        const bl_span span = span_of(s, f->ids, TOKENS, TOKENS - 1);
        assert_int_equal(bl_forward(f->model, &span, 1, row, NULL, NULL), BL_OK);
        assert_rows(f, row, TOKENS - 1, 1);
        bl_sequence_destroy(&s);
    }
    assert_true(bl_sequence_bytes(f->model, 0) < bl_sequence_bytes(f->model, 1));
    assert_true(bl_sequence_bytes(f->model, 1000) < bl_sequence_bytes(f->model, 2000));
}

/* Read into memory instead of mapped, with the plain C kernels and one thread: the same bits. */
static void test_another_way_of_opening(void **state)
{
    fixture *f = *state;
    static float rows[TOKENS * VOCAB];
    bl_model *m;
    const bl_model_options o = {.access = BL_ACCESS_PREAD, .check = BL_CHECK_FULL, .cpu = 0, .threads = 1};
    assert_int_equal(bl_model_open(&m, MODEL, &o, NULL), BL_OK);
    bl_sequence *s = new_sequence(m);
    const bl_span span = span_of(s, f->ids, 20, 0);
    assert_int_equal(bl_forward(m, &span, 1, rows, NULL, NULL), BL_OK);
    assert_rows(f, rows, 0, 20);
    bl_sequence_destroy(&s);
    bl_model_close(&m);
}

typedef struct seen {
    int64_t rows;
    int names;
} seen;

static void count_logits(void *arg, const bl_hook_value *v)
{
    seen *s = arg;
    s->names++;
    if (!strcmp(v->name, "layers.0.attn.in")) s->rows += v->shape[0];
}

static void test_hooks_see_every_pass(void **state)
{
    fixture *f = *state;
    bl_sequence *s = new_sequence(f->model);
    int32_t ids[1200];
    for (int i = 0; i < 1200; i++) ids[i] = f->ids[i % TOKENS];
    seen count = {0};
    const bl_hooks hooks = {.arg = &count, .visit = count_logits};
    const bl_span span = span_of(s, ids, 1200, 1200);
    assert_int_equal(bl_forward(f->model, &span, 1, NULL, &hooks, NULL), BL_OK);
    assert_int_equal(count.rows, 1200);
    assert_true(count.names > 3 * 60);
    bl_sequence_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_wanted_rows),
        cmocka_unit_test(test_empty_batches),
        cmocka_unit_test(test_refused_batches_change_nothing),
        cmocka_unit_test(test_mixed_steps),
        cmocka_unit_test(test_pages_come_back),
        cmocka_unit_test(test_another_way_of_opening),
        cmocka_unit_test(test_hooks_see_every_pass),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
