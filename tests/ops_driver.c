/* Gives python tests the table of operations: built as a shared library, whose functions they call through ctypes. */
#include "kernels/cpu.h"
#include "kernels/fmath.h"
#include "kernels/ops.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT const bl_op_kernels *ops_table(unsigned cpu);
EXPORT unsigned ops_cpu(void);
EXPORT int64_t ops_select_top(int32_t *index, const float *scores, int64_t n, int64_t k, float *scratch);
EXPORT void ops_select_candidates(uint8_t *keep, const float *scores, int64_t n, int64_t visible, int64_t blocks, int64_t size,
                                  float *scratch);
EXPORT void ops_math(float *exp, float *sigmoid, float *score, const float *x, int64_t n);

const bl_op_kernels *ops_table(unsigned cpu)
{
    static bl_op_kernels t;
    bl_op_init(&t, cpu);
    return &t;
}

unsigned ops_cpu(void)
{
    return bl_cpu_detect();
}

int64_t ops_select_top(int32_t *index, const float *scores, int64_t n, int64_t k, float *scratch)
{
    return bl_select_top(index, scores, n, k, scratch);
}

void ops_select_candidates(uint8_t *keep, const float *scores, int64_t n, int64_t visible, int64_t blocks, int64_t size,
                           float *scratch)
{
    bl_select_candidates(keep, scores, n, visible, blocks, size, scratch);
}

void ops_math(float *exp, float *sigmoid, float *score, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        exp[i] = bl_exp(x[i]);
        sigmoid[i] = bl_sigmoid(x[i]);
        score[i] = bl_sqrt_softplus(x[i]);
    }
}
