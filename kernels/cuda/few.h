/* Kernels for passes of few tokens: same bits as those of linear.cu, which do everything that these decline. */
#ifndef BL_KERNELS_CUDA_FEW_H
#define BL_KERNELS_CUDA_FEW_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each false, having started nothing, where shapes or kinds do not suit. */
bool bl_cuda_multiply_few(bl_cuda_stream s, const bl_cuda_product *p);
bool bl_cuda_multiply_experts_few(bl_cuda_stream s, const bl_cuda_expert_product *p);

#ifdef __cplusplus
}
#endif

#endif
