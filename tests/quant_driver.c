/* Gives python tests the table of encoders: built as a shared library, whose functions they call through ctypes. */
#include "kernels/cpu.h"
#include "kernels/quant.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT unsigned quant_cpu(void);
EXPORT void quant_fp8(uint8_t *codes, uint8_t *scale, const uint16_t *x, int64_t rows, int64_t cols, unsigned cpu);
EXPORT void quant_fp4(uint8_t *packed, uint8_t *scale, const uint16_t *x, int64_t rows, int64_t cols, int ties, unsigned cpu);

unsigned quant_cpu(void)
{
    return bl_cpu_detect();
}

/* A stripe of 32x32 blocks: at most 32 rows of at most 8192 columns. */
void quant_fp8(uint8_t *codes, uint8_t *scale, const uint16_t *x, int64_t rows, int64_t cols, unsigned cpu)
{
    uint16_t amax[256];
    bl_quant_kernels k;
    bl_quant_init(&k, cpu);
    k.amax_rows(amax, x, rows, cols);
    bl_fp8_scales(scale, amax, (cols + 31) / 32);
    for (int64_t r = 0; r < rows; r++) k.fp8_row(codes + r * cols, x + r * cols, scale, cols);
}

/* Rows of 1x32 blocks, of at most 8192 columns. */
void quant_fp4(uint8_t *packed, uint8_t *scale, const uint16_t *x, int64_t rows, int64_t cols, int ties, unsigned cpu)
{
    uint16_t amax[256];
    bl_quant_kernels k;
    bl_quant_init(&k, cpu);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *s = scale + r * (cols / 32);
        k.amax_rows(amax, x + r * cols, 1, cols);
        bl_fp4_scales(s, amax, cols / 32);
        k.fp4_row(packed + r * cols / 2, x + r * cols, s, cols, (bl_fp4_ties)ties);
    }
}
