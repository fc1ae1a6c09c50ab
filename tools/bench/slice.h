/* A few layers of the released widths with made-up weights in memory, one of each role, for benchmarks of the forward pass. */
#ifndef BL_TOOLS_BENCH_SLICE_H
#define BL_TOOLS_BENCH_SLICE_H

#include "runtime/model.h"
#include "tools/bench.h"

typedef struct slice slice;

enum { SLICE_SEQUENCES = 64, SLICE_ROLES = 64 };

/* What a step of some tokens costs: the least that must be read (each weight once, of the experts as many as the tokens choose on
 * average), and multiply-adds of weights (two FLOP each; the head for a token of each sequence). Attention is not counted. */
typedef struct slice_cost {
    double bytes, flop;
} slice_cost;

/* Of every layer with Engram: how large, and where (AUTO: mapped). */
typedef struct slice_table {
    uint64_t bytes;
    bl_engram_place place;
} slice_table;

/* roles: a letter a layer: w window only, e the same with Engram, p source of pairs, q its reader, s source of single tokens and
 * candidates, r its reader, f filtered index source. expert_bytes bounds the memory of routed experts: those of all layers share
 * it, so that an expert's weights still come from memory when it is chosen. vocab: rows of embedding and head. */
bl_status slice_create(slice **out, bench *b, bl_device device, const char *roles, uint64_t expert_bytes, int vocab,
                       const slice_table *table, bl_error *err);
void slice_destroy(slice **s);

/* Start over with sequences (at most SLICE_SEQUENCES) whose caches hold `length` made-up tokens each. */
bl_status slice_start(slice *s, int64_t length, int64_t sequences, bl_error *err);
/* Append n tokens to each (at most BL_PASS_TOKENS_GPU in all); logits of their last ones. */
bl_status slice_run(slice *s, int64_t n, bl_error *err);

slice_cost slice_step_cost(const slice *s, int64_t tokens); /* once started */
/* The same of a layer alone; -1: of what is in none (norm, head). */
slice_cost slice_layer_cost(const slice *s, int layer, int64_t tokens);
int slice_layers(const slice *s);
/* Tokens of cache that so many bytes are room for, with the sources of these layers. */
int64_t slice_tokens_in(const slice *s, uint64_t bytes);
/* bl_model_huge_pages. */
bool slice_huge_pages(const slice *s, uint64_t *bytes);
/* Of the newest step; false where the backend does not count. */
bool slice_launches(const slice *s, bl_launches *out);
/* Sets of expert weights in memory, of the config's number of experts. */
int slice_expert_sets(const slice *s);

#endif
