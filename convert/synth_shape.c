#include "convert/synth_shape.h"

#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fields that every preset shares come after its own. */
static const struct preset {
    const char *name, *about, *text;
} presets[] = {
    {"nano", "about 3 MB, 7 layers: small enough to sit beside a test",
     "{\"vocab_size\":512,\"hidden_size\":128,\"moe_intermediate_size\":64,\"num_hidden_layers\":7,\"num_attention_heads\":4,"
     "\"head_dim\":64,\"qk_rope_head_dim\":16,\"q_lora_rank\":64,\"o_lora_rank\":32,\"o_groups\":2,\"n_routed_experts\":4,"
     "\"num_experts_per_tok\":2,\"sliding_window\":8,\"compress_ratios\":[0,0,2,2,1,1,1],\"kv_source_layer_ids\":[2,4],"
     "\"index_source_layer_ids\":[2,3,4,5,6],\"index_n_heads\":8,\"index_head_dim\":32,\"index_topk\":6,"
     "\"candidate_source_layer_id\":4,\"candidate_topk_blocks\":3,\"candidate_block_size\":4,\"engram_layer_ids\":[1,3],"
     "\"engram_vocab_size\":61,\"engram_n_heads\":2,\"engram_head_dim\":32,\"num_nextn_predict_layers\":1,"
     "\"dspark_block_size\":3,\"dspark_target_layer_ids\":[5,6],\"dspark_markov_rank\":32,\"dspark_n_routed_experts\":4,"
     "\"dspark_num_experts_per_tok\":2,\"original\":32,\"factor\":4}"},
    {"tiny", "about 10 MB, 8 layers, every part of the architecture",
     "{\"vocab_size\":768,\"hidden_size\":256,\"moe_intermediate_size\":128,\"num_hidden_layers\":8,\"num_attention_heads\":4,"
     "\"head_dim\":64,\"qk_rope_head_dim\":16,\"q_lora_rank\":64,\"o_lora_rank\":64,\"o_groups\":2,\"n_routed_experts\":8,"
     "\"num_experts_per_tok\":2,\"sliding_window\":16,\"compress_ratios\":[0,0,2,2,2,1,1,1],\"kv_source_layer_ids\":[2,5],"
     "\"index_source_layer_ids\":[2,4,5,6,7],\"index_n_heads\":4,\"index_head_dim\":64,\"index_topk\":8,"
     "\"candidate_source_layer_id\":5,\"candidate_topk_blocks\":4,\"candidate_block_size\":4,\"engram_layer_ids\":[1,3],"
     "\"engram_vocab_size\":97,\"engram_n_heads\":2,\"engram_head_dim\":32,\"num_nextn_predict_layers\":2,"
     "\"dspark_block_size\":3,\"dspark_target_layer_ids\":[6,7],\"dspark_markov_rank\":32,\"dspark_n_routed_experts\":4,"
     "\"dspark_num_experts_per_tok\":2,\"original\":64,\"factor\":4}"},
    {"small", "about 80 MB, 14 layers, nearer to the released proportions",
     "{\"vocab_size\":1024,\"hidden_size\":512,\"moe_intermediate_size\":224,\"num_hidden_layers\":14,\"num_attention_heads\":8,"
     "\"head_dim\":128,\"qk_rope_head_dim\":64,\"q_lora_rank\":160,\"o_lora_rank\":96,\"o_groups\":4,\"n_routed_experts\":16,"
     "\"num_experts_per_tok\":4,\"sliding_window\":32,\"compress_ratios\":[0,0,2,2,2,2,2,2,1,1,1,1,1,1],"
     "\"kv_source_layer_ids\":[2,4,6,8],\"index_source_layer_ids\":[2,4,6,8,10,12],\"index_n_heads\":8,\"index_head_dim\":128,"
     "\"index_topk\":24,\"candidate_source_layer_id\":8,\"candidate_topk_blocks\":6,\"candidate_block_size\":8,"
     "\"engram_layer_ids\":[1,6],\"engram_vocab_size\":401,\"engram_n_heads\":4,\"engram_head_dim\":64,"
     "\"num_nextn_predict_layers\":3,\"dspark_block_size\":5,\"dspark_target_layer_ids\":[11,12,13],\"dspark_markov_rank\":64,"
     "\"dspark_n_routed_experts\":8,\"dspark_num_experts_per_tok\":3,\"original\":128,\"factor\":16}"},
    {"wide", "about 4 GB, 4 layers of the released widths with 32 experts each (n_routed_experts=384 for all)",
     "{\"vocab_size\":32768,\"hidden_size\":5120,\"moe_intermediate_size\":2304,\"num_hidden_layers\":4,"
     "\"num_attention_heads\":64,\"head_dim\":512,\"qk_rope_head_dim\":64,\"q_lora_rank\":1280,\"o_lora_rank\":1024,"
     "\"o_groups\":8,\"n_routed_experts\":32,\"num_experts_per_tok\":6,\"sliding_window\":128,\"compress_ratios\":[0,0,2,1],"
     "\"kv_source_layer_ids\":[2,3],\"index_source_layer_ids\":[2,3],\"index_n_heads\":32,\"index_head_dim\":128,"
     "\"index_topk\":512,\"candidate_source_layer_id\":3,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,"
     "\"engram_layer_ids\":[1],\"engram_vocab_size\":20000,\"engram_n_heads\":8,\"engram_head_dim\":256,"
     "\"num_nextn_predict_layers\":0,\"dspark_block_size\":5,\"dspark_target_layer_ids\":[1,2,3],\"dspark_markov_rank\":256,"
     "\"dspark_n_routed_experts\":32,\"dspark_num_experts_per_tok\":3,\"original\":65536,\"factor\":16}"},
    {"full", "the released shape without vision, 509 GB: best with --headers",
     "{\"vocab_size\":129280,\"hidden_size\":5120,\"moe_intermediate_size\":2304,\"num_hidden_layers\":40,"
     "\"num_attention_heads\":64,\"head_dim\":512,\"qk_rope_head_dim\":64,\"q_lora_rank\":1280,\"o_lora_rank\":1024,"
     "\"o_groups\":8,\"n_routed_experts\":384,\"num_experts_per_tok\":6,\"sliding_window\":128,\"compress_ratios\":[0,0,"
     "2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"kv_source_layer_ids\":[2,8,14,20],"
     "\"index_source_layer_ids\":[2,8,14,20,24,28,32,36],\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":512,"
     "\"candidate_source_layer_id\":20,\"candidate_topk_blocks\":2048,\"candidate_block_size\":8,\"engram_layer_ids\":[1,14],"
     "\"engram_vocab_size\":16000000,\"engram_n_heads\":8,\"engram_head_dim\":256,\"num_nextn_predict_layers\":3,"
     "\"dspark_block_size\":5,\"dspark_target_layer_ids\":[37,38,39],\"dspark_markov_rank\":256,"
     "\"dspark_n_routed_experts\":128,\"dspark_num_experts_per_tok\":3,\"original\":65536,\"factor\":16}"},
};

