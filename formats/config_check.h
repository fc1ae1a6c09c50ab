/* Checks of a config across its fields; part of bl_config_parse. */
#ifndef BL_FORMATS_CONFIG_CHECK_H
#define BL_FORMATS_CONFIG_CHECK_H

#include "formats/config.h"

/* c has every field, each within its own range; errors name path and the key that does not fit the others. */
bl_status bl_config_check(const bl_config *c, const char *path, bl_error *err);

#endif
