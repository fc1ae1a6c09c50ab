/* Logits of every position of some sequences into a file, with the parity hooks. */
#ifndef BL_TOOLS_LOGITS_H
#define BL_TOOLS_LOGITS_H

#include "runtime/forward.h"

typedef struct logits_sequence {
    int32_t *ids;
    int64_t count;
} logits_sequence;

typedef struct logits_job {
    const char *model, *out;
    const char *trace, *inject; /* files, NULL = none; one sequence only */
    const logits_sequence *sequences;
    int64_t sequence_count;
    int64_t chunk; /* tokens of each sequence in a call; <= 0: 512, with trace or inject all */
    bl_model_options options;
    bool (*cancelled)(void); /* asked between calls; may be NULL */
} logits_job;

/* Runs all sequences in one batch. The file holds F32 tensors [tokens, vocab]: "logits", or "logits.0" ... for several. *nans (may be
 * NULL): how many of the logits are no numbers; they are written like the others. */
bl_status logits_run(const logits_job *j, int64_t *nans, bl_error *err);

#endif
