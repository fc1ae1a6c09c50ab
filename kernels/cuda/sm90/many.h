/* Kernels of Hopper's own instructions for passes of many tokens: same bits as those in the folder above, which do everything that these
 * decline. */
#ifndef BL_KERNELS_CUDA_SM90_MANY_H
#define BL_KERNELS_CUDA_SM90_MANY_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens of a pass from which these are faster. */
enum { BL_CUDA_MANY = 192 };
/* Slots of a unit of experts at most. */
enum { BL_CUDA_MANY_SLOTS = 160 };

/* Attention: of this head dimension, from so many tokens; by pairs of blocks, from so many to as many as there are pairs for. */
enum { BL_CUDA_MANY_HEAD_DIM = 512, BL_CUDA_MANY_ATTEND = 24, BL_CUDA_PAIRS_ATTEND = 5 };

/* Each false, having started nothing, where device, shapes or kinds do not suit. */
bool bl_cuda_multiply_many(bl_cuda_stream s, const bl_cuda_product *p);
bool bl_cuda_multiply_experts_many(bl_cuda_stream s, const bl_cuda_expert_product *p);
bool bl_cuda_attend_pairs(bl_cuda_stream s, const bl_cuda_attention *a);
bool bl_cuda_attend_many(bl_cuda_stream s, const bl_cuda_attention *a);
bool bl_cuda_mix_tiles(bl_cuda_stream s, const bl_cuda_mixing *m);

#ifdef __cplusplus
}
#endif

#endif
