#include "formats/config.h"

#include "formats/file.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/scratch.h"
#include "tests/unit/tiny_config.h"

static bl_status parse_tree(json_t *tree, bl_arena *arena, bl_config *c, bl_error *e)
{
    char *text = json_dumps(tree, 0);
    bl_status s = bl_config_parse(text, strlen(text), "config.json", arena, c, e);
    free(text);
    return s;
}

/* Set (or with value NULL remove) path "a.b" of the base config, in text_config unless it starts with '/'. */
static json_t *changed(const char *path, const char *value)
{
    json_t *root = json_loads(tiny_config, 0, NULL), *at = root;
    char copy[128];
    assert_non_null(root);
    snprintf(copy, sizeof copy, "%s", *path == '/' ? path + 1 : path);
    if (*path != '/') {
        at = json_object_get(root, "text_config");
    }
    char *key = copy;
    for (char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        *dot = 0;
        at = json_object_get(at, key);
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        json_object_set_new(at, key, v);
    } else {
        json_object_del(at, key);
    }
    return root;
}

static void test_base(void **state)
{
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    expect_ok(bl_config_parse(tiny_config, sizeof tiny_config - 1, "config.json", &arena, &c, &e), &e);
    assert_int_equal(c.vocab_size, 512);
    assert_int_equal(c.num_attention_heads, 3);
    assert_true(c.rms_norm_eps > 0.99e-20f && c.rms_norm_eps < 1.01e-20f);
    assert_true(c.yarn && c.rope_factor == 4 && c.rope_original_max_position_embeddings == 32);
    assert_int_equal(c.engram_count, 2);
    assert_int_equal(c.engram_num_embeddings[1], 606);
    assert_true(c.nested && c.quantized && c.experts_fp4 && c.has_vision && !c.engram_quant &&
                c.norm_topk_prob);
    assert_int_equal(c.image_token_id, 510);
    assert_int_equal(c.text_bytes, sizeof tiny_config - 1);
    assert_string_equal(c.text, tiny_config);
    static const int kv[] = {-1, -1, 2, 2, 4, 4, 4, -1}, index[] = {-1, -1, 2, 3, 4, 4, 6, -1};
    for (int i = 0; i < 8; i++) {
        assert_int_equal(bl_config_kv_source(&c, i), kv[i]);
        assert_int_equal(bl_config_index_source(&c, i), index[i]);
        assert_int_equal(bl_config_is_kv_source(&c, i), kv[i] == i);
        assert_int_equal(bl_config_is_index_source(&c, i), index[i] == i);
    }
    assert_int_equal(bl_config_kv_source(&c, -1), -1);
    assert_int_equal(bl_config_engram_index(&c, 3), 1);
    assert_int_equal(bl_config_engram_index(&c, 2), -1);
    bl_arena_reset(&arena);
}

typedef struct change {
    const char *path, *value, *fragments; /* fragments NULL: still legal */
} change;

