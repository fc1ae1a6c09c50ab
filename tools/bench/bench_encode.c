/* The way back from bf16 to codes: scales chosen, values encoded, and what a conversion also does with them: decoded again and
 * compared. Memory to memory, beside the copy of as many bytes. */
#include "tools/bench/bench_encode.h"

#include "kernels/cast.h"
#include "kernels/quant.h"
#include "kernels/sampling_math.h"

#include <stdalign.h>
#include <string.h>

enum { STRIPE = 32, COLS = 5120, BLOCKS = COLS / 32 };

typedef struct encode_run {
    bench *b;
    bl_cast_kernels cast;
    bl_quant_kernels quant;
    bool fp4, compare;
    const uint16_t *x; /* [rows, COLS] */
    uint8_t *codes;    /* [rows, COLS] */
    int64_t rows;
} encode_run;

/* Values as weights have them: sums of four uniform bytes. */
static void fill(uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t state = bl_splitmix64(i);
        int sum = (int)(state >> 56) + (int)(state >> 48 & 255) + (int)(state >> 40 & 255) + (int)(state >> 32 & 255);
        x[i] = bl_f32_to_bf16((float)(sum - 510) * 0x1p-13f);
    }
}

static void compare(const encode_run *r, bl_quant_sums *sums, const uint16_t *x, const uint8_t *codes, const uint8_t *scale)
{
    alignas(64) uint16_t back[COLS];
    uint8_t differs[BLOCKS];
    memset(differs, 0, sizeof differs);
    (r->fp4 ? r->cast.fp4_row : r->cast.fp8_row)(back, codes, scale, COLS);
    r->quant.compare_row(sums, differs, x, back, COLS);
}

static void encode_stripe(void *arg, int64_t item, int worker)
{
    (void)worker;
    const encode_run *r = arg;
    uint16_t amax[BLOCKS];
    uint8_t scale[BLOCKS];
    bl_quant_sums sums = {.error = 0};
    const uint16_t *x = r->x + item * STRIPE * COLS;
    if (!r->fp4) {
        r->quant.amax_rows(amax, x, STRIPE, COLS);
        bl_fp8_scales(scale, amax, BLOCKS);
    }
    for (int i = 0; i < STRIPE; i++, x += COLS) {
        uint8_t *codes = r->codes + (item * STRIPE + i) * (r->fp4 ? COLS / 2 : COLS);
        if (r->fp4) {
            r->quant.amax_rows(amax, x, 1, COLS);
            bl_fp4_scales(scale, amax, BLOCKS);
            r->quant.fp4_row(codes, x, scale, COLS, BL_FP4_TIES_EVEN);
        } else {
            r->quant.fp8_row(codes, x, scale, COLS);
        }
        if (r->compare) compare(r, &sums, x, codes, scale);
    }
}

static bl_status run_encode(void *arg, bl_error *err)
{
    (void)err;
    encode_run *r = arg;
    bl_pool_run(r->b->pool, r->rows / STRIPE, encode_stripe, r);
    return BL_OK;
}

bl_status bench_encode_open(bench *b, bench_encode *e, uint64_t bytes, bl_error *err)
{
    e->rows = (int64_t)(bytes / 2 / COLS / STRIPE * STRIPE);
    size_t n = (size_t)e->rows * COLS;
    BL_TRY(bench_memory(b, 2 * n, (void **)&e->x, err));
    BL_TRY(bench_memory(b, n, (void **)&e->codes, err));
    fill(e->x, n);
    return BL_OK;
}

bl_status bench_encode_run(bench *b, const bench_encode *e, bl_error *err)
{
    static const struct {
        const char *name;
        bool fp4, compare;
    } ways[] = {{"fp8 32x32", false, false}, {"fp4 1x32", true, false}, {"fp8 32x32, compared", false, true}, {"fp4 1x32, compared", true, true}};
    enum { WAYS = sizeof ways / sizeof ways[0] };
    bench_subject s[1 + WAYS];
    BL_TRY(bench_copy_ceiling(b, &s[0], err));
    for (int i = 0; i < WAYS; i++) {
        encode_run *r = bench_record(b, sizeof *r);
        if (!r) return bl_fail(err, BL_E_NOMEM, NULL, NULL, -1, "out of memory");
        *r = (encode_run){.b = b, .fp4 = ways[i].fp4, .compare = ways[i].compare, .x = e->x, .codes = e->codes, .rows = e->rows};
        bl_cast_init(&r->cast, b->cpu);
        bl_quant_init(&r->quant, b->cpu);
        double n = (double)e->rows * COLS, work = 1e-9 * (2 * n + (ways[i].fp4 ? n / 2 + n / 32 : n + n / 1024));
        s[1 + i] = (bench_subject){.name = ways[i].name, .run = run_encode, .arg = r, .work = work, .unit = "GB", .ceilings = 1};
        s[1 + i].ceiling[0].work = work;
    }
    return bench_run(b, "bf16 to codes and scales, memory to memory, bytes read + written", s, 1 + WAYS, err);
}
