/* The parts of the operations' check: check_ops.c runs them all. */
#ifndef BL_TESTS_CHECK_OPS_H
#define BL_TESTS_CHECK_OPS_H

#include "kernels/ops.h"
#include "tests/check/check.h"

/* NORMAL: about N(0, 2). SPREAD: 2^-27 to 2^22. ANY: any finite bits. WILD: near one, some infinite or NaN. */
typedef enum ops_values { OPS_NORMAL, OPS_SPREAD, OPS_ANY, OPS_WILD, OPS_VALUES } ops_values;

/* Buffers of the current case. */
uint16_t *ops_bf16(check *c, int64_t n, ops_values kind);
float *ops_f32(check *c, int64_t n, float scale);

void check_attention(check *c, const bl_op_kernels *t, const bl_op_kernels *r);
void check_index(check *c, const bl_op_kernels *t, const bl_op_kernels *r);
/* The one version of the selections against a sort. */
void check_select(check *c);

#endif
