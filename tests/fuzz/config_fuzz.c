#include "tests/fuzz/fuzz.h"

#include "formats/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bl_arena arena = {0};
    bl_config c;
    bl_error err = {0};
    if (bl_config_parse((const char *)data, size, "input", &arena, &c, &err) == BL_OK) {
        for (int i = 0; i < c.num_hidden_layers; i++) { /* what the runtime relies on */
            int kv = bl_config_kv_source(&c, i), index = bl_config_index_source(&c, i);
            BL_MUST((c.compress_ratios[i] > 0) == (kv >= 0) && (kv >= 0) == (index >= 0));
            BL_MUST(kv < 0 || c.compress_ratios[kv] == c.compress_ratios[i]);
        }
        BL_MUST(c.hidden_size % 32 == 0 && c.head_dim % 32 == 0 && c.qk_rope_head_dim <= c.head_dim);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_error_clear(&err);
    if (bl_config_parse_any((const char *)data, size, "input", &arena, &c, &err) == BL_OK) {
        BL_MUST(c.num_hidden_layers >= 1 && c.num_hidden_layers <= BL_MAX_LAYERS && c.num_nextn_predict_layers <= BL_MAX_LAYERS);
        BL_MUST(!c.earlier || c.model_type);
    } else {
        BL_MUST(err.code == BL_E_INPUT);
    }
    bl_arena_reset(&arena);
    return 0;
}
