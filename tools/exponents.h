/* baleen inspect --scales, and the scales of --tensor: histograms of exponents. */
#ifndef BL_TOOLS_EXPONENTS_H
#define BL_TOOLS_EXPONENTS_H

#include "tools/cli.h"
#include "tools/receipt.h"
#include "verify/exponents.h"

/* Help text on it. */
#define SCALES_HELP \
    "--scales reads the scales alone and prints for each form of weights a histogram: how many scales are 2^e to below 2^(e+1). For\n" \
    "float32 scales it tells whether all are powers of two. --tensor prints that of one tensor.\n\n"

/* Lines of bars, indented. */
void exponents_print(const bl_exponents *e, bool f32);
/* {"-13": count, ...}; "nan" for what is not finite, "zero" for float32 zeros. */
json_t *exponents_json(const bl_exponents *e, bool f32);

/* Read the scales of c and print them. Returns the exit status. */
int scales_run(const cli_command *cmd, const bl_checkpoint *c, int jobs, bool json);

#endif
