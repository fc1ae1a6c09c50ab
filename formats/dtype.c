#include "formats/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} types[BL_DT_COUNT] = {
    [BL_DT_NONE] = {"?", 0},
    [BL_DT_BOOL] = {"BOOL", 8},
    [BL_DT_F4] = {"F4", 4},
    [BL_DT_F6_E2M3] = {"F6_E2M3", 6},
    [BL_DT_F6_E3M2] = {"F6_E3M2", 6},
    [BL_DT_U8] = {"U8", 8},
    [BL_DT_I8] = {"I8", 8},
    [BL_DT_F8_E5M2] = {"F8_E5M2", 8},
    [BL_DT_F8_E4M3] = {"F8_E4M3", 8},
    [BL_DT_F8_E8M0] = {"F8_E8M0", 8},
    [BL_DT_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [BL_DT_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [BL_DT_I16] = {"I16", 16},
    [BL_DT_U16] = {"U16", 16},
    [BL_DT_F16] = {"F16", 16},
    [BL_DT_BF16] = {"BF16", 16},
    [BL_DT_I32] = {"I32", 32},
    [BL_DT_U32] = {"U32", 32},
    [BL_DT_F32] = {"F32", 32},
    [BL_DT_C64] = {"C64", 64},
    [BL_DT_F64] = {"F64", 64},
    [BL_DT_I64] = {"I64", 64},
    [BL_DT_U64] = {"U64", 64},
};

const char *bl_dtype_name(bl_dtype t)
{
    return types[(unsigned)t < BL_DT_COUNT ? t : BL_DT_NONE].name;
}

bl_dtype bl_dtype_parse(const char *s, size_t n)
{
    for (int i = BL_DT_NONE + 1; i < BL_DT_COUNT; i++) {
        if (strlen(types[i].name) == n && memcmp(types[i].name, s, n) == 0) {
            return (bl_dtype)i;
        }
    }
    return BL_DT_NONE;
}

unsigned bl_dtype_bits(bl_dtype t)
{
    return types[(unsigned)t < BL_DT_COUNT ? t : BL_DT_NONE].bits;
}
