/* baleen inspect --fit: what would fit where. */
#ifndef BL_TOOLS_FIT_H
#define BL_TOOLS_FIT_H

#include "runtime/fit.h"
#include "tools/cli.h"

/* Help text on the argument of --fit. */
extern const char fit_help[];

/* Answer for path, printing it; text is the argument of --fit. Returns the exit status: 1 when it does not fit. */
int fit_run(const cli_command *cmd, const char *path, const char *text, bool json);

#endif
