/* What a model takes of the memory of the devices that serve it, under a layout of ranks: the weights of each rank by class, as
 * --to packed deals them (verify/share.h), the cache of its sequences (cache.h) and the scratch of its passes (memory_plan.h).
 * Nothing of any weight is read; of a V4.1 model the config is enough.
 *
 * Ranks of one stage hold equally much, padding included, so that a stage is described once. Engram tables stay in host memory
 * unless asked for on the devices: one copy is mapped on every host that serves the stages of their layers. */
#ifndef BL_RUNTIME_FIT_H
#define BL_RUNTIME_FIT_H

#include "formats/checkpoint.h"
#include "verify/bind.h"
#include "verify/classes.h"

/* One tensor, or one expert's slice, with its scale, and how it is dealt. */
typedef struct bl_fit_item {
    bl_weight w;
    bl_class class;
    int divide; /* earlier generations: what a part is cut over, see fit.c */
} bl_fit_item;

typedef struct bl_fit_model {
    const bl_config *config;
    const char *path;
    bl_slots slots;      /* V4.1 */
    bl_fit_item *items;  /* [count] */
    size_t count;
    size_t assumed;      /* of them without a tensor that fits them here: sized as the config says */
    bool serves;         /* is of the generation that the runtime runs: cache and scratch have known sizes */
} bl_fit_model;

typedef struct bl_fit_options {
    uint64_t memory;   /* bytes of one device */
    uint64_t reserve;  /* of them kept for other things than this model */
    int64_t context;   /* tokens of a sequence */
    int64_t batch;     /* sequences at once */
    bool engram_device; /* Engram rows on the devices, each rank its part */
    unsigned drop;     /* BL_DROP_ bits: left out */
} bl_fit_options;

typedef struct bl_fit_stage {
    int first_layer, layers;
    uint64_t classes[BL_CLASSES]; /* bytes of weights on the device of each of its ranks */
    uint64_t weights;             /* their sum */
    uint64_t cache;               /* bytes of one sequence of context tokens */
    uint64_t scratch;             /* what passes and their recordings take beside it (memory_plan.h); 0 when not known */
    int64_t remains;              /* memory - reserve - weights - scratch - batch * cache */
} bl_fit_stage;

typedef struct bl_fit {
    bl_layout layout;
    bl_fit_stage *stages; /* [layout.pp] */
    int fullest;          /* the stage with the least that remains */
    uint64_t host;        /* Engram tables in host memory */
    int64_t sequences;    /* of context tokens for which every stage has room; 0 too when their cache is not known */
    bool fits;
} bl_fit;

/* Describe c, which was opened with tolerate when shards may be absent. Everything lives in arena and borrows from c. BL_E_INPUT:
 * no config, or an earlier generation without the headers of its shards. */
bl_status bl_fit_open(bl_fit_model *m, const bl_checkpoint *c, bl_arena *arena, bl_error *err);

/* Deal m by a layout: tp, ep, pp, where 0 is 1, and for ep as many of the ranks as the experts allow. Refusals: bl_layout_check. */
bl_status bl_fit_try(const bl_fit_model *m, const bl_fit_options *o, int tp, int ep, int pp, bl_arena *arena, bl_fit *out, bl_error *err);

/* The usual layouts that the shapes allow, up to 64 devices, fewer devices first and then fewer stages. *list has *count entries in
 * arena. */
bl_status bl_fit_search(const bl_fit_model *m, const bl_fit_options *o, bl_arena *arena, bl_fit **list, size_t *count, bl_error *err);

#endif
