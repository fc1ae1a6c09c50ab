/* config.json of a DeepSeek-V4.1 model: nested as released ("text_config"), or flattened as trainers want it; and the little
 * that conversions need of the config of an earlier generation. */
#ifndef BL_FORMATS_CONFIG_H
#define BL_FORMATS_CONFIG_H

#include "formats/arena.h"
#include "formats/status.h"

#include <stdbool.h>

#define BL_MAX_LAYERS 1024
#define BL_HC_MULT 4 /* residual streams; the released layout ([24, 4 * hidden] mixing weights) knows no other value */

/* Names follow the config keys. Counts are elements unless said. Arrays live in the arena. */
typedef struct bl_config {
    int vocab_size, hidden_size, moe_intermediate_size, num_hidden_layers, num_attention_heads, head_dim, qk_rope_head_dim;
    int q_lora_rank, o_lora_rank, o_groups, n_routed_experts, n_shared_experts, num_experts_per_tok, sliding_window;
    int64_t max_position_embeddings;
    int hc_mult, hc_sinkhorn_iters;
    float hc_eps, rms_norm_eps, swiglu_limit, routed_scaling_factor; /* swiglu_limit 0 = no clamp */
    bool norm_topk_prob;
    const int *compress_ratios; /* [num_hidden_layers + num_nextn_predict_layers], each 0, 1 or 2 */
    const int *kv_source_layer_ids, *index_source_layer_ids; /* ascending */
    int kv_source_count, index_source_count;
    int index_n_heads, index_head_dim, index_topk; /* may be 0 when no layer is compressed */
    int candidate_source_layer_id; /* -1 = no candidate filter */
    int candidate_topk_blocks, candidate_block_size;
    double rope_theta, compress_rope_theta;
    bool yarn;                                /* rope_scaling (or rope_parameters) present with rope_type "yarn" */
    double rope_factor, rope_beta_fast, rope_beta_slow;
    int64_t rope_original_max_position_embeddings;
    const int *engram_layer_ids; /* ascending; none when engram_count is 0 */
    const int64_t *engram_num_embeddings; /* [engram_count] table rows */
    int engram_count, engram_max_ngram_size, engram_n_heads, engram_head_dim, engram_pad_token_id;
    int64_t engram_vocab_size;
    int engram_compressed_vocab_size;
    int num_nextn_predict_layers; /* DSpark draft stages, 0 = none */
    int dspark_block_size, dspark_noise_token_id, dspark_markov_rank, dspark_n_routed_experts, dspark_num_experts_per_tok;
    const int *dspark_target_layer_ids;
    int dspark_target_count;
    int bos_token_id, eos_token_id, pad_token_id, image_token_id; /* -1 = none */
    bool has_vision;
    bool nested;                 /* text_config present */
    bool quantized;              /* quantization_config present: fp8 dense weights */
    int fp8_block_rows;          /* of its weight_block_size [rows, 32]: 32, or 1 in recasts; 32 when absent */
    bool experts_fp4;            /* quantization_config.expert_dtype == "fp4" */
    bool engram_quant;           /* flattened form: engram_quant present */
    const char *text;            /* the source text, text_bytes long, NUL-terminated, in the arena */
    size_t text_bytes;
    /* Of an earlier generation (bl_config_parse_any). Then only the fields below, num_hidden_layers, n_routed_experts and
     * num_nextn_predict_layers (0 when absent), quantized, experts_fp4 and the text are set, everything else is zero. */
    bool earlier;
    const char *model_type;      /* as it says; in the arena */
    int block[2];                /* quantization_config.weight_block_size; 0, 0 when absent */
    bool scale_ue8m0;            /* scale_fmt is "ue8m0": a claim about the scales, which are to be looked at */
} bl_config;

/* Parse and validate the text of a config.json. Every field used is checked for presence, type and range and against the
 * others (lists inside the layer count, ratios against sources, head counts against groups, ...); errors name the key.
 * Keys are looked up in text_config, then at the top level; null counts as absent. num_attention_heads need not be a multiple
 * of o_groups: their product with head_dim is. Inner dimensions of quantised products are multiples of 32.
 * model_type "deepseek_v41" and "deepseek_v4.1" are accepted. path names the source in errors. */
bl_status bl_config_parse(const char *text, size_t n, const char *path, bl_arena *arena, bl_config *out, bl_error *err);

/* The same for a config of any generation: any other model_type than those above gives an earlier config, of which little is
 * read and nothing concluded about what it names. Errors name the key. */
bl_status bl_config_parse_any(const char *text, size_t n, const char *path, bl_arena *arena, bl_config *out, bl_error *err);

/* Layer facts. */
int bl_config_kv_source(const bl_config *c, int layer);    /* latest KV source <= layer with ratio > 0; -1 for window-only layers */
int bl_config_index_source(const bl_config *c, int layer); /* latest index source <= layer; -1 likewise */
/* Listed as a source and compressed: a listed layer whose ratio is 0 computes nothing. */
bool bl_config_is_kv_source(const bl_config *c, int layer);
bool bl_config_is_index_source(const bl_config *c, int layer);
int bl_config_engram_index(const bl_config *c, int layer); /* position in engram_layer_ids, -1 = none */
/* Table rows that a token looks up in each Engram layer; 0 without Engram. */
static inline int64_t bl_config_engram_columns(const bl_config *c)
{
    return c->engram_count ? (int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads : 0;
}

#endif
