#include "kernels/ops_variants.h"

#include "kernels/cpu.h"

void bl_op_init(bl_op_kernels *t, unsigned cpu)
{
    *t = (bl_op_kernels){
        .name = "c",
        .round_fp8 = bl_round_fp8_c,
        .pack_window = bl_pack_window_c,
        .pack_latent = bl_pack_latent_c,
        .pack_index = bl_pack_index_c,
        .unpack_window = bl_unpack_window_c,
        .unpack_latent = bl_unpack_latent_c,
        .unpack_index = bl_unpack_index_c,
        .to_bf16 = bl_to_bf16_c,
        .rmsnorm = bl_rmsnorm_c,
        .rope = bl_rope_c,
        .mix = bl_mix_c,
        .sum_squares = bl_sum_squares_c,
        .collapse = bl_collapse_c,
        .expand = bl_expand_c,
        .attention = bl_attention_c,
        .attention_scratch = bl_attention_scratch_c,
        .pool_pair = bl_pool_pair_c,
        .index_scores = bl_index_scores_c,
        .route = bl_route_c,
        .swiglu = bl_swiglu_c,
        .accumulate = bl_accumulate_c,
        .engram_gate = bl_engram_gate_c,
        .engram_gather = bl_engram_gather_c,
    };
#if defined(__x86_64__)
    if (cpu & BL_CPU_AVX2) bl_op_init_avx2(t);
    if (cpu & BL_CPU_AVX512) bl_op_init_avx512(t);
#else
    (void)cpu;
#endif
}
