/* The shard descriptor: which part of the model a rank computes. Every operation takes its shapes from here and from the
 * config, so that a rank with fewer heads, experts or vocabulary rows runs the same code. */
#ifndef BL_RUNTIME_SHARD_H
#define BL_RUNTIME_SHARD_H

#include "formats/config.h"

typedef struct bl_range {
    int first, count;
} bl_range;

/* Of an Engram table, which has more of them than an int counts. */
typedef struct bl_rows {
    int64_t first, count;
} bl_rows;

typedef struct bl_shard {
    int rank, ranks;
    bl_range layers;  /* backbone layers of this stage */
    bl_range heads;   /* query heads */
    bl_range groups;  /* groups of the output projection; they hold exactly these heads */
    bl_range experts; /* routed experts, by global id */
    bl_range vocab;   /* rows of the embedding and of the head */
    int engram_part, engram_parts; /* rows of every Engram table: which of so many equal parts */
    bool shared;      /* adds the shared expert to its partial sum (one rank of those that exchange it) */
} bl_shard;

/* The whole model on one rank. */
static inline bl_shard bl_shard_single(const bl_config *c)
{
    return (bl_shard){.ranks = 1,
                      .layers = {0, c->num_hidden_layers},
                      .heads = {0, c->num_attention_heads},
                      .groups = {0, c->o_groups},
                      .experts = {0, c->n_routed_experts},
                      .vocab = {0, c->vocab_size},
                      .engram_parts = 1,
                      .shared = true};
}

/* The rows of a table that the rank has: ceil(rows / parts), the last ranks fewer or none (verify/share.h). */
static inline bl_rows bl_shard_engram_rows(const bl_shard *s, int64_t rows)
{
    const int64_t each = (rows + s->engram_parts - 1) / s->engram_parts, first = each * s->engram_part;
    if (first >= rows) return (bl_rows){rows, 0};
    return (bl_rows){first, rows - first < each ? rows - first : each};
}

#endif
