#include "verify/classes.h"

#include <stdlib.h>
#include <string.h>

const char *bl_class_name(bl_class k)
{
    static const char *const names[BL_CLASSES] = {
        "routed experts", "Engram tables", "Engram projections", "attention", "shared experts", "dense layers", "router", "stream mixing",
        "norms", "embedding and head", "draft layers", "vision", "other"};
    return names[k];
}

bl_class bl_class_of(const bl_config *config, const char *name)
{
    /* By released names; the first match counts. */
    static const struct { const char *part; bool prefix; bl_class is; } rules[] = {
        {"mtp.", true, BL_CLASS_DSPARK},        {"vision.", true, BL_CLASS_VISION},   {"aligner.", true, BL_CLASS_VISION},
        {"image_", true, BL_CLASS_VISION},      {"embed", true, BL_CLASS_EMBEDDING},  {"head.", true, BL_CLASS_EMBEDDING},
        {"lm_head.", true, BL_CLASS_EMBEDDING}, {".engram.embed.", false, BL_CLASS_ENGRAM_TABLES}, {".engram.", false, BL_CLASS_ENGRAM},
        {".shared_experts.", false, BL_CLASS_SHARED}, {".experts.", false, BL_CLASS_EXPERTS}, {".ffn.gate.", false, BL_CLASS_ROUTER},
        {".mlp.gate.", false, BL_CLASS_ROUTER}, {".mlp.", false, BL_CLASS_DENSE},     {".hc_", false, BL_CLASS_MIXING},
        {"hc_head", true, BL_CLASS_MIXING},     {".attn.", false, BL_CLASS_ATTENTION}, {".self_attn.", false, BL_CLASS_ATTENTION},
        {"norm.", false, BL_CLASS_NORMS}};
    if (!strncmp(name, "model.", 6)) {
        name += 6;
    }
    if (config && config->earlier && !strncmp(name, "layers.", 7) && atoi(name + 7) >= config->num_hidden_layers) {
        return BL_CLASS_DSPARK;
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        bool match = rules[i].prefix ? !strncmp(name, rules[i].part, strlen(rules[i].part)) : strstr(name, rules[i].part) != NULL;
        if (match) {
            return rules[i].is;
        }
    }
    return BL_CLASS_OTHER;
}
