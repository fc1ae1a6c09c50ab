/* Between attention's projections down and up, for a few tokens: queries' norms, window rows, and segments of the mixing's products, which
 * nothing waits for so soon, in one launch. */
#include "kernels/cuda/held.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/window.cuh"

namespace bl {

enum { THREADS = 256 };

struct norm_args {
    uint16_t *y, *rounded;
    const uint16_t *x, *w;
    int64_t n;
    float eps;
};

/* A block for each token's queries, then for each window row, then for some segments of the products each. */
__global__ void __launch_bounds__(THREADS) between_kernel(norm_args q, window_args window, dense_args dots, float *parts)
{
    BL_DYNAMIC_SHARED(uint16_t, shared, 16); /* [2][n] */
    const int tokens = (int)window.tables.tokens, at = (int)blockIdx.x, warp = (int)threadIdx.x / WARP;
    if (at < tokens) norm_new_row<THREADS>(q.y + at * q.n, q.rounded + at * q.n, q.x + at * q.n, q.w, q.n, q.eps, shared);
    else if (at < 2 * tokens) make_window_row(window, at - tokens);
    else if (warp < PART_WARPS) part_of(dots, parts, (at - 2 * tokens) * PART_WARPS + warp);
}

} // namespace bl

using namespace bl;

void bl_cuda_prepare_attention(bl_cuda_stream s, const bl_cuda_between *b)
{
    const norm_args q = {b->y, b->rounded, b->x, b->norm, b->n, b->eps};
    const dense_args dots = b->dots ? dense_of(b->dots) : dense_args{};
    const dim3 grid((unsigned)(2 * b->window.t->tokens) + (b->dots ? part_blocks(dots.rows, dots.w.cols) : 0));
    cudaFuncSetAttribute(between_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(b->n * 4));
    launch_early(true, s, grid, THREADS, b->n * 4, between_kernel, q, args_of(&b->window), dots, b->parts);
}
