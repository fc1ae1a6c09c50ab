/* check_cuda [--small] [--seed N] [FAMILY]: the GPU's operations against the C references and the host model of the tensor core, by bytes.
 * Exit 0 all equal, 1 something differs, 77 there is no GPU (or the build has no CUDA). */
#include "tests/check/check_cuda.h"

#include "kernels/cast.h"
#include "kernels/cuda/dot.h"
#include "kernels/fmath.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY = 256 };

static check state;
static bool is_small;
static struct {
    void *p[MEMORY];
    int count;
} device;

int64_t sized(int64_t n, int64_t small)
{
    return is_small ? small : n;
}

void *gpu_buffer(size_t bytes)
{
    void *p = NULL;
    if (device.count == MEMORY || cudaMalloc(&p, bytes + 256) != cudaSuccess) {
        fprintf(stderr, "check_cuda: out of device memory\n");
        exit(1);
    }
    cudaMemset(p, 0xa5, bytes + 256);
    return device.p[device.count++] = p;
}

void *gpu_copy(const void *host, size_t bytes)
{
    void *p = gpu_buffer(bytes);
    cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice);
    return p;
}

void *gpu_result(check *c, const void *p, size_t bytes)
{
    void *host = check_buffer(c, bytes, 16);
    const cudaError_t e = cudaMemcpy(host, p, bytes, cudaMemcpyDeviceToHost);
    check_int(c, cudaGetErrorString(e), e, cudaSuccess);
    return host;
}

void gpu_case_end(void)
{
    cudaDeviceSynchronize();
    while (device.count) cudaFree(device.p[--device.count]);
}

uint16_t *random_row(check *c, int64_t n, float scale)
{
    uint16_t *x = check_buffer(c, (size_t)n * 2, 16);
    check_random_bf16(c, x, (size_t)n, scale);
    return x;
}

float *random_floats(check *c, int64_t n, float scale)
{
    float *x = check_buffer(c, (size_t)n * 4, 16);
    for (int64_t i = 0; i < n; i++) x[i] = scale * check_normal(c);
    return x;
}

/* ---- products */

static size_t bytes_of(bl_weight_kind kind, int64_t n)
{
    return (size_t)(kind == BL_W_BF16 ? 2 * n : kind == BL_W_FP8 ? n : kind == BL_W_FP4 ? n / 2 : 4 * n);
}

static bl_matrix random_matrix(check *c, bl_weight_kind kind, int64_t rows, int64_t cols)
{
    bl_matrix m = {.kind = kind, .rows = rows, .cols = cols};
    const size_t scales = (size_t)(kind == BL_W_FP8 ? (rows + 31) / 32 * (cols / 32) : rows * (cols / 32));
    uint8_t *codes = check_buffer(c, bytes_of(kind, rows * cols), 16), *scale = check_buffer(c, scales, 16);
    check_random_bytes(c, codes, bytes_of(kind, rows * cols));
    if (kind == BL_W_BF16) check_random_bf16(c, (uint16_t *)(void *)codes, (size_t)(rows * cols), 0.5f);
    for (int64_t i = 0; kind == BL_W_F32 && i < rows * cols; i++) ((float *)(void *)codes)[i] = check_normal(c);
    for (int64_t i = 0; kind == BL_W_FP8 && i < rows * cols; i++)
        if ((codes[i] & 127) == 127) codes[i] ^= 1;
    for (size_t i = 0; i < scales; i++) scale[i] = (uint8_t)(100 + check_below(c, 50));
    m.codes = codes;
    m.scale = scale;
    return m;
}

static bl_matrix on_gpu(const bl_matrix *m)
{
    bl_matrix g = *m;
    const size_t scales = (size_t)(m->kind == BL_W_FP8 ? (m->rows + 31) / 32 * (m->cols / 32) : m->rows * (m->cols / 32));
    g.codes = gpu_copy(m->codes, bytes_of(m->kind, m->rows * m->cols));
    g.scale = gpu_copy(m->scale, scales);
    return g;
}

bl_matrix gpu_weight(check *c, bl_weight_kind kind, int64_t rows, int64_t cols)
{
    const bl_matrix m = random_matrix(c, kind, rows, cols);
    return on_gpu(&m);
}

