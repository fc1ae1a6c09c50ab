/* The released form of a config: nested again, with what the checkpoint lacks taken note of. */
#ifndef BL_CONVERT_RESTORE_H
#define BL_CONVERT_RESTORE_H

#include "formats/checkpoint.h"

typedef struct bl_restored {
    bl_config config; /* nested; its text is what bl_config_rewrite starts from */
    const char *path; /* where that came from */
    unsigned absent;  /* BL_DROP_ bits: what it has and the checkpoint's own config says is not there */
} bl_restored;

/* The config that c had before it was flattened: its own when that is nested, else the config.source.json beside it, else its own
 * with the keys of the model put under text_config. Configs of earlier generations are not nested: the config.source.json, else its
 * own. Everything lives in arena.
 *
 * A config.source.json must agree with config.json: a key that both have, those aside that flattening or leaving tensors out
 * changes, with different values is BL_E_INPUT, naming it. Numbers are compared by value. */
bl_status bl_config_restore(const bl_checkpoint *c, bl_arena *arena, bl_restored *out, bl_error *err);

#endif
