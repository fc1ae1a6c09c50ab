/* Values of a request's fields: each kind is read, or refused with the field's key. BL_OK or BL_E_INPUT unless said otherwise. */
#ifndef BL_RUNTIME_API_VALUES_H
#define BL_RUNTIME_API_VALUES_H

#include "runtime/api_impl.h"

/* A field that is being read. */
typedef struct api_reader {
    const bl_server *server;
    api_params *p;
    bl_arena *arena;
    const char *key;
    bl_json v;
    bl_error *err;
} api_reader;

/* BL_E_INPUT, with what is wrong as its message. */
bl_status bl_api_refuse(api_reader *r, const char *what);
/* true or false. */
bl_status bl_api_flag(api_reader *r, bool *out);
/* A whole number from least to most; 3.0 is one. */
bl_status bl_api_int(api_reader *r, int64_t least, int64_t most, int64_t *out);
/* A number from least to most. */
bl_status bl_api_real(api_reader *r, double least, double most, float *out);
/* A copy of v in the arena, or BL_E_NOMEM; NUL inside is refused, since stop strings are C strings. */
bl_status bl_api_string(api_reader *r, bl_json v, const char **out);

#endif
