/* Arithmetic ceilings: what the multiply-add units do when nothing else holds them up. */
#include "tools/bench/peak.h"
#include "tools/bench/state.h"

#include "kernels/cpu.h"

typedef struct peak {
    bench *b;
    float (*loop)(int64_t iterations);
    float sink[64];
} peak;

enum { ITERATIONS = 1 << 20 };

float peak_fma_c(int64_t iterations)
{
    float a[12][4], x = 0.999f, y = 1e-3f, sum = 0;
    for (int i = 0; i < 48; i++) a[i / 4][i % 4] = (float)i;
    for (int64_t k = 0; k < iterations; k++)
        for (int i = 0; i < 12; i++)
            for (int j = 0; j < 4; j++) a[i][j] = a[i][j] * x + y;
    for (int i = 0; i < 48; i++) sum += a[i / 4][i % 4];
    return sum;
}

static void run_loop(void *arg, int64_t item, int worker)
{
    peak *p = arg;
    p->sink[item % 64] = p->loop(ITERATIONS);
}

static bl_status run_peak(void *arg, bl_error *err)
{
    peak *p = arg;
    bl_pool_run(p->b->pool, bl_pool_threads(p->b->pool), run_loop, p);
    return BL_OK;
}

static bl_status make_peak(bench *b, bench_subject *s, const char *name, float (*loop)(int64_t), int flops, bl_error *err)
{
    peak *p = bench_record(b, sizeof *p);
    if (!p) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
    *p = (peak){.b = b, .loop = loop};
    double work = 1e-9 * flops * ITERATIONS * bl_pool_threads(b->pool);
    *s = (bench_subject){.name = name, .run = run_peak, .arg = p, .work = work, .unit = "GFLOP"};
    return BL_OK;
}

bl_status bench_fma_ceiling(bench *b, bench_subject *s, bl_error *err)
{
#if defined(__x86_64__)
    if (b->cpu & BL_CPU_AVX512) return make_peak(b, s, "fp32 FMA (avx512)", peak_fma_avx512, PEAK_FMA_AVX512_FLOPS, err);
    if (b->cpu & BL_CPU_AVX2) return make_peak(b, s, "fp32 FMA (avx2)", peak_fma_avx2, PEAK_FMA_AVX2_FLOPS, err);
#endif
    return make_peak(b, s, "fp32 multiply and add", peak_fma_c, PEAK_FMA_C_FLOPS, err);
}

bl_status bench_dot_ceiling(bench *b, bench_subject *s, bl_error *err)
{
#if defined(__x86_64__)
    if (b->cpu & BL_CPU_AVX512BF16)
        return make_peak(b, s, "bf16 dot (avx512bf16)", peak_dot_avx512bf16, PEAK_DOT_AVX512_FLOPS, err);
#endif
    BL_TRY(bench_fma_ceiling(b, s, err));
    s->name = "bf16 dot (as fp32 FMA)";
    return BL_OK;
}
