/* What "baleen convert" is asked to do: arguments as they stand on the command line, and what they mean. */
#ifndef BL_TOOLS_CONVERT_OPTIONS_H
#define BL_TOOLS_CONVERT_OPTIONS_H

#include "convert/convert.h"
#include "tools/cli.h"

/* Words of options, ended by NULL. */
extern const char *const convert_targets[]; /* at a bl_target, less 1 */
extern const char *const convert_classes[]; /* bits of BL_DROP_ */
extern const char *const convert_splits[];  /* at a bl_split, less 1 */
extern const char *const convert_engrams[], *const convert_experts[], *const convert_blocks[], *const convert_ties[];
extern const char *const convert_devices[];

/* Words and numbers that were not given are -1 and 0. */
typedef struct convert_arguments {
    const char *layers, *stages;
    unsigned keep, drop;
    int to, ties, experts, block, engram, split, device;
    int64_t tp, ep, pp, pad_vocab, jobs;
} convert_arguments;
#define CONVERT_ARGUMENTS {.to = -1, .ties = -1, .experts = -1, .block = -1, .engram = -1, .split = -1, .device = -1}

/* Set what the arguments say in o, which holds the defaults (shard_size: CLI_UNSET_SIZE) and what the parser set in it directly. -1, or
 * the exit status of a wrong one, which has been reported. Either way followed by convert_options_free. */
int convert_options_read(const cli_command *c, const convert_arguments *a, bl_convert_options *o);
/* Open what --device names; -1, or the exit status where that cannot be had, which has been reported. Ended by convert_options_free. */
int convert_device_open(const cli_command *c, const convert_arguments *a, bl_convert_options *o);
void convert_options_free(bl_convert_options *o);

const char *convert_target_name(bl_target t);

#endif
