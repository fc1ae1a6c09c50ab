/* A small legal config for unit tests: window layers, two compressed ratios, selection reuse, candidates,
 * Engram, drafts. */
#ifndef BL_TESTS_UNIT_TINY_CONFIG_H
#define BL_TESTS_UNIT_TINY_CONFIG_H

static const char tiny_config[] =
    "{\"model_type\":\"deepseek_v41\",\"bos_token_id\":0,\"eos_token_id\":1,\"pad_token_id\":2,\"image_token_"
    "id\":510,"
    "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[32,32],\"scale_fmt\":\"ue8m0\","
    "\"expert_dtype\":\"fp4\"},"
    "\"vision_config\":{\"hidden_size\":1024},"
    "\"text_config\":{\"num_key_value_heads\":1,\"hidden_act\":\"silu\",\"swiglu_limit\":10.0,\"rms_norm_"
    "eps\":1e-20,"
    "\"attention_bias\":false,\"tie_word_embeddings\":false,\"max_position_embeddings\":1048576,\"rope_"
    "theta\":10000,"
    "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":32,\"beta_slow\":1,\"original_max_"
    "position_embeddings\":32},"
    "\"n_shared_experts\":1,\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":\"noaux_tc\",\"norm_topk_"
    "prob\":true,"
    "\"routed_scaling_factor\":1.5,\"compress_rope_theta\":160000,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,"
    "\"hc_eps\":1e-06,"
    "\"engram_num_embeddings\":[434,606],\"engram_max_ngram_size\":4,\"engram_pad_token_id\":2,"
    "\"engram_compressed_vocab_size\":457,\"dspark_noise_token_id\":511,\"vocab_size\":512,\"hidden_size\":"
    "128,"
    "\"moe_intermediate_size\":64,\"num_hidden_layers\":7,\"num_attention_heads\":3,\"head_dim\":64,\"qk_"
    "rope_head_dim\":16,"
    "\"q_lora_rank\":96,\"o_lora_rank\":32,\"o_groups\":2,\"n_routed_experts\":5,\"num_experts_per_tok\":2,"
    "\"sliding_window\":8,"
    "\"compress_ratios\":[0,0,2,2,1,1,1,0],\"kv_source_layer_ids\":[2,4],\"index_source_layer_ids\":[2,3,4,6]"
    ","
    "\"index_n_heads\":5,\"index_head_dim\":32,\"index_topk\":6,\"candidate_source_layer_id\":4,\"candidate_"
    "topk_blocks\":3,"
    "\"candidate_block_size\":4,\"engram_layer_ids\":[1,3],\"engram_vocab_size\":61,\"engram_n_heads\":2,"
    "\"engram_head_dim\":32,"
    "\"num_nextn_predict_layers\":1,\"dspark_block_size\":3,\"dspark_target_layer_ids\":[5,6],\"dspark_"
    "markov_rank\":32,"
    "\"dspark_n_routed_experts\":4,\"dspark_num_experts_per_tok\":2}}";

#endif
