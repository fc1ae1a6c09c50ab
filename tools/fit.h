/* baleen inspect --fit: what would fit where. */
#ifndef BL_TOOLS_FIT_H
#define BL_TOOLS_FIT_H

#include "runtime/fit.h"
#include "tools/cli.h"

/* Help text on it. */
#define FIT_HELP \
    "--fit tells what would fit where, from the config, the index and the shards' headers; of a V4.1 model config.json is enough, so\n" \
    "that it can be asked before anything is downloaded. Its argument is a list such as tp=8,hbm=141G:\n" \
    "  hbm=SIZE      memory of one device; needed. 141G and 141GB are 141 * 10^9 bytes, 131GiB is 131 * 2^30\n" \
    "  tp=N,ep=N,pp=N  the layout, as convert --to packed has it without --split (ep: as many as tp where the experts allow; pp: 1).\n" \
    "                Without any of them the usual layouts of up to 64 devices are tried, and those that fit are listed\n" \
    "  context=N     tokens of a sequence (default: the model's max_position_embeddings)\n" \
    "  batch=N       sequences at once (default 1)\n" \
    "  reserve=SIZE  of hbm, for other things (default 0; 2G for generations before V4.1, whose scratch is not known)\n" \
    "  engram=host|device  Engram tables mapped in host memory (default), or rows of them on every device\n" \
    "  drop=dspark|vision|dspark+vision  leave these out\n" \
    "Cache and scratch are those of baleend on a GPU, which runs one rank so far (baleend --plan has them in detail).\n" \
    "Other generations: an estimate of weights alone, from the headers, cut as servers usually do. Status 1: it does not fit.\n"

/* Answer for path, printing it; text is the argument of --fit. Returns the exit status: 1 when it does not fit. */
int fit_run(const cli_command *cmd, const char *path, const char *text, bool json);

#endif
