/* Engram addressing: which table rows an n-gram of compressed token ids hits. */
#ifndef BL_RUNTIME_ENGRAM_H
#define BL_RUNTIME_ENGRAM_H

#include "formats/config.h"
#include "runtime/tokenizer.h"

/* Token id -> class id (arch.md appendix B): map has bl_tokenizer_size entries, malloc'd. *classes = number of classes. */
bl_status bl_engram_token_map(const bl_tokenizer *t, int32_t **map, int *classes, bl_error *err);

/* The number of classes alone, of a tokenizer.json text of n bytes. */
bl_status bl_engram_token_classes(const char *text, size_t n, int *classes, bl_error *err);

/* n odd multipliers of a layer: numpy's default_rng(10007 * layer).integers(0, bound, n) * 2 + 1 with
 * bound = max(1, (2^63 - 1) / classes / 2); PCG64 seeded through SeedSequence, Lemire's bounded rejection. 1 <= classes <= 2^29, 0 <= layer <
 * 2^18. Exact. */
void bl_engram_multipliers(int64_t *out, int n, int layer, int classes);

#define BL_ENGRAM_DEAD (-1) /* history entry that blocks (image span); also "before the start" */

/* The hash of every Engram layer of a model. */
typedef struct bl_engram {
    int layers, order, heads; /* order = engram_max_ngram_size */
    int columns;              /* (order - 1) * heads rows per token and layer */
    int32_t pad;              /* class of the pad token */
    int32_t *map;             /* [map_size] token id -> class */
    int map_size, classes;
    int64_t *multipliers; /* [layers][order] */
    int64_t *primes;      /* [layers][order - 1][heads] */
    int64_t *offsets;     /* [layers][columns] first row of each column's range */
    int64_t *table_rows;  /* [layers] sum of primes: must equal engram_num_embeddings */
} bl_engram;

/* Build and check against the config (class count, table rows). */
bl_status bl_engram_create(bl_engram **out, const bl_config *c, const bl_tokenizer *t, bl_error *err);
void bl_engram_destroy(bl_engram **e);
/* Rows [columns] for one position: history[0] is this token's class, history[1] the one before, ... history[order - 1];
 * BL_ENGRAM_DEAD blocks itself and everything older (pad is used instead). */
void bl_engram_rows(const bl_engram *e, int layer_index, const int32_t *history, int64_t *rows);

#endif