static const char common[] =
    "{\"model_type\":\"deepseek_v41_text\",\"num_key_value_heads\":1,\"hidden_act\":\"silu\",\"swiglu_limit\":10.0,"
    "\"rms_norm_eps\":1e-20,\"attention_bias\":false,\"attention_dropout\":0.0,\"initializer_range\":0.02,\"use_cache\":true,"
    "\"tie_word_embeddings\":false,\"max_position_embeddings\":1048576,\"rope_theta\":10000,\"n_shared_experts\":1,"
    "\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":\"noaux_tc\",\"norm_topk_prob\":true,\"routed_scaling_factor\":1.5,"
    "\"compress_rope_theta\":160000,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-06,\"engram_max_ngram_size\":4,"
    "\"engram_pad_token_id\":2}";

const char *bl_synth_presets(void)
{
    static char text[1024];
    if (!text[0]) {
        size_t at = 0;
        for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
            at += (size_t)snprintf(text + at, sizeof text - at, "  %-6s %s\n", presets[i].name, presets[i].about);
        }
    }
    return text;
}

static bl_status nomem(bl_error *err)
{
    return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
}

static const char **find(bl_synth_shape *s, const char *key)
{
    if (!strcmp(key, "original")) {
        return &s->original;
    }
    if (!strcmp(key, "factor")) {
        return &s->factor;
    }
    for (size_t i = 0; i < s->count; i++) {
        if (!strcmp(s->keys[i], key)) {
            return &s->values[i];
        }
    }
    return NULL;
}

