/* Drawing on the GPU against drawing on the CPU: the same token from the same logits, whatever they are. */
#include "runtime/sample.h"
#include "tests/check/check_cuda.h"

#include <math.h>
#include <string.h>

enum { ROWS = 24 /* at most */ };

typedef enum style { NORMAL, PEAKED, TIES, FLAT, ODD, HOLES, NONE, STYLES } style;

static void fill(check *c, float *row, int64_t n, style s)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = check_normal(c);
        row[i] = s == PEAKED ? 12 * x : s == TIES ? roundf(2 * x) : s == FLAT ? 0.5f : 3 * x;
        if (s == HOLES && check_below(c, 3) == 0) row[i] = NAN;
        if (s == NONE) row[i] = NAN;
    }
    static const float odd[] = {INFINITY, -INFINITY, 3e38f, -3e38f, NAN, 0.0f, -0.0f, 1e-40f};
    for (int k = 0; s == ODD && k < 8; k++) row[check_below(c, n)] = odd[check_below(c, 8)];
}

static bl_sampling random_sampling(check *c)
{
    static const float temperatures[] = {0, 1e-5f, 0.3f, 1, 1, 1, 1.7f, 50}, ps[] = {1, 1, 0.95f, 0.5f, 0.1f, 0, 0.999999f, 0.8f};
    static const float mins[] = {0, 0, 0, 0.05f, 0.5f, 1, 1.5f, 1e-30f};
    static const int ks[] = {0, 0, 1, 2, 20, 40, 1000, 1 << 30};
    return (bl_sampling){.temperature = temperatures[check_below(c, 8)],
                         .top_k = ks[check_below(c, 8)],
                         .top_p = ps[check_below(c, 8)],
                         .min_p = mins[check_below(c, 8)],
                         .seed = (uint64_t)check_below(c, 1 << 30) << 20};
}

static void check_draws(check *c, int64_t n, style s)
{
    const int rows = (int)sized(ROWS, 8);
    check_case(c, "drawing among %lld, style %d", (long long)n, (int)s);
    float *logits = check_buffer(c, (size_t)(rows * n) * 4, 16);
    int32_t *scratch = check_buffer(c, (size_t)(2 * n) * 4, 16);
    bl_cuda_draw draws[ROWS] = {0};
    bl_cuda_drawn want[ROWS] = {0};
    for (int r = 0; r < rows; r++) {
        float *row = logits + r * n;
        fill(c, row, n, s);
        draws[r] = (bl_cuda_draw){.sampling = random_sampling(c), .position = (uint64_t)check_below(c, 100000), .draw = r % 8 != 7};
        const bl_sampling greedy = {.temperature = 0, .top_p = 1};
        const bl_sampling *how = draws[r].draw ? &draws[r].sampling : &greedy;
        want[r] = (bl_cuda_drawn){bl_sample(row, (int)n, how, draws[r].position, scratch, NULL), 0};
        for (int64_t i = 0; i < n; i++) want[r].nans += row[i] != row[i];
    }
    float *on_gpu = gpu_copy(logits, (size_t)(rows * n) * 4);
    bl_cuda_drawn *drawn = gpu_buffer(sizeof want);
    bl_cuda_sample(0, drawn, on_gpu, gpu_copy(draws, sizeof draws), rows, n);
    const bl_cuda_drawn *have = gpu_result(c, drawn, sizeof want);
    const float *after = gpu_result(c, on_gpu, (size_t)(rows * n) * 4);
    for (int r = 0; r < rows; r++) {
        check_int(c, "token", have[r].token, want[r].token);
        check_int(c, "NaN", have[r].nans, want[r].nans);
        if (!draws[r].draw) check_int(c, "a row that is not drawn from", memcmp(after + r * n, logits + r * n, (size_t)n * 4), 0);
    }
    gpu_case_end();
}

void check_cuda_sample(check *c)
{
    const int64_t sizes[] = {1, 2, 33, 512, 1023, 5000, sized(129280, 30000)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int s = (int)((int64_t)i % sized(1, 2)); s < STYLES; s += (int)sized(1, 2))
            for (int again = 0; again < (sizes[i] < 10000 ? sized(6, 1) : sized(2, 1)); again++) check_draws(c, sizes[i], (style)s);
}
