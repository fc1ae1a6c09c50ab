/* CPU capabilities that kernels are chosen by, and the mask that tests and --cpu lower them with. */
#ifndef BL_KERNELS_CPU_H
#define BL_KERNELS_CPU_H

/* Each level includes what its variants use; a table is filled with C first, then overlaid by rising level. */
enum {
    BL_CPU_AVX2 = 1 << 0,       /* AVX2, FMA, F16C, BMI2 */
    BL_CPU_AVX512 = 1 << 1,     /* AVX-512 F, BW, DQ, VL (and AVX2) */
    BL_CPU_AVX512BF16 = 1 << 2, /* vdpbf16ps on top */
    BL_CPU_NEON = 1 << 8        /* aarch64 Advanced SIMD */
};

/* What this CPU and operating system support. Pure; no environment. */
unsigned bl_cpu_detect(void);

/* Whether vdpbf16ps, where there is one, does more multiply-adds a second than vfmadd: measured, a third more on AMD's Zen 5, half
 * as many on an Intel Xeon with 2 MiB of L2 a core. True for AMD. Pure. */
int bl_cpu_fast_dot(void);

/* "c", "avx2", "avx512", "avx512bf16", "neon", "native" -> mask of that level and below, 0 for "c";
 * returns 0 on success, -1 for an unknown name. The result may exceed what the CPU has: and it with bl_cpu_detect(). */
int bl_cpu_parse(const char *name, unsigned *mask);
/* Name of the highest level in mask, "c" for 0. */
const char *bl_cpu_name(unsigned mask);

#endif