static bl_status add_all(bl_synth_shape *s, const char *text, bl_arena *arena, bl_error *err)
{
    bl_json root, key, value;
    BL_TRY(bl_json_parse(text, strlen(text), NULL, "preset", &root, err));
    bl_json_iter it = bl_json_begin(root);
    while (bl_json_next(&it, &key, &value)) {
        const char *name = bl_arena_strndup(arena, key.p + 1, key.n - 2);
        const char *copy = bl_arena_strndup(arena, value.p, value.n);
        if (!name || !copy) {
            return nomem(err);
        }
        const char **place = find(s, name);
        if (!place) {
            s->keys[s->count] = name;
            place = &s->values[s->count++];
        }
        *place = copy;
    }
    return BL_OK;
}

static bl_status override(bl_synth_shape *s, const char *text, bl_arena *arena, bl_error *err)
{
    const char *equals = strchr(text, '=');
    char *key = bl_arena_strndup(arena, text, (size_t)(equals - text));
    if (!key) {
        return nomem(err);
    }
    const char **place = find(s, key);
    bl_json value;
    if (!place) {
        return bl_fail(err, BL_E_USAGE, NULL, key, -1, "is no field of text_config that can be set");
    }
    if (bl_json_parse(equals + 1, strlen(equals + 1), NULL, NULL, &value, NULL) != BL_OK) {
        return bl_fail(err, BL_E_USAGE, NULL, key, -1, "its value is not JSON");
    }
    *place = bl_arena_strndup(arena, value.p, value.n);
    return *place ? BL_OK : nomem(err);
}

/* How many of the overrides set the key, which ends before '='. */
static size_t overridden(const bl_synth_options *o, const char *key)
{
    size_t n = strcspn(key, "="), count = 0;
    for (size_t i = 0; i < o->override_count; i++) {
        count += !strncmp(o->overrides[i], key, n) && o->overrides[i][n] == '=';
    }
    return count;
}

static bl_status check_overrides(const bl_synth_options *o, bl_arena *arena, bl_error *err)
{
    for (size_t i = 0; i < o->override_count; i++) {
        const char *text = o->overrides[i];
        if (!strchr(text, '=') || *text == '=') {
            return bl_fail(err, BL_E_USAGE, NULL, text, -1, "is not of the form key=value");
        }
        if (overridden(o, text) > 1) {
            return bl_fail(err, BL_E_USAGE, NULL, bl_arena_strndup(arena, text, strcspn(text, "=")), -1, "given twice");
        }
    }
    return BL_OK;
}

int64_t bl_synth_shape_int(const bl_synth_shape *s, const char *key)
{
    for (size_t i = 0; i < s->count; i++) {
        if (!strcmp(s->keys[i], key)) {
            bl_json v;
            int64_t n;
            return bl_json_parse(s->values[i], strlen(s->values[i]), NULL, NULL, &v, NULL) == BL_OK && bl_json_i64(v, &n) ? n : 0;
        }
    }
    return 0;
}

