/* Plans of the demo model: every source tensor once, files without holes, cuts that split no unit. */
#include "convert/plan.h"

#include "verify/stream.h"
#include "verify/values.h"

#include "tests/unit/scratch.h"

static bl_checkpoint *source;
static bl_arena arena;
static bl_binding binding;

static int open_demo(void **state)
{
    bl_error e;
    bl_error_clear(&e);
    expect_ok(bl_checkpoint_open(&source, BL_SOURCE_ROOT "/tools/demo-model", NULL, &e), &e);
    expect_ok(bl_bind(source, &arena, NULL, NULL, &binding, &e), &e);
    return 0;
}

static int close_demo(void **state)
{
    bl_checkpoint_close(&source);
    bl_arena_reset(&arena);
    return 0;
}

static bl_plan plan(const bl_plan_options *o)
{
    bl_plan p;
    bl_error e;
    bl_error_clear(&e);
    expect_ok(bl_plan_make(source, &binding, o, &arena, &p, &e), &e);
    return p;
}

/* Files are dense, members add up, the header has its length. */
static void check_files(const bl_plan *p, uint32_t align)
{
    size_t tensors = 0;
    uint64_t bytes = 0;
    for (size_t f = 0; f < p->file_count; f++) {
        const bl_plan_file *file = &p->files[f];
        uint64_t at = file->head.header_bytes;
        assert_int_equal(at % align, 0);
        for (size_t i = 0; i < file->count; i++) {
            const bl_plan_tensor *t = &file->tensors[i];
            uint64_t n = 0;
            assert_int_equal(t->tensor.offset, at);
            assert_int_equal(t->tensor.file, f);
            for (size_t m = 0; m < t->member_count; m++) {
                uint64_t granule = bl_plan_granule(t, m);
                assert_true(granule > 0 && granule <= BL_STREAM_TILE);
                n += bl_plan_member_bytes(t, m);
            }
            assert_int_equal(n, t->tensor.nbytes);
            at += n;
            bytes += n;
        }
        assert_int_equal(at, file->head.file_bytes);
        tensors += file->count;
    }
    assert_int_equal(tensors, p->tensor_count);
    assert_int_equal(bytes, p->tensor_bytes);
}

static bl_action action_of(const bl_plan *p, const char *name)
{
    const bl_tensor *t = bl_checkpoint_find(source, name);
    assert_non_null(t);
    return p->actions[t - source->tensors];
}

static void test_every_tensor_has_one_action(void **state)
{
    for (int target = BL_TO_BF16; target <= BL_TO_PACKED; target++) {
        bl_plan p = plan(&(bl_plan_options){.target = (bl_target)target, .shard_size = 1000000, .drop = BL_DROP_VISION});
        size_t total = 0;
        for (int a = 0; a < BL_ACTIONS; a++) {
            total += p.action_count[a];
        }
        assert_int_equal(p.action_count[BL_ACT_NONE], 0);
        assert_int_equal(total, source->tensor_count);
        check_files(&p, 4096);
    }
}

static void test_actions(void **state)
{
    bl_plan b = plan(&(bl_plan_options){.target = BL_TO_BF16, .shard_size = 1 << 30, .drop = BL_DROP_DSPARK});
    assert_int_equal(action_of(&b, "layers.0.attn.wq_a.weight"), BL_ACT_CAST);
    assert_int_equal(action_of(&b, "layers.0.attn.wq_a.scale"), BL_ACT_CONSUME);
    assert_int_equal(action_of(&b, "layers.7.ffn.experts.7.w3.weight"), BL_ACT_CAST);
    assert_int_equal(action_of(&b, "layers.1.engram.embed.weight"), BL_ACT_COPY);
    assert_int_equal(action_of(&b, "layers.1.engram.embed.scale"), BL_ACT_COPY);
    assert_int_equal(action_of(&b, "layers.0.hc_attn_fn"), BL_ACT_COPY);
    assert_int_equal(action_of(&b, "mtp.0.attn.wkv.weight"), BL_ACT_DROP);
    assert_int_equal(action_of(&b, "mtp.0.attn.wkv.scale"), BL_ACT_DROP);
    bl_plan k = plan(&(bl_plan_options){.target = BL_TO_PACKED});
    assert_int_equal(action_of(&k, "layers.0.attn.wq_a.scale"), BL_ACT_COPY);
    assert_int_equal(action_of(&k, "layers.7.ffn.experts.7.w3.scale"), BL_ACT_STACK);
    assert_int_equal(action_of(&k, "mtp.1.ffn.experts.0.w2.weight"), BL_ACT_STACK);
    for (size_t i = 0; i < k.tensor_count; i++) {
        assert_true(!k.tensors[i].stacked || (k.tensors[i].tensor.ndim == 3 && k.tensors[i].member_count == k.tensors[i].tensor.shape[0]));
    }
}

static void test_shard_sizes(void **state)
{
    static const uint64_t caps[] = {1, 50000, 1000000, 1 << 30};
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        bl_plan p = plan(&(bl_plan_options){.target = BL_TO_BF16, .shard_size = caps[c]});
        for (size_t f = 0; f < p.file_count; f++) {
            uint64_t n = p.files[f].head.file_bytes - p.files[f].head.header_bytes;
            assert_true(n <= caps[c] || p.files[f].count == 1);
            char name[64];
            snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", f + 1, p.file_count);
            assert_string_equal(p.files[f].name, name);
        }
        assert_true(caps[c] > 1 || p.file_count == p.tensor_count);
        assert_true(caps[c] < 1 << 30 || p.file_count == 1);
        check_files(&p, 4096);
    }
}

static void test_layers(void **state)
{
    bool keep[8] = {true, false, false, true};
    bl_error e;
    bl_plan p = plan(&(bl_plan_options){.target = BL_TO_PACKED, .layers = keep});
    assert_int_equal(action_of(&p, "layers.3.attn.attn_sink"), BL_ACT_COPY);
    assert_int_equal(action_of(&p, "layers.1.attn.attn_sink"), BL_ACT_DROP);
    assert_int_equal(action_of(&p, "mtp.0.attn.attn_sink"), BL_ACT_COPY);
    check_files(&p, 4096);
    memset(keep, 0, sizeof keep);
    bl_error_clear(&e);
    expect_failure(bl_plan_make(source, &binding, &(bl_plan_options){.target = BL_TO_PACKED, .layers = keep}, &arena, &p, &e), &e,
                   BL_E_USAGE, "--layers");
}

/* Rows of codes and rows of tables have limits of their own, and the message names the one that applies. */
static void test_widths(void **state)
{
    static const struct {
        bl_form form;
        uint64_t most;
        const char *says;
    } limits[] = {{BL_FORM_FP8, BL_VALUE_MAX_COLS, "131073 elements|the most is 131072"},
                  {BL_FORM_TABLE, BL_STREAM_TILE, "8388609 bytes|the most is 8388608"}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        bl_error e;
        bl_plan p;
        bl_weight *w = binding.weights;
        while (w->form != limits[i].form) {
            w++;
        }
        bl_weight before = *w;
        w->part.cols = limits[i].most + 1;
        bl_error_clear(&e);
        expect_failure(bl_plan_make(source, &binding, &(bl_plan_options){.target = BL_TO_BF16, .shard_size = 1 << 30}, &arena, &p, &e),
                       &e, BL_E_INPUT, limits[i].says);
        *w = before;
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_tensor_has_one_action), cmocka_unit_test(test_actions),
                                              cmocka_unit_test(test_shard_sizes), cmocka_unit_test(test_layers),
                                              cmocka_unit_test(test_widths)};
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
