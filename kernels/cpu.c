#include "kernels/cpu.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bit, mask; /* mask: the level and everything it stands on */
} levels[] = {
    /* highest first, so that the first match names a mask */
    {"avx512bf16", BL_CPU_AVX512BF16, BL_CPU_AVX2 | BL_CPU_AVX512 | BL_CPU_AVX512BF16},
    {"avx512", BL_CPU_AVX512, BL_CPU_AVX2 | BL_CPU_AVX512},
    {"avx2", BL_CPU_AVX2, BL_CPU_AVX2},
    {"neon", BL_CPU_NEON, BL_CPU_NEON},
    {"c", 0, 0},
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

#if defined(__x86_64__)
#include <cpuid.h>

enum { XCR0_AVX = 0x06, XCR0_AVX512 = 0xe6 }; /* xmm and ymm; on top of them opmask and both zmm states */

/* The register state that the operating system saves: an instruction set without it must not be used. */
static unsigned enabled_state(void)
{
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

static int has(unsigned reg, unsigned bits)
{
    return (reg & bits) == bits;
}

unsigned bl_cpu_detect(void)
{
    unsigned a, b, c, d, a7, b7, c7, d7, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE)) return 0;
    unsigned state = enabled_state();
    if (!has(state, XCR0_AVX) || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return 0;
    if (!has(c, bit_AVX | bit_FMA | bit_F16C) || !has(b7, bit_AVX2 | bit_BMI2)) return 0;
    found |= BL_CPU_AVX2;
    if (!has(state, XCR0_AVX512) || !has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL)) return found;
    found |= BL_CPU_AVX512;
    if (a7 >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, bit_AVX512BF16)) found |= BL_CPU_AVX512BF16;
    return found;
}

int bl_cpu_fast_dot(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
}

#elif defined(__aarch64__)

unsigned bl_cpu_detect(void)
{
    return BL_CPU_NEON; /* part of every aarch64 application profile */
}

int bl_cpu_fast_dot(void)
{
    return 0;
}

#else

unsigned bl_cpu_detect(void)
{
    return 0;
}

int bl_cpu_fast_dot(void)
{
    return 0;
}

#endif

int bl_cpu_parse(const char *name, unsigned *mask)
{
    if (!strcmp(name, "native")) {
        *mask = ~0u;
        return 0;
    }
    for (int i = 0; i < LEVELS; i++)
        if (!strcmp(name, levels[i].name)) {
            *mask = levels[i].mask;
            return 0;
        }
    return -1;
}

const char *bl_cpu_name(unsigned mask)
{
    for (int i = 0; i < LEVELS - 1; i++)
        if (mask & levels[i].bit) return levels[i].name;
    return "c";
}
