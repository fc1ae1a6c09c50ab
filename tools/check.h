/* baleen inspect --check: which weights look wrong. */
#ifndef BL_TOOLS_CHECK_H
#define BL_TOOLS_CHECK_H

#include "formats/checkpoint.h"
#include "tools/cli.h"

/* Help text on it. */
#define CHECK_HELP \
    "--check reads every weight once and names those that look wrong. Wrong: NaN codes and scales, values that are not finite, scales\n" \
    "without exact BF16 values, matrices of zeros. Odd: rows of zeros, constant rows, rows equal to the one before, scale bytes 0 and\n" \
    "254, scales 2^12 above or 2^24 below the median of the some 4096 around them, values 2^20 times the median of their 32 rows, BF16\n" \
    "values that are fp8 codes without their scale, two weights with the same codes. In embeddings and Engram tables rows\n" \
    "count from one in 16 on: some tokens are never met. Status 1: something was found.\n\n"

/* Look at all of c and print what was found. jobs: threads, 0 = chosen. Returns the exit status: 1 when something looks wrong. */
int check_run(const cli_command *cmd, const bl_checkpoint *c, int jobs, bool json);

#endif
