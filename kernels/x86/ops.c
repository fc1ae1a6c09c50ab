/* The table of a level. */
#include "kernels/x86/ops_x86.h"

static void to_bf16(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vf out[VECS];
        for (int v = 0; v < VECS; v++) out[v] = vf_loadu(x + i + LANES * v);
        vf_narrow(y + i, out);
    }
    bl_to_bf16_c(y + i, x + i, n - i);
}

void BL_LEVEL(bl_op_init)(bl_op_kernels *t)
{
    t->name = BL_LEVEL_NAME;
    t->to_bf16 = to_bf16;
#if !defined(__AVX512F__)
    bl_op_round_init_avx2(t);
#endif
    BL_LEVEL(bl_op_rows_init)(t);
    BL_LEVEL(bl_op_norm_init)(t);
    BL_LEVEL(bl_op_streams_init)(t);
    BL_LEVEL(bl_op_attention_init)(t);
    BL_LEVEL(bl_op_index_init)(t);
    BL_LEVEL(bl_op_experts_init)(t);
    BL_LEVEL(bl_op_engram_init)(t);
}
