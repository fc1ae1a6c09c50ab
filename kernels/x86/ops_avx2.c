#include "kernels/x86/ops_avx2.h"

void bl_op_init_avx2(bl_op_kernels *t)
{
    t->name = "avx2";
    bl_op_rows_init_avx2(t);
    bl_op_round_init_avx2(t);
    bl_op_norm_init_avx2(t);
    bl_op_streams_init_avx2(t);
    bl_op_attention_init_avx2(t);
    bl_op_index_init_avx2(t);
    bl_op_experts_init_avx2(t);
    bl_op_engram_init_avx2(t);
}