static const change changes[] = {
    {"/model_type", "\"deepseek_v4.1\"", NULL},
    {"/model_type", "\"deepseek_v4\"", "'model_type'|deepseek_v4"},
    {"/model_type", "3", "'model_type'|string"},
    {"/model_type", NULL, "'model_type'|missing"},
    {"/text_config", "[]", "'text_config'|object"},
    {"/quantization_config", "1", "'quantization_config'"},
    {"/quantization_config.quant_method", "\"float-quantized\"", "quant_method|fp8"},
    {"/quantization_config.weight_block_size", "[128,128]", "weight_block_size|[32, 32]"},
    {"/quantization_config.weight_block_size", "[32]", "weight_block_size"},
    {"/quantization_config.weight_block_size", "[32,\"x\"]", "weight_block_size"},
    {"/quantization_config.scale_fmt", "\"float\"", "scale_fmt"},
    {"/quantization_config.expert_dtype", "\"int4\"", "expert_dtype"},
    {"/engram_quant", "{\"dtype\":\"float8_e4m3fn\",\"scale_dtype\":\"float8_e8m0fnu\",\"block\":[1,32]}",
     NULL},
    {"/engram_quant", "{\"dtype\":\"float8_e4m3fn\",\"scale_dtype\":\"float8_e8m0fnu\",\"block\":[32,32]}",
     "engram_quant.block"},
    {"/engram_quant", "[]", "'engram_quant'"},
    {"/bos_token_id", "512", "'bos_token_id'"},
    {"/eos_token_id", "-1", "'eos_token_id'"},
    {"/pad_token_id", "null", NULL},
    {"/image_token_id", "1e9", "'image_token_id'"},
    {"num_key_value_heads", "2", "'num_key_value_heads'"},
    {"hidden_act", "\"gelu\"", "'hidden_act'|gelu"},
    {"scoring_func", "\"sigmoid\"", "'scoring_func'"},
    {"topk_method", "\"greedy\"", "'topk_method'"},
    {"attention_bias", "true", "'attention_bias'"},
    {"tie_word_embeddings", "true", "'tie_word_embeddings'"},
    {"tie_word_embeddings", "0", "'tie_word_embeddings'"},
    {"swiglu_limit", "-1", "'swiglu_limit'"},
    {"swiglu_limit", "0", NULL},
    {"rms_norm_eps", "\"1e-20\"", "'rms_norm_eps'"},
    {"rms_norm_eps", "2", "'rms_norm_eps'"},
    {"hc_eps", "-0.1", "'hc_eps'"},
    {"norm_topk_prob", "1", "'norm_topk_prob'"},
    {"norm_topk_prob", "false", NULL},
    {"routed_scaling_factor", "0", "'routed_scaling_factor'"},
    {"max_position_embeddings", "0", "'max_position_embeddings'"},
    {"rope_theta", "0.5", "'rope_theta'"},
    {"compress_rope_theta", "[]", "'compress_rope_theta'"},
    {"rope_scaling", "null", NULL},
    {"rope_scaling", "1", "'rope_scaling'"},
    {"rope_scaling.rope_type", "\"default\"", NULL},
    {"rope_scaling.rope_type", "\"linear\"", "rope_type|linear"},
    {"rope_scaling.rope_type", NULL, "rope_type"},
    {"rope_scaling", "{\"type\":\"default\"}", NULL},
    {"rope_scaling.factor", "0", "rope_scaling.factor"},
    {"rope_scaling.factor", NULL, "rope_scaling.factor|missing"},
    {"rope_scaling.beta_fast", "\"x\"", "rope_scaling.beta_fast"},
    {"rope_scaling.beta_slow", "-1", "rope_scaling.beta_slow"},
    {"rope_scaling.original_max_position_embeddings", "1.5", "original_max_position_embeddings|integer"},
    {"hc_mult", "2", "'hc_mult'|is 2, must be 4"},
    {"hc_sinkhorn_iters", "0", "'hc_sinkhorn_iters'"},
    {"n_shared_experts", "2", "'n_shared_experts'"},
    {"vocab_size", "0", "'vocab_size'"},
    {"vocab_size", "511", "'dspark_noise_token_id'"},
    {"vocab_size", "512.0", NULL},
    {"vocab_size", "512.5", "'vocab_size'|integer"},
    {"vocab_size", "9223372036854775807", "'vocab_size'"},
    {"hidden_size", "130", "'hidden_size'|multiple of 32"},
    {"hidden_size", "96", NULL},
    {"moe_intermediate_size", "80", "'moe_intermediate_size'"},
    {"head_dim", "48", "'head_dim'"},
    {"head_dim", "2097152", "'head_dim'"},
    {"q_lora_rank", "40", "'q_lora_rank'"},
    {"o_lora_rank", "20", "'o_lora_rank'"},
    {"o_lora_rank", "16", NULL},
    {"o_groups", "5", "'o_groups'"},
    {"qk_rope_head_dim", "15", "'qk_rope_head_dim'|even"},
    {"qk_rope_head_dim", "128", "'qk_rope_head_dim'"},
    {"qk_rope_head_dim", "64", "'index_head_dim'"},
    {"num_hidden_layers", "8", "'compress_ratios'"},
    {"num_hidden_layers", "5000", "'num_hidden_layers'"},
    {"n_routed_experts", "1", "'num_experts_per_tok'"},
    {"num_experts_per_tok", "0", "'num_experts_per_tok'"},
    {"sliding_window", "0", "'sliding_window'"},
    {"compress_ratios", "[0,0,2,2,1,1,1]", "'compress_ratios'|7 entries|8"},
    {"compress_ratios", "[0,0,2,2,1,1,3,0]", "'compress_ratios'"},
    {"compress_ratios", "[0,0,2,2,1,1,1,1]", "'compress_ratios'|draft"},
    {"compress_ratios", "[0,2,2,2,1,1,1,0]", "'kv_source_layer_ids'|layer 1"},
    {"compress_ratios", "[0,0,2,1,1,1,1,0]", "'compress_ratios'|layer 3"},
    {"compress_ratios", "{}", "'compress_ratios'|list"},
    {"compress_ratios", "[0,0,0,0,0,0,0,0]", NULL},
    {"kv_source_layer_ids", "[4,2]", "'kv_source_layer_ids'|ascending"},
    {"kv_source_layer_ids", "[2,2,4]", "'kv_source_layer_ids'|ascending"},
    {"kv_source_layer_ids", "[2,7]", "'kv_source_layer_ids'"},
    {"kv_source_layer_ids", "[2,4.5]", "'kv_source_layer_ids'"},
    {"kv_source_layer_ids", "[2,4,5,6]", "'candidate_source_layer_id'|6"},
    {"kv_source_layer_ids", "[0,2,4]", NULL},
    {"index_source_layer_ids", "[3,4]", "'index_source_layer_ids'|layer 2"},
    {"index_source_layer_ids", "[2,3]", NULL},
    {"compress_ratios", "[0,0,1,1,2,2,2,0]", NULL},
    {"index_source_layer_ids", "[2,4]", NULL},
    {"index_n_heads", "0", "'index_n_heads'"},
    {"index_head_dim", "40", "'index_head_dim'"},
    {"index_topk", "0", "'index_topk'"},
    {"candidate_source_layer_id", "5", "'candidate_source_layer_id'"},
    {"candidate_source_layer_id", "7", "'candidate_source_layer_id'"},
    {"candidate_source_layer_id", "-1", NULL},
    {"candidate_source_layer_id", NULL, NULL},
    {"candidate_topk_blocks", "0", "'candidate_topk_blocks'"},
    {"candidate_block_size", "0", "'candidate_block_size'"},
    {"engram_layer_ids", "[3,1]", "'engram_layer_ids'"},
    {"engram_layer_ids", "[1]", "'engram_num_embeddings'"},
    {"engram_layer_ids", "[]", NULL},
    {"engram_layer_ids", NULL, NULL},
    {"engram_num_embeddings", "[434,0]", "'engram_num_embeddings'"},
    {"engram_max_ngram_size", "1", "'engram_max_ngram_size'"},
    {"engram_pad_token_id", "512", "'engram_pad_token_id'"},
    {"engram_vocab_size", "1", "'engram_vocab_size'"},
    {"engram_compressed_vocab_size", "513", "'engram_compressed_vocab_size'"},
    {"engram_n_heads", "-2", "'engram_n_heads'"},
    {"engram_head_dim", "48", "'engram_head_dim'"},
    {"num_nextn_predict_layers", "0", "'compress_ratios'"},
    {"num_nextn_predict_layers", "\"1\"", "'num_nextn_predict_layers'"},
    {"dspark_noise_token_id", "-1", "'dspark_noise_token_id'"},
    {"dspark_target_layer_ids", "[]", "'dspark_target_layer_ids'"},
    {"dspark_target_layer_ids", "[5,7]", "'dspark_target_layer_ids'"},
    {"dspark_block_size", "0", "'dspark_block_size'"},
    {"dspark_markov_rank", "0", "'dspark_markov_rank'"},
    {"dspark_n_routed_experts", "1", "'dspark_num_experts_per_tok'"},
    {"dspark_num_experts_per_tok", "0", "'dspark_num_experts_per_tok'"},
};