/* Row r decoded, bf16 (codes times scale are exact) or float32. */
static float model(const bl_matrix *m, int64_t r, const uint16_t *x, uint16_t *row)
{
    static bl_cast_kernels cast;
    if (!cast.fp8_row) bl_cast_init(&cast, 0);
    const int64_t n = m->cols;
    const uint8_t *codes = m->codes;
    if (m->kind == BL_W_F32) return bl_dot_row_f32((const float *)m->codes + r * n, x, n);
    if (m->kind == BL_W_BF16) return bl_dot_row((const uint16_t *)m->codes + r * n, x, n);
    if (m->kind == BL_W_FP8) cast.fp8_row(row, codes + r * n, m->scale + r / 32 * (n / 32), n);
    else cast.fp4_row(row, codes + r * n / 2, m->scale + r * (n / 32), n);
    return bl_dot_row(row, x, n);
}

static void check_product(check *c, bl_weight_kind kind, int64_t rows, int64_t cols, int64_t T, int64_t row0, int64_t ldx)
{
    check_case(c, "product kind=%d rows=%lld cols=%lld tokens=%lld row0=%lld", (int)kind, (long long)rows, (long long)cols, (long long)T,
               (long long)row0);
    const bl_matrix m = random_matrix(c, kind, row0 + rows, cols), g = on_gpu(&m);
    const uint16_t *x = random_row(c, T * ldx, 2);
    float *want = check_buffer(c, (size_t)(T * rows) * 4, 16), *y = gpu_buffer((size_t)(T * rows) * 4);
    uint16_t *row = check_buffer(c, (size_t)cols * 2, 16), *y16 = gpu_buffer((size_t)(T * rows) * 2);
    uint16_t *want16 = check_buffer(c, (size_t)(T * rows) * 2, 16);
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < rows; r++) {
            want[t * rows + r] = model(&m, row0 + r, x + t * ldx, row);
            want16[t * rows + r] = bl_f32_to_bf16(want[t * rows + r]);
        }
    bl_cuda_product p = {.w = g, .row0 = row0, .rows = rows, .x = gpu_copy(x, (size_t)(T * ldx) * 2), .ldx = ldx, .tokens = T, .y32 = y,
                         .ld = rows, .wide_elements = 192 * cols};
    p.wide = gpu_buffer((size_t)p.wide_elements * 2);
    bl_cuda_multiply(0, &p);
    check_f32(c, "float32", gpu_result(c, y, (size_t)(T * rows) * 4), want, T, rows);
    p.y32 = NULL;
    p.y16 = y16;
    bl_cuda_multiply(0, &p);
    check_bf16(c, "bf16", gpu_result(c, y16, (size_t)(T * rows) * 2), want16, T, rows);
    gpu_case_end();
}

/* Groups of rows, each with its own columns of x. */
static void check_grouped(check *c, bl_weight_kind kind, int64_t groups, int64_t rows, int64_t cols, int64_t T)
{
    check_case(c, "grouped product kind=%d groups=%lld rows=%lld cols=%lld tokens=%lld", (int)kind, (long long)groups, (long long)rows,
               (long long)cols, (long long)T);
    const bl_matrix m = random_matrix(c, kind, groups * rows, cols), g = on_gpu(&m);
    const uint16_t *x = random_row(c, T * groups * cols, 2);
    uint16_t *want = check_buffer(c, (size_t)(T * groups * rows) * 2, 16), *row = check_buffer(c, (size_t)cols * 2, 16);
    for (int64_t t = 0; t < T; t++)
        for (int64_t r = 0; r < groups * rows; r++)
            want[t * groups * rows + r] = bl_f32_to_bf16(model(&m, r, x + (t * groups + r / rows) * cols, row));
    const bl_cuda_product p = {.w = g, .rows = rows, .x = gpu_copy(x, (size_t)(T * groups * cols) * 2), .ldx = groups * cols, .tokens = T,
                               .y16 = gpu_buffer((size_t)(T * groups * rows) * 2), .ld = groups * rows, .groups = groups, .x_step = cols,
                               .row_step = rows, .y_step = rows, .wide = gpu_buffer((size_t)(groups * rows * cols) * 2),
                               .wide_elements = groups * rows * cols};
    bl_cuda_multiply(0, &p);
    check_bf16(c, "bf16", gpu_result(c, p.y16, (size_t)(T * groups * rows) * 2), want, T, groups * rows);
    gpu_case_end();
}

