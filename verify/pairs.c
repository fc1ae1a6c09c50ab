#include "verify/pairs.h"

#include "formats/names.h"

#include <stdio.h>
#include <string.h>

static const char *const suffixes[] = {".scale", ".weight_scale_inv"};
/* Last parts of names that mean scales elsewhere. */
static const char *const foreign[] = {"weight_scale", "weight_scale_2", "scale_inv",   "scale_weight", "input_scale",
                                      "scale_input",  "act_scale",      "weight_scales", "scales",     "weight_zero_point"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

const bl_tensor *bl_pair_scale(const bl_checkpoint *c, const char *weight, const bl_tensor **second)
{
    const bl_tensor *found[2] = {NULL, NULL};
    char name[BL_MAX_NAME + 32];
    int stem = (int)bl_stem(weight, ".weight"), n = 0;
    *second = NULL;
    for (size_t i = 0; stem && i < COUNT(suffixes); i++) {
        snprintf(name, sizeof name, "%.*s%s", stem, weight, suffixes[i]);
        const bl_tensor *t = bl_checkpoint_find(c, name);
        if (t) {
            found[n++] = t;
        }
    }
    *second = found[1];
    return found[0];
}

bool bl_pair_is_scale(const char *name, char *weight, size_t cap)
{
    for (size_t i = 0; i < COUNT(suffixes); i++) {
        int stem = (int)bl_stem(name, suffixes[i]);
        if (stem) {
            snprintf(weight, cap, "%.*s.weight", stem, name);
            return true;
        }
    }
    const char *last = strrchr(name, '.');
    weight[0] = '\0';
    for (size_t i = 0; last && i < COUNT(foreign); i++) {
        if (!strcmp(last + 1, foreign[i])) {
            return true;
        }
    }
    return false;
}

bool bl_grid_fits(const uint64_t grid[2], const uint64_t shape[2], uint64_t block)
{
    for (int i = 0; i < 2; i++) {
        if (grid[i] != bl_pieces(shape[i], block)) {
            return false;
        }
    }
    return true;
}

const uint64_t bl_block_edges[BL_BLOCK_EDGES] = {128, 32, 64, 256, 512};

uint64_t bl_grid_edge(const uint64_t grid[2], const uint64_t shape[2], uint64_t preferred)
{
    uint64_t edge = preferred && bl_grid_fits(grid, shape, preferred) ? preferred : 0;
    for (size_t i = 0; i < BL_BLOCK_EDGES && !edge; i++) {
        edge = bl_grid_fits(grid, shape, bl_block_edges[i]) ? bl_block_edges[i] : 0;
    }
    return edge;
}
