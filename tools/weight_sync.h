/* baleen inspect of what weight sync makes: buckets, and deltas of them. */
#ifndef BL_TOOLS_WEIGHT_SYNC_H
#define BL_TOOLS_WEIGHT_SYNC_H

#include "formats/place.h"
#include "tools/cli.h"

/* Is it one of these? */
bool weight_sync_is(const bl_place *p);
/* Print what is in it, by its description alone. Returns the exit status: 1 when the tensors are not those of the model. */
int weight_sync_inspect(const cli_command *cmd, const bl_place *p, bool json);

#endif
