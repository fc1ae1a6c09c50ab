/* Which scale belongs to which weight, by name, and which blocks a grid of scales stands for. */
#ifndef BL_VERIFY_PAIRS_H
#define BL_VERIFY_PAIRS_H

#include "formats/checkpoint.h"

/* Scales of weight "P.weight": "P.scale" and "P.weight_scale_inv" (by which, whatever it says, one multiplies). Returns the one
 * that c has, NULL for none; *second is the other where c has both, else NULL. */
const bl_tensor *bl_pair_scale(const bl_checkpoint *c, const char *weight, const bl_tensor **second);

/* Is this the name of a scale? Then weight is the name of its weight: "" for a kind of scale that no known generation has
 * ("P.weight_scale", "P.input_scale" ...). */
bool bl_pair_is_scale(const char *name, char *weight, size_t cap);

/* Does a grid of scales [g0, g1] fit a weight [rows, cols] in square blocks of this edge, partial ones at the edges? */
bool bl_grid_fits(const uint64_t grid[2], const uint64_t shape[2], uint64_t block);

/* Edges that square blocks have, the most usual first. */
#define BL_BLOCK_EDGES 5
extern const uint64_t bl_block_edges[BL_BLOCK_EDGES];

/* The edge under which a grid fits a weight: preferred, or else the first of bl_block_edges; 0 when none does. Where several fit,
 * the grid has one row or column in which they mean the same. */
uint64_t bl_grid_edge(const uint64_t grid[2], const uint64_t shape[2], uint64_t preferred);

#endif
