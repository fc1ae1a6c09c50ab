#include "verify/generation.h"

#include <stdio.h>
#include <string.h>

/* Tensors that only some generations have. */
enum { MARK_LATENT, MARK_STREAMS, MARK_COLLAPSE, MARK_HASH, MARK_POSITIONS, MARK_ENGRAM, MARK_INDEXER, MARKS };

static const struct {
    const char *part; /* of the name */
    bl_dtype dtype;   /* NONE: any */
    const char *says;
} marks[MARKS] = {
    {".kv_a_proj_with_mqa.", BL_DT_NONE, "latent attention (kv_a_proj_with_mqa)"},
    {".hc_attn_fn", BL_DT_F32, "residual streams (hc_attn_fn)"},
    {"hc_head_fn", BL_DT_F32, "a learned collapse of the streams (hc_head_fn)"},
    {".tid2eid", BL_DT_NONE, "hash-routed layers (tid2eid)"},
    {".compressor.ape", BL_DT_F32, "position weights in the compressor (ape)"},
    {".engram.embed.", BL_DT_F8_E4M3, "Engram tables"},
    {".indexer.", BL_DT_NONE, "an indexer"},
};

const char *bl_generation_name(bl_generation g)
{
    static const char *const names[] = {"none", "DeepSeek-V3", "DeepSeek-V3.2", "DeepSeek-V4", "DeepSeek-V4.1"};
    return names[g];
}

static bool ends(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n >= m && !strcmp(name + n - m, tail);
}

bl_slot_kind bl_generation_codes(bl_generation g, const char *name)
{
    static const char *const dense[] = {".attn.wq_a.weight",         ".attn.wq_b.weight",
                                        ".attn.wkv.weight",          ".attn.wo_a.weight",
                                        ".attn.wo_b.weight",         ".attn.indexer.wq_b.weight",
                                        ".shared_experts.w1.weight", ".shared_experts.w2.weight",
                                        ".shared_experts.w3.weight", ".e_proj.weight",
                                        ".h_proj.weight"};
    if (g != BL_GEN_V4) {
        return 0;
    }
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        if (ends(name, dense[i])) {
            return BL_SLOT_DENSE;
        }
    }
    bool part = ends(name, ".w1.weight") || ends(name, ".w2.weight") || ends(name, ".w3.weight");
    return part && strstr(name, ".ffn.experts.") ? BL_SLOT_EXPERT : 0;
}

static void list(char *why, size_t cap, const char *item)
{
    size_t n = strlen(why);
    snprintf(why + n, cap - n, "%s%s", n ? ", " : "", item);
}

bl_generation bl_generation_find(const bl_checkpoint *c, int block, char *why, size_t cap)
{
    bool has[MARKS] = {false}, packed = false;
    for (size_t i = 0; i < c->tensor_count; i++) {
        const bl_tensor *t = &c->tensors[i];
        for (int m = 0; m < MARKS; m++) {
            has[m] = has[m] || ((marks[m].dtype == BL_DT_NONE || marks[m].dtype == t->dtype) && strstr(t->name, marks[m].part));
        }
        packed = packed || t->dtype == BL_DT_I8;
    }
    char text[64];
    why[0] = '\0';
    for (int m = 0; m < MARKS; m++) {
        if (has[m]) {
            list(why, cap, marks[m].says);
        }
    }
    if (block) {
        snprintf(text, sizeof text, "fp8 in %dx%d blocks", block, block);
        list(why, cap, text);
    }
    if (packed) {
        list(why, cap, "packed fp4");
    }
    if (!has[MARK_STREAMS]) {
        return !has[MARK_LATENT] ? BL_GEN_NONE : has[MARK_INDEXER] ? BL_GEN_V32 : BL_GEN_V3;
    }
    bool v4 = has[MARK_COLLAPSE] || has[MARK_HASH] || has[MARK_POSITIONS], v41 = has[MARK_ENGRAM];
    if (has[MARK_LATENT] || (v4 && v41)) {
        return BL_GEN_NONE;
    }
    return v4 ? BL_GEN_V4 : BL_GEN_V41;
}
