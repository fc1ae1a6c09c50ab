/* quantization_config against what the weights are. */
#include "verify/bind.h"

#include <stdio.h>

bl_status bl_bind_forms(const bl_checkpoint *c, const bl_binding *b, bl_problem_fn on_problem, void *arg, bl_error *err)
{
    static const char key[] = "quantization_config", expert_key[] = "quantization_config.expert_dtype",
                      block_key[] = "quantization_config.weight_block_size";
    bool quantised = c->config.quantized, packed = c->config.experts_fp4;
    char path[4096], text[160];
    snprintf(path, sizeof path, "%s/config.json", c->path);
    if (!quantised && b->fp8 + b->fp4 > 0) {
        snprintf(text, sizeof text, "is absent, but %zu weight%s quantised", b->fp8 + b->fp4,
                 b->fp8 + b->fp4 == 1 ? " is" : "s are");
        BL_TRY(bl_problem(on_problem, arg, err, path, key, "%s", text));
    }
    if (quantised && !packed && b->fp4 > 0) {
        snprintf(text, sizeof text, "is not fp4, but %zu expert%s packed fp4", b->fp4, b->fp4 == 1 ? " is" : "s are");
        BL_TRY(bl_problem(on_problem, arg, err, path, expert_key, "%s", text));
    }
    int declared_rows = c->config.block[0], declared_cols = c->config.block[1];
    if (declared_rows && b->fp8 && (declared_rows != b->block || declared_cols != b->block)) {
        snprintf(text, sizeof text, "is [%d, %d], but the scale grids are those of %dx%d blocks", declared_rows, declared_cols, b->block,
                 b->block);
        BL_TRY(bl_problem(on_problem, arg, err, path, block_key, "%s", text));
    }
    if (b->missing || c->unread_count || c->unread_unknown || (c->manifest && c->only_rank >= 0)) {
        return BL_OK; /* the others may be among the missing, or on other ranks */
    }
    if (quantised && b->fp8 + b->fp4 == 0) {
        BL_TRY(bl_problem(on_problem, arg, err, path, key, "is present, but no weight is quantised"));
    } else if (quantised && packed && b->fp4 == 0) {
        BL_TRY(bl_problem(on_problem, arg, err, path, expert_key, "is fp4, but no expert is packed fp4"));
    }
    return BL_OK;
}
