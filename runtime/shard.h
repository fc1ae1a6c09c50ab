/* The shard descriptor: which part of the model a rank computes. Every operation takes its shapes from here and from the
 * config, so that a rank with fewer heads, experts or vocabulary rows runs the same code. */
#ifndef BL_RUNTIME_SHARD_H
#define BL_RUNTIME_SHARD_H

#include "formats/config.h"

typedef struct bl_range {
    int first, count;
} bl_range;

typedef struct bl_shard {
    int rank, ranks;
    bl_range layers;  /* backbone layers of this stage */
    bl_range heads;   /* query heads */
    bl_range groups;  /* groups of the output projection; they hold exactly these heads */
    bl_range experts; /* routed experts, by global id */
    bl_range vocab;   /* rows of the embedding and of the head */
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
                      .shared = true};
}

#endif