/* The layer lists of a model of n layers, in the released proportions: two window-only layers, then pairs, then single tokens;
 * a source at the start of each part; every fourth of the late layers chooses anew. */
static bl_status choose_lists(bl_synth_shape *s, int n, bl_arena *arena, bl_error *err)
{
    char ratios[4 * BL_SYNTH_MAX_KEYS] = "[", index[4 * BL_SYNTH_MAX_KEYS], kv[32], candidate[16], engram[32], targets[48];
    if (n < 4 || n > BL_SYNTH_MAX_KEYS) {
        return bl_fail(err, BL_E_USAGE, NULL, "num_hidden_layers", -1,
                       "outside 4..%d the lists of layers must be given too (compress_ratios and the others)", BL_SYNTH_MAX_KEYS);
    }
    int late = 2 + (n - 2 + 1) / 2;
    size_t at = 1, at2 = (size_t)snprintf(index, sizeof index, "[2");
    for (int i = 0; i < n; i++) {
        at += (size_t)snprintf(ratios + at, sizeof ratios - at, "%s%d", i ? "," : "", i < 2 ? 0 : i < late ? 2 : 1);
        if (i >= late && (i - late) % 4 == 0) {
            at2 += (size_t)snprintf(index + at2, sizeof index - at2, ",%d", i);
        }
    }
    snprintf(ratios + at, sizeof ratios - at, "]");
    snprintf(index + at2, sizeof index - at2, "]");
    snprintf(kv, sizeof kv, "[2,%d]", late);
    snprintf(candidate, sizeof candidate, "%d", late);
    if (late > 3) {
        snprintf(engram, sizeof engram, "[1,%d]", late - 1);
    } else {
        snprintf(engram, sizeof engram, "[1]");
    }
    snprintf(targets, sizeof targets, "[%d,%d,%d]", n - 3, n - 2, n - 1);
    const char *const lists[][2] = {{"compress_ratios", ratios}, {"index_source_layer_ids", index}, {"kv_source_layer_ids", kv},
                                    {"candidate_source_layer_id", candidate}, {"engram_layer_ids", engram},
                                    {"dspark_target_layer_ids", targets}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char **place = find(s, lists[i][0]);
        *place = bl_arena_strndup(arena, lists[i][1], strlen(lists[i][1]));
        if (!*place) {
            return nomem(err);
        }
    }
    return BL_OK;
}

bl_status bl_synth_shape_make(bl_synth_shape *s, const bl_synth_options *o, bl_arena *arena, bl_error *err)
{
    const struct preset *p = NULL;
    *s = (bl_synth_shape){0};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        p = !strcmp(presets[i].name, o->preset) ? &presets[i] : p;
    }
    if (!p) {
        return bl_fail(err, BL_E_USAGE, NULL, "--preset", -1, "there is no preset '%s': it can be nano, tiny, small, wide or full", o->preset);
    }
    BL_TRY(check_overrides(o, arena, err));
    BL_TRY(add_all(s, common, arena, err));
    BL_TRY(add_all(s, p->text, arena, err));
    for (size_t i = 0; i < o->override_count; i++) {
        BL_TRY(override(s, o->overrides[i], arena, err));
    }
    static const char *const lists[] = {"compress_ratios", "index_source_layer_ids", "kv_source_layer_ids"};
    bool own = false;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        own = own || overridden(o, lists[i]);
    }
    if (!own && overridden(o, "num_hidden_layers")) {
        int64_t n = bl_synth_shape_int(s, "num_hidden_layers");
        BL_TRY(choose_lists(s, n > 0 && n < 1000 ? (int)n : 0, arena, err));
        for (size_t i = 0; i < o->override_count; i++) { /* lists that were given after all win */
            BL_TRY(override(s, o->overrides[i], arena, err));
        }
    }
    return BL_OK;
}

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++) {
        if (n % d == 0) {
            return false;
        }
    }
    return n > 1;
}