static void test_every_key_is_checked(void **state)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        bl_arena arena = {0};
        bl_config c;
        bl_error e = {0};
        json_t *tree = changed(changes[i].path, changes[i].value);
        bl_status s = parse_tree(tree, &arena, &c, &e);
        if (!changes[i].fragments && s != BL_OK) {
            fail_msg("%s = %s: %s", changes[i].path, changes[i].value, e.message);
        }
        if (changes[i].fragments) {
            expect_failure(s, &e, BL_E_INPUT, changes[i].fragments);
            expect_failure(s, &e, BL_E_INPUT, "config.json");
        }
        json_decref(tree);
        bl_arena_reset(&arena);
    }
}

/* The form in which transformers 5 saves both keys. */
static void test_rope_parameters(void **state)
{
    static const struct {
        const char *value, *fragments;
    } cases[] = {
        {"{\"rope_type\":\"yarn\",\"rope_theta\":50000.0,\"factor\":4,\"beta_fast\":32,\"beta_slow\":1,"
         "\"original_max_position_embeddings\":32}", NULL},
        {"{\"rope_type\":\"default\",\"rope_theta\":50000}", NULL},
        {"{\"rope_type\":\"default\"}", "rope_parameters.rope_theta|missing"},
        {"{\"rope_theta\":50000}", "rope_parameters.rope_type"},
        {"{\"rope_theta\":50000,\"rope_type\":\"yarn\"}", "rope_parameters.factor|missing"},
        {"3", "'rope_parameters'|object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_arena arena = {0};
        bl_config c;
        bl_error e = {0};
        json_t *tree = changed("rope_parameters", cases[i].value), *text = json_object_get(tree, "text_config");
        expect_failure(parse_tree(tree, &arena, &c, &e), &e, BL_E_INPUT, "'rope_parameters'|keep one");
        bl_error_clear(&e);
        json_object_del(text, "rope_scaling");
        expect_failure(parse_tree(tree, &arena, &c, &e), &e, BL_E_INPUT, "'rope_parameters'|keep one");
        bl_error_clear(&e);
        json_object_del(text, "rope_theta");
        bl_status s = parse_tree(tree, &arena, &c, &e);
        if (cases[i].fragments) {
            expect_failure(s, &e, BL_E_INPUT, cases[i].fragments);
        } else {
            assert_int_equal(s, BL_OK);
            assert_true(c.rope_theta == 50000 && c.yarn == (i == 0));
            assert_true(i > 0 || (c.rope_factor == 4 && c.rope_original_max_position_embeddings == 32));
        }
        json_decref(tree);
        bl_arena_reset(&arena);
    }
}

/* A selection made at ratio 1 reaches past the latents of a source with ratio 2. */
static void test_selection_must_fit_its_latents(void **state)
{
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    json_t *tree = changed("compress_ratios", "[0,0,1,1,2,2,2,0]"),
           *text = json_object_get(tree, "text_config");
    json_object_set_new(text, "index_source_layer_ids", json_loads("[2,3]", 0, NULL));
    expect_failure(parse_tree(tree, &arena, &c, &e), &e, BL_E_INPUT,
                   "'compress_ratios'|layer 4|index source 3");
    json_decref(tree);
    bl_arena_reset(&arena);
}

static void test_required_keys(void **state)
{
    static const char *const keys[] = {"vocab_size",
                                       "hidden_size",
                                       "moe_intermediate_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "head_dim",
                                       "qk_rope_head_dim",
                                       "q_lora_rank",
                                       "o_lora_rank",
                                       "o_groups",
                                       "n_routed_experts",
                                       "n_shared_experts",
                                       "num_experts_per_tok",
                                       "sliding_window",
                                       "hc_mult",
                                       "hc_sinkhorn_iters",
                                       "hc_eps",
                                       "rms_norm_eps",
                                       "swiglu_limit",
                                       "routed_scaling_factor",
                                       "max_position_embeddings",
                                       "rope_theta",
                                       "compress_rope_theta",
                                       "compress_ratios",
                                       "index_n_heads",
                                       "index_head_dim",
                                       "index_topk",
                                       "candidate_topk_blocks",
                                       "candidate_block_size",
                                       "engram_num_embeddings",
                                       "engram_max_ngram_size",
                                       "engram_pad_token_id",
                                       "engram_vocab_size",
                                       "engram_compressed_vocab_size",
                                       "engram_n_heads",
                                       "engram_head_dim",
                                       "dspark_block_size",
                                       "dspark_noise_token_id",
                                       "dspark_markov_rank",
                                       "dspark_n_routed_experts",
                                       "dspark_num_experts_per_tok",
                                       "dspark_target_layer_ids"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (int null = 0; null < 2; null++) {
            bl_arena arena = {0};
            bl_config c;
            bl_error e = {0};
            json_t *tree = changed(keys[i], null ? "null" : NULL);
            bl_status s = parse_tree(tree, &arena, &c, &e);
            assert_int_equal(s, BL_E_INPUT);
            assert_string_equal(e.tensor, keys[i]);
            json_decref(tree);
            bl_arena_reset(&arena);
        }
    }
}

static void test_flattened(void **state)
{
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    json_t *root = json_loads(tiny_config, 0, NULL),
           *text = json_incref(json_object_get(root, "text_config"));
    json_object_del(root, "text_config");
    json_object_del(root, "quantization_config");
    json_object_del(root, "vision_config");
    json_object_update(root, text);
    json_object_set_new(
        root, "engram_quant",
        json_loads("{\"dtype\":\"float8_e4m3fn\",\"scale_dtype\":\"float8_e8m0fnu\",\"block\":[1,32]}", 0,
                   NULL));
    expect_ok(parse_tree(root, &arena, &c, &e), &e);
    assert_true(!c.nested && !c.quantized && !c.experts_fp4 && c.engram_quant && !c.has_vision);
    assert_int_equal(c.num_hidden_layers, 7);
    json_object_set_new(root, "num_nextn_predict_layers", json_integer(0));
    json_object_set_new(root, "compress_ratios", json_loads("[0,0,2,2,1,1,1]", 0, NULL));
    for (const char *const *k =
             (const char *const[]){"dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank",
                                   "dspark_n_routed_experts", "dspark_num_experts_per_tok",
                                   "dspark_noise_token_id", "image_token_id", NULL};
         *k; k++) {
        json_object_del(root, *k);
    }
    expect_ok(parse_tree(root, &arena, &c, &e), &e);
    assert_int_equal(c.num_nextn_predict_layers, 0);
    assert_int_equal(c.image_token_id, -1);
    json_decref(text);
    json_decref(root);
    bl_arena_reset(&arena);
}

static void test_not_an_object(void **state)
{
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    expect_failure(bl_config_parse("[]", 2, "config.json", &arena, &c, &e), &e, BL_E_INPUT,
                   "config.json|not a JSON object");
    bl_error_clear(&e);
    expect_failure(bl_config_parse("{", 1, "config.json", &arena, &c, &e), &e, BL_E_INPUT,
                   "config.json|at byte 1");
    bl_error_clear(&e);
    expect_failure(bl_config_parse("{\"a\":1,\"a\":1}", 13, "config.json", &arena, &c, &e), &e, BL_E_INPUT,
                   "'a'|duplicate");
    bl_arena_reset(&arena);
}

static void test_earlier(void **state)
{
    static const char text[] = "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, \"n_routed_experts\": 256,"
                               "\"num_nextn_predict_layers\": 1, \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\","
                               "\"weight_block_size\": [128, 128], \"scale_fmt\": \"ue8m0\"}}";
    static const char *const bad[][2] = {
        {"{\"num_hidden_layers\": 1}", "'model_type'|missing"},
        {"{\"model_type\": \"x\"}", "'num_hidden_layers'|missing"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 0}", "'num_hidden_layers'|from 1 to 1024"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 1.5}", "'num_hidden_layers'|must be an integer"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 1025}", "'num_hidden_layers'|1 to 1024"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 1, \"n_routed_experts\": -1}", "'n_routed_experts'"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 1, \"quantization_config\": 1}", "'quantization_config'|object"},
        {"{\"model_type\": \"x\", \"num_hidden_layers\": 1, \"quantization_config\": {}}", "quant_method|missing"},
        {"{\"model_type\": \"deepseek_v41\", \"num_hidden_layers\": 1}", "'vocab_size'|missing"}};
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    expect_ok(bl_config_parse_any(text, sizeof text - 1, "config.json", &arena, &c, &e), &e);
    assert_true(c.earlier && c.quantized && c.scale_ue8m0 && !c.experts_fp4);
    assert_int_equal(c.num_hidden_layers, 61);
    assert_int_equal(c.block[1], 128);
    assert_string_equal(c.model_type, "deepseek_v3");
    expect_failure(bl_config_parse(text, sizeof text - 1, "config.json", &arena, &c, &e), &e, BL_E_INPUT, "'model_type'|deepseek_v41");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bl_error_clear(&e);
        expect_failure(bl_config_parse_any(bad[i][0], strlen(bad[i][0]), "config.json", &arena, &c, &e), &e, BL_E_INPUT, bad[i][1]);
    }
    bl_error_clear(&e);
    expect_ok(bl_config_parse_any(tiny_config, sizeof tiny_config - 1, "config.json", &arena, &c, &e), &e);
    assert_false(c.earlier);
    bl_arena_reset(&arena);
}

static void test_released(void **state)
{
    const char *shared = getenv("BL_SHARED");
    char path[1024];
    bl_arena arena = {0};
    bl_config c;
    bl_error e = {0};
    char *text;
    size_t n;
    snprintf(path, sizeof path, "%s/data/config.json", shared ? shared : BL_SOURCE_ROOT "/../shared");
    if (access(path, R_OK) != 0) {
        print_message("SKIPPED: %s is not there\n", path);
        skip();
    }
    expect_ok(bl_file_slurp(path, 1 << 20, &text, &n, &e), &e);
    expect_ok(bl_config_parse(text, n, path, &arena, &c, &e), &e);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_int_equal(bl_config_kv_source(&c, 39), 20);
    free(text);
    bl_arena_reset(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_base),
                                       cmocka_unit_test(test_every_key_is_checked),
                                       cmocka_unit_test(test_rope_parameters),
                                       cmocka_unit_test(test_selection_must_fit_its_latents),
                                       cmocka_unit_test(test_required_keys),
                                       cmocka_unit_test(test_flattened),
                                       cmocka_unit_test(test_not_an_object),
                                       cmocka_unit_test(test_earlier),
                                       cmocka_unit_test(test_released)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
