/* Element types as safetensors names them. */
#ifndef BL_FORMATS_DTYPE_H
#define BL_FORMATS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* F4, F6_* are sub-byte: their shapes count elements. The DeepSeek release stores packed fp4 as I8 with half the last
 * dimension: that is a byte type, and only the model layer knows that each byte holds two elements. */
typedef enum bl_dtype {
    BL_DT_NONE = 0,
    BL_DT_BOOL,
    BL_DT_F4,
    BL_DT_F6_E2M3,
    BL_DT_F6_E3M2,
    BL_DT_U8,
    BL_DT_I8,
    BL_DT_F8_E5M2,
    BL_DT_F8_E4M3, /* E4M3FN */
    BL_DT_F8_E8M0,
    BL_DT_F8_E4M3FNUZ,
    BL_DT_F8_E5M2FNUZ,
    BL_DT_I16,
    BL_DT_U16,
    BL_DT_F16,
    BL_DT_BF16,
    BL_DT_I32,
    BL_DT_U32,
    BL_DT_F32,
    BL_DT_C64,
    BL_DT_F64,
    BL_DT_I64,
    BL_DT_U64,
    BL_DT_COUNT
} bl_dtype;

/* "BF16" ...; "?" for values outside the enum. */
const char *bl_dtype_name(bl_dtype t);
/* BL_DT_NONE when the n bytes at s name no known type. */
bl_dtype bl_dtype_parse(const char *s, size_t n);
/* Bits of one element; 0 for BL_DT_NONE. */
unsigned bl_dtype_bits(bl_dtype t);

#endif
