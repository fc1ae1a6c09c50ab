/* Kernels that begin before the one before has ended: what they read by then must be older. On a runtime that only records. */
#include "runtime/cuda/cuda.h"
#include "runtime/model.h"
#include "tests/stub/cudart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MODEL BL_SOURCE_ROOT "/tests/data/nano/checkpoint"

/* The newest kernel of that name: where it is among those of the pass. */
static int newest(const char *name)
{
    int found = -1;
    for (int i = 0; cuda_stub_kernel(i); i++)
        if (strstr(cuda_stub_kernel(i), name)) found = i;
    return found;
}

/* The expansion reads coefficients before it waits: not where both kernels before it begin the next one at once, as what made these may be
 * running then. */
static void test_coefficients_are_there(void **state)
{
    (void)state;
    for (int kind = BL_W_BF16; kind <= BL_W_FP8; kind++) {
        const bl_model_options o = {.device = BL_DEVICE_CUDA, .cpu = ~0u, .threads = 1, .cache = {1, 512, 0}};
        const bl_pass p = {.tokens = 1, .plain = true};
        bl_model *m;
        cuda_stub_reset((uint64_t)8 << 30);
        assert_int_equal(bl_model_open(&m, MODEL, &o, NULL), BL_OK);
        bl_backend *b = m->backend;
        const bl_scratch *s = &m->scratch;
        bl_layer l = m->weights.layers[0];
        cuda_of(b)->config.o_lora_rank = 128;
        cuda_of(b)->config.head_dim = 128;
        l.wo_a = (bl_matrix){.kind = BL_W_FP8, .rows = 256, .cols = 256};
        l.wo_b = (bl_matrix){.kind = (bl_weight_kind)kind, .rows = 128, .cols = 256};
        b->project_out(b, &p, &l, s->o, s->partial);
        b->round(b, &p, s->y, s->partial);
        b->expand(b, &p, s->streams, s->y, s->post, s->comb);
        b->collapse(b, &p, &l.ffn_norm, s->x, s->streams, s->pre[0]);
        const int at = newest("advance_kernel");
        assert_true(at >= 2 && strstr(cuda_stub_kernel(at - 1), "few_kernel"));
        assert_int_equal(strstr(cuda_stub_kernel(at - 2), "few_kernel") != NULL, kind == BL_W_BF16);
        assert_int_equal(cuda_stub_early(at), kind != BL_W_BF16);
        bl_model_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_coefficients_are_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