static void check_weight_cast(check *c, bl_weight_kind kind, int64_t rows, int64_t cols, int64_t row)
{
    check_case(c, "cast kind=%d rows=%lld cols=%lld from=%lld", (int)kind, (long long)rows, (long long)cols, (long long)row);
    const bl_matrix m = random_matrix(c, kind, row + rows, cols), g = on_gpu(&m);
    uint16_t *want = check_buffer(c, (size_t)(rows * cols) * 2, 16), *y = gpu_buffer((size_t)(rows * cols) * 2);
    const uint8_t *codes = m.codes;
    bl_cast_kernels cast;
    bl_cast_init(&cast, 0);
    for (int64_t r = row; r < row + rows; r++)
        if (kind == BL_W_FP8) cast.fp8_row(want + (r - row) * cols, codes + r * cols, m.scale + r / 32 * (cols / 32), cols);
        else cast.fp4_row(want + (r - row) * cols, codes + r * cols / 2, m.scale + r * (cols / 32), cols);
    bl_cuda_cast(0, y, &g, row, rows);
    check_bf16(c, "values", gpu_result(c, y, (size_t)(rows * cols) * 2), want, rows, cols);
    gpu_case_end();
}

static void check_products(check *c)
{
    static const int64_t tokens[] = {1, 3, 8, 9, 16, 17, 33, 70};
    for (int k = BL_W_BF16; k <= BL_W_F32; k++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            const int64_t T = tokens[i], rows = 1 + check_below(c, 50), cols = 32 * (1 + check_below(c, 30));
            check_product(c, (bl_weight_kind)k, rows, cols, T, 0, cols);
            check_product(c, (bl_weight_kind)k, rows, 32 * (1 + check_below(c, 8)), T, check_below(c, 40), 320);
            check_product(c, (bl_weight_kind)k, 17, 256 * (1 + check_below(c, 9)), T, 32, 256 * 9);
        }
    /* many blocks: the other number of warps */
    check_product(c, BL_W_FP8, 16 * sized(201, 101), 1536, 2, 0, 1536);
    check_product(c, BL_W_FP4, 16 * sized(201, 101), 1536, 2, 0, 1536);
    for (int k = BL_W_FP8; k <= BL_W_FP4; k++)
        for (int i = 0; i < 3; i++)
            check_weight_cast(c, (bl_weight_kind)k, 1 + check_below(c, 90), 32 * (1 + check_below(c, 90)), 32 * check_below(c, 3));
    /* many tokens: kernels of their own; weights are expanded piece by piece where scratch is short */
    for (int k = BL_W_BF16; k <= BL_W_FP4; k++) {
        check_product(c, (bl_weight_kind)k, 200, 320, 193, 0, 320);
        check_product(c, (bl_weight_kind)k, 392, 64 * (1 + check_below(c, 12)), 260, 32, 832);
    }
    check_product(c, BL_W_FP8, 40, 512, 600, 64, 512);
    /* few tokens, and segments for two blocks: one round, an odd one out, several rounds */
    check_product(c, BL_W_FP8, 35, 8192, 8, 0, 8192);
    check_product(c, BL_W_FP8, 50, 5376, 1, 32, 5376);
    check_product(c, BL_W_BF16, 35, 5376, 7, 0, 5632);
    check_product(c, BL_W_FP4, 33, 6144, 3, 0, 6144);
    check_product(c, BL_W_FP8, 16 * sized(70, 20), 8192, 6, 0, 8192);
    check_product(c, BL_W_BF16, 16 * sized(270, 20), 5120, 5, 0, 5120);
    check_product(c, BL_W_BF16, 16 * sized(70, 20), 8192, 6, 0, 8192);
    check_product(c, BL_W_BF16, 16 * sized(8600, 1100) + 5, 256, 1, 0, 256); /* more tiles than a block has descriptions of */
    check_grouped(c, BL_W_FP8, 3, 32, 256, 5);
    check_grouped(c, BL_W_BF16, 3, 48, sized(8192, 5376), 2);
    check_grouped(c, BL_W_FP8, 3, 32, 256, 200);
}

/* ---- main */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(check *c);
    } families[] = {{"products", check_products}, {"rows", check_cuda_rows}, {"drawing", check_cuda_sample}, {"index", check_cuda_index},
                    {"entries", check_cuda_entries}, {"attention", check_cuda_attention}, {"many", check_cuda_many}, {"few", check_cuda_few}};
    uint64_t seed = 1;
    const char *only = NULL;
    int n = 0;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--small")) is_small = true;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else only = argv[i];
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("SKIP check_cuda: there is no GPU; its kernels are NOT checked\n");
        return 77;
    }
    state.level = "cuda";
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const int64_t failures = state.failures, comparisons = state.comparisons;
        if (only && strcmp(only, families[i].name)) continue;
        state.family = families[i].name;
        state.random = seed;
        families[i].run(&state);
        check_end_case(&state);
        printf("%-4s %s: %lld comparisons\n", state.failures == failures ? "ok" : "FAIL", families[i].name,
               (long long)(state.comparisons - comparisons));
    }
    return state.failures ? 1 : 0;
}