/* Rows of each Engram table: every prime from the floor on, in turn, is the size of one head's range of one order and layer. */
static void put_rows(FILE *f, const bl_synth_shape *s, bl_json layers)
{
    int64_t heads = bl_synth_shape_int(s, "engram_n_heads"), orders = bl_synth_shape_int(s, "engram_max_ngram_size") - 1;
    int64_t floor = bl_synth_shape_int(s, "engram_vocab_size"), prime = (floor < 2 ? 2 : floor) - 1;
    size_t count = bl_json_count(layers);
    fputs("    \"engram_num_embeddings\": [", f);
    for (size_t i = 0; i < count; i++) {
        int64_t rows = 0;
        for (int64_t k = 0; k < heads * orders && heads < 1024 && orders < 64; k++) {
            do {
                prime++;
            } while (!is_prime(prime));
            rows += prime;
        }
        fprintf(f, "%s%lld", i ? ", " : "", (long long)rows);
    }
    fputs("],\n", f);
}

/* compress_ratios names the draft layers too. */
static void put_ratios(FILE *f, const char *list, int64_t drafts)
{
    size_t n = strlen(list);
    while (n && list[n - 1] != ']') {
        n--;
    }
    if (!n) {
        fputs(list, f); /* no list: the config's check says so */
        return;
    }
    fwrite(list, 1, n - 1, f);
    bl_json v;
    bool empty = bl_json_parse(list, strlen(list), NULL, NULL, &v, NULL) == BL_OK && bl_json_count(v) == 0;
    for (int64_t i = 0; i < drafts && i < 1024; i++) {
        fputs(empty && i == 0 ? "0" : ", 0", f);
    }
    fputc(']', f);
}

bl_status bl_synth_config(const bl_synth_shape *s, int classes, int noise, int image, char **text, size_t *n, bl_error *err)
{
    *text = NULL;
    FILE *f = open_memstream(text, n);
    if (!f) {
        return nomem(err);
    }
    fprintf(f,
            "{\n  \"architectures\": [\"DeepseekV41ForCausalLM\"],\n  \"model_type\": \"deepseek_v41\",\n  \"dtype\": \"bfloat16\",\n"
            "  \"transformers_version\": \"5.6.0\",\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n  \"pad_token_id\": 2,\n"
            "  \"image_token_id\": %d,\n"
            "  \"quantization_config\": {\n    \"quant_method\": \"fp8\",\n    \"activation_scheme\": \"dynamic\",\n"
            "    \"weight_block_size\": [32, 32],\n    \"scale_fmt\": \"ue8m0\",\n    \"expert_dtype\": \"fp4\"\n  },\n"
            "  \"text_config\": {\n",
            image);
    int64_t drafts = bl_synth_shape_int(s, "num_nextn_predict_layers");
    for (size_t i = 0; i < s->count; i++) {
        if (!strcmp(s->keys[i], "engram_layer_ids")) {
            bl_json list;
            bl_json_parse(s->values[i], strlen(s->values[i]), NULL, NULL, &list, NULL);
            put_rows(f, s, list);
        }
        fprintf(f, "    \"%s\": ", s->keys[i]);
        if (!strcmp(s->keys[i], "compress_ratios")) {
            put_ratios(f, s->values[i], drafts);
        } else {
            fputs(s->values[i], f);
        }
        fputs(",\n", f);
    }
    fprintf(f,
            "    \"rope_scaling\": {\n      \"rope_type\": \"yarn\",\n      \"factor\": %s,\n      \"beta_fast\": 32,\n"
            "      \"beta_slow\": 1,\n      \"original_max_position_embeddings\": %s\n    },\n"
            "    \"engram_compressed_vocab_size\": %d,\n    \"dspark_noise_token_id\": %d\n  }\n}\n",
            s->factor, s->original, classes, noise);
    bool bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    return bad ? nomem(err) : BL_OK;
}
