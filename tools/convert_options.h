/* What "baleen convert" is asked to do: arguments as they stand on the command line, and what they mean. */
#ifndef BL_TOOLS_CONVERT_OPTIONS_H
#define BL_TOOLS_CONVERT_OPTIONS_H

#include "convert/convert.h"
#include "tools/cli.h"

/* Zero is "not given". */
typedef struct convert_arguments {
    const char *to, *keep, *drop, *layers, *cpu, *ties, *experts, *block, *stages, *engram, *split;
    int64_t tp, ep, pp, pad_vocab, jobs;
} convert_arguments;

/* Set what the arguments say in o, which holds the defaults and what the parser set in it directly. -1, or the exit status of a wrong
 * one, which has been reported. Either way followed by convert_options_free. */
int convert_options_read(const cli_command *c, const convert_arguments *a, bl_convert_options *o);
void convert_options_free(bl_convert_options *o);

const char *convert_target_name(bl_target t);

#endif
