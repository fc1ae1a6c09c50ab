/* config.json of a converted checkpoint. Values keep their source text; only what the conversion changes is written anew. */
#ifndef BL_CONVERT_REWRITE_H
#define BL_CONVERT_REWRITE_H

#include "convert/plan.h"

/* The text of the config of plan's output, malloc'd.
 *
 * Of an earlier generation BL_TO_BF16 keeps every key but quantization_config and
 * expert_dtype.
 *
 * Of V4.1 BL_TO_BF16 flattens: the keys of text_config (they win over equal ones) beside the top-level ones, model_type
 * "deepseek_v41", no quantization_config, and engram_quant = {"dtype", "scale_dtype", "block"}.
 * BL_TO_MERGED keeps the text, byte for byte: packing has recorded there what was left out.
 *
 * BL_TO_RELEASED keeps the source's nesting; quantization_config is there exactly when weights come out quantised, with expert_dtype
 * exactly when some come out in fp4.
 * Dropping the draft layers sets num_nextn_predict_layers 0, removes dspark_* and cuts compress_ratios to the backbone; dropping
 * vision removes vision_config and image_token_id. A selection of layers is recorded as BL_LAYERS_KEY. When nothing changes
 * (nothing flattened, all kept), the text is the source's, byte for byte. path names the source in errors. */
bl_status bl_config_rewrite(const bl_config *c, const char *path, const bl_plan *plan, char **text, size_t *bytes, bl_error *err);

#endif
