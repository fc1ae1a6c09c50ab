/* The shape of a synthetic model: presets, overrides and the config.json they make. Private to convert/. */
#ifndef BL_CONVERT_SYNTH_SHAPE_H
#define BL_CONVERT_SYNTH_SHAPE_H

#include "convert/synth.h"
#include "formats/arena.h"

#define BL_SYNTH_MAX_KEYS 96

typedef struct bl_synth_shape {
    const char *keys[BL_SYNTH_MAX_KEYS], *values[BL_SYNTH_MAX_KEYS]; /* text_config: key and JSON text */
    size_t count;
    const char *original, *factor; /* of rope_scaling */
} bl_synth_shape;

/* The preset with the overrides applied. */
bl_status bl_synth_shape_make(bl_synth_shape *s, const bl_synth_options *o, bl_arena *arena, bl_error *err);
/* Integer value of a key (0 when it is none). */
int64_t bl_synth_shape_int(const bl_synth_shape *s, const char *key);
/* config.json, malloc'd. classes: Engram token classes; noise, image: token ids. */
bl_status bl_synth_config(const bl_synth_shape *s, int classes, int noise, int image, char **text, size_t *n, bl_error *err);

#endif
