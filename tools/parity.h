/* Intermediates of a forward pass to and from files: what `baleen logits --trace` and `--inject` do. */
#ifndef BL_TOOLS_PARITY_H
#define BL_TOOLS_PARITY_H

#include "runtime/forward.h"

typedef struct parity parity;

/* trace: keep everything for parity_write. golden: safetensors file to inject from, NULL = none; its ids must begin with those of the
 * sequence that will be run. One sequence only: rows are told apart by their number. */
bl_status parity_open(parity **out, bool trace, const char *golden, const int32_t *ids, int64_t count, bl_error *err);
void parity_close(parity **p);
/* For bl_forward. Each value is recorded as computed; then layer inputs, sublayer inputs and outputs, mixing coefficients and
 * selections are replaced by the golden ones, so that every operation is seen on its own. */
bl_hooks parity_hooks(parity *p);
/* The first thing that went wrong in a hook: ask after each bl_forward. */
bl_status parity_status(const parity *p, bl_error *err);
/* Write the trace, names, dtypes and shapes as in the golden files. */
bl_status parity_write(const parity *p, const char *path, bl_error *err);

#endif
