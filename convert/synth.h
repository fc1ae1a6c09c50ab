/* Random checkpoints in the released layout, of any shape: every code path of the real model at a size a test can run, and
 * real widths at a size a disk can hold. */
#ifndef BL_CONVERT_SYNTH_H
#define BL_CONVERT_SYNTH_H

#include "formats/status.h"

#include <stdbool.h>

/* Number of Engram token classes of a tokenizer.json text (runtime/engram.h). */
typedef bl_status (*bl_token_classes_fn)(const char *tokenizer, size_t n, int *classes, bl_error *err);

typedef struct bl_synth_options {
    const char *preset;           /* see bl_synth_presets */
    const char *const *overrides; /* [override_count] "key=JSON value" of text_config, or original=, factor= of rope_scaling */
    size_t override_count;
    uint64_t seed;
    int shards; /* tensors are dealt round robin, so that a weight and its scale often sit in different files */
    int jobs;   /* <= 0 = chosen */
    bool headers; /* write the headers alone: shards of their full sizes with holes for the weights */
    bl_token_classes_fn token_classes;
    bool (*cancelled)(void);                                  /* may be NULL */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *progress_arg;
} bl_synth_options;

typedef struct bl_synth_report {
    size_t tensors;
    uint64_t tensor_bytes, file_bytes;
} bl_synth_report;

/* One line per preset, for help texts. */
const char *bl_synth_presets(void);

/* Write a checkpoint into dst, which must not exist or be empty; complete or not at all. The same options and seed give the same
 * bytes on every machine. When num_hidden_layers is overridden and the lists of layers are not, they are chosen to fit.
 * Unknown keys and shapes that make no model are BL_E_USAGE. */
bl_status bl_synth(const char *dst, const bl_synth_options *o, bl_synth_report *report, bl_error *err);

#endif
